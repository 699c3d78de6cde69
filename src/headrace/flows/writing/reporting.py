"""What the log is told of a flow: how far it is, for retention and for those who look at lag. Owns when."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from headrace.errors import StorageError

if TYPE_CHECKING:
    from headrace.flows.flow import Flow
    from headrace.log.contract import Log
    from headrace.views.contract import FlowState

__all__ = ["Reporting"]

REPORT_SECONDS = 1.0
"""The log is told this often how far a flow is."""


class Reporting:
    """A flow's places live in its store, beside its results. The log is told of them now and then, so that retention
    minds the flow and lag is seen: not with every batch, and without a sync, for what is not told only keeps records
    for longer. At once where producers may be waiting for room."""

    def __init__(self, log: Log, flow: Flow) -> None:
        self._log, self._flow = log, flow
        self._told: dict[str, dict[int, int]] = {}
        self._told_at = -REPORT_SECONDS
        self._telling: Future[None] | None = None

    def tell(self, state: FlowState, *, now: bool) -> None:
        if not now and not self._is_due():
            return
        offsets = {
            topic: {partition: place.offset for partition, place in places.items()}
            for topic, places in state.places.items()
        }
        first = not self._told
        if offsets != self._told:
            self._told_at = time.monotonic()
            news = [(topic, offsets.get(topic.name, {})) for topic in self._flow.topics]
            self._telling, self._told = self._log.report(self._flow.name, news), offsets
        if now and self._telling is not None:
            try:
                self._telling.result()
            except StorageError:
                if first:  # retention minds only those it knows
                    raise

    def _is_due(self) -> bool:
        if self._telling is not None and not self._telling.done():
            return False
        bounded = any(
            topic.settings.unread == "keep" and topic.settings.retention_bytes is not None
            for topic in self._flow.topics
        )
        return bounded or time.monotonic() - self._told_at >= REPORT_SECONDS
