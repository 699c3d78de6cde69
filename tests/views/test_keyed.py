"""Keyed tables: in memory, which the suite compares with, and in SQLite's file; and what only a file has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators.fold import Fold
from headrace.testing import KeyedTablesContract, MemoryTables
from headrace.testing.keyed_contract import KeyedTables, same
from headrace.testing.view_contract import examples
from headrace.views.contract import Commit, FlowSpec, Place, Result, SlotColumn, ViewSpec
from headrace.views.keyed import Column, State, TableSpec, Writes
from headrace.views.open import open_views
from headrace.views.sqlite.store import SqliteViews

INSTANT = pa.timestamp("us", tz="UTC")


class FileTables:
    """A flow's tables in a store, each write a commit."""

    def __init__(self, home: Path, *specs: TableSpec | FlowSpec) -> None:
        self.store = SqliteViews(home)
        flows = [spec for spec in specs if isinstance(spec, FlowSpec)]
        self.flow = self.store.begin(*(flows or [FlowSpec("f", "app", ("t",), None, tables=specs)]))

    def state(self) -> State:
        return self.store.read_state(self.flow)

    def apply(self, writes: Writes) -> None:
        sequence = self.flow.sequence
        commit = Commit(sequence, {"t": {0: Place(sequence + 1, None)}}, {"t": "id"}, writes=writes)
        self.flow = self.store.commit(self.flow, commit)


class TestMemoryTables(KeyedTablesContract):
    def open_tables(self, home: Path, *specs: TableSpec) -> KeyedTables:
        del home
        return MemoryTables(*specs)


class TestSqliteTables(KeyedTablesContract):
    @pytest.fixture(autouse=True)
    def closed(self) -> Iterator[None]:
        self.opened: list[FileTables] = []
        yield
        for tables in self.opened:
            tables.store.close()

    def open_tables(self, home: Path, *specs: TableSpec) -> KeyedTables:
        self.opened.append(FileTables(home, *specs))
        return self.opened[-1]


COUNTS = TableSpec(
    "rows",
    (Column("window_start", "timestamp"), Column("user", "string")),
    (Column("window_end", "timestamp"), Column("n", "bigint")),
    "window_start",
    {"window_end": "greatest", "n": "add"},
)
ENDS = TableSpec("ends", COUNTS.key[::-1], COUNTS.columns, "window_end")


def test_no_part_of_a_step_reads_the_whole_table(tmp_path: Path) -> None:
    tables = FileTables(tmp_path, COUNTS, ENDS)
    at = pa.array([1, 2], pa.int64()).cast(INSTANT)
    rows = pa.table({"window_start": at, "user": ["a", None], "window_end": at, "n": [1, 1]})
    tables.apply(Writes(puts={"rows": rows, "ends": rows}))
    run: set[str] = set()
    db = tables.store._db
    db.set_trace_callback(run.add)
    state = tables.state()
    for name, spec in (("rows", COUNTS), ("ends", ENDS)):
        state.get(name, rows)
        state.scan(name, rows.select(spec.key_names[:1]))
        state.scan(name, rows.select(spec.key_names[:1]), limit=1, descending=True)
        state.due(name, 1)
        state.last_us(name)
    state.scan("ends", rows.select(["user"]), [0, 0], [9, 9], floor=True)
    state.scan("ends", rows.select(["user"]), [0, 0], [9, 9], limit=1)
    db.set_trace_callback(None)
    plans = [plan for sql in run if sql.startswith(("SELECT", "WITH")) for plan in _plan(db, sql)]
    tables.store._db.set_trace_callback(run.add)
    tables.apply(Writes(deletes={"rows": rows.select(["window_start", "user"]), "ends": rows.select(["user"])}))
    tables.apply(Writes(drops={"rows": 1, "ends": 1}))
    tables.store._db.set_trace_callback(None)
    deletes = [sql for sql in run if sql.startswith('DELETE FROM "f/')]
    plans += [plan for sql in deletes for plan in _plan(tables.store._db, sql)]
    tables.store.close()
    assert len(deletes) >= 4 and len(plans) > 20
    whole = [plan for plan in plans if plan.startswith("SCAN") and plan.split()[1] in ("s", "q", "f/rows", "f/ends")]
    assert whole == []


@pytest.mark.parametrize("limit", [1, 3])
def test_a_scan_with_a_limit_finds_its_rows_by_their_whole_keys(tmp_path: Path, limit: int) -> None:
    """Not by looking through all rows of the prefix that lie between its bounds."""
    tables, run = FileTables(tmp_path, ENDS), set[str]()
    tables.store._db.set_trace_callback(run.add)
    users = pa.table({"user": ["a", "b"]})
    tables.state().scan("ends", users, [0, 0], [9, 9], limit=limit, descending=True)
    tables.state().scan("ends", users, limit=limit)
    tables.store._db.set_trace_callback(None)
    plans = [plan for sql in run if sql.startswith("WITH") for plan in _plan(tables.store._db, sql)]
    tables.store.close()
    found = [plan for plan in plans if plan.startswith("SEARCH s")]
    assert found and all(plan.endswith("(user=? AND window_start=?)") for plan in found)


def _plan(db: sqlite3.Connection, sql: str) -> list[str]:
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}")]


# -- windows beside their rows -----------------------------------------------------------------------

ENDS_US = {-60_000_000: 0, 0: 10, 10: 1_000_000, 1_767_225_600_000_000: 1_767_229_200_000_000}
"""The windows of these tests: each start has one end."""


def windowed(kind: str) -> FlowSpec:
    """A view with such windows, and with sums alone, so that rows can be put and added."""
    slots, results = (SlotColumn("n", "bigint", "add"),), (Result("n", "bigint", ("n",)),)
    size = (10, 10) if kind == "fixed" else (0, 0)
    view = ViewSpec("f", (Column("user", "string"),), slots, results, size, windows=kind)  # type: ignore[arg-type]
    spec = FlowSpec("f", "app", ("t",), view)
    return replace(spec, tables=Fold(spec, {}).tables)


def rows_of(*rows: tuple[int, str | None, int]) -> pa.Table:
    starts, users, counts = zip(*rows, strict=True) if rows else ((), (), ())
    times = (starts, [ENDS_US[us] for us in starts], [us + 250 for us in starts])
    begin, end, updated = (pa.array(list(each), pa.int64()).cast(INSTANT) for each in times)
    columns = {"window_start": begin, "user": pa.array(users, pa.string()), "window_end": end}
    columns |= {"n": pa.array(counts, pa.int64()), "_corrections": pa.array([0] * len(rows), pa.int64())}
    return pa.table({**columns, "_updated_at": updated})


KEYS = st.tuples(st.sampled_from(sorted(ENDS_US)), st.sampled_from(["a", "b", None, ""]))


@pytest.mark.parametrize("kind", ["fixed", "calendar"])
@examples
@given(st.data())
def test_rows_of_windows_are_as_in_memory(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    spec = windowed(kind)
    (table,) = spec.tables
    mine, memory = FileTables(tmp_path_factory.mktemp("home"), spec), MemoryTables(table)
    for _ in range(data.draw(st.integers(1, 4))):
        keys = data.draw(st.lists(KEYS, max_size=6, unique=True))
        rows = {"rows": rows_of(*((*key, data.draw(st.integers(-3, 3))) for key in keys))}
        gone = rows_of(*((*key, 0) for key in data.draw(st.lists(KEYS, max_size=2))))
        width = data.draw(st.integers(0, 2))
        deletes = {"rows": gone.select(table.key_names[:width])} if data.draw(st.booleans()) else {}
        drops = {"rows": data.draw(st.sampled_from([-1, 0, 10, 2 * 10**6]))} if data.draw(st.booleans()) else {}
        added = data.draw(st.booleans())
        writes = Writes({} if added else rows, rows if added else {}, deletes, drops)
        memory.apply(writes)
        mine.apply(writes)
        one, other = mine.state(), memory.state()
        asked = rows_of(*((*key, 0) for key in data.draw(st.lists(KEYS, max_size=4))))
        same(one.get("rows", asked), other.get("rows", asked))
        for first in range(3):
            prefixes = asked.select(table.key_names[:first])
            same(one.scan("rows", prefixes), other.scan("rows", prefixes))
        everything = rows_of((0, "a", 0)).select([])
        same(one.scan("rows", everything, [0], [10]), other.scan("rows", everything, [0], [10]))
        for upto, more in ((10, {}), (10**18, {"limit": 2}), (10**18, {"after_us": 0})):
            same(one.due("rows", upto, **more), other.due("rows", upto, **more))
        assert one.last_us("rows") == other.last_us("rows")
        with mine.store._reading_beside() as db:
            windows = [us for (us,) in db.execute('SELECT us FROM "f/rows/windows" ORDER BY us')]
        there = other.scan("rows", everything)
        assert windows == sorted(set(there["window_start"].cast(pa.int64()).to_pylist())), "and no others"
    mine.store.close()


@pytest.mark.parametrize("kind", ["fixed", "calendar", "session"])
def test_readers_see_times_as_text_and_find_rows_by_them(tmp_path: Path, kind: str) -> None:
    tables = FileTables(tmp_path, windowed(kind))
    tables.apply(Writes(puts={"rows": rows_of(*((us, "a", number) for number, us in enumerate(sorted(ENDS_US))))}))
    texts = [
        ("1969-12-31 23:59:00", "1970-01-01 00:00:00", "1969-12-31 23:59:00.000250"),
        ("1970-01-01 00:00:00", "1970-01-01 00:00:00.000010", "1970-01-01 00:00:00.000250"),
        ("1970-01-01 00:00:00.000010", "1970-01-01 00:00:01", "1970-01-01 00:00:00.000260"),
        ("2026-01-01 00:00:00", "2026-01-01 01:00:00", "2026-01-01 00:00:00.000250"),
    ]
    with tables.store._reading_beside() as db:
        assert db.execute("SELECT window_start, window_end, _updated_at FROM f ORDER BY 1").fetchall() == texts
    typed = open_views(tmp_path).query("SELECT window_start, window_end, _updated_at FROM f").schema
    assert typed.types == [INSTANT] * 3
    tables.store.close()


@pytest.mark.parametrize("kind", ["fixed", "calendar"])
@pytest.mark.parametrize(
    "sql",
    [
        "WHERE window_start = '2026-01-01 00:00:00'",
        "WHERE window_start >= '2026-01-01' AND window_start < '2026-01-02'",
        "WHERE window_start > '2026-01-01' ORDER BY window_start, user LIMIT 10",
        "ORDER BY window_start, user LIMIT 10",
        "ORDER BY window_start DESC, user DESC LIMIT 10",
        "WHERE window_start = '2026-01-01 00:00:00' AND user = 'a'",
        "WHERE window_start LIKE '2026-01-01%'",
        "WHERE user = 'a'",
        "WHERE _status = 'open'",
        "WHERE window_end > '2026-01-01'",
    ],
)
def test_readers_find_rows_by_their_windows(tmp_path: Path, kind: str, sql: str) -> None:
    """By whatever condition: the windows are looked through, and the rows of those that match are found by key."""
    tables = FileTables(tmp_path, windowed(kind))
    with tables.store._reading_beside() as db:
        plan = _plan(db, f"SELECT * FROM f {sql}")
    tables.store.close()
    assert any(step.startswith("SEARCH s USING PRIMARY KEY (window_start=?") for step in plan), plan
    assert not [step for step in plan if "TEMP B-TREE" in step or step.startswith("SCAN s")], plan
    assert "LIKE" in sql or "WHERE window_start" not in sql or "SEARCH w" in plan[0], plan
