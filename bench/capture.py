"""Change capture of a real Postgres: from its log into durable topics."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.log_wake import _part
from bench.peers import Unavailable
from bench.settings import Run
from bench.table import Measured, Row

SCRIPTS = Path(__file__).parent.parent / "scripts"
UPDATES, SNAPSHOT_ROWS, COMMITS = 200_000, 2_000_000, 300
TABLE = "(id int PRIMARY KEY, name text, amount numeric(12, 2), at timestamptz, note text)"
ROWS = "SELECT n, 'name ' || n, n / 100.0, now(), md5(n::text) FROM generate_series(1, {count}) n"


def capture(run: Run) -> Iterator[Row]:
    try:
        with server("postgres", "wal_level=logical", "synchronous_commit=off", "max_wal_size=8GB") as url:
            yield from _measured(run, url)
    except Unavailable as error:
        yield Row("capture", str(error), "changes/s", Measured(None, why=str(error)))


@contextlib.contextmanager
def server(name: str, *settings: str) -> Iterator[str]:
    """The address of a server that a script of that name runs meanwhile."""
    command = [sys.executable, str(SCRIPTS / name), *(f"--set={each}" for each in settings)]
    process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    assert process.stdin is not None and process.stdout is not None
    said = process.stdout.readline()
    try:
        if not said.startswith("{"):
            raise Unavailable(said.strip() or f"scripts/{name} did not start")
        yield json.loads(said)["url"]
    finally:
        process.stdin.close()
        process.wait(60)


def _measured(run: Run, url: str) -> Iterator[Row]:
    import psycopg

    from headrace.cdc.choice import Choice
    from headrace.cdc.open import open_source
    from headrace.cdc.running import CaptureThread

    count, large = run.size(UPDATES, 5_000), run.size(SNAPSHOT_ROWS, 20_000)
    with run.log() as log, psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE TABLE users {TABLE}")
        db.execute(f"INSERT INTO users {ROWS.format(count=10_000)}")
        source = open_source(log, "shop", url, Choice.of(["users"], None), run.fresh("home"))
        source.drain()
        for rows in (1, 10):
            db.execute(
                f"DO $$ BEGIN FOR i IN 1..{count // rows} LOOP "
                f"UPDATE users SET amount = amount + 1, name = 'i' || i WHERE id > (i * 7) % 9000 "
                f"AND id <= (i * 7) % 9000 + {rows}; COMMIT; END LOOP; END $$"
            )
            began = time.perf_counter()
            done = source.drain()
            rate = done / (time.perf_counter() - began)
            yield Row("capture", f"{count:,} updates, {rows} a transaction, into a durable topic", "changes/s",
                      Measured(rate, rate))  # fmt: skip
        thread = CaptureThread(source)
        thread.start()
        db.execute("SET synchronous_commit TO on")  # otherwise a commit waits 0.2 s to be written, and we for it
        taken = list(_latencies(log.topic("shop_users"), db, run.size(COMMITS, 20)))
        thread.stop()
        for part, name in ((0.5, "p50"), (0.99, "p99")):
            yield Row("capture", f"commit to in the log, one row, {name}", "ms", _part(taken, part),
                      smaller_is_better=True)  # fmt: skip
        db.execute(f"CREATE TABLE large {TABLE}")
        db.execute(f"INSERT INTO large {ROWS.format(count=large)}")
        began = time.perf_counter()
        open_source(log, "large", url, Choice.of(["large"], None), run.fresh("home")).drain()
        rate = large / (time.perf_counter() - began)
        yield Row("capture", f"snapshot of {large:,} rows", "rows/s", Measured(rate, rate))


def _latencies(topic: object, db: object, count: int) -> Iterator[int]:
    """Nanoseconds from the end of a commit until a follower has the record."""
    ends = {partition: end.next for partition, end in topic.offsets().items()}  # type: ignore[attr-defined]
    records = topic.records(ends, follow=True, timeout="30 seconds")  # type: ignore[attr-defined]
    for number in range(count + 5):
        db.execute(f"UPDATE users SET amount = {number} WHERE id = 1")  # type: ignore[attr-defined]
        began = time.monotonic_ns()
        next(records)
        if number >= 5:
            yield time.monotonic_ns() - began
        time.sleep(0.01)
