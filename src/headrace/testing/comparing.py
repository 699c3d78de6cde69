"""Rows as expected beside rows as found: which are missing, which were not expected; a table that shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.durations import from_us, instant_us, parse_iso

Cells = tuple[Any, ...]
SHOWN = 30
"""So many rows of a kind are shown, the rest counted."""


def cells(row: Mapping[str, Any] | Cells, columns: Sequence[str], schema: pa.Schema) -> Cells:
    """An expected row, its texts as the columns have them."""
    values = [row[name] for name in columns] if isinstance(row, Mapping) else row
    return tuple(_value(value, schema.field(name).type, name) for value, name in zip(values, columns, strict=True))


def _value(value: Any, kind: pa.DataType, column: str) -> Any:
    if not isinstance(value, str):
        return value
    if pa.types.is_timestamp(kind):
        return parse_iso(value) if kind.tz is None else from_us(instant_us(value, argument=column))
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    return Decimal(value) if pa.types.is_decimal(kind) else value


def matched(expected: Sequence[Cells], found: Sequence[Cells]) -> tuple[list[Cells], list[Cells], list[Cells]]:
    """Those that are in both, those that are missing, those that were not expected."""
    same, missing, left = [], [], list(found)
    for row in expected:
        for number, other in enumerate(left):
            if all(map(_equal, row, other)):
                same.append(left.pop(number))
                break
        else:
            missing.append(row)
    return same, missing, left


def _equal(expected: Any, found: Any) -> bool:
    """A number that is none equals itself here; anything with an `==` of its own may be expected (pytest.approx)."""
    return bool(expected == found) or (expected != expected and found != found)


def table(columns: Sequence[str], kinds: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Rows below their columns, each behind what it is."""
    lines = [("", *columns)]
    for kind, rows in kinds.items():
        lines += [(kind, *row) for row in rows[:SHOWN]]
        if len(rows) > SHOWN:
            lines.append((kind, f"and {len(rows) - SHOWN} more", *[""] * (len(columns) - 1)))
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def texts(rows: Sequence[Cells]) -> list[tuple[str, ...]]:
    return [tuple(map(shown, row)) for row in rows]


def shown(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, date | Decimal) else repr(value)
