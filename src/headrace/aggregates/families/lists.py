"""Aggregates that are lists: top_k, histogram, collect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace import sketches
from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import (
    ORDER,
    Algebra,
    Columns,
    Found,
    Records,
    RowsOf,
    Slot,
    ddl,
    plain_in_arrow,
    positive,
    same_in_arrow,
)
from headrace.aggregates.families.largest import largest
from headrace.aggregates.kept import Held, Kept, order
from headrace.aggregates.merged import Merged
from headrace.aggregates.packing import COUNTED, I64, as_lists, counted, place_in_row, unpacked, with_column
from headrace.errors import InvalidArgument

BOUNDS_MAX = 1_000
PLACES = "at:timestamp,partition:int,offset:bigint"
"""What orders collected values."""


def top_k(column: Any, k: int, *, by: Any = None, where: Any = None) -> Aggregate:
    """The `k` most frequent values other than null, each with its count, exactly: a list of (value, count), the most
    frequent first; of equally frequent ones the least. How often each value came is kept while its window can
    change.

    With `by`, the values of the `k` records in which that is largest: a list of (value, by), the largest first; of
    equally large ones the latest. A value is there as often as it has such records."""
    column, k = given(column, "top_k"), positive(k, "k")
    if by is not None:
        return largest(column, k, given(by, "top_k", argument="by"), where)
    return Aggregate(TopK(column, where, limit=k))


def histogram(column: Any, bounds: Sequence[float], *, where: Any = None) -> Aggregate:
    """How many numbers are below the first bound, from each bound up to the next, and from the last one on: a list of
    one more than the bounds. A bound counts in what begins with it; NaN is the greatest number; nulls are not
    counted."""
    some = tuple(bounds) if isinstance(bounds, Sequence) and not isinstance(bounds, str) else ()
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in some)
    if not some or not numbers or not all(map(math.isfinite, some)) or any(a >= b for a, b in pairwise(some)):
        raise InvalidArgument("bounds", bounds, "must be numbers, each greater than the one before: [1, 10, 100]")
    if len(some) > BOUNDS_MAX:
        raise InvalidArgument("bounds", f"{len(some)} numbers", f"must be {BOUNDS_MAX} or fewer")
    return Aggregate(Histogram(given(column, "histogram"), where, bounds=some), sketches.added_each)


def collect(column: Any, limit: int, *, where: Any = None) -> Aggregate:
    """The first `limit` values other than null, as a list, in the order of event time, and of partition and offset
    where that is equal."""
    algebra = Collect(given(column, "collect"), where, limit=positive(limit, "limit"))
    return Aggregate(algebra, sketches.Earliest(limit), sketches.values_of)


@dataclass(frozen=True)
class TopK(Algebra):
    limit: int = 1

    called: ClassVar[str] = "top_k"
    packs: ClassVar[bool] = True
    instead: ClassVar[str] = "count by value there"

    def options(self) -> list[str]:
        return [str(self.limit)]

    def slots(self, name: str) -> tuple[Slot, ...]:
        return (Slot(name, "counted", f"array<struct<value:{ddl(self.of())},count:bigint>>"),)

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {name: f"collect_list({columns['value']})"}

    def packed_type(self, arrow: pa.DataType) -> pa.DataType:
        return pa.list_(pa.struct([("value", arrow.value_type), ("count", COUNTED)]))

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        lists = rows[name].combine_chunks()
        if types.is_struct(lists.type.value_type):
            return rows
        of, values = unpacked(lists)
        return with_column(rows, name, counted(of, values, np.ones(len(of), np.int64), rows.num_rows))

    def possible(self) -> bool:
        return same_in_arrow(self.of())

    def complete(self, name: str, records: Records, found: Found, of: RowsOf, rows: int) -> None:
        found[name] = counted(of(), records.part(self).combine_chunks(), records.weights.to_numpy(), rows)

    def of_changes(self) -> Algebra:
        return TopKOfChanges(self.argument, self.where, limit=self.limit)


@dataclass(frozen=True)
class TopKOfChanges(Kept):
    limit: int = 1

    called: ClassVar[str] = "top_k"
    instead: ClassVar[str] = TopK.instead

    def options(self) -> list[str]:
        return [str(self.limit)]

    def result(self) -> str:
        return f"array<struct<value:{ddl(self.of())},count:bigint>>"

    def made_of(self, held: Held) -> Any:
        best = sorted(held, key=lambda one: (-one[1], order(one[0])))
        return [{"value": value, "count": count} for value, count in best[: self.limit]]


@dataclass(frozen=True)
class Histogram(Merged):
    bounds: tuple[float, ...] = ()

    called: ClassVar[str] = "histogram"
    only_numbers: ClassVar[bool] = True

    def options(self) -> list[str]:
        return [str(list(self.bounds))]

    def kept(self) -> str:
        return "array<bigint>"

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        value = columns["value"]
        bounds = [str(bound) if isinstance(bound, int) else f"{bound!r}D" for bound in self.bounds]
        above = ["true", *(f"{value} >= {bound}" for bound in bounds)]
        below = [*(f"{value} < {bound}" for bound in bounds), f"{value} IS NOT NULL"]
        counts = [f"count(CASE WHEN {a} AND {b} THEN 1 END)" for a, b in zip(above, below, strict=True)]
        return {name: f"array({', '.join(counts)})"}

    def possible(self) -> bool:
        return bool(types.is_integer(self.of()) or types.is_floating(self.of()))

    def pack(self, of: I64, values: pa.Array, rows: int) -> pa.Array:
        width = len(self.bounds) + 1
        place = np.searchsorted(np.array(self.bounds), values.to_numpy(), side="right")
        counts = np.bincount(of * width + place, minlength=rows * width)
        return as_lists(np.repeat(np.arange(rows), width), pa.array(counts, COUNTED), rows)


@dataclass(frozen=True)
class Collect(Merged):
    limit: int = 1

    called: ClassVar[str] = "collect"
    ordered: ClassVar[bool] = True

    def options(self) -> list[str]:
        return [f"limit={self.limit}"]

    def kept(self) -> str:
        return f"array<struct<{PLACES},value:{ddl(self.of())}>>"

    def finished(self, state: pa.DataType) -> str:
        return f"array<{ddl(state.value_type.field('value').type)}>" if types.is_list(state) else "array<null>"

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {self.state(name): f"slice(array_sort(collect_list({columns.in_order()})), 1, {self.limit})"}

    def possible(self) -> bool:
        return plain_in_arrow(self.of())

    def values(self, records: Records) -> pa.Array:
        return records.in_order(self)

    def pack(self, of: I64, values: pa.Array, rows: int) -> pa.Array:
        keys = {part: values.field(part) for part in ORDER}
        by = [(name, "ascending") for name in ("of", *ORDER)]
        places = pc.sort_indices(pa.table({"of": of, **keys}), by).to_numpy()
        earliest = places[place_in_row(of[places]) < self.limit]
        return as_lists(of[earliest], values.take(pa.array(earliest)), rows)
