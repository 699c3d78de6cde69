"""Patterns: against brute force over all events ever accepted, after every step of random histories with stragglers,
ties and events that are taken back; the contract; and what single steps say."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.cep import matcher
from headrace.cep.definition import Pattern, pattern
from headrace.cep.shape import parse
from headrace.errors import InvalidArgument
from headrace.operators.contract import InputTimes, Operator, Step
from headrace.operators.patterns.match import EVENTS, INPUT, MatchPattern
from headrace.schema import parse_ddl
from headrace.testing import OperatorContract
from headrace.testing.memory_tables import MemoryTables
from headrace.testing.operator_contract import EVERYTHING, STEPS
from headrace.views.contract import PARTIALS
from headrace.views.values import INSTANT
from tests.cep.brute_force import Taken, matches
from tests.views.test_keyed import FileTables

T0 = 1_767_225_600_000_000
SCHEMA = parse_ddl("k string, s string, v bigint, at timestamp")
EVER = 2**61


def moment(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(T0 // 10**6, UTC) + timedelta(microseconds=us)


@dataclass(frozen=True)
class Event:
    """Times are microseconds from T0. `s`: the symbols that its row can have."""

    k: str | None
    s: str
    v: int | None
    at: int | None
    partition: int = 0
    offset: int = 0
    progress: int | None = None

    @property
    def id(self) -> str:
        return f"t/{self.partition}/{self.offset:016}"


@dataclass(frozen=True)
class Gone:
    event: Event


def table(some: list[Any]) -> pa.Table:
    events = [each.event if isinstance(each, Gone) else each for each in some]
    ops = ["-" if isinstance(each, Gone) else "+" for each in some]
    return pa.table(
        {
            **({"op": pa.array(ops, pa.string())} if "-" in ops else {}),
            "k": pa.array([each.k for each in events], pa.string()),
            "s": pa.array([each.s for each in events], pa.string()),
            "v": pa.array([each.v for each in events], pa.int64()),
            "at": pa.array([moment(each.at) for each in events], INSTANT),
            "_partition": pa.array([each.partition for each in events], pa.int32()),
            "_offset": pa.array([each.offset for each in events], pa.int64()),
            "_arrived_at": pa.array([moment(each.offset) for each in events], INSTANT),
            "_progress": pa.array([moment(each.progress) for each in events], INSTANT),
            "/id": pa.array([each.id for each in events], pa.string()),
        }
    )


def holds(condition: str, symbol: str) -> str:
    """The text of a condition: that the event has the symbol, and more."""
    said = " OR ".join(f"s = '{each}'" for each in ALL if symbol in each)
    return f"({said}) AND {condition}" if condition else said


ALL = ["", "a", "b", "c", "ab", "ac", "bc", "abc"]
HISTORIES: dict[str, Any] = {
    "": lambda *_: True,
    "v >= last({0}.v, 1)": lambda cells, of, row: compare(cells[row], nth_last([*of, row], 1, cells)),
    "v > prev(v)": lambda cells, _, row, every: above(cells[row], cells[every[-1]] if every else None),
    "count({0}.*) <= 2": lambda _, of, __: len(of) < 2,
    "v <= sum({0}.v)": lambda cells, of, row: compare(total([cells[at] for at in (*of, row)]), cells[row]),
}


def nth_last(of: list[int], n: int, cells: list[Any]) -> Any:
    return cells[of[-1 - n]] if len(of) > n else None


def compare(a: Any, b: Any) -> bool:
    return a is not None and b is not None and a >= b


def above(a: Any, b: Any) -> bool:
    return a is not None and b is not None and a > b


def total(values: list[Any]) -> Any:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


@dataclass
class Case:
    """A pattern, with the conditions over earlier rows by symbol."""

    of: Pattern
    histories: dict[str, str]
    grace: int
    late: int
    limits: matcher.Limits = matcher.LIMITS

    def operator(self, *, retracts: bool = True) -> MatchPattern:
        return MatchPattern(SCHEMA, ("k",), "at", self.of, self.grace, self.late, retracts, limits=self.limits)

    def model(self, events: list[Event]) -> list[dict[str, Any]]:
        """The matches of one key, whose events are all there."""
        events = sorted(events, key=lambda each: (each.at, each.partition, each.offset))
        cells = [each.v for each in events]

        def is_it(symbol: str, taken: Taken, row: int) -> bool:
            if symbol not in events[row].s:
                return False
            text = self.histories.get(symbol, "")
            mine = [at for each, at in taken if each == symbol]
            if "prev" in text:
                return bool(HISTORIES[text](cells, mine, row, [at for _, at in taken]))
            return bool(HISTORIES[text](cells, mine, row))

        times = [each.at for each in events]
        found = matches(parse(self.of.text), times, is_it, self.of.within_us, self.of.skip, timed_out=self.of.timed_out)  # type: ignore[arg-type]
        return [self.row(outcome, [events[at] for _, at in taken], taken) for outcome, taken in found]

    def row(self, outcome: str, events: list[Event], taken: Taken) -> dict[str, Any]:
        a = [event.v for event, (symbol, _) in zip(events, taken, strict=True) if symbol == "a"]
        assert events[0].at is not None
        return {
            "k": events[0].k,
            "match_start": moment(events[0].at),
            "match_end": moment(events[-1].at),
            "n": len(events),
            "total": total(a),
            "first": events[0].v,
            **({"outcome": outcome} if self.of.timed_out else {}),
            "/id": "|".join(dict.fromkeys([events[0].id, events[-1].id])),
            "/final_at": moment(events[0].at + self.of.within_us + self.grace),
            "_corrections": sum(each.progress is not None and each.progress > each.at + self.grace for each in events),  # type: ignore[operator]
            "_updated_at": moment(max(each.offset for each in events)),
            "_progress": moment(events[-1].at),
        }


TEXTS = ("a+ b", "a b* c", "a !b c", "a !b", "(a | b)+ c", "a+? b?", "a b{1,2}", "a !b (a | c)", "a+ b+")


def some_case(dice: random.Random) -> Case:
    text = dice.choice(TEXTS)
    symbols = sorted({each for each in text if each in "abc"})
    histories = {each: dice.choice(list(HISTORIES)) for each in symbols if dice.random() < 0.3}
    measures = {"n": "count(*)", "first": "first(v)"}
    measures["total"] = "sum(a.v)"
    of = pattern(
        text,
        define={each: holds(histories.get(each, "").format(each), each) for each in symbols},
        within=f"{dice.randint(1, 9)} us",
        measures={name: measures[name] for name in ("n", "total", "first")},
        skip=dice.choice(("past_last", "to_next")),
        timed_out=dice.random() < 0.3,
    )
    return Case(of, histories, dice.choice((0, 0, 2)), dice.choice((0, 0, 5)))


def some_log(dice: random.Random, partitions: int) -> list[Event]:
    """In an order in which it may be read; stragglers and ties included."""
    now, ends, out = 0, [0] * partitions, list[Event]()
    newest: list[int | None] = [None] * partitions
    for _ in range(dice.randint(5, 40)):
        now += dice.choice((0, 1, 1, 2, 7))
        at: int | None = max(0, now - dice.choice((0, 0, 0, 1, 3, 9)))
        at = None if dice.random() < 0.03 else at
        partition = dice.randrange(partitions)
        known = newest[partition]
        event = Event(
            dice.choice(("x", "x", "y", None)),
            dice.choice(ALL),
            dice.choice((None, 1, 2, 3)),
            at,
            partition,
            ends[partition],
            known,
        )
        out.append(event)
        ends[partition] += 1
        if at is not None:
            newest[partition] = at if known is None else max(known, at)
    return out


@dataclass
class Run:
    """Steps of an operator, one after the other, and what is there after them."""

    case: Case
    tables: Any
    partitions: int
    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: dict[str, Event] = field(default_factory=dict)
    progress: dict[int, int] = field(default_factory=dict)
    frontier: int | None = None
    before: InputTimes = field(default_factory=lambda: InputTimes(None, None))

    def step(self, read: list[Any], silence: int = 0) -> Step:
        for each in read:
            event = each.event if isinstance(each, Gone) else each
            if isinstance(each, Gone):
                del self.seen[event.id]
            else:
                self.seen[event.id] = event
            if event.at is not None:
                self.progress[event.partition] = max(self.progress.get(event.partition, event.at), event.at)
        reach = min(self.progress.values()) if len(self.progress) == self.partitions else None
        least = min(self.progress.values(), default=None)
        if least is not None:
            self.frontier = max(self.frontier if self.frontier is not None else least, least + silence, reach or least)
        now = InputTimes(
            None if self.frontier is None else T0 + self.frontier,
            None if reach is None else T0 + reach,
            self.before.frontier_us,
            self.before.reach_us,
        )
        op = self.case.operator()
        step = op.step({INPUT: table(read)} if read else {}, self.tables.state(), {INPUT: now}, changes=True)
        self.before = now
        self.tables.apply(step.writes)
        for row in [] if step.changes is None else step.changes.to_pylist():
            sign, id = row.pop("op"), row["/id"]
            if sign == "-":
                assert self.there.pop(id) == row, "what goes was there"
            else:
                assert id not in self.there, "nothing comes twice"
                self.there[id] = row
        return step

    def accepted(self) -> list[Event]:
        late = self.case.grace + self.case.late
        return [e for e in self.seen.values() if e.at is not None and (e.progress is None or e.progress <= e.at + late)]

    def check(self) -> None:
        """All is there that is there in the end, as far as the frontier says; and nothing else that is final."""
        wanted: dict[str, Any] = {}
        for key in {each.k for each in self.accepted()}:
            wanted |= {each["/id"]: each for each in self.case.model([e for e in self.accepted() if e.k == key])}
        final = moment(self.frontier) if self.frontier is not None else moment(-1)
        assert final is not None
        for row in wanted.values():
            if row["/final_at"] < final:
                assert self.there.get(row["/id"]) == row, (self.case.of, row)
        for row in self.there.values():
            if row["/final_at"] < final:
                assert wanted.get(row["/id"]) == row, (self.case.of, row)

    def kept(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.tables.state().scan(EVENTS, EVERYTHING).to_pylist()
        return found


def check_history(dice: random.Random, tables: Any = MemoryTables, taken_back: float = 0.15) -> int:
    case = some_case(dice)
    partitions = dice.choice((1, 2))
    log = some_log(dice, partitions)
    now = Run(case, tables(*case.operator().tables), partitions)
    at = 0
    while at < len(log):
        count = dice.choice((0, 1, 2, 5, 20))
        read: list[Any] = list(log[at : at + count])
        if dice.random() < taken_back and now.seen:
            gone = dice.choice(sorted(now.seen.values(), key=lambda each: each.id))
            reach = now.before.reach_us
            late = case.grace + case.late
            if gone.at is not None and (reach is None or gone.at >= reach - T0 - late or not accepted(gone, late)):
                read.insert(0, Gone(gone))
        now.step(read, silence=dice.choice((0, 0, 0, 4, 30)))
        now.check()
        at += count
    for each in list(now.progress):
        now.progress[each] = 10**9
    for partition in range(partitions):
        now.progress.setdefault(partition, 10**9)
    now.step([])
    now.check()
    assert len(now.there) == sum(1 for _ in now.there), "each once"
    assert now.kept() == [], "nothing is needed any more"
    assert now.tables.state().scan(PARTIALS, EVERYTHING).num_rows == 0
    return len(now.there)


def accepted(event: Event, late: int) -> bool:
    return event.at is not None and (event.progress is None or event.progress <= event.at + late)


def test_any_history_comes_to_what_brute_force_finds(seed: int) -> None:
    dice = random.Random(seed)
    assert sum(check_history(dice) for _ in range(150)) > 120


def test_the_same_in_a_store(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    for number in range(6):
        check_history(dice, lambda *specs, at=number: FileTables(tmp_path / str(at), *specs))


@pytest.mark.soak
def test_any_history_comes_to_what_brute_force_finds_for_long(seed: int, soak_seconds: float) -> None:
    dice, end = random.Random(seed), time.monotonic() + soak_seconds
    while time.monotonic() < end:
        check_history(dice)


# -- the contract ------------------------------------------------------------------------------------------


def case(text: str = "a+ b", within: int = 10, grace: int = 0, late: int = 0, **more: Any) -> Case:
    symbols = dict.fromkeys(each for each in text if each in "abc")
    measures = more.pop("measures", {"n": "count(*)", "total": "sum(a.v)", "first": "first(v)"})
    define = {each: holds("", each) for each in symbols} | more.pop("define", {})
    return Case(pattern(text, define=define, within=f"{within} us", measures=measures, **more), {}, grace, late)


class TestContract(OperatorContract):
    def operator(self) -> Operator:
        return case(late=20).operator(retracts=False)

    def batch(self, dice: random.Random, number: int) -> dict[str, pa.Table]:
        rows = [
            Event(dice.choice("xyz"), dice.choice(ALL), n, 10 * number + dice.randrange(12), offset=100 * number + n)
            for n in range(15)
        ]
        return {INPUT: table(list(rows))}

    def test_any_cut_gives_the_same(self, batches: list[Any]) -> None:
        """What is passed on before later events come may be taken back; what is left is the same."""
        dice = random.Random(1)
        found = []
        for cuts in (0, 3):
            tables, there = self._tables(), set[str]()
            for number, batch in enumerate(batches):
                last = batch[INPUT].num_rows
                at = sorted({0, last, *(dice.randint(0, last) for _ in range(cuts))})
                for start, stop in itertools.pairwise(at):
                    for row in self._step(tables, {INPUT: batch[INPUT].slice(start, stop - start)}, number):
                        text = repr({name: cell for name, cell in row.items() if name != "op"})
                        (there.add if row["op"] == "+" else there.remove)(text)
            found.append((there, self._all(tables)))
        assert found[0] == found[1]

    def test_only_reach_lets_state_go(self, batches: list[Any]) -> None:
        """A frontier publishes: who waited waits no more. No event goes."""
        tables = self._run(batches)
        before, at = self._all(tables), self.times(STEPS - 1)
        late = {INPUT: InputTimes(2**62, at.reach_us, at.frontier_us, at.reach_us)}
        tables.apply(self.operator().step({}, tables.state(), late, changes=True).writes)
        after = self._all(tables)
        assert [each["/id"] for each in after[EVENTS]] == [each["/id"] for each in before[EVENTS]]
        assert before[PARTIALS] and not after[PARTIALS]


class TestContractOfAbsence(TestContract):
    def operator(self) -> Operator:
        return case("a !b", within=5, grace=1, timed_out=True).operator(retracts=False)


# -- single steps ------------------------------------------------------------------------------------------


def run(of: Case) -> Run:
    return Run(of, MemoryTables(*of.operator().tables), 1)


def event(s: str, at: int, v: int = 1, **more: Any) -> Event:
    return Event("x", s, v, at, offset=more.pop("offset", at), **more)


def test_a_match_is_there_with_its_last_event() -> None:
    """a(0) a(1) b(2): n 3, the sum of the a's 3; it is final behind 0 + 10."""
    now = run(case())
    assert now.step([event("a", 0), event("a", 1, 2)]).changes is None
    now.step([event("b", 2)])
    (row,) = now.there.values()
    assert (row["n"], row["total"], row["match_start"], row["match_end"]) == (3, 3, moment(0), moment(2))
    assert row["/final_at"] == moment(10)


def test_a_partial_match_is_a_row_that_says_what_it_waits_for() -> None:
    now = run(case("a+ b", within=10, grace=3))
    now.step([event("a", 0), event("a", 4)])
    (row,) = now.tables.state().scan(PARTIALS, EVERYTHING).to_pylist()
    assert row["waits_for"] == "a | b" and row["rows"] == 2 and row["k"] == "x"
    assert (row["match_start"], row["last_at"], row["until"]) == (moment(0), moment(4), moment(10))
    now.step([event("b", 5)])
    assert now.tables.state().scan(PARTIALS, EVERYTHING).num_rows == 0


def test_an_absence_fires_by_silence_with_no_further_event() -> None:
    """a(0), within 5, grace 1: certain when the frontier is past 6."""
    now = run(case("a !b", within=5, grace=1))
    now.step([event("a", 0)])
    now.step([], silence=6)
    assert now.there == {}
    now.step([], silence=7)
    assert [row["match_end"] for row in now.there.values()] == [moment(0)]


def test_a_straggler_takes_an_absence_back() -> None:
    now = run(case("a !b", within=5, late=100))
    now.step([event("a", 0)])
    now.step([], silence=6)
    assert len(now.there) == 1
    step = now.step([event("b", 3, offset=9)])
    assert now.there == {} and step.changes is not None and step.changes["op"].to_pylist() == ["-"]


def test_a_straggler_changes_a_match() -> None:
    """a(0) b(4), then a(2): -(a b) +(a a b), and one correction where it was late."""
    now = run(case(late=100))
    now.step([event("a", 0), event("b", 4)])
    step = now.step([event("a", 2, offset=5, progress=4)])
    assert step.changes is not None and step.changes["op"].to_pylist() == ["-", "+"]
    (row,) = now.there.values()
    assert (row["n"], row["_corrections"]) == (3, 1)
    assert [(row.on_time, row.corrected, row.dropped) for row in step.ledger] == [(0, 1, 0)]


def test_a_late_event_is_dropped_and_told() -> None:
    now = run(case())
    now.step([event("a", 0), event("b", 4)])
    step = now.step([event("a", 2, offset=5, progress=4)])
    assert step.dropped is not None and step.dropped["v"].to_pylist() == [1]
    assert [row.dropped for row in step.ledger] == [1] and len(now.there) == 1


def test_ties_are_ordered_by_partition_and_offset() -> None:
    """At one time: partition 2 before 10, and offset 9 before 10."""
    for first, second in (((2, 10), (10, 9)), ((0, 9), (0, 10))):
        now = run(case("a b"))
        a, b = Event("x", "a", 1, 5, *first), Event("x", "b", 1, 5, *second)
        now.step([b, a])
        assert len(now.there) == 1
        now = run(case("b a"))
        now.step([b, a])
        assert len(now.there) == 0


def test_what_is_kept_is_what_a_match_to_come_may_need() -> None:
    """1,000 events in order, each a match of its own or none: kept is the open one, and the newest."""
    now = run(case("a b", within=5))
    most = 0
    for at in range(0, 1_000, 2):
        now.step([event("a", 10 * at), event("b", 10 * at + 1)])
        most = max(most, len(now.kept()))
    assert most <= 2


def test_an_attempt_that_is_given_up_is_a_dead_letter_once() -> None:
    now = run(replace(case(within=100), limits=matcher.Limits(rows=3)))
    letters: list[dict[str, Any]] = []
    for at in range(8):
        step = now.step([event("a", at)])
        letters += [] if step.letters is None else step.letters.to_pylist()
    assert [each["_offset"] for each in letters] == [0, 1, 2, 3, 4]
    assert "given up" in letters[0]["/reason"]
    now.step([event("b", 8)])
    assert [row["n"] for row in now.there.values()] == [3]


def test_all_rows_of_a_match() -> None:
    of = case(rows="all", measures={"so_far": "sum(a.v)", "is": "classifier()"})
    now = run(of)
    step = now.step([event("a", 0, 5), event("a", 1, 6), event("b", 2, 7)])
    assert step.changes is not None
    rows = step.changes.to_pylist()
    assert [(row["symbol"], row["s"], row["v"], row["so_far"], row["is"]) for row in rows] == [
        ("a", "a", 5, 5, "a"),
        ("a", "a", 6, 11, "a"),
        ("b", "b", 7, 11, "b"),
    ]
    assert {row["match_start"] for row in rows} == {moment(0)} and len({row["/id"] for row in rows}) == 3
    assert [each.name for each in of.operator().output.columns or ()] == [
        "k",
        "match_start",
        "match_end",
        "symbol",
        "s",
        "v",
        "at",
        "so_far",
        "is",
    ]


def test_how_far_it_is() -> None:
    """Matches that begin at t are decided behind t + within 10 + grace 2, and can change for 5 more."""
    found = case(grace=2, late=5).operator().ahead({INPUT: InputTimes(T0 + 100, T0 + 90)})
    assert (found.frontier_us, found.reach_us) == (T0 + 88, T0 + 73)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"by": ("nobody",)}, "by='nobody': the events have no such column"),
        ({"time": "v"}, "time='v': must be a column of the events, and a timestamp"),
        ({"pattern": pattern("a", define={"a": "w > 1"}, within="1 s")}, "there is no column 'w'"),
        ({"pattern": pattern("a", define={"a": "s > 1"}, within="1 s")}, "compares string with int64"),
        ({"pattern": pattern("a", define={"a": "v"}, within="1 s")}, "must be a condition"),
        ({"pattern": pattern("a", define={"a": "sum(v)"}, within="1 s")}, "must be a condition"),
        ({"pattern": pattern("a", measures={"k": "last(v)"}, within="1 s")}, "two columns 'k'"),
        ({"pattern": replace(pattern("a", within="1 s"), order_by="v")}, "are ordered by their event time, 'at'"),
    ],
)
def test_what_does_not_fit_the_events_is_refused(settings: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"by": ("k",), "time": "at", "pattern": pattern("a", within="1 s"), **settings}
    with pytest.raises(InvalidArgument) as caught:
        MatchPattern(SCHEMA, given["by"], given["time"], given["pattern"], 0, 0)
    assert said in str(caught.value)


def test_measures_of_many_matches_at_once_are_those_of_one_by_one(seed: int) -> None:
    """What is computed for all matches together, and what is summed up from event to event."""
    dice = random.Random(seed)
    texts = ["count(*)", "count(a.*)", "count(a.v)", "sum(v)", "sum(b.v)", "first(v)", "last(a.v)", "a.v", "b.v", "v"]
    measures = {f"m{n}": text for n, text in enumerate(texts)} | {
        f"s{n}": f"{text} + 0" for n, text in enumerate(texts)
    }
    now = run(case("a+ b?", measures=measures))
    now.step([event(dice.choice("aab"), at, dice.choice([None, 2**61, 5, -7])) for at in range(200)])  # type: ignore[arg-type]
    assert len(now.there) > 30
    for row in now.there.values():
        for n, text in enumerate(texts):
            wide = text.startswith("sum") and row[f"s{n}"] is None  # it does not fit
            assert wide or row[f"m{n}"] == row[f"s{n}"], text
