"""Keyed tables: in memory, which the suite compares with, and in SQLite's file; and what only a file has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.testing import KeyedTablesContract, MemoryTables
from headrace.testing.keyed_contract import KeyedTables
from headrace.views.contract import Commit, FlowSpec, Place
from headrace.views.keyed import Column, State, TableSpec, Writes
from headrace.views.sqlite.keyed import KeyedTable
from headrace.views.sqlite.store import SqliteViews

INSTANT = pa.timestamp("us", tz="UTC")


class FileTables:
    """A flow's tables in a store, each write a commit."""

    def __init__(self, home: Path, *specs: TableSpec) -> None:
        self.store = SqliteViews(home)
        self.flow = self.store.begin(FlowSpec("f", "app", ("t",), None, tables=specs))

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


def _plan(db: sqlite3.Connection, sql: str) -> list[str]:
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}")]


def test_readers_see_times_as_text_and_find_rows_by_them(tmp_path: Path) -> None:
    tables = FileTables(tmp_path, COUNTS)
    at = pa.array([-1, 1_767_225_600_000_000, 1_767_225_600_000_250], pa.int64()).cast(INSTANT)
    rows = pa.table({"window_start": at, "user": ["a"] * 3, "window_end": at, "n": [1, 2, 3]})
    tables.apply(Writes(puts={"rows": rows}))
    with tables.store._reading_beside() as db:
        table = KeyedTable("f", COUNTS)
        seen = ", ".join(table.seen(name, frozenset()) for name in ("window_start", "window_end"))
        found = db.execute(f'SELECT {seen} FROM "f/rows" s').fetchall()
        sql = "SELECT n FROM \"f/rows\" WHERE window_start = '2026-01-01 00:00:00'"
        assert db.execute(sql).fetchall() == [(2,)] and _plan(db, sql)[0].startswith("SEARCH")
    tables.store.close()
    texts = ["1969-12-31 23:59:59.999999", "2026-01-01 00:00:00", "2026-01-01 00:00:00.000250"]
    assert found == [(text, text) for text in texts]
