"""A flow that is kept running: waiting for records, working through them, starting again after errors, and getting
past records that break its program. Owns one thread per flow, and what is known of how it does.

After an error of a batch the next ones are small and grow again. In the one that fails, the records that cause it are
looked for, all at once: they become dead letters, and the rest of the batch goes on. If too many do, the program is
wrong, not the data: the flow stops, and these are no letters. Errors of the surroundings (a full disk, say) are tried
again with growing pauses. Fenced, changed, without its home or session, a flow stops at once; fenced
by another version of its view it goes on with that one, if it can."""

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
    LogDiverged,
    LogMissing,
    OffsetOutOfRange,
    OperatorFailed,
    SparkLost,
    StorageError,
    TooManyDeadLetters,
    TopicReplaced,
    TransformFailed,
    TransformRefused,
    ViewsDiverged,
    ViewTaken,
)
from headrace.flows.flow import Flow
from headrace.flows.folding.shaping import first_line
from headrace.flows.loop import Batch, FlowLoop

logger = logging.getLogger("headrace.flows")

FATAL = (
    FlowFenced,
    FlowChanged,
    ViewTaken,
    AlreadyRunning,
    TopicReplaced,
    LogDiverged,
    ViewsDiverged,
    LogMissing,
    OffsetOutOfRange,
    TransformFailed,
    AggregateFailed,
    OperatorFailed,
    TransformRefused,
    InvalidArgument,
    DoesNotFit,
    Closed,
    SparkLost,
)
"""Trying again would not help."""
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.5, 30.0
LOOK_SECONDS = 1.0
"""A quiet flow looks so often whether time alone has closed a window."""
DEAD_MIN, DEAD_SHARE = 20, 0.1
"""More dead letters than both, among the records since the first, and the flow stops."""
COMMIT_SECONDS = 2.0
"""Commits are not to take longer: meanwhile no other flow of the home commits."""
PACE_FIRST, PACE_MIN = 1_000_000, 1_000
"""So many records the first batch has at most, and any other whatever commits take. If each makes a row of its own,
that is as many as are committed in about COMMIT_SECONDS."""
PACE_CAREFUL = 100_000
"""The same of the first batch where a row may take much longer than others."""
ROW_SECONDS = 5e-6
"""No row is expected to take longer in a commit, where rows are merged plainly."""
ROWS_FIRST, GROWTH = 64, 8
"""So many records the batch after an error has, and so many times as many the next one."""


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
    committing_since: float | None = None
    recent: list[tuple[float, int]] = field(default_factory=list)

    def count(self, rows: int, seconds: float) -> None:
        now = time.monotonic()
        self.rows += rows
        self.batches += 1
        self.batch_seconds = seconds
        self.recent = [*[(at, some) for at, some in self.recent if at > now - 5][-1000:], (now, rows)]

    @property
    def committing_seconds(self) -> float:
        """How long the commit that is being made has taken."""
        since = self.committing_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def rate(self) -> float:
        if not self.recent:
            return 0.0
        span = max(time.monotonic() - self.recent[0][0], 0.1)
        return sum(rows for _, rows in self.recent) / span


class Turns:
    """When a flow that is to take a batch at most every so often may take the next: at once while it is behind."""

    def __init__(self, every_us: int) -> None:
        self._every_seconds, self._due = every_us / 1e6, 0.0

    def left_seconds(self, now: float) -> float:
        return max(0.0, self._due - now)

    def take(self, now: float, *, behind: bool) -> None:
        self._due = now if behind else now + self._every_seconds


def is_behind(batch: Batch) -> bool:
    """Whether there was more to read than the batch has."""
    return any(
        batch.places[topic][partition].offset < end.next
        for topic, ends in batch.look.ends.items()
        for partition, end in ends.items()
    )


def starting_again(flow: str, error: BaseException, pause_seconds: float) -> str:
    """The line for the log: our errors end with a full stop, and others do not."""
    return f"flow {flow}: {first_line(error).rstrip('.')}; starting again in {pause_seconds:.1f} s"


class Supervisor:
    """One flow's thread. `again` makes a new loop, begun, after each error; None if it was stopped meanwhile."""

    def __init__(self, loop: FlowLoop, again: Callable[[Flow], FlowLoop | None], batch_rows: int | None = None) -> None:
        self._flow, self._again = loop.flow, again
        self._loop: FlowLoop | None = loop
        self.pulse = Pulse(loop.flow.name)
        self.error: BaseException | None = None
        self.superseded = False
        """Whether it ended because another version has taken its place, made by another program."""
        self._stop, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headrace-flow-{loop.flow.name}", daemon=True)
        self._limit = self._rows_max = batch_rows or loop.batch_rows
        self._whole = batch_rows is None
        self._pace = PACE_FIRST if loop.merges_plainly else min(PACE_FIRST, PACE_CAREFUL)
        self._trouble = False
        self._suspect: tuple[str, int, int] | None = None
        self._since_first_dead = 0
        self._turns = Turns(loop.flow.every_us)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def is_stopping(self, timeout: float) -> bool:
        """Whether it was asked to stop, or is within so many seconds."""
        return self._stop.wait(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has ended. Not by the thread's own join: one that Ctrl-C interrupts takes the thread for ended."""
        return self._ended.wait(timeout)

    def work_off(self, asked_us: int | None = None) -> int:
        """All there is, here and now, in place of `start`: how many records. Errors are raised; a record that breaks
        the program becomes a dead letter. Silence counts up to `asked_us`."""
        assert self._loop is not None
        before, self._loop.asked_us = self.pulse.rows, asked_us
        self._live(self._loop, to_end=True)
        return self.pulse.rows - before

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
                if self._loop is not None:
                    self._live(self._loop)
            except FlowFenced as error:
                self.superseded = self._loop is None
                if self.superseded or not error.why:
                    return self._fail(error)
                logger.info("flow %s: %s; it goes on with that one", self.pulse.flow, error.why)
                self._loop = None
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
                early = 0.0 if to_end else self._turns.left_seconds(began)
                batch = None if early else self._next(loop, waiting)
                if waiting is not None:
                    waiting.result()
                    waiting = None
                if batch is None:
                    loop.close_windows()
                    loop.note_relayed()
                    if to_end:
                        break
                    loop.refuse_fenced()
                    loop.refuse_removed()
                    loop.refuse_ended()
                    loop.report()
                    self.pulse.state = "waiting"
                    if early:
                        self._stop.wait(min(early, LOOK_SECONDS))
                    else:
                        loop.wait(seen, LOOK_SECONDS)
                    continue
                self._turns.take(began, behind=is_behind(batch))
                self.pulse.count(batch.rows, time.monotonic() - began)
                self._expect(loop, batch)
                waiting = committer.submit(self._commit, loop, batch)
            if waiting is not None:
                waiting.result()
            loop.report(now=True)

    def _expect(self, loop: FlowLoop, batch: Batch) -> None:
        """Batches grow as soon as one has few rows to merge, since the next is prepared while that one is committed; at
        first so far that a commit is expected to take no longer than computing the next batch."""
        rows = batch.partials if batch.staged is None else batch.staged
        if rows is None or not loop.merges_plainly:
            return
        expected_seconds = rows.num_rows * ROW_SECONDS
        most = batch.rows * COMMIT_SECONDS / 4 / max(expected_seconds, ROW_SECONDS)
        self._pace = max(self._pace, min(paced(self._pace, batch.rows, expected_seconds), int(most)))

    def _commit(self, loop: FlowLoop, batch: Batch) -> None:
        """No flow's commit holds up those of others for long: after a long one, batches are smaller."""
        self.pulse.committing_since = time.monotonic()
        try:
            loop.commit(batch)
        finally:
            self.pulse.committing_since = None
        self._pace = paced(self._pace, batch.rows, loop.position.held_seconds)

    def _next(self, loop: FlowLoop, waiting: Future[None] | None) -> Batch | None:
        """The next batch; smaller ones after an error, down to the record that is to blame."""
        while True:
            try:
                batch = loop.prepare(min(self._limit, self._pace), whole=self._whole and not self._trouble)
            except Exception as error:
                if isinstance(error, FATAL) or not loop.computing:
                    raise
                loop.refuse_lost()
                if isinstance(error, StorageError | OSError) or _of_the_connection(error):
                    raise
                if self._stop.is_set():  # it was given up
                    return None
                if waiting is not None:
                    waiting.result()  # what comes now is slow, and must be in order
                    waiting = None
                batch = self._divide(loop, error)
                if self._stop.is_set():
                    return None
                if batch is None:
                    continue
            if batch is not None and self._trouble:
                self._since_first_dead += batch.rows
                self._limit = min(batch.rows * GROWTH, self._rows_max)
                self._trouble = self._limit < self._rows_max
            return batch

    def _divide(self, loop: FlowLoop, error: Exception) -> Batch | None:
        """What can be done of the planned batch, without the records that are to blame; None: a smaller one comes
        next."""
        rows = loop.planned_rows
        if rows > ROWS_FIRST and not self._trouble:
            self._limit, self._trouble = ROWS_FIRST, True
            return None
        self._trouble = True
        records = self._since_first_dead + rows
        too_many = max(DEAD_MIN, DEAD_SHARE * records)
        found = dict(loop.culprits(enough=too_many - self.pulse.dead + 1))
        loop.refuse_lost()
        if self._stop.is_set():  # what runs is given up: it has told nothing
            return None
        if not found and loop.fails_on_nothing():
            raise error  # of the surroundings
        if not found and rows > 1:  # nobody can tell, or it is not one record alone
            self._limit = rows // 2
            return None
        told = {place: f"{said(text)}\n{text}" for place, text in found.items()}
        if not told:
            place = loop.only_record()
            if self._suspect != place:  # it may have been something else: once more
                self._suspect = place
                return None
            told = {place: f"{first_line(error)}\n{''.join(traceback.format_exception(error))}"}
        dead = self.pulse.dead + len(told)
        if dead > too_many:
            last = next(reversed(told.values())).partition("\n")[0]
            raise TooManyDeadLetters(flow=self.pulse.flow, dead=dead, records=records, last=last) from error
        try:
            batch = loop.prepare_without(told)
        except Exception as other:
            if rows == 1 or isinstance(other, (*FATAL, StorageError, OSError)):
                raise
            self._limit = rows // 2  # others are to blame, too
            return None
        self.pulse.dead = dead
        return batch


def paced(pace: int, rows: int, seconds: float) -> int:
    """How many records a batch has at most, after one of `rows` took so long to commit."""
    if seconds > COMMIT_SECONDS:
        return max(int(min(rows, pace) * COMMIT_SECONDS / seconds), PACE_MIN)
    if rows < pace or seconds >= COMMIT_SECONDS / 4:
        return pace
    return pace * (8 if seconds < COMMIT_SECONDS / 16 else 4)


def said(text: str) -> str:
    """The one line of a task's error that a person reads first: what the user's function raised, or Spark."""
    _, raised, trace = text.partition("Traceback (most recent call last):")
    lines = (trace if raised else text).partition("\n\tat ")[0].splitlines()
    known = [line.strip() for line in lines if line.strip() and not (raised and line[0].isspace())]
    return known[-1 if raised else 0] if known else text.partition("\n")[0]


def _of_the_connection(error: Exception) -> bool:
    """The JVM does not answer: no record is to blame."""
    kind = type(error)
    return kind.__module__.startswith("py4j.") and kind.__name__ != "Py4JJavaError"  # which is what the JVM raised
