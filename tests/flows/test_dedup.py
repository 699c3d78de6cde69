"""Approximate dedup: the first of each key and nothing else goes on, exactly once, however the log is cut and wherever
the program is struck; and what cannot be is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FlowChanged, InvalidArgument, UnknownColumn
from headrace.flows.query import _hash
from headrace.testing import add, assert_cut_invariant, crash_points
from tests.flows.dedup import check, program, shop, some_rows
from tests.flows.ways import one_way_or_many

SEED = 20261116


def steps(seed: int, count: int, times: tuple[int, ...] = (0, 30, 60)) -> list[Any]:
    rng = random.Random(seed)
    return [add(topic, some_rows(rng, count, now)) for now in times for topic in ("one", "two")]


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with shop(tmp_path, spark) as app:
        yield app


@pytest.mark.timeout(600)
@one_way_or_many
def test_what_goes_on_is_the_same_however_the_log_is_cut(app: hr.App, ways: int) -> None:
    assert_cut_invariant(app, *steps(SEED, 40), cuts=ways, seed=SEED, check=check)


@pytest.mark.timeout(600)
def test_what_goes_on_is_the_same_wherever_the_flow_is_struck(app: hr.App) -> None:
    points = ("flow.computed", "view.committed")  # all of them, without a JVM: test_repeats
    assert crash_points(app, *steps(SEED + 1, 12, (0, 30)), points=points) == list(points)


@pytest.mark.timeout(600)
def test_what_goes_on_is_the_same_when_the_process_is_killed() -> None:
    assert crash_points(program, *steps(SEED + 2, 12, (0,)), points=["relay.appended"], kill=True)


def ids(app: hr.App) -> list[str]:
    return [record.value["id"] for record in app.log.topic("clean").records()]


def test_begun_again_with_more_partitions_and_by_another_program(spark: Any, tmp_path: Path) -> None:
    def cleaning(app: hr.App, **settings: Any) -> Any:
        topic = app.topic("raw", "id string, at timestamp", key="id", event_time="at", durability="os")
        settings = {"within": "1 hour", "approx": 0.01} | settings
        app.stream(topic).dedup("id", **settings).transform(lambda df: df.where("id <> 'no'")).to_topic("clean")
        return topic

    with hr.App("tests", home=tmp_path, spark=spark) as app:
        topic = cleaning(app)
        topic.append([{"id": each, "at": f"2026-01-01T09:0{at}Z"} for at, each in enumerate(["a", "b", "a", "no"])])
        app.drain()
        assert ids(app) == ["a", "b"]
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        topic = cleaning(app)
        topic.alter(partitions=3)
        topic.append([{"id": each, "at": "2026-01-01T09:05Z"} for each in "acdefghci"])
        app.drain()
        found = ids(app)[2:]  # what lies in other partitions now is new there
        assert sorted(found) == sorted(set(found) & {*"acdefghi"}) and {*"cdefghi"} <= set(found)
        assert app.log.topic("__records.clean.dedup").settings.partitions == 3
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        cleaning(app, approx=0.02)
        with pytest.raises(FlowChanged, match=r"through: dedup\('id'.*approx=0.01.* became .*approx=0.02"):
            app.drain()


def test_records_may_have_more_columns_and_wider_ones(spark: Any, tmp_path: Path) -> None:
    def counting(schema: str) -> hr.App:
        app = hr.App("tests", home=tmp_path, spark=spark)
        stream = app.stream(app.topic("raw", schema, event_time="at", durability="os"))
        for name, how in ("exactly", {}), ("about", {"approx": 0.01}):
            stream.dedup("id", within="1 hour", **how).agg(n=hr.count()).to_view(name)
        return app

    with counting("id string, n int, at timestamp") as app:
        app.log.topic("raw").append([{"id": each, "n": 1, "at": "2026-01-01T09:00Z"} for each in "aba"])
        app.drain()
        app.log.topic("raw").alter(schema="id string, n bigint, at timestamp, more string")
    with counting("id string, n bigint, at timestamp") as app:
        earlier = {"n": 2**40, "at": "2026-01-01T08:59Z", "more": "x"}
        app.log.topic("raw").append([{"id": each, **earlier} for each in "abc"])
        app.drain()
        assert [app.view(name).to_arrow()["n"].to_pylist() for name in ("exactly", "about")] == [[3], [3]]
        changes = [record.value for record in app.log.topic("__changes.exactly.dedup").records()]
        assert [(row["n"], row["more"]) for row in changes if row["change__op"] == "-"] == [(1, None)] * 2
        assert [row["n"] for row in changes if row["more"]] == [2**40] * 3
        assert app.audit().ok


def test_which_of_several_columns_is_null_matters(spark: Any) -> None:
    some = spark.sql("select * from values ('a', null), (null, 'a'), (null, null), ('a', 'a') as some(x, y)")
    assert len({row[0] for row in some.select(_hash([some.x, some.y])).collect()}) == 4


def test_what_cannot_be(spark: Any, tmp_path: Path) -> None:
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        stream = app.stream(app.topic("raw", "id string, at timestamp", event_time="at"))
        for settings, what in (
            ({"approx": 0}, "above 0 and below 0.5"),
            ({"approx": 0.5}, "above 0 and below 0.5"),
            ({"approx": 0.1, "keys": 0}, "whole number"),
            ({"keys": 100}, "is for approx="),
            ({"approx": 0.1, "late": hr.correct(within="1 hour")}, "Make grace longer"),
            ({"approx": 0.1, "within": "0 seconds"}, "within"),
        ):
            with pytest.raises(InvalidArgument, match=what):
                stream.dedup("id", **{"within": "1 hour", **settings})
        clean = stream.dedup("id", within="1 hour", approx=0.1)
        with pytest.raises(InvalidArgument, match="own event time"):
            clean.window(hr.session("1 minute"), time="_arrived_at")
        with pytest.raises(InvalidArgument, match="call it once"):
            clean.dedup("id", within="1 hour", approx=0.1)
        with pytest.raises(UnknownColumn, match=r"idd.*id, at"):
            stream.dedup("idd", within="1 hour", approx=0.1).to_topic("clean").opened()
        app.flows.clear()
        timeless = app.stream(app.topic("timeless", "id string"))
        with pytest.raises(InvalidArgument, match="has no event time"):
            timeless.dedup("id", within="1 hour", approx=0.1).to_topic("other").opened()
