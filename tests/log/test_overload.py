"""A producer that is faster than its consumers, with a bounded disk: who waits, what is dropped, and what the counters
say. Nothing here sleeps: a step is taken when the producer has met the bound, which its counters show."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.log.open import open_log

BOUND = 8_000
ROWS = 1_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "log") as log:
        yield log


@pytest.fixture
def bounded(log: EmbeddedLog) -> EmbeddedTopic:
    """A topic that holds about 25 batches of ten rows, for a group that has read nothing yet."""
    topic = log.create_topic("t", "n int", retention_bytes=BOUND, unread="keep", durability="os")
    topic.group("g").join().close()
    return topic


def until(true: Callable[[], bool]) -> None:
    """A state that is sure to come; the limit is for a test that is wrong."""
    limit = time.monotonic() + 30
    while not true():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.001)


def read(topic: EmbeddedTopic, count: int) -> list[int]:
    """What the group reads, until it has `count` records, checking the bound at every poll."""
    out: list[int] = []
    with topic.group("g").join() as member:
        while len(out) < count:
            out += [record.value["n"] for record in member.poll(max_records=50)]
            member.commit()
            assert topic.describe().bytes <= BOUND
    return out


def on_disk(log: EmbeddedLog) -> int:
    return sum(path.stat().st_size for path in (log.home / "data").iterdir())


def test_rows_that_are_refused_need_no_room(tmp_path: Path) -> None:
    """A full topic says what is wrong with a row, and deletes nothing for it."""
    with hr.open_log(tmp_path / "log") as log:
        for unread, expected in ("keep", [0]), ("delete", [0]):
            topic = log.create_topic(unread, "n int", retention_bytes=1, unread=unread)
            topic.group("g").join().close()
            topic.append({"n": 0})
            with pytest.raises(hr.RecordRejected):
                topic.append({"n": "x"})
            assert [record.value["n"] for record in topic.records()] == expected


def test_block_everything_arrives_and_the_sender_waits(log: EmbeddedLog, bounded: EmbeddedTopic) -> None:
    producer = bounded.producer(batch_rows=10, linger="0 seconds", buffer_bytes=5_000)

    def send() -> None:
        for n in range(ROWS):
            producer.send({"n": n})

    sender = threading.Thread(target=send)
    with producer:
        sender.start()
        until(lambda: producer.stats.blocked > 0 and producer.stats.full_seconds > 0)
        before = producer.stats
        assert before.sent < ROWS
        assert bounded.describe().bytes <= BOUND
        assert on_disk(log) < BOUND + 2_500  # refused appends leave nothing behind
        assert before.buffered_bytes <= 5_000
        assert read(bounded, ROWS) == list(range(ROWS))
        sender.join()
        producer.flush()
    stats = producer.stats
    assert (stats.sent, stats.acked, stats.failed, stats.dropped, stats.refused) == (ROWS, ROWS, 0, 0, 0)
    assert stats.blocked_seconds > 0 and stats.full_seconds > 0
    assert bounded.offsets()[0].next == ROWS


def test_drop_what_is_not_there_was_counted(log: EmbeddedLog, bounded: EmbeddedTopic) -> None:
    with bounded.producer(batch_rows=10, linger="0 seconds", overload="drop") as producer:
        futures = [producer.send({"n": n}) for n in range(ROWS)]
        producer.flush()
        assert bounded.describe().bytes <= BOUND
        assert on_disk(log) < BOUND + 2_500
        stats = producer.stats
        lost = {n for n, future in enumerate(futures) if future.exception(0) is not None}
        assert all(isinstance(futures[n].exception(0), hr.TopicFull) for n in lost)
        assert 0 < stats.dropped == len(lost) < ROWS
        assert (stats.sent, stats.acked, stats.failed) == (ROWS, ROWS - stats.dropped, 0)
        assert stats.blocked == 0 and stats.full_seconds == 0  # nobody waited
        assert read(bounded, stats.acked) == [n for n in range(ROWS) if n not in lost]
        assert producer.send({"n": ROWS}).result(30)  # there is room again
    assert read(bounded, 1) == [ROWS]


def test_buffer_first_the_disk_then_memory_then_an_error(bounded: EmbeddedTopic) -> None:
    with bounded.producer(batch_rows=10, linger="0 seconds", buffer_bytes=5_000, overload="buffer") as producer:
        accepted = 0
        with pytest.raises(hr.Overloaded):
            while True:
                producer.send({"n": accepted})
                accepted += 1
                if accepted % 10 == 0:  # as fast as the disk takes them, until it takes no more
                    until(lambda: producer.stats.buffered_rows == 0 or producer.stats.full_seconds > 0)
        full = producer.stats
        assert bounded.describe().bytes <= BOUND
        assert full.acked == bounded.offsets()[0].next > 0
        assert full.sent == accepted == full.acked + full.buffered_rows
        assert (full.refused, full.dropped, full.failed, full.blocked) == (1, 0, 0, 0)
        assert read(bounded, accepted) == list(range(accepted))
        producer.flush()
    assert producer.stats.acked == accepted


def test_delete_the_consumer_is_told_what_it_lost(log: EmbeddedLog, caplog: pytest.LogCaptureFixture) -> None:
    topic = log.create_topic("overtaken", "n int", retention_bytes=BOUND, durability="os")
    with topic.group("g").join() as member, topic.producer(batch_rows=10, linger="0 seconds") as producer:
        producer.send({"n": 0}).result(30)
        assert [record.value["n"] for record in member.poll()] == [0]
        member.commit()
        with caplog.at_level(logging.WARNING, "headrace.log"):
            for n in range(1, ROWS):
                producer.send({"n": n})
            producer.flush()
        stats = producer.stats
        assert (stats.acked, stats.dropped, stats.full_seconds) == (ROWS, 0, 0)  # no producer waits here
        assert topic.describe().bytes <= BOUND
        earliest = topic.offsets()[0].earliest
        assert earliest > 1
        (told,) = [record.getMessage() for record in caplog.records if "had read them" in record.getMessage()]
        assert told.startswith("overtaken/0: retention deleted offsets 1..")  # once a minute, not with every append
        assert "before group 'g' had read them" in told
        with pytest.raises(hr.OffsetOutOfRange) as error:
            member.poll(timeout="0 seconds")
        assert (error.value.offset, error.value.earliest, error.value.next) == (1, earliest, ROWS)
        assert f"lost: 1..{earliest}" in str(error.value)
        left = topic.group("g").time_to_loss()
        assert left is not None and left.total_seconds() == 0
        topic.group("g").rewind("earliest")  # it decides to go on
        assert member.poll(max_records=1)[0].offset == earliest


def test_maintain_reports_who_was_overtaken(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int")
    topic.group("g").rewind("earliest")
    for n in range(10):
        topic.append({"n": n})
    size = topic.describe().bytes // 10
    topic.alter(retention_bytes=3 * size)
    usage = topic.usage()
    assert (usage.would_delete_records, usage.would_delete_bytes) == (7, 7 * size)
    (overtaken,) = log.maintain().overtaken
    assert (overtaken.consumer, overtaken.start, overtaken.stop) == ("g", 0, 7)
    assert topic.usage().would_delete_records == 0


def test_a_large_append_finds_room_behind_many_small_batches(log: EmbeddedLog, monkeypatch: Any) -> None:
    """More of them than retention deletes in one step."""
    monkeypatch.setattr("headrace.log.embedded.storage.retention.STEP_BATCHES", 4)
    topic = log.create_topic("t", "n int", retention_bytes=BOUND, unread="keep", durability="os")
    topic.group("g").rewind("latest")
    for n in range(20):
        topic.append({"n": n})
    topic.group("g").rewind("latest")
    topic.append([{"n": n} for n in range(1_500)])
    assert topic.describe().bytes <= BOUND
    with pytest.raises(hr.TopicFull):
        topic.append([{"n": n} for n in range(1_500)])
