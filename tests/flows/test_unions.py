"""One topic in two streams of a union, each with transforms of its own: as if its records were there twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.flows.query import FlowQuery
from headrace.testing import add, assert_cut_invariant
from tests.flows.oracle import Query, Row, expected, records_of
from tests.flows.shop import SCHEMA, some_rows
from tests.flows.ways import one_way_or_many

SEED = 20261118
QUERY = Query(10, 10, 2, 30, ("word",))
AGGREGATES: dict[str, Any] = {
    "records": hr.count(),
    "total": hr.sum("n"),
    "first": hr.first("word"),
    "last": hr.last("word"),
}
MADE = "timestampadd(SECOND, n % 5, at)"


def branches(topic: Any, app: hr.App, chosen: str) -> hr.Stream:
    """`chosen`: how the records are changed where they come twice; by nothing, they are only chosen."""
    even = app.stream(topic, name="even").transform(lambda df: df.where("n % 2 = 0"))
    large = app.stream(topic, name="large").transform(lambda df: df.where("n > 40"))
    if chosen:
        large = large.transform(lambda df: df.selectExpr("*", chosen))
        even = even.transform(lambda df: df.selectExpr("*", chosen))
    return even.union(large)


def program(home: Path | str, spark: Any) -> hr.App:
    app = hr.App("tests", home=home, spark=spark)
    topic = app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os")
    late, grace = hr.correct(within=timedelta(seconds=QUERY.within)), timedelta(seconds=QUERY.grace)

    def windows(stream: hr.Stream, **settings: Any) -> Any:
        return stream.window(hr.tumbling("10 seconds"), grace=grace, late=late, idle="1 day", **settings).group_by(
            "word"
        )

    windows(branches(topic, app, "")).agg(**AGGREGATES).to_view("arrow")
    windows(branches(topic, app, "n + 0 as m")).agg(**AGGREGATES | {"total": hr.sum("m")}).to_view("spark")
    windows(branches(topic, app, f"{MADE} as made"), time="made").agg(**AGGREGATES).to_view("own_time")
    branches(topic, app, "").group_by("word").agg(n=hr.count()).to_view("all_time")
    branches(topic, app, "").to_topic("copies")
    exact = branches(topic, app, "").dedup("word", "n", "at", within="1 second", grace="1 day")
    exact.group_by("word").agg(n=hr.count()).to_view("exact")
    about = branches(topic, app, "").dedup("word", "n", "at", within="1 second", grace="1 day", approx=0.001)
    about.group_by("word").agg(n=hr.count()).to_view("about")
    return app


def twice(topic: Any) -> list[Row]:
    records = [record for record in records_of(topic) if record["n"] is not None]
    return [r for r in records if r["n"] % 2 == 0] + [r for r in records if r["n"] > 40]


def at_made_times(records: list[Row]) -> list[Row]:
    """With the time that the transform makes, and how far that had come in the partition before each record."""
    made = [r | {"at": r["at"] and r["at"] + timedelta(seconds=r["n"] % 5)} for r in records]
    out = []
    for record in made:
        before = [
            min(r["at"], r["_arrived_at"])
            for r in made
            if r["at"] and r["_partition"] == record["_partition"] and r["_offset"] < record["_offset"]
        ]
        out.append(record | {"_progress": max(before, default=None)})
    return out


def check(app: hr.App) -> None:
    topic = app.log.topic("events")
    records = twice(topic)
    for name, of in ("arrow", records), ("spark", records), ("own_time", at_made_times(records)):
        rows, ledger = expected(of, QUERY)
        found = {(row["window_start"], row["word"]): row for row in app.view(name).to_arrow().to_pylist()}
        assert found.keys() == rows.keys(), name
        for key, row in rows.items():
            names = (*AGGREGATES, "_corrections")
            assert {each: found[key][each] for each in names} == {each: row[each] for each in names}, (name, key)
        told = {
            row["window_start"]: [row["on_time"], row["corrected"], row["dropped"], row["untimed"]]
            for row in app.view(name).ledger().to_pylist()
        }
        assert told == ledger, name
    words = [record["word"] for record in records]
    counted = {row["word"]: row["n"] for row in app.view("all_time").to_arrow().to_pylist()}
    assert counted == {word: words.count(word) for word in set(words)}
    assert len(list(app.log.topic("copies").records())) == len(records)
    different = {(record["word"], record["n"], record["at"]) for record in records if record["at"] is not None}
    by_word = [word for word, _, _ in different]
    for name in "exact", "about":
        counted = {row["word"]: row["n"] for row in app.view(name).to_arrow().to_pylist()}
        assert counted == {word: by_word.count(word) for word in set(by_word)}, name


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with program(tmp_path, spark) as app:
        yield app


def test_a_topic_is_read_twice_as_if_its_records_were_there_twice(app: hr.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """By jobs of one task and of several."""
    rng, topic = random.Random(SEED), app.log.topic("events")
    for now, batch_rows, one_task_rows in ((0, 1_000, 0), (20, 15, 1_000), (40, 15, 0), (60, 1_000, 1_000)):
        monkeypatch.setattr(FlowQuery, "one_task_rows", one_task_rows)
        topic.append(some_rows(rng, 30, now))
        app.drain(batch_rows=batch_rows)
    check(app)
    assert {status.flow: status.lag for status in app.status()} == dict.fromkeys(app.flows, 0)
    assert app.audit().ok


@pytest.mark.timeout(600)
@one_way_or_many
def test_any_cuts_of_a_topic_that_is_read_twice_give_the_same(app: hr.App, ways: int) -> None:
    rng = random.Random(SEED)
    rows = [add("events", some_rows(rng, 25, now)) for now in range(0, 60, 20)]
    for name in ("exact.dedup", "exact", "about.dedup", "about", "copies", "all_time"):  # the others are the odd ones
        del app.flows[name]
    assert_cut_invariant(app, *rows, cuts=ways, seed=SEED)


def test_a_record_that_one_of_the_streams_cannot_take_is_one_dead_letter(spark: Any, tmp_path: Path) -> None:
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "n int", durability="os")
        plain = app.stream(topic).transform(lambda df: df.selectExpr("n as m", *hr.META))
        broken = app.stream(topic).transform(lambda df: df.selectExpr("10 div n as m", *hr.META))
        plain.union(broken).agg(records=hr.count(), total=hr.sum("m")).to_view("v")
        topic.append([{"n": 1}, {"n": 0}, {"n": 2}])
        app.drain()
        assert [letter.origin.offset for letter in app.log.dead_letters()] == [1]
        (row,) = app.view("v").to_arrow().to_pylist()
        assert (row["records"], row["total"]) == (4, 1 + 2 + 10 + 5)


def test_a_flow_has_one_place_in_a_topic(app: hr.App) -> None:
    with pytest.raises(hr.InvalidArgument, match=r"topic 'events' is read twice.*one start"):
        app.stream("events").union(app.stream("events", start="latest"))
