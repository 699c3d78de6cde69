"""Which way a batch takes depends on its size and on the flow, never on where Spark runs; all ways give the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.flows.reading import ranges
from headrace.flows.reading.ranges import Range
from tests.flows.shop import app_of, check, some_rows

SEED = 20261118
FLOWS = ("tumbling_drop", "hopping_correct", "arrow_drop")


def jobs(spark: Any) -> int:
    """How many jobs the session has run; the listener bus is waited for."""
    scala = spark.sparkContext._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    return int(scala.statusStore().jobsList(None).size())


@pytest.fixture
def clicks(spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with hr.App("routes", home=tmp_path, spark=spark, driver_rows=1_000) as app:
        app.topic("clicks", "page string, ms int, at timestamp", event_time="at", partitions=3, durability="os")
        yield app


def test_a_large_batch_is_a_spark_job_and_a_small_one_is_only_where_spark_computes(spark: Any, clicks: hr.App) -> None:
    made = {
        "plain": clicks.stream("clicks"),
        "filtered": clicks.stream("clicks").transform(lambda df: df.where("page <> '/health'")),
        "computed": clicks.stream("clicks").transform(lambda df: df.where("ms % 7 <> 0")),
    }
    for name, stream in made.items():
        stream.window(hr.tumbling("1 minute")).group_by("page").agg(n=hr.count(), most=hr.max("ms")).to_view(name)
    topic = clicks.log.topic("clicks")
    rng = random.Random(SEED)

    def rows(count: int) -> list[dict[str, Any]]:
        some = rng.choices(["/", "/a", "/health"], k=count)
        return [{"page": page, "ms": n, "at": f"2026-01-01T00:{n * 60 // count:02}:00Z"} for n, page in enumerate(some)]

    for count, expected in (500, {"computed"}), (3_000, set(made)):
        topic.append(rows(count))
        ran = set()
        for name in made:
            loop = clicks.running.loop(clicks.flows[name])
            before = jobs(spark)
            assert loop.step() == count
            assert jobs(spark) - before <= 1, f"{name}: one batch, one job"
            ran |= {name} if jobs(spark) > before else set()
        assert ran == expected
    assert clicks.audit().ok


@pytest.mark.parametrize(
    ("driver_rows", "one_task_rows"), [(0, 0), (0, 50_000), (10_000, 0), (10**12, 50_000)],
    ids=["jobs of several tasks", "jobs of one task", "default", "on the driver"],
)  # fmt: skip
def test_every_route_gives_the_rows_and_the_ledger_of_the_oracle(
    spark: Any, tmp_path: Path, driver_rows: int, one_task_rows: int
) -> None:
    rng = random.Random(SEED)
    with app_of(tmp_path, spark, 3, names=FLOWS, driver_rows=driver_rows) as app:
        for name in FLOWS:
            app.running.query(app.flows[name]).one_task_rows = one_task_rows
        topic, now = app.log.topic("events"), 0.0
        for size in 15, 1000:
            topic.append(some_rows(rng, 40, now))
            now += 20
            app.drain(batch_rows=size)
        check(app)


def test_records_are_judged_where_they_are_read_or_behind_what_makes_their_time(spark: Any, tmp_path: Path) -> None:
    """Transforms that leave the time alone, that name the columns they keep, and that make another time."""
    with hr.App("judged", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "word string, n int, at timestamp", event_time="at", partitions=2, durability="os")

        def flow(name: str, made: Any, **window: Any) -> None:
            windowed = app.stream(topic).transform(made).window(
                hr.tumbling("10 seconds"), grace="1 second", late=hr.correct("20 seconds"), idle="1 day", **window
            )  # fmt: skip
            windowed.group_by("word").agg(n=hr.sum("n"), last=hr.last("n"), whole=hr.first("struct(*).n")).to_view(name)

        def doubled(df: Any) -> Any:
            return df.withColumn("n", df.n * 2)

        flow("read", doubled)
        flow("named", lambda df: doubled(df).select("word", "n", "at", *hr.META))
        flow("moved", lambda df: doubled(df).withColumn("at", df.at))
        flow("later", lambda df: doubled(df).withColumn("at", df.at + F.expr("interval 1 hour")))
        flow("own", lambda df: doubled(df).withColumn("t", df.at), time="t")
        judged = {
            name: any(each.judge for each in app.running.query(app.flows[name]).compiled.columns.values())
            for name in app.flows
        }
        assert judged == {"read": True, "named": False, "moved": True, "later": False, "own": False}
        rng = random.Random(SEED)
        for now in (0, 30):
            topic.append([{key: row[key] for key in ("word", "n", "at")} for row in some_rows(rng, 30, now)])
            app.drain(batch_rows=17)
        for name in ("named", "moved", "own"):
            assert comparable(app, name) == comparable(app, "read"), name
        assert comparable(app, "later") != comparable(app, "read"), "an hour later nothing is late"
        assert app.audit().ok


def comparable(app: hr.App, name: str) -> list[Any]:
    rows = app.query(f"select word, window_start, n, last, whole, _corrections from {name} order by 1, 2").to_pylist()
    ledger = [tuple(row.values()) for row in app.view(name).ledger().to_pylist()]
    return [rows, ledger]


def test_ranges_are_shared_out_evenly() -> None:
    chosen = [Range(0, 0, 10), Range(1, 5, 9), Range(2, 7, 8)]
    two = ranges.tasks_of(chosen, 2)
    assert two == [[Range(0, 0, 8)], [Range(0, 8, 10), Range(1, 5, 9), Range(2, 7, 8)]]
    assert ranges.tasks_of(chosen, 1) == [chosen]
    assert [sum(each.rows for each in task) for task in ranges.tasks_of(chosen, 4)] == [4, 4, 4, 3]
    whole = ranges.tasks_of(chosen, 2, uncut=True)
    assert whole == [[Range(0, 0, 10)], [Range(1, 5, 9), Range(2, 7, 8)]]
    assert len(ranges.tasks_of(chosen, 8, uncut=True)) == 3
    without_one = [Range(1, 0, 50), *ranges.without([Range(0, 0, 100)], [(0, 3)])]
    assert ranges.tasks_of(without_one, 2, uncut=True) == [[Range(0, 0, 3), Range(0, 4, 100)], [Range(1, 0, 50)]]


def test_where_spark_groups_jobs_of_one_task_run_side_by_side(spark: Any, clicks: hr.App) -> None:
    """As many as there are cores, so that no record is moved between tasks; the plans serve every batch."""
    stream = clicks.stream("clicks").transform(lambda df: df.where("ms % 7 <> 0"))
    stream.window(hr.tumbling("1 minute")).group_by("page").agg(n=hr.count(), most=hr.max("ms")).to_view("computed")
    query, loop = clicks.running.query(clicks.flows["computed"]), clicks.running.loop(clicks.flows["computed"])
    query.one_task_rows = 0
    for number in range(3):
        rows = [{"page": f"/{n % 5}", "ms": n, "at": "2026-01-01T00:00:00Z"} for n in range(300)]
        clicks.log.topic("clicks").append(rows)
        before = query.spark_use.jobs, query.spark_use.tasks
        assert loop.step() == 300
        ran = query.spark_use.jobs - before[0], query.spark_use.tasks - before[1]
        assert ran == (spark.sparkContext.defaultParallelism,) * 2, number
    prepared = query._prepared.by_number
    assert prepared is not None and len(prepared.idle[1]) == spark.sparkContext.defaultParallelism
    assert clicks.audit().ok
