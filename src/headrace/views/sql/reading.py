"""Reading views in a SQL database, from any process, without Spark: what there is, positions, ledgers. Owns no
connection. Rows, pages and SQL of others are each database's own.

A reader sees whole commits only, never waits for a writer and never makes one wait."""

from __future__ import annotations

import time
from abc import abstractmethod
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import Any, Generic

import pyarrow as pa

from headrace.durations import Duration, from_us, instant_us
from headrace.errors import InvalidArgument, UnknownView
from headrace.position import Position
from headrace.schema import type_ddl
from headrace.views.contract import Emit, FlowSpec, FlowState, LedgerRow, ReadMark, is_version
from headrace.views.origins import Reader, position_of
from headrace.views.past import NamesAt
from headrace.views.reading import LEDGER_COLUMNS, AsOf, FlowGlance, SqlViews, ViewStatus, Watch
from headrace.views.sql.database import Db, us_of
from headrace.views.sql.flow_rows import parse_spec, read_marks, reader_of, spec_of, state_of, whole
from headrace.views.sql.store import ending_of
from headrace.views.sql.watching import SqlWatch, WatchedStore
from headrace.views.values import INSTANT

__all__ = ["SqlReading", "value_column"]

COUNTED_FIRST = 100_000
"""Counting begins with so many rows, and takes four times as many as long as there is time."""


class SqlReading(SqlViews, Generic[Db]):
    """What a database does its own way comes first."""

    NO_WINDOW: str
    """As `SqlStore` has it."""

    @abstractmethod
    def _reading(self, view: str = "") -> AbstractContextManager[Db]:
        """A transaction: what is read is of one commit. UnknownView if there is no store."""

    @abstractmethod
    def _counted(self, spec: FlowSpec) -> str:
        """The table that has a row for each that readers see."""

    @abstractmethod
    def _first(self, db: Db, spec: FlowSpec, column: str, after_us: int | None) -> int | None:
        """The least time in the column of the results, of those that are later."""

    @abstractmethod
    def _watched(self, view: str) -> WatchedStore[Db]: ...

    def _has_store(self) -> bool:
        """Whether there is a store."""
        try:
            with self._reading():
                return True
        except UnknownView:
            return False

    # -- waiting -----------------------------------------------------------------------------------

    def _waited(self, wait_for: Position | None, as_of: AsOf | None, timeout: Duration) -> datetime | str | None:
        """The time that is asked for, once everything that is waited for is there."""
        if isinstance(as_of, Position):
            wait_for = as_of if wait_for is None else wait_for | as_of
            as_of = self._arrival(as_of)
        if wait_for is not None:
            self.wait_for(wait_for, timeout=timeout)
        return as_of

    def _names_at(self, db: Db, as_of: datetime | str) -> NamesAt:
        us = instant_us(as_of, argument="as_of")
        return NamesAt(self._served(db), us, lambda name: state_of(db, name))

    def _arrival(self, position: Position) -> datetime:
        """When the last record before the position arrived."""
        why = "the log knows when that was, and these views do not know the log: app.query(…, as_of=), or give a time"
        raise InvalidArgument("as_of", str(position), why)

    def readers(self, version: str | None = None) -> dict[str, Reader]:
        if not self._has_store():
            return {}
        with self._reading() as db:
            specs = [spec for spec in self._specs(db) if not is_version(spec.name) or spec.name == version]
            return {spec.name: reader_of(db, spec) for spec in specs}

    # -- what there is -----------------------------------------------------------------------------

    def specs(self) -> list[FlowSpec]:
        if not self._has_store():
            return []
        with self._reading() as db:
            return self._served(db)

    def _served(self, db: Db) -> list[FlowSpec]:
        """All but versions beside a view: these are nobody's business but who makes them."""
        return [spec for spec in self._specs(db) if not is_version(spec.name)]

    def _specs(self, db: Db) -> list[FlowSpec]:
        found = db.execute("SELECT spec FROM _flows").fetchall()
        with whole(db):
            return sorted((parse_spec(text) for (text,) in found), key=lambda spec: spec.name)

    def states(self) -> list[FlowState]:
        if not self._has_store():
            return []
        with self._reading() as db:
            return [state_of(db, spec.name) for spec in self._served(db)]

    def buried(self, flow: str) -> dict[str, set[tuple[int, int]]]:
        out: dict[str, set[tuple[int, int]]] = {}
        with self._reading() as db:
            found = db.execute('SELECT topic, partition, "offset" FROM _buried WHERE flow = ?', (flow,))
            for topic, partition, offset in found:
                out.setdefault(topic, set()).add((partition, offset))
        return out

    def read_marks(self, flow: str) -> list[ReadMark]:
        with self._reading() as db:
            return read_marks(db, flow)

    def flow(self, view: str, *, topics: bool = False) -> FlowSpec:
        with self._reading(view) as db:
            return self._flow(db, view, topics=topics)

    def _flow(self, db: Db, view: str, *, topics: bool = False) -> FlowSpec:
        found = spec_of(db, view)
        if found is None or (not topics and (found.view is None or not found.view.public)):
            raise UnknownView(view=view, known=[spec.name for spec in self.specs()] if topics else self.names())
        return found

    def state(self, view: str, *, topics: bool = False) -> FlowState:
        self.flow(view, topics=topics)
        with self._reading() as db:
            return state_of(db, view)

    def status(self, view: str, *, topics: bool = False) -> ViewStatus:
        with self._reading(view) as db:
            spec = self._flow(db, view, topics=topics)
            state = state_of(db, view)
            count = self._count(db, spec)
            found = db.execute("SELECT app, pid, host, started_at, committed_at FROM _flows WHERE flow = ?", (view,))
            app, pid, host, started, committed = found.fetchone()
        position = position_of(self.branches(view))
        frontier = None if state.frontier_us is None else from_us(state.frontier_us)
        began, last = (None if text is None else from_us(us_of(text) or 0) for text in (started, committed))
        return ViewStatus(view, app, count, state.sequence, frontier, position, pid, host, began, last, self.kept(view))

    def _count(self, db: Db, spec: FlowSpec) -> int:
        """How many rows readers see."""
        if spec.view is None:
            return 0
        (count,) = db.execute(f"SELECT count(*) FROM {self._counted(spec)}").fetchone()
        return int(count)

    def glances(self) -> list[FlowGlance]:
        if not self._has_store():
            return []
        with self._reading() as db:
            return [self._glance(db, spec) for spec in self._served(db)]

    def _glance(self, db: Db, spec: FlowSpec) -> FlowGlance:
        facts = "SELECT closed, pid, host, started_at, committed_at FROM _flows WHERE flow = ?"
        closed, pid, host, *times = db.execute(facts, (spec.name,)).fetchone()
        ends_us = None
        if spec.view is not None and spec.view.ending is not None:
            by, more_us = ending_of(spec)
            after_us = us_of(closed)
            found = self._first(db, spec, by, None if after_us is None else after_us - more_us)
            ends_us = None if found is None else found + more_us
        (buried,) = db.execute("SELECT count(*) FROM _buried WHERE flow = ?", (spec.name,)).fetchone()
        moments = [None if text is None else from_us(us_of(text) or 0) for text in times]
        return FlowGlance(spec, state_of(db, spec.name), ends_us, buried, pid, host, *moments)

    def count(self, view: str, *, seconds: float) -> int:
        counted, until = self._counted(self.flow(view)), time.monotonic() + seconds / 2
        most, count = COUNTED_FIRST, 0
        with self._reading() as db:
            while True:
                some = f"SELECT 1 FROM {counted} LIMIT ?"
                (count,) = db.execute(f"SELECT count(*) FROM ({some}) AS counted", (most,)).fetchone()
                if count < most or time.monotonic() > until:
                    return int(count)
                most *= 4

    def totals(self, flow: str) -> LedgerRow:
        sums = ", ".join(f"coalesce(sum({name}), 0)" for name in LEDGER_COLUMNS[2:])
        with self._reading() as db:
            found = db.execute(f"SELECT {sums} FROM _ledger WHERE flow = ?", (flow,)).fetchone()
            return LedgerRow(None, None, *map(int, found))

    def watch(
        self,
        view: str,
        *,
        snapshot: bool = True,
        emit: Emit = "updates",
        timeout: Duration | None = None,
        lease: Duration = "15 seconds",
        keep_bytes: int = 0,
        wait: bool = False,
    ) -> Watch:
        if not wait:
            self.flow(view)
        return SqlWatch(
            self._watched(view),
            view,
            lambda: view in self.names(),
            snapshot=snapshot,
            emit=emit,
            timeout=timeout,
            lease=lease,
            keep_bytes=keep_bytes,
            wait=wait,
        )

    def ledger(self, view: str) -> pa.Table:
        self.flow(view, topics=True)
        with self._reading() as db:
            return self._ledger(db, view)

    def _ledger(self, db: Db, view: str) -> pa.Table:
        names = ", ".join(LEDGER_COLUMNS)
        sql = f"SELECT {names} FROM _ledger WHERE flow = ? ORDER BY window_start, window_end"
        rows = db.execute(sql, (view,)).fetchall()
        columns = [list(values) for values in zip(*rows, strict=True)] if rows else [[] for _ in LEDGER_COLUMNS]
        times = [[None if text == self.NO_WINDOW else us_of(text) for text in texts] for texts in columns[:2]]
        arrays = [pa.array(us, pa.int64()).cast(INSTANT) for us in times]
        return pa.Table.from_arrays([*arrays, *(pa.array(each, pa.int64()) for each in columns[2:])], LEDGER_COLUMNS)


def value_column(name: str, value: Any, arrow: pa.DataType) -> pa.Array:
    """A value that a column of that type is asked for, as such a column; InvalidArgument if it is of another type."""
    if isinstance(value, datetime) and pa.types.is_timestamp(arrow) and (value.tzinfo is None) != (arrow.tz is None):
        raise InvalidArgument(
            name, value, f"the column is {type_ddl(arrow)}: its times have {'a' if arrow.tz else 'no'} time zone"
        )
    if isinstance(value, str) and pa.types.is_timestamp(arrow) and arrow.tz:
        return pa.array([instant_us(value, argument=name)], pa.int64()).cast(arrow)
    try:
        if pa.types.is_temporal(arrow) and not isinstance(value, date | None):  # Arrow would count from 1970
            raise TypeError(f"{type(value).__name__} is no time")
        return pa.array([value], arrow)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(name, value, f"the column is {type_ddl(arrow)}: {error}") from None
