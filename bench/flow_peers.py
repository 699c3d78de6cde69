"""Flows beside other stream processors: the same question to everybody, a count and a maximum by user and window, over
the same events, without a broker. Each answer, ours too, is compared with one computed from the events alone; a peer
whose answer differs has no rate."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

import headrace as hr
import headrace.windows as hr_windows
from bench import flink_peer, peers
from bench.flow_window import DDL, events
from bench.settings import Run
from bench.table import Measured, Peer, Row, of_rates

GRACE = "2 seconds"


@dataclass(frozen=True)
class Question:
    """A count and a maximum by user, in windows of so many milliseconds, one each so many."""

    said: str
    size_ms: int
    every_ms: int

    @property
    def window(self) -> hr_windows.Window:
        size, every = f"{self.size_ms} milliseconds", f"{self.every_ms} milliseconds"
        return hr.tumbling(size) if self.size_ms == self.every_ms else hr.hopping(size, every=every)

    @property
    def sql(self) -> str:
        size, every = (f"INTERVAL '{ms // 1000}' SECOND" for ms in (self.size_ms, self.every_ms))
        rows = "TABLE events, DESCRIPTOR(`at`)"
        kind = f"TUMBLE({rows}, {size})" if self.size_ms == self.every_ms else f"HOP({rows}, {every}, {size})"
        columns = "window_start, `user`, COUNT(*) AS n, MAX(ms) AS m"
        return f"SELECT {columns} FROM TABLE({kind}) GROUP BY window_start, window_end, `user`"

    def answer(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Computed from the events alone, in one go."""
        table = pa.concat_tables(tables)
        at_ms = table["at"].cast(pa.int64()).to_numpy() // 1000
        last = at_ms - at_ms % self.every_ms
        starts = [last - back for back in range(0, self.size_ms, self.every_ms)]
        rows = pa.table(
            {
                "start_ms": np.concatenate(starts),
                "user": pa.chunked_array(table["user"].chunks * len(starts)),
                "ms": pa.chunked_array(table["ms"].chunks * len(starts)),
            }
        )
        found = rows.group_by(["start_ms", "user"]).aggregate([("ms", "count"), ("ms", "max")])
        return _ordered(found.rename_columns(["start_ms", "user", "n", "m"]))


TUMBLING = Question("10 s windows", 10_000, 10_000)
HOPPING = Question("10 s windows every 2 s", 10_000, 2_000)


def in_windows(run: Run) -> Iterator[Row]:
    total, batch = run.size(5_000_000, 20_000), run.size(1_000_000, 10_000)
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        for keys in (100, 10_000)[: run.size(2, 1)]:
            data = Data(run, [events(batch, keys, first) for first in range(0, total, batch)])
            topic = app.topic(f"events_{keys}", DDL, event_time="at", durability="os")
            data.append(topic)
            for question in (TUMBLING, HOPPING):
                flink = _flink(run, data, question)
                beside = [flink, *(_small(run, data, question, each) for each in SMALL if question in each.questions)]
                wanted = [_times(flink, 1), *(_times(peer, 10) for peer in beside[2:])]
                what = f"windowed count and max, {question.said}, {keys:,} keys"
                ours = _ours(run, app, topic, question, data)
                yield Row("peers", what, "events/s", ours, max(wanted) or None, peers=beside)
                what = f"{what}, from Flink's CSV files: read, appended to the log, folded"
                ours = _from_files(run, app, question, data)
                yield Row("peers", what, "events/s", ours, wanted[0] or None, peers=[flink])


class Data:
    """The events of a section, in memory and, when somebody asks, in files."""

    def __init__(self, run: Run, tables: Sequence[pa.Table]) -> None:
        self.run, self.tables, self.count = run, tables, sum(map(len, tables))

    def append(self, topic: Any) -> None:
        for table in self.tables:
            for piece in table.to_batches(max_chunksize=50_000):
                topic.append(piece)

    @cached_property
    def files(self) -> Path:
        """For Flink."""
        folder = self.run.fresh("csv")
        flink_peer.write_files(self.tables, folder)
        return folder

    @cached_property
    def some(self) -> pa.Table:
        """For those that would take too long with all."""
        return self.tables[0].slice(0, self.run.size(500_000, 2_000))


def _ours(run: Run, app: hr.App, topic: Any, question: Question, data: Data) -> Measured:
    """From the log into a durable view; the first time is for warming up."""
    rates = []
    for _ in range(run.warm_ups + repeat(run)):
        view = fold(app, topic, question.window, {"n": hr.count(), "m": hr.max("ms")})
        began = time.perf_counter()
        app.drain()
        rates.append(data.count / (time.perf_counter() - began))
        _check(_of_view(view), question.answer(data.tables), "headrace")
        forget(app, view)
    return of_rates(rates[run.warm_ups :])


def _from_files(run: Run, app: hr.App, question: Question, data: Data) -> Measured:
    """From CSV files, through the log, into a durable view."""
    rates = []
    for _ in range(run.warm_ups + repeat(run)):
        topic = app.topic(f"read_{next(_numbers)}", DDL, event_time="at", durability="os")
        view = fold(app, topic, question.window, {"n": hr.count(), "m": hr.max("ms")})
        began = time.perf_counter()
        for batch in _read_in_turn(data.files):
            topic.append(batch)
        app.drain()
        rates.append(data.count / (time.perf_counter() - began))
        _check(_of_view(view), question.answer(data.tables), "headrace")
        forget(app, view)
        app.log.delete_topic(topic.name)
    return of_rates(rates[run.warm_ups :])


def _read_in_turn(folder: Path) -> Iterator[pa.RecordBatch]:
    """A small block of each file in turn: both are in the order of time, and so are half a second apart at most."""
    kinds = {"user": pa.string(), "ms": pa.int32(), "at": pa.int64()}
    reading = pa.csv.ReadOptions(column_names=list(kinds), block_size=1 << 17)
    options = pa.csv.ConvertOptions(column_types=kinds)
    files = [pa.csv.open_csv(file, reading, convert_options=options) for file in sorted(folder.iterdir())]
    for batches in itertools.zip_longest(*files):
        for batch in filter(None, batches):
            at = batch.column("at").cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
            yield batch.set_column(2, "at", at)


# -- peers -----------------------------------------------------------------------------------------------------------


def _flink(run: Run, data: Data, question: Question) -> Peer:
    def measure() -> Measured:
        ddl = f"""CREATE TABLE events (
            `user` STRING, ms INT, at_ms BIGINT,
            `at` AS TO_TIMESTAMP_LTZ(at_ms, 3), WATERMARK FOR `at` AS `at` - INTERVAL '2' SECOND
        ) WITH ('connector' = 'filesystem', 'path' = '{data.files}', 'format' = 'csv')"""
        out = run.fresh("flink")
        took = flink_peer.run_sql(ddl, question.sql, out, repeat=repeat(run))
        found = flink_peer.answer(out, {**KINDS, "start_ms": pa.timestamp("ms")})
        _check(_ordered(found), question.answer(data.tables), "Flink")
        notes.append(f"{took.cpu_seconds:.1f} s of processor time; {took.start_seconds:.0f} s to start, not counted")
        return Measured(data.count / took.seconds, data.count / took.best_seconds)

    notes = [flink_peer.SETTINGS]
    peer = run.peer("PyFlink SQL", "", measure)
    return replace(peer, settings="; ".join(notes))


@dataclass(frozen=True)
class Small:
    """A peer that is given some of the events, in a CSV file; its job writes its answer to another one."""

    job: str
    name: str
    settings: str
    questions: tuple[Question, ...]
    times: int = 2
    header: bool = False


SMALL = (
    Small("pathway", "Pathway", "CSV in and out, static, 2 threads", (TUMBLING, HOPPING), times=1, header=True),
    Small("bytewax", "bytewax", "objects in memory, 50,000 a batch, fold_window, 1 worker: 2 were slower", (TUMBLING,)),
    Small("quix", "Quix Streams", "no broker: messages in memory, RocksDB, 2 processes of half the keys", (TUMBLING,)),
)


def _small(run: Run, data: Data, question: Question, peer: Small) -> Peer:
    def measure() -> Measured:
        given, out = run.fresh("events"), run.fresh("answer")
        style = pa.csv.WriteOptions(include_header=peer.header, quoting_style="none")
        pa.csv.write_csv(flink_peer.plain(data.some), given, style)
        asked = {"events": str(given), "out": str(out), "size_ms": question.size_ms, "every_ms": question.every_ms}
        found = peers.job(peer.job, {**asked, "times": peer.times}, PATHWAY_THREADS="2")
        _check(_read(out, peer.header), question.answer([data.some]), peer.name)
        return Measured(len(data.some) / found["seconds"][-1])

    return run.peer(peer.name, f"{len(data.some):,} events, {peer.settings}", measure)


def _times(peer: Peer, times: float) -> float:
    return (peer.value.median or 0) * times


# -- a flow of ours, and answers -------------------------------------------------------------------------------------

_numbers = itertools.count()
KINDS = {"start_ms": pa.int64(), "user": pa.string(), "n": pa.int64(), "m": pa.int32()}


def fold(app: hr.App, topic: Any, window: hr_windows.Window, aggregates: dict[str, Any]) -> Any:
    """A view of its own, not yet filled."""
    windowed = app.stream(topic).window(window, grace=GRACE)
    view = windowed.group_by("user").agg(**aggregates).to_view(f"peers_{next(_numbers)}")
    app.running.check()
    return view


def forget(app: hr.App, view: Any) -> None:
    app.running.store.drop(view.name)
    del app.flows[view.name]


def repeat(run: Run) -> int:
    return 1 if run.quick else 3


def _of_view(view: Any) -> pa.Table:
    found = view.to_arrow()
    starts = pa.compute.divide(found["window_start"].cast(pa.int64()), 1000)
    return _ordered(pa.table({"start_ms": starts, "user": found["user"], "n": found["n"], "m": found["m"]}))


def _read(file: Path, header: bool) -> pa.Table:
    """An answer in a CSV file; with a header, other columns may follow."""
    reading = pa.csv.ReadOptions(column_names=None if header else list(KINDS))
    options = pa.csv.ConvertOptions(column_types=KINDS, include_columns=list(KINDS))
    return _ordered(pa.csv.read_csv(file, reading, convert_options=options))


def _ordered(answer: pa.Table) -> pa.Table:
    return answer.cast(pa.schema(KINDS)).sort_by([("start_ms", "ascending"), ("user", "ascending")]).combine_chunks()


def _check(found: pa.Table, wanted: pa.Table, whose: str) -> None:
    if not found.equals(wanted):
        summed = [f"{len(t):,} rows that count {pa.compute.sum(t['n']).as_py():,}" for t in (found, wanted)]
        raise peers.Unavailable(f"{whose} answered otherwise: {summed[0]}, not {summed[1]}")
