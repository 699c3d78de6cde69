"""How far a view is, through the flows before it: read-your-writes and lag behind dedup, chains and copies. Every
record has an id of its own, so a view that counts records says itself how many it has."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.views.origins import reached
from headrace.views.standing import lag_of, sources_of
from tests.flows.shop import START
from tests.flows.sparkless import Sparkless

COUNTS = {
    "exact": "select n from exact",
    "about": "select n from about",
    "per_word": "select sum(n) from per_word",
    "totals": "select total from totals",
    "grand": "select total from grand",
    "copied": "select n from copied",
    "both": "select n / 2 from both",
}
"""View -> how many records are in it."""


def shop(home: Path, spark: Any, **settings: Any) -> hr.App:
    app = hr.App("shop", home=home, spark=spark, **settings)
    events = app.topic("events", "id bigint, word string, at timestamp", event_time="at", partitions=2, durability="os")
    stream = app.stream(events)
    stream.dedup("id", within="1 hour", late=hr.correct(within="1 day")).agg(n=hr.count()).to_view("exact")
    stream.dedup("id", within="1 hour", grace="1 day", approx=0.0001).agg(n=hr.count()).to_view("about")
    stream.group_by("word").agg(n=hr.count()).to_view("per_word")
    app.stream("per_word").agg(total=hr.sum("n")).to_view("totals")
    app.stream("totals").agg(total=hr.sum("total")).to_view("grand")
    copy = stream.to_topic("copy", durability="os")
    app.stream(copy).agg(n=hr.count()).to_view("copied")
    app.stream(copy).union(stream).agg(n=hr.count()).to_view("both")
    return app


def records_in(app: hr.App, view: str) -> int:
    (row,) = app.query(COUNTS[view]).to_pylist() or [{"n": 0}]
    return int(next(iter(row.values())) or 0)


def lag(app: hr.App, view: str) -> int:
    views = app.views
    found = lag_of(sources_of(app.log, views.branches(view), views.state(view)))
    assert found is not None
    return found


@pytest.mark.parametrize("steps", [40, pytest.param(400, marks=pytest.mark.soak)])
def test_positions_and_lag_hold_at_every_step(spark: Any, tmp_path: Path, seed: int, steps: int) -> None:
    """Flows take any steps in any order, and are begun again: a view that is said to be at a position has all records
    up to there, and lag is never less than what a view lacks."""
    rng = random.Random(seed)
    with shop(tmp_path, spark) as app:
        events, appended = app.log.topic("events"), 0
        done: list[tuple[int, hr.Position]] = []
        loops = {flow.name: app.running.loop(flow) for flow in app.running.flows}
        seen = dict.fromkeys(COUNTS, 0)
        for _ in range(steps):
            if rng.random() < 0.3:
                rows = [
                    {"id": appended + n, "word": rng.choice("abc"), "at": START + timedelta(seconds=appended + n)}
                    for n in range(rng.randrange(1, 6))
                ]
                appended += len(rows)
                before = done[-1][1] if done else hr.Position()
                done.append((appended, before | events.append(rows).position))
            name = rng.choice(list(loops))
            loops[name].batch_rows = rng.choice([1, 3, 100])
            loops[name].step()
            if rng.random() < 0.1:
                app.running._loops.pop(name)
                loops[name] = app.running.loop(app.flows[name])
            for view in rng.sample(list(COUNTS), 3):
                has, branches = records_in(app, view), app.views.branches(view)
                assert lag(app, view) >= appended - has, view
                for count, position in done:
                    if reached(branches, position):
                        assert has >= count, (view, count)
                        seen[view] = max(seen[view], count)
        app.drain()
        for view in COUNTS:
            assert (records_in(app, view), lag(app, view)) == (appended, 0), view
        assert app.views.are_at(done[-1][1])
        assert all(status.lag == 0 for status in app.status())
        assert any(seen.values()), "positions were reached on the way"


@pytest.mark.parametrize("point", ["view.committed", "relay.appended"])
def test_a_step_is_made_once_all_has_arrived(tmp_path: Path, point: str) -> None:
    """A flow that dies between its commit and the note that its rows have arrived leaves no step; the next start sends
    what is missing, and knows where the rest lies. Without a JVM."""
    with Sparkless(tmp_path, hr.tumbling("4 seconds"), names=("records",), emit="updates") as flow:

        def last_step() -> tuple[str, str]:
            read, written = flow.views.readers()["view"].steps[0]
            return read, written

        flow.topic.append({"word": "a", "n": 1, "at": START})
        flow.loop.drain()
        before = last_step()
        done = flow.topic.append({"word": "b", "n": 1, "at": START})
        failpoints.arm(point, "raise")
        with pytest.raises(failpoints.InjectedFault):
            flow.loop.drain()
        failpoints.disarm()
        assert last_step() == before
        flow.started()
        topic = flow.log.topic("view")
        assert last_step() == (str(done.position), str(hr.Position.of("view", topic.topic_id, {0: 2})))
        assert topic.offsets()[0].next == 2


def test_a_running_view_behind_dedup_and_chains_is_read_as_it_was_written(spark: Any, tmp_path: Path) -> None:
    with shop(tmp_path, spark) as app:
        events = app.log.topic("events")
        app.start()
        for number in range(1, 9):
            done = events.append({"id": number, "word": "a", "at": START + timedelta(seconds=number)})
            app.views.wait_for(done.position, timeout="1 minute")
            assert {view: records_in(app, view) for view in COUNTS} == dict.fromkeys(COUNTS, number)
        app.stop()
        assert {status.flow: status.lag for status in app.status()} == dict.fromkeys(app.flows, 0)


def test_lag_is_told_while_the_flow_before_has_not_read(spark: Any, tmp_path: Path) -> None:
    """The helper flow of dedup, or the view before, lies still: what waits there waits for the view behind it."""
    with shop(tmp_path, spark) as app:
        events = app.log.topic("events")
        events.append([{"id": n, "word": "a", "at": START} for n in range(10)])
        app.drain()
        done = events.append([{"id": n, "word": "b", "at": START} for n in range(10, 15)])
        for view in ("exact", "about", "totals", "grand", "copied", "both"):
            app.running.loop(app.flows[view]).drain()
            assert lag(app, view) == 5, view
            assert next(status for status in app.status() if status.flow == view).lag == 5
            assert not reached(app.views.branches(view), done.position)
        with pytest.raises(hr.WaitTimeout):
            app.views.wait_for(done.position, timeout="10 milliseconds")
        position = app.view("grand").status().position
        assert sum(position.offsets("events").values()) == 10, "a view's position is of the topics records come from"
        app.drain()
        assert app.view("grand").status().position.offsets("events") == app.view("per_word").status().position.offsets(
            "events"
        )
