"""Rows grouped by Arrow, as Spark would group them: sums that are checked, doubles in Spark's order, which row a record
became part of. Owns those differences; knows no flow and no aggregate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.errors import DoesNotFit
from headrace.schema import type_ddl

__all__ = ["Grouping", "as_kept", "rows_of", "summable"]

_I64 = npt.NDArray[np.int64]
_LARGEST = 2**63 - 1


class Grouping:
    """Keys and values under names of their own, so that a column may be both, and the results under those asked for."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}
        self._keys: dict[str, str] = {}
        self._alike: dict[str, pa.Scalar] = {}
        self._asked: list[tuple[Any, ...]] = []
        self._found: dict[str, tuple[str, bool]] = {}

    def key(self, name: str, values: Any) -> None:
        """Numbers that are all alike say nothing: rows are grouped faster without them."""
        if types.is_integer(values.type) and len(values) and not values.null_count:
            bounds = pc.min_max(values)
            if bounds["min"] == bounds["max"]:
                self._alike[name] = bounds["min"]
                return
        own = f"k{len(self._keys)}"
        self._keys[name], self._arrays[own] = own, values

    def value(self, name: str, values: Any, function: str) -> None:
        """`values`: a column, or [] when records are counted."""
        if function == "count_all":
            self._found[name] = function, False
            return
        own = f"v{len(self._asked)}"
        floats = function in ("min", "max") and types.is_floating(values.type)
        self._arrays[own] = _as_ordered(values) if floats else values
        options = pc.CountOptions(mode="only_valid") if function in ("count", "distinct") else None
        self._asked.append((own, function, options))
        self._found[name] = f"{own}_{function}", floats

    def done(self) -> dict[str, pa.Array]:
        table = pa.table(self._arrays)
        if not self._keys:
            table = table.append_column("all", pa.repeat(True, table.num_rows))  # one group: it has more functions
        asked = [*self._asked, ([], "count_all")]
        grouped = table.group_by(list(self._keys.values()) or ["all"], use_threads=False).aggregate(asked)
        out = {name: grouped[own].combine_chunks() for name, own in self._keys.items()}
        out |= {name: pa.repeat(value, len(grouped)) for name, value in self._alike.items()}
        for name, (own, floats) in self._found.items():
            column = grouped[own].combine_chunks()
            out[name] = _as_floats(column) if floats else column
        return out


def rows_of(lists: pa.Array, records: int) -> _I64:
    """For each record, which row it belongs to; `lists` has the numbers of each row's records."""
    of = np.empty(records, np.int64)
    of[lists.flatten().to_numpy()] = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
    return of


def summable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, wider where its sum might not fit: then the sum is checked when it becomes 64 bits again."""
    if column.type != pa.int64() or not len(column):
        return column
    bounds = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    return column if largest * len(column) <= _LARGEST else column.cast(pa.decimal128(19, 0))


def as_kept(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in the type it has in partial rows. Only sums may be too large for theirs."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        if not types.is_decimal(column.type):
            raise
        largest = max(column.drop_null().to_pylist(), key=abs)
        raise DoesNotFit(sum=str(largest), type=type_ddl(kind)) from error


def _as_ordered(column: pa.ChunkedArray) -> pa.Array:
    """Doubles as whole numbers in Spark's order: both zeros are one, and NaN is the greatest."""
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return pa.array(bits ^ ((bits >> 63) & _LARGEST), mask=column.is_null().to_numpy())


def _as_floats(numbers: pa.Array) -> pa.Array:
    keys = numbers.fill_null(0).to_numpy()
    bits = keys ^ ((keys >> 63) & _LARGEST)
    return pa.array(bits.view(np.float64), mask=np.asarray(numbers.is_null()))
