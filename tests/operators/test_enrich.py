"""Enrichment: the contract, and a model of a few lines over all records, for any cut and any order of reading."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.durations import INSTANT_MAX_US
from headrace.operators.contract import InputTimes, Operator, Step
from headrace.operators.joins import newest
from headrace.operators.joins.enrich import FACTS, TABLE, Enrich
from headrace.operators.joins.held import HELD, held_rows, least_progress_us
from headrace.schema import parse_ddl
from headrace.testing import MemoryTables, OperatorContract
from headrace.testing.view_contract import INSTANT, SECOND, T0
from headrace.views.keyed import State, Writes
from tests.views.test_keyed import FileTables

ORDERS = parse_ddl("user string, region int, amount double, at timestamp")
USERS = parse_ddl("id string, area bigint, name string, since timestamp")
SETTINGS = Enrich(
    facts=ORDERS,
    table=USERS,
    on=(("user", "id"), ("region", "area")),
    time="at",
    valid_from="since",
    columns=(("name", "user_name"), ("id", "user_id")),
    receipt="users_version",
    grace_us=2 * SECOND,
    within_us=3 * SECOND,
    missing="null",
)
Times = tuple[int | None, int | None]
"""Frontier and reach of an input."""
EVERYTHING = pa.table({"x": [1]}).select([])
FOREVER = 10**9
"""Seconds, later than all else here."""


@dataclass(frozen=True)
class Fact:
    """An order. Times are seconds; so are all here."""

    key: tuple[str | None, int | None]
    at: int | None
    arrived: int
    offset: int
    partition: int = 0
    progress: int | None = None

    @property
    def id(self) -> str:
        return f"orders/{self.partition}/{self.offset:016}"


@dataclass(frozen=True)
class Change:
    """Of a user; without a name: a delete. `loaded`: no change, but the mark of a table that has been loaded."""

    key: tuple[str | None, int | None]
    name: str | None
    since: int | None
    arrived: int
    offset: int
    partition: int = 0
    loaded: bool = False

    @property
    def op(self) -> str:
        return "loaded" if self.loaded else "delete" if self.name is None else "upsert"


def times(seconds: Sequence[int | None]) -> pa.Array:
    return pa.array([None if each is None else T0 + each * SECOND for each in seconds], pa.int64()).cast(INSTANT)


@dataclass(frozen=True)
class Gone:
    """A fact that is taken back."""

    fact: Fact


def facts(read: Sequence[Fact | Gone]) -> pa.Table:
    """In a table of facts alone none says that it comes."""
    some = [each.fact if isinstance(each, Gone) else each for each in read]
    ops = pa.array(["-" if isinstance(each, Gone) else "+" for each in read], pa.string())
    columns = {
        **({"op": ops} if "-" in ops.to_pylist() else {}),
        "user": pa.array([each.key[0] for each in some], pa.string()),
        "region": pa.array([each.key[1] for each in some], pa.int32()),
        "amount": pa.array([each.offset / 4 for each in some], pa.float64()),
        "at": times([each.at for each in some]),
        "_partition": pa.array([each.partition for each in some], pa.int32()),
        "_offset": pa.array([each.offset for each in some], pa.int64()),
        "_arrived_at": times([each.arrived for each in some]),
        "_progress": times([each.progress for each in some]),
        "/id": pa.array([each.id for each in some], pa.string()),
    }
    return pa.table(columns)


def changes(some: Sequence[Change]) -> pa.Table:
    columns = {
        "id": pa.array([each.key[0] for each in some], pa.string()),
        "area": pa.array([each.key[1] for each in some], pa.int64()),
        "name": pa.array([each.name for each in some], pa.string()),
        "since": times([each.since for each in some]),
        "_op": pa.array([each.op for each in some], pa.string()),
        "_partition": pa.array([each.partition for each in some], pa.int32()),
        "_offset": pa.array([each.offset for each in some], pa.int64()),
        "_arrived_at": times([each.arrived for each in some]),
        "_progress": times([None] * len(some)),
        "/id": pa.array([f"users/{each.partition}/{each.offset:016}" for each in some], pa.string()),
    }
    return pa.table(columns)


# -- the model -------------------------------------------------------------------------------------------


def loaded_at(settings: Enrich, known: Sequence[Change]) -> int:
    """What arrived by then was there from the beginning."""
    if not settings.loads:
        return -FOREVER
    return min((each.arrived for each in known if each.loaded), default=FOREVER)


def used(settings: Enrich, fact: Fact, known: Sequence[Change]) -> Change | None:
    """The version that answers a fact: among all changes that are known."""
    by_arrival = settings.time is None or settings.valid_from is None
    loaded = loaded_at(settings, known)
    last = max(fact.arrived + (settings.grace_us + settings.within_us) // SECOND, loaded)
    if not asks(settings, fact):
        return None
    found = []
    for each in known:
        valid = each.arrived if by_arrival else each.since
        there = -FOREVER if by_arrival and each.arrived <= loaded else valid
        in_time = settings.time is None or (fact.at is not None and there is not None and there <= fact.at)
        if not each.loaded and each.key == fact.key and None not in fact.key and in_time and each.arrived <= last:
            found.append(((valid, each.arrived, each.partition, each.offset), each))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def row(settings: Enrich, fact: Fact, version: Change | None, loaded: int = -FOREVER) -> dict[str, Any] | None:
    """What is published of a fact; None: nothing."""
    there = version is not None and version.name is not None
    if not there and settings.missing != "null":
        return None
    on_time = max(fact.arrived + settings.grace_us // SECOND, loaded)
    arrived = fact.arrived if version is None else version.arrived
    return {
        "user": fact.key[0],
        "region": fact.key[1],
        "amount": fact.offset / 4,
        "at": fact.at,
        "user_name": version.name if version is not None and there else None,
        "user_id": version.key[0] if version is not None and there else None,
        "users_version": f"{version.partition}:{version.offset}" if version is not None and there else None,
        "/id": fact.id,
        "/final_at": seconds(INSTANT_MAX_US) if loaded == FOREVER else on_time,
        "_corrections": int(arrived > on_time),
        "_updated_at": max(fact.arrived, arrived),
        "_progress": fact.progress,
    }


def asks(settings: Enrich, fact: Fact) -> bool:
    """Whether a fact can find anything: it has a key, and a time of which the table still knows."""
    if None in fact.key or settings.time is None:
        return None not in fact.key
    kept = settings.keep_us is None or (fact.at is not None and fact.at >= fact.arrived - settings.keep_us // SECOND)
    return fact.at is not None and kept


def leaves(settings: Enrich, fact: Fact, reach: int | None) -> bool:
    return not asks(settings, fact) or (
        reach is not None and reach > fact.arrived + (settings.grace_us + settings.within_us) // SECOND
    )


# -- running it ------------------------------------------------------------------------------------------


def seconds(us: Any) -> int | None:
    return None if us is None else (us - T0) // SECOND


def plain(rows: pa.Table | None) -> list[dict[str, Any]]:
    """Rows with times as seconds."""
    if rows is None:
        return []
    for number, each in enumerate(rows.schema):
        if pa.types.is_timestamp(each.type):
            in_seconds = [seconds(us) for us in rows[each.name].cast(pa.int64()).to_pylist()]
            rows = rows.set_column(number, each.name, pa.array(in_seconds, pa.int64()))
    return rows.to_pylist()


def us(second: int | None) -> int | None:
    return None if second is None else T0 + second * SECOND


@dataclass
class Run:
    """An enrichment over tables; knows all that it has read and published."""

    settings: Enrich
    tables: Any
    facts: list[Fact] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    letters: list[dict[str, Any]] = field(default_factory=list)
    missing: int = 0
    on_time: int = 0
    held: list[Fact] = field(default_factory=list)
    """Facts that were there after some step, whether they were taken back later or not."""
    lost: list[Fact] = field(default_factory=list)
    """Of these, the ones that left without a row."""

    def step(
        self,
        facts_read: Sequence[Fact | Gone] = (),
        changes_read: Sequence[Change] = (),
        of_facts: Times = (None, None),
        of_table: Times = (None, None),
        arrives: int | None = None,
    ) -> Step:
        batch = {FACTS: facts(facts_read)} if facts_read else {}
        batch |= {TABLE: changes(changes_read)} if changes_read else {}
        now = {
            FACTS: InputTimes(*map(us, of_facts), arrived_us=us(arrives)),
            TABLE: InputTimes(*map(us, of_table)),
        }
        step = self.settings.step(batch, self.tables.state(), now, changes=True)
        self.tables.apply(step.writes)
        before = list(self.facts)
        for each in facts_read:
            if isinstance(each, Gone):
                self.facts = [fact for fact in self.facts if fact is not each.fact]
            else:
                self.facts.append(each)
        self.held += [fact for fact in self.facts if not any(fact is each for each in before)]
        self.changes += changes_read
        self._publish(step)
        self.missing += step.missing
        self.letters += plain(step.letters)
        self.on_time += sum(each.on_time for each in step.ledger)
        return step

    def _publish(self, step: Step) -> None:
        for each in plain(step.changes):
            op, id = each.pop("op"), each["/id"]
            if op == "-":
                assert self.published.pop(id) == each, "what goes is what came"
            else:
                assert id not in self.published, "one row at a time"
                self.published[id] = each

    def check(self, of_facts: Times, of_table: Times, step: Step) -> None:
        """All that is published and kept is what the model says of what was read."""
        settings, (frontier, reach), loaded = self.settings, of_table, loaded_at(self.settings, self.changes)
        if loaded == FOREVER:
            frontier = reach = None
        if reach is not None and reach <= loaded:
            reach = None
        answers = {fact.id: used(settings, fact, self.changes) for fact in self.facts}
        since = {fact.id: loaded if asks(settings, fact) else -FOREVER for fact in self.facts}
        wanted = {fact.id: row(settings, fact, answers[fact.id], since[fact.id]) for fact in self.facts}
        assert self.published == {id: each for id, each in wanted.items() if each is not None}
        gone = [fact for fact in self.facts if leaves(settings, fact, reach)]
        lost = [fact for fact in gone if (version := answers[fact.id]) is None or version.name is None]
        self.lost += [fact for fact in lost if not any(fact is each for each in self.lost)]
        if settings.missing == "dead_letter":
            assert sorted(each["/id"] for each in self.letters) == sorted(fact.id for fact in self.lost)
        assert self.missing == (len(lost) if settings.missing == "drop" else 0)
        left_out = 0 if settings.missing == "null" else len(lost)
        assert self.on_time - self.missing - len(self.letters) == len(self.facts) - left_out
        kept = [fact for fact in self.facts if fact not in gone]
        stored = self.tables.state().scan(FACTS, EVERYTHING)
        assert sorted(stored["/id"].to_pylist()) == sorted(fact.id for fact in kept)
        grace = settings.grace_us // SECOND
        kept = [fact for fact in self.held if not leaves(settings, fact, reach)]  # who was taken back holds others back
        still_open = [fact for fact in kept if frontier is None or fact.arrived + grace >= frontier]
        assert step.ahead is not None
        ahead = seconds(step.ahead.frontier_us), seconds(step.ahead.reach_us)
        assert ahead == (least(of_facts[0], still_open), least(of_facts[1], kept))


def least(of_input: int | None, held: Sequence[Fact]) -> int | None:
    progress = [of_input, *(fact.progress for fact in held)]
    return None if None in progress else min(each for each in progress if each is not None)


# -- any history, any cut, any order of reading ----------------------------------------------------------

TIMES: list[tuple[str | None, str | None]] = [("at", "since"), ("at", None), (None, "since"), (None, None)]
KEYS: list[tuple[str | None, int | None]] = [("a", 1), ("a", 2), ("b", 1), (None, 1), ("a", None)]


def history(
    dice: random.Random, *, loads: bool = False, retracts: bool = False
) -> tuple[list[list[Fact | Gone]], list[list[Change]]]:
    """Partitions of both inputs; in each, arrival and progress never go back. `retracts`: some facts are taken back,
    and some of these come again, with another key, time and arrival."""
    orders: list[list[Fact | Gone]] = [[] for _ in range(dice.randint(1, 3))]
    there: list[list[Fact]] = [[] for _ in orders]
    users: list[list[Change]] = [[] for _ in range(dice.randint(1, 2))]
    clock, spread = 0, dice.choice([1, 3, 10])
    progress: list[int | None] = [None] * len(orders)
    for _ in range(dice.randint(0, 40)):
        clock += dice.choice([0, 0, 1, 1, 2, 5])
        of, key = dice.randrange(5), dice.choice(KEYS)
        part = dice.randrange(len(orders))
        if retracts and there[part] and dice.randrange(3) == 0:
            old = there[part].pop(dice.randrange(len(there[part])))
            orders[part].append(Gone(old))
            if dice.randrange(3):
                there[part].append(replace(old, key=key, at=clock - dice.randint(-2, spread), arrived=clock))
                orders[part].append(there[part][-1])
        elif of < 3:
            at = None if dice.randrange(12) == 0 else clock - dice.randint(-2, spread)
            there[part].append(Fact(key, at, clock, len(orders[part]), part, progress[part]))
            orders[part].append(there[part][-1])
            if at is not None:
                progress[part] = max(min(at, clock), progress[part] if progress[part] is not None else -FOREVER)
        else:
            part = dice.randrange(len(users))
            since = None if dice.randrange(12) == 0 else clock - dice.randint(-2, spread)
            name = None if dice.randrange(4) == 0 else f"n{len(users[part])}"
            users[part].append(Change(key, name, since, clock, len(users[part]), part))
    if loads:  # anywhere, and then again, which does not count
        for _ in range(2):
            part = dice.randrange(len(users))
            place = dice.randint(0, len(users[part]))
            arrived = users[part][place - 1].arrived if place else 0
            users[part].insert(place, Change((None, None), None, None, arrived, 0, part, loaded=True))
            users[part] = [replace(each, offset=offset) for offset, each in enumerate(users[part])]
    return orders, users


def between(dice: random.Random, least: int | None, most: int | None) -> int | None:
    """A time that is not before `least`, nor behind `most`."""
    if most is None or dice.randrange(5) == 0:
        return least
    return dice.randint(most - 3 if least is None else min(least, most), most)


def check_history(settings: Enrich, tables: Any, dice: random.Random, *, retracts: bool = False) -> None:
    """Reads a history in steps: of each partition some records, in any order of the inputs and partitions."""
    orders, users = history(dice, loads=settings.loads, retracts=retracts)
    run = Run(settings, tables)
    eager = dice.choice([FACTS, TABLE, None])  # which of the inputs is read to its end first
    of_facts: Times = (None, None)
    of_table: Times = (None, None)
    while any(map(len, [*orders, *users])):
        waits = {FACTS: eager == TABLE and any(users), TABLE: eager == FACTS and any(orders)}
        read_facts = [each for part in orders for each in taken(dice, part, waits[FACTS])]
        read_changes = [each for part in users for each in taken(dice, part, waits[TABLE])]
        again = [each for each in [*run.changes, *read_changes] if dice.randrange(20) == 0]  # as if sent twice
        if not retracts:  # else a fact goes after it came
            dice.shuffle(read_facts)
        dice.shuffle(read_changes)
        to_come = min((part[0].arrived for part in users if part), default=500)
        reach = between(dice, of_table[1], to_come)
        frontier = between(dice, of_table[0], to_come + 5)
        of_table = (None if frontier is None else max(frontier, -FOREVER if reach is None else reach), reach)
        progress = [each.progress for part in orders for each in part if isinstance(each, Fact)]
        least_to_come = min((each for each in progress if each is not None), default=500)
        low = None if None in progress else between(dice, of_facts[1], least_to_come)
        high = between(dice, of_facts[0], 600)
        of_facts = (None if high is None else max(high, -FOREVER if low is None else low), low)
        to_come_facts = [each.fact if isinstance(each, Gone) else each for part in orders for each in part]
        arrives = min((each.arrived for each in to_come_facts), default=500)  # '-' as well as '+'
        step = run.step(read_facts, [*read_changes, *again], of_facts, of_table, arrives)
        del run.changes[len(run.changes) - len(again) :]
        run.check(of_facts, of_table, step)
    end = FOREVER, FOREVER
    run.check(end, end, run.step((), (), end, end))
    state = tables.state()
    assert (state.scan(FACTS, EVERYTHING).num_rows, state.scan(HELD.name, EVERYTHING).num_rows) == (0, 0)


def taken(dice: random.Random, part: list[Any], waits: bool) -> list[Any]:
    """Some records from the beginning of a partition, which loses them."""
    count = 0 if waits else dice.choice([0, 0, 1, 2, 5, 100])
    read, part[:] = part[:count], part[count:]
    return read


def variant(number: int, dice: random.Random) -> Enrich:
    time, valid_from = TIMES[number % 4]
    missing = ("null", "drop", "dead_letter")[number % 3]
    bounds = {"grace_us": dice.choice([0, 0, 2, 20]) * SECOND, "within_us": dice.choice([0, 0, 3, 30]) * SECOND}
    keep_us = None if number % 8 < 4 else dice.choice([0, 2, 8]) * SECOND
    loads = number % 16 >= 8
    return replace(SETTINGS, time=time, valid_from=valid_from, missing=missing, **bounds, keep_us=keep_us, loads=loads)


def test_versions_that_nobody_can_ask_for_any_more_go() -> None:
    """Of a thousand versions of two keys there are those of the last ten seconds, and for each key the one before."""
    settings = replace(SETTINGS, keep_us=10 * SECOND)
    run, most = Run(settings, MemoryTables(*settings.tables)), 0
    for now in range(0, 1_000, 2):
        both = [Change((user, 1), f"n{now}", now, now, now + at) for at, user in enumerate("ab")]
        fact = Fact(("a", 1), now - now % 11, now, now)
        run.step([fact], both, (now, now), (now, now), arrives=now)
        most = max(most, run.tables.state().scan("versions", EVERYTHING).num_rows)
    assert {*run.published} == {fact.id for fact in run.facts}
    for fact in run.facts:
        assert run.published[fact.id] == row(settings, fact, used(settings, fact, run.changes))
    kept_for = 10 + (settings.grace_us + settings.within_us) // SECOND
    assert most <= kept_for + 6


@pytest.mark.parametrize("seed", [*range(16), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(16, 200))])
def test_any_reading_gives_what_the_logs_say(seed: int) -> None:
    dice = random.Random(seed)
    settings = variant(seed, dice)
    check_history(settings, MemoryTables(*settings.tables), dice)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 300))])
def test_facts_that_are_taken_back_leave_nothing(seed: int) -> None:
    dice = random.Random(f"gone {seed}")
    settings = variant(seed, dice)
    check_history(settings, MemoryTables(*settings.tables), dice, retracts=True)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 12))])
def test_the_same_in_sqlite(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    settings = variant(seed, dice)
    tables = FileTables(tmp_path, *settings.tables)
    check_history(settings, tables, dice, retracts=seed % 2 == 1)
    tables.store.close()


# -- the contract ----------------------------------------------------------------------------------------


class TestEnrich(OperatorContract):
    """Times are such that no fact can leave before its changes have come; in the last steps some do."""

    def operator(self) -> Operator:
        return SETTINGS

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        def clock() -> int:
            return 10 * number + dice.randrange(8)

        read = [Fact(dice.choice(KEYS), clock() - dice.randrange(20), clock(), 100 * number + n) for n in range(20)]
        names = [dice.choice(["x", "y", None]) for _ in range(8)]
        users = [Change(dice.choice(KEYS), name, clock() - 9, clock(), 10 * number + n) for n, name in enumerate(names)]
        return {FACTS: facts(read), TABLE: changes(users)}

    def times(self, number: int) -> InputTimes:
        return InputTimes(us(10 * number), us(10 * number))

    def test_any_cut_gives_the_same(self, batches: list[Mapping[str, pa.Table]]) -> None:
        """What is published in between depends on the cut; what is left of it does not."""
        dice, left = random.Random(1), []
        for cuts in (0, 3):
            rows, tables = Counter[str](), self._tables()
            for number, batch in enumerate(batches):
                size = max(table.num_rows for table in batch.values())
                at = sorted({0, size, *(dice.randint(0, size) for _ in range(cuts))})
                for start, stop in pairwise(at):
                    piece = {name: table.slice(start, stop - start) for name, table in batch.items()}
                    for each in self._step(tables, piece, number):
                        op = each.pop("op")
                        rows[repr(each)] += 1 if op == "+" else -1
            left.append((+rows, -rows, self._all(tables)))
        assert left[0] == left[1]


class TestEnrichWithoutTime(TestEnrich):
    def operator(self) -> Operator:
        return replace(SETTINGS, time=None, missing="drop")


# -- one thing each --------------------------------------------------------------------------------------

A1 = ("a", 1)


def run(**settings: Any) -> Run:
    made = replace(SETTINGS, **settings)
    return Run(made, MemoryTables(*made.tables))


def ops(step: Step) -> list[tuple[str, int, str | None, str | None, int]]:
    return [
        (each["op"], int(each["/id"][-3:]), each["user_name"], each["users_version"], each["_corrections"])
        for each in plain(step.changes)
    ]


def test_a_fact_is_published_at_once_and_corrected_while_changes_count() -> None:
    it = run()  # grace 2, within 3
    order = Fact(A1, at=10, arrived=10, offset=7)
    assert ops(it.step([order])) == [("+", 7, None, None, 0)]
    first = it.step((), [Change(A1, "ann", 5, 12, 0)])  # 12 ≤ 10 + 2: on time
    assert ops(first) == [("-", 7, None, None, 0), ("+", 7, "ann", "0:0", 0)]
    late = it.step((), [Change(A1, "bea", 6, 15, 1)])  # 15 ≤ 10 + 2 + 3: a correction
    assert ops(late) == [("-", 7, "ann", "0:0", 0), ("+", 7, "bea", "0:1", 1)]
    assert ops(it.step((), [Change(A1, "eve", 7, 16, 2)])) == []  # 16 > 15: never
    assert ops(it.step((), [Change(A1, "dot", 11, 15, 0, partition=1)])) == []  # valid from 11 > 10
    assert ops(it.step((), [Change(A1, "ann", 5, 14, 3)])) == []  # 5 < 6: another version is later
    gone = it.step((), [Change(A1, None, 6, 15, 4)])  # the same time, a later position: there is no row
    assert ops(gone) == [("-", 7, "bea", "0:1", 1), ("+", 7, None, None, 1)]
    assert it.tables.state().scan(FACTS, EVERYTHING).num_rows == 1
    it.step((), (), of_table=(99, 15))
    assert it.tables.state().scan(FACTS, EVERYTHING).num_rows == 1, "a change that arrives at 15 can come yet"
    assert ops(it.step((), (), of_table=(99, 16))) == []
    assert it.tables.state().scan(FACTS, EVERYTHING).num_rows == 0


def test_a_fact_that_is_taken_back_takes_its_answer_with_it() -> None:
    it = run()  # grace 2, within 3
    order = Fact(A1, at=10, arrived=10, offset=7)
    it.step([order], [Change(A1, "ann", 5, 10, 0)])
    moved = replace(order, at=20, arrived=12)
    assert ops(it.step([Gone(order), moved], [Change(A1, "bea", 6, 11, 1)])) == [
        ("-", 7, "ann", "0:0", 0),  # the answer that was published, and no correction of it
        ("+", 7, "bea", "0:1", 0),
    ]
    it.step((), (), of_table=(99, 18))  # 18 > 12 + 5: it has left
    assert it.tables.state().scan(FACTS, EVERYTHING).num_rows == 0
    it.step((), [Change(A1, "eve", 7, 18, 2)], of_table=(99, 18))
    assert ops(it.step([Gone(moved)], of_table=(99, 18))) == [("-", 7, "bea", "0:1", 0)]
    assert ops(it.step([order, Gone(order)])) == [], "what comes and goes in one step was never there"


@pytest.mark.parametrize("missing", ["drop", "dead_letter"])
def test_a_fact_that_is_taken_back_when_it_leaves_is_not_missing(missing: Any) -> None:
    it = run(missing=missing)
    order = Fact(A1, at=10, arrived=10, offset=7)
    it.step([order])
    assert ops(it.step([Gone(order)], of_table=(99, 99))) == []
    assert (it.missing, it.letters, it.on_time) == (0, [], 0)


def test_without_a_time_it_is_the_latest_that_had_arrived() -> None:
    it = run(time=None, grace_us=0, within_us=0)
    it.step((), [Change(A1, "ann", 90, 9, 0), Change(A1, "bea", 0, 10, 1), Change(A1, "eve", 0, 11, 2)])
    step = it.step([Fact(A1, None, 10, 0), Fact(A1, None, 8, 1)])
    assert ops(step) == [("+", 0, "bea", "0:1", 0), ("+", 1, None, None, 0)]


@pytest.mark.parametrize("missing", ["drop", "dead_letter"])
def test_missing_acts_when_the_fact_leaves(missing: Any) -> None:
    it = run(missing=missing)
    nobody, null = Fact(("x", 1), 10, 10, 0), Fact((None, 1), 10, 10, 1)
    late, lost = Fact(A1, 10, 10, 2), Fact(("b", 1), 10, 10, 3)
    step = it.step([nobody, null, late, lost], [Change(("b", 1), "bob", 0, 10, 0)])
    assert ops(step) == [("+", 3, "bob", "0:0", 0)]
    assert (it.missing, len(it.letters)) == ((1, 0) if missing == "drop" else (0, 1)), "a null key has no answer"
    step = it.step((), [Change(A1, "ann", 0, 15, 1), Change(("b", 1), None, 1, 15, 2)], of_table=(16, 16))
    assert ops(step) == [("-", 3, "bob", "0:0", 0), ("+", 2, "ann", "0:1", 1)]
    if missing == "drop":
        assert (it.missing, it.letters) == (3, [])
    else:
        assert [each["/id"][-1] for each in it.letters] == ["1", "3", "0"]
        wanted = {"user": "x", "region": 1, "amount": 0.0, "at": 10, "/id": nobody.id, "_partition": 0, "_offset": 0}
        assert it.letters[-1] == wanted


def test_a_fact_that_nothing_can_change_is_not_kept() -> None:
    it = run()
    step = it.step([Fact(A1, 10, 10, 0)], [Change(A1, "ann", 0, 15, 0)], of_table=(16, 16))
    assert ops(step) == [("+", 0, "ann", "0:0", 1)]
    assert set(step.writes.puts) == {"versions"} and not step.writes.adds


def test_versions_that_arrived_too_late_are_passed_over_however_many_they_are() -> None:
    it = run()
    changes_read = [Change(A1, f"n{n}", n, 10 if n % 100 == 0 else 1000 + n, n) for n in range(1, 400)]
    it.step((), changes_read, of_table=(5000, 5000))
    for asked in (range(0, 500, 7), (99, 100, 101, 399)):  # of a key with many facts, and with few
        step = it.step([Fact(A1, at, 20, n, len(asked)) for n, at in enumerate(asked)], (), of_table=(5000, 5000))
        wanted = [min(at // 100, 3) * 100 for at in asked]
        assert [each[3] for each in ops(step)] == [f"0:{offset}" if offset else None for offset in wanted]


class Reads:
    """A state that counts the rows it answers with, by table."""

    def __init__(self, state: State) -> None:
        self._state, self.rows = state, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        def counted(table: str, *args: Any, **settings: Any) -> Any:
            found = getattr(self._state, name)(table, *args, **settings)
            self.rows[table] += found.num_rows if isinstance(found, pa.Table) else 0
            return found

        return counted


def reads(it: Run, **batch: pa.Table) -> Counter[str]:
    state = Reads(it.tables.state())
    now = {FACTS: InputTimes(None, None), TABLE: InputTimes(None, None)}
    it.settings.step(batch, state, now, changes=True)  # type: ignore[arg-type]
    return state.rows


def test_a_step_reads_what_its_records_touch() -> None:
    it = run(within_us=1000 * SECOND)
    it.step((), [Change(A1, f"n{n}", n, 0, n) for n in range(0, 900, 10)])
    it.step([Fact(A1, n, 1000, n, progress=n) for n in range(1000)])
    it.step([Fact(("b", 1), 5, 1000, n, progress=n) for n in range(1000, 1500)])
    touched = reads(it, table=changes([Change(A1, "new", 501, 1001, 1000)]))
    assert touched["facts"] == 9, "from 501 on, until 510, from when another version is valid"
    assert touched["versions"] == 2, "the next version, and the one that the facts had"
    touched = reads(it, facts=facts([Fact(A1, 905, 1001, 3000 + n) for n in range(50)]))
    assert (touched["facts"], touched["versions"]) == (0, 1)
    spread = reads(it, facts=facts([Fact(A1, at, 1001, 3000 + at) for at in (5, 895)]))
    assert spread["versions"] <= 6, "and not the 90 between them"
    assert max(touched["held"], spread["held"]) <= 240


def test_the_newest_version_of_a_key_is_read_once_and_again_when_there_is_another() -> None:
    it, asked = run(within_us=0, grace_us=0), [Fact(A1, 50, 10, 0), Fact(("b", 1), 50, 10, 1)]
    it.step((), [Change(A1, "one", 0, 0, 0)])
    assert [reads(it, facts=facts(asked))["versions"] for _ in range(2)] == [1, 0]
    assert [each[3] for each in ops(it.step(asked))] == ["0:0", None]
    it.step((), [Change(A1, "two", 20, 5, 1), Change(("b", 1), "three", 20, 5, 2)])
    again = [Fact(A1, 50, 10, 2), Fact(("b", 1), 50, 10, 3), Fact(A1, 10, 10, 4)]
    assert [each[3] for each in ops(it.step(again))] == ["0:1", "0:2", "0:0"]
    assert reads(it, facts=facts([Fact(A1, 50, 10, 5)]))["versions"] == 0
    it.settings = copy.deepcopy(it.settings)
    assert reads(it, facts=facts([Fact(A1, 50, 10, 5)]))["versions"] == 1, "a copy may be of another state"


@pytest.mark.parametrize("bytes_max", [0, 300])
def test_how_much_is_remembered_makes_no_difference(bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "BYTES_MAX", bytes_max)
    for seed in range(4):
        dice = random.Random(seed)
        settings = variant(seed, dice)
        check_history(settings, MemoryTables(*settings.tables), dice)


def test_a_version_that_arrived_too_late_hides_no_other() -> None:
    it = run(within_us=0, grace_us=0)
    it.step([Fact(A1, 50, 10, 0)], [Change(A1, "later", 40, 20, 0)])  # arrived after the fact has left
    assert ops(it.step((), [Change(A1, "first", 30, 10, 0, partition=1)]))[1:] == [("+", 0, "first", "1:0", 0)]


# -- what is held back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_the_least_progress_of_what_is_held(seed: int) -> None:
    dice = random.Random(seed)
    span = dice.choice([10, 10_000, 10_000_000, 10**13])
    tables, held = MemoryTables(HELD), list[tuple[int, int]]()
    dropped = -(2**62)
    for _ in range(6):
        new = [(T0 + dice.randrange(span), dice.randrange(1000)) for _ in range(dice.randint(1, 30))]
        new = [each for each in new if each[0] > dropped]
        held += new
        arrived, progress = (np.array([each[n] for each in new], np.int64) for n in (0, 1))
        tables.apply(Writes(adds={HELD.name: held_rows(arrived, progress)} if new else {}))
        since = max(dropped + 1, T0 + dice.randrange(-5, span))
        wanted = [least for at, least in held if at // 1000 >= since // 1000]
        assert least_progress_us(tables.state(), since) == min(wanted, default=None)
        if dice.randrange(2):
            dropped = since - 1
            tables.apply(Writes(drops={HELD.name: dropped}))
            held = [each for each in held if each[0] // 1000 >= since // 1000]
    rows = tables.state().scan(HELD.name, EVERYTHING)
    assert rows.num_rows <= 8 * len(held) + 8
