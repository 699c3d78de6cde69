"""Change capture of a SQLite file: what its triggers cost a writer, and from its outbox into durable topics. Events of
an outbox on it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator

from bench.capture import _latencies
from bench.log_wake import _part
from bench.settings import Run
from bench.table import Measured, Row
from headrace.cdc.open import choice_for, open_source, outbox
from headrace.cdc.running import CaptureThread

UPDATES, SNAPSHOT_ROWS, EVENTS, COMMITS = 200_000, 1_000_000, 50_000, 300
TABLES = (
    "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, mail TEXT UNIQUE, amount REAL)",
    "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, aggregatetype TEXT, aggregateid TEXT, payload TEXT)",
)


def capture(run: Run) -> Iterator[Row]:
    path = run.fresh("shop.db")
    path.parent.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{path}"
    count, rows, events = run.size(UPDATES, 5_000), run.size(SNAPSHOT_ROWS, 20_000), run.size(EVENTS, 2_000)
    db = sqlite3.connect(path, isolation_level=None)
    for each in ("PRAGMA journal_mode = wal", "PRAGMA synchronous = normal", *TABLES, "BEGIN"):
        db.execute(each)
    db.executemany("INSERT INTO users VALUES (?, ?, ?, 0)", ((n, f"name {n}", f"m{n}@x") for n in range(rows)))
    db.execute("COMMIT")
    plain = _written(db, count, rows)
    with run.log() as log:
        source = open_source(log, "shop", url, choice_for(url, ["users"], None), run.fresh("home"))
        rate = _rate(source.drain, rows)
        yield _row(f"snapshot of {rows:,} rows", "rows/s", rate, 150_000)
        yield _row(f"{count:,} updates by a writer, 10 a transaction, no triggers", "rows/s", plain)
        yield _row("the same with the capture's triggers", "rows/s", _written(db, count, rows))
        rate = _rate(source.drain, count)
        yield _row(f"{count:,} updates that waited, into a durable topic", "changes/s", rate, 50_000)
        thread = CaptureThread(source)
        thread.start()
        taken = list(_latencies(log.topic("shop_users"), db, run.size(COMMITS, 20)))
        thread.stop()
        for part, name in ((0.5, "p50"), (0.99, "p99")):
            yield Row("sqlite", f"commit to in the log, one row, {name}", "ms", _part(taken, part),
                      smaller_is_better=True)  # fmt: skip
        db.execute("BEGIN")
        made = ((f"k{n % 100}", f'{{"n": {n}}}') for n in range(events))
        db.executemany("INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES ('order', ?, ?)", made)
        db.execute("COMMIT")
        address = outbox(url)
        routed = open_source(log, "events", address, choice_for(address, None, None), run.fresh("home"))
        yield _row(f"{events:,} events of an outbox, into a durable topic", "events/s", _rate(routed.drain, events))
    db.close()


def _row(name: str, unit: str, rate: float, target: float | None = None) -> Row:
    return Row("sqlite", name, unit, Measured(rate, rate), target)


def _rate(drain: object, count: int) -> float:
    began = time.perf_counter()
    drain()  # type: ignore[operator]
    return count / (time.perf_counter() - began)


def _written(db: sqlite3.Connection, count: int, rows: int) -> float:
    began = time.perf_counter()
    for first in range(0, count, 10):
        db.execute("BEGIN")
        for n in range(first, first + 10):
            db.execute("UPDATE users SET amount = amount + 1 WHERE id = ?", (n % rows,))
        db.execute("COMMIT")
    return count / (time.perf_counter() - began)
