"""MySQL's types as types of topics, and values of its columns as these. One reader for what a snapshot copies (texts,
in Arrow) and for what the binlog says (values of `binlog.images`). Pure.

Exact: decimals are decimals up to 38 digits, else text; an unsigned bigint is a decimal(20,0). What topics do not have
(enum, set, json, time, uuid, …) is text. The zero date, and dates with a zero in them, are null."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.cdc.rows import Read
from headrace.cdc.tables import NotHeld
from headrace.schema import TIMESTAMP, TIMESTAMP_NTZ

__all__ = ["Kind", "arrow_type", "key_type", "kind_of", "reader_of", "text_of"]

_SIGNED: Final = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "bigint": 64}
_UNSIGNED: Final = {"tinyint": 16, "smallint": 32, "mediumint": 32, "int": 64}
_INTEGERS: Final = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_TEXTS: Final = {
    *("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "time"),
    *("uuid", "inet4", "inet6"),
}
_BYTES: Final = {
    *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point", "linestring"),
    *("polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection"),
}
_PLAIN: Final[dict[str, pa.DataType]] = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": TIMESTAMP_NTZ,
    "timestamp": TIMESTAMP,
    "year": pa.int16(),
    **dict.fromkeys(_TEXTS, pa.string()),
    **dict.fromkeys(_BYTES, pa.binary()),
}
DIGITS_MAX: Final = 38
_TYPE: Final = re.compile(r"(\w+)(?:\(([^)]*)\))?(.*)", re.DOTALL)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Kind:
    """A column's type: `decimal`, its `sizes` (10, 2), whether it has no sign."""

    name: str
    sizes: tuple[int, ...] = ()
    unsigned: bool = False

    @property
    def digits(self) -> int:
        """Of seconds, behind the point."""
        return self.sizes[0] if self.sizes else 0


def kind_of(column_type: str) -> Kind:
    """`decimal(10,2) unsigned`, as the catalog says it."""
    found = _TYPE.match(column_type)
    assert found is not None
    name, inside, rest = found[1].lower(), found[2] or "", found[3].lower()
    sizes = tuple(int(each) for each in inside.split(",")) if re.fullmatch(r"[\d,]+", inside) else ()
    return Kind({"integer": "int", "numeric": "decimal"}.get(name, name), sizes, "unsigned" in rest)


def arrow_type(kind: Kind) -> pa.DataType | None:
    """None for one that is unknown here."""
    if kind.name in _SIGNED:
        if not kind.unsigned:
            return _INTEGERS[_SIGNED[kind.name]]
        return _INTEGERS[_UNSIGNED[kind.name]] if kind.name in _UNSIGNED else pa.decimal128(20, 0)
    if kind.name == "decimal":
        digits, scale = (*kind.sizes, 10, 0)[:2] if len(kind.sizes) != 1 else (kind.sizes[0], 0)
        return pa.decimal128(digits, scale) if digits <= DIGITS_MAX else pa.string()
    if kind.name == "bit":
        bits = kind.sizes[0] if kind.sizes else 1
        return pa.bool_() if bits == 1 else pa.int64() if bits < 64 else pa.decimal128(20, 0)
    return _PLAIN.get(kind.name)


def key_type(kind: Kind) -> pa.DataType | None:
    """Of a column that is part of the key: what cannot be one in a topic is text there."""
    found, t = arrow_type(kind), pa.types
    if found is None or t.is_floating(found):
        return None
    fits = t.is_string(found) or t.is_integer(found) or t.is_date32(found) or t.is_boolean(found) or t.is_binary(found)
    return found if fits else pa.string()


def reader_of(kind: Kind, wanted: pa.DataType) -> Read:
    def read(values: Sequence[Any] | pa.Array) -> pa.Array:
        try:
            if isinstance(values, pa.Array):
                return _from_texts(values, wanted)
            if pa.types.is_string(wanted):
                return pa.array([text_of(value, kind) for value in values], pa.string())
            return _from_values(values, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
            raise NotHeld(f"a value cannot be held by a column of the type {wanted}") from None

    return read


def text_of(value: Any, kind: Kind) -> str | None:
    """A value of the binlog as the server writes it."""
    if value is None:
        return None
    if isinstance(value, str):
        return value
    if kind.name == "timestamp":
        said: str = (_EPOCH + value * _MICROSECOND).strftime("%Y-%m-%d %H:%M:%S.%f")
        return said[: 20 + kind.digits] if kind.digits else said[:19]
    return bytes(value).hex() if isinstance(value, bytes) else str(value)


def _from_values(values: Sequence[Any], wanted: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_binary(wanted) or t.is_integer(wanted) or t.is_floating(wanted):
        return pa.array(values, wanted)
    if wanted == TIMESTAMP:
        return pa.array(values, pa.int64()).cast(wanted)
    if t.is_boolean(wanted):
        return pa.array([None if value is None else bool(value) for value in values], wanted)
    if t.is_decimal(wanted) and any(isinstance(value, int) for value in values):
        return pa.array(values, pa.decimal128(20, 0)).cast(wanted)
    return _from_texts(pa.array(values, pa.string()), wanted)


def _from_texts(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    t = pa.types
    if values.type == wanted:
        return values
    if t.is_boolean(wanted):
        return pc.equal(values, "1")
    if t.is_date(wanted) or t.is_timestamp(wanted):
        zero = pc.or_(pc.starts_with(values, "0000"), pc.match_substring(values, "-00"))
        values = pc.if_else(zero, pa.scalar(None, pa.string()), values)
    if wanted == TIMESTAMP:
        return pc.cast(values, TIMESTAMP_NTZ).cast(pa.int64()).cast(wanted)
    return pc.cast(values, wanted)
