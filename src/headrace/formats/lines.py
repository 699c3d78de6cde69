"""Arrow batches to lines of JSON, many at a time. Owns a shortcut, not a format: every line is equal to that of
`jsonrows.encode_row`. Plain columns (text, numbers, times) are prepared in Arrow, at C speed, so that a row costs one
dict and one call of orjson. A batch with other columns is encoded row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.jsonrows import encode_row
from headrace.rows import python_values, to_rows
from headrace.schema import EXTRA_COLUMN

__all__ = ["json_lines_of"]


def json_lines_of(batch: pa.RecordBatch) -> list[bytes]:
    """One line per row, without newlines."""
    names, columns = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == EXTRA_COLUMN and column.null_count == len(column):
            continue
        values = _ready(column) if name != EXTRA_COLUMN else None
        if values is None:
            return list(map(encode_row, to_rows(batch)))
        names.append(name)
        columns.append(values)
    if not names:
        return [b"{}"] * batch.num_rows
    dumps: Callable[[Any], bytes] = orjson.dumps
    return [dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _ready(column: pa.Array) -> list[Any] | None:
    """The values as orjson takes them, None when they need more care."""
    t, arrow = pa.types, column.type
    if t.is_string(arrow) or t.is_boolean(arrow):
        return python_values(column)
    if t.is_integer(arrow):
        return python_values(column) if not column.null_count else list(column.to_pylist())
    if t.is_floating(arrow):
        if not pc.all(pc.is_finite(column), skip_nulls=True).as_py() and column.null_count < len(column):
            return None
        return python_values(column) if not column.null_count else list(column.to_pylist())
    if t.is_date32(arrow):
        return python_values(column.cast(pa.string()))
    if t.is_timestamp(arrow) and arrow.unit == "us":
        return python_values(_iso(column, zone="" if arrow.tz is None else "Z"))
    return None


def _iso(column: pa.Array, zone: str) -> pa.Array:
    """`2026-01-31T12:00:00.25` as `datetime.isoformat` writes it: six decimals, or none when they are zero."""
    plain = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    text = pc.replace_substring(pc.utf8_replace_slice(plain, 10, 11, "T"), ".000000", "")
    return pc.binary_join_element_wise(text, zone, "") if zone else text
