"""Appending: Arrow batches, single records with and without group commit, the batching producer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from bench import nats_peer, sqlite_peer
from bench.payload import BATCH_ROWS, DDL
from bench.settings import Run
from bench.table import Measured, Peer, Row, rate
from headrace.log.embedded.topic import EmbeddedTopic

THREADS = 8
NATS_ALWAYS, NATS_DEFAULT = "sync_interval always", "sync_interval default (2 min)"


def batches(run: Run) -> Iterator[Row]:
    yield _batches(run, "append 10 k-row Arrow batches, os, no key", 5e6, synced=False)
    yield _batches(run, "append 10 k-row Arrow batches, fsync, no key", 1e6, synced=True)
    yield _batches(
        run, "append 10 k-row Arrow batches, os, hashed by key over 4 partitions", 3e6, synced=False, keyed=True
    )


def _batches(run: Run, what: str, target: float, *, synced: bool, keyed: bool = False) -> Row:
    count = run.size(100, 3)
    durability = "fsync" if synced else "os"
    with run.log() as log:
        topic = log.create_topic(
            "clicks",
            DDL,
            event_time="at",
            durability=durability,
            key="user" if keyed else None,
            partitions=4 if keyed else 1,
        )
        chosen = run.payload.cycle(count)
        topic.append(chosen[0])  # imports and first buffers are not what is measured

        def work() -> None:
            for batch in chosen:
                topic.append(batch)

        ours = rate(count * BATCH_ROWS, work, run.repeat)
    peers = [_sqlite_batches(run, synced=synced, index=keyed), _nats_rows(run, synced=synced)]
    if not keyed:
        peers.append(_nats_batches(run, synced=synced))
    return Row("append", what, "rows/s", ours, target, peers=peers)


def _sqlite_batches(run: Run, *, synced: bool, index: bool) -> Peer:
    synchronous = "FULL" if synced else "NORMAL"
    chosen = run.payload.tuples[: run.size(8, 1)]

    def measure() -> Measured:
        db = sqlite_peer.create(run.fresh("sqlite"), synchronous, index=index)
        try:
            return rate(len(chosen) * BATCH_ROWS, lambda: sqlite_peer.append_batches(db, chosen), run.repeat)
        finally:
            db.close()

    indexed = ", indexed by key" if index else ""
    return run.peer("SQLite", f"WAL, synchronous {synchronous}, executemany per 10 k rows{indexed}", measure)


def _nats_rows(run: Run, *, synced: bool) -> Peer:
    messages = run.payload.messages[0][: 4_000 if synced else BATCH_ROWS]

    def measure() -> Measured:
        with nats_peer.serving(run.fresh("nats"), synced=synced) as server:
            return rate(
                len(messages),
                lambda: nats_peer.run(server, lambda stream: nats_peer.publish_pipelined(stream, messages)),
                min(run.repeat, 3),
            )

    return run.peer("JetStream", f"a JSON message a row, pipelined, {NATS_ALWAYS if synced else NATS_DEFAULT}", measure)


def _nats_batches(run: Run, *, synced: bool) -> Peer:
    messages = [bytes(batch.serialize()) for batch in run.payload.cycle(run.size(100, 3))]

    def measure() -> Measured:
        with nats_peer.serving(run.fresh("nats"), synced=synced) as server:
            return rate(
                len(messages) * BATCH_ROWS,
                lambda: nats_peer.run(server, lambda stream: nats_peer.publish_pipelined(stream, messages)),
                min(run.repeat, 3),
            )

    settings = f"an opaque message of Arrow bytes a batch, pipelined, {NATS_ALWAYS if synced else NATS_DEFAULT}"
    return run.peer("JetStream", settings, measure)


# -- single records ----------------------------------------------------------------------------------


def singles(run: Run) -> Iterator[Row]:
    count = run.size(400, 20)
    with run.log() as log:
        topic = log.create_topic("clicks", DDL, event_time="at")
        one, many = _one_and_many(run, topic, count)
        quick = log.create_topic("quick", DDL, event_time="at", durability="os")
        unsynced = rate(4 * count, lambda: _append_singles(run, quick, 4 * count, 1), run.repeat)
    yield Row(
        "singles",
        "single records, fsync, 1 thread",
        "records/s",
        one,
        peers=[_sqlite_singles(run, count, 1, "FULL"), _nats_singles(run, count, 1, synced=True)],
    )
    yield Row(
        "singles",
        f"single records, fsync, {THREADS} threads, group commit",
        "records/s",
        many,
        peers=[_sqlite_singles(run, count, THREADS, "FULL"), _nats_singles(run, count, THREADS, synced=True)],
    )
    assert one.median and many.median and one.best and many.best
    gained = Measured(many.median / one.median, many.best / one.best)
    yield Row("singles", f"group commit: {THREADS} threads against 1, fsync", "x", gained, 5)
    yield Row(
        "singles",
        "single records, os, 1 thread",
        "records/s",
        unsynced,
        peers=[_sqlite_singles(run, 4 * count, 1, "NORMAL"), _nats_singles(run, 4 * count, 1, synced=False)],
    )


def _one_and_many(run: Run, topic: EmbeddedTopic, count: int) -> tuple[Measured, Measured]:
    """Measured in turn, so that a busy neighbour meets both."""
    _append_singles(run, topic, 20, THREADS)
    rates: dict[int, list[float]] = {1: [], THREADS: []}
    for _ in range(run.repeat):
        for threads in (1, THREADS):
            measured = rate(count * threads, lambda n=threads: _append_singles(run, topic, count, n), 1)
            rates[threads].append(measured.best or 0)
    one, many = (Measured(sorted(found)[len(found) // 2], max(found)) for found in rates.values())
    return one, many


def _append_singles(run: Run, topic: EmbeddedTopic, count: int, threads: int) -> None:
    rows = run.payload.rows

    def work() -> None:
        for row in rows[:count]:
            topic.append(row)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _sqlite_singles(run: Run, count: int, threads: int, synchronous: str) -> Peer:
    rows = run.payload.tuples[0][:count]

    def measure() -> Measured:
        path = run.fresh("sqlite")
        sqlite_peer.create(path, synchronous).close()
        return rate(
            count * threads, lambda: sqlite_peer.append_singles(path, synchronous, rows, threads), min(run.repeat, 3)
        )

    each = "a commit per record" + (f", {threads} threads with a connection each" if threads > 1 else "")
    return run.peer("SQLite", f"WAL, synchronous {synchronous}, {each}", measure)


def _nats_singles(run: Run, count: int, publishers: int, *, synced: bool) -> Peer:
    messages = run.payload.messages[0][:count]

    def measure() -> Measured:
        with nats_peer.serving(run.fresh("nats"), synced=synced) as server:
            return rate(
                count * publishers,
                lambda: nats_peer.run(
                    server, lambda stream: nats_peer.publish_one_by_one(stream, messages, publishers)
                ),
                min(run.repeat, 3),
            )

    who = "acknowledged one by one" + (f", {publishers} publishers" if publishers > 1 else "")
    return run.peer("JetStream", f"{who}, {NATS_ALWAYS if synced else NATS_DEFAULT}", measure)


# -- the batching producer ---------------------------------------------------------------------------


def producer(run: Run) -> Iterator[Row]:
    rows = run.payload.rows[: run.size(80_000, 2_000)]
    with run.log() as log:
        topic = log.create_topic("clicks", DDL, event_time="at")

        def work() -> None:
            with topic.producer() as producer:
                futures = [producer.send(row) for row in rows]
            assert all(future.done() for future in futures)

        ours = rate(len(rows), work, run.repeat)
    yield Row(
        "producer", "batching producer: send() each row, a future each, fsync", "rows/s", ours, 200_000,
        peers=[_nats_rows(run, synced=True), _nats_rows(run, synced=False)],
    )  # fmt: skip
