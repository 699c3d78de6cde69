"""The committer: one thread per process through which every write goes. Owns the order of a commit:
frames written → data synced → turnstile → one SQLite transaction → mark → wake. Does not know Arrow or groups.

Jobs that wait together are committed together, and share the syncs; each is applied under its own
savepoint, so one that is refused takes nothing with it. A job's future is resolved only when its commit is as
durable as it asked for. After a failed sync nothing more is written by this process."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, Protocol

from headrace.durations import from_us
from headrace.errors import ClockAhead, Closed, DiskFull, HeadraceError, LogMissing, SyncFailed
from headrace.failpoints import reach
from headrace.log.embedded.storage.clock import Newest, Reading, Verdict, ahead_us, is_synchronised, judge, newest_after
from headrace.log.embedded.storage.datafiles import DataFiles, Draft
from headrace.log.embedded.storage.frames import ARCHIVED, JOINED
from headrace.log.embedded.storage.index import (
    BATCHES,
    PARTITIONS,
    TOPICS,
    BatchRow,
    Index,
    LastCommit,
    PartitionRow,
    TopicRow,
    last_commit,
    put_last_commit,
    translate,
)
from headrace.storage import disk
from headrace.storage.reserve import Reserve
from headrace.storage.turnstile import Mark, Turnstile
from headrace.time import UNSET, progress_after, with_floor

SMALL_RECORDS, SMALL_BYTES = 10_000, 1 << 20
"""Batches below both are small: many of them are sealed into one."""
SEAL_AT = 1_000
"""A partition with so many small batches is to be sealed."""
GATHER_SECONDS = 0.001
JOBS_MAX = 1024
PATIENCE_SECONDS = 10.0
"""A commit that waits longer logs which process it waits for."""

logger = logging.getLogger("headrace.log")


class Tx:
    """A write transaction, as a job sees it."""

    def __init__(self, db: sqlite3.Connection, reading: Reading, newest: Newest | None) -> None:
        self.db = db
        self.now_us = reading.now_us
        self.newest = newest
        self.touched: set[str] = set()  # topic uids with news for readers
        self.upkeep_due = False
        self._reading = reading
        self._verdict: Verdict | None = None
        self._arrived_us: int | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the clock can be believed."""
        if self._verdict is None:
            self._verdict = judge(self.newest, self._reading, is_synchronised)
        return self._verdict

    def arrival_us(self) -> int:
        """What is stamped on records of this transaction. It never goes back within a home."""
        if self._arrived_us is None:
            if self.verdict is Verdict.REFUSED:
                raise self.clock_ahead()
            self.newest = newest_after(self.newest, self._reading, self.verdict)
            self._arrived_us = self.newest.arrived_us
        return self._arrived_us

    @property
    def age_at_us(self) -> int:
        """By which time records are old: the clock's, or 0 (nothing is old) while it is not believed."""
        return self.now_us if self.verdict is Verdict.BELIEVED else 0

    def clock_ahead(self) -> ClockAhead:
        assert self.newest is not None, "a new home has nothing to compare with"
        ahead = ahead_us(self.newest, self._reading)
        return ClockAhead(
            from_us(self.now_us),
            from_us(self.newest.arrived_us),
            timedelta(microseconds=ahead),
            self.verdict is Verdict.DOUBTED,
        )

    def confirm_clock(self) -> None:
        """The clock is right, whatever the evidence says."""
        self.newest, self._verdict = newest_after(self.newest, self._reading, Verdict.BELIEVED), Verdict.BELIEVED

    def take_arrival_back(self, least_us: int) -> None:
        """The newest arrival was ahead of a clock that is right: it is now, or `least_us` if that is later. Partitions
        that are ahead stay so."""
        newest = newest_after(None, self._reading, Verdict.BELIEVED)
        self.newest = newest._replace(arrived_us=max(newest.arrived_us, least_us))
        self._verdict = Verdict.BELIEVED

    def topic(self, topic: int) -> TopicRow | None:
        return TOPICS.get(self.db, topic)

    def append(self, topic: TopicRow, draft: Draft, forget_us: int, progress_max_us: int | None = None) -> BatchRow:
        """Gives the frame its offsets, arrival and progress, and makes it visible with the commit.
        `progress_max_us`: the largest of the progresses its rows carry, when they carry their own."""
        assert topic.id is not None and draft.position >= 0, "a frame is written before it is committed"
        state = PARTITIONS.get(self.db, topic.id, draft.partition)
        assert state is not None, f"partition {draft.partition} of {topic.name} has a row"
        arrived = max(self.arrival_us(), state.arrived)  # the latter: of a partition that is ahead since before a mend
        before = UNSET if state.progress is None else state.progress
        if arrived - state.arrived > forget_us:
            (largest,) = self.db.execute("SELECT max(progress) FROM partitions WHERE topic = ?", (topic.id,)).fetchone()
            before = with_floor(before, state.arrived, arrived, UNSET if largest is None else largest, forget_us)
        if progress_max_us is None:
            after = progress_after(before, draft.event_max, arrived)
        else:
            after = max(before, progress_max_us)
        row = BatchRow(
            topic.id,
            draft.partition,
            state.next,
            state.next + draft.body.count,
            draft.body.count,
            draft.file,
            draft.position,
            draft.length,
            draft.body.crc,
            draft.body.plain_bytes,
            draft.schema_version,
            draft.event_min,
            draft.event_max,
            _stored(before),
            arrived,
            draft.flags,
        )
        BATCHES.add(self.db, row)
        held = {
            "records": state.records + row.records,
            "bytes": state.bytes + row.length,
            "small": state.small + is_small(row),
        }
        PARTITIONS.change(self.db, state._replace(next=row.next, progress=_stored(after), arrived=arrived, **held))
        self.upkeep_due |= held["small"] >= SEAL_AT
        self.touched.add(topic.uid)
        return row

    def partitions(self, topic: int) -> list[PartitionRow]:
        return PARTITIONS.select(self.db, "WHERE topic = ? ORDER BY partition", topic)


def is_small(row: BatchRow) -> bool:
    there = row.file is not None and not row.flags & ARCHIVED
    return there and row.records < SMALL_RECORDS and row.plain_bytes < SMALL_BYTES


def _stored(progress_us: int) -> int | None:
    return None if progress_us == UNSET else progress_us


class Job(Protocol):
    """One requested write. `drafts` is called before any lock is taken, `apply` inside the transaction."""

    @property
    def synced(self) -> bool:
        """Whether the commit must survive a power loss."""

    @property
    def frees(self) -> bool:
        """Whether it may use the space that is kept for when the disk is full."""

    @property
    def merge_key(self) -> Hashable | None:
        """Jobs of one key may be combined into one; None keeps the job's own frame."""

    def combine(self, jobs: Sequence[Any]) -> Job:
        """One job for all of them, whose result is the list of theirs."""

    def drafts(self) -> list[Draft]:
        """The frames to write."""

    def apply(self, tx: Tx) -> Any:
        """The rows to write; the result is the future's. A HeadraceError refuses this job alone."""


class Plain:
    """A job that writes rows of the index only. It takes little space, most of it until the next checkpoint."""

    merge_key = None
    frees = True

    def __init__(self, apply: Callable[[Tx], Any], *, synced: bool) -> None:
        self.apply = apply
        self.synced = synced

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        return []


Waiting = tuple[Any, "Future[Any]"]
Work = tuple[Job, "list[Future[Any]]", bool]  # the last: a combined job, whose result is a list of outcomes


class Promise(Future[Any]):
    """A job's outcome. One that waits for it long is not left in the dark: a process that was stopped inside a commit
    (Ctrl-Z, a debugger) holds up all others, and cannot say so itself."""

    def __init__(self, turnstile: Turnstile) -> None:
        super().__init__()
        self._turnstile = turnstile

    def result(self, timeout: float | None = None) -> Any:
        if timeout is not None:
            return super().result(timeout)
        waited = 0.0
        while True:
            try:
                return super().result(PATIENCE_SECONDS)
            except TimeoutError:
                if self.done():  # just now, or it is what the job raised
                    return super().result()
            waited += PATIENCE_SECONDS
            if (pid := self._turnstile.holder()) is not None:
                logger.warning(
                    "waiting for %.0f s for process %d to finish its commit; is it stopped? "
                    "Let it go on (kill -CONT %d) or end it: nothing that was committed is lost",
                    *(waited, pid, pid),
                )


class Committer:
    def __init__(
        self,
        index: Index,
        files: DataFiles,
        turnstile: Turnstile,
        *,
        reserve: Reserve,
        boot: str,
        wake: Callable[[set[str]], None],
        clock: Callable[[], Reading],
    ) -> None:
        self._index, self._files, self._turnstile, self._reserve = index, files, turnstile, reserve
        self._released = False  # the reserve, by this process: to be made again
        self._boot, self._wake, self._clock = boot, wake, clock
        self._queue: deque[Waiting] = deque()
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._expected = 1  # jobs the next commit may hope for
        self._awaited = 1  # jobs for which the thread is to be woken
        self._synced_known = 0
        self._asked: list[Future[bool]] = []  # who wants a checkpoint
        self._distrusted: SyncFailed | None = None
        self.failed: SyncFailed | None = None
        self.after_commit: Callable[[bool], None] = lambda _: None
        """Told after each commit whether upkeep is due."""

    def submit(self, job: Job) -> Future[Any]:
        future = Promise(self._turnstile)
        with self._more:
            if self._closing:
                raise Closed(what="the log")
            self._queue.append((job, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-committer", daemon=True)
                self._thread.start()
            if len(self._queue) >= self._awaited:
                self._more.notify()
        return future

    def run(self, apply: Callable[[Tx], Any], *, synced: bool) -> Any:
        """A write of index rows only, waited for."""
        return self.submit(Plain(apply, synced=synced)).result()

    def checkpoint(self) -> bool:
        """Empties the write-ahead log, behind a commit; False when a reader was in the way."""
        asked: Future[bool] = Future()
        self._asked.append(asked)
        self.run(lambda _: None, synced=True)
        return asked.result()

    def distrust(self, error: SyncFailed) -> NoReturn:
        """A sync failed outside of a commit: this process writes nothing more, as after one inside."""
        self._distrusted = error
        self.run(lambda _: None, synced=False)
        raise error

    def close(self) -> None:
        """Finishes what waits; then this process's file is synced and closed, and the index checkpointed."""
        with self._more:
            self._closing = True
            self._more.notify()
        if self._thread is None:
            return
        self._thread.join()
        if self.failed is None and self._index.in_place():
            self._files.sync_ingest()
            try:
                self._close_ingest()
            except DiskFull:  # else the next opening closes the file, as after a crash
                self._release_reserve()
                with contextlib.suppress(DiskFull):
                    self._close_ingest()
            self._checkpoint(wanted=True)
            if self._released:
                self._make_reserve()

    def _close_ingest(self) -> None:
        try:
            with self._turnstile.writing():
                self._files.close_ingest(self._index.begin(synced=True))
                self._index.commit()
        except sqlite3.Error as error:
            self._index.rollback()
            raise translate(error, self._index.path) from error

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while jobs := self._gather():
            try:
                self._commit(jobs)
            except BaseException as error:  # whatever it is, nobody may wait for ever
                for _, future in jobs:
                    if not future.done():
                        future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

    def _gather(self) -> list[Waiting]:
        """The jobs of the next commit. Waits a moment for those who were just answered to come back, beside those who
        waited meanwhile: else two halves of the callers would take turns for ever, each waiting for the other's."""
        with self._more:
            while not self._queue:
                if self._closing:
                    return []
                self._awaited = 1
                self._more.wait()
            self._awaited = min(self._expected, JOBS_MAX)
            self._more.wait_for(lambda: len(self._queue) >= self._awaited or self._closing, timeout=GATHER_SECONDS)
            jobs = [self._queue.popleft() for _ in range(min(len(self._queue), JOBS_MAX))]
            self._expected = 1
            return jobs

    def _commit(self, waiting: list[Waiting]) -> None:
        if self.failed is not None:
            raise self.failed
        drafted = _drafted(_combined(waiting))
        try:
            self._commit_drafted(drafted, len(waiting))
        except DiskFull as full:
            self._commit_when_full(drafted, full)

    def _commit_when_full(self, drafted: list[Drafted], full: DiskFull) -> None:
        """Once more: first what may use the reserve, then the others, if the reserve could be made again."""
        self._files.take_back()
        self._release_reserve()
        if self.failed is not None:
            raise self.failed
        freeing = [each for each in drafted if each.job.frees]
        others = [each for each in drafted if not each.job.frees]
        if freeing:
            self._commit_drafted(freeing, 1)
        if others:
            if not self._make_reserve():
                raise full
            self._commit_drafted(others, 1)

    def _release_reserve(self) -> None:
        """And empties the write-ahead log, which may hold much more."""
        self._released |= self._reserve.release()
        self._checkpoint(wanted=True)

    def _make_reserve(self) -> bool:
        made = self._reserve.make()
        self._released &= not made
        return made

    def _commit_drafted(self, drafted: list[Drafted], waiting: int) -> None:
        work = [(each.job, each.futures, each.shared) for each in drafted]
        drafts = [draft for each in drafted for draft in each.drafts]
        synced = any(job.synced for job, _, _ in work)
        others: dict[int, int] = {}
        if self._released and drafts and not all(job.frees for job, _, _ in work) and not self._make_reserve():
            raise DiskFull(path=str(self._files.folder), why="there is space left only for what frees some")
        try:
            if self._distrusted is not None:
                raise self._distrusted
            if drafts:
                self._files.check_in_place()
                if self._files.needs_roll():
                    self._roll()
                reach("append.encoded")
                self._files.write(drafts, self._synced_known)
                reach("append.written")
            if synced:
                self._files.sync_ingest()
                with self._index.reading() as db:
                    others = self._files.sync_others(db)
                self._index.name_wal()
                reach("append.synced")
            with self._turnstile.writing():
                results, tx = self._transact(work, synced=synced, others=others)
        except SyncFailed as error:
            self._stop_writing(error)
            raise
        except sqlite3.Error as error:
            raise translate(error, self._index.path) from error
        except OSError as error:
            raise disk.translate(error, error.filename or self._index.path) from error
        reach("commit.unacked")
        self._wake(tx.touched)
        due = self._index.checkpoint_due()  # looked at before the callers take the interpreter
        self._expected = waiting + len(self._queue)  # before anyone is answered, who could then count twice
        for (_, futures, shared), result in zip(work, results, strict=True):
            outcomes = result if shared and not isinstance(result, HeadraceError) else [result] * len(futures)
            for future, outcome in zip(futures, outcomes, strict=True):
                if isinstance(outcome, HeadraceError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        asked, self._asked = self._asked, []
        if due or asked:
            emptied = False
            try:
                reach("checkpoint.due")
                emptied = self._checkpoint(wanted=bool(asked))
                if asked and self._released:
                    self._make_reserve()
            finally:
                for each in asked:
                    each.set_result(emptied)
        self.after_commit(tx.upkeep_due)

    def _transact(self, work: list[Work], *, synced: bool, others: dict[int, int]) -> tuple[list[Any], Tx]:
        index = self._index
        if not index.in_place():
            raise LogMissing(path=str(index.path), why="it was removed or replaced while open. Nothing was written")
        db = index.begin(synced=synced)
        results: list[Any] = []
        try:
            last, reading = last_commit(db, index.path), self._clock()
            tx = Tx(db, reading, last.newest)
            for job, _, _ in work:
                results.append(self._applied(job, tx, alone=len(work) == 1))
            reach("commit.applied")
            if all(isinstance(result, HeadraceError) for result in results):
                index.rollback()
                self._files.take_back()
                return results, Tx(db, reading, last.newest)
            number = self._number(db, last, tx.newest, synced=synced)
            self._files.note(db, synced=synced, others=others)
            index.commit()
        except BaseException:
            index.rollback()
            raise
        reach("commit.committed")
        self._files.noted()
        if synced:
            self._synced_known = number
        with contextlib.suppress(OSError):  # a second witness: what it could not be told is committed all the same
            self._turnstile.leave_mark(Mark(number, self._synced_known, self._boot))
        return results, tx

    def _checkpoint(self, *, wanted: bool) -> bool:
        """After a commit, whose callers are answered. What is unsynced in the write-ahead log is synced before the
        turnstile is taken: others would wait for all of it."""
        try:
            self._index.sync_wal()
            with self._turnstile.writing():
                return (wanted or self._index.checkpoint_due()) and self._index.checkpoint()
        except SyncFailed as error:
            self.failed = error
        except HeadraceError:  # a full disk, say: the write-ahead log grows until there is space
            self._index.postpone_checkpoint()
        return False

    def _applied(self, job: Job, tx: Tx, *, alone: bool) -> Any:
        """The job's result, or the error that refuses it: then nothing of it stays in the transaction."""
        if alone:  # a refusal rolls the whole transaction back: no savepoint needed
            try:
                return job.apply(tx)
            except HeadraceError as refused:
                return refused
        touched = set(tx.touched)
        tx.db.execute("SAVEPOINT job")
        try:
            return job.apply(tx)
        except HeadraceError as refused:
            tx.db.execute("ROLLBACK TO job")
            tx.touched = touched
            return refused
        finally:
            tx.db.execute("RELEASE job")

    def _stop_writing(self, error: SyncFailed) -> None:
        self.failed = error
        with contextlib.suppress(HeadraceError, sqlite3.Error, OSError), self._turnstile.writing():
            self._files.suspect(self._index.begin(synced=False), error.path)
            self._index.commit()

    def _number(self, db: sqlite3.Connection, last: LastCommit, newest: Newest | None, *, synced: bool) -> int:
        """Numbers the commit, and learns how far others have synced."""
        number = last.number + 1
        self._synced_known = max(self._synced_known, last.synced)
        put_last_commit(db, LastCommit(number, number if synced else self._synced_known, newest))
        return number

    def _roll(self) -> None:
        self._make_reserve()
        fresh = self._files.create_ingest()
        try:
            with self._turnstile.writing():
                if not self._index.in_place():
                    raise LogMissing(path=str(self._index.path), why="it was removed or replaced while open")
                db = self._index.begin(synced=False)
                self._files.adopt_ingest(db, fresh)
                reach("roll.registered")
                last = last_commit(db, self._index.path)
                self._number(db, last, last.newest, synced=False)
                self._index.commit()
        except BaseException:
            self._index.rollback()
            self._files.discard(fresh)
            raise
        self._files.adopted(fresh)
        reach("roll.adopted")


@dataclass(frozen=True, slots=True)
class Drafted:
    """A job with its frames."""

    job: Job
    futures: list[Future[Any]]
    shared: bool
    drafts: list[Draft]


def _drafted(work: list[Work]) -> list[Drafted]:
    """What can be written. A job that cannot make its own frames fails alone, whatever its error."""
    able = []
    for job, futures, shared in work:
        try:
            able.append(Drafted(job, futures, shared, _joined(job.drafts())))
        except Exception as error:
            for future in futures:
                future.set_exception(error)
    return able


def _joined(drafts: list[Draft]) -> list[Draft]:
    for draft in drafts[1:]:
        draft.flags |= JOINED
    return drafts


def _combined(waiting: list[Waiting]) -> list[Work]:
    """Jobs in order of arrival, those that may share frames combined at the place of the first."""
    work: list[tuple[list[Job], list[Future[Any]], bool]] = []
    places: dict[Hashable, int] = {}
    for job, future in waiting:
        key = job.merge_key
        if key is not None and key in places:
            jobs, futures, _ = work[places[key]]
            jobs.append(job)
            futures.append(future)
            continue
        if key is not None:
            places[key] = len(work)
        work.append(([job], [future], key is not None))
    return [(jobs[0].combine(jobs) if shared else jobs[0], futures, shared) for jobs, futures, shared in work]
