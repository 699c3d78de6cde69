"""A flow that is kept running: waiting for records, working through them, starting again after errors, and getting
past records that break its program. Owns one thread per flow, and what is known of how it does.

An error of a batch is met with smaller batches, down to the one record that causes it: that becomes a dead letter, and
the rest goes on. If too many do, the program is wrong, not the data: the flow stops. Errors of the surroundings (a full
disk, say) are tried again with growing pauses. Fenced, changed, or without its session, a flow stops at once."""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from headrace.errors import (
    AggregateFailed,
    AlreadyRunning,
    Closed,
    DoesNotFit,
    FlowChanged,
    FlowFenced,
    InvalidArgument,
    OffsetOutOfRange,
    StorageError,
    TooManyDeadLetters,
    TopicReplaced,
    TransformFailed,
    TransformRefused,
    ViewTaken,
)
from headrace.flows.flow import Flow
from headrace.flows.loop import Batch, FlowLoop
from headrace.flows.shaping import first_line

logger = logging.getLogger("headrace.flows")

FATAL = (
    FlowFenced,
    FlowChanged,
    ViewTaken,
    AlreadyRunning,
    TopicReplaced,
    OffsetOutOfRange,
    TransformFailed,
    AggregateFailed,
    TransformRefused,
    InvalidArgument,
    DoesNotFit,
    Closed,
)
"""Trying again would not help."""
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.5, 30.0
LOOK_SECONDS = 1.0
"""A quiet flow looks so often whether time alone has closed a window."""
DEAD_MIN, DEAD_SHARE = 20, 0.1
"""More dead letters than both, among the records since the first, and the flow stops."""


@dataclass(slots=True)
class Pulse:
    """How a flow does, for those who look. Rates are of the last seconds."""

    flow: str
    state: Literal["starting", "running", "waiting", "retrying", "stopped", "failed"] = "starting"
    rows: int = 0
    batches: int = 0
    dead: int = 0
    restarts: int = 0
    batch_seconds: float = 0.0
    error: str = ""
    recent: list[tuple[float, int]] = field(default_factory=list)

    def count(self, rows: int, seconds: float) -> None:
        now = time.monotonic()
        self.rows += rows
        self.batches += 1
        self.batch_seconds = seconds
        self.recent = [*[(at, some) for at, some in self.recent if at > now - 5][-1000:], (now, rows)]

    @property
    def rate(self) -> float:
        if not self.recent:
            return 0.0
        span = max(time.monotonic() - self.recent[0][0], 0.1)
        return sum(rows for _, rows in self.recent) / span


def starting_again(flow: str, error: BaseException, pause_seconds: float) -> str:
    """The line for the log: our errors end with a full stop, and others do not."""
    return f"flow {flow}: {first_line(error).rstrip('.')}; starting again in {pause_seconds:.1f} s"


class Supervisor:
    """One flow's thread. `again` makes a new loop, begun, after each error."""

    def __init__(self, loop: FlowLoop, again: Callable[[Flow], FlowLoop]) -> None:
        self._flow, self._again = loop.flow, again
        self._loop: FlowLoop | None = loop
        self.pulse = Pulse(loop.flow.name)
        self.error: BaseException | None = None
        self._stop, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headrace-flow-{loop.flow.name}", daemon=True)
        self._limit: int | None = None
        self._since_first_dead = 0

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has ended. Not by the thread's own join: one that Ctrl-C interrupts takes the thread for ended."""
        return self._ended.wait(timeout)

    def work_off(self) -> None:
        """All there is, here and now, in place of `start`. Errors are raised; a record that breaks the program becomes
        a dead letter."""
        assert self._loop is not None
        self._live(self._loop, to_end=True)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_running()
        finally:
            self._ended.set()

    def _keep_running(self) -> None:
        pause = PAUSE_SECONDS
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._loop = self._loop or self._again(self._flow)
                self._live(self._loop)
            except FATAL as error:
                return self._fail(error)
            except TooManyDeadLetters as error:
                return self._fail(error)
            except Exception as error:
                self._loop = None
                if time.monotonic() - began > PAUSE_MAX_SECONDS:
                    pause = PAUSE_SECONDS
                self.pulse.state, self.pulse.error = "retrying", first_line(error)
                self.pulse.restarts += 1
                logger.warning("%s", starting_again(self.pulse.flow, error, pause))
                self._stop.wait(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, PAUSE_MAX_SECONDS)
        self.pulse.state = "stopped"

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self.pulse.state, self.pulse.error = "failed", first_line(error)
        logger.error("flow %s stopped: %s", self.pulse.flow, error)

    def _live(self, loop: FlowLoop, *, to_end: bool = False) -> None:
        """Works until it is asked to stop, or is at the end; the next batch is computed while the last is committed."""
        with ThreadPoolExecutor(1, thread_name_prefix=f"headrace-commit-{self.pulse.flow}") as committer:
            waiting: Future[None] | None = None
            while not self._stop.is_set():
                self.pulse.state = "running"
                seen = loop.news()
                began = time.monotonic()
                batch = self._next(loop, waiting)
                if waiting is not None:
                    waiting.result()
                    waiting = None
                if batch is None:
                    loop.close_windows()
                    if to_end:
                        break
                    loop.refuse_fenced()
                    loop.report()
                    self.pulse.state = "waiting"
                    loop.wait(seen, LOOK_SECONDS)
                    continue
                self.pulse.count(batch.rows, time.monotonic() - began)
                waiting = committer.submit(loop.commit, batch)
            if waiting is not None:
                waiting.result()
            loop.report(now=True)

    def _next(self, loop: FlowLoop, waiting: Future[None] | None) -> Batch | None:
        """The next batch; smaller ones after an error, down to the record that is to blame."""
        while True:
            try:
                batch = loop.prepare(self._limit)
            except Exception as error:
                if isinstance(error, FATAL):
                    raise
                loop.refuse_lost()
                if isinstance(error, StorageError | OSError) or _of_the_connection(error):
                    raise
                if self._stop.is_set():  # it was given up
                    return None
                if waiting is not None:
                    waiting.result()  # what comes now is slow, and must be in order
                    waiting = None
                self._divide(loop, error)
                if self._stop.is_set():
                    return None
                continue
            if batch is not None and self._limit is not None:
                self._since_first_dead += batch.rows
                self._limit = None if batch.rows * 2 >= loop.batch_rows else batch.rows * 2
            return batch

    def _divide(self, loop: FlowLoop, error: Exception) -> None:
        rows = loop.planned_rows
        if rows > 1:
            self._limit = rows // 2
            return
        if rows == 0:
            raise error
        letter = "".join(traceback.format_exception(error))
        logger.warning("flow %s: a record became a dead letter: %s", self.pulse.flow, first_line(error))
        loop.bury(first_line(error), letter)
        self.pulse.dead += 1
        self._since_first_dead += 1
        if self.pulse.dead > DEAD_MIN and self.pulse.dead > DEAD_SHARE * self._since_first_dead:
            raise TooManyDeadLetters(
                flow=self.pulse.flow, dead=self.pulse.dead, records=self._since_first_dead, last=first_line(error)
            ) from error


def _of_the_connection(error: Exception) -> bool:
    """The JVM does not answer: no record is to blame."""
    kind = type(error)
    return kind.__module__.startswith("py4j.") and kind.__name__ != "Py4JJavaError"  # which is what the JVM raised
