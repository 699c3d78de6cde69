"""Runs a sink in a thread, and again after what passes. Owns the thread, the pauses between attempts, when it looks for
more, and how far the log is told that it is: so that retention minds it and its lag is seen. Knows no kind of sink."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.connect.contract import Delivery
from headrace.errors import DiskFull, HeadraceError, SinkFailed, UnknownTopic

if TYPE_CHECKING:
    from headrace.log.contract import Log

__all__ = ["SinkThread", "drained", "reader_of"]

logger = logging.getLogger("headrace.sinks")
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 30.0
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


class SinkThread:
    """A sink that runs until `stop`. `open` opens it, also again after a failure; the topic may not be there yet."""

    def __init__(self, log: Log, sink: str, open: Callable[[], Delivery]) -> None:
        self._log, self._sink, self._open = log, sink, open
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink-{sink}", daemon=True)
        self._told_at = 0.0
        self.error: BaseException | None = None
        self.trouble = ""
        """What is wrong just now, while it is tried again."""
        self.restarts = 0

    @property
    def state(self) -> str:
        if self.error is not None:
            return "failed"
        if not self._thread.is_alive():
            return "stopped"
        return "retrying" if self.trouble else "running"

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends it after what it is writing. True if it has ended."""
        self._stopping.set()
        return self.join(timeout)

    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._stopping.is_set():
            try:
                opened = self._open()
            except UnknownTopic:  # nobody has written to it yet
                self._stopping.wait(LOOK_SECONDS)
                continue
            except BaseException as error:
                self._failed(error)
                return
            try:
                self._deliver(opened)
                return
            except (SinkFailed, DiskFull) as error:
                self.trouble = str(error)
                self.restarts += 1
                logger.warning("%s. Trying again in %.1f seconds", error, pause)
                self._stopping.wait(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            except BaseException as error:
                self._failed(error)
                return
            finally:
                opened.close()

    def _failed(self, error: BaseException) -> None:
        self.error = error
        if isinstance(error, HeadraceError):
            logger.error("sink %s: %s", self._sink, error)
        else:
            logger.exception("sink %s", self._sink, exc_info=error)

    def _deliver(self, opened: Delivery) -> None:
        while not self._stopping.is_set():
            seen = self._log.news([opened.topic])
            taken = opened.step()
            self.trouble = ""
            self._tell(opened, now=not taken)
            if not taken:
                self._log.wait(seen, LOOK_SECONDS)
        self._tell(opened, now=True)

    def _tell(self, opened: Delivery, *, now: bool) -> None:
        if now or time.monotonic() - self._told_at >= TOLD_SECONDS:
            self._told_at = time.monotonic()
            self._log.report(reader_of(self._sink), [(opened.topic, opened.place)])
