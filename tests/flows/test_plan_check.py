"""Transforms that may run in a flow, and those that are refused, each by the name of what is wrong with it."""

from __future__ import annotations

import cProfile
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, StringType, StructType

import headrace as hr
from headrace.flows.compiler.plan_check import Checked, check_transform

SCHEMA = (
    StructType()
    .add("user", "string")
    .add("page", "string")
    .add("ms", "integer")
    .add("price", "double")
    .add("tags", ArrayType(StringType()))
    .add("at", "timestamp")
    .add("rand", "integer")
)
META_FIELDS = (
    StructType()
    .add("_partition", "integer", nullable=False)
    .add("_offset", "long", nullable=False)
    .add("_arrived_at", "timestamp", nullable=False)
    .add("_progress", "timestamp")
).fields
SCHEMA = StructType(SCHEMA.fields + META_FIELDS)
Fn = Callable[[DataFrame], Any]


@pytest.fixture(autouse=True, scope="module")
def small_jobs(spark: SparkSession) -> Iterator[None]:
    """Hundreds of jobs over a few rows: compiling them would take longer than running them."""
    hasty = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for key, value in (hasty | {"spark.sql.adaptive.enabled": "false"}).items():
        spark.conf.set(key, value)
    yield
    for key in (*hasty, "spark.sql.adaptive.enabled"):
        spark.conf.unset(key)


def check(spark: SparkSession, fn: Fn, **options: Any) -> Checked:
    return check_transform(spark, fn, SCHEMA, flow="views", step="transform 1", **options)


def static(df: DataFrame) -> DataFrame:
    return df.sparkSession.createDataFrame([("u1", "DE"), ("u2", "FR")], "user string, country string")


# -- the table -------------------------------------------------------------------------------------

upper = F.udf(lambda s: s and s.upper(), StringType())
chancy = F.udf(lambda s: s, StringType()).asNondeterministic()


@F.pandas_udf(StringType())
def shout(s: pd.Series) -> pd.Series:
    return s + "!"


@F.udf(DoubleType())
def dice(_: int) -> float:  # not marked as what it is
    return random.random()


def rand(n: int) -> int:  # a UDF of the user's, named as a function of Spark's
    return n


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        yield batch


def first_of_slice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 1)


def numbered(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(ms=range(len(frame)))


def moved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        at = batch.schema.get_field_index("_offset")
        yield batch.set_column(at, batch.schema.field(at), pa.array([o + 1 for o in batch.column(at).to_pylist()]))


def sql(text: str) -> Fn:
    return lambda df: df.sparkSession.sql(text, batch=df)


def stream(df: DataFrame) -> DataFrame:
    return df.join(df.sparkSession.readStream.format("rate").load(), F.col("ms") == F.col("value"))


def with_n(df: DataFrame) -> DataFrame:
    return df.withColumn("n", F.lit(df.count()))


def by_user() -> WindowSpec:
    return Window.partitionBy("user").orderBy("at")


STATIC = "a result that does not come from the batch"
CHANGING = "a plan that differs from call to call"

PASSES: list[tuple[str, Fn]] = [
    ("itself", lambda df: df),
    ("filter", lambda df: df.where("page <> '/health'")),
    ("filter and project", lambda df: df.where(F.col("ms") > 5).select("user", *hr.META)),
    ("withColumn", lambda df: df.withColumn("s", F.col("price") * 2)),
    ("withColumns", lambda df: df.withColumns({"s": F.length("page"), "t": F.upper("user")})),
    ("rename", lambda df: df.withColumnRenamed("user", "who")),
    ("drop", lambda df: df.drop("tags")),
    ("toDF", lambda df: df.toDF(*df.columns)),
    ("fillna, dropna", lambda df: df.fillna({"page": "?"}).dropna(subset=["user"])),
    ("explode", lambda df: df.withColumn("tag", F.explode("tags"))),
    ("explode_outer and select", lambda df: df.select("*", F.posexplode_outer("tags"))),
    ("unpivot", lambda df: df.unpivot([*hr.META], [F.col("ms").cast("double"), "price"], "what", "value")),
    ("a time bucket", lambda df: df.withColumn("w", F.window("at", "1 minute"))),
    ("sliding buckets", lambda df: df.withColumn("w", F.window("at", "1 minute", "20 seconds"))),
    ("python udf", lambda df: df.withColumn("u", upper("user"))),
    ("python udf as filter", lambda df: df.where(upper("user") == "A")),
    ("pandas udf", lambda df: df.withColumn("u", shout("user"))),
    ("mapInArrow, row by row", lambda df: df.mapInArrow(doubled, df.schema)),
    ("mapInPandas, row by row", lambda df: df.mapInPandas(lambda frames: (f[f.ms > 0] for f in frames), df.schema)),
    ("join static", lambda df: df.join(static(df), "user")),
    ("left join static", lambda df: df.join(static(df), "user", "left")),
    ("right join from static", lambda df: static(df).join(df, "user", "right")),
    ("broadcast join", lambda df: df.join(F.broadcast(static(df)), "user")),
    ("semi join", lambda df: df.join(static(df), "user", "left_semi")),
    ("anti join", lambda df: df.join(static(df), "user", "left_anti")),
    ("cross join static", lambda df: df.crossJoin(static(df).select("country"))),
    ("join a static aggregate", lambda df: df.join(static(df).groupBy("user").count(), "user")),
    ("union of two selections", lambda df: df.where("ms > 3").union(df.where("ms > 5"))),
    ("repartition", lambda df: df.repartition(4)),
    ("repartition by", lambda df: df.repartition("user").coalesce(1)),
    ("sql", sql("select *, upper(user) as u from {batch} where ms > 0")),
    ("sql with a cte", sql("with b as (select * from {batch}) select * from b where ms > 0")),
    ("sql lateral view", sql("select * from {batch} lateral view explode(tags) t as tag")),
    ("sql in a static list", sql("select * from {batch} where ms in (select id from range(5))")),
    ("sql scalar of a static table", sql("select *, (select max(id) from range(5)) as top from {batch}")),
    ("now, from the log", lambda df: df.withColumn("age", F.col("_arrived_at") - F.col("at"))),
    ("metadata there and back", lambda df: df.withColumnRenamed("_offset", "o").withColumnRenamed("o", "_offset")),
    # words that look like forbidden functions
    ("a column named rand", lambda df: df.where(F.col("rand") > 1).withColumn("x", F.col("rand") + 1)),
    ("an alias named rand", lambda df: df.withColumn("uuid", F.col("rand").alias("now"))),
    ("a column named rand(5)", lambda df: df.withColumn("rand(5)", F.col("ms")).where(F.col("`rand(5)`") > 2)),
    ("a literal rand", lambda df: df.withColumn("x", F.lit("rand")).where(F.col("page") != "now")),
    ("a literal rand(5)", lambda df: df.withColumn("x", F.lit("rand(5)"))),
    ("a literal now()", lambda df: df.withColumn("x", F.concat(F.lit("current_timestamp() "), "page"))),
    ("a udf named rand", lambda df: df.withColumn("x", F.udf(rand, "int")("ms"))),
    ("a literal with a line break", lambda df: df.withColumn("x", F.lit("a\n+- Aggregate [b#1]\n== Physical ="))),
    ("a literal with brackets", lambda df: df.withColumn("x", F.lit("(], AS _offset#1")).withColumn("y", F.lit("[("))),
    ("a word in a text", lambda df: df.where(F.col("page").isin("today", "now", "yesterday"))),
]

REFUSED: list[tuple[str, Fn, str]] = [
    ("count", lambda df: df.groupBy("user").count(), "Aggregate"),
    ("cache", lambda df: df.cache(), "cache"),
    ("persist below a filter", lambda df: df.where("ms > 0").persist().where("ms > 1"), "cache"),
    ("agg, metadata kept", lambda df: df.groupBy(*hr.META).agg(F.max("ms")), "Aggregate"),
    ("sql group by", sql("select user, count(*) from {batch} group by user"), "Aggregate"),
    ("rollup", lambda df: df.rollup("user").count(), "Aggregate"),
    ("pivot", lambda df: df.groupBy(*hr.META).pivot("page", ["a", "b"]).count(), "Aggregate"),
    ("then sort", lambda df: df.groupBy("user").count().orderBy("count"), "Aggregate"),
    ("window function", lambda df: df.withColumn("n", F.row_number().over(by_user())), "Window"),
    ("lag", lambda df: df.withColumn("n", F.lag("ms").over(by_user())), "Window"),
    ("sort", lambda df: df.orderBy("at"), "Sort"),
    ("sortWithinPartitions", lambda df: df.sortWithinPartitions("at"), "Sort"),
    ("distinct", lambda df: df.distinct(), "Deduplicate"),
    ("sql distinct", sql("select distinct * from {batch}"), "Distinct"),
    ("dropDuplicates", lambda df: df.dropDuplicates(["user"]), "Deduplicate"),
    ("limit", lambda df: df.limit(5), "LocalLimit"),
    ("offset", lambda df: df.offset(5), "Offset"),
    ("sample", lambda df: df.sample(0.5, seed=1), "Sample"),
    ("sample without seed", lambda df: df.sample(0.5), "Sample"),
    ("randomSplit", lambda df: df.randomSplit([0.5, 0.5], seed=1)[0], "Sort"),
    ("intersect", lambda df: df.intersect(df.where("ms > 1")), "Intersect"),
    ("subtract", lambda df: df.subtract(df.where("ms > 1")), "Except"),
    ("exceptAll", lambda df: df.exceptAll(df.where("ms > 1")), "Except"),
    ("self join", lambda df: df.join(df.select("user", F.col("ms").alias("other")), "user"), "Join"),
    ("sql self join", sql("with b as (select * from {batch}) select a.* from b a join b using (user)"), "Join"),
    ("full join", lambda df: df.join(static(df), "user", "full"), "Join FullOuter"),
    ("right join", lambda df: df.join(static(df), "user", "right"), "Join RightOuter"),
    ("static semi join batch", lambda df: static(df).join(df, "user", "left_semi"), "Join LeftSemi"),
    ("union with static", lambda df: df.union(df.sparkSession.createDataFrame([], df.schema)), "Union"),
    ("subquery", sql("select * from {batch} where ms = (select max(ms) from {batch})"), "a subquery over the batch"),
    ("in itself", sql("select * from {batch} where ms in (select rand from {batch})"), "a subquery over the batch"),
    ("applyInPandas", lambda df: df.groupBy("user").applyInPandas(lambda f: f, df.schema), "FlatMapGroupsInPandas"),
    ("something static", lambda df: df.sparkSession.range(3), STATIC),
    ("collected", lambda df: df.sparkSession.createDataFrame(df.collect(), df.schema), "collect()"),
    ("stream", stream, "readStream"),
    ("current_timestamp", lambda df: df.withColumn("x", F.current_timestamp()), "current_timestamp()"),
    ("now under its own name", lambda df: df.select("*", F.now()), "now()"),
    ("now in a filter", lambda df: df.where(F.col("at") < F.now()), "now()"),
    ("localtimestamp", lambda df: df.withColumn("x", F.localtimestamp()), "localtimestamp()"),
    ("current_date", lambda df: df.where(F.to_date("at") == F.current_date()), "current_date()"),
    ("unix_timestamp", lambda df: df.withColumn("x", F.unix_timestamp()), "current_timestamp()"),
    ("sql now", sql("select *, now() as x from {batch}"), "now()"),
    ("cast now", lambda df: df.where(F.col("at") < F.lit("now").cast("timestamp")), "cast('now' as timestamp)"),
    ("current_user", lambda df: df.where(F.col("user") == F.current_user()), "current_user()"),
    ("rand", lambda df: df.where(F.rand(5) < 0.5), "rand()"),
    ("randn", lambda df: df.withColumn("x", F.randn(5)), "randn()"),
    ("rand beside a literal", lambda df: df.withColumn("x", F.lit("rand(5)")).where(F.rand(5) < 0.5), "rand()"),
    ("rand in a static table", lambda df: df.join(static(df).withColumn("r", F.rand(3)), "user"), "rand()"),
    ("rand below a map", lambda df: df.withColumn("ms", (F.rand(3) * 9).cast("int")).mapInArrow(doubled, df.schema),
     "rand()"),
    ("uuid", lambda df: df.withColumn("x", F.expr("uuid()")), "uuid()"),
    ("shuffle", lambda df: df.withColumn("tags", F.shuffle("tags", F.lit(3))), "shuffle()"),
    ("rand without seed", lambda df: df.withColumn("x", F.rand()), "rand()"),
    ("monotonic id", lambda df: df.withColumn("x", F.monotonically_increasing_id()), "monotonically_increasing_id()"),
    ("partition id", lambda df: df.withColumn("x", F.spark_partition_id()), "spark_partition_id()"),
    ("file name", lambda df: df.withColumn("x", F.input_file_name()), "input_file_name()"),
    ("nondeterministic udf", lambda df: df.withColumn("x", chancy("user")), "nondeterministic UDF <lambda>"),
    ("nondeterministic udf filter", lambda df: df.where(chancy("user") == "a"), "nondeterministic UDF <lambda>"),
    ("python's clock", lambda df: df.withColumn("x", F.lit(datetime.now(UTC))), CHANGING),
    ("python's chance", lambda df: df.where(F.lit(random.random()) < 0.5), CHANGING),
    ("all columns dropped", lambda df: df.select(), "select"),
    ("metadata dropped", lambda df: df.select("user", "page"), "select"),
    ("some metadata dropped", lambda df: df.drop("_progress"), "select"),
    ("offset computed", lambda df: df.withColumn("_offset", F.col("_offset") + 1), "column '_offset'"),
    ("arrival replaced", lambda df: df.withColumn("_arrived_at", F.col("at")), "column '_arrived_at'"),
    ("offset of another type", lambda df: df.withColumn("_offset", F.col("_offset").cast("int")), "column '_offset'"),
    ("offset moved in a map", lambda df: df.mapInArrow(moved, df.schema), "column '_offset'"),
    ("swapped in a union", lambda df: df.union(df.withColumn("_progress", F.col("at"))), "column '_progress'"),
    ("a name twice", lambda df: df.withColumn("x", F.lit(1)).select("*", F.lit(2).alias("X")), "column 'x'"),
    ("first of each slice", lambda df: df.mapInArrow(first_of_slice, df.schema), "mapInArrow"),
    ("numbered in each slice", lambda df: df.mapInPandas(numbered, df.schema), "mapInPandas"),
    ("chance in a udf", lambda df: df.withColumn("x", dice("ms")), "a UDF"),
    ("the size of the batch", with_n, "count()"),
    ("a look into the batch", lambda df: df if df.isEmpty() else df.where("ms > 1"), "isEmpty()"),
    ("the largest, collected", lambda df: df.where(F.col("ms") < df.agg(F.max("ms")).first()[0]), "first()"),
    ("written elsewhere", lambda df: df.write.format("noop").mode("append").save() or df, "write"),
    ("its partitions", lambda df: df.coalesce(df.rdd.getNumPartitions()), "rdd"),
    ("nothing", lambda _: None, "its return value"),
    ("a number", lambda df: df.count(), "its return value"),
]  # fmt: skip


@pytest.mark.parametrize("fn", [fn for _, fn in PASSES], ids=[name for name, _ in PASSES])
def test_what_is_row_local_passes(spark: SparkSession, fn: Fn) -> None:
    assert set(hr.META) <= set(check(spark, fn).schema.names)


@pytest.mark.parametrize(("fn", "operator"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_not_is_refused_by_name(spark: SparkSession, fn: Fn, operator: str) -> None:
    with pytest.raises(hr.TransformRefused) as error:
        check(spark, fn)
    assert error.value.operator == operator
    assert (error.value.flow, error.value.step) == ("views", "transform 1")
    assert error.value.why and error.value.instead
    assert operator in str(error.value)


# -- errors of the user's own ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "column", "near"),
    [
        (lambda df: df.where(F.col("pgae") == "/"), "pgae", "page"),
        (lambda df: df.where("pgae = '/'"), "pgae", "page"),
        (lambda df: df.select("usr", *hr.META), "usr", "user"),
        (lambda df: df.where(df.pagee == "/"), "pagee", "page"),
        (lambda df: df.join(static(df), "usre"), "usre", "user"),
    ],
)
def test_an_unknown_column_is_named_with_the_nearest(spark: SparkSession, fn: Fn, column: str, near: str) -> None:
    with pytest.raises(hr.UnknownColumn) as error:
        check(spark, fn)
    assert (error.value.flow, error.value.column) == ("views", column)
    assert f"Did you mean {near!r}?" in str(error.value)


def test_of_an_unknown_column_all_columns_at_its_place_are_named(spark: SparkSession) -> None:
    with pytest.raises(hr.UnknownColumn) as error:
        check(spark, lambda df: df.drop("ms").where("pgae = '/'"))
    known = error.value.known
    assert len(known) > 5  # Spark proposes five
    assert {"user", "page", *hr.META} <= set(known) and "ms" not in known


def test_other_errors_stay_what_they_are_and_say_where(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as error:
        check(spark, lambda df: df.where("ms + "))
    assert error.value.__notes__ == ["in transform 1 of flow 'views'"]
    with pytest.raises(ZeroDivisionError) as divided:
        check(spark, lambda _: 1 // 0)
    assert divided.value.__notes__ == ["in transform 1 of flow 'views'"]
    with pytest.raises(AttributeError, match="whree"):
        check(spark, lambda df: df.whree("ms > 1"))


# -- what comes back -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "needed", "read"),
    [
        (lambda df: df, None, set(SCHEMA.names)),
        (lambda df: df, ["user"], {"user"}),
        (lambda df: df.where("ms > 1"), ["user"], {"user", "ms"}),
        (lambda df: df.withColumn("x", F.upper("page")), ["ms"], {"ms"}),
        (lambda df: df.withColumn("x", F.upper("page")), ["x"], {"page"}),
        (lambda df: df.select(F.explode("tags").alias("tag"), *hr.META), None, {"tags"}),
        (lambda df: df.join(static(df), "user"), ["country"], {"user"}),
        (lambda df: df.where("ms > 1").union(df.where("price > 1")), ["page"], {"ms", "price", "page"}),
        (lambda df: df.withColumn("u", upper("user")), ["u"], {"user"}),
        (lambda df: df.withColumn("u", upper("user")), ["ms"], {"ms"}),
        (lambda df: df.mapInArrow(doubled, df.schema), ["ms"], set(SCHEMA.names)),
    ],
)
def test_columns_needed(spark: SparkSession, fn: Fn, needed: list[str] | None, read: set[str]) -> None:
    assert check(spark, fn, needed=needed).columns_needed == read | set(hr.META)


def test_the_schema_and_the_plan_come_back(spark: SparkSession) -> None:
    checked = check(spark, lambda df: df.select("user", F.length("page").alias("n"), *hr.META))
    assert checked.schema.names == ["user", "n", *hr.META]
    assert checked.plan.startswith("Project [user#") and "MapInArrow" in checked.plan
    assert checked.sample_skipped is None and checked.notes == ()


def test_wide_plans_are_read_whole_and_settings_put_back(spark: SparkSession) -> None:
    wide = StructType.fromDDL(", ".join(f"c{n} int" for n in range(200)))
    wide = StructType(wide.fields + META_FIELDS)
    key = "spark.sql.debug.maxToStringFields"
    spark.conf.set(key, "3")
    try:
        checked = check_transform(spark, lambda df: df.where("c150 > 1"), wide, flow="f", step="s", needed=["c199"])
        assert checked.columns_needed == {"c150", "c199", *hr.META}
        assert spark.conf.get(key) == "3"
    finally:
        spark.conf.unset(key)
    check(spark, lambda df: df)
    assert spark.conf.get(key, None) is None


def test_nothing_is_printed(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    check(spark, lambda df: df.where("ms > 1"))
    assert capfd.readouterr().out == ""


# -- the trial on rows -----------------------------------------------------------------------------


def rows(n: int, **columns: Any) -> pa.Table:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    times = [begin + timedelta(seconds=i) for i in range(n)]
    table = {
        "user": [f"u{i % 3}" for i in range(n)],
        "page": ["/"] * n,
        "ms": list(range(n)),
        "price": [1.5] * n,
        "tags": [["a"]] * n,
        "at": times,
        "rand": [1] * n,
        "_partition": [0] * n,
        "_offset": list(range(n)),
        "_arrived_at": times,
        "_progress": [None, *times[1:]],
    } | columns
    utc = pa.timestamp("us", "UTC")
    kinds = {"ms": pa.int32(), "rand": pa.int32(), "_partition": pa.int32(), "at": utc, "_arrived_at": utc}
    return pa.table(
        {name: pa.array(v, kinds.get(name, utc if name == "_progress" else None)) for name, v in table.items()}
    )


def test_a_function_that_fails_on_made_up_edges_is_tried_on_plain_rows(spark: SparkSession) -> None:
    checked = check(spark, lambda df: df.withColumn("n", F.col("page").cast("int")))  # ANSI: 'a' is no number
    assert checked.sample_skipped is None


def test_a_function_that_fails_on_every_row_is_not_refused(spark: SparkSession) -> None:
    parse = F.udf(lambda s: {"/": 1}[s], "int")
    checked = check(spark, lambda df: df.withColumn("n", parse("page")))
    assert checked.sample_skipped and "KeyError" in checked.sample_skipped
    assert check(spark, lambda df: df.withColumn("n", parse("page")), sample=rows(9)).sample_skipped is None
    bad = rows(9, page=["?"] * 9)
    assert check(spark, lambda df: df.withColumn("n", parse("page")), sample=bad).sample_skipped


def test_real_rows_show_what_made_up_ones_do_not(spark: SparkSession) -> None:
    def only_on_home(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1) if set(batch.column("page").to_pylist()) == {"/"} else batch

    def fn(df: DataFrame) -> DataFrame:
        return df.mapInArrow(only_on_home, df.schema)

    assert check(spark, fn, sample=rows(9, page=list("abcdefghi"))).sample_skipped is None
    with pytest.raises(hr.TransformRefused, match=r"where a batch is cut.*partition 0, offset"):
        check(spark, fn, sample=rows(9))


def test_a_sample_without_a_column_is_refused(spark: SparkSession) -> None:
    with pytest.raises(hr.InvalidArgument, match="has no column 'page'"):
        check(spark, lambda df: df, sample=rows(3).drop_columns(["page"]))


def test_state_kept_between_calls_is_found(spark: SparkSession) -> None:
    count = itertools.count()

    def fn(df: DataFrame) -> DataFrame:
        return df.withColumn("n", F.lit(next(count)))

    with pytest.raises(hr.TransformRefused, match="differs from call to call"):
        check(spark, fn)


def test_an_action_on_a_static_table_is_allowed(spark: SparkSession) -> None:
    checked = check(spark, lambda df: df.where(F.col("user").isin([row.user for row in static(df).collect()])))
    assert checked.notes == () and "Filter" in checked.plan


def test_what_has_no_effect_is_noted(spark: SparkSession) -> None:
    (note,) = check(spark, lambda df: df.withWatermark("at", "1 minute")).notes
    assert note.startswith("withWatermark() has no effect in a flow")


def test_it_works_on_any_type_a_topic_has(spark: SparkSession) -> None:
    schema = StructType.fromDDL(
        "a boolean, b tinyint, c smallint, d bigint, e float, f binary, g date, h timestamp_ntz, i decimal(38, 10), "
        "j struct<x: int, y: array<string>>, k map<string, bigint>, l array<struct<z: date>>, m decimal(2, 2)"
    )
    schema = StructType(schema.fields + META_FIELDS)
    checked = check_transform(spark, lambda df: df.where("d is not null"), schema, flow="f", step="s")
    assert checked.sample_skipped is None


def test_a_program_that_is_measured_is_checked_and_measured_on(spark: SparkSession) -> None:
    profile = cProfile.Profile()
    profile.enable()
    try:
        check(spark, lambda df: df.where("user <> ''"))
        assert sys.getprofile() is profile
    finally:
        profile.disable()
