"""Columns of views, as Arrow: their types, and times as numbers. Knows no store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.groups import Groups, row_numbers
from headrace.errors import InvalidArgument
from headrace.rows import to_batch
from headrace.schema import parse_ddl, type_ddl

__all__ = [
    "I64",
    "INSTANT",
    "arrow_type",
    "as_column",
    "cast_to",
    "check_column",
    "numbered",
    "sort_by_key",
    "time_column",
    "us_column",
]

I64 = npt.NDArray[np.int64]
INSTANT = pa.timestamp("us", tz="UTC")


@cache
def arrow_type(ddl: str) -> pa.DataType:
    return parse_ddl(f"x {ddl}").field(0).type


def check_column(arrow: pa.DataType, *, column: str, lists: bool = False, rows: bool = False) -> None:
    """Refuses what readers of a view could not make much of."""
    taken = (lists and pa.types.is_list(arrow)) or (rows and pa.types.is_struct(arrow))
    if pa.types.is_nested(arrow) and not taken:
        plain = "plain values or lists" if lists else "plain values"
        why = f"is of type {type_ddl(arrow)}, and can only be {plain} here. Select the field you need from it"
        raise InvalidArgument("column", column, why)
    if not any(holds(arrow) for holds in _HELD):
        raise InvalidArgument("column", column, f"is of type {arrow}, which a view cannot hold")


_HELD = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string),
    *(pa.types.is_binary, pa.types.is_date, pa.types.is_timestamp, pa.types.is_nested),
)


def cast_to(column: pa.Array, arrow: pa.DataType) -> pa.Array:
    """The column as that type: Arrow would copy one that has it already."""
    return column if column.type == arrow else column.cast(arrow)


def us_column(times: pa.Array | pa.ChunkedArray) -> I64:
    if isinstance(times, pa.ChunkedArray) and times.num_chunks == 1:
        times = times.chunk(0)
    seen = isinstance(times, pa.Array) and pa.types.is_timestamp(times.type) and not times.null_count
    numbers: I64 = (times.view(pa.int64()) if seen else times.cast(pa.int64())).to_numpy()  # a view is quicker
    return numbers


def time_column(us: I64) -> pa.Array:
    return pa.array(us, pa.int64()).cast(INSTANT)


def as_column(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """Python's values as a column; RecordRejected or one of Arrow's errors if they are of another type."""
    if not pa.types.is_nested(arrow):
        return pa.array(values, arrow)
    return to_batch([{"x": value} for value in values], _column_of(arrow), extra="forbid", topic="views").column(0)


@cache
def _column_of(arrow: pa.DataType) -> pa.Schema:
    return pa.schema([("x", arrow)])


def sort_by_key(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows, sorted by these columns: null is the least, NaN the greatest. Numbers are sorted, not values: many rows
    have few different windows and groups."""
    if not names or rows.num_rows < 2 or (len(names) == 1 and _is_sorted(rows[names[0]])):
        return rows
    order = Groups(row_numbers([rows[name].combine_chunks() for name in names], rows.num_rows)).order
    return rows if order is None else rows.take(pa.array(order))


def _is_sorted(column: pa.ChunkedArray) -> bool:
    """As ids often are, which are made of positions."""
    plain = pa.types.is_string(column.type) or pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)
    if not plain or column.null_count:
        return False
    whole = column.combine_chunks()
    return bool(pc.all(pc.less_equal(whole[:-1], whole[1:])).as_py())


def numbered(rows: pa.Table, names: Iterable[str]) -> I64:
    """A number for each row: the same for those that have the same values in these columns. Numbers are given from 0
    on, in the order of the rows that are the first with their values."""
    number: I64 | None = None
    for name in names:
        few = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        found = few.indices.to_numpy().astype(np.int64)
        if number is not None:
            found = pa.array(number * len(few.dictionary) + found).dictionary_encode().indices.to_numpy()
        number = found.astype(np.int64, copy=False)
    return np.zeros(rows.num_rows, np.int64) if number is None else number
