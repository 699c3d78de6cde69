"""Partial rows made by Arrow, where the records are read: for flows that leave Spark nothing to compute, because they
name plain columns and their transforms only choose (`sieve`). Owns the same question as `partials`, answered with
arrays; the rows are the same, and so are their types. What can only be asked of Spark (an SQL expression, a type it
does not share with Arrow) is not answered here: `plan` says None.

A record that is folded here never becomes a row of the JVM: that is most of a large batch's time. Pure; knows no
session, no range and no store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates import ORDER, Aggregate, Partial
from headrace.flows.arrow_changes import Weighed
from headrace.flows.flow import Flow
from headrace.flows.grouping import Grouping, as_kept, rows_of, summable
from headrace.flows.hashes import can_hash, hashes
from headrace.flows.judge import JUDGED, Judge
from headrace.flows.packing import packed
from headrace.flows.partials import FIRST, LAST, RECORDS, UPDATED

CHUNK_ROWS = 500_000
"""So many records are folded together."""
OF = "_of"
PACKED = ("approx_count_distinct", "approx_quantile", "top_k", "histogram", "collect")
_I64 = npt.NDArray[np.int64]
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ArrowPartials:
    """What to make of records; goes to the workers. `schema`: of the partial rows, as Spark would make them."""

    schema: pa.Schema
    judge: Judge | None
    time: str | None
    groups: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    retracts: bool = False

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The partial rows of the records."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= CHUNK_ROWS:
                yield from self._rows(pa.Table.from_batches(waiting)).to_batches()
                waiting, rows = [], 0
        if rows:
            yield from self._rows(pa.Table.from_batches(waiting)).to_batches()

    def _rows(self, records: pa.Table) -> pa.Table:
        ordered = not self.retracts and any(each.kind in ("first", "last") for each in self.aggregates.values())
        lists = {name: each for name, each in self.aggregates.items() if each.kind in PACKED}
        if ordered:
            records = _in_order(records, self.time)
        grouping = Grouping()
        for name in self.groups:
            grouping.key(name, records[name])
        if self.judge is not None:
            for name, values in zip(JUDGED, self.judge.judged(records), strict=True):
                grouping.key(name, values)
        if self.retracts:
            return self._of_changes(records, grouping)
        for name, aggregate in self.aggregates.items():
            self._ask(grouping, name, aggregate, records)
        if self.judge is not None and self.judge.window.joins_us is not None:
            grouping.value(FIRST, records[self.time].cast(pa.int64()), "min")
            grouping.value(LAST, records[self.time].cast(pa.int64()), "max")
        if lists:
            grouping.value(OF, pa.array(np.arange(records.num_rows)), "list")
        grouping.value(RECORDS, [], "count_all")
        grouping.value(UPDATED, records["_arrived_at"], "max")
        found = grouping.done()
        if ordered:
            found |= {
                name: self._best(records, found[name], aggregate)
                for name, aggregate in self.aggregates.items()
                if aggregate.kind in ("first", "last")
            }
        if lists:
            of = rows_of(found.pop(OF), records.num_rows)
            count = len(found[RECORDS])
            for name, aggregate in lists.items():
                values = self._values(records, aggregate.partial)
                found[aggregate.slots(name)[0].name] = packed(aggregate.partial, of, values, count)
        return self._table(found)

    def _of_changes(self, records: pa.Table, grouping: Grouping) -> pa.Table:
        changes, aggregates = Weighed(records, self.time, grouping), dict(self.aggregates)
        changes.ask(aggregates)
        found = grouping.done()
        changes.made(aggregates, found)
        return self._table(found)

    def _table(self, found: Mapping[str, pa.Array]) -> pa.Table:
        return pa.table([as_kept(found[field.name], field.type) for field in self.schema], schema=self.schema)

    def _values(self, records: pa.Table, partial: Partial) -> pa.Array:
        """The column that is packed, as `packing` takes it."""
        column = records[partial.argument].combine_chunks()
        if partial.kind == "approx_count_distinct":
            return pa.array(hashes(records[partial.argument]), mask=np.asarray(column.is_null()))
        if partial.kind != "collect":
            return column
        when = "_arrived_at" if self.time is None else self.time
        parts = [records[name].combine_chunks() for name in (when, "_partition", "_offset")]
        unknown = pc.or_(column.is_null(), parts[0].is_null())
        return pa.StructArray.from_arrays([*parts, column], names=[*ORDER, "value"], mask=unknown)

    def _ask(self, grouping: Grouping, name: str, aggregate: Aggregate, records: pa.Table) -> None:
        partial = aggregate.partial
        match partial.kind:
            case "count" if partial.where is None:
                return grouping.value(name, [], "count_all")
            case "count":
                return grouping.value(name, records[partial.where].fill_null(False).cast(pa.int64()), "sum")
        column = records[partial.argument]
        match partial.kind:
            case "sum":
                grouping.value(name, summable(column), "sum")
            case "avg":
                grouping.value(f"{name}__sum", summable(column), "sum")
                grouping.value(f"{name}__count", column, "count")
            case "min" | "max":
                grouping.value(name, column, partial.kind)
            case "count_distinct":
                grouping.value(name, column, "distinct")
            case "first" | "last":
                known = column.is_valid().combine_chunks()
                if self.time is not None:
                    known = pc.and_(known, records[self.time].is_valid().combine_chunks())
                number = pa.array(np.arange(records.num_rows))
                grouping.value(name, pc.if_else(known, number, None), partial.kind)

    def _best(self, records: pa.Table, numbers: pa.Array, aggregate: Aggregate) -> pa.Array:
        """The records of these numbers, as `first` and `last` are kept."""
        when = "_arrived_at" if self.time is None else self.time
        parts = [records[name].take(numbers) for name in (when, "_partition", "_offset", aggregate.partial.argument)]
        arrays = [part.combine_chunks() if isinstance(part, pa.ChunkedArray) else part for part in parts]
        return pa.StructArray.from_arrays(arrays, names=["at", "partition", "offset", "value"], mask=numbers.is_null())


def plan(flow: Flow, time: str | None, schema: pa.Schema, sources: Sequence[pa.Schema]) -> ArrowPartials | None:
    """How to make the flow's partial rows of `schema` without Spark, of records that have these columns, by source;
    None if only Spark can."""
    if flow.aggregates is None or flow.own_progress:
        return None
    wanted = [*flow.groups, *([time] if time and not flow.by_arrival else [])]
    partials = [aggregate.partial for aggregate in flow.aggregates.values()]
    for partial in partials:
        wanted += [name for name in (partial.argument, partial.where, partial.count or None) if name is not None]
        if not all(_is_a_name(given) for given in (partial.argument, partial.where)):
            return None
    known = _common(sources, wanted)
    if known is None or not all(_same_in_arrow(known[name]) for name in flow.groups):
        return None
    if not all(_possible(partial, known) for partial in partials):
        return None
    judge = None if flow.window is None or time is None else Judge.of_flow(flow, time)
    return ArrowPartials(schema, judge, time, flow.groups, dict(flow.aggregates), flow.retracts)


def _is_a_name(given: Any) -> bool:
    """Whether Spark takes it for a column, if there is one of that name: `a-b` is a difference, `true` is true."""
    plain = isinstance(given, str) and given.isidentifier() and given.isascii()
    return given is None or (plain and given.lower() not in ("true", "false", "null"))


def _common(sources: Sequence[pa.Schema], wanted: Sequence[Any]) -> dict[str, pa.DataType] | None:
    """The columns' types; None when one is not a plain column, or not the same everywhere."""
    known: dict[str, pa.DataType] = {}
    for schema in sources:
        has = {field.name: field.type for field in schema}
        for name in wanted:
            if not isinstance(name, str) or name not in has or known.setdefault(name, has[name]) != has[name]:
                return None
    return known


def _possible(partial: Partial, known: Mapping[str, pa.DataType]) -> bool:
    if partial.kind == "count":
        return partial.where is None or types.is_boolean(known[partial.where])
    if partial.kind == "own":
        return False
    kind = known[partial.argument]
    match partial.kind:
        case "merge":
            return True
        case "sum" | "avg" if partial.exact:
            return partial.retracts
        case "sum" | "avg":
            # Of wider decimals Spark keeps fewer digits.
            fits = types.is_decimal(kind) and (kind.precision <= 28 or kind.scale == 0)
            return bool(types.is_integer(kind) or types.is_floating(kind) or fits)
        case "count_distinct" | "top_k":
            return _same_in_arrow(kind)
        case "approx_count_distinct":
            return can_hash(kind)
        case "approx_quantile" | "histogram":
            return bool(types.is_integer(kind) or types.is_floating(kind))
        case _:
            return _same_in_arrow(kind) or types.is_floating(kind)


def _same_in_arrow(kind: pa.DataType) -> bool:
    """Whether values are equal, and ordered, as in Spark: doubles have NaN and two zeros, nested ones more."""
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal128(kind)
        or types.is_binary(kind)
    )


def _in_order(records: pa.Table, time: str | None) -> pa.Table:
    """By what orders `first` and `last`: so they are the first and the last of their group."""
    when = "_arrived_at" if time is None else time
    return records.take(pc.sort_indices(records, [(name, "ascending") for name in (when, "_partition", "_offset")]))
