"""Tables: rows and histories equal what brute force makes of the whole changelog, however it is cut and mixed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidArgument
from headrace.operators.contract import InputTimes, Operator
from headrace.operators.joins.table import INPUT, Kept, TableRows
from headrace.operators.joins.table_history import known_at, valid_at
from headrace.testing import MemoryTables, OperatorContract
from headrace.views.keyed import State
from tests.operators.changelogs import (
    NOTHING,
    Asked,
    Change,
    add_up,
    arrow,
    latest,
    log_of,
    reach_us,
    readings,
    seconds,
    texts_of,
    times,
    us_of,
)
from tests.views.test_keyed import FileTables

SCHEMA = pa.schema([("id", pa.string()), ("x", pa.int32()), ("at", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
KEY = ("n", "id")
NOW = InputTimes(None, None)


def table(history: Kept, timed: bool = True) -> TableRows:
    return TableRows(SCHEMA, KEY, "at" if timed else None, history)


def random_log(dice: random.Random, count: int = 40, **more: Any) -> list[Change]:
    def values() -> dict[str, Any]:
        at = None if dice.random() < 0.1 else dice.randrange(-5, 12)
        return {"id": dice.choice(["a", "b", None]), "x": dice.randrange(9), "at": at, "n": dice.choice([1, None])}

    return log_of(dice, count, values, ("id", "n", "at"), **more)


def records(batch: Sequence[Change]) -> pa.Table:
    """Event times are in seconds."""
    plain = SCHEMA.set(SCHEMA.get_field_index("at"), pa.field("at", pa.int64()))
    made = arrow(batch, plain)
    return made.set_column(made.column_names.index("at"), "at", times(made["at"].to_pylist()))


# -- the model: of all changes so far, in a few lines ------------------------------------------------------------


def valid_from(change: Change, timed: bool) -> int:
    at = change.values["at"]
    return at if timed and at is not None else change.arrived


def versions(changes: Sequence[Change], timed: bool) -> list[tuple[Any, ...]]:
    """(key, valid from, valid to, version, x) of every version that counts."""
    found = []
    for key in {(each.values["n"], each.values["id"]) for each in changes}:
        mine = [each for each in changes if (each.values["n"], each.values["id"]) == key]
        last = {valid_from(each, timed): each for each in sorted(mine, key=lambda one: one.position)}
        for at, each in last.items():
            if each.op == "upsert":
                to = min((other for other in last if other > at), default=None)
                found.append((key, at, to, each.version, each.values["x"]))
    return sorted(found, key=repr)


def valid_then(found: list[tuple[Any, ...]], at: int) -> list[tuple[Any, ...]]:
    return [each for each in found if each[1] <= at and (each[2] is None or at < each[2])]


def latest_rows(changes: Sequence[Change], history: Kept, timed: bool) -> list[tuple[Any, ...]]:
    if history == "latest":
        found = [(key, each.version, each.values["x"]) for key, each in latest(changes, KEY).items()]
    else:
        found = [(key, *rest) for key, _, to, *rest in versions(changes, timed) if to is None]
    return sorted(found, key=repr)


def stored_rows(state: State) -> list[tuple[Any, ...]]:
    rows = state.scan("rows", NOTHING).to_pylist()
    return sorted((((row["n"], row["id"]), row["version"], row["x"]) for row in rows), key=repr)


def stored_versions(rows: pa.Table) -> list[tuple[Any, ...]]:
    keys = zip(rows["n"].to_pylist(), rows["id"].to_pylist(), strict=True)
    columns = [
        seconds(rows["valid_from"]),
        seconds(rows["valid_to"]),
        rows["version"].to_pylist(),
        rows["x"].to_pylist(),
    ]
    return sorted(zip(keys, *columns, strict=True), key=repr)


# -- the tests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("history", ["latest", "versions", "bitemporal"])
@pytest.mark.parametrize("again", [True, False])
def test_rows_and_history_are_those_of_the_whole_changelog(history: Kept, timed: bool, again: bool) -> None:
    for seed in range(8):
        dice = random.Random(f"{history} {timed} {again} {seed}")
        run(dice, table(history, timed), random_log(dice, moves=seed % 3 > 0), again=again)


@pytest.mark.parametrize("history", ["latest", "versions", "bitemporal"])
def test_the_same_in_a_file(tmp_path: Path, history: Kept) -> None:
    for seed in range(3):
        dice, operator = random.Random(seed), table(history)
        tables = FileTables(tmp_path / str(seed), *operator.tables)
        run(dice, operator, random_log(dice), again=True, tables=tables)
        tables.store.close()


def run(dice: random.Random, operator: TableRows, log: list[Change], *, again: bool, tables: Any = None) -> None:
    """Every batch, with reach as far as it may be unless records come again; after each, what is stored and told."""
    tables = tables or MemoryTables(*operator.tables)
    history, timed = operator.history, operator.valid_from is not None
    read, told = list[Change](), Counter[str]()
    for batch in readings(dice, log, again=again):
        read += batch
        reach = None if again else reach_us(log, read)
        step = operator.step({INPUT: records(batch)}, tables.state(), {INPUT: InputTimes(None, reach)}, changes=True)
        tables.apply(step.writes)
        state = tables.state()
        add_up(told, step.changes)
        assert +told == Counter(texts_of(state.scan("rows", NOTHING), step.changes.column_names[1:]))
        assert stored_rows(state) == latest_rows(read, history, timed)
        if history == "versions":
            rows, then, valid = state.scan("history", NOTHING), versions(read, timed), dice.randrange(-6, 20)
            assert stored_versions(rows) == then
            assert stored_versions(valid_at(rows, us_of(valid))) == valid_then(then, valid)
        if history == "bitemporal":
            rows = state.scan("history", NOTHING)
            for known in (None, *dice.sample(range(-1, log[-1].arrived + 2), 3)):
                then = versions([each for each in read if known is None or each.arrived <= known], timed)
                found = known_at(rows, us_of(known))
                assert stored_versions(found) == then
                valid = dice.randrange(-6, 20)
                assert stored_versions(valid_at(found, us_of(valid))) == valid_then(then, valid)
    if history == "latest" and not again:
        assert tables.state().scan("rows/deletes", NOTHING).num_rows == 0, "nothing older can come any more"


def test_a_delete_is_remembered_until_nothing_older_can_come() -> None:
    """Also one that arrived when the other partition's record did, which is older by its partition."""
    operator = table("latest")
    tables = MemoryTables(*operator.tables)
    for each, reach, remembered in (
        (change(1, 0, 5, 0, "delete"), 5, 1),
        (change(0, 0, 5, 0), 5, 1),
        (change(2, 0, 6, 0, "delete"), 7, 0),
    ):
        times_of = {INPUT: InputTimes(None, us_of(reach))}
        tables.apply(operator.step({INPUT: records([each])}, tables.state(), times_of, changes=False).writes)
        assert tables.state().scan("rows", NOTHING).num_rows == 0
        assert tables.state().scan("rows/deletes", NOTHING).num_rows == remembered


@pytest.mark.parametrize("history", ["versions", "bitemporal"])
@pytest.mark.parametrize("op", ["upsert", "delete"])
def test_a_change_costs_its_neighbours_and_not_its_history(history: Kept, op: str) -> None:
    """Also one of the past, and one of a time that has been corrected often, if changes are read as they arrived."""
    operator = table(history)
    tables = MemoryTables(*operator.tables)
    log = [change(0, number, number, 2 * number) for number in range(300)]
    log += [change(0, 300 + number, 300 + number, 100) for number in range(50)]
    apply(operator, tables, log)
    for at in (700, 599, 598, 101, 100, -3):
        state = Asked(tables.state())
        operator.step({INPUT: records([change(0, 999, 999, at, op)])}, state, {INPUT: NOW}, changes=True)  # type: ignore[arg-type]
        assert state.rows <= 8


def test_a_key_with_many_changes_in_one_batch() -> None:
    """Each is an interval, known as open until the next came."""
    operator = table("bitemporal")
    tables = MemoryTables(*operator.tables)
    apply(operator, tables, [change(0, number, number, 2 * number) for number in range(5_000)])
    rows = tables.state().scan("history", NOTHING)
    assert rows.num_rows == 2 * 5_000 - 1
    assert valid_at(known_at(rows, us_of(70)), us_of(200))["version"].to_pylist() == ["0:70"]
    assert valid_at(known_at(rows, None), us_of(60))["version"].to_pylist() == ["0:30"]


def test_a_correction_is_a_row_of_what_was_known() -> None:
    operator = table("bitemporal")
    tables = MemoryTables(*operator.tables)
    for each in (change(0, 0, 10, 1), change(0, 1, 20, 5), change(0, 2, 30, 1), change(0, 3, 40, 3, "delete")):
        apply(operator, tables, [each])
    rows = tables.state().scan("history", NOTHING)
    names = ("valid_from", "valid_to", "known_from", "known_to")
    assert [*zip(*(seconds(rows[name]) for name in names), rows["version"].to_pylist(), strict=True)] == [
        (1, None, 10, 20, "0:0"),
        (1, 5, 20, 30, "0:0"),
        (1, 5, 30, 40, "0:2"),  # the correction of the first
        (1, 3, 40, None, "0:2"),  # until the delete
        (5, None, 20, None, "0:1"),
    ]
    assert tables.state().scan("rows", NOTHING)["version"].to_pylist() == ["0:1"], "the delete was of an earlier time"


def test_a_table_that_is_its_key_and_one_whose_time_is_called_valid_from() -> None:
    only = TableRows(pa.schema([("id", pa.int64())]), ("id",))
    tables = MemoryTables(*only.tables)
    schema = pa.schema([("id", pa.int64())])
    ops = [("upsert", 1), ("upsert", 2), ("delete", 1)]
    batch = [Change(0, number, number, op, {"id": id}) for number, (op, id) in enumerate(ops)]
    tables.apply(only.step({INPUT: arrow(batch, schema)}, tables.state(), {INPUT: NOW}, changes=False).writes)
    assert tables.state().scan("rows", NOTHING)["id"].to_pylist() == [2]

    schema = pa.schema([("id", pa.int64()), ("valid_from", pa.timestamp("us", tz="UTC"))])
    dated = TableRows(schema, ("id",), "valid_from", "versions")
    tables = MemoryTables(*dated.tables)
    made = arrow([Change(0, 0, 7, "upsert", {"id": 1, "valid_from": None})], schema)
    tables.apply(dated.step({INPUT: made}, tables.state(), {INPUT: NOW}, changes=False).writes)
    assert seconds(tables.state().scan("history", NOTHING)["valid_from"]) == [7], "arrival, where there is no time"
    assert tables.state().scan("rows", NOTHING)["valid_from"].to_pylist() == [None]


@pytest.mark.parametrize("timed", [True, False])
def test_versions_go_when_they_have_not_been_valid_for_as_long_as_they_are_kept(timed: bool) -> None:
    """What is left is what the model has of that time, whatever comes late: also behind deletes that are long over."""
    for seed in range(10):
        dice = random.Random(seed)
        keep = dice.choice([0, 3, 10])
        operator = replace(table("versions", timed), keep_us=keep * 1_000_000)
        tables, log = MemoryTables(*operator.tables), random_log(dice, 60)
        read = list[Change]()
        for batch in readings(dice, log, again=False):
            read += batch
            reach = reach_us(log, read)
            now = {INPUT: InputTimes(None, reach)}
            tables.apply(operator.step({INPUT: records(batch)}, tables.state(), now, changes=False).writes)
            bound = seconds(pa.array([reach], pa.int64()))[0]
            assert bound is not None
            kept = [each for each in versions(read, timed) if each[2] is None or each[2] > bound - keep]
            state = tables.state()
            assert stored_versions(state.scan("history", NOTHING)) == kept
            assert stored_rows(state) == latest_rows(read, "versions", timed)
            assert all(end is None or end > bound - keep for end in seconds(state.scan("deletes", NOTHING)["valid_to"]))


@pytest.mark.parametrize("history", ["latest", "versions", "bitemporal"])
def test_a_table_with_a_version_of_its_own_keeps_both(history: Kept) -> None:
    schema = pa.schema([("id", pa.int64()), ("Version", pa.int64())])
    captured = TableRows(schema, ("id",), None, history)
    tables = MemoryTables(*captured.tables)
    batch = [Change(0, number, number, "upsert", {"id": 1, "Version": 7 + number}) for number in range(2)]
    tables.apply(captured.step({INPUT: arrow(batch, schema)}, tables.state(), {INPUT: NOW}, changes=False).writes)
    kept = {"rows": [(8, "0:1")], "history": [(7, "0:0"), (8, "0:1")]}
    for name in (each.name for each in captured.tables if each.name in kept):
        found = tables.state().scan(name, NOTHING)
        assert {*zip(found["Version"].to_pylist(), found["_version"].to_pylist(), strict=True)} == {*kept[name]}


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (("id", "_version"), {}),
        (("id", "_op"), {}),
        (("id", "valid_to"), {"history": "versions"}),
        (("id", "valid_from"), {"history": "versions"}),
        (("id", "x"), {"history": "all"}),
        (("id", "x"), {"keep_us": 1}),
        (("id", "x"), {"history": "bitemporal", "keep_us": 1}),
        (("id", "x"), {"key": ("y",)}),
        (("id", "x"), {"key": ()}),
        (("id", "x"), {"valid_from": "y"}),
    ],
)
def test_what_a_table_cannot_be_is_refused(names: tuple[str, ...], more: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        TableRows(pa.schema([(name, pa.timestamp("us", tz="UTC")) for name in names]), **{"key": ("id",), **more})


def change(partition: int, offset: int, arrived: int, at: int, op: str = "upsert") -> Change:
    return Change(partition, offset, arrived, op, {"id": "a", "x": None if op == "delete" else 1, "at": at, "n": 1})


def apply(operator: TableRows, tables: MemoryTables, batch: Sequence[Change]) -> None:
    tables.apply(operator.step({INPUT: records(batch)}, tables.state(), {INPUT: NOW}, changes=False).writes)


class Contract(OperatorContract):
    history: Kept

    def operator(self) -> Operator:
        return table(self.history)

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        log = random_log(dice, 30)
        return {INPUT: records([replace(each, offset=each.offset + 100 * number) for each in log])}


class TestLatest(Contract):
    history = "latest"


class TestVersions(Contract):
    history = "versions"


class TestBitemporal(Contract):
    history = "bitemporal"
