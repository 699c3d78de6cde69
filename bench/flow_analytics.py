"""Sessions, distinct counts and most frequent values, Spark's own beside them where Spark can do that in a stream. Ours
are compared with a batch query of Spark's over the same files. Sliding windows Spark has not: its `window` with a slide
is a hopping one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
import headrace.windows as hr_windows
from bench import spark_peer
from bench.flow_peers import fold, forget, repeat
from bench.flow_window import DDL, events
from bench.settings import Run
from bench.table import Measured, Row, of_rates

SETTINGS = "Parquet in, noop sink, RocksDB, changelog, row counting off, 2 shuffle partitions"
WANTED = 2.0
"""Times as fast as Spark."""


@dataclass(frozen=True)
class Case:
    """`theirs`: events -> results, with a column n. Compared are the number of rows and the sum of n; of most frequent
    values, n is how often the first one came."""

    said: str
    window: hr_windows.Window
    aggregates: dict[str, Any]
    theirs: Callable[[Any], Any]
    settings: str
    mode: str = "update"


def analytics(run: Run) -> Iterator[Row]:
    total, batch = run.size(2_000_000, 20_000), run.size(1_000_000, 20_000)
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        for keys in (100, 10_000)[: run.size(2, 1)]:
            tables = [events(batch, keys, first) for first in range(0, total, batch)]
            topic = app.topic(f"events_{keys}", DDL, event_time="at", durability="os")
            for table in tables:
                for piece in table.to_batches(max_chunksize=50_000):
                    topic.append(piece)
            files = run.fresh("parquet")
            spark_peer.write_files(tables, files)
            for case in _cases()[:: run.size(1, 3)]:
                ours = _ours(run, app, topic, case, total, files)
                peer = run.peer("Spark", f"{case.settings}; {SETTINGS}", partial(_spark, run, app, case, files, total))
                wanted = peer.value.median and WANTED * peer.value.median
                yield Row("peers", f"{case.said}, {keys:,} keys", "events/s", ours, wanted, peers=[peer])


def _cases() -> list[Case]:
    from pyspark.sql import functions as F

    def windowed(df: Any, *more: str) -> Any:
        return df.groupBy(F.window("at", "10 seconds"), "user", *more)

    def n() -> Any:
        return F.count("*").alias("n")

    ten = hr.tumbling("10 seconds")
    return [
        Case(
            "count and max in sessions with a gap of 1 s", hr.session("1 second"), {"n": hr.count(), "m": hr.max("ms")},
            lambda df: df.groupBy(F.session_window("at", "1 second"), "user").agg(n(), F.max("ms")),
            "session_window, append mode: it has no other; open sessions are not written", "append",
        ),
        Case(
            "approx_count_distinct, 10 s windows", ten, {"n": hr.approx_count_distinct("ms")},
            lambda df: windowed(df).agg(F.approx_count_distinct("ms", 0.016).alias("n")),
            "approx_count_distinct with our error of 1.6 %, update mode",
        ),
        Case(
            "count_distinct, exact, 10 s windows", ten, {"n": hr.count_distinct("ms")},
            lambda df: windowed(df, "ms").agg(n()).groupBy("window", "user").agg(n()),
            "two aggregates, by value and then without: in a stream it has no distinct one; append mode", "append",
        ),
        Case(
            "top_k of 10, 10 s windows", ten, {"n": hr.top_k("ms", 10)},
            lambda df: windowed(df, "ms").agg(n()),
            "the counts alone, by window, user and value: in a stream it cannot rank them; update mode",
        ),
    ]  # fmt: skip


def _ours(run: Run, app: hr.App, topic: Any, case: Case, total: int, files: Path) -> Measured:
    rates = []
    for _ in range(run.warm_ups + repeat(run)):
        view = fold(app, topic, case.window, case.aggregates)
        began = time.perf_counter()
        app.drain()
        rates.append(total / (time.perf_counter() - began))
        found = view.to_arrow()
        forget(app, view)
    _check(app.running.spark, case, files, found)
    return of_rates(rates[run.warm_ups :])


def _check(spark: Any, case: Case, files: Path, found: pa.Table) -> None:
    from pyspark.sql import functions as F

    batch = case.theirs(spark.read.schema("user string, ms int, at timestamp").parquet(str(files)))
    n = found["n"]
    if pa.types.is_list(n.type):
        n = pc.struct_field(pc.list_element(n, 0), "count")
        batch = batch.groupBy("window", "user").agg(F.max("n").alias("n"))
    [wanted] = batch.agg(F.count("*").alias("rows"), F.sum("n").alias("n")).collect()
    assert len(found) == wanted.rows, (case.said, len(found), wanted)
    summed = pc.sum(n).as_py()
    assert abs(summed / wanted.n - 1) <= (0.02 if "approx" in case.said else 0), (case.said, summed, wanted)


def _spark(run: Run, app: hr.App, case: Case, files: Path, total: int) -> Measured:
    query = case.theirs(spark_peer.read(app.running.spark, files))
    times = [spark_peer.timed(query, run.fresh("checkpoint"), case.mode) for _ in range(1 + min(repeat(run), 2))]
    return of_rates([total / each for each in times[1:]])
