"""Whether memory stays level: a flow over many events, into a view that keeps a minute of them, in a process of its own
that drains after each batch appended here; what it holds after each, and what its JVM and workers hold."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from bench.flow_window import COMPUTED, DDL, events
from bench.neighbours import descendants
from bench.settings import Run
from bench.table import Measured, Row

KINDS: dict[str, Callable[[Any], Any]] = {
    "plain columns": lambda stream: stream,
    "behind a computed filter in PySpark": lambda stream: stream.transform(lambda df: df.where(COMPUTED)),
}
LEVEL = 1.05
"""So much more may be held after all events than after a quarter of them."""


def memory(run: Run) -> Iterator[Row]:
    batch, count = run.size(1_000_000, 10_000), run.size(20, 8)
    quarter = count // 4
    cases = [(100, "plain columns"), (10_000, "plain columns"), (10_000, "behind a computed filter in PySpark")]
    for keys, kind in cases if not run.quick else cases[:1]:
        samples = list(_samples(run.fresh("home"), keys, kind, count, batch))
        for number, who in enumerate(("the process", "its JVM and workers")):
            sizes = [each[number] for each in samples]
            what = f"memory of {who}, {keys:,} keys, {kind}"
            for mark in (count // 10 or 1, quarter, count // 2, count):
                yield Row("memory", f"{what}, after {mark * batch / 1e6:g} M events", "MB", Measured(sizes[mark - 1]))
            slope = np.polyfit(np.arange(quarter, count) * batch / 1e6, sizes[quarter:], 1)[0]
            yield Row("memory", f"{what}, after the first quarter", "MB per M events", Measured(slope))
            begin, end = statistics.median(sizes[quarter - 2 : quarter + 1]), statistics.median(sizes[-3:])
            level, what = end / begin, f"{what}, at the end against after {quarter * batch / 1e6:g} M events"
            yield Row("memory", what, "x", Measured(level, level), LEVEL, smaller_is_better=True)
        what = f"live objects on the JVM's heap, {keys:,} keys, {kind}, after {count * batch / 1e6:g} M events"
        yield Row("memory", what, "MB", Measured(samples[-1][2]))


def _samples(home: Path, keys: int, kind: str, count: int, batch: int) -> Iterator[list[float]]:
    """Megabytes after each batch: of the process, of its children, and at the end of live objects on the JVM's heap;
    collecting it before that would change how large it gets."""
    with hr.open_log(home) as log:
        topic = log.create_topic("events", DDL, event_time="at", durability="os")
        command = [sys.executable, "-m", "bench.flow_memory", str(home), kind, str(batch)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None and child.stdout is not None
            for number in range(count):
                for piece in events(batch, keys, number * batch).to_batches(max_chunksize=50_000):
                    topic.append(piece)
                print("collect" if number + 1 == count else "", file=child.stdin, flush=True)
                yield json.loads(child.stdout.readline())
            child.stdin.close()


def _drain(home: str, kind: str, batch: int) -> None:
    """Drains for each line that comes in, and says what is held then."""
    with hr.App("bench", home=home, spark="local[2]", batch_rows=batch) as app:
        windowed = KINDS[kind](app.stream("events")).window(hr.tumbling("10 seconds"), grace="2 seconds")
        windowed.group_by("user").agg(n=hr.count(), m=hr.max("ms")).to_view("v", keep="1 minute")
        for asked in sys.stdin:
            assert app.drain() == batch
            held = [_megabytes(os.getpid()), sum(map(_megabytes, descendants(os.getpid())))]
            if asked.strip() == "collect":
                held.append(_live(app.running.spark))
            print(json.dumps(held), flush=True)


def _live(spark: Any) -> float:
    """What is left on the heap when it has been collected, in megabytes."""
    jvm = spark._jvm
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6


def _megabytes(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:  # it has ended
        return 0.0


if __name__ == "__main__":
    _drain(sys.argv[1], sys.argv[2], int(sys.argv[3]))
