"""Runs a sink in a thread, and again after what passes. Owns what passes, when it looks for more, and how far the log
is told that it is: so that retention minds it and its lag is seen. Knows no kind of sink."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.connect.contract import Delivery
from headrace.errors import HeadraceError, SinkFailed, UnknownTopic
from headrace.retrying import RetryingThread, log_may_recover

if TYPE_CHECKING:
    from headrace.log.contract import Log

__all__ = ["SinkThread", "drained", "reader_of"]

logger = logging.getLogger("headrace.sinks")
LOOK_SECONDS: Final = 1.0
TOLD_SECONDS: Final = 1.0


def reader_of(sink: str) -> str:
    """What a sink is called among the readers of its topic."""
    return f"sink.{sink}"


def drained(log: Log, sink: str, opened: Delivery) -> int:
    """Takes all that its topic has; how many records."""
    total = 0
    while taken := opened.step():
        total += taken
    log.report(reader_of(sink), [(opened.topic, opened.place)]).result()
    return total


def _passes(error: HeadraceError) -> bool:
    """Whether the same may succeed later."""
    return isinstance(error, SinkFailed) or log_may_recover(error)


class SinkThread(RetryingThread):
    """A sink that runs until `stop`. `open` opens it, also again after a failure; the topic may not be there yet."""

    def __init__(self, log: Log, sink: str, open: Callable[[], Delivery]) -> None:
        super().__init__(f"sink {sink}", self._deliver, _passes, logger=logger)
        self._log, self._sink, self._open = log, sink, open
        self._told_at = 0.0

    def _deliver(self) -> None:
        while not self.is_stopping():
            try:
                opened = self._open()
            except UnknownTopic:  # nobody has written to it yet
                self.pause(LOOK_SECONDS)
                continue
            with contextlib.closing(opened):
                self._take(opened)
            return

    def _take(self, opened: Delivery) -> None:
        while not self.is_stopping():
            seen = self._log.news([opened.topic])
            taken = opened.step()
            self.is_well()
            self._tell(opened, now=not taken)
            if not taken:
                self._log.wait(seen, LOOK_SECONDS)
        self._tell(opened, now=True)

    def _tell(self, opened: Delivery, *, now: bool) -> None:
        if now or time.monotonic() - self._told_at >= TOLD_SECONDS:
            self._told_at = time.monotonic()
            self._log.report(reader_of(self._sink), [(opened.topic, opened.place)])
