"""Sessions and sliding windows in the store: rows that become one, rows that are made of others, and what goes with
them. Commits are written by hand; the arithmetic is beside them."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators import sliding
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
from headrace.views.contract import (
    COUNTS_FROM,
    MARK,
    ON_TIME_FROM,
    WIDE,
    Column,
    FlowSpec,
    FlowState,
    Result,
    SlotColumn,
    ViewSpec,
)
from headrace.views.open import open_views
from tests.views.folded import SqliteViews

GAP = 4
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""For what commits often, and is not about disks."""


def spec_of(windows: Any, **more: Any) -> FlowSpec:
    """Counts records, and different kinds, by page; the gap, or the size, is 4 seconds."""
    view = ViewSpec(
        "v",
        (Column("page", "string"),),
        (SlotColumn("n", "bigint", "add"), SlotColumn("kinds", "string", "distinct")),
        (Result("n", "bigint", ("n",)), Result("kinds", "bigint", ("kinds",))),
        (GAP * SECOND, 0),
        windows=windows,
        **more,
    )
    return FlowSpec("v", "shop", ("clicks",), view)


Stretch = tuple[float, float, str | None, str]
"""First and last second, page, kind; of sliding windows: the second, from when on it counts, page, kind."""


def partials(windows: Any, rows: Iterable[Stretch]) -> pa.Table:
    found = list(rows)
    first, second = ([us(row[at]) for row in found] for at in (0, 1))
    if windows == "session":
        bounds = {"window_start": first, "window_end": second}
    else:
        bounds = {"window_start": [at - GAP * SECOND for at in first], "window_end": first}
        bounds |= {COUNTS_FROM: second, ON_TIME_FROM: second}
    columns = {name: pa.array(times, pa.int64()).cast(INSTANT) for name, times in bounds.items()}
    counts = {"n": [1] * len(found), "_corrections": [0 if windows == "session" else 1] * len(found)}
    return pa.table(
        columns
        | {"page": pa.array([row[2] for row in found], pa.string()), "kinds": [[row[3]] for row in found]}
        | counts
        | {"_updated_at": pa.array([T0] * len(found), pa.int64()).cast(INSTANT)}
    )


def us(second: float) -> int:
    return T0 + int(second * SECOND)


class Store:
    def __init__(self, home: Path, spec: FlowSpec) -> None:
        assert spec.view is not None
        self.store, self.views, self.windows = SqliteViews(home), open_views(home), spec.view.windows
        self.state: FlowState = self.store.begin(spec)

    def put(self, *rows: Stretch, **more: Any) -> None:
        self.state = self.store.commit(self.state, commit(self.state, partials(self.windows, rows), **more))

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return [shown(row, columns) for row in self.views.to_arrow("v").to_pylist()]

    def count(self, table: str) -> int:
        (found,) = self.store._db.execute(f'SELECT count(*) FROM "v/{table}"').fetchone()
        return int(found)


def shown(row: dict[str, Any], columns: Iterable[str] = ()) -> tuple[Any, ...]:
    """First and last second, page, n, kinds, and more."""
    bounds = (round(row[name].timestamp() - T0 / SECOND, 6) for name in ("window_start", "window_end"))
    return (*bounds, row["page"], row["n"], row["kinds"], *(row[name] for name in columns))


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_straggler_joins_two_sessions(tmp_path: Path) -> None:
    spec = replace(spec_of("session", public=False), emit="updates", target="out")
    store = Store(tmp_path, spec)
    store.put((0, 2, "/", "a"), (8, 9, "/", "b"), (5, 5, "/cart", "c"))  # 6 seconds apart: two sessions
    store.put((12, 12, "/", "a"), (13.5, 14, "/", "b"))  # 3 behind 9, 1.5 behind 12: the second goes on
    store.put((5, 5, "/", "d"))  # 3 behind 2, 3 before 8: one session
    store.put((18, 18, "/", "a"), (22.000001, 23, "/", "a"))  # 4 behind 14: the same; more than 4 behind 18: another
    out = [[(row["op"], *shown(row)) for row in each.rows.to_pylist()] for each in store.store.outbox("v")]
    assert out == [
        [("+", 0, 2, "/", 1, 1), ("+", 8, 9, "/", 1, 1), ("+", 5, 5, "/cart", 1, 1)],  # by page, then by time
        [("-", 8, 9, "/", 1, 1), ("+", 8, 14, "/", 3, 2)],
        [("-", 0, 2, "/", 1, 1), ("-", 8, 14, "/", 3, 2), ("+", 0, 14, "/", 5, 3)],
        [("-", 0, 14, "/", 5, 3), ("+", 0, 18, "/", 6, 3), ("+", 22.000001, 23, "/", 1, 1)],
    ]
    assert store.count("values/kinds") == 3 + 1 + 1  # a, b, d; a; c


def test_pieces_of_one_batch_join_each_other_over_what_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path, spec_of("session"))
    store.put((10, 20, "/", "a"), (10, 20, None, "a"), (30, 31, None, "a"))
    store.put((6, 6, "/", "b"), (24, 24, "/", "b"), (28, 28, "/", "b"), (6, 8, None, "b"), (24, 26, None, "b"))
    assert store.rows() == [(6, 31, None, 4, 2), (6, 28, "/", 4, 2)]
    store.put((0, 100, "/", "c"))  # all of it, and more
    assert store.rows() == [(0, 100, "/", 5, 3), (6, 31, None, 4, 2)]


def test_who_watches_sees_two_rows_go_and_one_come(tmp_path: Path, opened: contextlib.ExitStack) -> None:
    store = Store(tmp_path, spec_of("session"))
    store.put((0, 2, "/", "a"), (8, 9, "/", "b"))
    watch = opened.enter_context(store.views.watch("v", snapshot=False, timeout="0 seconds"))
    store.put((5, 5, "/", "d"), closed_us=us(2))
    changes = [(row["op"], *shown(row, ["_status"])) for row in watch]
    assert sorted(changes[:2]) == [("-", 0, 2, "/", 1, 1, "open"), ("-", 8, 9, "/", 1, 1, "open")]
    assert changes[2:] == [("+", 0, 9, "/", 3, 3, "open")]


@pytest.mark.parametrize("windows", ["calendar", "cumulative", "session", "sliding"])
def test_a_version_takes_the_place_of_another_again_and_again(tmp_path: Path, windows: Any) -> None:
    """Made beside it, switched to, and what was served is dropped for the next: all names are free again."""
    spec = spec_of(windows)
    assert spec.view is not None
    beside = replace(spec, name="v/next", view=replace(spec.view, name="v/next"))
    store = Store(tmp_path, spec)
    for number in range(3):
        store.store.begin_beside(beside, "p")
        state = store.store.begin(beside)
        rows = [(second, second, "/", "a") for second in range(number + 1)]
        state = store.store.commit(state, commit(state, partials(windows, rows)))
        store.store.switch(store.store.fence("v"), state)
        assert len(store.rows()) == (1 if windows == "session" else number + 1)


@pytest.mark.parametrize("windows", ["calendar", "cumulative", "session", "sliding"])
def test_what_closes_next_is_the_window_that_ends_first(tmp_path: Path, windows: Any) -> None:
    store = Store(tmp_path, spec_of(windows))
    ends = []
    for closed in (None, 2, 8, 9):
        store.put(*([(2, 2, "/", "a"), (9, 9, "/", "b")] if closed is None else ()), closed_us=closed and us(closed))
        ends.append(store.views.glances()[0].ends_us)
    assert ends == [us(2), us(9), us(9), None]


@pytest.mark.parametrize(("windows", "more_us"), [("calendar", 0), ("cumulative", 0), ("session", 1), ("sliding", 1)])
def test_whoever_reads_changes_is_told_what_is_final_by_their_times(tmp_path: Path, windows: Any, more_us: int) -> None:
    """All changes before the mark are final; a row that ends with a record is of that record's time."""
    store = Store(tmp_path, replace(spec_of(windows), feeds=("updates",)))
    store.put((2, 2, "/", "a"), closed_us=us(2), unchanged_us=us(1))
    (*_, mark) = store.store.outbox("v")[-1].rows.to_pylist()
    told = [round(mark[name].timestamp() * SECOND) for name in MARK]
    assert mark["change__op"] == "." and told == [us(2) + more_us, us(1) + more_us]


def test_a_final_session_that_grows_is_taken_back_until_it_is_final_again(tmp_path: Path) -> None:
    store = Store(tmp_path, replace(spec_of("session", public=False), emit="final", target="out"))
    store.put((0, 2, "/", "a"), (8, 9, "/", "b"), closed_us=us(2))
    store.put((5, 6, "/", "c"), closed_us=us(3))
    store.put(closed_us=us(9))
    out = [[(row["op"], *shown(row)) for row in each.rows.to_pylist()] for each in store.store.outbox("v")]
    assert out == [[("+", 0, 2, "/", 1, 1)], [("-", 0, 2, "/", 1, 1)], [("+", 0, 9, "/", 3, 3)]]


def test_what_a_function_made_of_joined_sessions_goes_with_them(tmp_path: Path, opened: contextlib.ExitStack) -> None:
    """`busy`: n - 2 rows for each result."""
    made = (Column("kinds", "bigint"), Column("copy", "bigint"), Column("half", "double"))
    store = Store(tmp_path, spec_of("session", shaped=made))
    three = [(second, second, "/", kind) for second, kind in ((0, "a"), (1, "b"), (2, "c"))]
    store.put(*three, *((second + 8, second + 8, page, kind) for second, _, page, kind in three), shape=busy)
    seen = store.views.to_arrow("v").to_pylist()
    assert [(row["kinds"], row["copy"], row["half"]) for row in seen] == [(3, 0, 1.5), (3, 0, 1.5)]
    watch = opened.enter_context(store.views.watch("v", snapshot=False, timeout="0 seconds"))
    store.put((5, 5, "/", "d"), shape=busy)
    seen = store.views.to_arrow("v").to_pylist()
    assert [(row["kinds"], row["copy"], row["half"]) for row in seen] == [(4, copy, 3.5) for copy in range(5)]
    assert sorted(row["op"] for row in watch) == ["+"] * 5 + ["-"] * 2
    assert store.count("shaped") == 5


def test_an_event_slides_into_the_windows_behind_it(tmp_path: Path) -> None:
    store = Store(tmp_path, spec_of("sliding"))
    store.put((0, 0, "/", "a"), (3, 3, "/", "b"), (8, 8, "/", "a"))
    assert store.rows() == [(-4, 0, "/", 1, 1), (-1, 3, "/", 2, 2), (4, 8, "/", 1, 1)]
    store.put((4, 4, "/", "a"), (2, 7.5, "/", "c"))  # 4 is in [4, 8] and holds 0; the other counts from 7.5 on: nowhere
    assert store.rows() == [(-4, 0, "/", 1, 1), (-1, 3, "/", 2, 2), (0, 4, "/", 3, 2), (4, 8, "/", 2, 1)]
    store.put((5, 5, "/", "a"), (4.5, 4.75, "/", "d"))  # too late for itself, in time for 5 and 8
    assert [row[:5] for row in store.rows()][-2:] == [(1, 5, "/", 4, 3), (4, 8, "/", 4, 2)]
    store.put((6, 6, "/", "e"))  # 2 does not count yet at 6: 3, 4, 4.5, 5 and itself
    assert store.rows()[-2:] == [(2, 6, "/", 5, 4), (4, 8, "/", 5, 3)]


def test_what_no_window_can_hold_any_more_is_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path, spec_of("sliding"))
    store.put((0, 0, "/", "a"), (3, 3, "/", "b"), (8, 8, "/", "c"))
    assert (store.count("parts"), store.count("values/kinds")) == (3, 4)
    store.put(unchanged_us=us(7) - 1)  # a record of 7 may come, and its window holds 3
    assert (store.count("parts"), store.count("values/kinds")) == (2, 1)
    store.put((7, 7, "/", "a"), unchanged_us=us(7))  # one of 7.000001 may come
    assert store.rows()[-2:] == [(3, 7, "/", 2, 2), (4, 8, "/", 2, 2)]
    assert store.count("parts") == 2
    store.store.drop("v")
    assert not store.store._db.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'v/%'").fetchall()


@pytest.mark.parametrize("together", [1, 4, 1000])
def test_numbers_of_a_new_sliding_window_are_merged_before_they_are_stored(
    tmp_path: Path, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the store would: nulls are passed over, and sums are as wide as they have to be."""
    monkeypatch.setattr(sliding, "PAIRS_MAX", together)
    plain, rules = spec_of("sliding"), {"n": "whole", "least": "least", "most": "greatest"}
    assert plain.view is not None
    types = {"n": WIDE, "least": "bigint", "most": "bigint"}
    slots = tuple(SlotColumn(name, types[name], rule) for name, rule in rules.items())  # type: ignore[arg-type]
    view = replace(plain.view, slots=slots, results=tuple(Result(name, "bigint", (name,)) for name in rules))
    store = Store(tmp_path, replace(plain, view=view))
    run: list[str] = []
    store.store._db.set_trace_callback(run.append)

    def put(*rows: tuple[float, int | None]) -> None:
        table = partials("sliding", [(at, at, "/", "") for at, _ in rows]).drop_columns(["kinds", "n"])
        for name in rules:
            table = table.append_column(name, pa.array([value for _, value in rows], pa.int64()))
        store.state = store.store.commit(store.state, commit(store.state, table))

    def rows() -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in rules) for row in store.views.to_arrow("v").to_pylist()]

    put((0, None), (1, 5), (2, None), (3, -2))
    assert rows() == [(None, None, None), (5, 5, 5), (5, 5, 5), (3, -2, 5)]
    assert sum(sql.startswith('INSERT INTO "v/rows"') for sql in run) == 4  # a row for each window
    put((4, 7))  # with parts that were kept, 0 is among them
    assert rows()[-1] == (10, -2, 7)
    put((20, 2**62), (21, -(2**62)), (22, 2**62 - 1))
    assert rows()[-3:] == [(2**62, 2**62, 2**62), (0, -(2**62), 2**62), (2**62 - 1, -(2**62), 2**62)]
    put((30, 2**62), (31, 2**62), (32, 2**62))
    assert [row[0] for row in rows()[-3:]] == [2**62, 2**63, 3 * 2**62]


@pytest.mark.parametrize("windows", ["calendar", "cumulative", "session", "sliding"])
def test_no_part_of_a_commit_reads_the_whole_view(tmp_path: Path, windows: Any, opened: contextlib.ExitStack) -> None:
    spec = spec_of(windows, keep_us=SECOND, shaped=(Column("n", "bigint"),))
    store = Store(tmp_path, spec)
    opened.enter_context(open_views(tmp_path).watch("v"))
    run: set[str] = set()
    rows = [(10 * number, 10 * number, page, "a") for number in range(50) for page in ("/", None)]
    for turn in range(3):
        if turn == 2:
            for db in (store.store._db, *store.store._opened):
                db.set_trace_callback(run.add)
        given = [(at + turn, until + turn, page, kind) for at, until, page, kind in rows]
        end = us(10 * turn)
        more = {"frontier_us": end + SECOND, "closed_us": end, "unchanged_us": end}
        store.put(*given, shape=lambda table: table, **more)
    assert store.store.closes("v", us(90)) and store.store.last_window_end("v")
    for db in (store.store._db, *store.store._opened):
        db.set_trace_callback(None)
    ours = [sql for sql in run if '"v/' in sql and not sql.startswith(("--", "CREATE"))]
    plans = [(row[3], sql) for sql in ours for row in store.store._db.execute(f"EXPLAIN QUERY PLAN {sql}")]
    scans = ("SCAN s", "SCAN f", "SCAN p", "SCAN v", "SCAN q")
    assert not [(plan, sql) for plan, sql in plans if plan.startswith(scans)]
    assert any("window_end<" in plan or "end_us<" in plan for plan, _ in plans)


RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "a", None]), st.integers(-3, 3) | st.none(), st.integers(0, 25)), max_size=6
)


@pytest.mark.parametrize("windows", ["session", "sliding"])
@examples
@given(batches=st.lists(RECORDS, max_size=4))
def test_every_rule_of_every_aggregate_holds(windows: Any, batches: list[list[tuple[Any, ...]]]) -> None:
    """Records in any order and any batches; what must be seen is computed from all of a window's records at once."""
    spec = all_rules("v", "int")
    assert spec.view is not None
    spec = replace(spec, view=replace(spec.view, windows=windows, window_us=(GAP * SECOND, 0)))
    offsets = itertools.count()
    everything: list[Any] = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, SqliteViews(Path(folder)) as store:
        state = store.begin(spec)
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
            state = store.commit(state, commit(state, table, aggregates=FUNCTIONS))
        found = open_views(Path(folder)).to_arrow("v").to_pylist()
    keys = [(round(row["window_end"].timestamp() - T0 / SECOND), row["g"]) for row in found]
    assert dict(zip(keys, map(found_of, found), strict=True)) == {
        key: seen(of) for key, of in wanted(windows, everything)
    }


def wanted(windows: str, records: list[Any]) -> Iterator[tuple[tuple[int, str | None], list[Any]]]:
    """(window end, group) and the records of each window."""
    for group in {record[0] for record in records}:
        mine = sorted((record for record in records if record[0] == group), key=lambda record: record[2])
        if windows == "sliding":
            for end in {record[2] for record in mine}:
                yield (end, group), [record for record in mine if end - GAP <= record[2] <= end]
            continue
        run: list[Any] = []
        for record in mine:
            if run and record[2] - run[-1][2] > GAP:
                yield (run[-1][2], group), run
                run = []
            run.append(record)
        yield (run[-1][2], group), run
