"""Transforms behind an aggregation, into a view: thresholds, ratios, explode. Whatever the cuts, readers see what the
function makes of the results over the whole log."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import add, assert_cut_invariant
from tests.flows.oracle import Query, expected, records_of
from tests.flows.shop import SCHEMA, some_rows
from tests.flows.ways import one_way_or_many

START = datetime(2026, 1, 1, 9, tzinfo=UTC)
SEED = 20261117
QUERY = Query(10, 4, 1, 15, ("word",))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def app_of(home: Path, spark: Any) -> hr.App:
    app = hr.App("shaped", home=home, spark=spark)
    topic = app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os")
    parts = (
        app.stream(topic)
        .window(
            hr.hopping("10 seconds", every="4 seconds"), grace="1 second", late=hr.correct(within="15 seconds"),
            idle="1 day",
        )
        .group_by("word")
        .agg(records=hr.count(), total=hr.sum("n"), mean=hr.avg("n"))
        .transform(lambda df: df.where("mean < 60").drop("mean"))
        .transform(lambda df: df.selectExpr("*", "total / records as share", "explode(sequence(1, records)) as part"))
        .to_view("parts")
    )  # fmt: skip
    aggregates = {"parts": hr.count(), "total": hr.sum("total"), "share": hr.max("share")}
    app.stream(parts).group_by("word").agg(**aggregates).to_view("by_word")
    return app


def wanted(app: hr.App) -> Counter[tuple[Any, ...]]:
    """The same over the whole log, in plain Python."""
    rows, _ = expected(records_of(app.log.topic("events")), QUERY)
    return Counter(
        (*key, row["records"], row["total"], row["total"] / row["records"], part, row["_corrections"])
        for key, row in rows.items()
        if row["mean"] is not None and row["mean"] < 60
        for part in range(1, row["records"] + 1)
    )


def found(views: Any) -> Counter[tuple[Any, ...]]:
    names = ("window_start", "word", "records", "total", "share", "part", "_corrections")
    return Counter(tuple(row[name] for name in names) for row in views.to_arrow("parts").to_pylist())


def wanted_by_word(app: hr.App) -> dict[str, tuple[Any, ...]]:
    """What a flow over the view makes of its rows."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for row in wanted(app).elements():
        rows.setdefault(row[1], []).append(row)
    return {word: (len(of), sum(row[3] for row in of), max(row[4] for row in of)) for word, of in rows.items()}


def found_by_word(views: Any) -> dict[str, tuple[Any, ...]]:
    rows = views.to_arrow("by_word").to_pylist()
    return {row["word"]: (row["parts"], row["total"], row["share"]) for row in rows}


def test_a_view_is_its_transform_over_the_whole_log(spark: Any, tmp_path: Path) -> None:
    rng, now = random.Random(SEED), 0.0
    for _ in range(2):  # the second app goes on where the first was
        with app_of(tmp_path, spark) as app:
            for _ in range(2):
                app.log.topic("events").append(some_rows(rng, 30, now))
                now += 15
                app.drain(batch_rows=rng.choice([11, 20, 1000]))
                assert found(app.views) == wanted(app)
                assert found_by_word(app.views) == wanted_by_word(app)
            with pytest.raises(hr.InvalidArgument, match="no state to merge"):
                app.stream("parts").agg(total=hr.merge("total"))
            wrong = app.stream("events").group_by("word").agg(n=hr.count()).transform(lambda df: df.where("m > 1"))
            with pytest.raises(hr.UnknownColumn, match="no column 'm'"):
                app.stream(wrong.to_view("wrong")).agg(n=hr.count()).to_view("over")
                app.running.check()
            del app.flows["wrong"], app.flows["over"]
            app.drain(close=True)
            assert set(app.view("parts").to_arrow()["_status"].to_pylist()) == {"final"}
            if now == 60:
                audited = app.audit()
                assert audited.ok and audited.rows == wanted(app).total() + len(wanted_by_word(app)) > 50
                app.running.store._db.execute('UPDATE "parts/shaped" SET share = share + 1 WHERE part = 2')
                audited = app.audit()
                differing = {(each.column, round(each.stored - each.expected)) for each in audited.differences}
                assert differing == {("share", 1)}
                ledger = app.view("parts").ledger()
                assert sum(ledger["on_time"].to_pylist()) > 100 and sum(ledger["corrected"].to_pylist()) > 5


@one_way_or_many
def test_any_cuts_and_crashes_give_the_same(spark: Any, tmp_path: Path, ways: int) -> None:
    rng = random.Random(SEED)
    rows = [add("events", some_rows(rng, 30, now)) for now in range(0, 60, 20)]

    def check(app: hr.App) -> None:
        assert found(app.views) == wanted(app)
        assert found_by_word(app.views) == wanted_by_word(app)

    with app_of(tmp_path, spark) as app:
        assert_cut_invariant(app, *rows, cuts=ways, seed=SEED, check=check)


def test_a_correction_passes_a_threshold_and_another_falls_below_it(spark: Any, tmp_path: Path) -> None:
    with hr.App("alarms", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, ms int, at timestamp", event_time="at")
        slow = (
            app.stream(topic)
            .window(hr.tumbling("10 seconds"), late=hr.correct(within="1 hour"), idle="1 day")
            .group_by("who")
            .agg(n=hr.count(), ms=hr.avg("ms"))
            .transform(
                lambda df: df.where("ms > 100").selectExpr("window_start", "window_end", "who", "ms / 1000 as s")
            )
            .to_view("slow", keep="1 day")
        )

        def put(who: str, ms: int, seconds: float) -> None:
            topic.append({"who": who, "ms": ms, "at": at(seconds)})
            app.drain()

        def rows() -> list[tuple[Any, ...]]:
            names = ("who", "s", "_status", "_corrections")
            return [tuple(row[name] for name in names) for row in slow.to_arrow().to_pylist()]

        put("a", 50, 1)
        put("b", 10, 11)  # the first window is closed
        assert rows() == [] and slow.status().rows == 0
        with app.views.watch("slow", timeout="0 seconds") as changes:
            put("a", 250, 2)  # a straggler: 150 on average
            assert rows() == [("a", 0.15, "final", 1)]
            assert slow.get(who="a") == slow.to_arrow().to_pylist()[0]
            assert app.query("select s from slow where window_end > ?", (at(5),)).to_pylist() == [{"s": 0.15}]
            put("a", 0, 3)  # 100
            assert rows() == []
            put("b", 400, 12)
            assert [(c["op"], c["who"], c["s"], c["_status"], c["_corrections"]) for c in changes] == [
                ("+", "a", 0.15, "final", 1),
                ("-", "a", 0.15, "final", 1),
                ("+", "b", 0.205, "open", 0),
            ]
        assert [tuple(row.values())[2:] for row in slow.ledger().to_pylist()] == [(1, 2, 0, 0), (2, 0, 0, 0)]
        assert app.audit().ok


def test_a_transform_that_fails_commits_nothing_and_stops_the_flow(spark: Any, tmp_path: Path) -> None:
    with hr.App("fails", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string")
        counted = app.stream(topic).group_by("who").agg(n=hr.count())
        view = counted.transform(lambda df: df.selectExpr("*", "10 div (n - 2) as x")).to_view("v")
        topic.append({"who": "a"})
        app.drain()
        topic.append([{"who": "a"}, {"who": "b"}])
        with pytest.raises(hr.TransformFailed, match=r"'v'.*DIVIDE_BY_ZERO.*The batch was not committed"):
            app.drain()
        assert [(row["who"], row["x"]) for row in view.to_arrow().to_pylist()] == [("a", -10)]
        app.start()
        with pytest.raises(hr.TransformFailed):
            app.wait("1 minute")
        app.stop()
        assert not list(app.log.dead_letters()) and view.status().commits == 2
        topic.append({"who": "a"})  # now n is 3
        app.drain()
        assert [(row["who"], row["x"]) for row in view.to_arrow().to_pylist()] == [("a", 10), ("b", -10)]


def test_what_cannot_be_a_view_is_refused(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    with hr.App("refused", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at")
        counted = app.stream(topic).window(hr.tumbling("10 seconds")).group_by("who").agg(n=hr.count())
        order = Window.partitionBy("window_start").orderBy(F.desc("n"))
        for transform, said in (
            (lambda df: df.select("n", "window_start"), "drops window_end, who, which say which result a row is of"),
            (lambda df: df.withColumn("who", F.upper("who")), "'who' is changed"),
            (lambda df: df.withColumn("rank", F.rank().over(order)), "transform 1 behind agg"),
            (lambda df: df.withColumn("now", F.current_timestamp()), "current_timestamp"),
        ):
            app.flows.clear()
            counted.transform(transform).to_view("v")
            with pytest.raises(hr.TransformRefused, match=said):
                app.running.check()
        app.flows.clear()
        counted.transform(lambda df: df.withColumn("both", F.struct("n"))).to_view("v")
        with pytest.raises(hr.InvalidArgument, match="both"):
            app.running.check()
        app.flows.clear()
        counted.transform(lambda df: df.where("n > 1")).to_view("v")
        app.drain()
    with hr.App("refused", home=tmp_path, spark=spark) as app:
        counted = app.stream("t").window(hr.tumbling("10 seconds")).group_by("who").agg(n=hr.count())
        counted.transform(lambda df: df.where("n > 1").withColumn("m", F.lit(1))).to_view("v")
        with pytest.raises(hr.FlowChanged, match="transform behind agg: to n bigint became to n bigint, m int"):
            app.drain()
