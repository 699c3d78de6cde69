"""What only chooses is chosen by Arrow, and the choice is Spark's: for every comparison, type and odd value."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace.flows import query as queries
from headrace.flows.compiler.plan_check import _probe
from headrace.flows.compiler.sieve_plan import sieve_of
from headrace.flows.reading import ranges
from headrace.kernels.sieve import Sieve
from tests.flows.test_arrow_partials import ODD, SCHEMA, odd_rows

SEED = 20261117
LITERALS = {
    "i8": ["0Y", "127Y", "-128Y"],
    "i32": ["0", "2147483647", "5"],
    "i64": ["0L", "5", "-1125899906842624"],
    "f32": ["float('1.5')", "float('-Infinity')"],
    "f64": ["0.0D", "1e300D", "double('Infinity')", "5"],
    "s": ["''", "'a'", "'ü'", "'b'"],
    "day": ["date'2026-02-28'", "date'1970-01-01'"],
    "t": ["timestamp'2026-01-01 00:00:00.000001Z'", "timestamp'1970-01-01 00:00:00Z'"],
}


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with hr.open_log(tmp_path_factory.mktemp("sieve")) as log:
        topic = log.create_topic("odd", SCHEMA, event_time="at", durability="os")
        topic.append(odd_rows(random.Random(SEED), 400))
        yield topic


def records(topic: Any) -> pa.Table:
    return pa.Table.from_batches(topic.batches(0, 0, 400, [*topic.schema.names, *hr.META]))


def some_condition(rng: random.Random, depth: int = 3) -> str:
    if depth and rng.random() < 0.6:
        kind = rng.choice(["({} and {})", "({} or {})", "(not {})"])
        return kind.format(*(some_condition(rng, depth - 1) for _ in range(kind.count("{}"))))
    column = rng.choice(list(LITERALS))
    literals = LITERALS[column]
    sign = rng.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
    choices = [f"{column} {sign} {rng.choice(literals)}", f"{rng.choice(literals)} {sign} {column}"]
    choices += [f"{column} is null", f"{column} is not null", "b", "b <=> true"]
    if column not in ("f32", "f64"):
        choices += [f"{column} in ({', '.join(literals[:2])})", f"{column} not in ({', '.join(literals[-2:])})"]
    choices += ["startswith(s, 'a')", "s like '%ü'", "contains(s, 'z')", "s like ''", "i64 > i64", "day < day"]
    return rng.choice(choices)


def sieve(spark: Any, topic: Any, transform: Callable[[DataFrame], DataFrame]) -> Sieve | None:
    return sieve_of(transform(_probe(spark, ranges.spark_schema(topic), None)))


def test_it_lets_through_what_spark_lets_through(spark: Any, topic: Any) -> None:
    rng = random.Random(SEED)
    conditions = list(dict.fromkeys(some_condition(rng) for _ in range(150)))
    table = records(topic)
    df = spark.createDataFrame(table, ranges.spark_schema(topic))
    answers = df.select("_offset", *(F.expr(each).alias(f"c{at}") for at, each in enumerate(conditions))).toArrow()
    sifted = 0
    for at, condition in enumerate(conditions):
        expected = answers.filter(answers[f"c{at}"])["_offset"].to_pylist()
        found = sieve(spark, topic, lambda df, condition=condition: df.where(condition))
        if found is None:  # the optimiser made something else of it
            continue
        sifted += 1
        assert [
            offset for batch in found.of(table.to_batches()) for offset in batch["_offset"].to_pylist()
        ] == expected, condition
    assert sifted > 100


def test_columns_get_their_names(spark: Any, topic: Any) -> None:
    def swapped(df: DataFrame) -> DataFrame:
        df = df.selectExpr("s as t", "t as s", "i32", *hr.META).where("t = 'a'").withColumnRenamed("i32", "n")
        return df.where("n > 0").drop("s")

    found = sieve(spark, topic, swapped)
    assert found is not None
    assert found.columns == (("t", "s"), ("n", "i32"), *((name, name) for name in hr.META))
    table = records(topic)
    made = pa.Table.from_batches(found.of(table.to_batches()), found.schema(table.schema))
    expected = swapped(spark.createDataFrame(table, ranges.spark_schema(topic))).toArrow()
    assert made.num_rows and made.to_pylist() == expected.to_pylist()
    read = table.select(["s", "i32"])  # what nobody asks for is not there
    assert pa.Table.from_batches(found.of(read.to_batches())).column_names == ["t", "n"]


ONLY_SPARK: dict[str, Callable[[DataFrame], DataFrame]] = {
    "arithmetic": lambda df: df.where("i32 % 7 <> 3"),
    "a cast": lambda df: df.where("cast(s as int) > 3"),
    "a function": lambda df: df.where("upper(s) = 'A'"),
    "a pattern": lambda df: df.where("s like 'a_b'"),
    "two doubles": lambda df: df.where("f64 = f64 or f32 < f64"),
    "two that may be null": lambda df: df.where("t <=> at"),
    "not a number": lambda df: df.where("f64 = double('NaN')"),
    "null among others": lambda df: df.where("i32 in (1, null)"),
    "doubles among others": lambda df: df.where("f64 in (1.0D, 2.0D)"),
    "decimals": lambda df: df.where("d > 0.5"),
    "bytes": lambda df: df.where("bin = X'00'"),
    "a new column": lambda df: df.withColumn("one", F.lit(1)),
    "several rows": lambda df: df.withColumn("i32", F.explode(F.array("i32", "i32"))),
    "other rows": lambda df: df.mapInArrow(lambda batches: batches, df.schema),
    "both": lambda df: df.union(df),
    "bytes among others": lambda df: df.where(F.col("bin").isin([bytes([at]) for at in range(20)])),
    "a part of a character": lambda df: df.where("startswith(s, cast(X'C3' as string))"),
    "no text at all": lambda df: df.where("s = cast(X'FF' as string)"),
    "other collation": lambda df: df.where("s collate UNICODE_CI = 'a'"),
}


@pytest.mark.parametrize("transform", ONLY_SPARK.values(), ids=ONLY_SPARK)
def test_what_is_more_than_choosing_is_sparks(spark: Any, topic: Any, transform: Callable[..., DataFrame]) -> None:
    assert sieve(spark, topic, transform) is None


def counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Partial rows may come in more parts, or fewer."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows.to_pylist():
        names = ("word", "_pane", "_dropped", "_late", "i32", "_progress")
        found[tuple(str(row.get(name)) for name in names)] += row.get("n", 1)
    return found


def test_flows_whose_transforms_only_choose_run_no_job(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sources of their own transforms, several steps, into views and topics; the same for large batches that
    workers read."""
    with hr.App("sifted", home=tmp_path, spark=spark) as app:
        rng = random.Random(SEED)
        for name in ("one", "two"):
            app.topic(name, SCHEMA, event_time="at", partitions=2, durability="os").append(odd_rows(rng, 300))
        some = app.stream("one").transform(lambda df: df.where("i32 >= 0").withColumnRenamed("s", "word"))
        others = app.stream("two").transform(lambda df: df.withColumnRenamed("s", "word"))
        both = some.union(others).transform(lambda df: df.where("word <> 'z'").drop("bin"))
        both.window(hr.tumbling("10 seconds"), grace="1 minute", idle="1 day").group_by("word").agg(
            n=hr.count(), most=hr.max("i64"), first=hr.first("t")
        ).to_view("windowed")
        few = both.transform(lambda df: df.select("word", "i32", *hr.META))
        few.to_topic("few", durability="os")
        app.running.check()
        assert not (tmp_path / "views.db").exists()  # it makes nothing
        assert all(app.running.query(flow).compiled.arrow is not None for flow in app.flows.values())
        by_workers = {name: app.running.query(app.flows[name]) for name in ("windowed", "few")}
        planned = {
            name: [ranges.Range(at, 0, app.log.topic(name).offsets()[at].next) for at in (0, 1)]
            for name in ("one", "two")
        }
        here = {name: query.rows(planned) for name, query in by_workers.items()}
        for tasks_from in 10**9, 0:  # one task, and several
            for name, query in by_workers.items():
                query.driver_rows, query.one_task_rows = 0, tasks_from
                theirs = query.rows(planned)
                assert theirs.num_rows and counted(theirs) == counted(here[name])
                query.driver_rows = 10_000
        monkeypatch.setattr(queries.FlowQuery, "_query", None)  # nobody asks for one
        app.drain(batch_rows=70)
        monkeypatch.undo()
        assert app.audit().ok
        expected = [
            (row.value["s"], row.value["i32"])
            for name in ("one", "two")
            for row in app.log.topic(name).records()
            if row.value["s"] not in ("z", None)
            and (name == "two" or (row.value["i32"] is not None and row.value["i32"] >= 0))
        ]
        assert sorted(map(repr, expected)) == sorted(
            repr((row.value["word"], row.value["i32"])) for row in app.log.topic("few").records()
        )


def test_a_condition_that_another_implies_has_its_columns(spark: Any, tmp_path: Path) -> None:
    """Of the two together, Spark sees that the second asks for nothing more, and reads no `n`."""
    with hr.App("implied", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "kind string, n int")
        topic.append([{"kind": "a", "n": 1}, {"kind": "b", "n": 9}])
        some = app.stream(topic).transform(lambda df: df.where("kind = 'a'").withColumnRenamed("n", "m"))
        some = some.transform(lambda df: df.where("kind = 'a' or m > 5"))
        some.group_by("kind").agg(records=hr.count()).to_view("v")
        assert app.running.query(app.flows["v"]).compiled.arrow is not None
        app.drain()
        assert app.view("v").to_arrow().select(["kind", "records"]).to_pylist() == [{"kind": "a", "records": 1}]


def test_what_is_united_of_different_types_is_chosen_by_spark(spark: Any, tmp_path: Path) -> None:
    """-0.0 is 0 among doubles, which the numbers become together; to Arrow it is none of 0 and 1."""
    with hr.App("united", home=tmp_path, spark=spark) as app:
        doubles, whole = app.topic("doubles", "n double"), app.topic("whole", "n int")
        doubles.append([{"n": -0.0}, {"n": 3.0}])
        whole.append([{"n": 0}, {"n": 3}])
        some = app.stream(doubles).union(app.stream(whole)).transform(lambda df: df.where("n in (0, 1)"))
        some.agg(records=hr.count()).to_view("v")
        app.drain()
        assert app.view("v").to_arrow()["records"].to_pylist() == [2]


def test_odd_values_are_odd() -> None:
    assert set(LITERALS) < {*ODD}
