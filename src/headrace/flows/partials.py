"""From judged records to few rows that can be merged, by Spark: a plain `groupBy`. Owns the column expressions; the
meaning is in `aggregates`, and how late a record is was said before (`judge`).

One partial row is a pane, a group, and how late its records were: for how many of the pane's windows they were too late
(`_dropped`) and for how many not on time (`_late`). Records of one group that were equally late share a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from headrace.aggregates import ORDER, Aggregate, Partial
from headrace.errors import InvalidArgument
from headrace.flows.flow import Flow
from headrace.flows.judge import DROPPED, JUDGED, LATE, PANE, REACHED, SOURCE, UNTIMED
from headrace.schema import quoted_name
from headrace.sketches import HASHES_MAX
from headrace.views.contract import CORRECTIONS, OP, UPDATED_AT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS, UPDATED = "_records", "_updated_at"
FIRST, LAST = "_first", "_last"
"""Of the records of a pane of a session."""
CARRIED = "_carried"
"""Corrections of the view whose changes are folded."""


def partial_rows(flow: Flow, df: DataFrame, time: Column | None) -> DataFrame:
    """Of records that were judged, if the flow has windows. `time`: their event time, None when the flow has no windows
    and needs none."""
    assert flow.aggregates is not None
    keys = [F.col(quoted_name(name)).alias(name) for name in flow.groups]
    if flow.window is not None:
        keys += [F.col(SOURCE), F.col("_partition")] if flow.own_progress else []
        keys += [F.nullif(F.col(PANE), F.lit(UNTIMED)).alias(PANE), F.col(DROPPED), F.col(LATE)]
    slots = [column for name, each in flow.aggregates.items() for column in partial_of(name, each, time)]
    if flow.window is not None and flow.window.joins_us is not None and time is not None:
        slots += [F.min(F.unix_micros(time)).alias(FIRST), F.max(F.unix_micros(time)).alias(LAST)]
    if flow.own_progress and flow.window is not None:
        slots.append(F.max(REACHED).alias(REACHED))
    if flow.retracts:
        slots += [F.sum(signed(F.col(quoted_name(CORRECTIONS)))).alias(CARRIED), F.sum(_once()).alias(RECORDS)]
        return df.groupBy(*keys).agg(*slots, F.max(quoted_name(UPDATED_AT)).alias(UPDATED))
    return df.groupBy(*keys).agg(*slots, F.count(F.lit(1)).alias(RECORDS), F.max("_arrived_at").alias(UPDATED))


def as_if_judged(flow: Flow, df: DataFrame) -> DataFrame:
    """The records with the columns that a judge adds, and nothing in them: for questions about types."""
    if flow.window is None:
        return df
    names = (*JUDGED, *((REACHED,) if flow.own_progress else ()))
    return df.withColumns({name: F.lit(0).cast("bigint") for name in names})


def partial_of(name: str, aggregate: Aggregate, time: Column | None) -> list[Column]:
    """The columns that hold an aggregate's slots over some records; `fold` makes slots of them."""
    if aggregate.partial.retracts:
        return _weighed(name, aggregate, time)
    partial, slot = aggregate.partial, aggregate.slots(name)[0].name
    column = None if partial.argument is None else column_of(partial.argument)
    match partial.kind:
        case "count" if partial.where is None:
            return [F.count(F.lit(1)).alias(name)]
        case "count":
            return [F.count(F.when(column_of(partial.where), F.lit(1))).alias(name)]
    assert column is not None
    match partial.kind:
        case "sum" if partial.exact:
            return [F.collect_list(column.cast("double")).alias(f"{name}__exact")]
        case "sum":
            return [F.sum(_wide(column, partial)).alias(name)]
        case "avg":
            return [F.sum(_wide(column, partial)).alias(f"{name}__sum"), F.count(column).alias(f"{name}__count")]
        case "min":
            return [F.min(column).alias(name)]
        case "max":
            return [F.max(column).alias(name)]
        case "first" | "last":
            best = F.min if partial.kind == "first" else F.max
            return [best(_in_order(column, time)).alias(name)]
        case "count_distinct":
            return [F.collect_set(column).alias(name)]
        case "approx_count_distinct":
            hashes = F.collect_set(F.when(column.isNotNull(), F.xxhash64(column)))
            return [F.slice(F.array_sort(hashes), 1, HASHES_MAX).alias(slot)]
        case "approx_quantile":
            return [F.collect_list(column.cast("double")).alias(slot)]
        case "top_k":
            return [F.collect_list(column).alias(name)]
        case "histogram":
            above = [F.lit(True), *(column >= F.lit(bound) for bound in partial.bounds)]
            below = [*(column < F.lit(bound) for bound in partial.bounds), column.isNotNull()]
            return [F.array(*(F.count(F.when(a & b, 1)) for a, b in zip(above, below, strict=True))).alias(slot)]
        case "collect":
            return [F.slice(F.array_sort(F.collect_list(_in_order(column, time))), 1, partial.limit).alias(slot)]
        case "own":
            return [column.alias(slot)]
    raise AssertionError(partial.kind)


def _once() -> Column:
    """A change counts one, or takes one away."""
    return signed(F.lit(1).cast("bigint"))


def signed(column: Column) -> Column:
    """What a change adds, or takes away."""
    return F.when(F.col(quoted_name(OP)) == "-", -column).otherwise(column)


def _weighed(name: str, aggregate: Aggregate, time: Column | None) -> list[Column]:
    """The same of changes. What cannot be taken away comes as it is, each value with how often."""
    partial, slot = aggregate.partial, aggregate.slots(name)[0].name
    if partial.kind == "count":
        counts = _once() if partial.where is None else F.when(column_of(partial.where), _once()).otherwise(F.lit(0))
        return [F.sum(counts).alias(name)]
    column = column_of(partial.argument)
    value = column.cast("double") if partial.exact else column
    if partial.kind in ("first", "last"):
        when = F.col(quoted_name(UPDATED_AT)) if time is None else time
        value = F.when(when.isNotNull(), F.struct(when.alias("at"), column.alias("value")))
    times = F.collect_list(F.when(column.isNotNull(), F.struct(value.alias("value"), _once().alias("count"))))
    if partial.kind not in ("sum", "avg"):
        return [times.alias(slot)]
    of = signed(column_of(partial.count)) if partial.count else F.when(column.isNotNull(), _once()).otherwise(F.lit(0))
    total = times if partial.exact else F.sum(signed(_wide(column, partial)))
    return [total.alias(slot), F.sum(of).alias(f"{name}__count")]


def _wide(column: Column, partial: Partial) -> Column:
    """What is summed: the least whole number of 64 bits, for one, has no other that is as far above zero."""
    return column.cast(partial.wide) if partial.wide else column


def _in_order(column: Column, time: Column | None) -> Column:
    """The value with what orders it; null if it, or its time, is."""
    when = F.col("_arrived_at") if time is None else time
    parts = dict(zip(ORDER, (when, F.col("_partition"), F.col("_offset")), strict=True))
    value = F.when(column.isNotNull(), column)  # Arrow holds Spark to it that what is never null is not, even in a null
    order = F.struct(*(part.alias(suffix) for suffix, part in parts.items()), value.alias("value"))
    return F.when(column.isNotNull() & when.isNotNull(), order)


def column_of(given: Any) -> Column:
    """A column's name, an SQL expression, or a Column."""
    if isinstance(given, Column):
        return given
    if isinstance(given, str):
        return F.expr(given)
    raise InvalidArgument("column", given, "must be a column's name, an SQL expression or a Column")
