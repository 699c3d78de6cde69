"""Sketches, lists and one's own aggregates, from the program to the reader. That they are right under every cut is
shown by `test_oracle` and `test_cuts`, which have them in their flows."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flows import graph
from headrace.flows.flow import Flow
from headrace.flows.plan import plan
from headrace.sketches import HASHES_MAX
from tests.cli.conftest import Shell

SCHEMA = "user int, page string, ms double, tags array<string>, at timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)


def requests(count: int, seed: int = 20261116) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "user": n,
            "page": rng.choice(["/", "/", "/cart", "/pay"]),
            "ms": rng.lognormvariate(4, 1),
            "at": START + timedelta(milliseconds=n),
        }
        for n in range(count)
    ]


def adding(kept: Any, more: Any) -> Any:
    return {name: kept[name] + more[name] for name in kept}


MEAN = {
    "partial": "named_struct('n', count(ms), 'sum', sum(ms))",
    "merge": adding,
    "finish": lambda k: k["sum"] / k["n"],
}


def aggregates() -> dict[str, Any]:
    return {
        "users": hr.approx_count_distinct("user"),
        "half": hr.approx_quantile("ms", 0.5),
        "top": hr.top_k("page", 2),
        "spread": hr.histogram("ms", [10, 100]),
        "some": hr.collect("user", limit=3),
    }


@pytest.fixture(scope="module")
def app(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Many requests, folded by Arrow, by Spark, and on to a topic and a shaped view."""
    with hr.App("shop", home=tmp_path_factory.mktemp("aggregates"), spark=spark) as app:
        topic = app.topic("requests", SCHEMA, event_time="at", partitions=2, durability="os")
        stream = app.stream(topic)
        stream.agg(**aggregates()).to_view("by_arrow")
        spread = stream.transform(lambda df: df.where("ms > 0"))
        spread.agg(**aggregates(), mean=hr.Aggregate(**MEAN)).to_view("by_spark")
        window = spread.window(hr.tumbling("1 hour")).agg(**aggregates())
        window.to_topic("changes", durability="os")
        exploded = window.transform(lambda df: df.selectExpr("window_start", "window_end", "inline(top)", "some"))
        exploded.to_view("exploded")
        topic.append(requests(10_000))
        app.drain(batch_rows=6_000)
        yield app


def test_arrow_and_spark_come_to_the_same(app: Any) -> None:
    rows = requests(10_000)
    (by_arrow,) = app.view("by_arrow").to_arrow().to_pylist()
    (by_spark,) = app.view("by_spark").to_arrow().to_pylist()
    assert by_spark.pop("mean") == pytest.approx(sum(row["ms"] for row in rows) / len(rows))
    assert by_arrow == by_spark
    assert by_arrow["users"] == pytest.approx(10_000, rel=5 / HASHES_MAX**0.5)
    assert by_arrow["half"] == pytest.approx(sorted(row["ms"] for row in rows)[4_999], rel=0.0078)
    assert by_arrow["some"] == [0, 1, 2]
    assert [each["value"] for each in by_arrow["top"]] == ["/", "/pay"] or by_arrow["top"][1]["value"] == "/cart"
    assert sum(by_arrow["spread"]) == 10_000


def test_audit_finds_lists_in_order(app: Any) -> None:
    assert app.audit().ok


def test_lists_go_to_topics_typed(app: Any) -> None:
    topic = app.log.topic("changes")
    assert "array<struct<value: string, count: bigint>>" in topic.describe().schema
    *_, last = [record.value for record in topic.records()]
    (now,) = app.view("by_arrow").to_arrow().to_pylist()
    assert {name: last[name] for name in aggregates()} == {name: now[name] for name in aggregates()}


def test_a_transform_sees_lists_and_makes_them(app: Any) -> None:
    rows = app.view("exploded").to_arrow().to_pylist()
    (now,) = app.view("by_arrow").to_arrow().to_pylist()
    found = [{"value": row["value"], "count": row["count"]} for row in rows]
    assert sorted(found, key=str) == sorted(now["top"], key=str)
    assert [row["some"] for row in rows] == [[0, 1, 2]] * 2


def test_lists_are_read_by_sql_by_the_command_line_and_by_watchers(app: Any) -> None:
    (now,) = app.view("by_arrow").to_arrow().to_pylist()
    assert app.query("select top, some from by_arrow").to_pylist() == [{"top": now["top"], "some": now["some"]}]
    counts = app.query("select e.value ->> 'count' as n from by_arrow v, json_each(v.top) e where e.key = 0")
    assert counts["n"].to_pylist() == [now["top"][0]["count"]]
    assert app.view("by_arrow").get(some=[0, 1, 2]) == now
    with app.view("by_arrow").changes(timeout="0 seconds") as changes:
        assert [change["top"] for change in changes] == [now["top"]]
    for sql in ("by_arrow", "select * from by_arrow"):
        shell = Shell(app.home)
        home = ("--home", str(app.home))
        shown = {kind: shell.ok(*home, "query", sql, "--format", kind).text for kind in ("json", "csv", "table")}
        assert json.loads(shown["json"])["top"] == now["top"]
        assert '"[{""value"":""/"",""count"":' in shown["csv"]
        assert "0, 1, 2" in shown["table"]


def planned(app: Any, name: str, **aggregates: Any) -> Flow:
    """A flow that the app does not get."""
    (flow,) = plan(graph.Sink(name, app.stream("requests").agg(**aggregates).node), app._written)
    return flow


def test_what_changed_is_told_in_the_words_it_was_written_in(app: Any) -> None:
    changed = {**aggregates(), "top": hr.top_k("page", 3), "half": hr.approx_quantile("ms", 0.9)}
    flow = planned(app, "changed", **changed)
    assert app.views.flow("by_arrow").changes(app.running.query(flow).compiled.spec) == [
        "aggregate 'half': approx_quantile(ms, 0.5) became approx_quantile(ms, 0.9)",
        "aggregate 'top': top_k(page, 2) became top_k(page, 3)",
    ]


@pytest.mark.parametrize(
    ("aggregate", "error", "said"),
    [
        (hr.approx_quantile("page", 0.5), hr.InvalidArgument, "approx_quantile.page, 0.5. is of texts"),
        (hr.approx_quantile("at", 0.5), hr.InvalidArgument, "is of timestamp, not of numbers"),
        (hr.histogram("at", [1]), hr.InvalidArgument, "is of timestamp, not of numbers"),
        (hr.stddev("page"), hr.InvalidArgument, "stddev.page. is of texts"),
        (hr.percentile("at", 0.5), hr.InvalidArgument, "is of timestamp, not of numbers"),
        (hr.sum_distinct("page"), hr.InvalidArgument, "is of texts"),
        (hr.max_by("page", "tags"), hr.InvalidArgument, "plain values"),
        (hr.last("tags"), hr.InvalidArgument, "plain values"),
        (hr.last("struct(map(page, ms))"), hr.InvalidArgument, "maps have no order"),
        (hr.top_k("page", 2, by="tags"), hr.InvalidArgument, "plain values"),
        (hr.sum("ms", where="page"), hr.InvalidArgument, "where.*is string, and must be true or false"),
        (hr.max_by("page", "mss"), hr.UnknownColumn, "mss"),
        (hr.top_k("tags", 1), hr.InvalidArgument, "plain values"),
        (hr.collect("tags", limit=1), hr.InvalidArgument, "plain values"),
        (hr.approx_count_distinct("usr"), hr.UnknownColumn, "usr"),
        (hr.Aggregate(**{**MEAN, "type": "struct<a:int>"}), hr.InvalidArgument, "plain values or lists"),
        (hr.Aggregate("avg(ms)", merge=lambda a, b: (a + b) / 2), hr.TransformRefused, "depends on how it is grouped"),
        (hr.Aggregate("sum(ms)", merge=lambda a, b: a - b), hr.TransformRefused, "depends on its order"),
        (hr.Aggregate("avg(ms)", merge=max), hr.TransformRefused, "depends on the cut"),
        (hr.Aggregate("max(ms)", merge=lambda *_: "x"), hr.AggregateFailed, "'x': its merge.*than double"),
        (hr.Aggregate(**{**MEAN, "finish": str}), hr.AggregateFailed, "'x': its finish.*than double"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_before_it_runs(app: Any, aggregate: Any, error: Any, said: str) -> None:
    flow = planned(app, "refused", x=aggregate)
    with pytest.raises(error, match=said):
        app.running.query(flow)


@pytest.mark.parametrize("route", ["arrow", "spark"])
def test_against_the_same_query_of_spark_and_of_duckdb(spark: Any, tmp_path: Path, route: str) -> None:
    """Over doubles that are not whole, in four batches."""
    import duckdb

    rows = [{**row, "ms": round(row["ms"], 1)} for row in requests(2_000)]
    asked = {
        "spread": hr.stddev("ms"),
        "square": hr.variance("ms"),
        "p90": hr.percentile("ms", 0.9),
        "different": hr.sum_distinct("ms"),
        "whole": hr.sum_distinct("user"),
        "slowest": hr.max_by("user", "ms * 100000 + user" if route == "spark" else "user"),
        "quickest": hr.min_by("ms", "user"),
        "most": hr.top_k("ms", 3, by="user"),
    }
    with hr.App("batch", home=tmp_path, spark=spark) as app:
        topic = app.topic("requests", SCHEMA, event_time="at", partitions=2, durability="os")
        app.stream(topic).group_by("page").agg(**asked).to_view("v")
        topic.append(rows)
        app.drain(batch_rows=600)
        assert (app.running.query(app.flows["v"]).compiled.arrow is None) == (route == "spark")
        found = {row.pop("page"): row for row in app.view("v").to_arrow().to_pylist()}
        assert app.audit().ok
    by = "ms * 100000 + user" if route == "spark" else "user"
    batch = pa.Table.from_pylist([{name: row[name] for name in ("page", "user", "ms")} for row in rows])
    spark.createDataFrame(batch.to_pandas()).createOrReplaceTempView("requests")
    of_spark = spark.sql(
        "select page, stddev(ms) spread, variance(ms) square, percentile(ms, 0.9) p90, sum(distinct ms) different, "
        f"sum(distinct user) whole, max_by(user, {by}) slowest, min_by(ms, user) quickest from requests group by page"
    )
    of_duckdb = duckdb.sql(
        "select page, stddev(ms) spread, variance(ms) square, quantile_cont(ms, 0.9) p90, sum(distinct ms) different, "
        f"sum(distinct user) whole, arg_max(user, {by}) slowest, arg_min(ms, user) quickest from batch group by page"
    )
    for expected in (of_spark.toArrow(), of_duckdb.to_arrow_table()):
        for row in expected.to_pylist():
            own = found[row.pop("page")]
            assert {name: own[name] for name in row} == {name: pytest.approx(row[name], rel=1e-9) for name in row}
    for page, own in found.items():
        last = sorted((row["user"], row["ms"]) for row in rows if row["page"] == page)[:-4:-1]
        assert own["most"] == [{"value": ms, "by": user} for user, ms in last]


def test_a_whole_record_is_of_one_record(spark: Any, tmp_path: Path) -> None:
    """Each of its columns by itself may be of another one: nulls are passed over."""
    with hr.App("rows", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "user string, page string, ms double, at timestamp", event_time="at", durability="os")
        stream = app.stream(topic)
        whole = {"last": hr.last("struct(*)"), "first": hr.first("STRUCT ( * )"), "most": hr.max_by("struct(*)", "ms")}
        some = {"some": hr.last("struct(page, ms)"), "page": hr.last("page"), "ms": hr.last("ms", where="ms > 5")}
        stream.group_by("user").agg(**whole, **some).to_view("latest")
        stream.group_by("user").agg(**whole).to_topic("told", durability="os")
        again = app.stream("latest").agg(last=hr.last("last.page"), row=hr.last("struct(*)"))
        again.to_view("again")
        rows = [
            {"user": "a", "page": "/", "ms": 9.0, "at": START},
            {"user": "a", "page": "/cart", "ms": 3.0, "at": START + timedelta(seconds=2)},
            {"user": "a", "page": None, "ms": 1.0, "at": START + timedelta(seconds=5)},
            {"user": "a", "page": "/late", "ms": None, "at": START + timedelta(seconds=1)},
        ]
        for row in rows:
            topic.append(row)
            app.drain()
        found = app.view("latest").get(user="a")
        assert [found[name] for name in ("last", "first", "most")] == [rows[2], rows[0], rows[0]]
        assert found["some"] == {"page": None, "ms": 1.0} and (found["page"], found["ms"]) == ("/cart", 9.0)
        told = [record.value for record in app.log.topic("told").records()]
        assert told[-1]["op"] == "+" and told[-1]["last"] == rows[2]
        assert app.query("select last ->> 'ms' as ms from latest").to_pylist() == [{"ms": 1.0}]
        (behind,) = app.view("again").to_arrow().to_pylist()
        assert behind["row"]["last"] == rows[2] and behind["row"].keys() == {"user", *whole, *some}
        assert app.audit().ok


def test_a_function_that_fails_stops_the_flow_and_commits_nothing(spark: Any, tmp_path: Path) -> None:
    """On made-up rows it did not: these are below its limit."""

    def limited(a: float, b: float) -> float:
        return a + b if a + b < 10_000 else 1 // 0

    with hr.App("own", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "ms double", durability="os")
        app.stream(topic).agg(total=hr.Aggregate("sum(ms)", merge=limited)).to_view("v")
        for ms in 9_000.0, 2_000.0:
            topic.append({"ms": ms})
        with pytest.raises(hr.AggregateFailed, match="'v', aggregate 'total': its merge failed: ZeroDivisionError"):
            app.drain(batch_rows=1)
        assert app.view("v").to_arrow()["total"].to_pylist() == [9_000.0]
        app.start()
        with pytest.raises(hr.AggregateFailed):
            app.wait(timeout="60 seconds")


def test_the_first_of_what_is_never_null(spark: Any, tmp_path: Path) -> None:
    """Of a record without a time there is no first, though its value is there."""
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        events = app.topic("events", "word string, at timestamp", event_time="at")
        app.stream(events).group_by("word").agg(first=hr.first("coalesce(word, 'none')")).to_view("firsts")
        events.append([{"word": "a", "at": None}])
        app.drain()
        assert [row["first"] for row in app.view("firsts").to_arrow().to_pylist()] == [None]
