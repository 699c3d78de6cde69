"""A flow in which records of several inputs meet: its operator, and what a store keeps of it. Owns what is refused
because the inputs do not fit. Asks Spark's analyser; runs no job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from headrace.errors import InvalidArgument, UnknownColumn
from headrace.flows.compiler.plan_check import unknown_column
from headrace.flows.flow import Flow, Input, event_times, through
from headrace.flows.reading import ranges
from headrace.kernels.judge import SOURCE
from headrace.log.contract import META
from headrace.operators.contract import Operator
from headrace.operators.joins.meetings import Enriching, Joining, Matching, ViewEnriching
from headrace.operators.joins.rows import ROW_ID
from headrace.operators.joins.view_changes import changelog_schema
from headrace.operators.records import OP
from headrace.operators.stored.matching import MatchingRules
from headrace.schema import OP_COLUMN, quoted_name, schema_from, type_ddl
from headrace.views.contract import (
    CHANGE,
    MARK,
    RESULTS,
    TAIL,
    Column,
    FlowSpec,
    ViewSpec,
    fed_in,
    rows_table,
    rows_view,
    wholes_in,
)
from headrace.views.values import arrow_type, check_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OF_ROWS", "meeting_spec", "met", "shaped_columns", "shaped_type"]


def met(flow: Flow, frames: Mapping[str, DataFrame]) -> Flow:
    """The flow with its operator. `frames`: by input, no records, as they look behind the transforms."""
    assert flow.meets is not None
    schemas: dict[str, pa.Schema] = {}
    for each in flow.inputs:
        if each.changes and each.role in flow.meets.first:
            schema = changelog_schema(schema_from(frames[each.id].drop(*META, SOURCE).schema))
        else:
            schema = schema_from(_plain(each, frames[each.id]).schema)
        if schemas.setdefault(each.role, schema) != schema:
            why = f"flow {flow.name!r}: the streams of one side must have the same columns, of the same types"
            raise InvalidArgument("union", each.called, why)
        for name in schema.names:
            if name.lower() in TAKEN and not (name == OP_COLUMN and each.role in flow.meets.first):
                why = f"flow {flow.name!r}: joined rows have their own column of this name. Rename it, in .transform(…)"
                raise InvalidArgument("column", name, why)
    times = event_times(flow)
    if isinstance(flow.meets, Enriching | ViewEnriching):
        _check_enrich(flow.name, flow.meets, schemas["facts"], schemas["table"])
    if isinstance(flow.meets, Joining | Matching | MatchingRules):
        for each in flow.inputs:
            if each.role in flow.meets.first:
                continue
            if times[each.role] is None or times[each.role] not in schemas[each.role].names:
                why = f"flow {flow.name!r}: the records of topic {each.topic.name!r} have no event time: create it with"
                raise InvalidArgument(
                    flow.meets.called, each.called, f"{why} event_time=…, and keep that column in transforms"
                )
    retracts = any(each.changes for each in flow.inputs if each.role not in flow.meets.first)
    operator = flow.meets.over(schemas, times, retracts=retracts)
    if isinstance(flow.meets, Joining) and operator.behind_us(flow.meets.by) is None:
        known = ", ".join(each.name for each in operator.output.columns if operator.behind_us(each.name) is not None)
        why = f"flow {flow.name!r}: behind join(…) windows go by joined_at or by the time of a side. There are: {known}"
        raise InvalidArgument("time", flow.meets.by, why)
    return replace(flow, operator=operator)


def _plain(read: Input, df: DataFrame) -> DataFrame:
    """No records, without headrace's own columns. What tells rows of joined views apart is their id, and no column."""
    plain = df.drop(*META, SOURCE)
    if not read.changes:
        return plain
    plain = plain.drop(*CHANGE, *MARK)
    return plain.drop(ROW_ID.name, *wholes_in(df.columns), *fed_in(df.columns)) if read.rows else plain


TAKEN = {OP, OP_COLUMN, ROW_ID.name, *TAIL}
"""What joined rows have besides the columns of their sides."""


def _check_enrich(flow: str, step: Enriching | ViewEnriching, facts: pa.Schema, table: pa.Schema) -> None:
    """What is looked up, and by what, is there; and nothing that is taken over has a name that is taken."""
    known = list(facts.names)
    for name in (*(mine for mine, _ in step.on), *([] if step.as_of is None else [step.as_of])):
        if name not in known:
            raise UnknownColumn(flow, name, known)
    if step.as_of is not None and facts.field(step.as_of).type != arrow_type("timestamp"):
        kind = type_ddl(facts.field(step.as_of).type)
        why = f"flow {flow!r}: is {kind}, and must be a timestamp: make one in .transform(…)"
        raise InvalidArgument("as_of", step.as_of, why)
    for mine, theirs in step.on:
        if facts.field(mine).type != table.field(theirs).type:
            kinds = type_ddl(facts.field(mine).type), type_ddl(table.field(theirs).type)
            why = f"flow {flow!r}: is {kinds[0]}, and {theirs!r} of table {step.table!r} is {kinds[1]}: cast it, in"
            raise InvalidArgument("on", mine, f"{why} .transform(…)")
    receipt = f"{step.table}_version"
    for name in (*(new for _, new in step.columns), receipt):
        if name.lower() in {each.lower() for each in known}:
            how = "columns={…: 'another name'}" if name != receipt else ".transform(…), where it comes from"
            why = f"flow {flow!r}: the records have a column of this name. Give one of them another: {how}"
            raise InvalidArgument("columns", name, why)
    if step.late.dropped_to is not None:
        raise InvalidArgument("late", str(step.late), "no record of an enrichment is dropped: leave dropped_to= out")


OF_ROWS = (ROW_ID.name, OP)
"""What transforms of joined rows must keep: which row it is, and whether it came or went."""


def shaped_type(operator: Operator) -> StructType:
    """What transforms of joined rows are given."""
    columns = [ROW_ID, Column(OP, "string"), *(operator.output.columns or ())]
    return ranges.struct(", ".join(f"{quoted_name(each.name)} {each.type}" for each in columns))


def shaped_columns(flow: Flow, spark: SparkSession) -> tuple[Column, ...] | None:
    """What they make of these; None if there are none."""
    if not flow.after:
        return None
    assert flow.operator is not None
    given = shaped_type(flow.operator)
    try:
        schema = schema_from(through(flow.after, spark.createDataFrame([], given)).drop(*OF_ROWS).schema)
    except PySparkException as error:
        if unknown := unknown_column(error, flow.name, given.names):
            raise unknown from None
        raise
    return tuple(Column(each.name, type_ddl(each.type)) for each in schema)


def meeting_spec(flow: Flow, app: str, shaped: tuple[Column, ...] | None = None) -> FlowSpec:
    """What a store keeps of the flow. `shaped`: the columns that transforms make of joined rows."""
    operator = flow.operator
    assert operator is not None and flow.meets is not None
    view = None if flow.target is not None else _view(flow, operator, shaped)
    rows = () if view is None or operator.output.table == RESULTS else (rows_table(view),)
    return FlowSpec(
        name=flow.name,
        app=app,
        sources=tuple(topic.name for topic in flow.topics),
        view=view,
        target=flow.target,
        feeds=flow.feeds,
        operator=str(flow.meets),
        idle_us=flow.idle_us,
        absent_us=flow.absent_us,
        dropped_to=flow.late.dropped_to,
        parent=flow.parent,
        tables=(*operator.tables, *rows),
        sides=tuple(dict.fromkeys((each.role, each.topic.name) for each in flow.inputs)),
    )


def _view(flow: Flow, operator: Operator, shaped: tuple[Column, ...] | None) -> ViewSpec:
    """What readers see: the rows of the operator's own table, or those that it passes on."""
    if operator.output.table == RESULTS:
        (table,) = (each for each in operator.tables if each.name == RESULTS)
        own = {"_corrections", "_updated_at"}
        columns = [each for each in table.columns if each.name not in own and not each.name.startswith("/")]
        key = table.key
    else:
        columns, key = list((operator.output.columns if shaped is None else shaped) or ()), (ROW_ID,)
    for each in (*key, *columns):
        check_column(arrow_type(each.type), column=each.name, lists=True)
    columns = [Column(each.name, each.type) for each in columns]
    return replace(
        rows_view(flow.name, key, columns, final=operator.output.final_at is not None),
        keep_us=flow.keep_us,
        retracts=True,
    )
