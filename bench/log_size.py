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

from bench import log_scan, plot
from bench.payload import BATCH_ROWS, DDL
from bench.settings import Run
from bench.table import Measured, Row
from headrace.log.embedded.committer import Tx
from headrace.log.embedded.index import BATCHES, PARTITIONS
from headrace.log.embedded.log import EmbeddedLog, open_log

BINS = 50
MEMORY_MB_MAX = 16
FLAT = 1.25
"""Times what it cost at first: up to here it is called flat."""


def size(run: Run) -> Iterator[Row]:
    yield from _append_cost(run)
    yield from _commit_cost(run)
    yield from _many_files(run)


# -- appending ---------------------------------------------------------------------------------------


def _append_cost(run: Run) -> Iterator[Row]:
    """One batch after the other; default settings."""
    count = run.size(1000, 20)
    with run.log() as log:
        topic = log.create_topic("clicks", DDL, event_time="at", durability="os")
        topic.append(run.payload.batches[0])
        seconds, processor = [], []
        for batch in run.payload.cycle(count):
            began, used = perf_counter(), process_time()
            topic.append(batch)
            seconds.append(perf_counter() - began)
            processor.append(process_time() - used)
        home = log.home
    bins, used_bins = (_bins(samples) for samples in (seconds, processor))
    plot.write(
        run.results / "append_cost.svg",
        "Cost of appending a 10 k-row batch (os), from the first to the last record",
        "records in the topic",
        "milliseconds a batch",
        [(number + 1) * len(bins[0]) * BATCH_ROWS for number in range(len(bins))],
        [
            ("time, median", [1e3 * statistics.median(found) for found in bins]),
            ("processor time, median", [1e3 * statistics.median(found) for found in used_bins]),
        ],
    )
    tenth = max(1, count // 10)
    what = f"append cost: last tenth of {_short(count * BATCH_ROWS)} records against the first tenth"
    yield Row("size", what, "x", _grown(seconds[:tenth], seconds[-tenth:]), FLAT, smaller_is_better=True)
    used = _grown(processor[:tenth], processor[-tenth:])
    yield Row("size", "… in processor time", "x", used, FLAT, smaller_is_better=True)
    rows, grown_mb = log_scan.memory(home)
    what = f"peak memory growth while scanning {_short(rows)} rows"
    yield Row("size", what, "MB", grown_mb, MEMORY_MB_MAX, smaller_is_better=True)


def _bins(samples: Sequence[float]) -> list[Sequence[float]]:
    size = max(1, len(samples) // BINS)
    return [samples[i : i + size] for i in range(0, len(samples), size)]


def _grown(first: Sequence[float], last: Sequence[float]) -> Measured:
    """How many times the first cost: by medians, and by what the quickest tenth takes at most (a busy neighbour
    slows a stretch of a run down, but rarely all of it)."""
    quick_last, quick_first = (sorted(found)[len(found) // 10] for found in (last, first))
    return Measured(statistics.median(last) / statistics.median(first), quick_last / quick_first)


def _short(count: int) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1_000_000 else f"{count:,}"


# -- committing beside many batch rows ---------------------------------------------------------------


def _commit_cost(run: Run) -> Iterator[Row]:
    """Single records are appended at several sizes of the index. Between them the index is filled quickly: its rows
    are written directly, all pointing to one frame. Only the commit is measured here, so nobody reads them."""
    steps = [0, 20_000, 100_000, 200_000, 500_000, 1_000_000] if not run.quick else [0, 1_000]
    appends = run.size(300, 20)
    found: list[list[float]] = []
    processor: list[float] = []
    with run.log() as log:
        topic = log.create_topic("clicks", DDL, event_time="at", durability="os")
        row = run.payload.rows[0]
        for _ in range(appends):
            topic.append(row)
        for rows in steps:
            _fill(log, rows)
            samples = []
            used = process_time()
            for _ in range(appends):
                began = perf_counter()
                topic.append(row)
                samples.append(perf_counter() - began)
            found.append(samples)
            processor.append((process_time() - used) / appends)
    plot.write(
        run.results / "commit_cost.svg",
        "Cost of appending one record (os), by batch rows in the index",
        "batch rows in the index",
        "microseconds an append",
        steps,
        [
            ("time, median", [1e6 * statistics.median(samples) for samples in found]),
            ("processor time, mean", [1e6 * used for used in processor]),
        ],
    )
    what = f"single-record append: {steps[-1]:,} batch rows in the index against none"
    yield Row("size", what, "x", _grown(found[0], found[-1]), FLAT, smaller_is_better=True)
    used = processor[-1] / processor[0]
    yield Row("size", "… in processor time", "x", Measured(used, used), FLAT, smaller_is_better=True)


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
from headrace.log.embedded.log import open_log
began = perf_counter()
log = open_log(sys.argv[1], create=False)
topic = log.topic("clicks")
opened = perf_counter() - began
records = topic.describe().records
import headrace.log.embedded.reading
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
