"""headrace on Kafka, with one broker on the same machine: windowed views, reading alone, a record's way into the view,
and appending; Spark's own Kafka source and confluent-kafka's own producer beside."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

import headrace as hr
from bench import kafka_peer, servers
from bench.flow_latency import Seen, of_part, running
from bench.flow_window import DDL, events
from bench.peers import Unavailable
from bench.settings import Run
from bench.table import Measured, Row, of_rates, rate
from headrace.views.open import open_views

PARTITIONS = 2
KEYS = 10_000
WINDOW_SECONDS = 10
SPARK = "4.2's jar, from_json, noop sink, update mode, RocksDB, changelog, 2 shuffle partitions, best batch size"
SECTION = "kafka"


def kafka(run: Run) -> Iterator[Row]:
    try:
        with servers.kafka() as address:
            yield from _flows(run, address)
            yield from _latency(run, address)
            yield from _appends(run, address)
    except (Unavailable, ImportError) as error:
        yield Row(SECTION, "headrace on Kafka", "", Measured(None, why=str(error)))


# -- a view of a topic -------------------------------------------------------------------------------


def _flows(run: Run, address: str) -> Iterator[Row]:
    total, batch = run.size(4_000_000, 20_000), run.size(500_000, 10_000)
    log = f"kafka://{address}?prefix=bench."
    with hr.App("bench", home=run.fresh("home"), log=log, spark="local[2]") as app:
        topic = app.topic("events", DDL, event_time="at", partitions=PARTITIONS)
        for first in range(0, total, batch):
            topic.append(events(batch, KEYS, first))
        views = _views(run, app, topic, total)
        took = [_read(app, topic, total) for _ in range(run.warm_ups + _repeat(run))]
        reads = of_rates([total / seconds for seconds in took[run.warm_ups :]])
    asked = {"address": address, "topic": "bench.events", "schema": "user string, ms int, at timestamp"}
    answer = _spark(run, total, asked)
    window, read = (
        functools.partial(run.peer, "Spark's Kafka source", SPARK)(answer(of)) for of in ("seconds", "read")
    )
    name = (
        f"Kafka to a windowed count and max, {WINDOW_SECONDS} s windows, {KEYS:,} keys, {total / 1e6:g} M JSON records"
    )
    wanted = None if window.value.median is None else 1.3 * window.value.median
    yield Row(SECTION, name, "events/s", views, wanted, peers=[window])
    yield Row(SECTION, "read and decode JSON records in Spark's workers", "records/s", reads, 400_000, peers=[read])


def _repeat(run: Run) -> int:
    return 1 if run.quick else 3


def _views(run: Run, app: hr.App, topic: Any, total: int) -> Measured:
    rates = []
    for _ in range(run.warm_ups + _repeat(run)):
        _forget_what_was_read(app)
        with hr.App("bench", home=run.fresh("views"), log=app.log, spark=app.running.spark) as alone:
            window = alone.stream(topic).window(hr.tumbling(f"{WINDOW_SECONDS} seconds"), grace="2 seconds")
            view = window.group_by("user").agg(n=hr.count(), m=hr.max("ms")).to_view("view")
            alone.running.check()
            began = time.perf_counter()
            alone.drain()
            rates.append(total / (time.perf_counter() - began))
            assert sum(row["on_time"] + row["dropped"] for row in view.ledger().to_pylist()) == total
    return of_rates(rates[run.warm_ups :])


def _read(app: hr.App, topic: Any, total: int) -> float:
    """Seconds for every column of every record, in as many tasks as there are partitions."""
    _forget_what_was_read(app)
    ref = topic.ref()

    def count(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = ref.open()
        for each in numbers:
            for number in each.column(0).to_pylist():
                found = sum(batch.num_rows for batch in opened.batches(number))
                yield pa.RecordBatch.from_arrays([pa.array([found])], names=["n"])

    began = time.perf_counter()
    found = app.running.spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(count, "n bigint").toArrow()
    assert pa.compute.sum(found["n"]).as_py() == total
    return time.perf_counter() - began


def _forget_what_was_read(app: hr.App) -> None:
    """As in other processes: what this one and the workers have read of a topic, they need not read again. The workers
    wait for each other, so each of them does it."""

    def forget(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        from headrace.log.kafka import base_topic

        base_topic._readers.clear()
        BarrierTaskContext.get().barrier()
        yield from numbers

    from headrace.log.kafka import base_topic

    app.running.spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(forget, "id bigint", barrier=True).toArrow()
    base_topic._readers.clear()


def _spark(run: Run, total: int, asked: dict[str, Any]) -> Any:
    """Runs the peer once, for both rows."""

    @functools.cache
    def answer() -> dict[str, Any]:
        per_batch = [run.size(1_000_000, 10_000), run.size(4_000_000, 20_000)]
        request = {"per_batch": per_batch, "times": min(_repeat(run), 2), "window_seconds": WINDOW_SECONDS}
        return kafka_peer.spark_job({**asked, **request})

    def measured(of: str) -> Any:
        def measure() -> Measured:
            found = answer()
            took = found["read_seconds"] if of == "read" else min(found["seconds"].values(), key=min)
            return of_rates([total / each for each in took])

        return measure

    return measured


# -- a record's way ----------------------------------------------------------------------------------


def _latency(run: Run, address: str) -> Iterator[Row]:
    home, log = run.fresh("home"), f"kafka://{address}?prefix=latency{uuid.uuid4().hex[:6]}."
    with running(home, "", {"HEADRACE_LOG": log}), hr.open_log(log) as opened:
        seen = Seen(opened.topic("events"), open_views(home), filtered=False)
        seen.measure(run.size(5, 1))  # warming up
        took = seen.measure(run.size(30, 2))
    what = "append of 20 rows to Kafka to seen in the view by another process"
    yield Row(SECTION, f"{what}, p50", "ms", of_part(took, 0.5), 120, smaller_is_better=True)
    yield Row(SECTION, f"{what}, p99", "ms", of_part(took, 0.99), smaller_is_better=True)


# -- appending ---------------------------------------------------------------------------------------


def _appends(run: Run, address: str) -> Iterator[Row]:
    """The same rows, as dicts, one by one, JSON in Kafka; each is reported as delivered."""
    rows = run.payload.rows[: run.size(80_000, 2_000)]
    with hr.open_log(f"kafka://{address}?prefix=appends.") as log:
        topic = log.create_topic("clicks", "user string, page string, ms int, at timestamp", event_time="at")
        theirs = log.create_topic("theirs", "user string, page string, ms int, at timestamp", event_time="at")
        topic.append(rows[:100])

        def one_by_one() -> None:
            with topic.producer() as producer:
                futures = [producer.send(row) for row in rows]
            assert all(future.done() for future in futures)

        peer = run.peer(
            "confluent-kafka", "idempotent, lz4, linger 2 ms, orjson, a report for each record",
            lambda: rate(len(rows), lambda: kafka_peer.produce(address, f"appends.{theirs.name}", rows), run.repeat),
        )  # fmt: skip
        for what, work in (
            ("append of a list of dicts", lambda: topic.append(rows)),
            ("producer: send() each row, a future each", one_by_one),
            ("append of an Arrow table", functools.partial(topic.append, pa.Table.from_batches(run.payload.batches))),
        ):
            count = len(rows) if "Arrow" not in what else sum(each.num_rows for each in run.payload.batches)
            wanted = None if peer.value.median is None else 0.8 * peer.value.median
            yield Row(SECTION, what, "rows/s", rate(count, work, run.repeat), wanted, peers=[peer])
