"""What joins cost: records enriched from a large table, into a view and into a topic; pairs of two streams; rows of two
tables. From the log into durable views and topics. Spark's own joins beside, over the same data from Parquet files into
nowhere: a stream with a static table, which never changes, and a stream with a stream. Flink SQL's temporal and
interval joins beside, over the same data from CSV files into nowhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import headrace as hr
from bench import flink_peer, spark_peer
from bench.settings import Run
from bench.table import Measured, Row, of_rates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_US = 1_767_225_600_000_000
STREAMED = "Parquet in, noop sink, RocksDB, changelog, row counting off, 2 shuffle partitions"


def joins(run: Run) -> Iterator[Row]:
    yield from _enriched(run)
    yield from _paired(run)
    yield from _bounded(run)
    yield from _joined(run)


def _times(count: int, seconds: int) -> pa.Array:
    us = START_US + np.linspace(0, seconds * 1_000_000, count).astype(np.int64)
    return pa.array(us).cast(pa.timestamp("us", tz="UTC"))


def _facts(count: int, keys: int) -> pa.Table:
    users = np.random.default_rng(3).integers(0, keys, count)
    return pa.table({"user": pa.array(users), "ms": pa.array(users % 997, pa.int32()), "at": _times(count, 600)})


def _users(keys: int) -> pa.Table:
    ids = np.arange(keys)
    zips = pa.array([f"{number % 9_000:04}" for number in range(min(keys, 9_000))]).take(pa.array(ids % 9_000))
    since = pa.array(np.full(keys, START_US)).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"id": pa.array(ids), "zip": zips, "since": since})


def _enriched(run: Run) -> Iterator[Row]:
    """One program after the other in the same home: each makes one target only."""
    events, large = run.size(1_000_000, 5_000), run.size(5_000_000, 2_000)
    for keys in (run.size(10_000, 100), run.size(1_000_000, 1_000), large):
        facts, users, home = _facts(events, keys), _users(keys), run.fresh("home")
        first, *others = ("topic",) if keys == large else ("view", "topic", "window")
        for into in (first, *others):
            with hr.App("bench", home=home, spark="local[2]") as app:
                stream, topic = _enrichment(app, users if into == first else users.slice(0, 0))
                if into == "window":
                    counts = stream.window(hr.tumbling("1 minute")).group_by("zip").agg(n=hr.count())
                    counts.to_view("enriched_counts")
                else:
                    stream.to_view("enriched") if into == "view" else stream.to_topic("enriched_rows")
                app.drain()  # reads the table
                took = _appended_and_drained(app, topic, facts, run)
                peers = []
                if into == "topic" and keys >= 1_000:
                    static = partial(_static, run, app.running.spark, facts, users)
                    temporal = partial(_temporal, run, facts, users)
                    peers = [
                        run.peer("Spark, a stream with a static table", STREAMED, static),
                        run.peer("Flink SQL, a temporal join", flink_peer.SETTINGS, temporal),
                    ]
            target = 100_000.0 if into == "view" else 200_000.0
            what = f"records enriched from a table of {keys:,} rows, into a {into}"
            yield Row("joins", what, "rows/s", took, target, peers=peers)


def _enrichment(app: hr.App, users: pa.Table) -> tuple[hr.Stream, Any]:
    """Facts with a column of a table, which these rows are put into; and the topic of the facts."""
    table = app.table(
        "users", "id bigint, zip string, since timestamp", key="id", event_time="since", history="versions"
    )
    topic = app.topic("facts", "user bigint, ms int, at timestamp", event_time="at")
    for at in range(0, users.num_rows, 100_000):
        table.upsert(users.slice(at, 100_000))
    stream = app.stream(topic, start="latest")
    return stream.enrich(table, on={"user": "id"}, as_of="at", columns=["zip"], late=hr.drop()), topic


def _appended_and_drained(app: hr.App, topic: Any, rows: pa.Table, run: Run) -> Measured:
    rates = []
    for _ in range(run.size(3, 1)):
        for at in range(0, rows.num_rows, 100_000):
            topic.append(rows.slice(at, 100_000))
        began = time.perf_counter()
        app.drain()
        rates.append(rows.num_rows / (time.perf_counter() - began))
    return of_rates(rates)


def _static(run: Run, spark: SparkSession, facts: pa.Table, users: pa.Table) -> Measured:
    files, static = run.fresh("facts"), run.fresh("users")
    spark_peer.write_files([facts], files)
    spark_peer.write_files([users], static)

    def once() -> float:
        for name, value in spark_peer.CONF.items():
            spark.conf.set(name, value)
        stream = spark.readStream.schema("user bigint, ms int, at timestamp").parquet(str(files))
        joined = stream.join(spark.read.parquet(str(static)), stream["user"] == _column("id"), "left")
        return spark_peer.timed(joined, run.fresh("checkpoint"), "append")

    return _rates(run, facts.num_rows, once)


def _temporal(run: Run, facts: pa.Table, users: pa.Table) -> Measured:
    """As of the event time, too. The table is read to its end before any record is answered."""
    ddl = _timed("facts", "`user` BIGINT, ms INT", "at", facts, run)
    ddl += _timed("users", "id BIGINT, zip STRING", "since", users, run)
    ddl += """CREATE TEMPORARY VIEW versions AS SELECT id, zip, since FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY since DESC) AS place FROM users) WHERE place = 1"""
    query = """SELECT facts.`user`, ms, facts.`at`, zip FROM facts
        LEFT JOIN versions FOR SYSTEM_TIME AS OF facts.`at` ON facts.`user` = versions.id"""
    return _flink(run, ddl, query, facts.num_rows)


def _timed(name: str, columns: str, time: str, rows: pa.Table, run: Run) -> str:
    """A table of Flink over files with these rows, which are in the order of their time, their last column."""
    files = run.fresh(name)
    flink_peer.write_files([rows], files)
    timed = f"{time}_ms BIGINT, `{time}` AS TO_TIMESTAMP_LTZ({time}_ms, 3), WATERMARK FOR `{time}` AS `{time}`"
    stored = f"'connector' = 'filesystem', 'path' = '{files.absolute()}', 'format' = 'csv'"
    return f"CREATE TABLE {name} ({columns}, {timed}) WITH ({stored});\n"


def _flink(run: Run, ddl: str, query: str, count: int) -> Measured:
    job = flink_peer.run_sql(ddl, query, repeat=run.size(3, 1))
    return Measured(count / job.seconds, count / job.best_seconds)


def _column(name: str) -> Any:
    from pyspark.sql import functions as F

    return F.col(name)


def _rates(run: Run, count: int, once: Callable[[], float]) -> Measured:
    return of_rates([count / once() for _ in range(run.size(3, 1))])


def _paired(run: Run) -> Iterator[Row]:
    """Each left record has one right record a second later."""
    count = run.size(500_000, 5_000)
    ids, times = pa.array(np.arange(count)), _times(count, 600)
    later = pa.array(times.cast(pa.int64()).to_numpy() + 1_000_000).cast(times.type)
    left, right = pa.table({"id": ids, "a": ids, "at": times}), pa.table({"id": ids, "b": ids, "at": later})
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        topics = [app.topic(name, f"id bigint, {name} bigint, at timestamp", event_time="at") for name in ("a", "b")]
        one, other = (app.stream(topic, start="latest") for topic in topics)
        one.join(other, on="id", after="10 seconds", grace="2 seconds").to_topic("pairs")
        app.drain()
        rates = []
        for _ in range(1):
            for at in range(0, count, 100_000):
                for topic, rows in zip(topics, (left, right), strict=True):
                    topic.append(rows.slice(at, 100_000))
            began = time.perf_counter()
            app.drain()
            rates.append(2 * count / (time.perf_counter() - began))
        peers = [
            run.peer("Spark's stream-stream join", STREAMED, partial(_streams, run, app.running.spark, left, right)),
            run.peer("Flink SQL, an interval join", flink_peer.SETTINGS, partial(_interval, run, left, right)),
        ]
    yield Row(
        "joins",
        "two streams, pairs within 10 seconds, into a topic",
        "events/s",
        of_rates(rates),
        150_000.0,
        peers=peers,
    )


def _bounded(run: Run) -> Iterator[Row]:
    """What a join of two streams keeps: after each of many drains, over which time moves on."""
    rounds, count = run.size(20, 2), run.size(500_000, 2_500)
    ids, times, most = pa.array(np.arange(count)), _times(count, 600).cast(pa.int64()).to_numpy(), 0
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        topics = [app.topic(name, f"id bigint, {name} bigint, at timestamp", event_time="at") for name in ("a", "b")]
        one, other = map(app.stream, topics)
        one.join(other, on="id", after="10 seconds", grace="2 seconds").to_topic("pairs")
        for number in range(rounds):
            for later_us, topic, name in zip((0, 1_000_000), topics, ("a", "b"), strict=True):
                at = pa.array(times + number * 600_000_000 + later_us).cast(pa.timestamp("us", tz="UTC"))
                topic.append(pa.table({"id": ids, name: ids, "at": at}))
            app.drain()
            most = max(most, sum(each.rows for each in app.views.kept("pairs")))
    seconds = 10 + 2 + 2 + 1 + 1  # after, grace of both sides, how much later the others are, what is read last
    what = f"rows that a join of two streams keeps at most, over {2 * rounds * count:,} events"
    bound = seconds * count / 600
    yield Row("joins", what, "rows", Measured(most, most), bound, smaller_is_better=True)


def _interval(run: Run, left: pa.Table, right: pa.Table) -> Measured:
    ddl = _timed("lefts", "id BIGINT, a BIGINT", "at", left, run)
    ddl += _timed("rights", "id BIGINT, b BIGINT", "at", right, run)
    query = """SELECT lefts.id, a, b, CAST(lefts.`at` AS TIMESTAMP_LTZ(3)) AS `at` FROM lefts JOIN rights
        ON lefts.id = rights.id AND rights.`at` BETWEEN lefts.`at` AND lefts.`at` + INTERVAL '10' SECOND"""
    return _flink(run, ddl, query, 2 * left.num_rows)


def _streams(run: Run, spark: SparkSession, left: pa.Table, right: pa.Table) -> Measured:
    from pyspark.sql import functions as F

    sides = {}
    for name, rows in (("a", left), ("b", right)):
        sides[name] = run.fresh(name)
        spark_peer.write_files([rows.slice(at, 100_000) for at in range(0, rows.num_rows, 100_000)], sides[name])

    def read(name: str, files: Path) -> Any:
        schema = f"id bigint, {name} bigint, at timestamp"
        df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 4).parquet(str(files))
        return df.withWatermark("at", "2 seconds").select(*(F.col(each).alias(f"{name}_{each}") for each in df.columns))

    def once() -> float:
        for name, value in spark_peer.CONF.items():
            spark.conf.set(name, value)
        near = "a_id = b_id AND b_at >= a_at AND b_at <= a_at + INTERVAL 10 SECONDS"
        joined = read("a", sides["a"]).join(read("b", sides["b"]), F.expr(near))
        return spark_peer.timed(joined, run.fresh("checkpoint"), "append")

    return _rates(run, 2 * left.num_rows, once)


def _joined(run: Run) -> Iterator[Row]:
    """A foreign key; then rows of the left table change, at random and beside each other."""
    keys = run.size(1_000_000, 5_000)
    ids = np.arange(keys)
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        posts = app.table("posts", "id bigint, author bigint, n bigint", key="id")
        authors = app.table("authors", "id bigint, name string", key="id")
        posts.join(authors, on={"author": "id"}).to_view("timeline")
        some = pa.array([f"name {number}" for number in range(keys // 10)])
        authors.upsert(pa.table({"id": pa.array(np.arange(keys // 10)), "name": some}))
        rows = pa.table({"id": pa.array(ids), "author": pa.array(ids % (keys // 10)), "n": pa.array(ids)})
        for at in range(0, keys, 100_000):
            posts.upsert(rows.slice(at, 100_000))
        app.drain()
        for what, target in (("at random", 15_000.0), ("beside each other", 50_000.0)):
            rates = []
            for number in range(run.size(3, 1)):
                count = run.size(50_000, 500)
                picked = np.random.default_rng(number).choice(keys, count, replace=False)
                picked = np.sort(picked) if what == "at random" else np.arange(count) + number * count
                changed = rows.take(pa.array(picked)).set_column(2, "n", pa.array(picked + number + 1))
                posts.upsert(changed)
                began = time.perf_counter()
                app.drain()
                rates.append(count / (time.perf_counter() - began))
            said = f"rows of a table of {keys:,} changed {what}, joined with another, the table itself kept, too"
            yield Row("joins", said, "rows/s", of_rates(rates), target)
