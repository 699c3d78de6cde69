"""The data source through Spark itself: what is read is what is in the log, what is written is there once. Spark finds
the source by the name of its package: nothing here registers it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flows.source.datasource import register
from headrace.log.embedded.log import EmbeddedLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytest.importorskip("pyspark")

EVERY_TYPE = (
    "b boolean, i1 tinyint, i2 smallint, i4 int not null, i8 bigint, f4 float, f8 double, s string, raw binary, "
    "d date, at timestamp, local timestamp_ntz, money decimal(12,2), many array<string>, by map<string, int>, "
    "deep struct<a: int, b: array<struct<c: timestamp not null>>>, `odd, name` string"
)
VALUES: dict[str, Any] = {
    "b": True,
    "i1": -128,
    "i2": 32_767,
    "i4": -(2**31),
    "i8": 2**63 - 1,
    "f4": 0.5,
    "f8": 1e300,
    "s": "naïve ☃",
    "raw": b"\x00\xff",
    "d": date(1969, 12, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC),
    "local": datetime(1900, 1, 1, 0, 0, 0, 1),
    "money": Decimal("-1234567890.12"),
    "many": ["a", None, ""],
    "by": {"k": 1, "none": None},
    "deep": {"a": None, "b": [{"c": datetime(2026, 1, 1, tzinfo=UTC)}]},
    "odd, name": "x",
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with hr.open_log(tmp_path / "home") as log:
        yield log


def fill(log: EmbeddedLog, count: int, *, first: int = 0, topic: str = "clicks", **settings: Any) -> None:
    made = log.create_topic(topic, "n bigint", exist_ok=True, durability="os", **settings)
    made.append(pa.table({"n": pa.array(range(first, first + count), pa.int64())}))


def numbers(log: EmbeddedLog, topic: str = "out") -> list[int]:
    return sorted(n for batch in log.topic(topic).batches() for n in batch.column("n").to_pylist())


def table(log: EmbeddedLog, topic: str, columns: list[str] | None = None) -> pa.Table:
    return pa.Table.from_batches(log.topic(topic).batches(0, columns=columns))


def read(spark: SparkSession, log: EmbeddedLog, topic: str = "clicks", **options: Any) -> DataFrame:
    return spark.read.format("headrace").option("home", str(log.home)).options(**options).load(topic)


def stream(spark: SparkSession, log: EmbeddedLog, topic: str = "clicks", **options: Any) -> DataFrame:
    return spark.readStream.format("headrace").option("home", str(log.home)).options(**options).load(topic)


def write(frame: DataFrame, log: EmbeddedLog, topic: str, **options: Any) -> None:
    frame.write.format("headrace").option("home", str(log.home)).options(**options).mode("append").save(topic)


def drain(frame: DataFrame, log: EmbeddedLog, checkpoint: Path, topic: str = "out", **options: Any) -> StreamingQuery:
    """Runs until everything there is was written to the topic."""
    writer = frame.writeStream.format("headrace").option("home", str(log.home)).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(topic)
    query.awaitTermination()
    return query


def staged(log: EmbeddedLog) -> list[Path]:
    return [path for path in (log.home / "staging").rglob("*") if path.is_file()]


# -- batch -------------------------------------------------------------------------------------------


def test_every_type_makes_the_round_trip(spark: SparkSession, log: EmbeddedLog) -> None:
    nothing = dict.fromkeys(VALUES) | {"i4": 0}
    source = log.create_topic("from", EVERY_TYPE)
    for row in (VALUES, nothing):
        source.append(row)
    log.maintain()  # sealed, and so compressed, as most of what Spark reads
    assert source.usage().batches == 1
    log.create_topic("to", EVERY_TYPE)
    frame = read(spark, log, "from")
    assert frame.schema["at"].dataType.simpleString() == "timestamp" and not frame.schema["i4"].nullable
    write(frame.orderBy("_offset").coalesce(1), log, "to")  # the metadata columns are left out by themselves
    assert table(log, "to").equals(table(log, "from"))
    write(frame.limit(0), log, "to")
    assert log.topic("to").offsets()[0].next == 2


def test_metadata_is_the_logs(spark: SparkSession, log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "user string, at timestamp", key="user", event_time="at", partitions=3)
    for minute in range(5):
        topic.append([{"user": f"u{n}", "at": f"2026-01-01T09:0{minute}:00Z"} for n in range(10)])
    got = read(spark, log, "t").toArrow().sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    expected = pa.Table.from_batches(topic.batches(columns=["user", "at", *hr.META]))
    assert got.cast(expected.schema).equals(expected.combine_chunks())
    register(spark)  # not needed, and no harm
    only = read(spark, log, "t", columns="_offset, user", partitions="1", start='{"1": 2}')
    assert only.columns == ["_offset", "user"]
    assert min(row["_offset"] for row in only.collect()) == 2


def test_large_partitions_are_split(spark: SparkSession, log: EmbeddedLog) -> None:
    fill(log, 50_000)
    frame = read(spark, log, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.selectExpr("count(distinct n)", "sum(n)").first()[:] == (50_000, sum(range(50_000)))
    assert read(spark, log, maxRowsPerPartition=8_000).rdd.getNumPartitions() == 7
    assert read(spark, log, start="latest").count() == 0


def test_a_batch_write_is_all_or_nothing(spark: SparkSession, log: EmbeddedLog) -> None:
    fill(log, 0, topic="out", partitions=2)
    frame = spark.range(1000, numPartitions=4).withColumnRenamed("id", "n")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(frame.selectExpr("if(n = 999, 1 / 0, n)").toDF("n").selectExpr("cast(n as bigint) n"), log, "out")
    assert numbers(log) == [] and staged(log) == []
    write(frame, log, "out")
    assert numbers(log) == list(range(1000)) and staged(log) == []
    for batch in (7, 7, 8):  # as foreachBatch does
        write(frame.limit(3), log, "out", writer="mine", batchId=batch)
    assert len(numbers(log)) == 1006


def failing_first(kill: bool, mark: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows pass; the first attempt of the first task fails behind them."""

    def passing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal

        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
            mark.touch()
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("first attempt")

    return passing


def test_a_task_that_is_killed_is_tried_again_and_writes_once(
    spark: SparkSession, log: EmbeddedLog, tmp_path: Path
) -> None:
    fill(log, 400)
    fill(log, 0, topic="out")
    failed = tmp_path / "failed"
    frame = read(spark, log, columns="n", minPartitions=2).mapInArrow(failing_first(True, failed), "n bigint")
    write(frame, log, "out")
    assert failed.exists()
    assert numbers(log) == list(range(400)) and staged(log) == []


# -- streaming ---------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_was_and_writes_every_row_once(
    spark: SparkSession, log: EmbeddedLog, tmp_path: Path
) -> None:
    fill(log, 1000, partitions=2)
    fill(log, 0, topic="out", partitions=3)
    checkpoint = tmp_path / "checkpoint"

    def run() -> list[int]:
        frame = stream(spark, log, maxRowsPerBatch=400, columns="n")
        return [batch["numInputRows"] for batch in drain(frame, log, checkpoint).recentProgress]

    assert run() == [400, 400, 200]
    assert numbers(log) == list(range(1000))

    log.topic("clicks").alter(partitions=4)
    fill(log, 450, first=1000)
    assert run() == [400, 50]
    assert numbers(log) == list(range(1450))

    # The last batch was written, but Spark died before it could note that: it comes again.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    fill(log, 50, first=1450)
    run()
    assert numbers(log) == list(range(1500)) and staged(log) == []

    # Spark lost its note of what the last batch was as well (it syncs nothing), and plans another in its place.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "offsets" / last.name).unlink()
    fill(log, 1, first=1500)
    with pytest.raises(Exception, match="BatchDiffers"):
        run()
    assert numbers(log) == list(range(1500))


def test_a_running_stream_is_given_what_comes_and_shows_its_place(
    spark: SparkSession, log: EmbeddedLog, tmp_path: Path
) -> None:
    topic = log.create_topic("clicks", "n bigint, at timestamp", event_time="at")
    log.create_topic("out", "n bigint, at timestamp", event_time="at")
    failed = tmp_path / "failed"  # and its tasks fail at first
    frame = stream(spark, log, group="spark", columns="n, at, _progress")
    frame = frame.mapInArrow(failing_first(False, failed), frame.schema)
    writer = frame.writeStream.format("headrace").option("home", str(log.home))
    query = writer.options(checkpointLocation=str(tmp_path / "c"), carryProgress="true").queryName("copy").start("out")
    try:
        for hour in ("09", "10"):
            topic.append([{"n": n, "at": f"2026-01-01T{hour}:0{n}:00Z"} for n in range(5)])
            query.processAllAvailable()
        (place,) = query.recentProgress[-1]["sources"]
    finally:
        query.stop()
    assert failed.exists() and staged(log) == []
    assert json.loads(place["latestOffset"]) == {"topic_id": topic.topic_id, "next": {"0": 10}}
    assert [r.progress for r in log.topic("out").records()] == [r.progress for r in topic.records()]
    assert topic.group("spark").committed() in ({0: 5}, {0: 10})  # Spark tells it a batch late


def test_a_stream_is_never_led_astray(spark: SparkSession, log: EmbeddedLog, tmp_path: Path) -> None:
    fill(log, 10, retention_bytes=2_000)
    fill(log, 0, topic="out")
    checkpoint = tmp_path / "checkpoint"
    drain(stream(spark, log, columns="n"), log, checkpoint)
    for first in range(10, 200, 10):
        fill(log, 10, first=first)
    with pytest.raises(Exception, match=r"OffsetOutOfRange: clicks/0 offset 10 was deleted by retention"):
        drain(stream(spark, log, columns="n"), log, checkpoint)
    log.delete_topic("clicks")
    fill(log, 100)
    with pytest.raises(Exception, match=r"TopicReplaced: topic 'clicks' with id"):
        drain(stream(spark, log, columns="n"), log, checkpoint)
    assert numbers(log) == list(range(10))


# -- what is refused ---------------------------------------------------------------------------------


def test_mistakes_are_named(spark: SparkSession, log: EmbeddedLog) -> None:
    fill(log, 10)
    texts = spark.sql("select 'x' as n")
    replacing = texts.write.format("headrace").option("home", str(log.home)).mode("overwrite")
    mistakes: dict[str, Callable[[], object]] = {
        "maxrows='5': the source has no such option. Did you mean 'maxRows": lambda: read(spark, log, maxRows=5),
        "UnknownTopic: there is no topic 'clikcs'. Did you mean 'clicks'?": lambda: read(spark, log, "clikcs"),
        "RecordRejected: clicks: row 0, column 'n': got string 'x'": lambda: write(texts, log, "clicks"),
        "a log is only appended to": lambda: replacing.save("clicks"),
    }
    for said, mistake in mistakes.items():
        with pytest.raises(Exception) as raised:  # noqa: PT011
            mistake()
        assert said in str(raised.value)
    assert log.topic("clicks").offsets()[0].next == 10 and staged(log) == []
