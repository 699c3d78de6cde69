"""Rows made up from a schema, to try a transform on before there are real ones.

Owns the values: edges of each type (null, zero, negative, empty, not a number, far dates, unicode), and plain ones that
most functions can stand. The same schema always gives the same rows. Knows Arrow, no Spark."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

__all__ = ["edge_rows", "plain_rows"]

ROWS: Final = 240
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_TEXTS: Final = (
    "", " ", "a", "A", "0", "-1", "1.5", "ü", "日本語", "e\u0301", "\U0001f701", "'\"`\\", "null", "a,b\nc", "x" * 300,
    "2026-01-01T00:00:00Z", '{"a": 1}',
)  # fmt: skip
_TIMES: Final = (
    datetime(1970, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(2026, 3, 29, 1, 30),  # skipped by some clocks
    datetime(2024, 2, 29),
    datetime(1, 1, 2),
    datetime(9999, 12, 30, 23, 59, 59, 999_999),
)


def edge_rows(schema: pa.Schema) -> pa.Table:
    """Rows of edge values, with metadata columns as a log would give them."""
    return _table(schema, edges=True)


def plain_rows(schema: pa.Schema) -> pa.Table:
    """Rows of ordinary values: small positive numbers, texts that are numbers, days of one month, no nulls."""
    return _table(schema, edges=False)


def _table(schema: pa.Schema, *, edges: bool) -> pa.Table:
    columns = []
    for at, field in enumerate(schema):
        meta = _META.get(field.name)
        values: list[Any]
        if meta:
            values = [meta(row) for row in range(ROWS)]
            if not field.nullable:
                values = [_BEGIN if value is None else value for value in values]
        else:
            choice = _values(field.type, edges)
            if edges and field.nullable:
                choice = [*choice, None]
            values = [choice[_pick(at, row, len(choice))] for row in range(ROWS)]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


_META: Final[dict[str, Callable[[int], Any]]] = {
    "_partition": lambda row: row % 2,
    "_offset": lambda row: row // 2,
    "_arrived_at": lambda row: _BEGIN + timedelta(seconds=row),
    "_progress": lambda row: None if row < 2 else _BEGIN + timedelta(seconds=row - 3),
}


def _pick(column: int, row: int, among: int) -> int:
    """Each value at least once, then any mixture: columns must not go in step."""
    return row if row < among else zlib.crc32(b"%d/%d" % (column, row)) % among


def _values(arrow: pa.DataType, edges: bool) -> list[Any]:
    t = pa.types
    if t.is_boolean(arrow):
        return [True, False]
    if t.is_integer(arrow):
        top = 2 ** (arrow.bit_width - 1)
        return [0, 1, -1, 2, -7, 100, top - 1, -top] if edges else list(range(1, 10))
    if t.is_floating(arrow):
        nan, inf = float("nan"), float("inf")
        return [0.0, -0.0, 1.5, -2.25, nan, inf, -inf, 3e38, 1e-40] if edges else [0.5 * n for n in range(1, 10)]
    if t.is_string(arrow):
        return list(_TEXTS) if edges else [str(n) for n in range(1, 10)]
    if t.is_binary(arrow):
        return [b"", b"\x00", b"\xff\xfe", b"abc"] if edges else [b"%d" % n for n in range(1, 10)]
    if t.is_date(arrow):
        return [time.date() for time in _TIMES] if edges else [date(2026, 1, n) for n in range(1, 10)]
    if t.is_timestamp(arrow):
        times = _TIMES if edges else [datetime(2026, 1, 1, 0, n) for n in range(1, 10)]
        return [time.replace(tzinfo=UTC) if arrow.tz else time for time in times]
    if t.is_decimal(arrow):
        unit, most = Decimal((0, (1,), -arrow.scale)), Decimal((0, (9,) * arrow.precision, -arrow.scale))
        plain = [Decimal(0), unit] + ([Decimal(1)] if arrow.precision > arrow.scale else [])
        return [*plain, most, most.copy_negate()] if edges else plain
    if t.is_struct(arrow):
        fields = [(arrow.field(i), _values(arrow.field(i).type, edges)) for i in range(arrow.num_fields)]
        return [{field.name: some[n % len(some)] for field, some in fields} for n in range(4)]
    if t.is_map(arrow):
        keys, items = _values(arrow.key_type, edges), _values(arrow.item_type, edges)
        filled = [[(keys[n], items[n % len(items)])] for n in range(2)]
        return [[], *filled, filled[0] + filled[1]] if edges else filled
    some = _values(arrow.value_type, edges)
    return [[], some[:1], [*some[:2], None]] if edges else [some[:1], some[:2]]
