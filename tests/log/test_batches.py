"""Batches that their writer numbers: each is in the log once, whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.log.embedded import batches
from headrace.log.embedded.batches import BATCH_SEQUENCES
from headrace.log.embedded.log import EmbeddedLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with hr.open_log(tmp_path / "home") as log:
        log.create_topic("clicks", "user string, n int", key="user", partitions=2)
        yield log


def rows(*numbers: int) -> pa.Table:
    return pa.table({"user": [f"u{n}" for n in numbers], "n": pa.array(numbers, pa.int32())})


def numbers(log: EmbeddedLog) -> list[int]:
    return sorted(record.value["n"] for record in log.topic("clicks").records())


def write(log: EmbeddedLog, batch: int, *values: int, writer: str = "w") -> None:
    log.topic("clicks").append_batch(rows(*values), writer, batch)


def test_a_batch_that_comes_again_is_in_the_log_once(log: EmbeddedLog) -> None:
    write(log, 0, 1, 2)
    write(log, 0, 1, 2)
    write(log, 1, 3)
    write(log, 0, 1, 2)  # an older one, from a driver that does not know it was replaced
    write(log, 1, 3)
    assert numbers(log) == [1, 2, 3]


def test_writers_and_topics_do_not_know_of_each_other(log: EmbeddedLog) -> None:
    log.create_topic("other", "user string, n int")
    write(log, 0, 1)
    write(log, 0, 2, writer="x")
    log.topic("other").append_batch(rows(3), "w", 0)
    assert numbers(log) == [1, 2]
    assert [record.value["n"] for record in log.topic("other").records()] == [3]


def test_batches_without_rows_leave_no_hole(log: EmbeddedLog) -> None:
    write(log, 4, 1)  # the query wrote elsewhere before
    write(log, 9, 2)  # five to eight had no rows
    write(log, 10, 3)
    write(log, 9, 2)
    assert numbers(log) == [1, 2, 3]


@pytest.mark.parametrize("again", [(1,), (1, 2, 3), (1, 2, 3, 4, 5)])
def test_a_batch_that_comes_again_with_other_rows_is_refused(
    log: EmbeddedLog, again: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PIECE_ROWS_MIN", 2)  # in pieces of two
    write(log, 0, 1, 2, 3, 4)
    with pytest.raises(hr.BatchDiffers, match="batch 0 of 'w' is in the log") as raised:
        write(log, 0, *again)
    assert (raised.value.batch, raised.value.rows) == (0, len(again))
    write(log, 0, 1, 2, 3, 4)
    assert numbers(log) == [1, 2, 3, 4]


def test_pieces_are_one_transaction(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PIECE_ROWS_MIN", 2)
    bad = pa.table({"user": ["a"] * 5, "n": pa.array([1, 2, 3, 4, 2**40], pa.int64())})
    with pytest.raises(hr.RecordRejected, match="column 'n'"):
        log.topic("clicks").append_batch(bad, "w", 0)
    assert numbers(log) == []
    write(log, 0, 1, 2, 3, 4, 5)
    assert numbers(log) == [1, 2, 3, 4, 5]


def test_many_pieces_are_remembered(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PIECE_ROWS_MIN", 1)
    values = tuple(range(1000))
    for batch in (0, 1):
        write(log, batch, *values)
    for batch in (0, 1):
        write(log, batch, *values)
    assert len(numbers(log)) == 2000


def test_pieces_keep_each_its_part_of_the_progress(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PIECE_ROWS_MIN", 2)
    topic = log.create_topic("one", "user string, n int")
    given = pa.chunked_array([pa.array([1, 2, 3, 4, 5], pa.timestamp("us", tz="UTC"))])
    topic.append_batch(rows(1, 2, 3, 4, 5), progress=given)
    assert [record.progress for record in topic.records()] == given.to_pylist()


def test_batch_numbers_fit_for_longer_than_anybody_lives() -> None:
    assert 2**63 // BATCH_SEQUENCES > 2_000_000_000
