"""Producers: rows sent one by one, appended in batches. Owns the buffer, the linger, and what happens when rows come
faster than the log takes them. Does not know how a log appends: a subclass does, in three methods.

A row is acknowledged (its future is resolved) only when its batch is committed. A row that the topic cannot hold fails
its own future and no other. With an id, each batch carries the number of its first record: the log recognises a batch
that is sent again, and a second producer of the same id fences the first."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from sys import getsizeof
from types import TracebackType
from typing import Any, Self

from headrace.durations import Duration, duration_us
from headrace.errors import Closed, InvalidArgument, Overloaded, RecordRejected, TopicFull, WaitTimeout
from headrace.log.contract import Overload, ProducerStats
from headrace.log.futures import LazyFuture, resolve
from headrace.names import check_name
from headrace.position import Position

__all__ = ["AsyncProducer", "BufferedProducer"]

Waiting = tuple[Mapping[str, Any], LazyFuture[Position], int]


class BufferedProducer:
    """Takes rows one by one and appends them in batches. `sequence`: the number of records of its id that are done."""

    def __init__(
        self,
        topic: str,
        id: str | None,
        *,
        linger: Duration,
        batch_rows: int,
        buffer_bytes: int,
        overload: Overload,
    ) -> None:
        self._topic = topic
        self._linger = min(duration_us(linger, argument="linger", positive=False) / 1e6, threading.TIMEOUT_MAX)
        self._batch_rows = _at_least_one(batch_rows, "batch_rows")
        self._limit = _at_least_one(buffer_bytes, "buffer_bytes")
        if overload not in ("block", "buffer", "drop"):
            raise InvalidArgument("overload", overload, "must be block, buffer or drop")
        self._overload = overload
        self._waiting: deque[Waiting] = deque()
        self._lock = threading.RLock()  # taken for every row: entering it is cheaper than entering its condition
        self._changed = threading.Condition(self._lock)
        self._oldest = 0.0
        self._flushing = 0
        self._in_flight = 0
        self._closed = False
        self._on_space: Callable[[], None] | None = None
        self._stats = ProducerStats()
        self.id = None if id is None else check_name(id, argument="id")
        self.sequence = 0 if self.id is None else self._begin(self.id)
        self._thread = threading.Thread(target=self._run, name=f"headrace-producer-{topic}", daemon=True)
        self._thread.start()

    # -- what a log does its way -------------------------------------------------------------------

    def _begin(self, id: str) -> int:
        """Fences an earlier producer of the id. The number of its next record."""
        raise NotImplementedError

    def _check_log(self) -> None:
        """Raises Closed if the log is closed."""
        raise NotImplementedError

    def _append_rows(self, rows: Sequence[Mapping[str, Any]], rejected: int) -> Position:
        """Appends rows. With an id, they and the `rejected` ones have the numbers from `sequence` on."""
        raise NotImplementedError

    def _wait_for_room(self) -> None:
        """Waits a while for consumers of a full topic to read. Only for logs that raise TopicFull."""

    @property
    def stats(self) -> ProducerStats:
        """Its counters, as they are now."""
        with self._changed:
            return replace(self._stats)

    # -- sending -----------------------------------------------------------------------------------

    def send(self, row: Mapping[str, Any]) -> Future[Position]:
        """Buffers the row; the future is resolved with the position once it is committed. When the buffer is full,
        `block` waits, `buffer` raises Overloaded, `drop` counts the row and fails its future with Overloaded."""
        size = _size(row)
        with self._lock:
            self._check()
            if self._full(size):
                if self._overload == "drop":
                    self._stats.sent += 1
                    self._stats.dropped += 1
                    dropped: Future[Position] = Future()
                    dropped.set_exception(self._overloaded())
                    return dropped
                if self._overload == "buffer":
                    self._stats.refused += 1
                    raise self._overloaded()
                self._stats.blocked += 1
                began = time.monotonic()
                while self._full(size):
                    self._changed.wait()
                    self._check()
                self._stats.blocked_seconds += time.monotonic() - began
            return self._accept(row, size)

    def try_send(self, row: Mapping[str, Any]) -> Future[Position] | None:
        """Like `send` with `block`, but returns None instead of waiting."""
        size = _size(row)
        with self._changed:
            self._check()
            return None if self._full(size) else self._accept(row, size)

    def _accept(self, row: Mapping[str, Any], size: int) -> Future[Position]:
        future: LazyFuture[Position] = LazyFuture()
        waiting, stats = self._waiting, self._stats
        if not waiting:
            self._oldest = time.monotonic()
        waiting.append((dict(row), future, size))  # the caller may use the dict again
        stats.sent += 1
        stats.buffered_rows += 1
        stats.buffered_bytes = buffered = stats.buffered_bytes + size
        if buffered > stats.buffered_bytes_max:
            stats.buffered_bytes_max = buffered
        if len(waiting) == 1 or len(waiting) == self._batch_rows:  # the thread looks for itself when it is busy
            self._changed.notify_all()
        return future

    def _full(self, size: int) -> bool:
        """True if the row does not fit. A row larger than the whole buffer is accepted when the buffer is empty."""
        return self._stats.buffered_bytes > 0 and self._stats.buffered_bytes + size > self._limit

    def _overloaded(self) -> Overloaded:
        return Overloaded(self._topic, self._stats.buffered_bytes, self._limit)

    def _check(self) -> None:
        if self._closed:
            raise Closed(what=f"the producer of {self._topic}")
        self._check_log()

    def flush(self, timeout: Duration | None = None) -> None:
        """Until everything sent before is committed, or has failed (its future says so)."""
        limit = None if timeout is None else duration_us(timeout, argument="timeout") / 1e6
        with self._changed:
            self._check_log()
            self._flushing += 1
            self._changed.notify_all()
            try:
                if not self._changed.wait_for(lambda: not self._waiting and not self._in_flight, timeout=limit):
                    raise WaitTimeout("the producer to flush", limit or 0.0)
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Flushes, then stops."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._append(batch)
            finally:
                with self._changed:
                    self._in_flight = 0
                    self._stats.buffered_rows -= len(batch)
                    self._stats.buffered_bytes -= sum(size for _, _, size in batch)
                    self._changed.notify_all()
                if self._on_space is not None:
                    self._on_space()

    def _take(self) -> list[Waiting]:
        with self._changed:
            while True:
                if self._waiting:
                    left = self._oldest + self._linger - time.monotonic()
                    full = len(self._waiting) >= self._batch_rows or self._stats.buffered_bytes >= self._limit
                    if left <= 0 or full or self._flushing or self._closed:
                        break
                    self._changed.wait(timeout=left)
                elif self._closed:
                    return []
                else:
                    self._changed.wait()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._batch_rows))]
            self._oldest = time.monotonic()
            self._in_flight = len(batch)
            self._stats.batches += 1
            return batch

    def _append(self, batch: list[Waiting]) -> None:
        """Appends what can be appended; a row that cannot fails alone."""
        left, rejected = list(batch), 0
        while left or (rejected and self.id is not None):
            try:
                position = self._append_rows([row for row, _, _ in left], rejected)
            except RecordRejected as error:
                _, future, _ = left.pop(error.row)
                rejected += 1
                self._finish([future], _as_its_only_row(error))
            except TopicFull as error:
                if not self._waits_for_room():
                    self._finish([future for _, future, _ in left], error)
                    return
            except Exception as error:
                self._finish([future for _, future, _ in left], error)
                return
            else:
                self.sequence += 0 if self.id is None else len(left) + rejected
                self._finish([future for _, future, _ in left], position)
                return

    def _waits_for_room(self) -> bool:
        """Handles a full topic, whose consumers have not read its records. With `drop` the rows are dropped. Otherwise
        they stay in the buffer until there is room, and `send` meets a full buffer. A closed producer does not wait."""
        if self._overload == "drop" or self._closed:
            return False
        began = time.monotonic()
        self._wait_for_room()
        with self._changed:
            self._stats.full_seconds += time.monotonic() - began
        return True

    def _finish(self, futures: list[LazyFuture[Position]], outcome: Position | Exception) -> None:
        with self._changed:
            if isinstance(outcome, TopicFull) and self._overload == "drop":
                self._stats.dropped += len(futures)
            elif isinstance(outcome, Exception):
                self._stats.failed += len(futures)
            else:
                self._stats.acked += len(futures)
        resolve(futures, outcome)


def _as_its_only_row(error: RecordRejected) -> RecordRejected:
    """The error with row 0, because the caller sent one row."""
    return replace(error, row=0)


class AsyncProducer:
    """The producer for an event loop: never blocks it. `await send(row)` returns when the row is committed; when the
    buffer is full, `block` awaits space."""

    def __init__(self, make: Callable[[], BufferedProducer]) -> None:
        self._make = make
        self._producer: BufferedProducer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._space: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._space = asyncio.Event()
        self._producer = await self._loop.run_in_executor(None, self._make)
        self._producer._on_space = self._has_space
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def stats(self) -> ProducerStats:
        """Its counters, as they are now."""
        return self._opened().stats

    async def send(self, row: Mapping[str, Any]) -> Position:
        """Returns when the row is committed."""
        return await asyncio.wrap_future(await self.enqueue(row))

    async def enqueue(self, row: Mapping[str, Any]) -> Future[Position]:
        """Buffers the row and returns its future, so that a caller can send many rows before it awaits."""
        producer = self._opened()
        if producer._overload != "block":
            return producer.send(row)
        assert self._space is not None
        waited = False
        began = time.monotonic()
        while (future := producer.try_send(row)) is None:
            waited = True
            self._space.clear()
            if (future := producer.try_send(row)) is not None:
                break
            await self._space.wait()
        if waited:
            with producer._changed:
                producer._stats.blocked += 1
                producer._stats.blocked_seconds += time.monotonic() - began
        return future

    async def flush(self) -> None:
        """Until everything sent before is committed, or has failed."""
        await asyncio.get_running_loop().run_in_executor(None, self._opened().flush)

    async def close(self) -> None:
        """Flushes, then stops."""
        if self._producer is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._producer.close)

    def _opened(self) -> BufferedProducer:
        if self._producer is None:
            raise Closed(what="the producer (use it with 'async with')")
        return self._producer

    def _has_space(self) -> None:
        assert self._loop is not None and self._space is not None
        try:
            self._loop.call_soon_threadsafe(self._space.set)
        except RuntimeError:  # the loop is gone: nobody waits
            return


def _at_least_one(value: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument(name, value, "must be a whole number, 1 or more")
    return value


_SMALL = frozenset({int, float, bool, type(None), datetime})


def _size(row: Mapping[str, Any]) -> int:
    """The approximate memory of a row in the buffer."""
    if type(row) is not dict and not isinstance(row, Mapping):
        raise InvalidArgument("row", row, "must be a mapping of column names to values")
    size = 64 + 64 * len(row)
    for value in row.values():
        kind = type(value)
        if kind is str:
            size += len(value)
        elif kind not in _SMALL:
            size += getsizeof(value)
    return size
