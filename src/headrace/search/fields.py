"""What the columns of a stream are for stored queries: texts, which are searched by words, and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Fields", "Kind", "fields_of"]

Kind = Literal["text", "value", "integer", "double", "decimal", "boolean", "timestamp", "date"]


@dataclass(frozen=True)
class Fields:
    """`kinds`: by column. Columns of other types cannot be asked for. `text`: the columns that words are looked for
    in, in order."""

    text: tuple[str, ...]
    kinds: Mapping[str, Kind]


def fields_of(schema: Any, text: Sequence[str]) -> Fields:
    """Of a `pyarrow.Schema`."""
    import pyarrow as pa

    kinds: dict[str, Kind] = {}
    for each in schema:
        kind: Kind | None = None
        if pa.types.is_string(each.type) or pa.types.is_large_string(each.type):
            kind = "text" if each.name in text else "value"
        elif pa.types.is_integer(each.type):
            kind = "integer"
        elif pa.types.is_floating(each.type):
            kind = "double"
        elif pa.types.is_decimal(each.type):
            kind = "decimal"
        elif pa.types.is_boolean(each.type):
            kind = "boolean"
        elif pa.types.is_timestamp(each.type):
            kind = "timestamp"
        elif pa.types.is_date(each.type):
            kind = "date"
        if kind is not None:
            kinds[each.name] = kind
    return Fields(tuple(text), kinds)
