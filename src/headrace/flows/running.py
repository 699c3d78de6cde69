"""Flows in this process, together: one session, one store, one loop each. Owns their making and ending, and the order
in which they are drained: those that write a topic before those that read it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import UnknownTopic
from headrace.flows.flow import Flow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flows.loop import FlowLoop
    from headrace.log.embedded.log import EmbeddedLog
    from headrace.log.embedded.topic import EmbeddedTopic
    from headrace.views.sqlite import SqliteViews


class Running:
    def __init__(self, app: str, flows: list[Flow], log: EmbeddedLog, spark: Any, batch_rows: int) -> None:
        self._app, self._flows, self._log, self._given, self._batch_rows = app, flows, log, spark, batch_rows
        self._session: SparkSession | None = None
        self._owned = False
        self._store: SqliteViews | None = None
        self._loops: dict[str, FlowLoop] = {}
        self._lock = threading.RLock()

    @property
    def spark(self) -> SparkSession:
        from headrace.flows import session

        with self._lock:
            if self._session is None:
                self._session, self._owned = session.make(self._app, self._given, self._log.home)
            return self._session

    @property
    def store(self) -> SqliteViews:
        from headrace.views.sqlite import SqliteViews

        with self._lock:
            if self._store is None:
                self._store = SqliteViews(self._log.home)
            return self._store

    def loop(self, flow: Flow) -> FlowLoop:
        """The flow's loop, begun."""
        from headrace.flows.compile import compiled
        from headrace.flows.loop import FlowLoop

        with self._lock:
            if flow.name not in self._loops:
                spec = compiled(flow, self._app, self.spark)
                made = FlowLoop(
                    flow, spec, log=self._log, store=self.store, spark=self.spark, batch_rows=self._batch_rows
                )
                made.begin()
                self._loops[flow.name] = made
            return self._loops[flow.name]

    def target(self, flow: Flow, settings: Mapping[str, Any]) -> EmbeddedTopic:
        """The topic a flow writes to; made with the columns it writes if there is none: these only Spark can tell."""
        from headrace.flows.compile import target_schema

        assert flow.target is not None
        with contextlib.suppress(UnknownTopic):
            return self._log.topic(flow.target)
        schema, implied = target_schema(flow, self._app, self.spark)
        return self._log.create_topic(flow.target, schema, exist_ok=True, **{**implied, **settings})

    def drain(self, batch_rows: int | None, *, close: bool) -> int:
        total = 0
        loops = [self.loop(flow) for flow in self._flows]
        while (done := sum(loop.drain(batch_rows) for loop in loops)) > 0:
            total += done
        if close:
            for loop in loops:
                loop.close_windows(all_of_them=True)
        return total

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
            if self._session is not None and self._owned:
                self._session.stop()
