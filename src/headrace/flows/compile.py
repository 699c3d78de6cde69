"""From a flow as it was written to what a store keeps: types found out, names checked. Owns the questions to Spark's
analyser; runs no job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from headrace.aggregates import Aggregate
from headrace.errors import InvalidArgument, nearest
from headrace.flows import ranges
from headrace.flows.flow import Flow
from headrace.flows.partials import partial_rows
from headrace.log.contract import META
from headrace.views.contract import TAIL, WINDOW, Column, FlowSpec, Result, SlotColumn, ViewSpec, change_columns
from headrace.views.values import arrow_type, declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compiled(flow: Flow, app: str, spark: SparkSession) -> FlowSpec:
    """What the flow is, for its store; or the error that says what cannot be."""
    df = empty(flow, spark)
    spec = FlowSpec(
        name=flow.name,
        app=app,
        sources=tuple(topic.name for topic in flow.topics),
        view=None,
        window=str(flow.window) if flow.window else "",
        aggregates={name: str(each) for name, each in (flow.aggregates or {}).items()},
        grace_us=flow.grace_us,
        within_us=flow.late.within_us,
        time=flow.time,
        target=flow.target,
        emit=flow.emit,
    )
    if flow.aggregates is None:
        return spec
    return replace(spec, view=_view(flow, df))


def empty(flow: Flow, spark: SparkSession) -> DataFrame:
    """No records, as they look behind the transforms."""
    out: DataFrame | None = None
    for source in flow.sources:
        df = spark.createDataFrame([], ranges.spark_schema(source.topic))
        for transform in source.transforms:
            df = transform(df)
        out = df if out is None else out.unionByName(df)
    assert out is not None
    for transform in flow.transforms:
        out = transform(out)
    return out


def time_column(flow: Flow) -> str | None:
    """The column with the records' event time: the one asked for, or the topics' own."""
    if flow.time is not None:
        return flow.time
    names = {source.topic.settings.event_time for source in flow.sources}
    if len(names) > 1:
        raise InvalidArgument(
            "time",
            None,
            f"flow {flow.name!r}: its topics have different event times {sorted(map(str, names))}: say which",
        )
    return names.pop()


def _view(flow: Flow, df: DataFrame) -> ViewSpec:
    assert flow.aggregates is not None
    time = time_column(flow)
    known = df.columns
    for name in (*flow.groups, *([time] if flow.window and time else ())):
        if name not in known:
            raise InvalidArgument("group_by", name, f"flow {flow.name!r} has no such column.{nearest(name, known)}")
    taken = {*WINDOW, *TAIL, *flow.groups}
    for name in flow.aggregates:
        if name in taken or name.startswith("_") or "__" in name:
            raise InvalidArgument(
                "agg",
                name,
                f"flow {flow.name!r}: a result cannot have this name; window, group and '_' names are taken",
            )
    column = None if time is None else F.col(f"`{time}`")
    schema = partial_rows(flow, df, column, F.col("_progress")).schema
    groups = tuple(Column(name, _ddl(schema[name].dataType, name)) for name in flow.groups)
    slots: list[SlotColumn] = []
    results: list[Result] = []
    for name, aggregate in flow.aggregates.items():
        made = _slots(name, aggregate, schema)
        slots += made
        if aggregate.kind == "avg":
            results.append(Result(name, "double", tuple(slot.name for slot in made)))
        else:
            own = next(slot for slot in made if slot.name == name)
            results.append(Result(name, "bigint" if own.rule == "distinct" else own.type, (name,)))
    size = (flow.window.size_us, flow.window.every_us) if flow.window else None
    return ViewSpec(flow.name, groups, tuple(slots), tuple(results), size, flow.keep_us, flow.target is None)


def _slots(name: str, aggregate: Aggregate, schema: StructType) -> list[SlotColumn]:
    """The aggregate's slots with the types Spark gives them."""
    types: dict[str, str]
    match aggregate.kind:
        case "first" | "last":
            struct = schema[name].dataType
            assert isinstance(struct, StructType)
            types = {name: _ddl(struct["value"].dataType, name), f"{name}__at": "timestamp"}
            types |= {f"{name}__partition": "int", f"{name}__offset": "bigint"}
        case "count_distinct":
            array = schema[name].dataType
            assert isinstance(array, ArrayType)
            types = {name: _ddl(array.elementType, name)}
        case "sum" if aggregate.exact:
            types = {name: "double", f"{name}__exact": "string"}
        case _:
            types = {slot.name: _ddl(schema[slot.name].dataType, name) for slot in aggregate.slots(name)}
    return [SlotColumn(slot.name, types[slot.name], slot.rule, slot.of) for slot in aggregate.slots(name)]


def _ddl(kind: DataType, name: str) -> str:
    text = kind.simpleString()
    declared(arrow_type(text), column=name)  # what a view cannot hold is said now
    return text


def target_schema(flow: Flow, app: str, spark: SparkSession) -> tuple[pa.Schema, dict[str, Any]]:
    """The columns of the topic a flow writes to, and the settings that follow from the flow: results are keyed by their
    group and have their window's start as event time; records keep the key and the event time they had."""
    from headrace.schema import parse_ddl, schema_from

    spec = compiled(flow, app, spark)
    if spec.view is None:
        schema = schema_from(empty(flow, spark).drop(*META).schema)
        settings = flow.sources[0].topic.settings
        implied: dict[str, Any] = {"event_time": time_column(flow), "key": settings.key}
    else:
        schema = parse_ddl(", ".join(f"{column.name} {column.type}" for column in change_columns(spec.view)))
        if flow.after:
            schema = schema_from(
                shaped(flow, spark.createDataFrame([], _change_type(spec.view))).drop("_progress").schema
            )
        implied = {"event_time": "window_start" if flow.window else None, "key": flow.groups or None}
    implied = {
        name: value
        for name, value in implied.items()
        if value and all(each in schema.names for each in ((value,) if isinstance(value, str) else value))
    }
    return schema, implied


def _change_type(view: ViewSpec) -> StructType:
    columns = ", ".join(f"`{column.name}` {column.type}" for column in change_columns(view))
    return ranges.struct(f"{columns}, _progress timestamp")


def shaped(flow: Flow, df: DataFrame) -> DataFrame:
    """Result rows behind the transforms that follow the aggregation."""
    for transform in flow.after:
        df = transform(df)
    return df
