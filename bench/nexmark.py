"""Nexmark: the programs in examples/nexmark over generated events, from the log into durable views and topics; events a
second and processor time of all our processes. Flink SQL beside, over the same events from CSV files into nowhere."""

from __future__ import annotations

import runpy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from bench import nexmark_sql
from bench.neighbours import our_seconds
from bench.peers import Unavailable
from bench.settings import Run
from bench.table import Measured, Peer, Row, of_rates, of_samples
from examples.nexmark import events as nexmark

PROGRAMS = Path(__file__).parents[1] / "examples" / "nexmark"
QUERIES = sorted((path.stem for path in PROGRAMS.glob("q*.py")), key=lambda name: int(name[1:]))
RATE = 10_000
"""Events of all kinds for each second of event time, as published: two million are 200 seconds."""


@dataclass(frozen=True)
class _Took:
    rate: Measured
    cpu_seconds: Measured
    rows: int  # that the view or the topic has


def queries(run: Run) -> Iterator[Row]:
    total = run.size(2_000_000, 20_000)
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        for query in QUERIES:
            if load := _program(query).get("load"):
                load(app)
        nexmark.load(app, total, rate=RATE)
        flink = _Flink(run, app, total)
        for query in QUERIES[::4] if run.quick else QUERIES:
            ours = _ours(run, app, query, total)
            theirs = flink.of(query, ours.rows)
            words = _program(query)["__doc__"].partition(":")[0]
            yield Row("nexmark", words, "events/s", ours.rate, peers=[theirs[0]] if theirs else ())
            yield Row(
                "nexmark", f"{query}, processor time", "s", ours.cpu_seconds, None, True, [theirs[1]] if theirs else ()
            )  # fmt: skip


def _ours(run: Run, app: hr.App, query: str, total: int) -> _Took:
    """The first time is for warming up. Every time is over the same topics, from their beginning."""
    rates, used = [], []
    flow, known = _program(query)["flow"], {*app.flows}
    for _ in range(run.warm_ups + (1 if run.quick else 3)):
        made = flow(app)
        app.running.check()
        cpu, began = our_seconds(), time.perf_counter()
        app.drain()
        rates.append(total / (time.perf_counter() - began))
        used.append(our_seconds() - cpu)
        rows = made.status().rows if isinstance(made, hr.View) else made.describe().records
        _forget(app, known)
    return _Took(of_rates(rates[run.warm_ups :]), of_samples(used[run.warm_ups :]), rows)


def _program(query: str) -> dict[str, Any]:
    return runpy.run_path(str(PROGRAMS / f"{query}.py"))


def _forget(app: hr.App, known: set[str]) -> None:
    """All that a program has made, what was made last first: a flow may read what another writes."""
    for name in reversed([name for name in app.flows if name not in known]):
        flow = app.flows.pop(name)
        if flow.parent is None and flow.target is None:
            app.running.drop(name)
        elif flow.parent is None and flow.target is not None:
            app.running.store.drop(name)
            app.log.delete_topic(flow.target)


class _Flink:
    """Measured once for each query: both its numbers are of one run. Its answer must have as many rows as ours."""

    def __init__(self, run: Run, app: hr.App, total: int) -> None:
        self._run, self._app, self._total, self._files = run, app, total, Path()

    def of(self, query: str, rows: int) -> tuple[Peer, Peer] | None:
        if query not in nexmark_sql.QUERIES:
            return None
        jobs: list[Any] = []
        rate = self._run.peer("Flink SQL", "CSV in, blackhole sink", lambda: self._measure(query, rows, jobs))
        cpu = Measured(jobs[0].cpu_seconds) if jobs else rate.value
        return rate, Peer(rate.name, rate.settings, cpu)

    def _measure(self, query: str, rows: int, jobs: list[Any]) -> Measured:
        from bench import flink_peer

        if self._files == Path():
            self._files = self._run.fresh("csv")
            for name in ("person", "auction", "bid", "side_input"):
                events = pa.Table.from_batches(self._app.log.topic(name).batches())
                own = [each for each in events.column_names if not each.startswith("_")]
                flink_peer.write_files([events.select(own)], self._files / name)
        out = self._run.fresh(query)
        asked = nexmark_sql.tables(self._files), nexmark_sql.QUERIES[query]
        job = flink_peer.run_sql(*asked, out, repeat=1 if self._run.quick else 3)
        if (found := _rows(out)) != rows:
            raise Unavailable(f"its answer has {found} rows, ours {rows}")
        jobs.append(job)
        return Measured(self._total / job.seconds, self._total / job.best_seconds)


def _rows(out: Path) -> int:
    """Of the changes in Flink's files: what came, less what went."""
    lines = (line for file in out.rglob("part-*") for line in file.open("rb"))
    return sum(1 if line.startswith((b"INSERT,", b"UPDATE_AFTER,")) else -1 for line in lines)
