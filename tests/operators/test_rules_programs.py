"""Whole programs of rules, from the log to the store, without a JVM: rules are put, changed and removed between
records, in any cuts, with restarts and kills. In the end each view is what brute force finds in both logs: each version
of a rule is its pattern over the records that arrived while it was there, and time stands still for it at its end."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.cep.definition import Pattern
from headrace.cep.rules import parse_rule
from headrace.cep.shape import parse
from headrace.testing import CRASH_POINTS
from tests.cep.brute_force import Taken, matches
from tests.operators.sparkless_joins import without_spark
from tests.operators.test_join_programs import ZERO, Clock, at, records

Row = dict[str, Any]
Earlier = Callable[[Row, list[Row]], bool]
GRACE, LATE, WITHIN = 2, 10, 20


@dataclass(frozen=True)
class Rule:
    """`holds`: by symbol, of a row and of those before it in the match."""

    says: str | Pattern
    holds: dict[str, Earlier]
    measures: Callable[[list[Row]], Row]


def number(row: Row) -> int:
    return -1 if row["v"] is None else int(row["v"])


LOW: Earlier = lambda row, _: row["v"] == 1  # noqa: E731
MID: Earlier = lambda row, _: row["v"] == 2  # noqa: E731
HIGH: Earlier = lambda row, _: number(row) >= 3  # noqa: E731
LAST = "PATTERN (low rise+) WITHIN '9 seconds' DEFINE low AS v = 1, rise AS v > prev(v) AND count(rise.*) <= 2"
DEFINE = {"low": "v = 1", "mid": "v = 2", "high": "v >= 3"}


def counted(text: str, within: str, skip: str = "past_last") -> Rule:
    define = {symbol: DEFINE[symbol] for symbol in DEFINE if symbol in text}
    made = hr.pattern(text, define=define, within=within, measures={"n": "count(*)", "total": "sum(v)"}, skip=skip)
    sums = lambda rows: {"n": len(rows), "total": sum(row["v"] for row in rows if row["v"] is not None)}  # noqa: E731
    return Rule(made, {"low": LOW, "mid": MID, "high": HIGH}, sums)


def one(text: str, holds: Callable[[Row], bool]) -> Rule:
    return Rule(text, {"record": lambda row, _: holds(row)}, lambda rows: {"v": rows[0]["v"]})


RULES = {
    "high": one("v >= 3", lambda row: number(row) >= 3),
    "odd": one("v % 2 = 1 AND NOT v + 1 > 3", lambda row: row["v"] == 1),
    "none": one("v IS NULL", lambda row: row["v"] is None),
    "rise": counted("low mid* high", "20 seconds"),
    "quiet": counted("low !high", "6 seconds"),
    "pause": counted("low !mid high", "9 seconds", "to_next"),
    "run": counted("low mid+", "9 seconds", "to_next"),
    "last": Rule(
        f"MEASURES last(v) AS v {LAST}",
        {
            "low": LOW,
            "rise": lambda row, before: (
                None not in (row["v"], before[-1]["v"]) and row["v"] > before[-1]["v"] and len(before) <= 2
            ),
        },
        lambda rows: {"v": rows[-1]["v"]},
    ),
}
REFUSED = ["nowhere > 1", "upper(k) = 'X'", "v", "PATTERN (a b) WITHIN '1 day' DEFINE a AS v = 1", "", "v >"]


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)


def started(home: Path, clock: Clock | None, late: bool, *, told: bool = False) -> hr.App:
    app = hr.App("program", home=home, **({} if clock is None else {"clock_us": clock}))
    topic = app.topic("events", "k string, v int, at timestamp", key="k", event_time="at", partitions=2)
    judged = hr.correct(within=f"{LATE} seconds") if late else hr.drop()
    rules = app.rules("rules", "v int", within=f"{WITHIN} seconds", most=5)
    matched = app.stream(topic).match(rules, by="k", grace=f"{GRACE} seconds", late=judged)
    matched.to_view("found")
    if told:
        matched.to_topic("told")
    return app


def rules_of(app: hr.App) -> hr.Rules:
    return hr.Rules(app._tables["rules"], "v int", f"{WITHIN} seconds", 5)


# -- brute force -----------------------------------------------------------------------------------------


@dataclass
class Version:
    name: str
    of: Rule
    since: datetime
    until: datetime | None


def versions(app: hr.App) -> dict[str, Version]:
    """By position. What is refused, or one too many, ends the version before it, and is none itself."""
    known = {_text(rule): rule for rule in RULES.values()}
    out: dict[str, Version] = {}
    current: dict[str, Version] = {}
    for record in app.log.topic("rules").records():
        name, text = record.value["rule"], record.value["text"]
        if name in current:
            current.pop(name).until = record.arrived_at
        if record.value["_op"] != "delete" and text in known and len(current) < 5:
            made = Version(name, known[text], record.arrived_at, None)
            current[name] = out[f"{record.partition}:{record.offset}"] = made
    return out


def _text(rule: Rule) -> str:
    from headrace.cep.rules import rule_text

    return rule_text(rule.says) if isinstance(rule.says, Pattern) else rule.says


def wanted(app: hr.App, late: bool) -> Counter[Any]:
    accepted = []
    for cells, partition, offset, arrived, progress in records(app.log.topic("events")):
        behind = timedelta() if progress is None else progress - cells["at"]
        if behind <= timedelta(seconds=GRACE + (LATE if late else 0)):
            corrected = behind > timedelta(seconds=GRACE)
            accepted.append({**cells, "order": (cells["at"], partition, offset), "arrived": arrived, "late": corrected})
    out = Counter[Any]()
    for version, each in versions(app).items():
        ends = each.until or datetime.max.replace(tzinfo=UTC)
        seen = [row for row in accepted if each.since < row["arrived"] <= ends]
        for key in {row["k"] for row in seen}:
            rows = sorted((row for row in seen if row["k"] == key), key=lambda row: row["order"])
            for some in found_in(rows, each):
                measures = json.dumps(each.of.measures(some), sort_keys=True)
                corrections = sum(row["late"] for row in some)
                out[each.name, version, key, some[0]["at"], some[-1]["at"], measures, corrections] += 1
    return out


def found_in(rows: list[Row], version: Version) -> list[list[Row]]:
    pattern = parse_rule(_text(version.of))
    times = [int((row["at"] - ZERO) / timedelta(microseconds=1)) for row in rows]
    ends = None if version.until is None else int((version.until - ZERO) / timedelta(microseconds=1))

    def holds(symbol: str, taken: Taken, row: int) -> bool:
        return version.of.holds[symbol](rows[row], [rows[at] for _, at in taken])

    def over(start: int, beyond: bool) -> bool:
        if ends is None or ends > start + pattern.within_us + GRACE * 1_000_000:
            return True
        return beyond and "!" not in pattern.text.split()[-1]

    shape = parse(pattern.text)
    found = matches(shape, times, holds, pattern.within_us, pattern.skip, timed_out=False, over=over)
    return [[rows[at] for _, at in taken] for _, taken in found]


def found(app: hr.App) -> Counter[Any]:
    rows = app.view("found").to_arrow().to_pylist()
    names = ("rule", "version", "k", "match_start", "match_end", "measures", "_corrections")
    told = [{**row, "measures": json.dumps(json.loads(row["measures"]), sort_keys=True)} for row in rows]
    return Counter(tuple(row[each] for each in names) for row in told)


# -- programs at random ----------------------------------------------------------------------------------


def run(dice: random.Random, home: Path, steps: int) -> int:
    """So many matches were found."""
    clock, late = Clock(), dice.random() < 0.5
    behind = dice.choice([0, 0, 3, 100])
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(started(home, clock, late))
        for _ in range(steps):
            roll = dice.random()
            now = clock.us // 1_000_000 - int(ZERO.timestamp()) - behind
            if roll < 0.6:
                when = max(0, now - dice.choice([0, 0, 0, 1, 3, 12]))
                row = {"k": dice.choice("xyz"), "v": dice.choice([1, 1, 2, 2, 3, 3, None]), "at": at(when)}
                app.log.topic("events").append([row] * dice.choice([1, 1, 1, 2]))
            elif roll < 0.75:
                _change(dice, app)
            elif roll < 0.93:
                app.drain(batch_rows=dice.choice([None, 1, 2, 3]), close=dice.random() < 0.1)
            else:
                stack.pop_all().close()
                app = stack.enter_context(started(home, clock, late))
            clock.us += 1_000_000 * dice.choice([0, 0, 0, 1, 5])
        app.drain(close=True)
        assert found(app) == wanted(app, late)
        assert app.query("SELECT count(*) AS n FROM found_partials").to_pylist() == [{"n": 0}]
        assert app.audit().ok
        return found(app).total()


def _change(dice: random.Random, app: hr.App) -> None:
    name, roll = dice.choice("abcdefg"), dice.random()
    if roll < 0.2:
        with contextlib.suppress(hr.UnknownRule):
            rules_of(app).remove(name)
    elif roll < 0.3:  # by another client, which checks nothing
        app.log.topic("rules").append({"rule": name, "text": dice.choice(REFUSED), "_op": "upsert"})
    elif roll < 0.4:
        app.log.topic("rules").append({"rule": name, "text": _text(dice.choice([*RULES.values()])), "_op": "upsert"})
    else:
        with contextlib.suppress(hr.InvalidRule):
            rules_of(app).put(name, dice.choice([*RULES.values()]).says)


@pytest.mark.parametrize("number", range(4))
def test_any_program_finds_what_brute_force_finds(number: int, seed: int, tmp_path: Path) -> None:
    run(random.Random(4 * seed + number), tmp_path, steps=60)


@pytest.mark.soak
def test_any_program_finds_what_brute_force_finds_for_long(seed: int, soak_seconds: float, tmp_path: Path) -> None:
    dice, until, some = random.Random(seed), time.monotonic() + soak_seconds, 0
    while time.monotonic() < until:
        some += run(dice, tmp_path / "home", steps=dice.choice([40, 120]))
        shutil.rmtree(tmp_path / "home")
    assert some > 10


# -- single programs -------------------------------------------------------------------------------------


def row(v: int | None, seconds: int, key: str = "x") -> Row:
    return {"k": key, "v": v, "at": at(seconds)}


def told(app: hr.App) -> list[tuple[str, str, Row]]:
    rows = app.query("SELECT rule, version, measures FROM found ORDER BY match_end, rule").to_pylist()
    return [(each["rule"], each["version"], json.loads(each["measures"])) for each in rows]


def test_a_version_sees_what_arrives_after_it_until_it_is_replaced(tmp_path: Path) -> None:
    with started(tmp_path, None, late=False) as app:
        rules, events = rules_of(app), app.log.topic("events")
        events.append(row(7, 0))  # before there is a rule
        rules.put("r", "v > 5")
        events.append(row(8, 1))
        with app.log.transaction() as tx:  # in one commit: it does not see its own
            tx.append("rules", [{"rule": "same", "text": "v > 5", "_op": "upsert"}])
            tx.append("events", [row(9, 2)])
        rules.put("r", "v > 10")
        events.append([row(9, 3), row(11, 4)])
        rules.remove("r")
        rules.remove("same")
        events.append(row(12, 5))
        app.drain()
        wanted = [("r", "0:0", {"v": 8}), ("r", "0:0", {"v": 9}), ("same", "0:1", {"v": 9})]
        assert told(app) == [*wanted, ("r", "0:2", {"v": 11}), ("same", "0:1", {"v": 11})]


class SlowClock(Clock):
    """Moves on by a millisecond."""

    def __call__(self) -> int:
        self.us += 1_000
        return self.us


def test_no_match_begins_in_one_version_and_ends_in_another(tmp_path: Path) -> None:
    """A partial match ends with its version; an absence is told if its time was over by then."""
    clock = SlowClock()
    with started(tmp_path, clock, late=False) as app:
        rules, events = rules_of(app), app.log.topic("events")
        seconds = lambda: clock.us // 1_000_000 - int(ZERO.timestamp())  # noqa: E731
        rules.put("pair", "PATTERN (a b) WITHIN '20 seconds' DEFINE a AS v = 1, b AS v = 2")
        rules.put("quiet", "PATTERN (a !b) WITHIN '5 seconds' DEFINE a AS v = 1, b AS v = 2")
        events.append(row(1, seconds()))
        app.drain()
        assert {each["rule"] for each in app.query("SELECT rule FROM found_partials").to_pylist()} == {"pair", "quiet"}
        rules.put("pair", "PATTERN (a b) WITHIN '20 seconds' DEFINE a AS v = 1, b AS v = 2")
        rules.remove("quiet")
        events.append(row(2, seconds()))
        app.drain(close=True)
        assert told(app) == []
        assert app.query("SELECT * FROM found_partials").num_rows == 0
        rules.put("quiet", "PATTERN (a !b) WITHIN '5 seconds' DEFINE a AS v = 1, b AS v = 2")
        events.append(row(1, seconds()))
        clock.us += 30_000_000
        rules.remove("quiet")
        app.drain(close=True)
        assert [each[0] for each in told(app)] == ["quiet"]
        assert app.audit().ok


def test_what_is_wrong_in_the_topic_does_no_harm(tmp_path: Path) -> None:
    with started(tmp_path, None, late=False) as app:
        rules, topic = rules_of(app), app.log.topic("rules")
        with pytest.raises(hr.InvalidRule, match=r"rule 'b', 'nowhere > 1': there is no column 'nowhere'") as refused:
            rules.put_all({"a": "v > 1", "b": "nowhere > 1"})
        assert refused.value.rule == "b"
        assert not [*topic.records()]  # all, or none
        rules.put("a", "v > 1")
        for text in REFUSED:
            topic.append({"rule": "bad", "text": text, "_op": "upsert"})
        topic.append({"rule": "bad", "text": None, "_op": "upsert"})
        topic.append([{"rule": f"more {each}", "text": "v > 1", "_op": "upsert"} for each in range(5)])
        with pytest.raises(hr.InvalidRule, match="there are 5 rules"):
            rules.put("one too many", "v > 1")
        app.log.topic("events").append(row(2, 0))
        app.drain()
        assert [each[0] for each in told(app)] == ["a", *(f"more {each}" for each in range(4))]
        letters = [*app.log.dead_letters()]
        assert [(each.reason, each.value["rule"]) for each in letters] == [
            *[("invalid", "bad")] * (len(REFUSED) + 1),
            ("invalid", "more 4"),
        ]
        assert "there are 5 rules" in letters[-1].error
        assert rules.explain("bad").error is not None
        assert rules.explain("a").measures == {"v": "`v`"}
        assert [*rules.list()] == ["a", "bad", *(f"more {each}" for each in range(5))]
        with pytest.raises(hr.UnknownRule, match=r"no rule 'aa'. Did you mean 'a'\?"):
            rules.remove("aa")


# -- kills -----------------------------------------------------------------------------------------------

OFTEN = ("flow.computed", "view.committed", "relay.appended")


def begun_and_killed(home: Path, point: str) -> None:
    without_spark()
    with started(home, None, late=True, told=True) as app:
        failpoints.arm(point, "kill")
        app.drain()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[Any]]:
    """Some was found; rules and records that are further on are in the log, and not read."""
    home = tmp_path_factory.mktemp("kills") / "before"
    dice = random.Random(3)
    with pytest.MonkeyPatch.context() as patch, started(home, None, late=True, told=True) as app:
        without_spark(patch.setattr)
        for part in range(2):
            rules_of(app).put_all({name: RULES[name].says for name in ("high", "rise", "quiet", "run", "last")})
            for _ in range(15):
                app.log.topic("events").append(row(dice.choice([1, 1, 2, 3]), 100 * part + dice.randint(0, 40)))
            if not part:
                app.drain()
        rules_of(app).remove("run")
    whole = home.parent / "whole"
    shutil.copytree(home, whole)
    with pytest.MonkeyPatch.context() as patch, started(whole, None, late=True, told=True) as app:
        without_spark(patch.setattr)
        app.drain()
        return home, found(app)


@pytest.fixture(scope="module")
def start() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas"])

    def ended(*arguments: Any) -> int:
        process = context.Process(target=begun_and_killed, args=arguments)
        process.start()
        process.join(60)
        return int(process.exitcode or 0)

    return ended


@pytest.mark.parametrize(
    "point", [each if each in OFTEN else pytest.param(each, marks=pytest.mark.soak) for each in CRASH_POINTS]
)
def test_a_kill_at_any_point_finds_the_same(
    point: str, before: tuple[Path, Counter[Any]], tmp_path: Path, start: Any
) -> None:
    home = tmp_path / "home"
    shutil.copytree(before[0], home)
    assert start(home, point) == -signal.SIGKILL
    with started(home, None, late=True, told=True) as app:
        app.drain()
        assert found(app) == before[1]
        assert found(app).total() > 10
        sent = Counter[Any]()
        for each in (record.value for record in app.log.topic("told").records()):
            sent[each["rule"], each["version"], each["match_end"]] += 1 if each["op"] == "+" else -1
        assert +sent == Counter((rule, version, end) for rule, version, _, _, end, *_ in before[1].elements())
        assert app.audit().ok
