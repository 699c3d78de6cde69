"""The history of joined tables: at every arrival it has the rows that the join of both tables had then, by brute force,
however their changelogs are cut and mixed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidArgument
from headrace.operators.contract import InputTimes
from headrace.operators.joins.joined_history import JoinedHistory
from headrace.operators.joins.table_history import valid_at
from headrace.operators.joins.table_join import How, TableJoin
from headrace.testing import MemoryTables
from headrace.views.keyed import State
from tests.operators.changelogs import NOTHING, Asked, Change, add_up, arrow, readings, us_of
from tests.operators.test_table_join import CASES, KINDS, Case, change

NOW = InputTimes(None, None)


def rows_at(case: Case, how: How, read: list[list[Change]], at: int) -> Counter[str]:
    left, right = ([each for each in some if each.arrived <= at] for some in read)
    return Counter(map(said, case.rows(how, left, right).elements()))


def said(text: str) -> str:
    """What a row says, without when it was updated."""
    return text.rsplit(", None, 0, ", 1)[0]


def stored_at(case: Case, state: State, at: int) -> Counter[str]:
    rows = valid_at(state.scan("history", NOTHING), us_of(at))
    return Counter(repr([*(row[name] for name in case.seen), row["_id"]])[:-1] for row in rows.to_pylist())


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_at_every_time_it_has_the_rows_that_the_join_had_then(name: str, how: How) -> None:
    case = CASES[name]
    for seed in range(2):
        dice = random.Random(f"{name} {how} {seed}")
        operator, told = JoinedHistory(case.join(how)), Counter[str]()
        tables = MemoryTables(*operator.tables)
        logs = [case.log(side, dice, dice.choice([5, 20]), moves=seed == 0) for side in (0, 1)]
        coming = [list(readings(dice, log, again=seed == 1)) for log in logs]
        read: list[list[Change]] = [[], []]
        while any(coming):
            batch = {}
            for side, id in enumerate(("left", "right")):
                if coming[side] and dice.random() < 0.6:
                    batch[id] = arrow(piece := coming[side].pop(0), case.schema(side))
                    read[side] += piece
            step = operator.step(batch, tables.state(), {"left": NOW, "right": NOW}, changes=True)
            tables.apply(step.writes)
            add_up(told, step.changes)
        assert +told == case.rows(how, *read)
        for at in range(-1, max(each.arrived for log in logs for each in log) + 2):
            assert stored_at(case, tables.state(), at) == rows_at(case, how, read, at)


def test_a_change_reads_the_versions_of_what_it_is_joined_on_and_no_more() -> None:
    case = CASES["foreign key"]
    operator = JoinedHistory(case.join("left"))
    tables = MemoryTables(*operator.tables)
    lefts = [change(number, id=f"p{number}", author=number % 50, x=0) for number in range(500)]
    rights = [change(number, id=number, name="n") for number in range(50)]
    batch = {"left": arrow(lefts, case.schema(0)), "right": arrow(rights, case.schema(1))}
    tables.apply(operator.step(batch, tables.state(), {"left": NOW, "right": NOW}, changes=True).writes)
    state = Asked(tables.state())
    one = {"right": arrow([change(600, id=7, name="m")], case.schema(1))}
    operator.step(one, state, {"left": NOW, "right": NOW}, changes=True)  # type: ignore[arg-type]
    assert state.rows < 80


def test_columns_that_a_history_adds_are_refused() -> None:
    names: dict[str, Any] = {"id": pa.int32(), "valid_to": pa.int32()}
    with pytest.raises(InvalidArgument, match="headrace adds to a history"):
        JoinedHistory(TableJoin(pa.schema(names), pa.schema({"id": pa.int32()}), ("id",), ("id",), (("id", "id"),)))
