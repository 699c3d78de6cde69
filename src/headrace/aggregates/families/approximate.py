"""Sketches: approx_count_distinct, approx_quantile. What they keep, and how near they come, is in `sketches`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as types

from headrace import sketches
from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import Columns, Records, share
from headrace.aggregates.hashes import can_hash, hashes
from headrace.aggregates.merged import Merged
from headrace.aggregates.packing import I64, as_bytes, known, place_in_row, unpacked, with_column

_BUCKETS = 1 << 19
"""More than there are, with both signs."""


def approx_count_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """About how many different values other than null: exact below 4,096, with a standard error of 1.6 % from there on.
    Keeps 32 KB at most for each row."""
    algebra = ApproxCountDistinct(given(column, "approx_count_distinct"), where)
    return Aggregate(algebra, sketches.union, sketches.distinct, "bigint")


def approx_quantile(column: Any, q: float, *, where: Any = None) -> Aggregate:
    """The number that a share `q` of the numbers does not exceed, to 1 %: `approx_quantile("ms", 0.95)`. Of doubles,
    NaN is the greatest; without a value other than null it is null."""
    quantile = sketches.Quantile(share(q))
    algebra = ApproxQuantile(given(column, "approx_quantile"), where, q=quantile.q)
    return Aggregate(algebra, sketches.added, quantile, "double")


@dataclass(frozen=True)
class _Sketch(Merged):
    """Spark brings values, or their hashes, as a list: they are packed as Arrow's are."""

    def kept(self) -> str:
        return "binary"

    def packed_type(self, arrow: pa.DataType) -> pa.DataType:
        return pa.binary()

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        slot = self.state(name)
        column = rows[slot].combine_chunks()
        if not types.is_list(column.type):
            return rows
        return with_column(rows, slot, self.pack(*known(*unpacked(column)), rows.num_rows))


@dataclass(frozen=True)
class ApproxCountDistinct(_Sketch):
    called: ClassVar[str] = "approx_count_distinct"
    zero: ClassVar[bool] = True

    def finished(self, state: pa.DataType) -> str:
        return "bigint"

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        value = columns["value"]
        found = f"collect_set(CASE WHEN {value} IS NOT NULL THEN xxhash64({value}) END)"
        return {self.state(name): f"slice(array_sort({found}), 1, {sketches.HASHES_MAX})"}

    def possible(self) -> bool:
        return can_hash(self.of())

    def values(self, records: Records) -> pa.Array:
        column = records.part(self)
        return pa.array(hashes(column), mask=np.asarray(column.is_null()))

    def pack(self, of: I64, values: pa.Array, rows: int) -> pa.Array:
        found = values.to_numpy()
        order = np.lexsort((found, of))
        of, found = of[order], found[order]
        fresh = np.ones(len(of), np.bool_)
        fresh[1:] = (of[1:] != of[:-1]) | (found[1:] != found[:-1])
        of, found = of[fresh], found[fresh]
        smallest = place_in_row(of) < sketches.HASHES_MAX
        return as_bytes(of[smallest], found[smallest].astype(sketches.HASH), rows)


@dataclass(frozen=True)
class ApproxQuantile(_Sketch):
    q: float = 0.5

    called: ClassVar[str] = "approx_quantile"
    only_numbers: ClassVar[bool] = True

    def options(self) -> list[str]:
        return [str(self.q)]

    def finished(self, state: pa.DataType) -> str:
        return "double"

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {self.state(name): f"collect_list(cast({columns['value']} AS double))"}

    def possible(self) -> bool:
        return bool(types.is_integer(self.of()) or types.is_floating(self.of()))

    def pack(self, of: I64, values: pa.Array, rows: int) -> pa.Array:
        numbers = sketches.buckets(values.cast(pa.float64()).to_numpy())
        pairs, counts = np.unique(of * _BUCKETS + numbers + _BUCKETS // 2, return_counts=True)
        kept = np.stack((pairs % _BUCKETS - _BUCKETS // 2, counts), axis=1).astype(sketches.COUNT)
        return as_bytes(pairs // _BUCKETS, kept, rows)
