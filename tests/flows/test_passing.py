"""Columns that a transform only passes on are put together with what Spark computed, by the place of their record."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.flows.reading.passing import _matched


@pytest.mark.parametrize("seed", range(20))
def test_rows_find_their_records(seed: int) -> None:
    rng = random.Random(seed)
    there = rng.sample(range(30), rng.randrange(30))
    there = there if rng.random() < 0.5 else sorted(there)
    wanted = rng.choices(range(30), k=rng.randrange(40))
    rows, at = _matched(np.array(wanted, np.int64), np.array(there, np.int64))
    found = wanted if rows is None else [wanted[row] for row in rows.to_pylist()]
    assert found == [place for place in wanted if place in there]
    assert found == (there if at is None else [there[place] for place in at.to_pylist()])


def test_a_flow_into_a_topic_writes_what_its_transform_makes(spark: Any, tmp_path: Path) -> None:
    with hr.App("passing", home=tmp_path, spark=spark, driver_rows=0) as app:
        topic = app.topic(
            "t", "k string, n int, words array<string>, at timestamp", key="k", event_time="at", partitions=3
        )
        rows = [
            {"k": f"k{n % 7}", "n": n, "words": ["a", "b"][: n % 3], "at": f"2026-01-01T00:00:{n % 60:02}Z"}
            for n in range(200)
        ]
        topic.append(rows)
        made = {
            "computed": lambda df: df.withColumn("n", df.n * 2),
            "renamed": lambda df: df.withColumnRenamed("k", "key").withColumn("twice", df.n * 2),
            "filtered": lambda df: df.where("n % 3 = 0"),
            "exploded": lambda df: df.select("*", F.explode("words").alias("word")).drop("words"),
            "exchanged": lambda df: df.repartition(4, "n").withColumn("n", df.n + 1),
        }
        for name, transform in made.items():
            app.stream(topic).transform(transform).to_topic(name)
            passed = app.running.query(app.flows[name]).compiled.passed
            assert (passed is not None and "at" in passed.origins and "n" not in passed.computed) or name != "renamed"
        app.drain(batch_rows=90)

        def written(name: str) -> list[Any]:
            records = app.log.topic(name).records()
            return sorted((tuple(record.value.values()) for record in records), key=str)

        def expected(name: str) -> list[Any]:
            df = spark.createDataFrame(rows, "k string, n int, words array<string>, at string")
            df = made[name](df.withColumn("at", F.to_timestamp("at")))
            return sorted((tuple(row.values()) for row in df.toArrow().to_pylist()), key=str)

        for name in made:
            assert written(name) == expected(name), name

        def progress(name: str, times: int) -> set[Any]:
            batches = app.log.topic(name).batches(columns=["n", "_progress"])
            return {(row["n"] * times, row["_progress"]) for batch in batches for row in batch.to_pylist()}

        assert progress("computed", 1) == progress("t", 2), "a copy keeps its source's progress"


def test_a_record_that_was_erased_meanwhile_is_not_written(spark: Any, tmp_path: Path) -> None:
    with hr.App("erased", home=tmp_path, spark=spark, driver_rows=0) as app:
        topic = app.topic("t", "k string, n int", key="k")
        topic.append([{"k": f"k{n % 4}", "n": n} for n in range(20)])
        app.stream(topic).transform(lambda df: df.withColumn("m", df.n + 1)).to_topic("out")
        query = app.running.query(app.flows["out"])
        by_spark = query._by_spark

        def slowly(*arguments: Any) -> Any:
            found = by_spark(*arguments)
            topic.erase("k1")
            return found

        query._by_spark = slowly  # type: ignore[method-assign]
        app.drain()
        written = {record.value["n"] for record in app.log.topic("out").records()}
        assert written == {n for n in range(20) if n % 4 != 1}
