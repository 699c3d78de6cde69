"""Watching a view from any process: its rows as they are, then each commit's changes, none missed, none doubled. Owns
the watcher's lease and its place in the view's changes; `watchers` says what the store keeps for it.

First the watcher is entered in the store, under its write lock: every commit from then on keeps its changes. Then one
read transaction takes the rows and the sequence they are of, and the changes after that sequence follow. A thread says
from time to time that the watcher lives and what it has read. One that dies is forgotten when its lease is over; one
that is left behind all the same gets WatchLost."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import Duration, duration_us
from headrace.errors import Closed, ForkedProcess, HeadraceError, InvalidArgument, UnknownView, WatchLost
from headrace.rows import to_rows
from headrace.views.contract import Emit, FlowSpec, ViewSpec, check_emit
from headrace.views.reading import Watch, schema_of
from headrace.views.sql import watchers
from headrace.views.sql.database import Database, Db
from headrace.views.sql.flow_rows import spec_of

__all__ = ["SqlWatch", "WatchedStore"]

Changes = TypeVar("Changes", pa.Table, pa.RecordBatch)

BEATS = 4
"""Renewals in the time of a lease."""
LEAVE_SECONDS = 5.0
"""How long a watcher that ends waits for its turn to say so; else its lease runs out."""
UNMADE_POLL_SECONDS = 0.05
"""How often a watcher of a view that its app has not made yet looks for it."""
TOLD_BYTES = watchers.BACKLOG_BYTES_MAX // 16
"""A watcher that has read this much says so at once."""


class Leases(Protocol):
    """Where leases are kept: the side of a store that writes."""

    def transaction(self, flow: str) -> AbstractContextManager[Database]:
        """A write transaction, between commits of the flow."""

    def close(self) -> None: ...


class WatchedStore(Protocol[Db]):
    """What a watch asks of its store. Its errors are headrace's own."""

    def open(self) -> None:
        """Before everything else that follows."""

    def leases(self) -> Leases: ...

    def moment(self) -> AbstractContextManager[Db]:
        """A transaction that reads: of one commit."""

    def rows(self, db: Db, flow: FlowSpec) -> Iterator[pa.RecordBatch]:
        """The rows that are stored, as readers see them, in the order of their keys."""

    def version(self) -> object:
        """Another value after every commit of somebody else."""

    def pause(self) -> None:
        """A short while, or until the store was changed."""

    def close(self) -> None: ...


class SqlWatch(Watch):
    """`made()`: whether the view is there."""

    def __init__(
        self,
        store: WatchedStore[Any],
        view: str,
        made: Callable[[], bool],
        *,
        snapshot: bool,
        emit: Emit = "updates",
        timeout: Duration | None,
        lease: Duration = "15 seconds",
        keep_bytes: int = 0,
        wait: bool = False,
    ) -> None:
        self.view, self._made, self._emit = view, made, check_emit(emit)
        self._pid, self._store = os.getpid(), store
        self._patience = None if timeout is None else duration_us(timeout, argument="timeout", positive=False) / 1e6
        self._lease_us, self._keep_bytes = duration_us(lease, argument="lease"), keep_bytes
        self._lease: _Lease | None = None
        self._ready: list[pa.RecordBatch] = []
        self._rows: Iterator[dict[str, Any]] = iter(())
        self._sequence, self._closed = 0, False
        if not wait or self._made():
            self._begin(snapshot)

    def _begin(self, snapshot: bool) -> None:
        self._lease = _Lease(self._store.leases(), self.view, self._lease_us, self._keep_bytes)
        weakref.finalize(self, self._lease.tell_end)
        try:
            self._store.open()
            weakref.finalize(self, self._store.close)
            self._ready, self.schema, self._sequence = self._begun(snapshot)
            if self._keep_bytes and not snapshot:
                self._sequence = self._lease.begins
        except BaseException:
            self._lease.end()
            raise

    @property
    def position(self) -> int:
        return self._sequence

    def _begun(self, snapshot: bool) -> tuple[list[pa.RecordBatch], pa.Schema, int]:
        """The rows, the schema of changes and the sequence, of one moment."""
        with self._store.moment() as db:
            flow = spec_of(db, self.view)
            spec = _public(flow)
            if spec is None or flow is None:
                raise UnknownView(view=self.view, known=[])
            schema = schema_of(watchers.watched_columns(spec)).append(pa.field("_position", pa.int64()))
            if len(set(schema.names)) < len(schema.names):
                why = "has a column 'op', and so has every change: give it another name"
                raise InvalidArgument("view", self.view, why)
            if self._emit == "final" and spec.window_us is None:
                why = "without a window no result is ever final: use emit='updates'"
                raise InvalidArgument("emit", self._emit, why)
            (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (self.view,)).fetchone()
            read = [_changes(rows, sequence, schema) for rows in (self._store.rows(db, flow) if snapshot else ())]
        ready = [batch for batch in map(self._wanted, read) if batch.num_rows]
        return ready[::-1], schema, sequence

    def _wanted(self, changes: Changes) -> Changes:
        """With emit="final", the changes of the rows that are final, as if the view had no others: a result comes when
        its window closes, and what follows are corrections."""
        return changes if self._emit == "updates" else changes.filter(pc.equal(changes["_status"], "final"))

    # -- iterating ---------------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._ready:
            yield self._ready.pop()
        while (found := self._next_commit()) is not None:
            yield from found.to_batches()
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        while True:
            for row in self._rows:
                return row
            batch = self._ready.pop() if self._ready else None
            if batch is None:
                found = self._next_commit()
                if found is None:
                    self.close()
                    raise StopIteration
                batch = found.combine_chunks().to_batches()[0]
            self._rows = iter(to_rows(batch))

    def next_commit(self, seconds: float) -> pa.Table | None:
        return self._next_commit(seconds)

    def _next_commit(self, patience: float | None = None) -> pa.Table | None:
        """The next commit that changed anything; None when there was none for as long as it is waited."""
        if os.getpid() != self._pid:
            raise ForkedProcess(what=f"the watch of view {self.view!r}")
        if self._closed:
            raise Closed(what=f"the watch of view {self.view!r}")
        patience = self._patience if patience is None else patience
        limit = None if patience is None else time.monotonic() + patience
        if self._lease is None:
            if not self._awaited(limit):
                return None
            if self._ready:
                return pa.Table.from_batches([self._ready.pop()])
        assert self._lease is not None
        while True:
            version = self._store.version()
            while (found := self._look()) is not None:
                if (wanted := self._wanted(found)).num_rows:
                    return wanted
            while self._store.version() == version:
                if limit is not None and time.monotonic() >= limit:
                    return None
                if self._lease.failed is not None:
                    raise self._lease.failed
                self._store.pause()

    def _awaited(self, limit: float | None) -> bool:
        """Whether the view was made by then. What its first commits put there was not there when this began."""
        while not self._made():
            if limit is not None and time.monotonic() >= limit:
                return False
            time.sleep(UNMADE_POLL_SECONDS)
        self._begin(snapshot=True)
        return True

    def _look(self) -> pa.Table | None:
        """In one moment: whether the store still knows this watcher, so that nothing is missing, and what is next."""
        assert self._lease is not None
        mine = "SELECT 1 FROM _watchers WHERE flow = ? AND watcher = ?"
        following = "SELECT sequence, rows FROM _changes WHERE flow = ? AND sequence > ? ORDER BY sequence LIMIT 1"
        with self._store.moment() as db:
            known = db.execute(mine, (self.view, self._lease.watcher)).fetchone()
            found = db.execute(following, (self.view, self._sequence)).fetchone()
            there = known or db.execute("SELECT 1 FROM _flows WHERE flow = ?", (self.view,)).fetchone()
        if not known:
            why = "it was left behind (asleep or too slow for too long), or the view was made again or switched to a "
            why += "version with other columns"
            raise WatchLost(view=self.view, why=why if there else "the view was dropped")
        if found is None:
            return None
        self._sequence, body = found
        self._lease.has_read(self._sequence, len(body))
        rows = pa.ipc.open_stream(body).read_all()
        return rows.append_column("_position", pa.array([self._sequence] * rows.num_rows, pa.int64()))

    # -- ending ------------------------------------------------------------------------------------

    def close(self, *, linger: bool = False) -> None:
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            if self._lease is not None:
                self._store.close()
                self._lease.end(linger=linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Lease:
    """The watcher's row in the store, renewed by a thread until `end`. Holds no reference to its `Watch`: one that
    nobody holds any more ends."""

    def __init__(self, store: Leases, view: str, lease_us: int, keep_bytes: int = 0) -> None:
        self.watcher = uuid.uuid4().hex
        self.failed: HeadraceError | None = None
        self._view, self._lease_us = view, lease_us
        self._store = store
        self._untold_bytes = 0
        self._keep_bytes, self._kept_bytes = keep_bytes, 0
        self._kept: collections.deque[tuple[int, int]] = collections.deque()
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        try:
            with self._store.transaction(view) as db:
                if _public(spec_of(db, view)) is None:
                    raise UnknownView(view=view, known=[])
                self._read = watchers.join(db, view, self.watcher, lease_us, oldest=keep_bytes > 0)
                self.begins = self._read
        except BaseException:
            self._store.close()
            raise
        self._thread = threading.Thread(target=self._renewing, name=f"headrace-watch-{view}", daemon=True)
        self._thread.start()

    def has_read(self, sequence: int, size_bytes: int) -> None:
        """What is to be kept counts as not read yet."""
        self._kept.append((sequence, size_bytes))
        self._kept_bytes += size_bytes
        while self._kept and self._kept_bytes > self._keep_bytes:
            self._read, gone_bytes = self._kept.popleft()
            self._kept_bytes -= gone_bytes
        self._untold_bytes += size_bytes
        if self._untold_bytes > TOLD_BYTES:
            self._untold_bytes = 0
            self._told.put("read")

    def _renewing(self) -> None:
        news = "end"
        try:
            while (news := self._news()) not in ("end", "linger"):
                with self._store.transaction(self._view) as db:
                    if not watchers.renew(db, self._view, self.watcher, self._read, self._lease_us):
                        return  # whoever looks next sees that the row is gone
        except HeadraceError as error:
            self.failed = error
            news = "end"
        finally:
            self._leave(linger=news == "linger")

    def _news(self) -> str:
        try:
            return self._told.get(timeout=self._lease_us / 1e6 / BEATS)
        except queue.Empty:
            return "alive"

    def _leave(self, *, linger: bool) -> None:
        with contextlib.suppress(HeadraceError):  # a full disk, say: then the lease runs out
            with self._store.transaction(self._view) as db:
                if linger:
                    watchers.renew(db, self._view, self.watcher, self._read, self._lease_us)
                else:
                    watchers.leave(db, self._view, self.watcher)
            self._store.close()

    def tell_end(self) -> None:
        """Nothing but a word to the thread: the garbage collector may call this in the midst of anything."""
        self._told.put("end")

    def end(self, *, linger: bool = False) -> None:
        self._told.put("linger" if linger else "end")
        self._thread.join(LEAVE_SECONDS)


def _changes(rows: pa.RecordBatch, sequence: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows, as if they came with that commit."""
    count = rows.num_rows
    columns = [pa.repeat("+", count), *rows.columns, pa.array([sequence] * count, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _public(spec: FlowSpec | None) -> ViewSpec | None:
    """The view that readers may see, if the flow has one."""
    found: ViewSpec | None = None if spec is None else spec.view
    return found if found is not None and found.public else None
