"""The commit of a write, without a JVM: a batch is in the log once, whole, and as it was the first time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import headrace as hr
from headrace.flows.source import staging
from headrace.flows.source.source_options import WriteOptions
from headrace.flows.source.staging import BatchWriter, Staged, StreamWriter
from headrace.log.embedded.log import EmbeddedLog

COLUMNS = StructType().add("user", "string").add("n", "integer")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with hr.open_log(tmp_path / "home") as log:
        log.create_topic("clicks", "user string, n int", key="user", partitions=2)
        yield log


def rows(*numbers: int) -> pa.Table:
    return pa.table({"user": [f"u{n}" for n in numbers], "n": pa.array(numbers, pa.int32())})


def numbers(log: EmbeddedLog) -> list[int]:
    return sorted(record.value["n"] for record in log.topic("clicks").records())


def test_metadata_is_not_written_and_progress_may_be_carried(log: EmbeddedLog) -> None:
    source = log.create_topic("source", "user string, n int, at timestamp", event_time="at")
    for minute in range(3):
        source.append({"user": "a", "n": minute, "at": f"2026-01-01T09:0{minute}:00Z"})
    batches = list(source.batches(0, columns=["user", "n", *hr.META]))
    writer = BatchWriter(
        WriteOptions(log.home, "clicks", carry_progress=True), StructType([*COLUMNS]).add("_progress", "timestamp")
    )
    writer.commit([writer.write(iter(batches))])
    given = [record.progress for record in log.topic("clicks").records()]
    assert given == [record.progress for record in source.records()]
    assert given[0] is None and given[2].minute == 1


def staged_files(log: EmbeddedLog) -> list[Path]:
    return sorted((log.home / "staging").rglob("*.arrow"))


def test_only_what_a_commit_names_is_appended_and_nothing_is_left(log: EmbeddedLog) -> None:
    writer = BatchWriter(WriteOptions(log.home, "clicks"), COLUMNS)
    first = writer.write(iter(rows(1, 2).to_batches()))
    writer.write(iter(rows(1, 2).to_batches()))  # a task that ran twice
    empty = writer.write(iter([]))
    assert empty.path is None and len(staged_files(log)) == 2
    writer.commit([first, empty, None])
    assert numbers(log) == [1, 2]
    assert staged_files(log) == [] and list((log.home / "staging").iterdir()) == []


def test_a_task_that_fails_leaves_no_file(log: EmbeddedLog) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(1).to_batches()
        raise RuntimeError("the user's function")

    writer = BatchWriter(WriteOptions(log.home, "clicks"), COLUMNS)
    with pytest.raises(RuntimeError):
        writer.write(failing())
    assert staged_files(log) == []
    writer.write(iter(rows(1).to_batches()))
    writer.abort([None])
    assert staged_files(log) == [] and numbers(log) == []


def test_a_micro_batch_clears_its_own_and_earlier_leftovers(log: EmbeddedLog) -> None:
    folder = log.home / "staging" / "q"
    topic_id = log.topic("clicks").topic_id
    paths = {batch: staging._stage(folder / str(batch), iter(rows(batch).to_batches())) for batch in (6, 7, 8)}
    writer = StreamWriter(WriteOptions(log.home, "clicks"), COLUMNS)
    writer.commit([Staged(paths[7], topic_id, "q"), Staged(None, topic_id, "q")], 7)
    assert numbers(log) == [7]
    assert staged_files(log) == [paths[8]]  # 6 was left by a crash; 8 cannot be yet, and is left alone
    writer.commit([], 8)
    assert numbers(log) == [7]


def test_what_programs_left_goes_after_a_day(log: EmbeddedLog) -> None:
    old = staging._stage(log.home / "staging" / "gone", iter(rows(1).to_batches()))
    new = staging._stage(log.home / "staging" / "busy", iter(rows(1).to_batches()))
    assert old is not None
    for path in (old, old.parent):
        os.utime(path, (time.time() - 90_000,) * 2)
    writer = BatchWriter(WriteOptions(log.home, "clicks"), COLUMNS)
    writer.commit([writer.write(iter(rows(5).to_batches()))])
    assert staged_files(log) == [new]


def test_an_erasure_says_what_is_staged(log: EmbeddedLog) -> None:
    writer = BatchWriter(WriteOptions(log.home, "clicks"), COLUMNS)
    staged = writer.write(iter(rows(1).to_batches()))
    (left,) = log.topic("clicks").erase("u1").incomplete
    assert str(staged.path) in left
    writer.commit([staged])
    assert log.topic("clicks").erase("u1").incomplete == []


def test_a_topic_created_anew_while_tasks_ran_is_refused(log: EmbeddedLog) -> None:
    writer = BatchWriter(WriteOptions(log.home, "clicks"), COLUMNS)
    staged = writer.write(iter(rows(1).to_batches()))
    log.delete_topic("clicks")
    log.create_topic("clicks", "user string, n int")
    with pytest.raises(hr.TopicReplaced):
        writer.commit([staged])
    assert numbers(log) == []


def test_columns_the_topic_has_not_are_refused_before_anything_runs(log: EmbeddedLog) -> None:
    with pytest.raises(hr.InvalidArgument, match=r"no such column\. Did you mean 'user'"):
        BatchWriter(WriteOptions(log.home, "clicks"), StructType().add("usr", "string"))
    with pytest.raises(hr.InvalidArgument, match="there is no column _progress"):
        BatchWriter(WriteOptions(log.home, "clicks", carry_progress=True), COLUMNS)
    with pytest.raises(hr.UnknownTopic, match="Did you mean 'clicks'"):
        BatchWriter(WriteOptions(log.home, "click"), COLUMNS)
    with pytest.raises(hr.LogMissing):
        BatchWriter(WriteOptions(log.home / "no", "clicks"), COLUMNS)
