"""Reading views, from any process, without Spark: SQL, positions, ledger. Owns read-only connections to `views.db`.

A reader sees whole commits only, never waits for a writer and never makes one wait. SQL is run on a connection that
cannot write, attach files or load code."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from headrace.durations import Duration, duration_us, from_us, instant_us
from headrace.errors import InvalidArgument, InvalidQuery, UnknownView, WaitTimeout
from headrace.position import Position
from headrace.views.contract import FlowSpec, FlowState, ViewSpec
from headrace.views.sqlite import FILE, spec_of, state_of, translate, us_of
from headrace.views.tables import ViewTables, quoted
from headrace.views.values import arrow_type, bound, decode, encode, order_decimals, register_converters, text_of_us

POLL_SECONDS = 0.005

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
}


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """Where a view is. `frontier`: event time up to which it is complete; `commits`: how many batches made it."""

    view: str
    app: str
    rows: int
    commits: int
    frontier: datetime | None
    position: Position
    pid: int | None
    host: str | None
    started_at: datetime | None
    committed_at: datetime | None


def open_views(home: str | Path = ".headrace") -> Views:
    """The views in a directory, for reading."""
    return Views(Path(home))


class Views:
    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self._db: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def _reading(self, *, typed: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each read: cheap, and safe in any thread."""
        if not self.path.exists():
            raise UnknownView(view="", known=[])
        register_converters()
        db = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            timeout=60,
            detect_types=sqlite3.PARSE_DECLTYPES if typed else 0,
        )
        order_decimals(db)
        try:
            yield db
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        finally:
            db.close()

    # -- SQL ---------------------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        wait_for: Position | None = None,
        timeout: Duration = "5 seconds",
    ) -> pa.Table:
        """Runs SQL that only reads, with bound parameters. `wait_for`: first waits until every flow that reads the
        position's topics has folded them in up to there; WaitTimeout if that takes longer than `timeout`."""
        if wait_for is not None:
            self.wait_for(wait_for, timeout=timeout)
        values = (
            {name: bound(value) for name, value in params.items()}
            if isinstance(params, Mapping)
            else tuple(bound(value) for value in params)
        )
        with self._reading(typed=True) as db:
            db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
            try:
                cursor = db.execute(sql, values)
                names = [column[0] for column in cursor.description or ()]
                rows = cursor.fetchall()
            except (sqlite3.DatabaseError, sqlite3.InterfaceError) as error:
                raise InvalidQuery(sql=sql, why=self._explained(error)) from error
        if not names:
            raise InvalidQuery(sql=sql, why="it returns no columns; only reading is possible")
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        return pa.Table.from_arrays([_column(list(values)) for values in columns], names=_unique(names))

    def _explained(self, error: sqlite3.Error) -> str:
        said = str(error)
        if "no such table: " in said:
            return str(UnknownView(view=said.split("no such table: ")[1], known=self.names()))
        if "not authorized" in said or "prohibited" in said:
            return f"only reading is possible ({said})"
        return said

    # -- waiting -----------------------------------------------------------------------------------

    def wait_for(self, position: Position, *, timeout: Duration = "5 seconds") -> None:
        limit = time.monotonic() + duration_us(timeout, argument="timeout", positive=False) / 1e6
        while not all(self._covers(state, position) for state in self.states()):
            if time.monotonic() >= limit:
                raise WaitTimeout(f"the views to be at {position}", duration_us(timeout, argument="timeout") / 1e6)
            time.sleep(POLL_SECONDS)

    @staticmethod
    def _covers(state: FlowState, position: Position) -> bool:
        """Whether the flow has read all that the position says was written to topics it reads."""
        return all(
            state.places.get(topic, {}).get(partition) is not None and state.places[topic][partition].offset >= offset
            for topic, topic_id, nexts in position.topics
            if state.topic_ids.get(topic) == topic_id
            for partition, offset in nexts
        )

    # -- what there is -----------------------------------------------------------------------------

    def names(self) -> list[str]:
        return [spec.name for spec in self.specs() if spec.view is not None and spec.view.public]

    def specs(self) -> list[FlowSpec]:
        if not self.path.exists():
            return []
        with self._reading() as db:
            found = db.execute("SELECT spec FROM _flows ORDER BY flow").fetchall()
        return [FlowSpec.from_json(json.loads(text)) for (text,) in found]

    def states(self) -> list[FlowState]:
        if not self.path.exists():
            return []
        with self._reading() as db:
            db.execute("BEGIN")
            return [state_of(db, flow) for (flow,) in db.execute("SELECT flow FROM _flows ORDER BY flow").fetchall()]

    def spec(self, view: str) -> ViewSpec:
        with self._reading() as db:
            found = spec_of(db, view)
        if found is None or found.view is None or not found.view.public:
            raise UnknownView(view=view, known=self.names())
        return found.view

    def status(self, view: str) -> ViewStatus:
        tables = ViewTables(self.spec(view))
        with self._reading() as db:
            db.execute("BEGIN")
            state = state_of(db, view)
            (count,) = db.execute(f"SELECT count(*) FROM {tables.state}").fetchone()
            found = db.execute("SELECT app, pid, host, started_at, committed_at FROM _flows WHERE flow = ?", (view,))
            app, pid, host, started, committed = found.fetchone()
        position = Position()
        for topic, places in state.places.items():
            nexts = {partition: place.offset for partition, place in places.items()}
            position |= Position.of(topic, state.topic_ids[topic], nexts)
        frontier = None if state.frontier_us is None else from_us(state.frontier_us)
        times = [None if text is None else from_us(us_of(text) or 0) for text in (started, committed)]
        return ViewStatus(view, app, count, state.sequence, frontier, position, pid, host, *times)

    # -- rows --------------------------------------------------------------------------------------

    def to_arrow(self, view: str, where: Mapping[str, Any] | None = None) -> pa.Table:
        """All rows of the view, or those whose columns have the values given; typed, sorted by window and group."""
        spec = self.spec(view)
        known = [column.name for column in spec.columns]
        for name in where or ():
            if name not in known:
                from headrace.errors import nearest

                raise InvalidArgument(
                    name, (where or {})[name], f"view {view!r} has no such column.{nearest(name, known)}"
                )
        condition = " AND ".join(f"{quoted(name)} IS ?" for name in where or ()) or "1"
        order = ", ".join(quoted(name) for name in spec.key) or "1"
        sql = f"SELECT * FROM {quoted(view)} WHERE {condition} ORDER BY {order}"
        types = {column.name: column.type for column in spec.columns}
        values = [_cell(name, value, types[name]) for name, value in (where or {}).items()]
        with self._reading() as db:
            rows = db.execute(sql, values).fetchall()
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(spec.columns)
        arrays = [
            decode(list(values), arrow_type(column.type)) for values, column in zip(columns, spec.columns, strict=True)
        ]
        return pa.Table.from_arrays(arrays, names=known)

    def ledger(self, view: str) -> pa.Table:
        """What became of every record, window by window; the row without a window counts what belongs to none."""
        self.spec(view)
        with self._reading() as db:
            rows = db.execute(
                "SELECT nullif(window_start, ''), window_end, on_time, corrected, dropped, untimed FROM _ledger "
                "WHERE flow = ? ORDER BY window_start",
                (view,),
            ).fetchall()
        columns = list(zip(*rows, strict=True)) if rows else [()] * 6
        kinds = [arrow_type("timestamp")] * 2 + [pa.int64()] * 4
        arrays = [decode(list(values), kind) for values, kind in zip(columns, kinds, strict=True)]
        return pa.Table.from_arrays(arrays, names=LEDGER_COLUMNS)

    def close(self) -> None:
        """Nothing is held open; for the symmetry of `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cell(name: str, value: Any, ddl: str) -> Any:
    """A value as a column of that type has it."""
    arrow = arrow_type(ddl)
    if isinstance(value, datetime) and pa.types.is_timestamp(arrow) and (value.tzinfo is None) != (arrow.tz is None):
        raise InvalidArgument(name, value, f"the column is {ddl}: its times have {'a' if arrow.tz else 'no'} time zone")
    if isinstance(value, str) and pa.types.is_timestamp(arrow) and arrow.tz:
        return text_of_us(instant_us(value, argument=name))
    try:
        return encode(pa.array([value], arrow))[0]
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(name, value, f"the column is {ddl}: {error}") from None


LEDGER_COLUMNS = ["window_start", "window_end", "on_time", "corrected", "dropped", "untimed"]


def _column(values: list[Any]) -> pa.Array:
    """A result's column; whole and broken numbers in one are doubles, anything else mixed is text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if kinds == {datetime}:
        zone = next(value for value in values if value is not None).tzinfo
        return pa.array(values, pa.timestamp("us", tz="UTC" if zone else None))
    return pa.array(values)


def _unique(names: list[str]) -> list[str]:
    """`select a, a` is legal: the second becomes a_2."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return out
