"""A transform joins a static table: every batch is joined, in whatever way Spark does it, and a table that is gone is
no record's fault."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

import headrace as hr
from headrace.flows.compiler.plan_text import sends_batch
from tests.flows.shop import some_rows

SEED = 20261118
SENT = """
*(2) BroadcastHashJoin [a#1], [a#9], Inner, BuildLeft, false
:- BroadcastExchange HashedRelationBroadcastMode(List(input[0, int, true])), [plan_id=7]
:  +- *(1) Filter isnotnull(a#1)
:     +- MapInArrow in_worker(id#0L)#1, [a#1], false
+- *(2) Scan ExistingRDD[a#9]
"""


def test_who_is_broadcast_is_read_from_the_plan() -> None:
    assert sends_batch(SENT)
    assert sends_batch(SENT.replace("isnotnull(a#1)", "(a#1 = x\ny)"))
    below = ":  +- *(1) Filter isnotnull(a#1)\n:     +- MapInArrow in_worker(id#0L)#1, [a#1], false\n+- *(2) Scan"
    assert not sends_batch(
        SENT.replace(below, ":  +- Scan\n+- MapInArrow in_worker(id#0L)#1, [a#1], false\n   +- Scan")
    )


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with hr.App("static", home=tmp_path / "home", spark=spark, driver_rows=0) as made:
        made.topic("t", "word string, n int, at timestamp", event_time="at", partitions=2, durability="os")
        yield made


def append(app: hr.App, now: int) -> None:
    rows = some_rows(random.Random(SEED + now), 30, now)
    app.log.topic("t").append([{key: row[key] for key in ("word", "n", "at")} for row in rows])


def test_every_batch_is_joined(spark: Any, app: hr.App) -> None:
    table = spark.createDataFrame([(n, 100 * n) for n in range(-1000, 1000)], "n int, w int").coalesce(1)
    joined = app.stream("t").transform(lambda df: df.where("n is not null").join(table, "n"))
    joined.to_topic("copied")
    joined.group_by("word").agg(w=hr.sum("w")).to_view("summed")
    for now in range(3):
        append(app, now)
        app.drain(batch_rows=20)
    rows = [row for record in app.log.topic("t").records() if (row := record.value)["n"] is not None]
    assert len(rows) > 40, "of more than two batches"
    assert sorted(record.value["w"] for record in app.log.topic("copied").records()) == sorted(
        100 * row["n"] for row in rows
    )
    sums: dict[str | None, int] = {}
    for row in rows:
        sums[row["word"]] = sums.get(row["word"], 0) + 100 * row["n"]
    assert {row["word"]: row["w"] for row in app.view("summed").to_arrow().to_pylist()} == sums


def test_a_transform_that_leaves_no_order_leaves_the_judgement(spark: Any, app: hr.App) -> None:
    table = spark.createDataFrame([(n,) for n in range(1000, -1000, -1)], "n int").coalesce(1)
    made = {
        "plain": lambda df: df.where("n is not null"),
        "sent": lambda df: df.join(table, "n"),
        "united": lambda df: df.where("n % 2 = 0").union(df.where("n % 2 <> 0")),
        "sorted": lambda df: df.join(table.hint("merge"), "n"),
    }
    for name, transform in made.items():
        own = app.stream("t").transform(transform).transform(lambda df: df.withColumn("t", df.at))
        window = own.window(hr.tumbling("10 seconds"), time="t", late=hr.correct("5 seconds"), idle="1 day")
        window.agg(n=hr.count()).to_view(name)
        app.running.query(app.flows[name]).one_task_rows = 20
    for now in (0, 30):
        append(app, now)
        app.drain(batch_rows=17)
        append(app, now)
        app.drain()

    def found(name: str) -> list[Any]:
        rows = app.query(f"select window_start, n, _corrections from {name} order by 1").to_pylist()
        return [rows, app.view(name).ledger().to_pylist()]

    for name in made:
        assert found(name) == found("plain"), name


def test_a_table_that_is_gone_buries_nothing(spark: Any, app: hr.App, tmp_path: Path) -> None:
    path, away = tmp_path / "table", tmp_path / "away"
    spark.range(-100, 100).select(F.col("id").cast("int").alias("n")).write.parquet(str(path))
    app.stream("t").transform(lambda df: df.join(spark.read.parquet(str(path)).hint("merge"), "n")).to_topic("copied")
    append(app, 0)
    app.drain()
    before = len(list(app.log.topic("copied").records()))
    path.rename(away)
    append(app, 1)
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        app.drain()
    assert not list(app.log.dead_letters())
    shutil.move(away, path)
    app.drain()
    assert len(list(app.log.topic("copied").records())) > before


def test_a_column_that_goes_around_spark_and_became_wider_stops_the_flow(app: hr.App) -> None:
    app.stream("t").transform(lambda df: df.withColumn("more", F.upper("word"))).to_topic("copied")
    append(app, 0)
    app.drain()
    app.log.topic("t").alter(schema="word string, n bigint, at timestamp")
    append(app, 1)
    with pytest.raises(hr.FlowChanged, match="column 'n' of topic 't': int became bigint"):
        app.drain()


@pytest.mark.parametrize("name", ["_pane", "_Late", "_event"])
def test_names_of_the_judge_are_taken(app: hr.App, name: str) -> None:
    made = app.stream("t").transform(lambda df: df.withColumn(name, F.lit(1)))
    made.window(hr.tumbling("10 seconds")).agg(n=hr.count()).to_view("v")
    with pytest.raises(hr.InvalidArgument, match=f"{name}.*the name is taken"):
        app.drain()
