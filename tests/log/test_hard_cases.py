"""What once went wrong, or nearly: each test is a way in which the log was broken by somebody who tried."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage.index import META, MetaRow
from headrace.log.open import open_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "log") as log:
        yield log


def numbers(topic: Any) -> list[Any]:
    return [record.value["n"] for record in topic.records()]


def test_a_row_that_was_sent_is_not_the_callers_any_more(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int")
    row: dict[str, int] = {}
    with topic.producer(linger="50 ms") as producer:
        for n in range(3):
            row["n"] = n
            producer.send(row)
    assert numbers(topic) == [0, 1, 2]


def test_a_transaction_is_within_one_log(log: EmbeddedLog, tmp_path: Path) -> None:
    ours = log.create_topic("t", "n int")
    with open_log(tmp_path / "other") as other:
        other.create_topic("u", "s string").append({"s": "old"})
        with pytest.raises(hr.InvalidArgument, match="another log"), other.transaction() as tx:
            tx.append(ours, {"n": 1})
        member = ours.group("g").join()
        with pytest.raises(hr.InvalidArgument, match="another log"), other.transaction() as tx:
            tx.commit(member)
        member.close()
        assert other.verify().ok


def test_a_data_file_removed_under_us_is_not_written_to(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int")
    topic.append({"n": 1})
    for name in os.listdir(log.home / "data"):
        os.unlink(log.home / "data" / name)
    with pytest.raises(hr.LogMissing, match="removed while open"):
        topic.append({"n": 2})
    assert topic.offsets()[0].next == 1
    assert topic.append({"n": 3}).ranges == {0: range(1, 2)}  # into a new file
    assert [r.value["n"] for r in topic.records(start={0: 1})] == [3]


def test_a_row_nobody_can_look_at_fails_alone(log: EmbeddedLog) -> None:
    kept, other = log.create_topic("k", "n int", extra="keep"), log.create_topic("o", "n int")
    failures: list[BaseException] = []
    stop = threading.Event()

    def neighbour() -> None:
        while not stop.is_set():
            try:
                other.append({"n": 1})
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=neighbour) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        with pytest.raises(hr.RecordRejected, match="cannot be kept as JSON"):
            kept.append({"n": 1, "seen_at": pd.NaT})
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("offset", [True, 1.5, "1", None])
def test_offsets_are_whole_numbers(offset: Any, log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int")
    topic.append([{"n": n} for n in range(3)])
    for call in (topic.group("g").rewind, topic.records):
        with pytest.raises(hr.InvalidArgument, match="start"):
            call({0: offset})
    with pytest.raises(hr.InvalidArgument, match="no partition 7"):
        topic.records({7: 0})
    assert topic.group("g").rewind("earliest") == {0: 0}


def test_a_rejected_row_counts_in_its_producers_sequence(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int")
    source: list[dict[str, Any]] = [{"n": 0}, {"n": "bad"}, {"n": 2}, {"n": 3}]
    with topic.producer(id="p") as producer:
        futures = [producer.send(row) for row in source[:3]]
    assert isinstance(futures[1].exception(), hr.RecordRejected)
    with topic.producer(id="p") as producer:
        assert producer.sequence == 3  # 0 and 2 are in the log, "bad" was dealt with
        for row in source[producer.sequence :]:
            producer.send(row)
    assert numbers(topic) == [0, 2, 3]
    with topic.producer(id="p") as producer:
        assert producer.send({"n": "bad"}).exception() is not None
    with topic.producer(id="p") as producer:
        assert producer.sequence == 5  # a batch of which nothing was left counts, too
    assert log.verify().ok


def test_fields_that_were_kept_stay_in_batches_when_no_more_are_kept(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int", extra="keep")
    topic.append({"n": 1, "z": "abc"})
    topic.alter(extra="forbid")
    assert [record.value for record in topic.records()] == [{"n": 1, "z": "abc"}]
    assert pa.Table.from_batches(topic.batches()).to_pylist() == [{"n": 1, "_extra": '{"z":"abc"}'}]


def test_batches_have_the_topics_own_schema(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int NOT NULL, s string")
    topic.append({"n": 1})
    assert pa.Table.from_batches(list(topic.batches()), schema=topic.schema).num_rows == 1


def test_a_damaged_partition_does_not_hold_up_the_others(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int", key="n", partitions=2)
    for n in range(8):
        topic.append({"n": n})
    lost = next(iter(topic.records(start={0: 2, 1: topic.offsets()[1].next})))  # partition 0, offset 2
    (path,) = (log.home / "data").iterdir()
    raw = bytearray(path.read_bytes())
    with log._engine.index.reading() as db:
        ((position, length),) = db.execute("SELECT position, length FROM batches WHERE partition = 0 AND base = 2")
    raw[position + length - 1] ^= 1
    path.write_bytes(raw)
    got: list[Any] = []
    told: set[Any] = set()
    with topic.group("g").join() as member:
        for _ in range(6):
            try:
                got += [(r.partition, r.offset) for r in member.poll("0 seconds", max_records=2)]
            except hr.DamagedData as damage:
                told.add((damage.partition, damage.start, damage.stop))
    assert lost.partition == 0
    assert told == {(0, 2, 3)}
    assert set(got) == {(0, 0), (0, 1)} | {(1, o) for o in range(topic.offsets()[1].next)}


def test_a_member_is_closed_while_another_thread_polls(log: EmbeddedLog) -> None:
    member = log.create_topic("t", "n int").group("g").join()
    outcome: list[Any] = []

    def poll() -> None:
        try:
            outcome.append(member.poll("30 seconds"))
        except hr.Closed as error:
            outcome.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    began = time.monotonic()
    member.close()
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - began < 10
    assert isinstance(outcome[0], hr.Closed)


def test_verify_beside_a_topic_that_comes_and_goes(log: EmbeddedLog) -> None:
    log.create_topic("a", "n int").append({"n": 1})
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            log.create_topic("z", "n int").append({"n": 1})
            log.delete_topic("z")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    problems = [log.verify().problems for _ in range(15)]
    stop.set()
    thread.join()
    assert problems == [[]] * 15


def test_headraces_own_topics_are_not_written_by_users(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int, at timestamp", event_time="at")
    topic.append({"n": 1, "at": "2999-01-01T00:00:00Z"})
    own = log.topic("__dead_letters")
    for write in (lambda: own.append({"reason": "x"}), lambda: own.alter(partitions=2), lambda: own.prepare({})):
        with pytest.raises(hr.InvalidArgument, match="headrace's own"):
            write()
    assert [letter.reason for letter in log.dead_letters()] == ["max_ahead"]


def test_the_largest_record_fits_into_the_dead_letters(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "b binary, at timestamp", event_time="at", durability="os")
    large = os.urandom(13 << 20)  # 17 MiB as base64
    assert topic.append({"b": large, "at": "2999-01-01T00:00:00Z"}).quarantined == 1
    (letter,) = log.dead_letters()
    assert isinstance(letter.value, dict)
    assert letter.value["b"] == large


def test_what_is_expected_is_a_mapping_of_whole_numbers(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string", key="k", versioned=True)
    for expect in (["a"], {"a": "0"}, {"a": True}):
        with pytest.raises(hr.InvalidArgument, match="expect"):
            topic.append({"k": "a"}, expect=expect)  # type: ignore[arg-type]


def test_a_very_long_linger(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int")
    with topic.producer(linger="400000 days") as producer:
        future = producer.send({"n": 1})
        producer.flush("10 seconds")
        assert future.done()


def test_batches_of_all_partitions(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int", partitions=4)
    topic.append([{"n": n} for n in range(1000)])
    assert sorted(pa.Table.from_batches(topic.batches()).column("n").to_pylist()) == list(range(1000))
    with pytest.raises(hr.InvalidArgument, match="say which"):
        topic.batches(start=0)
    assert sum(batch.num_rows for batch in topic.batches(partition=1, start=10, stop=20)) == 10


def test_a_row_that_its_key_does_not_find_is_damage_with_a_name() -> None:
    db = sqlite3.connect(":memory:")
    for statement in META.create:
        db.execute(statement)
    META.put(db, MetaRow("commit", "7/7"))
    db.execute("UPDATE meta SET name = 'commat'")  # as one flipped bit of the key's page does it
    with pytest.raises(hr.IndexDamaged, match="cannot be found by its key"):
        META.change(db, MetaRow("commit", "8/8"))
