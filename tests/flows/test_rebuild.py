"""A view made anew beside the one that is served: what a fresh program makes of the same log, switched to in one
moment, and back; while the old one runs; through crashes; and what goes out of it, goes out once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.failpoints import InjectedFault
from tests.flows.shop import SCHEMA, START, some_rows

SEED = 20261116
POINTS = ["view.applied", "view.committed", *(point for point in failpoints.KNOWN if point.startswith("switch."))]


def program(
    home: Path | str,
    spark: Any,
    *,
    new: bool = False,
    dropped_to: str | None = None,
    views: tuple[str, ...] = ("words",),
    poison: tuple[int, ...] = (),
    **settings: Any,
) -> hr.App:
    """Words by ten seconds; the new one also sums and counts numbers. Records whose n is `poison` break it."""
    app = hr.App("tests", home=home, spark=spark, **settings)
    stream = app.stream(app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os"))
    if poison:
        broken = ", ".join(map(str, poison))
        stream = stream.transform(lambda df: df.where(f"cast(if(n in ({broken}), 'x', '1') as int) = 1"))
    more: dict[str, Any] = {"total": hr.sum("n"), "kinds": hr.count_distinct("n")} if new else {}
    for view in views:
        (
            stream.window(hr.tumbling("10 seconds"), grace="2 seconds", late=hr.drop(dropped_to=dropped_to))
            .group_by("word")
            .agg(records=hr.count(), **more)
            .to_view(view)
        )
    return app


def rows(app: hr.App, view: str = "words") -> list[dict[str, Any]]:
    """But for whether they are final: that is a matter of the clock."""
    found = app.view(view).to_arrow().to_pylist()
    return [{name: value for name, value in row.items() if name != "_status"} for row in found]


def records_in(app: hr.App, view: str = "words") -> int:
    ledger = app.view(view).ledger()
    return sum(sum(ledger[name].to_pylist()) for name in ("on_time", "corrected", "dropped", "untimed"))


def letters(app: hr.App) -> Counter[int]:
    return Counter(letter.value["n"] for letter in app.log.dead_letters())


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture
def home(tmp_path: Path, spark: Any, rng: random.Random) -> Path:
    """The old program has run over 200 records, in pieces."""
    with program(tmp_path / "home", spark) as app:
        app.log.topic("events").append(some_rows(rng, 200, 0))
        app.drain(batch_rows=70)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def test_an_aggregate_is_added(home: Path, spark: Any, rng: random.Random) -> None:
    """The view is what a fresh one over the same log is, also of records the old one had not come to; the audit agrees;
    and the new program goes on where it is."""
    with program(home, spark) as old:
        before = old.view("words").to_arrow()
    with program(home, spark, new=True, batch_rows=50) as app:
        for ask in (app.running.check, app.drain):
            with pytest.raises(hr.FlowChanged, match=r"headrace rebuild APP\.py words --switch"):
                ask()
        app.log.topic("events").append(some_rows(rng, 100, 150))
        made = app.rebuild("words")
        assert app.view("words").to_arrow().equals(before) and app.views.names() == ["words"]
        found = made.compare()
        assert made.diff().num_rows == 0 and found.counts.same == before.num_rows  # up to there, and in what both have
        assert (found.added, found.removed) == (["total", "kinds"], [])
        made.switch()
        assert records_in(app) == 300 and app.audit().ok
    with program(home, spark, new=True, views=("words", "fresh"), batch_rows=60) as app:
        app.log.topic("events").append(some_rows(rng, 50, 240))
        app.drain()
        audited = app.audit()
        assert audited.ok and audited.rows == 2 * len(rows(app)) and rows(app) == rows(app, "fresh")
        assert records_in(app) == 350 and app.view("words").ledger().equals(app.view("fresh").ledger())


def test_back_to_what_it_was(home: Path, spark: Any, rng: random.Random) -> None:
    with program(home, spark, new=True) as app:
        with pytest.raises(hr.CannotRebuild, match="has no previous version"):
            app.rollback("words")
        before, state = app.view("words").to_arrow(), app.views.state("words")
        app.log.topic("events").append(some_rows(rng, 60, 150))
        app.rebuild("words").switch()
        app.log.topic("events").append(some_rows(rng, 40, 200))
        app.drain()
        commits = app.views.state("words").sequence
        app.rollback("words")
        assert app.view("words").to_arrow().equals(before) and app.views.state("words").places == state.places
    with program(home, spark) as old:
        old.drain()
        assert records_in(old) == 300 and old.audit().ok
    with program(home, spark, new=True) as app:
        app.rebuild("words").switch()  # the same program: what it made is gone on with, not made again
        assert app.audit().ok and records_in(app) == 300 and app.views.state("words").sequence <= commits + 6
        assert app.running.discard("words") == ["words/previous"]
        with pytest.raises(hr.CannotRebuild):
            app.rollback("words")


def test_while_the_old_one_runs(home: Path, spark: Any, rng: random.Random) -> None:
    """It goes on until the switch, is fenced then, stops and says why; nothing is lost, nothing doubled."""
    old, done, sent = program(home, spark), threading.Event(), [200]
    try:
        with program(home, spark, new=True) as app:
            events = app.log.topic("events")

            def produce() -> None:
                while not done.wait(0.02):
                    events.append(some_rows(rng, 10, sent[0]))
                    sent[0] += 10

            old.start()
            producer = threading.Thread(target=produce)
            producer.start()
            try:
                made = app.rebuild("words")
                assert old.status()[0].state in ("running", "waiting")
                made.switch()
                with pytest.raises(hr.FlowFenced, match="another version of the view takes its place"):
                    while not old.wait("30 seconds"):
                        pass
                with pytest.raises(hr.AlreadyRunning):
                    app.start()
                old.close()
                app.start()
            finally:
                done.set()
                producer.join()
            app.views.wait_for(events.append(some_rows(rng, 10, sent[0])).position, timeout="1 minute")
            app.stop()
            assert records_in(app) == sent[0] + 10 and app.audit().ok
    finally:
        old.close()


def test_a_quiet_runner_finds_out(home: Path, spark: Any) -> None:
    with program(home, spark) as old, program(home, spark, new=True) as app:
        old.start()
        app.rebuild("words").switch()
        with pytest.raises(hr.FlowFenced, match="another version"):
            while not old.wait("30 seconds"):
                pass


def records(*some: tuple[int, int]) -> list[dict[str, Any]]:
    """Seconds and n of each."""
    return [{"word": "a", "n": n, "at": START + timedelta(seconds=seconds)} for seconds, n in some]


def test_what_goes_out_goes_out_once(tmp_path: Path, spark: Any) -> None:
    """Dropped records go to a topic, those that break the program are dead letters: each once, by the one version or
    the other, though both have read it."""
    home, settings = tmp_path / "home", {"dropped_to": "late", "batch_rows": 3}
    with program(home, spark, poison=(10,), **settings) as old:  # type: ignore[arg-type]
        events = old.log.topic("events")
        old.start()
        some = records((0, 10), (1, 11), (40, 12), (5, 13), (41, 14))  # 13 is too late
        old.views.wait_for(events.append(some, partition=0).position, timeout="1 minute")
        old.stop()
        assert letters(old) == {10: 1}
        assert [record.value["n"] for record in old.log.topic("late").records()] == [13]
    with program(home, spark, new=True, poison=(10, 11, 15), **settings) as app:  # type: ignore[arg-type]
        app.log.topic("events").append(records((80, 15), (6, 16), (81, 17)), partition=0)  # 16 is too late
        made = app.rebuild("words")
        assert letters(app) == {10: 1}  # what the new one emits waits for the switch
        made.switch()
        app.drain()  # sends it
        assert letters(app) == {10: 1, 11: 1, 15: 1} and app.audit().ok
        assert [record.value["n"] for record in app.log.topic("late").records()] == [13, 16]
        assert sum(app.view("words").ledger()["dropped"].to_pylist()) == 2


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_leaves_the_one_or_the_other(home: Path, spark: Any, point: str) -> None:
    """And the next rebuild goes on. (That a transaction is whole after SIGKILL: tests/views/test_versions.py.)"""
    with program(home, spark) as old:
        before = rows(old)
    with program(home, spark, new=True, batch_rows=60) as app:
        failpoints.arm(point, "raise", skip=0 if point.startswith("switch.") else 2)
        with pytest.raises(InjectedFault):
            app.rebuild("words").switch()
        failpoints.disarm()
        switched = point == "switch.committed"
        assert ("total" in app.view("words").to_arrow().column_names) == switched
        assert switched or rows(app) == before
    with program(home, spark) as old:
        if switched:
            with pytest.raises(hr.FlowChanged):
                old.drain()
        else:
            old.drain()  # whatever it was fenced by
            assert rows(old) == before and old.audit().ok
    with program(home, spark, new=True, batch_rows=60) as app:
        app.rebuild("words").switch()
        assert app.audit().ok and records_in(app) == 200


def test_a_changed_function_is_another_program(home: Path, spark: Any) -> None:
    """What was made by another is not gone on with."""

    def least(n: int) -> hr.App:
        app = hr.App("tests", home=home, spark=spark)
        stream = app.stream("events").transform(lambda df: df.where(f"n > {n}"))
        windowed = stream.window(hr.tumbling("10 seconds"), grace="2 seconds")
        windowed.group_by("word").agg(records=hr.count()).to_view("words")
        return app

    counts = []
    for n in (10, 10, 90):
        with least(n) as app:
            made = app.rebuild("words")
            commits = app.views.state("words/next").sequence
            counts.append((made.compare().counts.removed, commits))
    assert counts[0] == counts[1] and counts[2][0] > counts[0][0]
    with least(90) as app:
        made = app.rebuild("words")
        table = made.diff()
        assert set(table["op"].to_pylist()) == {"-", "+"}
        was, now = (sum(row["records"] for row in table.to_pylist() if row["op"] == op) for op in "-+")
        made.discard()
        with pytest.raises(hr.CannotRebuild, match="no new version to switch to"):
            made.switch()
        assert was > now and app.running.store.beside("words") is None
        with pytest.raises(hr.CannotRebuild, match="no other version"):
            made.diff()


def test_what_cannot_be_rebuilt(tmp_path: Path, spark: Any) -> None:
    with program(tmp_path / "home", spark) as app:
        app.stream("events").to_topic("copy", durability="os")
        with pytest.raises(hr.CannotRebuild, match=r"writes to topic 'copy'.*topic of another name"):
            app.rebuild("copy")
        with pytest.raises(hr.UnknownView, match="there is no view 'word'"):
            app.rebuild("word")
        with pytest.raises(hr.CannotRebuild, match="was not run yet"):
            app.rebuild("words")
