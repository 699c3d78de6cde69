"""Reading: columns, records, memory while reading."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.compute as pc

from bench import nats_peer, sqlite_peer
from bench.payload import BATCH_ROWS, DDL
from bench.settings import Run
from bench.table import Measured, Peer, Row, rate
from headrace.log.embedded.topic import EmbeddedTopic

ALL, TWO = None, ["user", "ms"]


def scan(run: Run) -> Iterator[Row]:
    count = run.size(200, 3)
    with run.log() as log:
        topic = log.create_topic("clicks", DDL, event_time="at", durability="os")
        for batch in run.payload.cycle(count):
            topic.append(batch)
        rows = count * BATCH_ROWS
        everything = rate(rows, lambda: _columns(topic, ALL), run.repeat)
        two = rate(rows, lambda: _columns(topic, TWO), run.repeat)
        few = min(rows, run.size(100_000, 2_000))
        dicts = rate(few, lambda: _records(topic, few), run.repeat)
    sqlite = _sqlite(run)
    yield Row("scan", "scan all typed columns (and sum one), 1 thread", "rows/s", everything, 20e6, peers=[sqlite("*")])
    yield Row("scan", "scan two columns (and sum one), 1 thread", "rows/s", two, 20e6, peers=[sqlite("user, ms")])
    yield Row("scan", "records as dicts with their metadata", "rows/s", dicts, peers=[sqlite("dicts"), _nats(run)])


def _columns(topic: EmbeddedTopic, columns: Sequence[str] | None) -> int:
    return sum(pc.sum(batch.column("ms")).as_py() for batch in topic.batches(columns=columns))


def _records(topic: EmbeddedTopic, count: int) -> None:
    for number, _ in enumerate(topic.records(), 1):
        if number == count:
            return


class _sqlite:
    """The same rows in one table, read by columns or as dicts."""

    def __init__(self, run: Run) -> None:
        self.run, self.path = run, run.fresh("sqlite")

    def __call__(self, columns: str) -> Peer:
        return self.run.peer(
            "SQLite", "rows as " + ("dicts" if columns == "dicts" else "tuples"), lambda: self._measure(columns)
        )

    def _measure(self, columns: str) -> Measured:
        chosen = self.run.payload.tuples[: self.run.size(8, 1)]
        if not self.path.exists():
            db = sqlite_peer.create(self.path, "NORMAL")
            sqlite_peer.append_batches(db, chosen)
        else:
            db = sqlite_peer.connect(self.path, "NORMAL")
        work = (lambda: sqlite_peer.scan_dicts(db)) if columns == "dicts" else lambda: sqlite_peer.scan(db, columns)
        measured = rate(len(chosen) * BATCH_ROWS, work, self.run.repeat)
        db.close()
        return measured


def _nats(run: Run) -> Peer:
    messages = run.payload.messages[0]

    def measure() -> Measured:
        with nats_peer.serving(run.fresh("nats"), synced=False) as server:
            nats_peer.run(server, lambda stream: nats_peer.publish_pipelined(stream, messages))
            return rate(
                len(messages),
                lambda: nats_peer.run(server, lambda stream: nats_peer.read_all(stream, len(messages), True)),
                min(run.repeat, 3),
            )

    return run.peer("JetStream", "pull consumer, 1,000 a fetch, JSON parsed, acked", measure)


# -- memory ------------------------------------------------------------------------------------------

_CHILD = """
import json, pathlib, sys
import pyarrow.compute as pc
from headrace.log.open import open_log
def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
with open_log(sys.argv[1], create=False) as log:
    topic, rows, largest = log.topic("clicks"), 0, 0
    for number, batch in enumerate(topic.batches()):
        if number == 5:
            before = peak()  # imports, buffers and caches are in place
        pc.sum(batch.column("ms"))
        rows += batch.num_rows
        largest = max(largest, batch.nbytes)
print(json.dumps({"rows": rows, "grown_mb": peak() - before, "batch_mb": largest / 1e6}))
"""


def memory(home: Path) -> tuple[int, Measured]:
    """(rows, megabytes the peak of a fresh process grew by while it scanned them all, after the first five batches)."""
    if not Path("/proc/self/status").exists():
        return 0, Measured(None, why="needs /proc (Linux)")
    done = subprocess.run([sys.executable, "-c", _CHILD, str(home)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return found["rows"], Measured(found["grown_mb"], found["grown_mb"])
