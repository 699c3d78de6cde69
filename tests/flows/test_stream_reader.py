"""Planning reads, without a JVM: where a query begins and ends, what it is refused, what each task is given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructField, StructType

import headrace as hr
from headrace.flows.source.datasource import BatchReader, HeadraceSource, StreamReader
from headrace.log.embedded.log import EmbeddedLog

ALL = ReadAllAvailable()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with hr.open_log(tmp_path / "home") as log:
        yield log


def source(log: EmbeddedLog, topic: str = "clicks", **options: str) -> HeadraceSource:
    return HeadraceSource({"home": str(log.home), "path": topic, **options})


def stream(log: EmbeddedLog, **options: str) -> StreamReader:
    made = source(log, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def batch(log: EmbeddedLog, **options: str) -> BatchReader:
    made = source(log, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, BatchReader)
    return reader


def fill(log: EmbeddedLog, count: int, *, first: int = 0, **settings: Any) -> None:
    topic = log.create_topic("clicks", "n bigint", exist_ok=True, **settings)
    topic.append([{"n": n} for n in range(first, first + count)])


def read(reader: StreamReader | BatchReader, partitions: list[InputPartition]) -> list[int]:
    return [n for part in partitions for found in reader.read(part) for n in found.column("n").to_pylist()]


def nexts(offset: dict[str, Any]) -> dict[str, int]:
    return dict(offset["next"])


def checkpointed(offset: dict[str, Any]) -> Any:
    return json.loads(json.dumps(offset))


# -- schema ------------------------------------------------------------------------------------------


def test_the_schema_is_the_topics_and_the_metadata(log: EmbeddedLog) -> None:
    log.create_topic("t", "user string not null, `odd, name` array<int>, at timestamp, local timestamp_ntz")
    assert source(log, "t").schema().simpleString() == (
        "struct<user:string,odd, name:array<int>,at:timestamp,local:timestamp_ntz,"
        "_partition:int,_offset:bigint,_arrived_at:timestamp,_progress:timestamp>"
    )
    assert not source(log, "t").schema()["user"].nullable
    assert source(log, "t", columns='["odd, name", "_offset"]').schema().names == ["odd, name", "_offset"]
    with pytest.raises(hr.InvalidArgument, match="Did you mean 'user'"):
        source(log, "t", columns="usr").schema()


def test_what_a_topic_kept_beside_its_columns_is_a_column(log: EmbeddedLog) -> None:
    log.create_topic("t", "user string", extra="keep").append({"user": "a", "more": 1})
    made = source(log, "t")
    assert made.schema().names == ["user", "_extra", *hr.META]
    reader = made.reader(made.schema())
    (part,) = reader.partitions()
    assert next(iter(reader.read(part))).column("_extra").to_pylist() == ['{"more":1}']


def test_a_schema_of_ones_own_leaves_out_but_does_not_convert(log: EmbeddedLog) -> None:
    log.create_topic("t", "n int, s string").append({"n": 1, "s": "x"})
    made = source(log, "t")
    wrong = made.reader(StructType([StructField("n", LongType())]))
    with pytest.raises(hr.InvalidArgument, match="the topic has int: read it as that, then cast"):
        wrong.partitions()


def test_an_unknown_topic_or_log_is_named(log: EmbeddedLog) -> None:
    fill(log, 1)
    with pytest.raises(hr.UnknownTopic, match="Did you mean 'clicks'"):
        source(log, "clikcs").schema()
    with pytest.raises(hr.LogMissing):
        HeadraceSource({"home": str(log.home / "no"), "path": "clicks"}).schema()


# -- batch -------------------------------------------------------------------------------------------


def test_a_batch_read_is_cut_and_read_whole(log: EmbeddedLog) -> None:
    fill(log, 1000, partitions=2)
    parts = batch(log, minPartitions="7").partitions()
    assert len(parts) >= 7
    assert sorted(read(batch(log), parts)) == list(range(1000))


def test_start_and_stop(log: EmbeddedLog) -> None:
    fill(log, 10)
    later = next(iter(log.topic("clicks").records({0: 9}))).arrived_at  # all of one append arrived together
    fill(log, 5, first=10)
    second = next(iter(log.topic("clicks").records({0: 10}))).arrived_at
    assert later < second

    def values(**options: str) -> list[int]:
        reader = batch(log, **options)
        return read(reader, reader.partitions())

    assert values() == list(range(15))
    assert values(start='{"0": 3}', stop='{"0": 12}') == list(range(3, 12))
    assert values(start=second.isoformat()) == list(range(10, 15))
    assert values(stop=second.isoformat()) == list(range(10))
    assert values(start="latest") == []
    assert values(start="2020-01-01T00:00:00Z") == list(range(15))
    with pytest.raises(hr.InvalidArgument, match="before start"):
        values(start='{"0": 3}', stop='{"0": 2}')
    with pytest.raises(hr.OffsetOutOfRange, match="beyond the end"):
        values(start='{"0": 16}')
    with pytest.raises(hr.InvalidArgument, match="partition 1 is not read"):
        values(start='{"1": 0}')


def test_some_partitions(log: EmbeddedLog) -> None:
    fill(log, 10, partitions=4)
    reader = batch(log, partitions="1,3", columns="_partition,n")
    assert sorted({part.value[1].partition for part in reader.partitions()}) == [1, 3]
    with pytest.raises(hr.InvalidArgument, match=r"has 0\.\.3"):
        batch(log, partitions="4").partitions()


def test_a_range_is_read_as_planned_or_not_at_all(log: EmbeddedLog) -> None:
    fill(log, 10)
    (part,) = batch(log).partitions()
    log.delete_topic("clicks")
    fill(log, 20)
    with pytest.raises(hr.TopicReplaced):
        read(batch(log), [part])


# -- streaming ---------------------------------------------------------------------------------------


def test_micro_batches_take_what_they_may(log: EmbeddedLog) -> None:
    fill(log, 100, partitions=2)
    reader = stream(log, maxRowsPerBatch="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    at, seen, batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(checkpointed(at), ReadMaxRows(30))) != at:
        found = read(reader, reader.partitions(at, end))
        assert len(found) <= 30
        seen += found
        at, batches = checkpointed(end), batches + 1
    assert sorted(seen) == list(range(100)) and batches == 4
    assert nexts(reader.reportLatestOffset()) == {"0": 50, "1": 50}
    assert reader.partitions(at, at) == []
    reader.stop()


def test_limits_of_spark(log: EmbeddedLog) -> None:
    fill(log, 100)
    reader = stream(log)
    at = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ALL
    assert nexts(reader.latestOffset(at, ALL)) == {"0": 100}
    assert reader.latestOffset(at, ReadMinRows(101)) is at
    assert nexts(reader.latestOffset(at, ReadMinRows(100))) == {"0": 100}
    reader.stop()


def test_available_now_ends_where_the_log_ended(log: EmbeddedLog) -> None:
    fill(log, 10, partitions=1)
    reader = stream(log)
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(log, 10, first=10)
    log.topic("clicks").alter(partitions=2)
    fill(log, 10, first=20)
    end = reader.latestOffset(at, ReadMaxRows(6))
    assert nexts(end) == {"0": 6, "1": 0}
    end = reader.latestOffset(end, ReadMaxRows(6))
    assert nexts(end) == {"0": 10, "1": 0}
    assert reader.latestOffset(end, ReadMaxRows(6)) is end
    reader.stop()


def test_partitions_that_are_added_are_read_from_their_first_record(log: EmbeddedLog) -> None:
    fill(log, 10)
    reader = stream(log, start="latest")
    at = reader.initialOffset()
    assert nexts(at) == {"0": 10}
    log.topic("clicks").alter(partitions=3)
    assert reader.latestOffset(at, ALL) is at
    fill(log, 30, first=10)
    end = reader.latestOffset(at, ALL)
    assert sorted(read(reader, reader.partitions(at, end))) == list(range(10, 40))
    reader.stop()


def test_partitions_that_are_not_read_keep_their_place(log: EmbeddedLog) -> None:
    fill(log, 10, partitions=2)
    whole = stream(log)
    at = whole.latestOffset(whole.initialOffset(), ALL)
    fill(log, 10, first=10)
    half = stream(log, partitions="1")
    end = half.latestOffset(at, ALL)
    assert nexts(end) == {"0": 5, "1": 10}
    assert len(read(half, half.partitions(at, end))) == 5
    assert nexts(whole.latestOffset(end, ALL)) == {"0": 10, "1": 10}
    for reader in (whole, half):
        reader.stop()


def test_a_topic_created_anew_is_refused(log: EmbeddedLog) -> None:
    fill(log, 10)
    reader = stream(log)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    log.delete_topic("clicks")
    fill(log, 20)
    with pytest.raises(hr.TopicReplaced):
        reader.latestOffset(end, ALL)
    with pytest.raises(hr.TopicReplaced):
        reader.partitions(start, end)
    reader.stop()


def test_what_retention_deleted_is_never_skipped(log: EmbeddedLog) -> None:
    fill(log, 10, retention_bytes=2_000)
    reader = stream(log)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = reader.partitions(start, end)
    for first in range(10, 200, 10):
        fill(log, 10, first=first)
    earliest = log.topic("clicks").offsets()[0].earliest
    assert earliest > 10
    for failing in (
        lambda: reader.latestOffset(end, ALL),
        lambda: reader.partitions(start, end),
        lambda: read(reader, parts),
    ):
        with pytest.raises(hr.OffsetOutOfRange, match="was deleted by retention") as raised:
            failing()
        assert raised.value.earliest == earliest
    reader.stop()


def test_an_older_copy_of_the_log_is_refused(log: EmbeddedLog, tmp_path: Path) -> None:
    fill(log, 10)
    log.close()
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    with hr.open_log(tmp_path / "home") as newer:
        fill(newer, 10, first=10)
        reader = stream(newer)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        parts = reader.partitions(start, end)
        reader.stop()
    with hr.open_log(tmp_path / "copy") as older:
        reader = stream(older)
        for failing in (
            lambda: reader.latestOffset(end, ALL),
            lambda: reader.partitions(start, end),
            lambda: read(reader, parts),
        ):
            with pytest.raises(hr.OffsetOutOfRange, match="beyond the end of this log"):
                failing()
        reader.stop()


def test_a_checkpoint_of_another_source_is_refused(log: EmbeddedLog) -> None:
    fill(log, 1)
    reader = stream(log)
    with pytest.raises(hr.InvalidArgument, match="of another source"):
        reader.latestOffset({"clicks": {"0": 5}}, ALL)
    reader.stop()


def test_a_group_shows_how_far_a_query_is(log: EmbeddedLog) -> None:
    fill(log, 10, unread="keep")
    reader = stream(log, group="spark")
    start = reader.initialOffset()
    group = log.topic("clicks").group("spark")
    assert group.committed() == {0: 0}
    reader.commit(reader.latestOffset(start, ReadMaxRows(4)))
    assert group.committed() == {0: 4}
    assert group.lag()[0].records == 6
    reader.stop()
