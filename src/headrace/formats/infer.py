"""A schema read off data: `produce --create`. Owns the rule which values make which type; pure, reads no files.

JSON: true/false boolean, whole numbers bigint, other numbers double, text string — but timestamp when every text is
ISO 8601 with a zone, date when every one is a day; arrays and objects become array<…> and struct<…>. CSV has only
text: each column gets the first of bigint, double, boolean, date, timestamp, string that takes all of its fields.
Numbers with leading zeros are text (they are codes, not amounts). What could be this or that is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.durations import parse_iso
from headrace.errors import InvalidSchema
from headrace.schema import TIMESTAMP, schema_from

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INT64 = 1 << 63
_ADVICE = "Say what it is: headrace topics create TOPIC SCHEMA, then produce without --create"


@dataclass(slots=True)
class Seen:
    """What was seen of one column, field or element: which kinds, and what is inside."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, Seen] = field(default_factory=dict)
    element: Seen | None = None

    def see(self, value: Any) -> None:
        kind = _kind(value)
        self.kinds.add(kind)
        if kind == "object":
            for name, inner in value.items():
                self.fields.setdefault(name, Seen()).see(inner)
        elif kind == "array":
            self.element = self.element or Seen()
            for inner in value:
                self.element.see(inner)

    def see_text(self, text: str) -> None:
        """A field of a CSV file."""
        self.kinds.add(_kind_of_field(text))


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -_INT64 <= value < _INT64 else "huge"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return _kind_of_text(value)
    return "object" if isinstance(value, Mapping) else "array"


def _kind_of_text(text: str) -> str:
    if not 10 <= len(text) <= 40 or not text[:4].isdecimal():
        return "string"
    try:
        when = parse_iso(text)
    except ValueError:
        return "string"
    if _DAY.fullmatch(text):
        return "date"
    return "string" if when.utcoffset() is None else "timestamp"


def _kind_of_field(text: str) -> str:
    if not text:
        return "null"
    if _INTEGER.fullmatch(text):
        return "bigint" if -_INT64 <= int(text[:21]) < _INT64 and len(text) <= 20 else "string"
    if text[-1].isdecimal() and _NUMBER.fullmatch(text):
        return "double"
    if text in ("NaN", "Infinity", "-Infinity"):
        return "double"
    if text.lower() in ("true", "false"):
        return "boolean"
    return _kind_of_text(text)


# -- to a schema ---------------------------------------------------------------------------------------

_PLAIN = {
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_TEXTS = {"string", "date", "timestamp"}


def schema_of_rows(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """The schema of parsed JSON objects; InvalidSchema names the column that could be this or that."""
    columns: dict[str, Seen] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, Seen()).see(value)
    return _schema(columns, mixed_text=False)


def schema_of_fields(header: list[str], rows: Iterable[list[str]]) -> pa.Schema:
    """The schema of a CSV file's rows."""
    columns = {name: Seen() for name in header}
    for row in rows:
        for name, text in zip(header, row, strict=False):
            columns[name].see_text(text)
    return _schema(columns, mixed_text=True)


def _schema(columns: dict[str, Seen], *, mixed_text: bool) -> pa.Schema:
    if not columns:
        raise InvalidSchema("", f"there are no records to infer it from. {_ADVICE}")
    return schema_from(pa.schema([pa.field(name, _type(seen, name, mixed_text)) for name, seen in columns.items()]))


def _type(seen: Seen, path: str, mixed_text: bool) -> pa.DataType:
    kinds = seen.kinds - {"null"}
    if not kinds:
        what = "is always null or empty" if mixed_text else "is always null"
        raise InvalidSchema(path, f"column {path!r} {what}. {_ADVICE}")
    if len(kinds) > 1 and kinds <= _TEXTS:
        kinds = {"string"}
    if kinds == {"bigint", "double"}:
        kinds = {"double"}
    if len(kinds) > 1 and mixed_text:
        kinds = {"string"}  # it was text all along
    if "huge" in kinds:
        raise InvalidSchema(path, f"column {path!r} has integers beyond 64 bits. {_ADVICE} (as decimal(38, 0), say)")
    if len(kinds) > 1:
        raise InvalidSchema(path, f"column {path!r} is {' and '.join(sorted(kinds))} at once. {_ADVICE}")
    (kind,) = kinds
    if kind == "object":
        if not seen.fields:
            raise InvalidSchema(path, f"column {path!r} is always an empty object. {_ADVICE}")
        inner = [pa.field(name, _type(part, f"{path}.{name}", mixed_text)) for name, part in seen.fields.items()]
        return pa.struct(inner)
    if kind == "array":
        assert seen.element is not None
        return pa.list_(_type(seen.element, f"{path}[]", mixed_text))
    return _PLAIN[kind]
