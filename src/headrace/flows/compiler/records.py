"""Records behind a flow's transforms: their columns, as Spark's analyser says, which of them is their time, and how
they are judged by it. Runs no job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from headrace.errors import InvalidArgument
from headrace.flows.flow import ARRIVED, Flow, through
from headrace.flows.reading import ranges
from headrace.kernels.judge import SOURCE, Judge
from headrace.schema import schema_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def no_records(flow: Flow, spark: SparkSession) -> DataFrame:
    """No records, as they look behind the transforms."""
    out: DataFrame | None = None
    for read in flow.inputs:
        df = through(read.transforms, spark.createDataFrame([], ranges.spark_schema(read.topic)))
        if flow.tells_topic:
            df = df.withColumn(SOURCE, F.lit(0))
        out = df if out is None else out.unionByName(df)
    assert out is not None
    return through(flow.transforms, out)


def time_column(flow: Flow) -> str | None:
    """The column with the records' event time: the one asked for, or the topics' own."""
    if flow.time is not None:
        return flow.time
    names = {read.topic.settings.event_time for read in flow.inputs}
    if len(names) > 1:
        if flow.window is None and not any(each.algebra.ordered for each in (flow.aggregates or {}).values()):
            return None  # nobody asks
        raise InvalidArgument(
            "time",
            None,
            f"flow {flow.name!r}: its topics have different event times {sorted(map(str, names))}: name a column that "
            "all have with window(…, time=…)",
        )
    return names.pop()


def time_folded(flow: Flow) -> str | None:
    return None if flow.aggregates is None else time_column(flow)


def in_arrow(schema: StructType) -> pa.Schema:
    """Partial rows' columns, whose names no topic may use."""
    plain = StructType([StructField(f"c{number}", field.dataType) for number, field in enumerate(schema)])
    return pa.schema(list(zip(schema.names, schema_from(plain).types if len(schema) else [], strict=True)))


def judge_of(flow: Flow, time: str) -> Judge:
    """Who says how late the flow's records are, by the column `time`. By arrival nothing is late: what came before a
    record arrived no later."""
    assert flow.window is not None
    progress = (ARRIVED if flow.by_arrival else "_progress") if flow.judged else None
    return Judge(flow.window, flow.grace_us, flow.late.within_us, time, progress)
