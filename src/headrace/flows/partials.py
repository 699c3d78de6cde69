"""From records to few rows that can be merged: the Spark side of windows and aggregates. Owns the column expressions;
the meaning is in `windows` and `aggregates`.

One partial row is a pane, a group, and how late its records were: for how many of the pane's windows they were too late
(`_dropped`) and for how many not on time (`_late`). Records of one group that were equally late share a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from headrace.aggregates import ORDER, Aggregate, Partial
from headrace.errors import InvalidArgument
from headrace.flows.flow import ARRIVED, Flow
from headrace.schema import quoted_name
from headrace.sketches import HASHES_MAX
from headrace.views.contract import CORRECTIONS, OP, UPDATED_AT
from headrace.windows import Calendar, Fixed, Session, Sliding, Window, timed_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PANE, DROPPED, LATE, RECORDS, UPDATED = "_pane", "_dropped", "_late", "_records", "_updated_at"
FIRST, LAST = "_first", "_last"
"""Of the records of a pane of a session."""
CARRIED = "_carried"
"""Corrections of the view whose changes are folded."""
SOURCE, REACHED = "_source", "_reached"
_JUDGED = "_judged"


def partial_rows(flow: Flow, df: DataFrame, time: Column | None) -> DataFrame:
    """`time`: the records' event time, None when the flow has no windows and needs none."""
    assert flow.aggregates is not None
    keys = [F.col(quoted_name(name)).alias(name) for name in flow.groups]
    if flow.window is not None:
        assert time is not None
        if flow.own_progress:
            df = with_own_progress(df, time)
            keys += [F.col(SOURCE), F.col("_partition")]
        df = _judged(flow, df, time)
        keys += lateness_of(flow, time)
    slots = [column for name, each in flow.aggregates.items() for column in partial_of(name, each, time)]
    if isinstance(flow.window, Session) and time is not None:
        slots += [F.min(F.unix_micros(time)).alias(FIRST), F.max(F.unix_micros(time)).alias(LAST)]
    if flow.own_progress and time is not None:
        slots.append(F.max(F.unix_micros(_capped(time))).alias(REACHED))
    if flow.retracts:
        slots += [F.sum(signed(F.col(quoted_name(CORRECTIONS)))).alias(CARRIED), F.sum(_once()).alias(RECORDS)]
        return df.groupBy(*keys).agg(*slots, F.max(quoted_name(UPDATED_AT)).alias(UPDATED))
    return df.groupBy(*keys).agg(*slots, F.count(F.lit(1)).alias(RECORDS), F.max("_arrived_at").alias(UPDATED))


def with_own_progress(df: DataFrame, time: Column) -> DataFrame:
    """For a time that the transforms made: `_progress` comes as what the partition had reached before the batch, and
    becomes what it had before the record: the largest time of the records let through at lower offsets."""
    below = Over.partitionBy(SOURCE, "_partition").orderBy("_offset").rangeBetween(Over.unboundedPreceding, -1)
    return df.withColumn("_progress", F.greatest(F.col("_progress"), F.max(_capped(time)).over(below)))


def _capped(time: Column) -> Column:
    """No clock in the future makes others late."""
    return F.when(time.isNotNull(), F.least(time, F.col("_arrived_at")))


def lateness_of(flow: Flow, time: Column) -> list[Column]:
    assert flow.window is not None
    return lateness(flow.window, _timed(flow.window, time), progress_of(flow), flow.grace_us, flow.late.within_us)


def _timed(window: Window, time: Column) -> Column:
    """In microseconds; null if there is none, or its windows would not be in the years that times have."""
    us, (first, last) = F.unix_micros(time), timed_us(window)
    return F.when(us.between(first, last), us) if window.reach_us else us


def progress_of(flow: Flow) -> Column:
    """What arrived before a record arrived no later than it: by arrival nothing is late. Nor is a change of a view: it
    was decided where the record came from a topic."""
    if not flow.judged:
        return F.lit(None).cast("bigint")
    return F.unix_micros(F.col(ARRIVED if flow.by_arrival else "_progress"))


def _judged(flow: Flow, df: DataFrame, time: Column) -> DataFrame:
    """What no expression of Spark's says: where a time zone's days begin. It is asked of `windows`, in Python."""
    if not isinstance(flow.window, Calendar):
        return df
    from headrace.flows import calendar_udf

    known = _timed(flow.window, time)
    event = F.coalesce(known, F.lit(0))
    reached = F.coalesce(F.when(known.isNotNull(), progress_of(flow)), event)  # without time or progress: not late
    return df.withColumn(_JUDGED, calendar_udf.judged(flow.window, event, reached, flow.grace_us, flow.late.within_us))


def dropped_rows(flow: Flow, df: DataFrame, time: Column) -> DataFrame:
    """The records that were too late, with `_pane`, which of a session or a sliding window is their time, and for how
    many of its windows."""
    if flow.own_progress:
        df = with_own_progress(df, time)
    pane, dropped, _ = lateness_of(flow, time)
    if isinstance(flow.window, Session):
        pane = F.unix_micros(time)
    df = _judged(flow, df, time).withColumns({PANE: pane, DROPPED: dropped}).drop(_JUDGED)
    return df.where(F.col(DROPPED) > 0)


def lateness(window: Window, time: Column, progress: Column, grace_us: int, within_us: int) -> list[Column]:
    """The record's pane, for how many of its windows it is too late, for how many not on time; whole numbers."""
    match window:
        case Fixed():
            return _fixed(window, time, progress, grace_us, within_us)
        case Calendar():
            found = F.col(_JUDGED)
            counts = [found[name].cast("int").alias(f"_{name}") for name in ("dropped", "late")]
            return [F.when(time.isNotNull(), found["pane"]).alias(PANE), *counts]
        case Session():
            pane, end = time - F.pmod(time, F.lit(window.gap_us)), time + F.lit(window.gap_us + grace_us)
            return _passed(pane, progress, end, within_us)
        case Sliding():
            late, dropped = (
                F.greatest(F.lit(0), F.least(progress - F.lit(more) - time, F.lit(window.size_us + 1)))
                for more in (grace_us, grace_us + within_us)
            )
            none = time.isNull() | progress.isNull()
            counts = [F.when(none, F.lit(0)).otherwise(each).cast("bigint") for each in (dropped, late)]
            return [time.alias(PANE), counts[0].alias(DROPPED), counts[1].alias(LATE)]


def _passed(pane: Column, progress: Column, end: Column, within_us: int) -> list[Column]:
    """Of records with one window each, that ends, grace included, at `end`."""
    late = (progress >= end).cast("int")
    dropped = late if within_us == 0 else (progress >= end + F.lit(within_us)).cast("int")
    return [pane.alias(PANE), F.coalesce(dropped, F.lit(0)).alias(DROPPED), F.coalesce(late, F.lit(0)).alias(LATE)]


def _fixed(window: Fixed, time: Column, progress: Column, grace_us: int, within_us: int) -> list[Column]:
    pane = time - F.pmod(time, F.lit(window.pane_us))
    if window.windows_max == 1:  # the same, in fewer words: Spark takes longer to read an expression than to run it
        return _passed(pane, progress, pane + F.lit(window.size_us + grace_us), within_us)
    lowest = pane + F.lit(window.pane_us - window.size_us)  # the first window's start is the next multiple of the hop
    first_end = lowest + F.pmod(-lowest, F.lit(window.every_us)) + F.lit(window.size_us)
    count = _floor_div(pane + F.lit(window.size_us) - first_end, window.every_us) + F.lit(1)

    def ended(bound: Column) -> Column:
        passed = _floor_div(bound - first_end, window.every_us) + F.lit(1)
        ended = F.greatest(F.lit(0), F.least(passed, count))  # these pass nulls over: without progress nothing is late
        return F.when(progress.isNull(), F.lit(0)).otherwise(ended).cast("int")

    late = ended(progress - F.lit(grace_us))
    dropped = late if within_us == 0 else ended(progress - F.lit(grace_us + within_us))
    return [pane.alias(PANE), dropped.alias(DROPPED), late.alias(LATE)]


def _floor_div(number: Column, by: int) -> Column:
    return F.call_function("div", number - F.pmod(number, F.lit(by)), F.lit(by))


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
