"""Two streams joined: against a model of a few lines over all records ever seen, after every step of random histories;
the contract; and what single steps say."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidArgument
from headrace.operators.contract import InputTimes, Operator, Step, Timer
from headrace.operators.joins.interval_join import IntervalJoin
from headrace.schema import parse_ddl
from headrace.testing import OperatorContract
from headrace.testing.memory_tables import MemoryTables
from headrace.testing.operator_contract import EVERYTHING, STEPS
from headrace.views.values import INSTANT
from tests.views.test_keyed import FileTables

T0 = 1_767_225_600_000_000
EVER = 2**62
SIDES = ("left", "right")
HOWS = ("inner", "left", "right", "full")
LEFT = parse_ddl("k string, n int, x int, at timestamp")
RIGHT = parse_ddl("at timestamp, x int, m int, k string")


def join(how: Any = "inner", **more: Any) -> IntervalJoin:
    settings: dict[str, Any] = {"before_us": 2, "after_us": 3, "grace_us": 1, "within_us": 4, **more}
    return IntervalJoin(LEFT, RIGHT, (("k", "k"), ("n", "m")), "at", "at", how=how, **settings)


def moment(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(T0 // 10**6, UTC) + timedelta(microseconds=us)


@dataclass(frozen=True)
class Record:
    """Times are microseconds from T0."""

    id: str
    key: tuple[str | None, int | None]
    x: int
    at: int | None
    progress: int | None = None
    arrived: int = 0

    def accepted(self, op: IntervalJoin) -> bool:
        if self.at is None:
            return False
        return self.progress is None or self.progress <= self.at + op.grace_us + op.within_us

    def late(self, op: IntervalJoin) -> bool:
        assert self.at is not None
        return self.progress is not None and self.progress > self.at + op.grace_us


@dataclass(frozen=True)
class Gone:
    """A record that is taken back."""

    record: Record


def table(side: str, read: list[Any]) -> pa.Table:
    """Of records, and of those that go; in a table of records alone none says that it comes."""
    names = ("k", "n" if side == "left" else "m")
    records: list[Record] = [each.record if isinstance(each, Gone) else each for each in read]
    ops = ["-" if isinstance(each, Gone) else "+" for each in read]
    made = {
        **({"op": pa.array(ops, pa.string())} if "-" in ops else {}),
        "_offset": pa.array(range(len(records)), pa.int64()),
        names[0]: pa.array([each.key[0] for each in records], pa.string()),
        names[1]: pa.array([each.key[1] for each in records], pa.int32()),
        "x": pa.array([each.x for each in records], pa.int32()),
        "at": pa.array([moment(each.at) for each in records], INSTANT),
        "_partition": pa.array([0] * len(records), pa.int32()),
        "_arrived_at": pa.array([moment(each.arrived) for each in records], INSTANT),
        "_progress": pa.array([moment(each.progress) for each in records], INSTANT),
        "/id": pa.array([each.id for each in records], pa.string()),
    }
    return pa.table(made)


# -- the model -----------------------------------------------------------------------------------------


def model(op: IntervalJoin, seen: Mapping[str, list[Record]], frontier: Mapping[str, int | None]) -> dict[str, Any]:
    """The rows that are there, by id."""
    left, right = ([each for each in seen[side] if each.accepted(op)] for side in SIDES)
    pairs = [
        (one, two)
        for one in left
        for two in right
        if None not in one.key and one.key == two.key and one.at - op.before_us <= two.at <= one.at + op.after_us  # type: ignore[operator]
    ]
    rows = [row(op, one, two, max(one.at, two.at)) for one, two in pairs]  # type: ignore[type-var]
    for n, (mine, outer, length) in enumerate(((left, "left", op.after_us), (right, "right", op.before_us))):
        matched = {pair[n].id for pair in pairs}
        past = frontier[SIDES[1 - n]]
        for each in mine if op.how in (outer, "full") else ():
            assert each.at is not None
            due = None in each.key or (past is not None and past > each.at + length + op.grace_us)
            if each.id not in matched and due:
                rows.append(row(op, *((each, None) if n == 0 else (None, each)), each.at + length))
    return {each["/id"]: each for each in rows}


def row(op: IntervalJoin, one: Record | None, two: Record | None, end: int | None) -> dict[str, Any]:
    there = [each for each in (one, two) if each is not None]
    assert end is not None
    return {
        "k": there[0].key[0],
        "n": None if one is None else one.key[1],
        "x": None if one is None else one.x,
        "at": None if one is None else moment(one.at),
        "at_right": None if two is None else moment(two.at),
        "x_right": None if two is None else two.x,
        "m": None if two is None else two.key[1],
        "joined_at": max(moment(each.at) for each in there),  # type: ignore[type-var]
        "/id": f"{'' if one is None else one.id}|{'' if two is None else two.id}",
        "/final_at": moment(end + op.grace_us),
        "_corrections": sum(each.late(op) for each in there),
        "_updated_at": max(moment(each.arrived) for each in there),  # type: ignore[type-var]
        "_progress": max(moment(each.at) for each in there),  # type: ignore[type-var]
    }


# -- running it ----------------------------------------------------------------------------------------


@dataclass
class Run:
    """Steps of a join, one after the other, and what is there after them."""

    op: IntervalJoin
    tables: Any
    there: dict[str, Any] = field(default_factory=dict)
    frontier: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(SIDES))
    reach: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(SIDES))

    def step(
        self,
        left: list[Any] | None = None,
        right: list[Any] | None = None,
        frontier: tuple[int | None, int | None] = (None, None),
        reach: tuple[int | None, int | None] = (None, None),
    ) -> Step:
        """Frontiers and reaches that are not given stay as they are."""
        was, batch = self.times(), {"left": left, "right": right}
        for now, given in ((self.frontier, frontier), (self.reach, reach)):
            now.update({side: us for side, us in zip(SIDES, given, strict=True) if us is not None})
        times = {
            side: replace(now, frontier_before_us=was[side].frontier_us, reach_before_us=was[side].reach_us)
            for side, now in self.times().items()
        }
        records = {side: table(side, some) for side, some in batch.items() if some is not None}
        step = self.op.step(records, self.tables.state(), times, changes=True)
        self.tables.apply(step.writes)
        assert step.changes is not None
        for change in step.changes.to_pylist():
            sign, name = change.pop("op"), change["/id"]
            if sign == "-":
                assert self.there.pop(name) == change, "what goes was there, exactly so"
            else:
                assert name not in self.there, "what comes was not there"
                self.there[name] = change
        return step

    def times(self) -> dict[str, InputTimes]:
        def absolute(us: int | None) -> int | None:
            return None if us is None else T0 + us

        return {side: InputTimes(absolute(self.frontier[side]), absolute(self.reach[side])) for side in SIDES}

    def kept(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.tables.state().scan(name, EVERYTHING).to_pylist()
        return rows

    def ids(self, name: str) -> set[str]:
        return {each["/id"] for each in self.kept(name)}

    @property
    def alone(self) -> set[str]:
        """The ids of records that are there without a match."""
        return {name.strip("|") for name in self.there if name.startswith("|") or name.endswith("|")}


def run(how: Any = "inner", **more: Any) -> Run:
    op = join(how, **more)
    return Run(op, MemoryTables(*op.tables))


# -- random histories ----------------------------------------------------------------------------------


@dataclass
class Topic:
    """Records by partition, each in the order of its offsets, with the progress that a log would give them."""

    partitions: list[list[Any]]

    @classmethod
    def at_random(cls, dice: random.Random, name: str, keys: list[Any], *, retracts: bool = False) -> Topic:
        """`retracts`: some records are taken back, and some of these come again, with another key and time."""
        made: list[list[Any]] = [[] for _ in range(dice.choice([1, 1, 2, 3]))]
        there: list[list[Record]] = [[] for _ in made]
        progress: dict[int, int | None] = dict.fromkeys(range(len(made)))
        disorder, clock = dice.choice([0, 1, 3, 12]), 0
        for number in range(dice.randrange(10, 45)):
            clock += dice.choice([0, 0, 1, 1, 2, 5])
            part = dice.randrange(len(made)) if clock % 40 < 25 else 0  # the others sleep for a while
            at = None if dice.random() < 0.04 else clock - dice.randint(0, disorder) + dice.choice([0, 0, 0, 2])
            id = f"{name}/{part}/{len(made[part]):016d}"
            before = None if dice.random() < 0.05 else progress[part]  # what never is late may have none
            new = Record(id, dice.choice(keys), number, at, before, clock)
            if retracts and there[part] and dice.random() < 0.4:
                old = there[part].pop(-1 - min(dice.randrange(4), len(there[part]) - 1))
                made[part].append(Gone(old))
                if dice.random() < 0.4:
                    continue
                new = replace(new, id=old.id)
            made[part].append(new)
            there[part].append(new)
            if at is not None:
                progress[part] = max(progress[part] or -(2**60), min(at, clock))
        return cls(made)

    def reach(self, read: list[int]) -> int | None:
        """The least progress of what comes behind these offsets."""
        least = [self._progress(part[:stop]) for part, stop in zip(self.partitions, read, strict=True)]
        return None if None in least else min(us for us in least if us is not None)

    @staticmethod
    def _progress(records: list[Any]) -> int | None:
        come = [each for each in records if isinstance(each, Record)]
        return max((min(each.at, each.arrived) for each in come if each.at is not None), default=None)


def legal(topic: Topic, read: list[int], us: int | None) -> int | None:
    """What is still to come has a progress or a time that is not below reach: '-' as well as '+'."""
    if us is None:
        return None
    later = [each for part, stop in zip(topic.partitions, read, strict=True) for each in part[stop:]]
    gone = [each.record for each in later if isinstance(each, Gone)]
    untold = [each for each in later if isinstance(each, Record) and each.progress is None]
    return min([us, *(max(each.at, each.progress or each.at) for each in gone + untold if each.at is not None)])


def check_history(dice: random.Random, op: IntervalJoin, tables: Any) -> None:
    keys = [("a", 1), ("a", 2), ("b", 1), ("b", 1), (None, 1), ("a", None)][: dice.choice([1, 4, 6])]
    of = dice.choice([{"t"}, {"u"}, {"t", "u"}]) if op.retracts else set()
    topics = {"left": Topic.at_random(dice, "t", keys, retracts="t" in of)}
    both = dice.random() < 0.3
    topics["right"] = topics["left"] if both else Topic.at_random(dice, "u", keys, retracts="u" in of)
    read = {side: [0] * len(topics[side].partitions) for side in SIDES}
    seen: dict[str, list[Record]] = {side: [] for side in SIDES}
    now, ledger, dropped = Run(op, tables), dict.fromkeys(("on_time", "corrected", "dropped", "untimed"), 0), set()
    too_late: set[Any] = set()
    largest = dice.choice([1, 4, 20])
    while any(stop < len(part) for s in SIDES for stop, part in zip(read[s], topics[s].partitions, strict=True)):
        batch: dict[str, list[Any]] = {side: [] for side in SIDES}
        for side in SIDES if dice.random() < 0.9 else ():  # else time alone moves
            for part, records in enumerate(topics[side].partitions):
                stop = read[side][part] + dice.choice([0, dice.randint(0, largest)])
                batch[side] += records[read[side][part] : stop]
                read[side][part] = min(stop, len(records))
            if not op.retracts:  # else a record goes after it came
                dice.shuffle(batch[side])
            before = list(seen[side])
            for each in batch[side]:
                if isinstance(each, Gone):
                    seen[side] = [other for other in seen[side] if other is not each.record]
                else:
                    seen[side].append(each)
            come = [each for each in seen[side] if not any(each is other for other in before)]
            too_late |= {(side, each.id) for each in come if each.at is not None and not each.accepted(op)}
        reach = {side: legal(topics[side], read[side], topics[side].reach(read[side])) for side in SIDES}
        for side in SIDES:
            far = max((us for us in (now.frontier[side], reach[side]) if us is not None), default=None)
            silence = dice.choice([0, 0, 0, 3, 30])
            now.frontier[side] = (far or 0) + silence if silence else far
        step = now.step(*(batch[side] for side in SIDES), reach=tuple(reach.values()))  # type: ignore[arg-type]
        for each in step.ledger:
            ledger = {name: count + getattr(each, name) for name, count in ledger.items()}
        dropped |= {(each["/input"], each["/id"]) for each in (step.dropped or pa.table({})).to_pylist()}
        assert now.there == model(op, seen, now.frontier)
        for side, other, end in (("left", "right", op.after_us), ("right", "left", op.before_us)):
            longest, past = end + op.grace_us + op.within_us, now.reach[other]
            assert now.ids(side) == {
                each.id
                for each in seen[side]
                if each.accepted(op) and None not in each.key and (past is None or past <= each.at + longest)  # type: ignore[operator]
            }, "those that one still to come may meet, and no others"
    assert ledger == verdicts(op, seen)
    assert dropped == too_late
    now.step(frontier=(EVER - T0, EVER - T0))
    assert now.there == model(op, seen, dict.fromkeys(SIDES, EVER))
    now.step(reach=(EVER - T0, EVER - T0))
    assert {name: now.kept(name) for name in (spec.name for spec in op.tables)} == {s.name: [] for s in op.tables}


def verdicts(op: IntervalJoin, seen: Mapping[str, list[Record]]) -> dict[str, int]:
    records = [each for side in SIDES for each in seen[side]]
    timed = [each for each in records if each.at is not None]
    accepted = [each for each in timed if each.accepted(op)]
    corrected = sum(each.late(op) for each in accepted)
    return {
        "on_time": len(accepted) - corrected,
        "corrected": corrected,
        "dropped": len(timed) - len(accepted),
        "untimed": len(records) - len(timed),
    }


def at_random(dice: random.Random, how: str, **more: Any) -> IntervalJoin:
    bounds = {name: dice.choice([0, 0, 1, 2, 7]) for name in ("before_us", "after_us", "grace_us", "within_us")}
    return join(how, **bounds, **more)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 100))])
def test_the_rows_are_those_of_a_join_over_all_records_after_every_step(how: str, seed: int) -> None:
    dice = random.Random(f"{how} {seed}")
    op = at_random(dice, how)
    check_history(dice, op, MemoryTables(*op.tables))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 100))])
def test_records_that_are_taken_back_leave_nothing(how: str, seed: int) -> None:
    dice = random.Random(f"gone {how} {seed}")
    op = at_random(dice, how, retracts=True)
    check_history(dice, op, MemoryTables(*op.tables))


@pytest.mark.parametrize("how", HOWS)
def test_the_same_in_a_file(how: str, tmp_path: Path) -> None:
    for seed in range(4):
        dice = random.Random(f"file {how} {seed}")
        op = at_random(dice, how, retracts=seed % 2 == 1)
        tables = FileTables(tmp_path / str(seed), *op.tables)
        try:
            check_history(dice, op, tables)
        finally:
            tables.store.close()


# -- the contract --------------------------------------------------------------------------------------


class TestInner(OperatorContract):
    how = "inner"

    def operator(self) -> Operator:
        return join(self.how, within_us=0)

    def batch(self, dice: random.Random, number: int) -> dict[str, pa.Table]:
        keys = [("a", 1), ("b", 1), ("b", 2), (None, 1)]
        return {
            side: table(
                side,
                [
                    Record(f"{side}/{number}/{n}", dice.choice(keys), n, 10 * number + dice.randrange(12), arrived=n)
                    for n in range(12)
                ],
            )
            for side in SIDES
        }

    def times(self, number: int) -> InputTimes:
        """What comes is not earlier than reach; the frontier is where reach is, as nobody is silent."""
        return InputTimes(T0 + 10 * number, T0 + 10 * number)


class TestFull(TestInner):
    how = "full"

    def test_only_reach_lets_state_go(self, batches: list[Any]) -> None:
        """A frontier publishes: what was to be published then is no longer due, and each record says so."""
        tables = self._run(batches)
        before, at = self._all(tables), self.times(STEPS - 1)
        late = dict.fromkeys(SIDES, InputTimes(2**62, at.reach_us, at.frontier_us, at.reach_us))
        tables.apply(self.operator().step({}, tables.state(), late, changes=True).writes)
        after = self._all(tables)
        assert before["due/left"] and before["due/right"] and not after["due/left"] and not after["due/right"]
        for side in SIDES:
            assert after[side] == [{**each, "/match": each["/match"] or -1} for each in before[side]]


# -- single steps --------------------------------------------------------------------------------------

A = ("a", 1)


def one(id: str, at: int | None, progress: int | None = None, key: Any = A) -> Record:
    return Record(id, key, 0, at, progress, 0)


def test_bounds_are_part_of_the_interval_and_may_differ() -> None:
    """before 2, after 3: of a left record at 10 the right one is in [8, 13]."""
    now = run()
    now.step([one("l", 10)], [one(f"r{at}", at) for at in range(5, 17)])
    assert sorted(now.there) == ["l|r10", "l|r11", "l|r12", "l|r13", "l|r8", "l|r9"]
    now = run(before_us=0, after_us=0)
    now.step([one("l", 10)])
    now.step(None, [one(f"r{at}", at) for at in range(9, 12)])
    assert sorted(now.there) == ["l|r10"]


def test_a_record_without_a_match_is_a_row_when_the_other_frontier_is_past_its_interval_and_grace() -> None:
    """The left one's interval ends at 10 + 3, and at 14 with grace; the right one's at 22, and 23."""
    now = run("full")
    now.step([one("l", 10)], [one("r", 20)])
    assert [each["/due"] for each in now.kept("due/left") + now.kept("due/right")] == [moment(14), moment(23)]
    assert now.op.timers == (Timer("due/left", "right"), Timer("due/right", "left"))
    now.step(frontier=(99, 14))
    assert now.alone == {"r"}  # 99 > 23; 14 is not past 14
    now.step(frontier=(None, 15))
    assert now.alone == {"l", "r"}
    assert not now.kept("due/left") and not now.kept("due/right")
    assert [(each["/match"], each["/id"]) for each in now.kept("left")] == [(-1, "l")]


def test_a_match_that_comes_later_takes_the_row_without_one_back() -> None:
    now = run("full")
    now.step([one("l", 10)], frontier=(30, 30))  # the left partition and the right one have been silent
    assert now.alone == {"l"}
    step = now.step(None, [one("r", 12)])  # a woken partition
    assert [(each["op"], each["/id"]) for each in step.changes.to_pylist()] == [("-", "l|"), ("+", "l|r")]  # type: ignore[union-attr]
    step = now.step(None, [one("s", 12), one("t", 14)])
    assert [(each["op"], each["/id"]) for each in step.changes.to_pylist()] == [("+", "l|s"), ("+", "|t")]  # type: ignore[union-attr]


def test_a_straggler_finds_its_match_or_none_in_the_step_it_comes_in() -> None:
    now = run("left")
    now.step([], [one("r", 10)], frontier=(30, 30))
    now.step([one("l", 10, 15), one("m", 20, 22), one("n", 10, 16)])  # 15 ≤ 10 + 1 + 4; 22 ≤ 20 + 1 + 4; 16 is not
    assert {name: each["_corrections"] for name, each in now.there.items()} == {"l|r": 1, "m|": 1}


def test_a_record_in_whose_step_the_frontier_passes_and_the_match_comes_was_never_alone() -> None:
    now = run("left")
    now.step([one("l", 10)])
    step = now.step(None, [one("r", 12)], frontier=(99, 99))
    assert [(each["op"], each["/id"]) for each in step.changes.to_pylist()] == [("+", "l|r")]  # type: ignore[union-attr]


def test_a_null_in_a_key_meets_nothing_and_is_a_row_at_once_on_an_outer_side() -> None:
    for how, alone in (("inner", set()), ("left", {"l"}), ("right", {"r"}), ("full", {"l", "r"})):
        now = run(how)
        step = now.step([one("l", 10, key=("a", None))], [one("r", 10, key=("a", None))])
        assert now.alone == alone and len(now.there) == len(alone)
        assert not now.kept("left") and not now.kept("right"), "nothing of it is kept"
        assert step.ledger[0].on_time == 2


def test_a_self_join_has_the_pair_of_a_record_with_itself() -> None:
    now = run(before_us=1, after_us=0)
    records = [one("p", 10), one("q", 11)]
    now.step(records, records[:1])
    now.step(None, records[1:])
    assert sorted(now.there) == ["p|p", "q|p", "q|q"]


def test_a_record_that_can_meet_nothing_any_more_is_not_written() -> None:
    """R > t + end + grace + within: 10 + 3 + 1 + 4 on the left, 10 + 2 + 1 + 4 on the right."""
    now = run("full")
    now.step([one("l", 10, 10)], [one("r", 10, 10), one("s", 13, 13)], reach=(18, 19))
    assert (now.ids("left"), now.ids("right")) == (set(), {"s"})
    assert set(now.there) == {"l|r", "l|s"}, "they meet in this step, though"
    now.step(reach=(20, None))
    assert now.ids("right") == {"s"}  # 20 is not past 13 + 7
    now.step(reach=(21, None))
    assert now.ids("right") == set()


def test_frontiers_may_be_at_the_end_of_time_for_a_while() -> None:
    """As `drain(close=True)` says, and the flow then goes on: what comes later waits as before."""
    now = run("left")
    now.step([one("l", 10)])
    now.step(frontier=(EVER - T0, EVER - T0))
    assert now.alone == {"l"}
    now.step([one("m", 20)], frontier=(20, 20))
    assert now.alone == {"l"}
    now.step(None, [one("r", 12)])
    assert set(now.there) == {"l|r"}
    now.step(frontier=(25, 25))
    assert now.alone == {"m"}


def test_what_was_dropped_is_told_with_its_columns_and_its_input() -> None:
    now = run("full")
    step = now.step([one("l", 10, 16), one("u", None)], [one("r", 10, 17, ("b", 7)), one("s", 10, 5)])
    assert step.dropped is not None
    assert step.dropped.to_pylist() == [
        {**dict.fromkeys(("x_right", "m", "at_right")), "k": "a", "n": 1, "x": 0, "at": moment(10)}
        | {"/input": "left", "/id": "l"},
        {**dict.fromkeys(("n", "x", "at")), "k": "b", "m": 7, "x_right": 0, "at_right": moment(10)}
        | {"/input": "right", "/id": "r"},
    ]
    row = step.ledger[0]
    assert (row.on_time, row.corrected, row.dropped, row.untimed) == (1, 0, 2, 1)
    assert now.step([], []).dropped is None and now.step().ledger == ()


def test_how_far_the_output_is() -> None:
    """before 2, after 3, grace 1, within 4."""

    def ahead(how: str, left: int | None, right: int | None) -> tuple[int | None, int | None]:
        times = {"left": InputTimes(left, left), "right": InputTimes(right, right)}
        found = join(how).ahead(times)
        return found.frontier_us, found.reach_us

    assert [ahead(how, 100, 100) for how in HOWS] == [(99, 95), (96, 92), (97, 93), (96, 92)]
    assert [ahead(how, 50, 100) for how in HOWS] == [(49, 45), (49, 45), (47, 43), (47, 43)]
    assert [ahead(how, 100, 50) for how in HOWS] == [(49, 45), (46, 42), (49, 45), (46, 42)]
    assert ahead("left", None, 5) == ahead("left", 5, None) == (None, None)
    assert ahead("left", -(2**60), 5) == (None, None), "before the first year"


def test_a_row_is_final_when_both_frontiers_are_past_it() -> None:
    now = run("left")
    now.step([one("l", 10), one("m", 30)], [one("r", 12)], frontier=(40, 50))
    final_at = {name: each["/final_at"] for name, each in now.there.items()}
    assert final_at == {"l|r": moment(13), "m|": moment(34)}
    assert now.op.final_us(now.times()) == T0 + 40
    assert now.op.final_us({"left": InputTimes(None, None), "right": InputTimes(5, 5)}) is None


# -- columns -------------------------------------------------------------------------------------------


def columns(left: str, right: str, *on: tuple[str, str], **more: Any) -> list[str]:
    schemas = parse_ddl(left), parse_ddl(right)
    op = IntervalJoin(*schemas, on, "at", "at", 0, 0, "full", 0, 0, **more)
    assert op.output.columns is not None
    assert (op.output.key, op.output.time, op.output.final_at) == (("/id",), "joined_at", "/final_at")
    return [f"{each.name} {each.type}" for each in op.output.columns]


def test_columns_are_the_lefts_then_the_rights() -> None:
    assert columns("k string, at timestamp, x int", "x double, k string, at timestamp", ("k", "k")) == [
        "k string",
        "at timestamp",
        "x int",
        "x_right double",
        "at_right timestamp",
        "joined_at timestamp",
    ]
    in_upper_case = columns("k string, at timestamp, Name int", "k string, name int, at timestamp", ("k", "k"))
    assert in_upper_case[2:4] == ["Name int", "name_right int"]  # to Spark and to SQL they are the same name
    assert columns("k string, at timestamp", "id string, k int, at timestamp", ("k", "id"), suffix="2") == [
        "k string",
        "at timestamp",
        "id string",
        "k2 int",
        "at2 timestamp",
        "joined_at timestamp",
    ]


def test_records_may_meet_by_their_time() -> None:
    schema = parse_ddl("at timestamp, x int")
    op = IntervalJoin(schema, schema, (("at", "at"),), "at", "at", 5, 5, "full", 0, 0)
    now = Run(op, MemoryTables(*op.tables))
    now.step([one("l", 10)])
    now.step(None, [one("r", 10), one("s", 11)], frontier=(99, 99))
    assert {name: (each["at"], each["x_right"]) for name, each in now.there.items()} == {
        "l|r": (moment(10), 0),
        "|s": (moment(11), 0),
    }


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"how": "outer"}, "how='outer': must be one of"),
        ({"before_us": -1}, "before=-1: must be between 0 and 1000 years"),
        ({"within_us": 2**62}, "within="),
        ({"on": ()}, "on=.*each once"),
        ({"on": (("k", "k"), ("k", "x"))}, "on=.*each once"),
        ({"on": (("k", "id"),)}, "on='id': the right input has no such column: at, x, m, k"),
        ({"on": (("k", "x"),)}, "are of types string and int: cast one of them in a transform"),
        ({"left_time": "x"}, "time='x': must be a column of its input, and a timestamp"),
        ({"right": parse_ddl("k string, m int, x int, x_right int, at timestamp")}, "'x_right' is taken, too"),
        ({"left": parse_ddl("k string, n int, at timestamp, at_right int")}, "'at_right' is taken, too"),
        ({"right": parse_ddl("k string, m int, at timestamp, joined_at int")}, "joined_at"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        replace(join(), **changed)
