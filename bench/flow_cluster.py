"""Two workers of a standalone Spark cluster against one, on a flow whose transform is work for the processor: one core
for each, the log in a directory that all can read. It says little unless nothing else runs. It ends: where an executor
does not come, or the repetitions take too long, the row says so, or has fewer of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import headrace as hr
from bench import servers
from bench.flow_window import DDL, events
from bench.peers import Unavailable
from bench.settings import Run
from bench.table import Measured, Row, of_rates

WHAT = "a flow that computes, on two workers of one core each"
ROUNDS = 40
"""So much work there is for each record: some two microseconds."""
SECONDS_MAX = 180
"""No repetition begins later than that after the first one, with so many workers."""


def cluster(run: Run) -> Iterator[Row]:
    total = run.size(2_000_000, 4_000)
    home = run.fresh("home")
    with hr.open_log(home) as log:
        topic = log.create_topic("events", DDL, event_time="at", partitions=2, durability="os")
        for piece in events(total, 1_000).to_batches(max_chunksize=50_000):
            topic.append(piece)
    try:
        rates = {workers: _rate(run, home, total, workers) for workers in (1, 2)}
    except Unavailable as error:
        yield Row("cluster", WHAT, "events/s", Measured(None, why=str(error)))
        return
    for workers, rate in rates.items():
        what = WHAT if workers == 2 else WHAT.replace("two workers", "one worker")
        yield Row("cluster", what, "events/s", rate)
    one, two = rates[1], rates[2]
    times = [b / a for a, b in ((one.median, two.median), (one.best, two.best)) if a and b]
    yield Row("cluster", "two workers against one", "times", Measured(*times), 1.5)


def _rate(run: Run, home: Any, total: int, workers: int) -> Measured:
    settings = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.cores.max": str(workers)}
    with contextlib.ExitStack() as stack:
        folder = run.fresh("cluster")
        master = stack.enter_context(servers.spark_daemon(folder / "master", "master.Master"))
        for number in range(workers):
            place = folder / f"worker-{number}"
            stack.enter_context(servers.spark_daemon(place, "worker.Worker", "-c", "1", master))
        spark = {"spark.master": master, **settings}
        log = stack.enter_context(hr.open_log(home))
        app = stack.enter_context(hr.App("bench", home=run.fresh("views"), log=log, spark=spark, driver_rows=0))
        _wait_for_executors(app, workers)
        rates, until = list[float](), time.monotonic() + SECONDS_MAX
        for number in range(run.warm_ups + run.repeat):
            name = f"v_{number}"
            stream = app.stream("events").transform(_work)
            stream.window(hr.tumbling("10 seconds")).group_by("user").agg(n=hr.count(), m=hr.max("work")).to_view(name)
            loop = app.running.loop(app.flows[name])
            began = time.perf_counter()
            assert loop.drain(total // 4) == total
            rates.append(total / (time.perf_counter() - began))
            if len(rates) > run.warm_ups and time.monotonic() > until:
                break
        return of_rates(rates[run.warm_ups :])


def _wait_for_executors(app: hr.App, count: int) -> None:
    """Spark begins with fewer, and waits for ever for the first one."""
    context: Any = app.running.spark.sparkContext._jsc.sc()
    until = time.monotonic() + servers.READY_SECONDS
    while (there := context.getExecutorMemoryStatus().size() - 1) < count:  # the driver is one of them
        if time.monotonic() > until:
            raise Unavailable(f"{there} of {count} executors came in {servers.READY_SECONDS} s")
        time.sleep(0.1)


def _work(df: Any) -> Any:
    from pyspark.sql import functions as F

    found = F.col("ms").cast("string")
    for _ in range(ROUNDS):
        found = F.md5(found)
    return df.withColumn("work", found)
