"""Postgres' types as types of topics, and the text of its values as these. One decoder for what a snapshot copies and
for what the stream sends, a column at a time. Pure; `Kind` says of a type what the catalog knows of it.

Exact: numeric(p,s) is a decimal; numeric without digits, or with more than 38, is text as Postgres writes it. Types
that topics do not have (uuid, json, ranges, enums, intervals, addresses, …) are text, too. Timestamps 'infinity' are
the last, '-infinity' the first microsecond that Python's datetime knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.cdc.tables import NotHeld
from headrace.schema import TIMESTAMP, TIMESTAMP_NTZ

__all__ = ["Kind", "arrow_type", "column_of", "key_type", "read_array"]

PLAIN: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamptz": TIMESTAMP,
    "timestamp": TIMESTAMP_NTZ,
}
DIGITS_MAX: Final = 38
_ENDS: Final = {"infinity": "9999-12-31 23:59:59.999999", "-infinity": "0001-01-01 00:00:00"}
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?(\+00)?")


@dataclass(frozen=True, slots=True)
class Kind:
    """A column's type in Postgres: the name of the plain type (that of a domain's base), and its modifier. `element`:
    of an array."""

    name: str
    modifier: int = -1
    element: Kind | None = None


def arrow_type(kind: Kind) -> pa.DataType:
    if kind.element is not None:
        return pa.list_(arrow_type(kind.element))
    if kind.name == "numeric" and kind.modifier >= 4:
        digits, scale = (kind.modifier - 4) >> 16, _signed_scale(kind.modifier)
        if digits <= DIGITS_MAX and 0 <= scale <= digits:
            return pa.decimal128(digits, scale)
    return PLAIN.get(kind.name, pa.string())


def _signed_scale(modifier: int) -> int:
    """Since Postgres 15 a scale has eleven bits, and may be negative."""
    return (((modifier - 4) & 0x7FF) ^ 1024) - 1024


def key_type(kind: Kind) -> pa.DataType:
    """Of a column that is part of the key: what cannot be one in a topic is text there."""
    found = arrow_type(kind)
    t = pa.types
    fits = t.is_string(found) or t.is_integer(found) or t.is_date32(found) or t.is_boolean(found) or t.is_binary(found)
    return found if fits else pa.string()


def column_of(texts: Sequence[bytes | None] | pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values of one column; NotHeld if one of them cannot be told in that type."""
    try:
        values = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise NotHeld("a value is no text in UTF-8") from None
    if pa.types.is_string(wanted):
        return values
    if pa.types.is_boolean(wanted):
        return pc.equal(values, "t")
    if pa.types.is_binary(wanted):
        return pa.array([None if text is None else _bytes(text) for text in values.to_pylist()], pa.binary())
    if pa.types.is_list(wanted):
        return _lists(values, wanted)
    try:
        return pc.cast(values, wanted)
    except pa.ArrowInvalid:
        return _one_by_one(values, wanted)


def _bytes(text: str) -> bytes:
    """`\\x00ff`: the session says bytea_output=hex."""
    if not text.startswith("\\x"):
        raise NotHeld("a bytea is not in hex")
    return bytes.fromhex(text[2:])


def _one_by_one(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """What Arrow does not read at once: timestamps without an end, and what no topic can hold."""
    if pa.types.is_timestamp(wanted) or pa.types.is_date32(wanted):
        is_day = pa.types.is_date32(wanted)
        form = _DAY if is_day else _TIME

        def told(text: str) -> str:
            if text in _ENDS:
                text = _ENDS[text][:10] if is_day else _ENDS[text]
            if not form.fullmatch(text):
                raise NotHeld("a date is before the year 1 or after 9999")
            return text if is_day or wanted.tz is None or text.endswith("+00") else f"{text}+00"

        return pc.cast(pa.array([None if each is None else told(each) for each in values.to_pylist()]), wanted)
    if pa.types.is_decimal(wanted):
        raise NotHeld("a numeric is no number, or has more digits than its column says")
    raise NotHeld(f"a value is no {wanted}")


def _lists(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Each level of nesting by itself: its texts are one column again."""
    offsets, inner = [0], list[str | None]()
    for text in values.to_pylist():
        if text is not None:
            inner.extend(read_array(text))
        offsets.append(len(inner))
    flat = column_of(pa.array(inner, pa.string()), wanted.value_type)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), flat, type=wanted, mask=pc.is_null(values) if values.null_count else None
    )


_ELEMENT: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|((?:[^",{}\\]|\\.)+)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def read_array(text: str) -> list[str | None]:
    """The elements of an array of one dimension, as texts: `{1,NULL,"a \\"b\\""}`; `[2:3]={1,2}` has them, too."""
    if text.startswith("["):
        text = text.partition("=")[2]
    if not (text.startswith("{") and text.endswith("}")):
        raise NotHeld("a value is no array")
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        if text[at] == "{":
            raise NotHeld("an array has several dimensions")
        match = _ELEMENT.match(text, at)
        if match is None or (match.end() < end and text[match.end()] != ","):
            raise NotHeld("a value is no array")
        quoted, plain = match.groups()
        if plain is not None and plain.upper() == "NULL":
            found.append(None)
        else:
            found.append(_ESCAPED.sub(r"\1", plain if quoted is None else quoted))
        at = match.end() + 1
    return found
