"""The behaviour keyed tables must show, as a pytest suite to inherit. Owns the promises behind `headrace.views.keyed`;
knows no implementation. Needs pytest and hypothesis.

    class TestMyTables(KeyedTablesContract):
        def open_tables(self, home, *specs): return my_tables(home, specs)     # has state() and apply(writes)

Whatever is written, in whatever order, tables answer as `MemoryTables` do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DoesNotFit
from headrace.testing.memory_tables import MemoryTables
from headrace.testing.view_contract import NAMES, VALUES, examples
from headrace.views.keyed import AddRule, Column, State, TableSpec, Writes
from headrace.views.values import INSTANT, arrow_type, as_column

__all__ = ["KeyedTables", "KeyedTablesContract"]

NESTED: dict[str, st.SearchStrategy[Any]] = {
    "array<bigint>": st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=3),
    "struct<a:string,b:double>": st.fixed_dictionaries(
        {"a": st.none() | st.sampled_from(["", "x", "größe"]), "b": st.none() | st.floats(allow_nan=False, width=16)}
    ),
}
ADDED: dict[str, tuple[AddRule, ...]] = {
    "bigint": ("add", "least", "greatest"),
    "double": ("least", "greatest"),
    "decimal(38,0)": ("add", "least", "greatest"),
    "decimal(5,2)": ("least", "greatest"),
    "string": ("least", "greatest"),
    "timestamp": ("least", "greatest"),
    "date": ("least", "greatest"),
    "boolean": ("least", "greatest"),
}
"""Sums of doubles depend on their order, and are tested apart."""


class KeyedTables(Protocol):
    """What is tested: the tables of one flow."""

    def state(self) -> State: ...

    def apply(self, writes: Writes) -> None: ...


def rows_of(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.Table:
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = [as_column(list(each), arrow_type(column.type)) for column, each in zip(columns, values, strict=True)]
    return pa.table(dict(zip((column.name for column in columns), arrays, strict=True)))


def all_columns(spec: TableSpec) -> tuple[Column, ...]:
    return (*spec.key, *spec.columns)


def times(*seconds: int) -> pa.Array:
    return pa.array([each * 1_000_000 for each in seconds], pa.int64()).cast(INSTANT)


def same(one: pa.Table, other: pa.Table) -> None:
    """In order, and column by column; NaN is itself, and there is one zero."""
    assert one.schema.equals(other.schema), f"{one.schema}\n{other.schema}"
    assert _plain(one.to_pylist()) == _plain(other.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "not a number" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _cells(ddl: str) -> st.SearchStrategy[Any]:
    few = VALUES.get(ddl, NESTED.get(ddl))
    assert few is not None
    return st.none() | few


@st.composite
def specs(draw: st.DrawFn, *, added: bool = False) -> TableSpec:
    """A table whose key may be of any types, with a time in it, beside it, or none."""
    names = draw(st.permutations(NAMES))
    plain = st.sampled_from(sorted(VALUES))
    kinds = draw(st.lists(plain, min_size=1, max_size=3))
    values = draw(
        st.lists(st.sampled_from(sorted(ADDED)) if added else plain | st.sampled_from(sorted(NESTED)), max_size=3)
    )
    key = tuple(Column(name, kind) for name, kind in zip(names, kinds, strict=False))
    columns = tuple(Column(name, kind) for name, kind in zip(names[len(key) :], values, strict=False))
    timed = [column.name for column in (*key, *columns) if column.type == "timestamp"]
    rules = {column.name: draw(st.sampled_from(ADDED[column.type])) for column in columns} if added else {}
    return TableSpec("some", key, columns, draw(st.sampled_from([None, *timed])), rules)


@st.composite
def filled(draw: st.DrawFn, spec: TableSpec, pool: list[tuple[Any, ...]], *, repeat: bool) -> pa.Table:
    """Rows of the table, whose keys are of the pool."""
    keys = draw(st.lists(st.sampled_from(pool), max_size=8)) if pool else []
    rows = [(*key, *(draw(_cells(column.type)) for column in spec.columns)) for key in keys]
    table = rows_of(all_columns(spec), rows)
    if repeat:
        return table
    first = MemoryTables(TableSpec(spec.name, spec.key, spec.columns))
    for number in range(table.num_rows):
        first.apply(Writes(puts={spec.name: table.slice(number, 1)}))
    return first.state().scan(spec.name, table.select([]))


class KeyedTablesContract:
    """What keyed tables promise: whatever is written, in whatever order, they answer as `MemoryTables` do."""

    def open_tables(self, home: Path, *specs: TableSpec) -> KeyedTables:
        raise NotImplementedError("the suite's heir opens its tables here")

    @examples
    @given(st.data())
    def test_whatever_is_written_is_read_as_from_memory(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        added = data.draw(st.booleans())
        spec = data.draw(specs(added=added))
        pool = data.draw(st.lists(st.tuples(*(_cells(column.type) for column in spec.key)), min_size=1, max_size=6))
        keys = rows_of(spec.key, pool)
        mine, memory = self.open_tables(tmp_path_factory.mktemp("home"), spec), MemoryTables(spec)
        for _ in range(data.draw(st.integers(1, 3))):
            writes = data.draw(self._writes(spec, pool, added=added))
            try:
                memory.apply(writes)
            except DoesNotFit:
                with pytest.raises(DoesNotFit):
                    mine.apply(writes)
            else:
                mine.apply(writes)
            self._compare(mine.state(), memory.state(), spec, keys, data)

    @st.composite
    @staticmethod
    def _writes(draw: st.DrawFn, spec: TableSpec, pool: list[tuple[Any, ...]], *, added: bool) -> Writes:
        name, width = spec.name, draw(st.integers(0, len(spec.key)))
        gone = rows_of(spec.key, draw(st.lists(st.sampled_from(pool), max_size=2))).select(spec.key_names[:width])
        drops = {name: draw(st.sampled_from([-1, 0, 10**15, 2 * 10**15]))} if spec.time and draw(st.booleans()) else {}
        deletes = {name: gone} if draw(st.booleans()) else {}
        rows = {name: draw(filled(spec, pool, repeat=added))}
        return Writes(adds=rows, deletes=deletes, drops=drops) if added else Writes(rows, deletes=deletes, drops=drops)

    def _compare(self, mine: State, memory: State, spec: TableSpec, keys: pa.Table, data: st.DataObject) -> None:
        name = spec.name
        same(mine.get(name, keys), memory.get(name, keys))
        for width in range(len(spec.key) + 1):
            prefixes = keys.select(spec.key_names[:width])
            same(mine.scan(name, prefixes), memory.scan(name, prefixes))
            limit, descending = data.draw(st.integers(1, 3)), data.draw(st.booleans())
            asked: dict[str, Any] = {"limit": limit, "descending": descending}
            same(mine.scan(name, prefixes, **asked), memory.scan(name, prefixes, **asked))
            if width < len(spec.key) and spec.key[width].type == "timestamp":
                self._compare_ranges(mine, memory, name, prefixes, data)
        if spec.time is not None:
            upto, after = (data.draw(st.sampled_from([-(10**15), 0, 10**15, 10**18])) for _ in range(2))
            same(mine.due(name, upto), memory.due(name, upto))
            same(mine.due(name, upto, 2), memory.due(name, upto, 2))
            same(mine.due(name, upto, after_us=after), memory.due(name, upto, after_us=after))
            assert mine.last_us(name) == memory.last_us(name)

    def _compare_ranges(self, mine: State, memory: State, name: str, prefixes: pa.Table, data: st.DataObject) -> None:
        bounds = st.lists(
            st.sampled_from([0, 1_767_225_600_000_000, 1_767_225_600_000_001, 10**15]),
            min_size=prefixes.num_rows,
            max_size=prefixes.num_rows,
        )
        low, high = data.draw(st.none() | bounds), data.draw(st.none() | bounds)
        for asked in ({}, {"floor": True}, {"limit": 1}, {"limit": 1, "descending": True}):
            same(mine.scan(name, prefixes, low, high, **asked), memory.scan(name, prefixes, low, high, **asked))

    # -- single promises ---------------------------------------------------------------------------

    SESSIONS = TableSpec(
        "sessions",
        (Column("user", "string"), Column("start", "timestamp")),
        (Column("end", "timestamp"), Column("n", "bigint")),
        "end",
        {"end": "greatest", "n": "add"},
    )

    def sessions(self, *rows: tuple[str | None, int, int, int]) -> pa.Table:
        users, starts, ends, counts = zip(*rows, strict=True)
        return pa.table({"user": list(users), "start": times(*starts), "end": times(*ends), "n": list(counts)})

    def test_a_scan_finds_the_rows_between_and_the_one_below(self, tmp_path: Path) -> None:
        tables = self.open_tables(tmp_path, self.SESSIONS)
        tables.apply(
            Writes(puts={"sessions": self.sessions(("a", 1, 3, 1), ("a", 5, 6, 2), ("a", 9, 9, 3), ("b", 4, 4, 4))})
        )
        users, low, high = pa.table({"user": ["a"]}), [4_000_000], [7_000_000]
        state = tables.state()
        assert state.scan("sessions", users, low, high)["n"].to_pylist() == [2]
        assert state.scan("sessions", users, low, high, floor=True)["n"].to_pylist() == [1, 2]
        assert state.scan("sessions", users, limit=1, descending=True)["n"].to_pylist() == [3]
        assert state.due("sessions", 5_000_000)["n"].to_pylist() == [1, 4], "by their time, here the end"
        assert state.due("sessions", 5_000_000, after_us=3_000_000)["n"].to_pylist() == [4]
        assert state.last_us("sessions") == 9_000_000

    def test_state_is_read_before_what_is_written_after(self, tmp_path: Path) -> None:
        tables = self.open_tables(tmp_path, self.SESSIONS)
        rows = self.sessions((None, 1, 3, 1), ("a", 1, 3, 1))
        tables.apply(Writes(adds={"sessions": rows}))
        tables.apply(Writes(adds={"sessions": pa.concat_tables([rows, rows])}))
        assert tables.state().get("sessions", rows)["n"].to_pylist() == [3, 3], "nulls are equal, and first"
        tables.apply(Writes(deletes={"sessions": pa.table({"user": pa.array([None], pa.string())})}))
        assert tables.state().scan("sessions", rows.select([]))["user"].to_pylist() == ["a"]
        tables.apply(Writes(drops={"sessions": 3_000_000}, puts={"sessions": self.sessions(("b", 1, 9, 1))}))
        assert tables.state().scan("sessions", rows.select([]))["user"].to_pylist() == ["b"]

    def test_whole_sums_never_wrap_and_decimals_say_when_they_do_not_fit(self, tmp_path: Path) -> None:
        columns = (Column("whole", "decimal(38,0)"), Column("cents", "decimal(5,2)"))
        spec = TableSpec("sums", (Column("k", "bigint"),), columns, rules={"whole": "add", "cents": "add"})
        tables = self.open_tables(tmp_path, spec)
        rows = rows_of(all_columns(spec), [(1, Decimal(2**63 - 1), Decimal("999.99")), (1, Decimal(2), None)])
        tables.apply(Writes(adds={"sums": rows}))
        more = rows_of(all_columns(spec), [(1, None, Decimal("0.01")), (2, Decimal(1), Decimal(1))])
        with pytest.raises(DoesNotFit):
            tables.apply(Writes(adds={"sums": more}))
        found = tables.state().scan("sums", rows.select([])).to_pylist()
        assert found == [{"k": 1, "whole": Decimal(2**63 + 1), "cents": Decimal("999.99")}], "and nothing is written"

    @pytest.mark.parametrize("added", [[1.5, -0.25], [math.nan, 1.0], [math.inf, -math.inf], [None, None], [None, 2.0]])
    def test_sums_of_doubles(self, tmp_path: Path, added: list[float | None]) -> None:
        spec = TableSpec("sums", (Column("k", "bigint"),), (Column("x", "double"),), rules={"x": "add"})
        tables, memory = self.open_tables(tmp_path, spec), MemoryTables(spec)
        for value in added:
            rows = rows_of(all_columns(spec), [(1, value)])
            tables.apply(Writes(adds={"sums": rows}))
            memory.apply(Writes(adds={"sums": rows}))
        same(tables.state().get("sums", rows), memory.state().get("sums", rows))

    def test_many_rows_at_once(self, tmp_path: Path) -> None:
        spec = TableSpec(
            "t", (Column("k", "bigint"), Column("s", "string")), (Column("n", "bigint"),), rules={"n": "add"}
        )
        tables = self.open_tables(tmp_path, spec)
        rows = rows_of(all_columns(spec), [(number % 97, str(number), number) for number in range(1_357)])
        tables.apply(Writes(puts={"t": rows}))
        tables.apply(Writes(adds={"t": rows.slice(0, 301)}))
        found = tables.state().get("t", rows)
        assert sum(found["n"].to_pylist()) == sum(range(1_357)) + sum(range(301)) and found.num_rows == 1_357
        assert tables.state().scan("t", pa.table({"k": [96, 5]}), limit=3).num_rows == 6
        tables.apply(Writes(deletes={"t": rows.slice(7)}))
        assert tables.state().get("t", rows).num_rows == 7
