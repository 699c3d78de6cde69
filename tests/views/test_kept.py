"""What joins keep: the numbers are those that counting gives, after any commits, kills among them; and who holds it."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import failpoints
from headrace.durations import from_us
from headrace.views.contract import Commit, FlowSpec, FlowState, Place
from headrace.views.kept import Holder, Kept, kept_of
from headrace.views.keyed import Column, TableSpec, Writes
from headrace.views.open import open_views
from headrace.views.sqlite.store import SqliteViews

INSTANT = pa.timestamp("us", tz="UTC")
KEY, AT = Column("k", "int"), Column("at", "timestamp")
SIDES = tuple(TableSpec(side, (KEY, AT), (Column("text", "string"),), "at") for side in ("left", "right"))
INDEX = TableSpec("left/index", (KEY,), ())
JOIN = FlowSpec(
    "pairs", "shop", ("orders", "payments"), None, target="pairs", operator="join(…)", tables=(*SIDES, INDEX)
)
JOIN = replace(JOIN, sides=(("left", "orders"), ("right", "payments")))


def rows(chance: random.Random, count: int) -> pa.Table:
    keys = {(chance.choice([None, *range(20)]), chance.randrange(30)) for _ in range(count)}
    made = {"k": [k for k, _ in keys], "at": [at for _, at in keys], "text": ["x" * chance.randrange(90) for _ in keys]}
    return pa.table(made, pa.schema([("k", pa.int32()), ("at", INSTANT), ("text", pa.string())]))


def commit(store: SqliteViews, flow: FlowState, writes: Writes) -> FlowState:
    places = {"orders": {0: Place(flow.sequence + 1, 5_000_000)}, "payments": {0: Place(0, None), 1: Place(3, 9)}}
    ids = {"orders": "a", "payments": "b"}
    return store.commit(flow, Commit(flow.sequence, places, ids, writes=writes))


def test_the_numbers_are_those_of_counting(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with SqliteViews(tmp_path) as store:
        flow = store.begin(JOIN)
        for _ in range(60):
            some = rows(chance, chance.choice([1, 5, 300]))
            deletes = {"right": rows(chance, 4).select(["k", "at"]), "left": rows(chance, 1).select(["k"])}
            index = {"left/index": some.select(["k"]).group_by(["k"]).aggregate([])}
            puts = {"left": some, "right": rows(chance, 9)} if chance.random() < 0.8 else {}
            drops = {"left": chance.randrange(15)} if chance.random() < 0.5 else {}
            writes = Writes({**puts, **index}, {}, deletes if chance.random() < 0.7 else {}, drops)
            if chance.random() < 0.1:
                failpoints.arm("view.applied", "raise")
                with pytest.raises(failpoints.InjectedFault):
                    commit(store, flow, writes)
                failpoints.disarm()
            flow = commit(store, flow, writes)
        left, right = open_views(tmp_path).kept("pairs")
    db = sqlite3.connect(tmp_path / "views.db")
    counts = [
        db.execute(f'SELECT count(*), sum(length(text)) FROM "pairs/{side}"').fetchone() for side in ("left", "right")
    ]
    assert [left.rows, right.rows] == [count for count, _ in counts]
    for kept, (count, texts) in zip((left, right), counts, strict=True):
        assert texts / 2 < kept.bytes < 3 * (texts + 30 * count), "bytes are about right"


def test_rows_that_are_gone_take_their_bytes_along(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        flow = commit(store, store.begin(JOIN), Writes({"left": rows(random.Random(1), 50)}))
        commit(store, flow, Writes(drops={"left": 10**9}))
        assert [(each.rows, each.bytes) for each in open_views(tmp_path).kept("pairs")] == [(0, 0), (0, 0)]


def state(**places: dict[int, int | None]) -> FlowState:
    made = {topic: {at: Place(1, us) for at, us in each.items()} for topic, each in places.items()}
    return FlowState("pairs", 1, 1, made, {}, None)


def test_the_partition_of_the_other_side_holds() -> None:
    at = state(orders={0: 7, 1: 5}, payments={0: 9, 1: None})
    left, right = kept_of(JOIN, at, {"left": (2, 20), "left/index": (2, 8), "right": (1, 10)}, goes_back=False)
    assert left == Kept("left", ("orders",), 2, 28, Holder("payments", 1, None)), "which has no record yet"
    assert right == Kept("right", ("payments",), 1, 10, Holder("orders", 1, from_us(5))), "the one behind"


def test_nobody_holds_what_is_not_there() -> None:
    left, right = kept_of(JOIN, state(orders={0: 1}, payments={0: 2}), {"left": (0, 0)}, goes_back=False)
    assert left.held_by is right.held_by is None


def test_a_topic_that_a_flow_writes_holds_as_a_whole() -> None:
    left, _ = kept_of(JOIN, state(payments={0: 2}), {"left": (1, 9)}, goes_back=True)
    assert left.held_by == Holder("payments", None, None)
