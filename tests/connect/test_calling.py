"""A function as a sink: which rows come, with which key, and what a crash changes."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import failpoints
from headrace.connect import calling, reading
from headrace.connect.calling import Calling, Function, key_of, rewind
from headrace.connect.journal import Journal
from headrace.connect.open import as_sink, open_sink
from headrace.connect.reading import ends_of
from headrace.errors import InvalidArgument, OffsetOutOfRange, SinkFailed, SinkFenced, TopicReplaced
from headrace.log.contract import Log, Topic
from tests.faults.children import Children, ack

POINTS = [point for point in failpoints.KNOWN if point.startswith("sink.")]
Batch = tuple[str, list[int]]


class Ledger:
    """What a function was called with."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.fails = 0

    def __call__(self, rows: pa.Table, key: str) -> None:
        self.batches.append((key, rows["n"].to_pylist()))
        if self.fails:
            self.fails -= 1
            raise ValueError("the other side is down")


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with hr.open_log(tmp_path / "home") as log:
        log.create_topic("numbers", "n int")
        yield log


def drain(log: Log, function: Any, rows_max: int = 3) -> int:
    opened = Calling("out", log, log.topic("numbers"), function, rows_max)
    total = 0
    while taken := opened.step():
        total += taken
    return total


def test_each_batch_once_with_keys_that_grow(log: Log) -> None:
    numbers, ledger = log.topic("numbers"), Ledger()
    numbers.append([{"n": n} for n in range(5)])
    assert drain(log, ledger) == 5
    assert drain(log, ledger) == 0
    numbers.append({"n": 5})
    assert drain(log, ledger) == 1
    wanted: list[Batch] = [(key_of("out", 1), [0, 1, 2]), (key_of("out", 2), [3, 4]), (key_of("out", 3), [5])]
    assert ledger.batches == wanted
    assert sorted(key for key, _ in wanted) == [key for key, _ in wanted]


def test_what_failed_comes_again_and_nothing_before_it(log: Log) -> None:
    """More rows have come meanwhile; they are not in the batch that comes again."""
    ledger = Ledger()
    ledger.fails = 2
    log.topic("numbers").append([{"n": 0}, {"n": 1}])
    for _ in range(2):
        with pytest.raises(
            SinkFailed, match="failed on batch out-0000000000000001: ValueError: the other side is down"
        ):
            drain(log, ledger)
        log.topic("numbers").append({"n": 2})
    drain(log, ledger)
    first = (key_of("out", 1), [0, 1])
    assert ledger.batches == [first, first, first, (key_of("out", 2), [2, 2])]


def test_of_two_processes_the_first_is_refused(log: Log) -> None:
    ledger = Ledger()
    one = Calling("out", log, log.topic("numbers"), ledger)
    log.topic("numbers").append({"n": 0})
    drain(log, ledger)
    log.topic("numbers").append({"n": 1})
    with pytest.raises(SinkFenced):
        one.step()
    assert [rows for _, rows in ledger.batches] == [[0]]


def test_what_retention_took_is_told(log: Log) -> None:
    numbers = log.topic("numbers")
    numbers.append([{"n": n} for n in range(3)])
    drain(log, Ledger())
    numbers.append([{"n": n} for n in range(3)])
    numbers.alter(retention_bytes=1)
    log.maintain()  # type: ignore[attr-defined]
    with pytest.raises(OffsetOutOfRange, match="deleted by retention"):
        drain(log, Ledger())


def test_another_topic_of_the_name_is_refused_until_the_sink_begins_anew(log: Log) -> None:
    ledger = Ledger()
    log.topic("numbers").append({"n": 0})
    drain(log, ledger)
    log.delete_topic("numbers")
    log.create_topic("numbers", "n int").append({"n": 7})
    with pytest.raises(TopicReplaced, match="headrace sinks rewind out"):
        open_sink(Function(ledger), "out", log, log.topic("numbers"), Path())
    rewind("out", log, log.topic("numbers"))
    drain(log, ledger)
    assert ledger.batches[1:] == [(key_of("out", 2), [7])]


@pytest.mark.parametrize("given", [7, "mails", lambda rows: rows, Ledger])
def test_what_is_no_sink_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="sink"):
        as_sink(given)
    assert as_sink(Ledger()).kind == "function"


# -- kills -----------------------------------------------------------------------------------------------


def into_database(path: str, by_key: bool) -> Any:
    """The rows into a database, in a transaction: with the key, which tells whether they are there; or without."""

    def deliver(rows: pa.Table, key: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            if by_key:
                (last,) = db.execute("SELECT max(key) FROM keys").fetchone()
                if last is not None and key <= last:
                    return
                db.execute("INSERT INTO keys VALUES (?)", (key,))
            db.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in rows["n"].to_pylist()])

    return deliver


def deliver_until_killed(home: str, path: str, by_key: bool, point: str, skip: int) -> None:
    failpoints.arm(point, "kill", skip=skip)
    calling.ROWS_MAX = 3  # type: ignore[misc]
    with hr.open_log(home) as log:
        ack("started")
        drain(log, into_database(path, by_key))


@pytest.mark.parametrize("by_key", [True, False])
def test_killed_anywhere(log: Log, tmp_path: Path, children: Children, by_key: bool) -> None:
    """By the key each row is there once. Without it rows of the batches that were under way are there twice."""
    path = str(tmp_path / "numbers.db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE numbers (n INTEGER); CREATE TABLE keys (key TEXT PRIMARY KEY)")
    sent = 0
    for point in POINTS:
        for skip in (0, 2):
            log.topic("numbers").append([{"n": n} for n in range(sent, sent + 10)])
            sent += 10
            child = children.start(deliver_until_killed, str(tmp_path / "home"), path, by_key, point, skip)
            assert child.wait() == -signal.SIGKILL
    drain(log, into_database(path, by_key))
    with contextlib.closing(sqlite3.connect(path)) as db:
        found = [n for (n,) in db.execute("SELECT n FROM numbers ORDER BY rowid")]
    assert list(dict.fromkeys(found)) == [*range(sent)]
    twice = len(found) - sent
    assert (twice == 0) if by_key else (0 < twice <= 3 * 2 * len(POINTS))


def test_it_is_recorded_what_a_sink_is(log: Log) -> None:
    topic: Topic = log.topic("numbers")
    for _ in range(2):
        open_sink(Function(Ledger()), "out", log, topic, Path()).close()
    (record,) = [record.value for record in log.topic("out.sink").records() if record.value["kind"] == "spec"]
    assert json.loads(record["value"]) == {"kind": "function", "topic": "numbers"}


def test_two_that_say_the_same_of_a_sink_do_not_fence_each_other(log: Log) -> None:
    """A program asks for the lag of a sink while its thread opens it for the first time."""
    first, second = Journal(log, "out"), Journal(log, "out")
    first.describe({"kind": "function"})
    second.describe({"kind": "function"})
    with pytest.raises(SinkFenced):
        second.describe({"kind": "webhook"})


def test_large_records_make_small_batches(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BYTES_MAX", 3_500)
    topic = log.create_topic("texts", "text string")
    for _ in range(3):
        topic.append([{"text": "x" * 1_500}])
    counts: list[int] = []
    opened = Calling("texts", log, topic, lambda rows, _: counts.append(rows.num_rows), 100)
    while opened.step():
        pass
    assert counts == [2, 1]


def test_offsets_without_records_are_passed(log: Log) -> None:
    topic = log.create_topic("keyed", "k int, n int", key="k")
    topic.append([{"k": 1, "n": n} for n in range(3)] + [{"k": 2, "n": 9}])
    topic.erase(2)  # type: ignore[attr-defined]
    opened = Calling("keyed", log, topic, Ledger())
    assert (opened.step(), opened.step()) == (3, 0)
    assert opened.place == ends_of(topic)
