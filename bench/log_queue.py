"""What queues cost: receiving and acknowledging, in batches and one by one."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from time import perf_counter

import orjson

from bench import rabbit_peer, sqlite_peer
from bench.payload import BATCH_ROWS, DDL
from bench.settings import Run
from bench.table import Measured, Peer, Row, of_rates
from headrace.log.embedded.consume.queues import EmbeddedQueue

BATCH = 100


def queue(run: Run) -> Iterator[Row]:
    rabbit = {one_by_one: _rabbit(run, one_by_one=one_by_one) for one_by_one in (False, True)}
    yield Row(
        "queue",
        f"receive and ack, {BATCH} at a time, os",
        "messages/s",
        _ours(run, "os", run.size(5, 1) * BATCH_ROWS, _in_batches),
        50_000,
        peers=[_sqlite(run, "NORMAL", BATCH), rabbit[False]],
    )
    one = _ours(run, "fsync", run.size(4_000, 200), _one_by_one)
    yield Row(
        "queue",
        f"receive {BATCH}, ack one by one, fsync, 1 thread",
        "messages/s",
        one,
        peers=[_sqlite(run, "FULL", 1), rabbit[True]],
    )
    yield Row(
        "queue",
        f"receive {BATCH}, ack one by one, fsync, 8 threads",
        "messages/s",
        _ours(run, "fsync", run.size(16_000, 200), _by_threads),
        2_000,
    )
    yield Row(
        "queue", "receive 1, ack it, fsync, 1 thread", "messages/s", _ours(run, "fsync", run.size(2_000, 50), _single)
    )


def _ours(run: Run, durability: str, count: int, work: Callable[[EmbeddedQueue, int], None]) -> Measured:
    rates = []
    with run.log() as log:
        topic = log.create_topic("jobs", DDL, event_time="at", durability=durability)
        for number in range(run.repeat):
            for start in range(0, count, BATCH_ROWS):
                topic.append(run.payload.batches[number].slice(0, min(BATCH_ROWS, count - start)))
            mailer = topic.queue(f"mailer-{number}", start="earliest")
            if number:
                mailer.rewind({0: topic.offsets()[0].next - count})
            began = perf_counter()
            work(mailer, count)
            rates.append(count / (perf_counter() - began))
            assert mailer.stats().acked == count
    return of_rates(rates)


def _in_batches(mailer: EmbeddedQueue, count: int) -> None:
    done = 0
    while done < count:
        messages = mailer.receive(BATCH)
        for message in messages:
            assert message.value
        mailer.ack(messages)
        done += len(messages)


def _one_by_one(mailer: EmbeddedQueue, count: int) -> None:
    done = 0
    while done < count:
        for message in mailer.receive(BATCH):
            assert message.value
            message.ack()
            done += 1


def _single(mailer: EmbeddedQueue, count: int) -> None:
    for _ in range(count):
        (message,) = mailer.receive(1)
        message.ack()


def _by_threads(mailer: EmbeddedQueue, _: int) -> None:
    def work() -> None:
        while messages := mailer.receive(BATCH):
            for message in messages:
                assert message.value
                message.ack()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- peers -------------------------------------------------------------------------------------------


def _rabbit(run: Run, *, one_by_one: bool) -> Peer:
    messages = [message for batch in run.payload.messages for message in batch][: run.size(20_000, 500)]
    acked = "each acked" if one_by_one else f"acked by {rabbit_peer.PREFETCH} (multiple)"

    def measure() -> Measured:
        rates = []
        with rabbit_peer.serving(run.fresh("rabbit")) as connection:
            for _ in range(min(run.repeat, 3)):
                rabbit_peer.publish(connection, messages)
                began = perf_counter()
                rabbit_peer.consume(connection, len(messages), one_by_one=one_by_one)
                rates.append(len(messages) / (perf_counter() - began))
        return of_rates(rates)

    settings = f"durable queue, persistent, confirmed, prefetch {rabbit_peer.PREFETCH}, {acked}, JSON parsed"
    return run.peer("RabbitMQ", settings, measure)


def _sqlite(run: Run, synchronous: str, batch: int) -> Peer:
    """A job table: claim, then delete, a transaction each."""
    texts = [message.decode() for part in run.payload.messages for message in part]
    count = run.size(20_000 if batch > 1 else 4_000, 200)

    def measure() -> Measured:
        rates = []
        for _ in range(min(run.repeat, 3)):
            db = sqlite_peer.connect(run.fresh("jobs"), synchronous)
            db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, value TEXT, due INTEGER NOT NULL)")
            db.execute("CREATE INDEX jobs_due ON jobs (due, id)")
            db.execute("BEGIN")
            db.executemany("INSERT INTO jobs (value, due) VALUES (?, 0)", [(text,) for text in texts[:count]])
            db.execute("COMMIT")
            began = perf_counter()
            done = 0
            while done < count:
                done += _claim(db, batch)
            rates.append(count / (perf_counter() - began))
            db.close()
        return of_rates(rates)

    settings = f"a job table, WAL, synchronous {synchronous}, {BATCH} claimed and {batch} deleted a transaction, JSON"
    return run.peer("SQLite", settings, measure)


def _claim(db: sqlite3.Connection, batch: int) -> int:
    found = db.execute(
        "UPDATE jobs SET due = 1 WHERE id IN (SELECT id FROM jobs WHERE due = 0 ORDER BY id LIMIT ?) "
        "RETURNING id, value",
        (BATCH,),
    ).fetchall()
    for _, value in found:
        orjson.loads(value)
    for start in range(0, len(found), batch):
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM jobs WHERE id = ?", [(number,) for number, _ in found[start : start + batch]])
        db.execute("COMMIT")
    return len(found)
