"""What upkeep costs: sealing, compaction in bounded memory, whether sealing keeps up with one-row appends, and what is
left for appends meanwhile."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pyarrow as pa

from bench.payload import BATCH_ROWS, DDL
from bench.settings import Run
from bench.table import Measured, Row, of_rates
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.log.embedded.upkeep import sealing
from headrace.log.open import open_log

SMALL_ROWS = 1_000
KEYS = 1_000_000
MEMORY_MB_MAX = 512
STRETCH_APPENDS = 50


def upkeep(run: Run) -> Iterator[Row]:
    yield _seal(run)
    yield from _compact(run)
    yield _keeps_up(run)
    yield _beside(run)


def _seal(run: Run) -> Row:
    rows = run.size(2_000_000, 20_000)
    rates = []
    for _ in range(min(run.repeat, 3)):
        with run.log() as log:
            log._engine.background.stop()  # what it would do is what is measured
            topic = _filled(run, log, rows)
            began = perf_counter()
            sealing.seal(log._engine, log._catalog, topic._state(), 0)
            rates.append(rows / (perf_counter() - began))
    return Row("upkeep", f"seal batches of {SMALL_ROWS:,} rows", "rows/s", of_rates(rates), 2e6)


def _filled(run: Run, log: EmbeddedLog, rows: int, name: str = "clicks") -> EmbeddedTopic:
    topic = log.create_topic(name, DDL, event_time="at", durability="os")
    for number in range(rows // SMALL_ROWS):
        batch = run.payload.batches[number % len(run.payload.batches)]
        topic.append(batch.slice(number % 10 * SMALL_ROWS, SMALL_ROWS))
    return topic


_COMPACT = """
import json, pathlib, sys
from time import perf_counter
from headrace.log.open import open_log
def memory(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0]) / 1024
with open_log(sys.argv[1], create=False) as log:
    import headrace.log.embedded.upkeep.rounds
    records = log.topic("users").describe().records
    before = memory("VmRSS")
    began = perf_counter()
    done = log.maintain()
    seconds = perf_counter() - began
    print(json.dumps({"rate": records / seconds, "mb": memory("VmHWM") - before, "gone": done.records_compacted}))
"""


def _compact(run: Run) -> Iterator[Row]:
    """The whole of `maintain` on a compacted topic, in a process of its own."""
    rows, count = run.size(10_000_000, 50_000), run.size(KEYS, 10_000)
    keys = pa.array([f"user-{n}" for n in range(count)])
    random = np.random.default_rng(5)
    found = []
    for _ in range(min(run.repeat, 3)):
        home = run.fresh("log")
        with open_log(home) as log:
            log._engine.background.stop()
            topic = log.create_topic("users", DDL, key="user", event_time="at", durability="os", cleanup="compact")
            for number in range(rows // BATCH_ROWS):
                batch = run.payload.batches[number % len(run.payload.batches)]
                users = keys.take(pa.array(random.integers(0, count, BATCH_ROWS)))
                topic.append(batch.set_column(0, "user", users))
        done = subprocess.run([sys.executable, "-c", _COMPACT, str(home)], capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
        assert found[-1]["gone"] > 0
    what = f"compact {rows / 1e6:g} M rows, {count / 1e6:g} M keys"
    yield Row("upkeep", what, "rows/s", of_rates([one["rate"] for one in found]), 2e6)
    grown = [one["mb"] for one in found]
    yield Row(
        "upkeep",
        "… and its peak memory growth",
        "MB",
        Measured(statistics.median(grown), min(grown)),
        MEMORY_MB_MAX,
        smaller_is_better=True,
    )


def _keeps_up(run: Run) -> Row:
    """One-row appends by 8 threads; then how fast their batches are sealed, against how fast they came."""
    each = run.size(1_000, 20)
    with run.log() as log:
        log._engine.background.stop()
        topic = log.create_topic("clicks", DDL, event_time="at", durability="os")
        row = run.payload.rows[0]

        def work() -> None:
            for _ in range(each):
                topic.append(row)

        threads = [threading.Thread(target=work) for _ in range(8)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        came = 8 * each / (perf_counter() - began)
        began = perf_counter()
        sealing.seal(log._engine, log._catalog, topic._state(), 0)
        sealed = 8 * each / (perf_counter() - began)
    what = "seal one-row appends (os, 8 threads), against how fast they come"
    return Row("upkeep", what, "x", Measured(sealed / came, sealed / came), 1.0)


_MAINTAIN = """
import sys
from headrace.log.open import open_log
with open_log(sys.argv[1], create=False) as log:
    print("ready", flush=True)
    sys.stdin.readline()
    log.maintain()
"""


def _beside(run: Run) -> Row:
    """Appends of 10 k-row batches alone, and while another process seals."""
    rows = run.size(3_000_000, 20_000)
    kept = []
    for _ in range(min(run.repeat, 3)):
        home = run.fresh("log")
        with open_log(home) as log:
            log._engine.background.stop()
            _filled(run, log, rows, "other")
            topic = log.create_topic("clicks", DDL, event_time="at")
            alone = _appends_a_second(run, topic, STRETCH_APPENDS)
            child = subprocess.Popen(
                [sys.executable, "-c", _MAINTAIN, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert child.stdin is not None and child.stdout is not None
            child.stdout.readline()
            child.stdin.write("go\n")
            child.stdin.flush()
            beside = _appends_a_second(run, topic, STRETCH_APPENDS, child)
            child.communicate()
            alone = (alone + _appends_a_second(run, topic, STRETCH_APPENDS)) / 2
            kept.append(beside / alone)
    return Row("upkeep", "appends (10 k rows, fsync) beside sealing, against alone", "x", of_rates(kept), 0.5)


def _appends_a_second(run: Run, topic: EmbeddedTopic, count: int, child: subprocess.Popen[str] | None = None) -> float:
    """While the child runs, or `count` of them."""
    began, done = perf_counter(), 0
    while child.poll() is None if child is not None else done < count:
        topic.append(run.payload.batches[done % len(run.payload.batches)])
        done += 1
    return done / (perf_counter() - began)
