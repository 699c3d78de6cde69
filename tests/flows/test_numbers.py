"""Where Spark groups, a number stands for what records are grouped by. The rows are those that Spark makes of the names
themselves: of null groups, odd values, many groups, several inputs, and groups that transforms make or rename."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

import headrace as hr
from headrace.flows.query import FlowQuery
from headrace.flows.reading import numbers
from headrace.flows.reading.ranges import Range
from headrace.kernels import numbering
from headrace.kernels.numbering import numbered
from tests.flows.test_arrow_partials import SCHEMA, SEED, odd_rows

KEYS = ("_pane", "_dropped", "_late")
TUMBLING = hr.tumbling("10 seconds")


@pytest.mark.parametrize("largest", [2**62, 20], ids=["as it is", "numbers that do not fit are made smaller"])
@pytest.mark.parametrize("seed", range(6))
def test_equal_rows_have_equal_numbers(seed: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "_LARGEST", largest)
    rng = random.Random(seed)
    rows = rng.choice([1, 2, 200, 5_000])
    values: list[list[Any]] = [["a", "", None], [7], [0, -1, None, 2**62], [True, False, None], [b"", b"\x00", None]]
    drawn = [[rng.choice(some[: rng.randrange(1, 4)]) for _ in range(rows)] for some in values[: rng.randrange(1, 6)]]
    columns = [pa.chunked_array([each[: rows // 3], each[rows // 3 :]], pa.array(each).type) for each in drawn]
    number, row = numbered(columns)
    tuples = list(zip(*drawn, strict=True))
    assert len(set(zip(number.tolist(), tuples, strict=True))) == len(set(tuples)) == len(set(number.tolist()))
    assert [tuples[row[each]] for each in number] == tuples
    assert len(row) <= max(rows // numbering.SPARSE, len(set(tuples)))


def test_chunks_have_all_rows_and_none_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "CHUNK_ROWS", 5)
    batches = [
        pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})
        for start, rows in ((0, 3), (3, 0), (3, 4), (7, 1))
    ]
    chunks = list(numbering.in_chunks(batches))
    assert [chunk.num_rows for chunk in chunks] == [7, 1]
    assert np.concatenate([chunk["n"].to_numpy() for chunk in chunks]).tolist() == list(range(8))
    assert list(numbering.in_chunks(batches[1:2])) == []


# -- flows -------------------------------------------------------------------------------------------

TRANSFORMS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...], set[str] | None]] = {
    "filtered": (lambda df: df.where("i32 is null or i32 % 5 <> 3"), ("s", "b"), {"s", "b"}),
    "every type": (lambda df: df.where("length(s) < 9 or s is null"), ("i8", "i64", "d", "bin", "day", "t"), None),
    "floats": (lambda df: df.where("length(s) < 9 or s is null"), ("f64", "f32", "s"), {"s"}),
    "computed group": (lambda df: df.withColumn("s", F.upper("s")), ("s", "b"), {"b"}),
    "renamed, and twice": (
        lambda df: df.withColumnRenamed("s", "word").withColumn("same", F.col("word")).where("i8 % 2 = 0"),
        ("word", "same"),
        {"word", "same"},
    ),
    "exploded": (lambda df: df.withColumn("one", F.explode(F.array("i8", "i32"))), ("s", "one"), {"s"}),
    "swapped": (lambda df: df.withColumns({"b": df.b, "s": F.coalesce("s", F.lit("?"))}), ("s", "b"), {"b"}),
    "nothing to group by": (lambda df: df.where("i8 % 2 = 0"), (), set()),
}  # fmt: skip
"""A transform, the groups, and which of them are numbered; None: all."""


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with hr.App("numbers", home=tmp_path, spark=spark, driver_rows=0) as app:
        topic = app.topic("odd", SCHEMA, event_time="at", partitions=2, durability="os")
        rng = random.Random(SEED)
        for _ in range(3):
            topic.append(odd_rows(rng, 100))
        yield app


def view(app: hr.App, stream: Any, groups: tuple[str, ...], *, window: Any = TUMBLING) -> FlowQuery:
    if window is not None:
        stream = stream.window(window, grace="1 second", late=hr.correct("20 seconds"))
    aggregates = {"n": hr.count(), "most": hr.max("f64"), "sum": hr.sum("i32"), "last": hr.last("i64")}
    stream.group_by(*groups).agg(**aggregates).to_view("v")
    return app.running.query(app.flows["v"])


def both_ways(query: FlowQuery, *, one_task: int = 0) -> tuple[list[str], list[str]]:
    """Partial rows by numbers and by names, merged where there are several of a group: workers have parts of it."""
    planned = {
        topic.name: [Range(partition, ends.earliest, ends.next) for partition, ends in topic.offsets().items()]
        for topic in query.compiled.flow.topics
    }
    query.one_task_rows = one_task
    rows = sum(each.rows for some in planned.values() for each in some)
    by_number, by_name = query._by_number(planned, rows), query._by_spark(planned, rows)
    assert by_number is not None
    assert {field.name: field.type for field in by_number.schema} == {
        field.name: field.type for field in by_name.schema
    }
    keys = [*query.compiled.flow.groups, *(KEYS if query.compiled.flow.window else ())]
    return _merged(by_number, keys), _merged(by_name, keys)


def _merged(rows: pa.Table, keys: list[str]) -> list[str]:
    out: dict[str, list[Any]] = {}
    for row in rows.to_pylist():
        found = out.setdefault(repr([row[name] for name in keys]), [0, None, None])
        found[0] += row["_records"]
        found[1] = max([each for each in (found[1], row["_updated_at"]) if each is not None], default=None)
        total = [each for each in (found[2], row["sum"]) if each is not None]
        found[2] = sum(total) if total else None
    return sorted(f"{key} {values}" for key, values in out.items())


@pytest.mark.parametrize("name", TRANSFORMS)
def test_by_numbers_the_rows_are_the_same(app: hr.App, name: str) -> None:
    transform, groups, expected = TRANSFORMS[name]
    query = view(app, app.stream("odd").transform(transform), groups)
    names = query.compiled.reads.by_number
    assert names is not None and names.names is not None
    assert {*names.names.schema.names} - {*KEYS} == ({*groups} if expected is None else expected)
    for one_task in (0, 10**9):
        by_number, by_name = both_ways(query, one_task=one_task)
        assert by_number == by_name
    app.drain(batch_rows=70)
    assert app.audit().ok


def test_without_a_window_groups_are_numbered_too(app: hr.App) -> None:
    stream = app.stream("odd").transform(lambda df: df.where("i8 is null or i8 % 2 = 0"))
    by_number, by_name = both_ways(view(app, stream, ("s", "day"), window=None))
    assert by_number == by_name


def test_what_cannot_be_numbered_is_not(app: hr.App) -> None:
    """Windows of few records each; groups that transforms make, where there is no window; a column of that name."""

    def by_number(transform: Any, groups: tuple[str, ...], window: Any) -> Any:
        return view(app, app.stream("odd").transform(transform), groups, window=window).compiled.reads.by_number

    assert by_number(lambda df: df.where("i8 % 2 = 0"), ("s",), hr.session("5 seconds")) is None
    del app.flows["v"]
    assert by_number(lambda df: df.withColumn("s", F.upper("s")), ("s",), None) is None
    del app.flows["v"]
    taken = by_number(lambda df: df.withColumn("_number", F.col("i8") + 1), ("s",), hr.tumbling("10 seconds"))
    assert taken is None


def test_of_several_inputs_each_numbers_its_own(app: hr.App) -> None:
    """Inputs of different types are grouped by name; those that share a topic are two inputs all the same."""
    other = app.topic("other", SCHEMA, event_time="at", durability="os")
    other.append(odd_rows(random.Random(3), 60))
    even = app.stream("odd", name="even").transform(lambda df: df.where("i32 is null or i32 % 2 = 0"))
    odd = app.stream("odd", name="odd").transform(lambda df: df.where("i32 % 2 <> 0"))
    query = view(app, even.union(odd).union(app.stream(other)), ("s", "b"))
    for one_task in (0, 10**9):
        by_number, by_name = both_ways(query, one_task=one_task)
        assert by_number == by_name
    app.drain(batch_rows=50)
    assert app.audit().ok


def test_a_group_that_a_union_makes_wider_keeps_its_name(app: hr.App) -> None:
    wide = app.topic("wide", SCHEMA.replace("i32 int", "i32 bigint"), event_time="at", durability="os")
    wide.append(odd_rows(random.Random(3), 60))
    stream = app.stream("odd").transform(lambda df: df.where("i8 is null or i8 % 2 = 0")).union(app.stream(wide))
    query = view(app, stream, ("i32", "s"))
    reads = query.compiled.reads.by_number
    assert reads is not None and reads.names is not None and "i32" not in reads.names.schema.names
    by_number, by_name = both_ways(query)
    assert by_number == by_name


def test_very_many_groups_go_by_name(app: hr.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with too many names stops, and the batch is read again; from then on there are no numbers."""
    monkeypatch.setattr(numbers, "NAMES_BYTES_MAX", 1_000)
    query = view(app, app.stream("odd").transform(lambda df: df.where("i8 is null or i8 % 2 = 0")), ("s", "i64"))
    app.drain(batch_rows=70)
    assert query._prepared.by_number is None
    assert app.audit().ok
    records = sum(row["n"] for row in app.query("select n from v").to_pylist())
    ledger = app.view("v").ledger().to_pylist()
    assert records == sum(row["on_time"] + row["corrected"] for row in ledger) > 0


def test_a_task_that_is_run_again_is_named_by_its_own_names(app: hr.App) -> None:
    """The first attempt of each task fails after it has read all its records."""

    @F.udf(BooleanType())
    def fails_once(value: Any) -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and value == 127:
            raise RuntimeError("the first attempt")
        return True

    stream = app.stream("odd").transform(lambda df: df.where(fails_once("i8")))
    by_number, by_name = both_ways(view(app, stream, ("s", "b")))
    assert by_number == by_name and by_number


def test_nothing_is_left_behind_when_a_job_is_done(app: hr.App) -> None:
    query = view(app, app.stream("odd").transform(lambda df: df.where("i8 % 2 = 0")), ("s",))
    app.drain(batch_rows=70)
    reads = query.compiled.reads.by_number
    assert reads is not None and reads.names is not None
    assert reads.names.gathered.value == {}
    assert app.running.spark.sparkContext.getLocalProperty(numbers.JOB) is None


def test_no_records_at_all_are_no_rows(app: hr.App) -> None:
    query = view(app, app.stream("odd").transform(lambda df: df.where("i8 > 127 + 0 * i32")), ("s",))
    by_number, by_name = both_ways(query)
    assert by_number == by_name == []
    assert query._prepared.by_number is not None


def test_nan_and_zeros_are_told_apart_by_spark_alone(app: hr.App) -> None:
    """Groups of doubles are not numbered: Spark takes both zeros for one, and all NaN."""
    query = view(app, app.stream("odd").transform(lambda df: df.where("length(s) < 9")), ("f64",), window=None)
    assert query.compiled.reads.by_number is None
    app.drain()
    found = [row["f64"] for row in app.query("select f64 from v").to_pylist()]
    floats = [each for each in found if isinstance(each, float)]
    assert len([each for each in floats if math.isnan(each)]) <= 1 and floats.count(0.0) == 1
