"""How long it takes until records that break a program are dead letters, and all others are in the view: with Spark's
own errors, and with those of Python functions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

import headrace as hr
from bench.settings import Run
from bench.table import Measured, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TARGET_SECONDS = 30
KINDS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a cast": lambda df: df.withColumn("m", F.col("text").cast("int")),
    "a division": lambda df: df.withColumn("m", (100 / F.col("n")).cast("int")),
    "a Python function": lambda df: df.withColumn("m", F.udf(lambda n: 100 // n, "int")("n")),
    "a pandas function": lambda df: df.withColumn(
        "m", F.pandas_udf(lambda n: n.map(lambda one: 100 // one), "int")("n")
    ),
}


def poison(run: Run) -> Iterator[Row]:
    rows, bad = run.size(100_000, 500), run.size(200, 2)
    with hr.App("bench", home=run.fresh("home"), spark="local[2,4]") as app:
        app.running.spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()  # a worker is there
        kinds = {said: KINDS[said] for said in ("a Python function",)} if run.quick else KINDS
        for number, (said, transform) in enumerate(kinds.items()):
            topic = app.topic(f"events_{number}", "user string, text string, n int", durability="os")
            offsets = random.Random(7).sample(range(rows), bad)
            topic.append(_events(rows, offsets))
            stream = app.stream(topic).transform(transform)
            stream.group_by("user").agg(n=hr.count(), total=hr.sum("m")).to_view(f"view_{number}")
            began = time.perf_counter()
            app.drain()
            took = time.perf_counter() - began
            dead = [letter.origin.offset for letter in app.log.dead_letters() if letter.origin.topic == topic.name]
            assert sorted(dead) == sorted(offsets), "other records are dead letters than those that are bad"
            what = f"{bad} records among {rows:,} that break {said} are dead letters"
            yield Row("poison", what, "s", Measured(took, took), TARGET_SECONDS, smaller_is_better=True)


def _events(rows: int, bad: list[int]) -> pa.Table:
    n = [1 + at % 50 for at in range(rows)]
    for at in bad:
        n[at] = 0
    users = [f"user-{at % 100}" for at in range(rows)]
    return pa.table({"user": users, "text": [str(each or "none") for each in n], "n": pa.array(n, pa.int32())})
