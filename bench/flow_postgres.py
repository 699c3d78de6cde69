"""Views in Postgres: how many rows a second are touched when Spark's workers stage them, and how long a record takes
from its append, or from Kafka, to its row in Postgres, as another process sees it. The server is one of its own beside
the flow, with its own settings: every commit is synced."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import headrace as hr
from bench import servers
from bench.flow_latency import Seen, of_part, running
from bench.flow_window import BEGIN_US, DDL
from bench.peers import Unavailable
from bench.settings import Run
from bench.table import Measured, Row, of_rates
from headrace.flows.folding import staging
from headrace.log.open import open_address
from headrace.views.open import open_views

WHAT = "rows touched in a view of %s rows, staged by two workers"


def postgres(run: Run) -> Iterator[Row]:
    latency = "append of 20 rows to seen in Postgres by another process"
    try:
        with servers.postgres() as url:
            yield from _touched(run, url)
            yield from _latency(run, latency, 150, {"HEADRACE_VIEWS": f"{url}?schema=embedded"}, "")
            yield from _from_kafka(run, url)
    except Unavailable as error:
        yield Row("postgres", WHAT, "rows/s", Measured(None, why=str(error)), 100_000)


def _touched(run: Run, url: str) -> Iterator[Row]:
    """Each batch touches half a million of a million rows, at random; the first two make them."""
    keys, batch = run.size(1_000_000, 5_000), run.size(700_000, 4_000)
    staging.ROWS_MIN = run.size(staging.ROWS_MIN, 0)
    random = np.random.default_rng(7)
    names = np.array([f"user-{number:07}" for number in range(keys)])
    with hr.App("bench", home=run.fresh("home"), views=f"{url}?schema=touched", spark="local[2]", driver_rows=0) as app:
        topic = app.topic("events", DDL, key="user", event_time="at", partitions=2, durability="os")
        stream = app.stream(topic).group_by("user")
        stream.agg(n=hr.count(), most=hr.max("ms"), total=hr.sum("ms")).to_view("v")
        app.running.query(app.flows["v"]).one_task_rows = 0
        loop, touched, seconds = app.running.loop(app.flows["v"]), list[float](), list[float]()
        for number in range(4 + run.repeat):
            users = names[random.integers(0, keys, batch)]
            at = pa.array(np.full(batch, BEGIN_US + number)).cast(pa.timestamp("us", tz="UTC"))
            numbers = pa.array(random.integers(0, 5_000, batch).astype(np.int32))
            table = pa.table({"user": users, "ms": numbers, "at": at})
            for piece in table.to_batches(max_chunksize=50_000):
                topic.append(piece)
            began = time.perf_counter()
            made = loop.prepare(batch)
            assert made is not None and (number < 2 or made.staged is not None)
            loop.commit(made)
            seconds.append(time.perf_counter() - began)
            touched.append(len(np.unique(users)))
        rates = [count / took for count, took in zip(touched[4:], seconds[4:], strict=True)]
        yield Row("postgres", WHAT % f"{keys / 1e6:g} M", "rows/s", of_rates(rates), 100_000)
        said = "the same, read, folded, staged and committed one after the other: seconds a batch"
        yield Row("postgres", said, "s", Measured(float(np.median(seconds[4:])), min(seconds[4:])), None, True)


def _latency(run: Run, what: str, wanted: float, settings: dict[str, str], log: str) -> Iterator[Row]:
    home = run.fresh("home")
    with running(home, "", settings), open_address(log or home, create=False) as opened:
        seen = Seen(opened.topic("events"), open_views(settings["HEADRACE_VIEWS"]), filtered=False)
        seen.measure(run.size(5, 1))  # warming up
        took = seen.measure(run.size(30, 2))
        yield Row("postgres", f"{what}, p50", "ms", of_part(took, 0.5), wanted, smaller_is_better=True)
        yield Row("postgres", f"{what}, p99", "ms", of_part(took, 0.99), smaller_is_better=True)


def _from_kafka(run: Run, url: str) -> Iterator[Row]:
    what = "produce of 20 rows to Kafka to seen in Postgres by another process"
    try:
        with servers.kafka() as broker:
            log = f"kafka://{broker}?prefix=b{uuid.uuid4().hex[:6]}."
            settings = {"HEADRACE_VIEWS": f"{url}?schema=from_kafka", "HEADRACE_LOG": log}
            yield from _latency(run, what, 200, settings, log)
    except Unavailable as error:
        yield Row("postgres", f"{what}, p50", "ms", Measured(None, why=str(error)), 200, smaller_is_better=True)
