"""Sessions and sliding windows by operators: the tests of SQLite's store, over tables in memory. The arithmetic is
beside the commits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators import sliding
from headrace.testing.folding import FoldingStore
from headrace.testing.view_contract import (
    FUNCTIONS,
    INSTANT,
    SECOND,
    T0,
    all_rules,
    busy,
    commit,
    examples,
    found_of,
    partial_rows,
    seen,
)
from headrace.views.contract import COUNTS_FROM, MARK, ON_TIME_FROM, WIDE, Column, FlowSpec, Result, SlotColumn
from tests.operators.in_memory import MemoryStore, MemoryViews
from tests.views.test_windows import GAP, RECORDS, Stretch, partials, shown, spec_of, us, wanted

HOMES = itertools.count()


class Store:
    def __init__(self, spec: FlowSpec) -> None:
        assert spec.view is not None
        home = Path(f"memory/{next(HOMES)}")
        self.store, self.views, self.windows = FoldingStore(MemoryStore(home)), MemoryViews(home), spec.view.windows
        self.state = self.store.begin(spec)

    def put(self, *rows: Stretch, **more: Any) -> None:
        self.state = self.store.commit(self.state, commit(self.state, partials(self.windows, rows), **more))

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return [shown(row, columns) for row in self.views.to_arrow("v").to_pylist()]

    def out(self) -> list[list[tuple[Any, ...]]]:
        return [[(row["op"], *shown(row)) for row in each.rows.to_pylist()] for each in self.store.outbox("v")]

    def count(self, table: str) -> int:
        everything = pa.table({"x": [1]}).select([])
        return int(self.store.flows["v"].tables.state().scan(table, everything).num_rows)


def test_a_straggler_joins_two_sessions() -> None:
    store = Store(replace(spec_of("session", public=False), emit="updates", target="out"))
    store.put((0, 2, "/", "a"), (8, 9, "/", "b"), (5, 5, "/cart", "c"))  # 6 seconds apart: two sessions
    store.put((12, 12, "/", "a"), (13.5, 14, "/", "b"))  # 3 behind 9, 1.5 behind 12: the second goes on
    store.put((5, 5, "/", "d"))  # 3 behind 2, 3 before 8: one session
    store.put((18, 18, "/", "a"), (22.000001, 23, "/", "a"))  # 4 behind 14: the same; more than 4 behind 18: another
    assert store.out() == [
        [("+", 0, 2, "/", 1, 1), ("+", 8, 9, "/", 1, 1), ("+", 5, 5, "/cart", 1, 1)],  # by page, then by time
        [("-", 8, 9, "/", 1, 1), ("+", 8, 14, "/", 3, 2)],
        [("-", 0, 2, "/", 1, 1), ("-", 8, 14, "/", 3, 2), ("+", 0, 14, "/", 5, 3)],
        [("-", 0, 14, "/", 5, 3), ("+", 0, 18, "/", 6, 3), ("+", 22.000001, 23, "/", 1, 1)],
    ]
    assert store.count("values/kinds") == 3 + 1 + 1  # a, b, d; a; c


def test_pieces_of_one_batch_join_each_other_over_what_is_there() -> None:
    store = Store(spec_of("session"))
    store.put((10, 20, "/", "a"), (10, 20, None, "a"), (30, 31, None, "a"))
    store.put((6, 6, "/", "b"), (24, 24, "/", "b"), (28, 28, "/", "b"), (6, 8, None, "b"), (24, 26, None, "b"))
    assert store.rows() == [(6, 31, None, 4, 2), (6, 28, "/", 4, 2)]
    store.put((0, 100, "/", "c"))  # all of it, and more
    assert store.rows() == [(0, 100, "/", 5, 3), (6, 31, None, 4, 2)]


@pytest.mark.parametrize(("windows", "more_us"), [("calendar", 0), ("cumulative", 0), ("session", 1), ("sliding", 1)])
def test_whoever_reads_changes_is_told_what_is_final_by_their_times(windows: Any, more_us: int) -> None:
    """All changes before the mark are final; a row that ends with a record is of that record's time."""
    store = Store(replace(spec_of(windows), feeds=("updates",)))
    store.put((2, 2, "/", "a"), closed_us=us(2), unchanged_us=us(1))
    (*_, mark) = store.store.outbox("v")[-1].rows.to_pylist()
    told = [round(mark[name].timestamp() * SECOND) for name in MARK]
    assert mark["change__op"] == "." and told == [us(2) + more_us, us(1) + more_us]


def test_a_final_session_that_grows_is_taken_back_until_it_is_final_again() -> None:
    store = Store(replace(spec_of("session", public=False), emit="final", target="out"))
    store.put((0, 2, "/", "a"), (8, 9, "/", "b"), closed_us=us(2))
    store.put((5, 6, "/", "c"), closed_us=us(3))
    store.put(closed_us=us(9))
    assert store.out() == [[("+", 0, 2, "/", 1, 1)], [("-", 0, 2, "/", 1, 1)], [("+", 0, 9, "/", 3, 3)]]


def test_what_a_function_made_of_joined_sessions_goes_with_them() -> None:
    """`busy`: n - 2 rows for each result."""
    made = (Column("kinds", "bigint"), Column("copy", "bigint"), Column("half", "double"))
    store = Store(spec_of("session", shaped=made))
    three = [(second, second, "/", kind) for second, kind in ((0, "a"), (1, "b"), (2, "c"))]
    store.put(*three, *((second + 8, second + 8, page, kind) for second, _, page, kind in three), shape=busy)
    seen = store.views.to_arrow("v").to_pylist()
    assert [(row["kinds"], row["copy"], row["half"]) for row in seen] == [(3, 0, 1.5), (3, 0, 1.5)]
    store.put((5, 5, "/", "d"), shape=busy)
    seen = store.views.to_arrow("v").to_pylist()
    assert sorted((row["kinds"], row["copy"], row["half"]) for row in seen) == [(4, copy, 3.5) for copy in range(5)]
    assert store.count("shaped") == 5


def test_an_event_slides_into_the_windows_behind_it() -> None:
    store = Store(spec_of("sliding"))
    store.put((0, 0, "/", "a"), (3, 3, "/", "b"), (8, 8, "/", "a"))
    assert store.rows() == [(-4, 0, "/", 1, 1), (-1, 3, "/", 2, 2), (4, 8, "/", 1, 1)]
    store.put((4, 4, "/", "a"), (2, 7.5, "/", "c"))  # 4 is in [4, 8] and holds 0; the other counts from 7.5 on: nowhere
    assert store.rows() == [(-4, 0, "/", 1, 1), (-1, 3, "/", 2, 2), (0, 4, "/", 3, 2), (4, 8, "/", 2, 1)]
    store.put((5, 5, "/", "a"), (4.5, 4.75, "/", "d"))  # too late for itself, in time for 5 and 8
    assert [row[:5] for row in store.rows()][-2:] == [(1, 5, "/", 4, 3), (4, 8, "/", 4, 2)]
    store.put((6, 6, "/", "e"))  # 2 does not count yet at 6: 3, 4, 4.5, 5 and itself
    assert store.rows()[-2:] == [(2, 6, "/", 5, 4), (4, 8, "/", 5, 3)]


def test_what_no_window_can_hold_any_more_is_dropped() -> None:
    store = Store(spec_of("sliding"))
    store.put((0, 0, "/", "a"), (3, 3, "/", "b"), (8, 8, "/", "c"))
    assert (store.count("parts"), store.count("values/kinds")) == (3, 4)
    store.put(unchanged_us=us(7) - 1)  # a record of 7 may come, and its window holds 3
    assert (store.count("parts"), store.count("values/kinds")) == (2, 1)
    store.put((7, 7, "/", "a"), unchanged_us=us(7))  # one of 7.000001 may come
    assert store.rows()[-2:] == [(3, 7, "/", 2, 2), (4, 8, "/", 2, 2)]
    assert store.count("parts") == 2


@pytest.mark.parametrize("together", [1, 4, 1000])
def test_numbers_of_a_new_sliding_window_are_merged_before_they_are_stored(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nulls are passed over, and sums are as wide as they have to be."""
    monkeypatch.setattr(sliding, "PAIRS_MAX", together)
    plain, rules = spec_of("sliding"), {"n": "whole", "least": "least", "most": "greatest"}
    assert plain.view is not None
    types = {"n": WIDE, "least": "bigint", "most": "bigint"}
    slots = tuple(SlotColumn(name, types[name], rule) for name, rule in rules.items())  # type: ignore[arg-type]
    view = replace(plain.view, slots=slots, results=tuple(Result(name, "bigint", (name,)) for name in rules))
    store = Store(replace(plain, view=view))

    def put(*rows: tuple[float, int | None]) -> None:
        table = partials("sliding", [(at, at, "/", "") for at, _ in rows]).drop_columns(["kinds", "n"])
        for name in rules:
            table = table.append_column(name, pa.array([value for _, value in rows], pa.int64()))
        store.state = store.store.commit(store.state, commit(store.state, table))

    def rows() -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in rules) for row in store.views.to_arrow("v").to_pylist()]

    put((0, None), (1, 5), (2, None), (3, -2))
    assert rows() == [(None, None, None), (5, 5, 5), (5, 5, 5), (3, -2, 5)]
    put((4, 7))  # with parts that were kept, 0 is among them
    assert rows()[-1] == (10, -2, 7)
    put((20, 2**62), (21, -(2**62)), (22, 2**62 - 1))
    assert rows()[-3:] == [(2**62, 2**62, 2**62), (0, -(2**62), 2**62), (2**62 - 1, -(2**62), 2**62)]
    put((30, 2**62), (31, 2**62), (32, 2**62))
    assert [row[0] for row in rows()[-3:]] == [2**62, 2**63, 3 * 2**62]


@pytest.mark.parametrize("windows", ["session", "sliding"])
@examples
@given(batches=st.lists(RECORDS, max_size=4))
def test_every_rule_of_every_aggregate_holds(windows: Any, batches: list[list[tuple[Any, ...]]]) -> None:
    """Records in any order and any batches; what must be seen is computed from all of a window's records at once."""
    spec = all_rules("v", "int")
    assert spec.view is not None
    store = Store(replace(spec, view=replace(spec.view, windows=windows, window_us=(GAP * SECOND, 0))))
    offsets = itertools.count()
    everything: list[Any] = []
    for batch in batches:
        records = [(group, value, second, 0, next(offsets)) for group, value, second in batch]
        everything += records
        table = partial_rows(spec, [[record] for record in records])
        times = pa.array([us(record[2]) for record in records], pa.int64()).cast(INSTANT)
        begins = [us(record[2] - (GAP if windows == "sliding" else 0)) for record in records]
        for name, column in ("window_end", times), ("window_start", pa.array(begins, pa.int64()).cast(INSTANT)):
            table = table.add_column(0, name, column)
        if windows == "sliding":
            table = table.append_column(COUNTS_FROM, times).append_column(ON_TIME_FROM, times)
        store.state = store.store.commit(store.state, commit(store.state, table, aggregates=FUNCTIONS))
    found = store.views.to_arrow("v").to_pylist()
    keys = [(round(row["window_end"].timestamp() - T0 / SECOND), row["g"]) for row in found]
    assert dict(zip(keys, map(found_of, found), strict=True)) == {
        key: seen(of) for key, of in wanted(windows, everything)
    }
