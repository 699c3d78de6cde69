"""Whether memory stays level: a flow over many events, into a view that keeps a minute of them, appended and folded a
batch at a time, in a process of its own; what it holds after each batch, and what its JVM and workers hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from bench.flow_window import DDL, events
from bench.neighbours import descendants
from bench.settings import Run
from bench.table import Measured, Row

KINDS: dict[str, Callable[[Any], Any]] = {
    "plain columns": lambda stream: stream,
    "behind a filter in PySpark": lambda stream: stream.transform(lambda df: df.where("ms >= 0")),
}
LEVEL = 1.05
"""So much more than after a quarter of the events may be held after all of them."""


def memory(run: Run) -> Iterator[Row]:
    batch, count = run.size(1_000_000, 10_000), run.size(20, 8)
    cases = [(100, "plain columns"), (10_000, "plain columns"), (10_000, "behind a filter in PySpark")]
    for keys, kind in cases if not run.quick else cases[:1]:
        command = [sys.executable, "-m", "bench.flow_memory", str(run.fresh("home")), str(keys), kind]
        done = subprocess.run([*command, str(count), str(batch)], stdout=subprocess.PIPE, check=True)
        for who, sizes in json.loads(done.stdout.splitlines()[-1]).items():
            what = f"memory of {who}, {keys:,} keys, {kind}"
            for mark in (count // 10 or 1, count // 2, count):
                yield Row("memory", f"{what}, after {mark * batch / 1e6:g} M events", "MB", Measured(sizes[mark - 1]))
            quarter = count // 4
            slope = np.polyfit(np.arange(quarter, count) * batch / 1e6, sizes[quarter:], 1)[0]
            yield Row("memory", f"{what}, after the first quarter", "MB per M events", Measured(slope))
            level = sizes[-1] / sizes[quarter - 1]
            what = f"{what}, at the end against after {quarter * batch / 1e6:g} M events"
            yield Row("memory", what, "x", Measured(level, level), LEVEL, smaller_is_better=True)


def _sizes(home: str, keys: int, kind: str, count: int, batch: int) -> dict[str, list[float]]:
    ours, theirs = [], []
    with hr.App("bench", home=home, spark="local[2]", batch_rows=batch) as app:
        topic = app.topic("events", DDL, event_time="at", durability="os")
        windowed = KINDS[kind](app.stream(topic)).window(hr.tumbling("10 seconds"), grace="2 seconds")
        windowed.group_by("user").agg(n=hr.count(), m=hr.max("ms")).to_view("v", keep="1 minute")
        for number in range(count):
            for piece in events(batch, keys, number * batch).to_batches(max_chunksize=50_000):
                topic.append(piece)
            assert app.drain() == batch
            ours.append(_megabytes(os.getpid()))
            theirs.append(sum(map(_megabytes, descendants(os.getpid()))))
    return {"the process": ours, "its JVM and workers": theirs}


def _megabytes(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:  # it has ended
        return 0.0


if __name__ == "__main__":
    home, keys, kind, count, batch = sys.argv[1:]
    print(json.dumps(_sizes(home, int(keys), kind, int(count), int(batch))))
