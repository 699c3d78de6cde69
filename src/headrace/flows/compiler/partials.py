"""From judged records to few rows that can be merged, by Spark: a plain `groupBy`. Owns the column expressions; the
meaning is in `aggregates`, and how late a record is was said before (`judge`).

One partial row is a pane, a group, and how late its records were: for how many of the pane's windows they were too late
(`_dropped`) and for how many not on time (`_late`). Records of one group that were equally late share a row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from headrace.aggregates import Aggregate, Algebra, Columns
from headrace.aggregates.aggregate import Own
from headrace.errors import InvalidArgument
from headrace.flows.flow import ARRIVED, Flow
from headrace.flows.reading.numbers import NUMBER
from headrace.kernels.columns import CARRIED, FIRST, LAST, RECORDS, UPDATED
from headrace.kernels.judge import DROPPED, JUDGED, LATE, PANE, REACHED, SOURCE, UNTIMED
from headrace.schema import quoted_name
from headrace.views.contract import CORRECTIONS, OP, UPDATED_AT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHERE = "where"
"""Of an aggregate's arguments: its condition."""


def partial_rows(flow: Flow, df: DataFrame, time: Column | None, numbered: Collection[str] | None = None) -> DataFrame:
    """Of records that were judged, if the flow has windows. `time`: their event time, None when the flow has no windows
    and needs none. `numbered`: the groups for which a number of the records stands, and for what a judge says of them;
    None where they have no number."""
    assert flow.aggregates is not None
    keys = [F.col(quoted_name(name)).alias(name) for name in flow.groups if name not in (numbered or ())]
    if numbered is not None:
        keys.append(F.col(NUMBER))
    elif flow.window is not None:
        keys += [F.col(SOURCE), F.col("_partition")] if flow.own_progress else []
        keys += [F.nullif(F.col(PANE), F.lit(UNTIMED)).alias(PANE), F.col(DROPPED), F.col(LATE)]
    df, slots = aggregated(flow.aggregates, df, time, changes=flow.retracts)
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


def aggregated(
    aggregates: Mapping[str, Aggregate], df: DataFrame, time: Column | None, *, changes: bool = False
) -> tuple[DataFrame, list[Column]]:
    """The records with what aggregates ask of each, and the columns of partial rows, made of those."""
    prefix, known = "/", df.columns
    while any(name.startswith(prefix) for name in known):
        prefix += "/"
    at, once = f"{prefix}at", f"{prefix}once"
    added: dict[str, Column] = {once: _once()} if changes else {}
    slots = []
    for number, (name, aggregate) in enumerate(aggregates.items()):
        if isinstance(aggregate.algebra, Own):
            slots.append(column_of(aggregate.algebra.argument).alias(aggregate.slots(name)[0].name))
            continue
        names = {}
        for part, column in arguments(aggregate.algebra).items():
            names[part] = f"{prefix}{number}/{part}"
            added[names[part]] = column
        quoted = {part: quoted_name(each) for part, each in names.items()}
        columns = Columns(quoted, quoted.pop(WHERE, ""), quoted_name(at), quoted_name(once) if changes else "1L")
        made = aggregate.algebra.sql(name, columns)
        slots += [F.expr(sql).alias(column) for column, sql in made.items()]
    if any(each.algebra.ordered for each in aggregates.values()):
        added[at] = F.col(quoted_name(UPDATED_AT if changes else ARRIVED)) if time is None else time
    return df.withColumns(added) if added else df, slots


def arguments(algebra: Algebra) -> dict[str, Column]:
    """What an aggregate is of, and its condition as `where`. Where that does not hold, the others are null."""
    parts = {part: column_of(given) for part, given in algebra.parts().items()}
    if algebra.where is None:
        return parts
    where = column_of(algebra.where)
    return {**{part: F.when(where, column) for part, column in parts.items()}, WHERE: where}


def _once() -> Column:
    """A change counts one, or takes one away."""
    return signed(F.lit(1).cast("bigint"))


def signed(column: Column) -> Column:
    """What a change adds, or takes away."""
    return F.when(F.col(quoted_name(OP)) == "-", -column).otherwise(column)


def column_of(given: Any) -> Column:
    """A column's name, an SQL expression, or a Column."""
    if isinstance(given, Column):
        return given
    if isinstance(given, str):
        return F.expr(given)
    raise InvalidArgument("column", given, "must be a column's name, an SQL expression or a Column")
