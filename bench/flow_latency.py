"""How long a record takes from its append to the view: inside the loop, and as another process sees it; and whether
that, and memory, stay the same over minutes of steady load."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow.compute as pc

import headrace as hr
from bench import spark_peer
from bench.flow_window import COMPUTED, DDL, FILTER, LEAST_MS, events
from bench.neighbours import descendants
from bench.settings import Run
from bench.table import Measured, Row
from headrace.views.open import open_views
from headrace.views.reading import Views

ROWS = 20
_APP = """
import sys
import headrace as hr
app = hr.App("bench", home=sys.argv[1], spark="local[2]")
events = app.topic("events", {ddl!r}, event_time="at", durability="os")
windows = app.stream(events){transform}.window(hr.tumbling("10 seconds"), grace="2 seconds")
windows.group_by("user").agg(n=hr.count(), m=hr.max("ms")).to_view("v")
app.start()
print("ready", flush=True)
try:
    app.wait()
except KeyboardInterrupt:
    app.stop()
"""
KINDS = {
    "": "plain columns",
    f".transform(lambda df: df.where({FILTER!r}))": "behind a filter in PySpark",
    f".transform(lambda df: df.where({COMPUTED!r}))": "behind a computed filter in PySpark",
}


def latency(run: Run) -> Iterator[Row]:
    yield from _in_the_loop(run)
    for number, (transform, said) in enumerate(KINDS.items()):
        yield from _seen_elsewhere(run, transform, said, steady=number == 0)


def _in_the_loop(run: Run) -> Iterator[Row]:
    """Batches of 20 rows, one after the other, each planned, read, folded and committed."""
    count = run.size(200, 10)
    tables = [events(ROWS, 100, first) for first in range(0, count * ROWS, ROWS)]
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        topic = app.topic("events", DDL, event_time="at", durability="os")
        for table in tables:
            topic.append(table)
        streams = {"plain columns": app.stream(topic)}
        streams["behind a filter in PySpark"] = app.stream(topic).transform(lambda df: df.where(FILTER))
        streams["behind a computed filter in PySpark"] = app.stream(topic).transform(lambda df: df.where(COMPUTED))
        spark = app.running.spark
        peer = run.peer(
            "Spark's window",
            spark_peer.SETTINGS,
            lambda: of_part(spark_peer.small_batches(spark, tables, run.fresh("small"), 10), 0.5),
        )
        for number, (said, stream) in enumerate(streams.items()):
            window = stream.window(hr.tumbling("10 seconds"), grace="2 seconds")
            window.group_by("user").agg(n=hr.count(), m=hr.max("ms")).to_view(f"view_{number}")
            took = _stepped(app, f"view_{number}", len(tables))
            wanted = 60 if number > 1 else 10
            yield Row(
                "latency", f"a batch of {ROWS} rows in the loop, {said}, p50", "ms", of_part(took, 0.5), wanted,
                smaller_is_better=True, peers=[peer],
            )  # fmt: skip
        window = app.stream(topic).window(hr.tumbling("10 seconds"), grace="2 seconds")
        window.group_by("user").agg(n=hr.count(), m=hr.max("ms")).to_view("by_jobs")
        app.running.query(app.flows["by_jobs"]).driver_rows = 0
        yield Row(
            "latency", f"the same with driver_rows=0: every batch of {ROWS} rows is a Spark job, p50", "ms",
            of_part(_stepped(app, "by_jobs", len(tables)), 0.5), 60, smaller_is_better=True, peers=[peer],
        )  # fmt: skip


def _stepped(app: hr.App, view: str, batches: int) -> list[float]:
    """Milliseconds of each batch, without the first ones."""
    loop, took = app.running.loop(app.flows[view]), []
    for _ in range(batches):
        began = time.perf_counter()
        assert loop.step(ROWS) == ROWS
        took.append((time.perf_counter() - began) * 1e3)
    return took[len(took) // 5 :]


def _seen_elsewhere(run: Run, transform: str, said: str, *, steady: bool) -> Iterator[Row]:
    home = run.fresh("home")
    with running(home, transform) as child:
        views = open_views(home)
        with hr.open_log(home, create=False) as log:
            topic = log.topic("events")
            seen = Seen(topic, views, filtered=transform != "")
            seen.measure(run.size(5, 1))  # warming up
            took = seen.measure(run.size(30, 2))
            what = f"append of {ROWS} rows to seen in the view by another process, {said}"
            yield Row("latency", f"{what}, p50", "ms", of_part(took, 0.5), 150, smaller_is_better=True)
            yield Row("latency", f"{what}, p99", "ms", of_part(took, 0.99), smaller_is_better=True)
            if steady:
                yield from _steady(run, seen, child.pid)


def _steady(run: Run, seen: Seen, pid: int) -> Iterator[Row]:
    """The first part of the time against the last."""
    minutes = run.size(5, 1)
    part = run.size(60, 2)
    first, before = seen.measure(part), _megabytes(pid)
    for _ in range(minutes - 2):
        seen.measure(part)
    last, after = seen.measure(part), _megabytes(pid)
    grown = statistics.median(last) / statistics.median(first)
    length = f"{minutes * part // 60} minutes" if not run.quick else "a moment"
    yield Row(
        "latency", f"p50 of the last minute against the first, {length} of steady load", "x", Measured(grown, grown),
        1.2, smaller_is_better=True,
    )  # fmt: skip
    yield Row(
        "latency", f"memory of the runner, its JVM and workers, grown since the first minute, {length}", "MB",
        Measured(after - before, after - before), 100, smaller_is_better=True,
    )  # fmt: skip


class Seen:
    """Appends, and looks until the rows are there."""

    def __init__(self, topic: object, views: Views, *, filtered: bool) -> None:
        self.topic, self.views, self.filtered = topic, views, filtered
        self.sent = self.wanted = 0

    def measure(self, seconds: float) -> list[float]:
        out = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            table = events(ROWS, 100, self.sent)
            self.sent += ROWS
            self.wanted += table.filter(pc.field("ms") >= LEAST_MS).num_rows if self.filtered else ROWS
            began = time.perf_counter()
            self.topic.append(table)  # type: ignore[attr-defined]
            while self._counted() < self.wanted:
                time.sleep(0.001)
            out.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.02)
        return out

    def _counted(self) -> int:
        """Rows in the view and rows the ledger says were too late: nothing else becomes of what is let through."""
        found = self.views.query("SELECT coalesce(sum(n), 0) FROM v").column(0)[0].as_py()
        dropped: int = sum(row["dropped"] for row in self.views.ledger("v").to_pylist())
        return int(found) + dropped


class running:
    """The app in a process of its own. `settings`: where its log and views are, if not in the home."""

    def __init__(
        self, home: Path, transform: str, settings: Mapping[str, str] | None = None, *, code: str = _APP
    ) -> None:
        self.home, self.code = home, code.format(ddl=DDL, transform=transform)
        self.settings = settings or {}

    def __enter__(self) -> subprocess.Popen[str]:
        self.child = subprocess.Popen(
            [sys.executable, "-c", self.code, str(self.home)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.settings},
        )
        assert self.child.stdout is not None
        if self.child.stdout.readline() != "ready\n":
            self.child.kill()
            raise OSError("the app did not start")
        return self.child

    def __exit__(self, *_: object) -> None:
        self.child.send_signal(signal.SIGINT)
        try:
            self.child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def of_part(samples: Sequence[float], part: float) -> Measured:
    ordered = sorted(samples)
    return Measured(ordered[int(part * (len(ordered) - 1))], ordered[0])


def _megabytes(pid: int) -> float:
    total = 0
    for each in itertools.chain([pid], descendants(pid)):
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * os.sysconf("SC_PAGE_SIZE") / 1e6
