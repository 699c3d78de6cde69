"""Erasure of what Spark has made: windows of each kind with every aggregate, dedup, a chain, remembered answers. After
it no byte is left, and every view is its query over the log that is left."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.traces import traces
from tests.flows.shop import app_of, check, some_rows

SEED = 20261116
CANARY = "canary-17"
NAMES = ("tumbling_correct", "all_time", "arrow_hopping", "arrow_day", "session_correct", "sliding_correct")


def program(home: Path, spark: Any) -> hr.App:
    app = app_of(home, spark, names=NAMES)
    stream = app.stream("events")
    stream.dedup("word", within="5 seconds").group_by("n").agg(words=hr.top_k("word", 9)).to_view("first_words")
    stream.remember(str.upper, key="word", column="loud", type="string").group_by("loud").agg(
        records=hr.count()
    ).to_view("loud")
    windows = app.stream("session_correct")  # the changes of its rows, by way of a topic
    windows.group_by("records").agg(words=hr.count_distinct("word"), last=hr.last("word")).to_view("behind")
    return app


def test_views_are_their_queries_over_the_log_that_is_left(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with program(tmp_path, spark) as app:
        for now in (0.0, 20.0):
            rows = some_rows(rng, 30, now)
            for row in rows[::4]:
                row["word"] = CANARY
            app.log.topic("events").append([row | {"word": row["word"] or "none"} for row in rows])
            app.drain()
        check(app)
        assert CANARY.upper() in app.view("loud").to_arrow()["loud"].to_pylist()
    assert {each.place.partition("/")[0].partition(":")[0] for each in traces(tmp_path, CANARY)} >= {"data", "views.db"}

    done = hr.erase(tmp_path, "events", CANARY, column="word")
    said = {each.place: str(each.do) for each in done.left}
    assert "its answers for all others would be asked for again" in said["view loud"], said
    done = hr.erase(tmp_path, "events", CANARY, column="word", everything=True)
    assert done.complete and {each.records for each in done.places if each.place == "topic events"} == {0}
    assert [each for word in (CANARY, CANARY.upper()) for each in traces(tmp_path, word)] == []

    with program(tmp_path, spark) as app:
        app.drain()
        check(app)
        last = app.view("behind").to_arrow()["last"].to_pylist()
        assert last and CANARY not in last
        more = [row | {"word": row["word"] or "none"} for row in some_rows(rng, 10, 40.0)]
        app.log.topic("events").append(more)  # it goes on
        app.drain()
        check(app)
    assert list(traces(tmp_path, CANARY)) == []
