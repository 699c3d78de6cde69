"""What size costs: appending from the first to the ten-millionth record, committing beside a million batch rows,
opening a log of a thousand data files, scanning in bounded memory. Writes two plots."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from bench import log_scan, plot
from bench.payload import BATCH_ROWS, DDL
from bench.settings import Run
from bench.table import Measured, Row
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.index import BATCHES, PARTITIONS
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.log.open import open_log

BINS = 50
MEMORY_MB_MAX = 16
FLAT = 1.25
"""Times what it cost at first: up to here it is called flat."""


def size(run: Run) -> Iterator[Row]:
    yield from _append_cost(run)
    yield _commit_cost(run)
    yield from _many_files(run)


# -- appending ---------------------------------------------------------------------------------------


def _append_cost(run: Run) -> Iterator[Row]:
    """One batch after the other, default settings; then one here and one into an empty log, in turn."""
    count = run.size(1000, 20)
    with run.log() as log, run.log() as small:
        topic = log.create_topic("clicks", DDL, event_time="at", durability="os")
        topic.append(run.payload.batches[0])
        seconds, processor = [], []
        for batch in run.payload.cycle(count):
            used = process_time()
            seconds.append(_took(topic, batch))
            processor.append(process_time() - used)
        fresh = small.create_topic("clicks", DDL, event_time="at", durability="os")
        grown = _in_turn(topic, fresh, run.payload.cycle(run.size(100, 5)))
        home = log.home
    _plot_append_cost(run.results / "append_cost.svg", seconds, processor)
    what = f"append a 10 k-row batch behind {_short(count * BATCH_ROWS)} records, against into an empty log, in turn"
    yield Row("size", what, "x", grown, FLAT, smaller_is_better=True)
    rows, grown_mb = log_scan.memory(home)
    what = f"peak memory growth while scanning {_short(rows)} rows"
    yield Row("size", what, "MB", grown_mb, MEMORY_MB_MAX, smaller_is_better=True)


def _took(topic: EmbeddedTopic, rows: Any) -> float:
    began = perf_counter()
    topic.append(rows)
    return perf_counter() - began


def _in_turn(large: EmbeddedTopic, small: EmbeddedTopic, data: Sequence[Any]) -> Measured:
    """How many times as long the large one takes: by medians, and by what the quickest tenth takes at most. In turn,
    so that a busy neighbour meets both."""
    took = [(_took(large, rows), _took(small, rows)) for rows in data]
    ours, base = (sorted(found) for found in zip(*took, strict=True))
    tenth = len(took) // 10
    return Measured(statistics.median(ours) / statistics.median(base), ours[tenth] / base[tenth])


def _plot_append_cost(path: Path, seconds: Sequence[float], processor: Sequence[float]) -> None:
    size = max(1, len(seconds) // BINS)
    starts = range(0, len(seconds), size)
    plot.write(
        path,
        "Cost of appending a 10 k-row batch (os), from the first to the last record",
        "records in the topic",
        "milliseconds a batch",
        [(start + size) * BATCH_ROWS for start in starts],
        [
            ("time, median", [1e3 * statistics.median(seconds[i : i + size]) for i in starts]),
            ("processor time, median", [1e3 * statistics.median(processor[i : i + size]) for i in starts]),
        ],
    )


def _short(count: int) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1_000_000 else f"{count:,}"


# -- committing beside many batch rows ---------------------------------------------------------------


def _commit_cost(run: Run) -> Row:
    """Single records are appended at several sizes of the index. Between them the index is filled quickly: its rows
    are written directly, all pointing to one frame. Only the commit is measured here, so nobody reads them."""
    steps = [0, 20_000, 100_000, 200_000, 500_000, 1_000_000] if not run.quick else [0, 1_000]
    rows = run.payload.rows[: run.size(300, 20)]
    medians, processor = [], []
    with run.log() as log, run.log() as small:
        for one in (log, small):
            one._engine.background.stop()  # it would find rows that all point to one frame
        topic, fresh = (one.create_topic("clicks", DDL, event_time="at", durability="os") for one in (log, small))
        for row in rows:
            topic.append(row)
        for step in steps:
            _fill(log, step)
            used = process_time()
            medians.append(1e6 * statistics.median(_took(topic, row) for row in rows))
            processor.append(1e6 * (process_time() - used) / len(rows))
        grown = _in_turn(topic, fresh, rows)
    plot.write(
        run.results / "commit_cost.svg",
        "Cost of appending one record (os), by batch rows in the index",
        "batch rows in the index",
        "microseconds an append",
        steps,
        [("time, median", medians), ("processor time, mean", processor)],
    )
    what = f"append a record beside {steps[-1]:,} batch rows in the index, against into an empty log, in turn"
    return Row("size", what, "x", grown, FLAT, smaller_is_better=True)


def _fill(log: EmbeddedLog, rows: int) -> None:
    """Until the index has this many batch rows."""

    def fill(tx: Tx) -> bool:
        (have, base) = tx.db.execute("SELECT count(*), max(base) FROM batches").fetchone()
        template = BATCHES.select(tx.db, "WHERE base = ?", base)[0]
        for number in range(base + 1, base + 1 + min(rows - have, 50_000)):
            BATCHES.add(tx.db, template._replace(base=number, next=number + 1))
        state = PARTITIONS.select(tx.db)[0]
        (last,) = tx.db.execute("SELECT max(next) FROM batches").fetchone()
        PARTITIONS.put(tx.db, state._replace(next=last))
        return rows - have > 50_000

    while log._engine.committer.run(fill, synced=False):
        pass


# -- opening -----------------------------------------------------------------------------------------

_OPEN = """
import json, sys
from time import perf_counter
from headrace.log.open import open_log
began = perf_counter()
log = open_log(sys.argv[1], create=False)
topic = log.topic("clicks")
opened = perf_counter() - began
records = topic.describe().records
import headrace.log.embedded.read.reading
began = perf_counter()
end = topic.offsets()[0].next
next(iter(topic.batches(0, end - 1)))
print(json.dumps({"opened": opened, "last": perf_counter() - began, "records": records}))
"""


def _many_files(run: Run) -> Iterator[Row]:
    """A log whose data files are closed after every 10 k-row batch (`file_bytes_max` = 1)."""
    files = run.size(1000, 10)
    home = run.fresh("log")
    with open_log(home) as log:
        log._engine.files.file_bytes_max = 1
        topic = log.create_topic("clicks", DDL, event_time="at", durability="os")
        for batch in run.payload.cycle(files):
            topic.append(batch)
    found = [_opened(home) for _ in range(run.repeat)]
    assert len(list((home / "data").iterdir())) == files and found[0]["records"] == files * BATCH_ROWS
    seconds = [one["opened"] for one in found]
    what = f"open a log of {files:,} data files and {_short(files * BATCH_ROWS)} records"
    yield Row("size", what, "s", Measured(statistics.median(seconds), min(seconds)), 0.5, smaller_is_better=True)
    seconds = [one["last"] for one in found]
    what = "… and read its last batch"
    yield Row("size", what, "s", Measured(statistics.median(seconds), min(seconds)), smaller_is_better=True)


def _opened(home: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", _OPEN, str(home)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
