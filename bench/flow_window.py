"""Windowed counts and maxima over the whole log, Spark's own stateful window beside them. Ours commit to a durable view
after each batch, whose size the product chooses; Spark's state goes to its changelog, and its results nowhere, in
batches of the size that suits it best."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace as hr
import headrace.windows as hr_windows
from bench import spark_peer
from bench.settings import Run
from bench.table import Measured, Peer, Row, of_rates

DDL = "user string, ms int, at timestamp"
EVENTS_PER_SECOND = 20_000
"""Of event time: a million events are 50 seconds, so that windows of a second make 500,000 groups of 10,000 keys."""
BEGIN_US = 1_750_000_000_000_000
LEAST_MS = 10
FILTER, COMPUTED = f"ms >= {LEAST_MS}", f"ms % 5000 >= {LEAST_MS}"
"""The same records; the first only compares, the second is for Spark to compute."""


def events(count: int, keys: int, first: int = 0, seed: int = 7) -> pa.Table:
    """Events in order of their numbers, each up to a second early."""
    random = np.random.default_rng((seed, keys, first))
    names = np.array([f"user-{number}" for number in range(keys)])
    at = BEGIN_US + np.arange(first, first + count) * (1_000_000 // EVENTS_PER_SECOND)
    return pa.table(
        {
            "user": pa.array(names[random.integers(0, keys, count)]),
            "ms": pa.array(random.integers(0, 5_000, count).astype(np.int32)),
            "at": pa.array(at - random.integers(0, 1_000_000, count)).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def windows(run: Run) -> Iterator[Row]:
    cases = {100: [(10, None), (1, None)], 10_000: [(10, None), (1, None), (10, FILTER), (10, COMPUTED)]}
    yield from _beside_spark(run, "windows", run.size(5_000_000, 20_000), cases)


def catching_up(run: Run) -> Iterator[Row]:
    """Four times as many events: what a flow comes to that has much to read."""
    cases = {100: [(10, None)], 10_000: [(10, None), (10, COMPUTED)]}
    total = run.size(20_000_000, 30_000)
    yield from _beside_spark(run, "catching_up", total, cases, f", {total / 1e6:g} M events")


SAID = {FILTER: "a filter", COMPUTED: "a computed filter"}


def _beside_spark(
    run: Run, section: str, total: int, cases: Mapping[int, Sequence[tuple[int, str | None]]], more: str = ""
) -> Iterator[Row]:
    """`cases`: by number of keys, seconds of a window and the condition on records."""
    batch = run.size(1_000_000, 10_000)
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        for keys, chosen in cases.items():
            tables = [events(batch, keys, first) for first in range(0, total, batch)]
            topic = app.topic(f"events_{keys}", DDL, event_time="at", durability="os")
            for table in tables:
                for piece in table.to_batches(max_chunksize=50_000):
                    topic.append(piece)
            peer = _Peer(run, app, tables)
            if keys == next(iter(cases)) and not run.quick:  # a session's first jobs are slow: each has a run more
                _ours(run, app, topic, _tumbling(chosen[0][0]), total, chosen[0][1])
                peer(chosen[0][0], total, chosen[0][1])
            for seconds, where in chosen:
                name = f"windowed count and max, {seconds} s windows, {keys:,} keys{more}"
                if where is not None:
                    name = f"the same behind {SAID[where]} written in PySpark, {seconds} s windows, {keys:,} keys{more}"
                wanted = 1e6 if seconds == 10 and where is None else None
                ours = _ours(run, app, topic, _tumbling(seconds), total, where)
                yield Row(section, name, "events/s", ours, wanted, peers=[peer(seconds, total, where)])


HOPS = {("10 seconds", "2 seconds"): 1.5, ("60 seconds", "1 second"): 3.0}
"""Size and step -> how many times what tumbling windows of 10 seconds cost they may cost."""


def kinds(run: Run) -> Iterator[Row]:
    """Other windows than tumbling ones: hopping against these, the others by themselves."""
    total = run.size(1_000_000, 20_000)
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        for keys in (10_000,) if run.quick else (100, 10_000):
            topic = _topic(app, f"events_{keys}", total, keys)
            tumbling = _ours(run, app, topic, _tumbling(10), total, None)
            for (size, every), times in HOPS.items():
                hopping = _ours(run, app, topic, hr.hopping(size, every=every), total, None)
                name = f"an event in hopping({size!r}, every={every!r}) against tumbling('10 seconds'), {keys:,} keys"
                cost = [a / b for a, b in ((tumbling.median, hopping.median), (tumbling.best, hopping.best)) if a and b]
                yield Row("kinds", name, "times", Measured(*cost), times if keys == 100 else None, True)
            for window in (hr.calendar("day", timezone="Europe/Berlin"), hr.session("1 second")):
                rate = _ours(run, app, topic, window, total, None)
                yield Row("kinds", f"count and max in {window}, {keys:,} keys", "events/s", rate)
        window, few = hr.sliding("1 second"), total // 10
        rate = _ours(run, app, _topic(app, "few", few, 10_000), window, few, None)
        yield Row("kinds", f"count and max in {window}, 10,000 keys", "events/s", rate)


def _topic(app: hr.App, name: str, total: int, keys: int) -> object:
    topic = app.topic(name, DDL, event_time="at", durability="os")
    for piece in events(total, keys).to_batches(max_chunksize=50_000):
        topic.append(piece)
    return topic


def _tumbling(seconds: int) -> hr_windows.Window:
    return hr.tumbling(f"{seconds} seconds")


def _ours(run: Run, app: hr.App, topic: object, kind: hr_windows.Window, total: int, where: str | None) -> Measured:
    """The first time is for warming up."""
    rates = []
    for _ in range(run.warm_ups + _repeat(run)):
        # Views in a file of their own: what another run has left there, such as pages to be given back, is its own.
        with hr.App("bench", home=run.fresh("views"), log=app.log, spark=app.running.spark) as alone:
            stream = alone.stream(topic)  # type: ignore[arg-type]
            if where is not None:
                stream = stream.transform(lambda df: df.where(where))
            window = stream.window(kind, grace="2 seconds")
            view = window.group_by("user").agg(n=hr.count(), m=hr.max("ms")).to_view("view")
            alone.running.check()
            began = time.perf_counter()
            alone.drain()
            rates.append(total / (time.perf_counter() - began))
            ledger = view.ledger().to_pylist()
            assert where is not None or sum(row["on_time"] + row["dropped"] for row in ledger) >= total
    return of_rates(rates[run.warm_ups :])


def _repeat(run: Run) -> int:
    return 1 if run.quick else 3


class _Peer:
    def __init__(self, run: Run, app: hr.App, tables: list[pa.Table]) -> None:
        self.run, self.app, self.tables, self.files = run, app, tables, Path()

    def __call__(self, seconds: int, total: int, where: str | None) -> Peer:
        return self.run.peer("Spark's window", spark_peer.SETTINGS, lambda: self._measure(seconds, total, where))

    def _measure(self, seconds: int, total: int, where: str | None) -> Measured:
        if self.files == Path():
            self.files = self.run.fresh("parquet")
            spark_peer.write_files(self.tables, self.files)
        spark = self.app.running.spark
        of_size = [
            [
                spark_peer.windowed(spark, self.files, self.run.fresh("checkpoint"), seconds, where, files)
                for _ in range(1 + min(_repeat(self.run), 2))
            ][1:]
            for files in spark_peer.FILES_PER_BATCH
        ]
        return of_rates([total / each for each in min(of_size, key=min)])
