"""Whole programs of patterns, from the log to the store, without a JVM: in any cuts, with restarts, killed, and in
silence. In the end each view is what brute force finds in the whole log."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.cep.definition import Pattern
from headrace.cep.shape import parse
from headrace.testing import CRASH_POINTS
from tests.cep.brute_force import Taken, matches
from tests.cli.conftest import Shell
from tests.databases import PostgresServer
from tests.operators.sparkless_joins import without_spark
from tests.operators.test_join_programs import Clock, at, records

PATTERNS = {
    "rise": {"text": "low mid* high", "within": "20 seconds"},
    "quiet": {"text": "low !high", "within": "6 seconds"},
    "late": {"text": "low mid", "within": "5 seconds", "timed_out": True},
    "run": {"text": "low mid+", "within": "9 seconds", "skip": "to_next"},
}
DEFINE = {"low": "v = 1", "mid": "v = 2", "high": "v >= 3"}
SYMBOLS = {1: "low", 2: "mid", 3: "high"}


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)


def of(name: str) -> Pattern:
    said: dict[str, Any] = dict(PATTERNS[name])
    text = said.pop("text")
    define = {symbol: DEFINE[symbol] for symbol in DEFINE if symbol in text}
    return hr.pattern(text, define=define, measures={"n": "count(*)", "total": "sum(v)"}, **said)


def started(home: Path, clock: Clock, late: bool) -> hr.App:
    app = hr.App("program", home=home, clock_us=clock)
    topic = app.topic("events", "k string, v int, at timestamp", key="k", event_time="at", partitions=2)
    for name in PATTERNS:
        judged = hr.correct(within="10 seconds") if late else hr.drop()
        app.stream(topic).match(of(name), by="k", grace="2 seconds", late=judged).to_view(name)
    return app


def wanted(app: hr.App, name: str, late: bool) -> Counter[Any]:
    pattern, out = of(name), Counter[Any]()
    accepted: dict[str, list[Any]] = {}
    grace, more = at(2) - at(0), at(10 if late else 0) - at(0)  # type: ignore[operator]
    for cells, partition, offset, _, progress in records(app.log.topic("events")):
        if cells["at"] is not None and (progress is None or progress <= cells["at"] + grace + more):
            corrected = progress is not None and progress > cells["at"] + grace
            accepted.setdefault(cells["k"], []).append((cells["at"], partition, offset, cells["v"], corrected))
    for key, rows in accepted.items():
        rows.sort()

        def holds(symbol: str, _: Taken, row: int, rows: list[Any] = rows) -> bool:
            return SYMBOLS.get(min(rows[row][3] or 0, 3)) == symbol

        times = [int(row[0].timestamp() * 1_000_000) for row in rows]
        for outcome, taken in matches(
            parse(pattern.text), times, holds, pattern.within_us, pattern.skip, timed_out=pattern.timed_out
        ):
            some = [rows[row] for _, row in taken]
            late_rows = sum(row[4] for row in some)
            out[key, some[0][0], some[-1][0], len(some), sum(row[3] for row in some), late_rows, outcome] += 1
    return out


def found(app: hr.App, name: str) -> Counter[Any]:
    names = ("k", "match_start", "match_end", "n", "total", "_corrections")
    rows = app.view(name).to_arrow().to_pylist()
    return Counter((*(row[each] for each in names), row.get("outcome", "match")) for row in rows)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 500))])
def test_any_cut_comes_to_what_brute_force_finds(seed: int, tmp_path: Path) -> None:
    dice, clock = random.Random(seed), Clock()
    late = bool(seed % 2)
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(started(tmp_path, clock, late))
        now = dice.choice([0, 990])
        for _ in range(dice.randint(20, 50)):
            what = dice.random()
            if what < 0.8:
                when = max(0, now - dice.choice([0, 0, 0, 1, 3, 12]))
                row = {"k": dice.choice("xyz"), "v": dice.choice([1, 1, 2, 2, 3, None]), "at": at(when)}
                app.log.topic("events").append([row] * dice.choice([1, 1, 1, 2]))
            elif what < 0.93:
                app.drain(batch_rows=dice.choice([None, 1, 2, 3]), close=dice.random() < 0.1)
            else:
                stack.pop_all().close()
                app = stack.enter_context(started(tmp_path, clock, late))
            clock.us += 1_000_000 * dice.choice([0, 0, 1, 5])
            now += dice.choice([0, 1, 2, 4])
        app.drain(close=True)
        for name in PATTERNS:
            assert found(app, name) == wanted(app, name, late), name
            assert app.query(f"SELECT count(*) AS n FROM {name}_partials").to_pylist() == [{"n": 0}]
        assert seed or app.audit().ok


def test_an_absence_fires_by_silence_and_is_taken_back() -> None:
    """low at 0, within 6 s, grace 2 s: nobody writes any more, and behind `idle` time goes on with the clock."""
    clock = Clock()
    with hr.App("silence", home=":temp:", clock_us=clock) as app:
        topic = app.topic("events", "k string, v int, at timestamp", key="k", event_time="at")
        late = hr.correct(within="1 hour")
        app.stream(topic).match(of("quiet"), by="k", grace="2 seconds", late=late, idle="5 seconds").to_topic("calls")
        topic.append({"k": "x", "v": 1, "at": at(1_000)})
        app.drain()
        assert app.log.topic("calls").offsets()[0].next == 0
        clock.us += 20_000_000
        app.drain()
        topic.append({"k": "x", "v": 3, "at": at(1_004)})
        app.drain()
        assert [(each.value["op"], each.value["match_end"]) for each in app.log.topic("calls").records()] == [
            ("+", at(1_000)),
            ("-", at(1_000)),
        ]


def test_what_is_too_late_goes_to_a_topic() -> None:
    with hr.App("late", home=":temp:") as app:
        topic = app.topic("events", "k string, v int, at timestamp", key="k", event_time="at")
        late = hr.drop(dropped_to="too_late")
        app.stream(topic).match(of("run"), by="k", grace="1 second", late=late).to_view("runs")
        topic.append([{"k": "x", "v": v, "at": at(n)} for n, v in ((0, 1), (50, 2), (10, 2))])
        app.drain()
        (record,) = app.log.topic("too_late").records()
        assert (record.value["k"], record.value["v"], record.value["at"]) == ("x", 2, at(10))
        assert app.view("runs").ledger().select(["on_time", "dropped"]).to_pylist() == [{"on_time": 2, "dropped": 1}]


# -- killed ------------------------------------------------------------------------------------------------


def alarms(home: Path) -> hr.App:
    app = hr.App("alarms", home=home)
    topic = app.topic("events", "k string, v int, at timestamp", key="k", event_time="at")
    late = hr.correct(within="1 hour")
    app.stream(topic).match(of("quiet"), by="k", grace="0 seconds", late=late).to_topic("calls")
    return app


def begun_and_killed(home: Path, point: str) -> None:
    without_spark()
    with alarms(home) as app:
        failpoints.arm(point, "kill")
        app.drain()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two keys wait; what answers one, and what shows that time has passed for the other, is in the log, not read."""
    home = tmp_path_factory.mktemp("kills") / "before"
    with pytest.MonkeyPatch.context() as patch, alarms(home) as app:
        without_spark(patch.setattr)
        app.log.topic("events").append([{"k": "x", "v": 1, "at": at(0)}, {"k": "y", "v": 1, "at": at(1)}])
        app.drain()
        app.log.topic("events").append([{"k": "x", "v": 3, "at": at(4)}, {"k": "z", "v": 2, "at": at(100)}])
    return home


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_killed_at_any_point_an_alarm_goes_out_once(
    point: str, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(before, home)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas"])
    process = context.Process(target=begun_and_killed, args=(home, point))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    without_spark(monkeypatch.setattr)
    with alarms(home) as app:
        app.drain()
        app.log.topic("events").append({"k": "y", "v": 3, "at": at(5)})  # late: it takes the alarm of y back
        app.drain()
        sent = [(each.value["op"], each.value["k"]) for each in app.log.topic("calls").records()]
    assert sent == [("+", "y"), ("-", "y")]


def test_what_keys_wait_for_is_printed_by_its_name(tmp_path: Path) -> None:
    with hr.App("named", home=tmp_path) as app:
        topic = app.topic("events", "k string, v int, at timestamp", key="k", event_time="at")
        app.stream(topic).match(of("run"), by="k", grace="0 seconds").to_view("runs")
        topic.append([{"k": "x", "v": 1, "at": at(0)}])
        app.drain()
    shell = Shell(tmp_path)
    (row,) = shell.ok("query", "runs_partials", "--home", str(tmp_path)).rows
    assert (row["k"], row["rows"], row["waits_for"]) == ("x", 1, "mid")
    assert "no view 'run_partials'" in shell.refused("query", "run_partials", "--home", str(tmp_path))


# -- in Postgres -------------------------------------------------------------------------------------------


def test_matches_and_what_keys_wait_for_are_relations_of_a_database(postgres: PostgresServer, tmp_path: Path) -> None:
    with hr.App("database", home=tmp_path, views=str(postgres.schema(tmp_path))) as app:
        topic = app.topic("events", "k string, v int, at timestamp", key="k", event_time="at")
        app.stream(topic).match(of("run"), by="k", grace="0 seconds").to_view("runs")
        topic.append([{"k": "x", "v": v, "at": at(n)} for n, v in ((0, 1), (2, 2), (3, 3), (5, 1))])
        app.drain()
        assert [row["n"] for row in app.view("runs").to_arrow().to_pylist()] == [2]
        [row] = app.query("SELECT k, match_start, rows, waits_for FROM runs_partials").to_pylist()
        assert row == {"k": "x", "match_start": at(5), "rows": 1, "waits_for": "mid"}
