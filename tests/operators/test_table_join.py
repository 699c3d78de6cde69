"""Tables joined with tables: after every step what was passed on adds up to the join of both changelogs so far, made by
brute force, however they are cut and mixed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidArgument
from headrace.operators.contract import InputTimes, Operator
from headrace.operators.joins.table_join import How, TableJoin
from headrace.testing import MemoryTables, OperatorContract
from headrace.testing.view_contract import INSTANT
from headrace.views.keyed import State
from tests.operators.changelogs import NOTHING, Asked, Change, add_up, arrow, latest, log_of, reach_us, readings, times
from tests.views.test_keyed import FileTables

NOW = InputTimes(None, None)
KINDS: tuple[How, ...] = ("inner", "left", "right", "full")
TEXT, INT, LONG = pa.string(), pa.int32(), pa.int64()
FEW: dict[pa.DataType, list[Any]] = {
    TEXT: ["a", 'q"|', "", None],
    INT: [1, 2, 3, 2**31 - 1, None],
    LONG: [1, 2, 3, 2**31 - 1, 2**40, None],
    INSTANT: times([0, 5, 9, 20, None]).to_pylist(),
}
"""What columns have: few values, so that many rows meet."""


@dataclass(frozen=True)
class Case:
    """Two tables, their keys, what they are joined on, and what readers see."""

    left: dict[str, pa.DataType]
    right: dict[str, pa.DataType]
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    on: tuple[tuple[str, str], ...]
    seen: tuple[str, ...]
    valid: tuple[str | None, str | None] = (None, None)

    def join(self, how: How) -> TableJoin:
        schemas = pa.schema(self.left), pa.schema(self.right)
        return TableJoin(*schemas, *self.keys, self.on, how, valid_from=self.valid)

    def schema(self, side: int) -> pa.Schema:
        return pa.schema((self.left, self.right)[side])

    def log(self, side: int, dice: random.Random, count: int, **more: Any) -> list[Change]:
        columns, valid = (self.left, self.right)[side], self.valid[side]
        kept = (*self.keys[side], *(() if valid is None else (valid,)))
        return log_of(dice, count, lambda: {n: dice.choice(FEW[t]) for n, t in columns.items()}, kept, **more)

    def rows(self, how: How, left: Sequence[Change], right: Sequence[Change]) -> Counter[str]:
        """The model."""
        lefts, rights = (latest(*each) for each in zip((left, right), self.keys, self.valid, strict=True))
        pairs = [(a, b) for a in lefts for b in rights if self.meet(lefts[a].values, rights[b].values)]
        lone = [(a, None) for a in lefts if a not in {pair[0] for pair in pairs}] if how in ("left", "full") else []
        alone = [(None, b) for b in rights if b not in {pair[1] for pair in pairs}] if how in ("right", "full") else []
        return Counter(repr(self.row(lefts.get(a), rights.get(b), a, b)) for a, b in [*pairs, *lone, *alone])

    def meet(self, left: dict[str, Any], right: dict[str, Any]) -> bool:
        return all(left[one] is not None and left[one] == right[other] for one, other in self.on)

    def row(self, left: Change | None, right: Change | None, left_key: Any, right_key: Any) -> list[Any]:
        mine = dict.fromkeys(self.left) if left is None else dict(left.values)
        theirs = dict.fromkeys(self.right) if right is None else dict(right.values)
        same = [one for one, other in self.on if one == other]
        mine |= {name: theirs[name] if left is None else mine[name] for name in same}
        values = [*mine.values(), *(value for name, value in theirs.items() if name not in same)]
        updated = max(each.arrived for each in (left, right) if each is not None)
        return [*values, f"{text(left_key)}|{text(right_key)}", None, 0, times([updated]).to_pylist()[0], None]


def text(key: tuple[Any, ...] | None) -> str:
    return "" if key is None else json.dumps(list(key), separators=(",", ":"))


CASES = {
    "primary key": Case(
        {"id": INT, "x": TEXT}, {"id": INT, "x": INT}, (("id",), ("id",)), (("id", "id"),), ("id", "x", "x_right")
    ),
    "foreign key": Case(
        {"id": TEXT, "author": INT, "x": INT},
        {"name": TEXT, "id": INT},
        (("id",), ("id",)),
        (("author", "id"),),
        ("id", "author", "x", "name", "id_right"),
    ),
    "foreign key of another type": Case(
        {"id": INT, "author": LONG},
        {"id": INT, "y": TEXT},
        (("id",), ("id",)),
        (("author", "id"),),
        ("id", "author", "id_right", "y"),
    ),
    "a column of the same name and another type": Case(
        {"id": INT, "k": INT}, {"k": LONG, "y": TEXT}, (("id",), ("k",)), (("k", "k"),), ("id", "k", "y")
    ),
    "any columns": Case(
        {"id": INT, "tag": TEXT},
        {"number": INT, "tag": TEXT, "y": INT},
        (("id",), ("number",)),
        (("tag", "tag"),),
        ("id", "tag", "number", "y"),
    ),
    "two columns": Case(
        {"id": INT, "a": TEXT, "b": INT},
        {"b": INT, "c": TEXT, "y": INT},
        (("id",), ("y", "b")),
        (("a", "c"), ("b", "b")),
        ("id", "a", "b", "c", "y"),
    ),
    "parts of keys": Case(
        {"x": INT, "who": TEXT, "whom": INT},
        {"id": INT, "at": TEXT},
        (("who", "whom"), ("at", "id")),
        (("whom", "id"),),
        ("x", "who", "whom", "id", "at"),
    ),
    "one column twice": Case(
        {"id": INT, "a": INT, "b": INT},
        {"k": INT, "y": TEXT},
        (("id",), ("k",)),
        (("a", "k"), ("b", "k")),
        ("id", "a", "b", "k", "y"),
    ),
    "valid times": Case(
        {"id": INT, "author": INT, "since": INSTANT},
        {"id": INT, "at": INSTANT, "name": TEXT},
        (("id",), ("id",)),
        (("author", "id"),),
        ("id", "author", "since", "id_right", "at", "name"),
        ("since", "at"),
    ),
}


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seeds", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_what_is_passed_on_adds_up_to_the_join(seeds: int, name: str, how: How) -> None:
    for seed in range(seeds):
        run(CASES[name], how, random.Random(f"{name} {how} {seed}"), again=seed % 2 == 0)


@pytest.mark.parametrize("name", CASES)
def test_the_same_in_a_file(tmp_path: Path, name: str) -> None:
    tables = FileTables(tmp_path, *CASES[name].join("full").tables)
    run(CASES[name], "full", random.Random(name), again=True, tables=tables)
    tables.store.close()


def run(case: Case, how: How, dice: random.Random, *, again: bool, tables: Any = None) -> None:
    operator = case.join(how)
    assert tuple(operator.schema.names) == case.seen
    tables, told = tables or MemoryTables(*operator.tables), Counter[str]()
    logs = [case.log(side, dice, dice.choice([5, 30]), moves=dice.random() < 0.5) for side in (0, 1)]
    coming = [list(readings(dice, log, again=again)) for log in logs]
    read: list[list[Change]] = [[], []]
    while any(coming):
        batch, times_of = {}, {}
        for side, id in enumerate(("left", "right")):
            if coming[side] and dice.random() < 0.6:
                batch[id] = arrow(piece := coming[side].pop(0), case.schema(side))
                read[side] += piece
            times_of[id] = NOW if again else InputTimes(None, reach_us(logs[side], read[side]))
        step = operator.step(batch, tables.state(), times_of, changes=True)
        tables.apply(step.writes)
        add_up(told, step.changes)
        assert +told == case.rows(how, *read)
        check_indexes(operator, tables.state())
    if not again:
        left = {spec.name: tables.state().scan(spec.name, NOTHING).num_rows for spec in operator.tables}
        deletes = left["left/deletes"], left["right/deletes"]
        if case.valid == (None, None):
            assert deletes == (0, 0), "nothing older can come any more"
        else:
            for number, some, key, valid in zip(deletes, read, case.keys, case.valid, strict=True):
                keys = {tuple(each.values[name] for name in key) for each in some}
                assert number == len(keys - latest(some, key, valid).keys()), "an older one can always come"


def check_indexes(operator: TableJoin, state: State) -> None:
    """Each has an entry for each row that can be met, and no other."""
    for side in operator.sides:
        rows = state.scan(side.name, NOTHING)
        if side.index is not None:
            values = zip(*(rows[name].to_pylist() for name in side.on), strict=True)
            keys = zip(*(rows[name].to_pylist() for name in side.latest.rows.key_names), strict=True)
            wanted = [(*value, *key) for value, key in zip(values, keys, strict=True) if None not in value]
            found = state.scan(side.index.name, NOTHING).to_pylist()
            assert sorted(map(repr, wanted)) == sorted(repr(tuple(row.values())) for row in found)


# -- what it costs -----------------------------------------------------------------------------------------------


def change(offset: int, **values: Any) -> Change:
    return Change(0, offset, offset, "upsert", values)


@pytest.mark.parametrize("how", KINDS)
def test_a_row_that_changes_reads_what_it_is_joined_with_and_no_more(how: How) -> None:
    case = CASES["any columns"]
    operator, tables = case.join(how), MemoryTables(*case.join(how).tables)
    lefts = [change(number, id=number, tag="a") for number in range(3)]
    rights = [change(number, number=number, tag="a", y=1) for number in range(500)]
    batch = {"left": arrow(lefts, case.schema(0)), "right": arrow(rights, case.schema(1))}
    tables.apply(operator.step(batch, tables.state(), {"left": NOW, "right": NOW}, changes=True).writes)
    state = Asked(tables.state())
    one = {"right": arrow([change(600, number=7, tag="a", y=2)], case.schema(1))}
    step = operator.step(one, state, {"left": NOW, "right": NOW}, changes=True)  # type: ignore[arg-type]
    assert step.changes is not None and step.changes["op"].to_pylist() == ["-", "+"] * 3
    assert state.rows <= 12


def test_a_foreign_key_that_moves_and_the_row_that_it_moves_to_are_one_step() -> None:
    case = CASES["foreign key"]
    operator, tables = case.join("left"), MemoryTables(*case.join("left").tables)
    told = []
    for left, right in (
        ([change(0, id="p", author=1, x=0)], [change(0, id=1, name="ann")]),
        ([change(1, id="p", author=2, x=0)], [change(1, id=2, name="bob"), change(2, id=1, name="eve")]),
    ):
        batch = {"left": arrow(left, case.schema(0)), "right": arrow(right, case.schema(1))}
        step = operator.step(batch, tables.state(), {"left": NOW, "right": NOW}, changes=True)
        tables.apply(step.writes)
        assert step.changes is not None
        told.append([(row["op"], row["name"], row["/id"]) for row in step.changes.to_pylist()])
    assert told == [[("+", "ann", '["p"]|[1]')], [("-", "ann", '["p"]|[1]'), ("+", "bob", '["p"]|[2]')]]


def test_a_row_that_stays_the_same_is_not_told() -> None:
    """A left row that is put again as it was: the joined row's last change is the right's, later one."""
    case = CASES["primary key"]
    operator, tables = case.join("inner"), MemoryTables(*case.join("inner").tables)
    for offset, wanted in ((0, ["+"]), (1, [])):
        batch = {"left": arrow([change(offset, id=1, x="a")], case.schema(0))}
        batch |= {} if offset else {"right": arrow([change(9, id=1, x=1)], case.schema(1))}
        step = operator.step(batch, tables.state(), {"left": NOW, "right": NOW}, changes=True)
        tables.apply(step.writes)
        assert step.changes is not None and step.changes["op"].to_pylist() == wanted


@pytest.mark.parametrize(
    ("left", "right", "on", "more"),
    [
        ({"id": INT, "op": INT}, {"id": INT}, (("id", "id"),), {}),
        ({"id": INT, "_updated_at": INT}, {"id": INT}, (("id", "id"),), {}),
        ({"id": INT, "x": INT, "x_right": INT}, {"id": INT, "x": INT}, (("id", "id"),), {}),
        ({"id": INT}, {"id": TEXT}, (("id", "id"),), {}),
        ({"id": INT}, {"id": INT}, (("id", "number"),), {}),
        ({"id": INT}, {"id": INT}, (), {}),
        ({"id": INT}, {"id": INT}, (("id", "id"),), {"how": "outer"}),
    ],
)
def test_what_cannot_be_joined_is_refused(left: Any, right: Any, on: Any, more: Any) -> None:
    with pytest.raises(InvalidArgument):
        TableJoin(pa.schema(left), pa.schema(right), ("id",), ("id",), on, **more)


# -- what every operator promises ----------------------------------------------------------------------------------


class Contract(OperatorContract):
    case: Case
    how: How = "full"

    def operator(self) -> Operator:
        return self.case.join(self.how)

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        made = {}
        for side, id in enumerate(("left", "right")):
            log = self.case.log(side, dice, 20)
            later = [replace(each, offset=each.offset + 100 * number) for each in log]
            made[id] = arrow(later, self.case.schema(side))
        return made

    def test_any_cut_gives_the_same(self, batches: Any) -> None:
        """What was passed on in all: rows can be taken back, so what comes and goes on the way depends on the cut."""
        whole, cut, told = self._tables(), self._tables(), (Counter[str](), Counter[str]())
        for number, batch in enumerate(batches):
            add_up(told[0], self._applied(whole, batch, number))
            for row in range(0, 20, 7):
                piece = {name: table.slice(row, 7) for name, table in batch.items()}
                add_up(told[1], self._applied(cut, piece, number))
        assert +told[0] == +told[1]

    def _applied(self, tables: MemoryTables, batch: Any, number: int) -> pa.Table | None:
        step = self._make_step(self.operator(), batch, tables.state(), number)
        tables.apply(step.writes)
        return step.changes


class TestPrimaryKey(Contract):
    case = CASES["primary key"]


class TestForeignKey(Contract):
    case = CASES["foreign key"]


class TestPartsOfKeys(Contract):
    case = CASES["parts of keys"]


def test_rows_are_divided_only_where_none_can_move() -> None:
    by = {name: [each.by for each in case.join("inner").inputs] for name, case in CASES.items()}
    assert by["primary key"] == [("id",), ("id",)]
    assert by["parts of keys"] == [("whom",), ("id",)]
    assert by["foreign key"] == by["any columns"] == [(), ()]
