"""The same commits to SQLite's store and to operators over tables in memory: the same rows, and the same goes out. Any
kind of window, any cut, with stragglers, with time that moves on, and with what goes by it. What each result counts is
also computed by brute force over all records so far."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.aggregates import Aggregate, collect, count_distinct, over_changes, percentile, top_k
from headrace.aggregates import max as greatest
from headrace.aggregates import min as least
from headrace.testing.folding import FoldingStore
from headrace.testing.view_contract import INSTANT, SECOND, T0, commit, moment, partial
from headrace.views.contract import (
    COUNTS_FROM,
    ON_TIME_FROM,
    RECORD,
    ROWS,
    Column,
    FlowSpec,
    Result,
    SlotColumn,
    ViewSpec,
)
from headrace.views.open import open_views
from headrace.views.values import arrow_type
from tests.operators.in_memory import MemoryStore, MemoryViews
from tests.views.folded import SqliteViews

GAP = 4
ORDER = [("at", "timestamp"), ("partition", "int"), ("offset", "bigint")]
FUNCTIONS = {
    "top": top_k("x", 2),
    "some": collect("x", 3),
    "half": percentile("x", 0.5).with_algebra(replace(percentile("x", 0.5).algebra, types=(("value", pa.int32()),))),
    "own": Aggregate("sum(x)", merge=lambda a, b: a + b, finish=lambda a: a / 2),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def slots_and_results(values: bool) -> tuple[tuple[SlotColumn, ...], tuple[Result, ...]]:
    slots = [
        SlotColumn("n", "bigint", "add"),
        SlotColumn("whole", "decimal(38,0)", "whole"),
        SlotColumn("money", "decimal(20,2)", "add"),
        SlotColumn("mean__sum", "double", "add"),
        SlotColumn("mean__count", "bigint", "add"),
        SlotColumn("lo", "string", "least"),
        SlotColumn("hi", "double", "greatest"),
    ]
    results = [
        Result("n", "bigint", ("n",)),
        Result("whole", "bigint", ("whole",)),
        Result("money", "decimal(20,2)", ("money",)),
        Result("mean", "double", ("mean__sum", "mean__count")),
        Result("lo", "string", ("lo",)),
        Result("hi", "double", ("hi",)),
    ]
    if values:
        slots.append(SlotColumn("end", "int", "latest", "end"))
        slots += [SlotColumn(f"end__{part}", kind, "latest", "end") for part, kind in ORDER]
        slots.append(SlotColumn("kinds", "int", "distinct"))
        slots.append(SlotColumn("top", "array<struct<value:int,count:bigint>>", "counted"))
        slots.append(SlotColumn("half", "double", "kept", "int"))
        state = "array<struct<at:timestamp,partition:int,offset:bigint,value:int>>"
        slots += [
            SlotColumn("some__state", state, "merged"),
            SlotColumn("some", "array<int>", "finished", "some__state"),
        ]
        slots += [SlotColumn("own__state", "bigint", "merged"), SlotColumn("own", "double", "finished", "own__state")]
        results += [Result(name, kind, (name,)) for name, kind in (("end", "int"), ("kinds", "bigint"))]
        results += [Result("top", "array<struct<value:int,count:bigint>>", ("top",))]
        results += [Result("some", "array<int>", ("some",))]
        results += [Result(name, "double", (name,)) for name in ("half", "own")]
    return tuple(slots), tuple(results)


def rows_of(spec: FlowSpec, records: list[tuple[Any, ...]]) -> pa.Table:
    """A partial row for each record: (group, value, second, late)."""
    assert spec.view is not None
    columns: dict[str, Any] = {"page": pa.array([each[0] for each in records], pa.string())}
    made = [
        partial([(group, value, second, number % 2, number)])
        for number, (group, value, second, _) in enumerate(records)
    ]
    values = [each[1] for each in records]
    given: dict[str, list[Any]] = {
        "n": [1] * len(records),
        ROWS: [1] * len(records),
        "whole": [None if v is None else v * 2**61 for v in values],
        "money": [None if v is None else v for v in values],
        "mean__sum": [None if v is None else v / 4 for v in values],
        "mean__count": [int(v is not None) for v in values],
        "lo": [None if v is None else f"x{v}" for v in values],
        "hi": [None if v is None else float("nan") if v == 3 else v / 3 for v in values],
        "half": [[] if v is None else [{"value": v, "count": 1}] for v in values],
        "own__state": values,
    }
    for slot in spec.view.slots:
        if slot.rule == "finished":
            continue
        kind = arrow_type(slot.type)
        kind = pa.list_(kind) if slot.rule == "distinct" else kind
        if slot.rule == "kept":
            kind = pa.list_(pa.struct([("value", arrow_type(slot.of)), ("count", pa.int64())]))
        found = given[slot.name] if slot.name in given else [each[slot.name] for each in made]
        columns[slot.name] = pa.array(found, kind)
    for name, times in windows_of(spec.view, records).items():
        columns[name] = pa.array(times, pa.int64()).cast(INSTANT)
    columns["_corrections"] = pa.array([each[3] for each in records], pa.int64())
    columns["_updated_at"] = pa.array([moment(T0 + each[2] * SECOND) for each in records], INSTANT)
    return pa.table(columns)


def windows_of(view: ViewSpec, records: list[tuple[Any, ...]]) -> dict[str, list[int]]:
    at = [T0 + each[2] * SECOND for each in records]
    if view.lives or view.windows == "session":
        return {"window_start": at, "window_end": [us + each[3] * SECOND for us, each in zip(at, records, strict=True)]}
    if view.window_us is None:
        return {}
    if view.windows == "sliding":
        counts = [us + each[3] * SECOND for us, each in zip(at, records, strict=True)]
        return {
            "window_start": [us - GAP * SECOND for us in at],
            "window_end": at,
            COUNTS_FROM: counts,
            ON_TIME_FROM: [us + each[3] * SECOND for us, each in zip(counts, records, strict=True)],
        }
    size = GAP * SECOND
    starts = [us - us % size for us in at]
    if view.windows == "cumulative":
        return {"window_start": starts, "window_end": [us - us % SECOND + SECOND for us in at]}
    return {"window_start": starts, "window_end": [us + size for us in starts]}


def spec_of(kind: str, values: bool, **more: Any) -> FlowSpec:
    slots, results = slots_and_results(values)
    window_us = {
        "fixed": (GAP * SECOND, GAP * SECOND),
        "calendar": (0, 0),
        "cumulative": (GAP * SECOND, SECOND),
        "session": (GAP * SECOND, 0),
        "sliding": (GAP * SECOND, 0),
    }.get(kind)
    groups = (Column("page", "string"),)
    windows: Any = "fixed" if window_us is None else kind
    keep_us = more.pop("keep_us", None)
    if kind == "lives":
        keep_us = GAP * SECOND
    view = ViewSpec("v", groups, slots, results, window_us, keep_us, more.get("emit") is None, windows=windows)
    return FlowSpec("v", "shop", ("clicks",), view, **more)


KINDS = ["none", "lives", "fixed", "calendar", "cumulative", "session", "sliding"]
OLDEST = 9
"""No record is older than that, in seconds, when it comes."""
UNCHANGED = {"session": OLDEST + GAP + 1, "sliding": OLDEST + 1}
"""So long ago a result ended that they can no longer change it; a session ends with the record that they may join."""


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", ["view", "updates", "final", "fed", "kept"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))])
def test_the_same_rows_and_the_same_changes(home: Path, kind: str, out: str, values: bool, seed: int) -> None:
    windowless = kind in ("none", "lives")
    if kind == "lives" and (values or out != "view"):
        pytest.skip("there are no such flows")
    if windowless and out in ("final", "kept"):
        pytest.skip("nothing is final without windows")
    more: dict[str, Any] = {}
    if out in ("updates", "final"):
        more = {"emit": out, "target": "out"}
    if out == "fed":
        more = {"feeds": ("updates",) if windowless else ("updates", "final")}
    if out == "kept":
        more = {"keep_us": 6 * SECOND}
    spec = spec_of(kind, values, **more)
    dice, so_far = random.Random(f"{kind} {out} {values} {seed}"), list[tuple[Any, ...]]()
    pages = dice.choice([["a", "b"], ["a", "b", None]])
    clock = list(accumulate(dice.choice([0, 1, 2, 3, 4, 4, 9]) for _ in range(13)))
    memory = FoldingStore(MemoryStore(home))
    with SqliteViews(home) as store:
        states = [store.begin(spec), memory.begin(spec)]
        for now, then in pairwise(clock):
            records = [
                (
                    dice.choice(pages),
                    dice.choice([None, 1, 2, 3, -1]),
                    now - dice.choice([0, 0, 0, 1, 2, 5, OLDEST]),
                    dice.choice([0, 0, 1]),
                )
                for _ in range(dice.choice([0, 1, 3, 10]))
            ]
            closed = dice.choice([None, now - 2, now - 8, now - 4])
            reach = dice.choice([None, then - UNCHANGED.get(kind, OLDEST), now - 20])  # of what is still to come
            late = {
                "frontier_us": None if closed is None else T0 + (closed + 2) * SECOND,
                "closed_us": None if closed is None else T0 + closed * SECOND,
                "unchanged_us": None if reach is None else T0 + reach * SECOND,
            }
            partials, so_far = rows_of(spec, records), so_far + records
            for at, each in enumerate((store, memory)):
                facts = commit(states[at], partials, aggregates=FUNCTIONS, **late)
                states[at] = each.commit(states[at], facts)
            if spec.view is not None and spec.view.public:
                old, new = open_views(home).to_arrow("v"), MemoryViews(home).to_arrow("v")
                assert plain(new.to_pylist()) == plain(old.to_pylist())
                at = new.schema.get_field_index("whole")  # SQLite's is wider when a sum on the way was
                assert new.schema.remove(at).types == old.schema.remove(at).types
                if out != "kept" and kind != "lives":
                    assert counted(new) == brute_force(kind, so_far)
            was, told = (told_by(each.outbox("v"), states[0].sequence) for each in (store, memory))
            assert told == was
    del MemoryStore.homes[home]


def test_a_session_that_grows_in_the_step_that_moves_reach_behind_its_old_end_keeps_its_values(home: Path) -> None:
    spec = spec_of("session", True)
    store = FoldingStore(MemoryStore(home))
    state = store.begin(spec)
    kinds = []
    for records, reach in (
        ([("a", 1, 0, 0)], None),
        ([("a", 2, 4, 0), ("a", 3, 8, 0)], 3),  # [0, 0] ended before 3; in this step it becomes [0, 8]
        ([("a", 1, 9, 0)], 3),  # a value that it has
    ):
        at = None if reach is None else T0 + reach * SECOND
        facts = commit(state, rows_of(spec, records), aggregates=FUNCTIONS, unchanged_us=at)
        state = store.commit(state, facts)
        kinds.append([(row["kinds"], row["n"]) for row in MemoryViews(home).to_arrow("v").to_pylist()])
    del MemoryStore.homes[home]
    assert kinds == [[(1, 1)], [(3, 3)], [(3, 4)]]


def counted(rows: pa.Table) -> dict[Any, Any]:
    names = [name for name in ("window_start", "window_end") if name in rows.column_names]
    times = [[int(us) // SECOND for us in rows[name].cast(pa.int64()).to_pylist()] for name in names]
    columns = [rows[name].to_pylist() for name in ("n", "whole", "_corrections")]
    keys = zip(*times, rows["page"].to_pylist(), strict=True)
    return dict(zip(keys, zip(*columns, strict=True), strict=True))


def brute_force(kind: str, records: list[tuple[Any, ...]]) -> dict[Any, Any]:
    """(window, group) -> how many records, the sum of their values, how many corrections."""
    second = T0 // SECOND
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for group, value, at, late in records:
        start = second + at - (second + at) % GAP
        match kind:
            case "none":
                found.setdefault((group,), []).append((value, late))
            case "fixed" | "calendar":
                found.setdefault((start, start + GAP, group), []).append((value, late))
            case "cumulative":
                found.setdefault((start, second + at + 1, group), []).append((value, late))
            case "sliding" if not late:  # a late record counts a second later, and is on time for what ends then
                members = [one for one in records if one[0] == group and at - GAP <= one[2] <= at - one[3]]
                window = (second + at - GAP, second + at, group)
                found[window] = [(each, int(at < when + 2 * late_by)) for _, each, when, late_by in members]
    if kind == "session":
        for group, members in brute_sessions(records):
            first, last = min(each[2] for each in members), max(each[2] + each[3] for each in members)
            found[second + first, second + last, group] = [(value, late) for _, value, _, late in members]
    return {key: counts(members) for key, members in found.items()}


def brute_sessions(records: list[tuple[Any, ...]]) -> Iterator[tuple[str | None, list[tuple[Any, ...]]]]:
    """A group's records, each a stretch of time, as long as the next begins at most the gap behind them."""
    for group in {each[0] for each in records}:
        members = list[tuple[Any, ...]]()
        for one in sorted((each for each in records if each[0] == group), key=lambda each: each[2]):
            if members and one[2] > max(each[2] + each[3] for each in members) + GAP:
                yield group, members
                members = []
            members.append(one)
        yield group, members


def counts(members: list[tuple[Any, ...]]) -> tuple[int, int | None, int]:
    values = [value * 2**61 for value, _ in members if value is not None]
    return len(members), sum(values) if values else None, sum(late for _, late in members)


def told_by(outbox: list[Any], sequence: int) -> dict[str, Any]:
    return {each.target: plain(each.rows.to_pylist()) for each in outbox if each.sequence == sequence - 1}


def plain(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {name: repr(int(value) if name == "whole" and value is not None else value) for name, value in row.items()}
        for row in rows
    ]


SHRINKING = {
    name: over_changes(name, each, {})
    for name, each in {
        "lo": least("x"),
        "hi": greatest("x"),
        "kinds": count_distinct("x"),
        "top": top_k("x", 2),
    }.items()
}


def shrinking(kind: str, **more: Any) -> FlowSpec:
    """A flow whose records can go again."""
    types = {"lo": "int", "hi": "int", "kinds": "bigint", "top": "array<struct<value:int,count:bigint>>"}
    slots = (
        SlotColumn(ROWS, "bigint", "add"),
        SlotColumn("x__exact", "string", "exact"),
        SlotColumn("x__sum", "double", "rounded", "x__exact"),
        SlotColumn("x__count", "bigint", "add"),
        *(SlotColumn(slot, each, "kept", "int") for slot, each in types.items()),
    )
    results = (
        Result("x", "double", ("x__sum",), unless="x__count"),
        *(Result(slot, each, (slot,)) for slot, each in types.items()),
    )
    spec = spec_of(kind, False, **more)
    assert spec.view is not None
    return replace(spec, view=replace(spec.view, slots=slots, results=results, retracts=True))


def test_the_same_where_a_session_grows_in_the_step_in_which_its_old_end_is_kept_no_longer(home: Path) -> None:
    spec = shrinking("session", keep_us=SECOND)
    memory = FoldingStore(MemoryStore(home))
    one, two, three, again = (("a", value, second, 0) for value, second in ((1, 0), (2, 4), (5, 8), (1, 8)))
    on = dict.fromkeys(("frontier_us", "closed_us", "unchanged_us"), T0 + 3 * SECOND)  # [0, 0] is older than a second
    commits: list[tuple[Any, dict[str, int]]] = [
        ([(one, 1)], {}),
        ([(two, 1), (three, 1)], on),
        ([(again, 1)], on),
        ([(again, -1)], on),
    ]
    with SqliteViews(home) as store:
        states = [store.begin(spec), memory.begin(spec)]
        for weighed, late in commits:
            for at, each in enumerate((store, memory)):
                partials = taken_back(spec, weighed)
                facts = commit(states[at], partials, aggregates=SHRINKING, **late)
                states[at] = each.commit(states[at], facts)
            rows = [
                views.to_arrow("v").select(["lo", "hi"]).to_pylist() for views in (open_views(home), MemoryViews(home))
            ]
    del MemoryStore.homes[home]
    assert rows == [[{"lo": 1, "hi": 5}]] * 2


@pytest.mark.parametrize("kind", ["none", "fixed", "session"])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_where_records_go_again(home: Path, kind: str, seed: int) -> None:
    spec = shrinking(kind, emit="updates", target="out")
    dice, there = random.Random(seed), list[tuple[Any, ...]]()
    memory = FoldingStore(MemoryStore(home))
    with SqliteViews(home) as store:
        states = [store.begin(spec), memory.begin(spec)]
        for _ in range(12):
            came = [(dice.choice(["a", "b"]), dice.choice([None, 1, 2, 5]), dice.randrange(12), 0) for _ in range(4)]
            if kind == "session":
                came = [(group, value, 1, 0) for group, value, *_ in came]  # what goes takes no session apart
            gone = [there.pop(dice.randrange(len(there))) for _ in range(min(len(there), dice.randrange(8)))]
            there += came
            weighed = [*((one, -1) for one in gone), *((one, 1) for one in came)]
            partials = taken_back(spec, weighed)
            for at, each in enumerate((store, memory)):
                facts = commit(states[at], partials, aggregates=SHRINKING)
                states[at] = each.commit(states[at], facts)
            was, told = (told_by(each.outbox("v"), states[0].sequence) for each in (store, memory))
            assert told == was
    del MemoryStore.homes[home]


RECORD_TYPE = "struct<id:string,x:int,_partition:int,_offset:bigint,_progress:timestamp,_arrived_at:timestamp>"


@pytest.mark.parametrize("seed", range(4))
def test_the_same_first_records(home: Path, seed: int) -> None:
    """Exact dedup: a session's first record is its result, and goes when an earlier one comes. Two have one place."""
    slots = (SlotColumn(RECORD, RECORD_TYPE, "earliest", RECORD),)
    slots += tuple(SlotColumn(f"{RECORD}__{part}", kind, "earliest", RECORD) for part, kind in ORDER)
    plain_spec = spec_of("session", False, feeds=("updates",))
    assert plain_spec.view is not None
    results = (Result(RECORD, RECORD_TYPE, (RECORD,)),)
    view = replace(plain_spec.view, slots=slots, results=results, records=True, public=False)
    spec, dice = replace(plain_spec, view=view), random.Random(seed)
    memory = FoldingStore(MemoryStore(home))
    with SqliteViews(home) as store:
        states = [store.begin(spec), memory.begin(spec)]
        for number in range(12):
            records = [(dice.choice("ab"), dice.randrange(9), 3 * number - dice.randrange(9), 0) for _ in range(4)]
            at = [moment(T0 + second * SECOND) for _, _, second, _ in records]
            columns: dict[str, Any] = {"page": pa.array([each[0] for each in records])}
            places = (at, [0] * 4, [dice.randrange(2) for _ in range(4)])
            made = [
                {"id": key, "x": value, "_partition": 0, "_offset": offset, "_progress": us, "_arrived_at": us}
                for (key, value, *_), us, offset in zip(records, at, places[2], strict=True)
            ]
            columns[RECORD] = pa.array(made, arrow_type(RECORD_TYPE))
            for (part, kind), values in zip(ORDER, places, strict=True):
                columns[f"{RECORD}__{part}"] = pa.array(values, arrow_type(kind))
            columns |= {name: pa.array(at, INSTANT) for name in ("window_start", "window_end", "_updated_at")}
            columns["_corrections"] = pa.array([0] * 4, pa.int64())
            for which, each in enumerate((store, memory)):
                late = {"frontier_us": T0 + 3 * number * SECOND, "closed_us": T0 + (3 * number - 9) * SECOND}
                facts = commit(states[which], pa.table(columns), aggregates={}, **late)
                states[which] = each.commit(states[which], facts)
            was, told = (told_by(each.outbox("v"), states[0].sequence) for each in (store, memory))
            assert told == was
    del MemoryStore.homes[home]


def taken_back(spec: FlowSpec, weighed: list[tuple[tuple[Any, ...], int]]) -> pa.Table:
    from headrace.aggregates.exact import exact_sum, rounded

    assert spec.view is not None
    records, signs = [one for one, _ in weighed], [sign for _, sign in weighed]
    values = [record[1] for record in records]
    pairs = pa.list_(pa.struct([("value", pa.int32()), ("count", pa.int64())]))
    lists = [[] if v is None else [{"value": v, "count": sign}] for v, sign in zip(values, signs, strict=True)]
    texts = [exact_sum([None if v is None else v / 10], [sign]) for v, sign in zip(values, signs, strict=True)]
    columns: dict[str, Any] = {"page": pa.array([record[0] for record in records], pa.string())}
    columns |= {ROWS: pa.array(signs, pa.int64()), "x__exact": pa.array(texts, pa.string())}
    columns["x__sum"] = pa.array([None if text is None else float(rounded(text)) for text in texts], pa.float64())
    columns["x__count"] = pa.array(
        [0 if v is None else sign for v, sign in zip(values, signs, strict=True)], pa.int64()
    )
    columns |= {slot: pa.array(lists, pairs) for slot in SHRINKING}
    for name, times in windows_of(spec.view, records).items():
        columns[name] = pa.array(times, pa.int64()).cast(INSTANT)
    columns["_corrections"] = pa.array([0] * len(records), pa.int64())
    columns["_updated_at"] = pa.array([moment(T0)] * len(records), INSTANT)
    return pa.table(columns)
