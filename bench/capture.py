"""Change capture of a real Postgres: from its log into durable topics, beside Debezium's engine on the same changes.
And what a capture holds in memory, in a process of its own: not the table, and not a large transaction."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import debezium_peer
from bench.log_wake import _part
from bench.peers import Unavailable
from bench.settings import Run
from bench.table import Measured, Peer, Row, of_rates

SCRIPTS = Path(__file__).parent.parent / "scripts"
UPDATES, SNAPSHOT_ROWS, COMMITS = 200_000, 2_000_000, 300
TABLE = "(id int PRIMARY KEY, name text, amount numeric(12, 2), at timestamptz, note text)"
ROWS = "SELECT n, 'name ' || n, n / 100.0, now(), md5(n::text) FROM generate_series(1, {count}) n"
SERVER = ("wal_level=logical", "synchronous_commit=off", "max_wal_size=8GB", "wal_sender_timeout=0")
"""The last: a peer sleeps while the changes are made."""
TARGETS = {1: 30_000, 10: 50_000}
TIMES_DEBEZIUM = 4.0
LEVEL = 1.2
"""So much more may be held for a table, or a transaction, of twice the size."""


def capture(run: Run) -> Iterator[Row]:
    try:
        with server("postgres", *SERVER) as url:
            yield from _measured(run, url)
        with server("postgres", *SERVER) as url:
            yield from _memory(run, url)
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
            rates, costs = [], []
            for _ in range(1 if run.quick else 3):
                _update(db, count, rows)
                began, cpu = time.perf_counter(), time.process_time()
                done = source.drain()
                rates.append(done / (time.perf_counter() - began))
                costs.append(done / (time.process_time() - cpu))
            what = f"{count:,} updates, {rows} a transaction, into a durable topic"
            ours = of_rates(rates)
            theirs = run.peer(
                "Debezium",
                debezium_peer.SETTINGS,
                lambda rows=rows: _debezium(run, url, db, count, rows),
            )
            yield Row("capture", what, "changes/s", ours, TARGETS[rows], peers=[theirs])
            yield Row("capture", f"{what}, of its processor time", "changes/s", of_rates(costs))
            yield _times(what, ours, theirs)
        source.drain()  # what was done for the peer
        thread = CaptureThread(source)
        thread.start()
        db.execute("SET synchronous_commit TO on")  # otherwise a commit waits 0.2 s to be written, and we for it
        taken = list(_latencies(log.topic("shop_users"), db, run.size(COMMITS, 20)))
        thread.stop()
        for part, name, target in ((0.5, "p50", 20.0), (0.99, "p99", None)):
            yield Row("capture", f"commit to in the log, one row, {name}", "ms", _part(taken, part), target,
                      smaller_is_better=True)  # fmt: skip
        db.execute(f"CREATE TABLE large {TABLE}")
        db.execute(f"INSERT INTO large {ROWS.format(count=large)}")
        rates = []
        for number in range(1 if run.quick else 3):
            began = time.perf_counter()
            open_source(log, f"large{number}", url, Choice.of(["large"], None), run.fresh("home")).drain()
            rates.append(large / (time.perf_counter() - began))
        yield Row("capture", f"snapshot of {large:,} rows", "rows/s", of_rates(rates), 150_000)


def _times(what: str, ours: Measured, theirs: Peer) -> Row:
    if not ours.median or not theirs.value.median:
        found = Measured(None, why=theirs.value.why or "the engine was not measured")
    else:
        found = Measured(ours.median / theirs.value.median, (ours.best or 0) / theirs.value.median)
    return Row("capture", f"{what}, against Debezium's engine", "x", found, TIMES_DEBEZIUM)


def _update(db: Any, count: int, rows: int) -> None:
    """So many rows are updated, `rows` a transaction."""
    db.execute(
        f"DO $$ BEGIN FOR i IN 1..{count // rows} LOOP "
        f"UPDATE users SET amount = amount + 1, name = 'i' || i WHERE id > (i * 7) % 9000 "
        f"AND id <= (i * 7) % 9000 + {rows}; COMMIT; END LOOP; END $$"
    )


def _debezium(run: Run, url: str, db: Any, count: int, rows: int) -> Measured:
    """The same changes, waiting for it as they wait for us."""
    with debezium_peer.Engine(url, "public.users", run.fresh("debezium"), count, db) as engine:
        _update(db, count, rows)
        return engine.rate()


def _latencies(topic: object, db: object, count: int) -> Iterator[int]:
    """Nanoseconds from the end of a commit until a follower has the record."""
    ends = {partition: end.next for partition, end in topic.offsets().items()}  # type: ignore[attr-defined]
    records = topic.records(ends, follow=True, timeout="30 seconds")  # type: ignore[attr-defined]
    for number in range(count + 5):
        db.execute(f"UPDATE users SET amount = {number} WHERE id = 1")  # type: ignore[attr-defined]
        began = time.monotonic_ns()
        record = next(records)
        assert record.value["amount"] == number, "a record of another update"
        if number >= 5:
            yield time.monotonic_ns() - began
        time.sleep(0.01)


# -- memory --------------------------------------------------------------------------------------------


def _memory(run: Run, url: str) -> Iterator[Row]:
    """Of two tables, one twice as large as the other: their snapshots, then one update of all rows."""
    import psycopg

    large = run.size(SNAPSHOT_ROWS, 50_000)
    held: dict[str, list[list[float]]] = {"snapshot": [], "one transaction over all rows": []}
    with psycopg.connect(url, autocommit=True) as db:
        for count in (large // 2, large):
            table = f"held{count}"
            db.execute(f"CREATE TABLE {table} {TABLE}")
            db.execute(f"INSERT INTO {table} {ROWS.format(count=count)}")
            command = [sys.executable, "-m", "bench.capture", str(run.fresh("home")), url, table]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdin is not None and child.stdout is not None
                for what in held:
                    if what != "snapshot":
                        db.execute(f"UPDATE {table} SET amount = amount + 1")
                    print(file=child.stdin, flush=True)
                    held[what].append([count, json.loads(child.stdout.readline())])
                child.stdin.close()
    for what, found in held.items():
        for count, megabytes in found:
            name = f"memory at most, {what}, {count:,.0f} rows"
            yield Row("capture", name, "MB", Measured(megabytes), smaller_is_better=True)
        level = found[1][1] / found[0][1]
        name = f"memory at most, {what}, twice the rows"
        yield Row("capture", name, "x", Measured(level, level), LEVEL, smaller_is_better=True)


def _anonymous_megabytes() -> float:
    """What the process has that is no file: memory that is mapped from a file can be had back."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise Unavailable("no /proc here that tells the memory of a process")


def _drains(home: str, url: str, table: str) -> None:
    """Drains for each line that comes in, and says what was held at most."""
    from headrace.cdc.choice import Choice
    from headrace.cdc.open import open_source
    from headrace.log.open import open_log

    largest, ended = 0.0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not ended.wait(0.02):
            largest = max(largest, _anonymous_megabytes())

    threading.Thread(target=watch, daemon=True).start()
    with open_log(home) as log:
        source = open_source(log, "shop", url, Choice.of([table], None), Path(home))
        for _ in sys.stdin:
            largest = 0.0
            source.drain()
            print(json.dumps(largest), flush=True)
    ended.set()


if __name__ == "__main__":
    _drains(*sys.argv[1:])
