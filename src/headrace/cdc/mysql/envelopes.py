"""MySQL's values as Debezium's connectors for MySQL and MariaDB encode them, with their default settings: precise
decimals, times as precise as the column, unsigned bigints as signed ones. Owns the types. Values come as a snapshot, a
binlog or a topic has them."""

from __future__ import annotations

import base64
import datetime as dt
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from importlib.metadata import version
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.cdc.change import Transaction
from headrace.cdc.envelopes.encoding import (
    DATA,
    DECIMAL,
    POINT,
    SNAPSHOT,
    TIME,
    Found,
    checked,
    masking,
    plain,
    said,
    semantic,
    unscaled,
)
from headrace.cdc.envelopes.writing import Encoded, SourceFacts
from headrace.cdc.mysql.types import Kind, arrow_type, kind_of, reader_of, text_of
from headrace.cdc.rows import Read
from headrace.cdc.tables import Column, Known, NotHeld

__all__ = ["encoded", "facts_of"]

EPOCH: Final = dt.datetime(1970, 1, 1)
LARGEST: Final = 2**63 - 1
_ELEMENT: Final = re.compile(r"'((?:[^']|'')*)'")
_INTEGERS: Final = {"tinyint": "int16", "smallint": "int16", "mediumint": "int32", "int": "int32", "bigint": "int64"}
_UNSIGNED: Final = {"smallint": "int32", "int": "int64"}
_BYTES: Final = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_SHAPES: Final = {
    *("geometry", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    *("geometrycollection", "geomcollection"),
}


def facts_of(
    connector: str, place: Callable[[Transaction | None, int | None], dict[str, Any]], group: Callable[[int], str]
) -> SourceFacts:
    """`connector`: "mysql" or "mariadb". `place`: what a source says of a change; `group`: the id of the transaction of
    the change at a place. The version is headrace's."""

    def table(known: Known) -> dict[str, Any]:
        return {"db": known.schema, "table": known.name}

    def at_place(transaction: Transaction | None, at: int | None, behind: int | None) -> dict[str, Any]:
        return {"sequence": None, "thread": None, "query": None, **place(transaction, behind if at is None else at)}

    return SourceFacts(connector, version("headrace"), table, at_place, lambda _, at: group(at), _SOURCE)


def encoded(columns: Sequence[Column], masks: Mapping[str, str], secret: bytes) -> list[Encoded]:
    found = []
    for column in columns:
        kind = kind_of(str(column.type))
        if column.name in masks:
            found.append(masking(column.name, masks[column.name], secret, _as_in_topic(kind)))
            continue
        said_, convert = _type_of(kind, str(column.type))
        found.append(Encoded(column.name, said_, checked(column.name, convert), lambda value: value))
    return found


def _as_in_topic(kind: Kind) -> Read:
    """A value as the topic would have it, unmasked: of a snapshot it is a text, as whole columns of one are."""
    wanted = arrow_type(kind)
    assert wanted is not None, "its shape was made"
    read = reader_of(kind, wanted)
    return lambda values: read(pa.array(values, pa.string()) if isinstance(values[0], str) else values)


def _type_of(kind: Kind, written: str) -> Found:
    if kind.name in _INTEGERS:
        width = _UNSIGNED.get(kind.name) if kind.unsigned else None
        return plain(width or _INTEGERS[kind.name], _whole)
    if kind.name == "decimal":
        digits, scale = (*kind.sizes, 10, 0)[:2] if len(kind.sizes) != 1 else (kind.sizes[0], 0)
        precise = semantic("bytes", DECIMAL, scale=str(scale), connect__decimal__precision=str(digits))
        return precise, lambda value: unscaled(Decimal(str(value)), scale)
    if kind.name == "bit":
        size = kind.sizes[0] if kind.sizes else 1
        if size == 1:
            return plain("boolean", lambda value: bool(int(value)))
        length = (size + 7) // 8
        return semantic("bytes", f"{DATA}Bits", length=str(size)), lambda value: _bytes(
            int(value).to_bytes(length, "little")
        )
    if kind.name == "datetime":
        if kind.digits > 3:
            return semantic("int64", f"{TIME}MicroTimestamp"), lambda value: _moment_us(value, kind)
        return semantic("int64", f"{TIME}Timestamp"), lambda value: _floor(_moment_us(value, kind), 1000)
    if kind.name == "timestamp":
        return semantic("string", f"{TIME}ZonedTimestamp"), lambda value: _instant(value, kind)
    if kind.name in ("enum", "set"):
        allowed = ",".join(each.replace("''", "'") for each in _ELEMENT.findall(written))
        name = f"{DATA}{'Enum' if kind.name == 'enum' else 'EnumSet'}"
        return semantic("string", name, allowed=allowed), str
    if kind.name in _BYTES:
        return plain("bytes", _bytes)
    if kind.name in _SHAPES:
        return _GEOMETRY, _geometry
    return _TYPES.get(kind.name) or plain("string", str)


# -- values --------------------------------------------------------------------------------------------


def _whole(value: Any) -> int:
    found = int(value)
    if found > LARGEST:
        raise NotHeld("an unsigned number has no place in 64 bits with a sign")
    return found


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _moment(value: Any, kind: Kind) -> dt.datetime | None:
    """Without a zone; None for a date with a zero in it, which is no time."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    text = text_of(value, kind) or ""
    if text.startswith("0000") or "-00" in text[:10]:
        return None
    return dt.datetime.fromisoformat(text)


def _us(span: dt.timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _moment_us(value: Any, kind: Kind) -> int | None:
    found = _moment(value, kind)
    return None if found is None else _us(found - EPOCH)


def _floor(us: int | None, unit: int) -> int | None:
    return None if us is None else us // unit


def _instant(value: Any, kind: Kind) -> str | None:
    found = _moment(value, kind)
    if found is None:
        return None
    written = found.isoformat(timespec="microseconds")
    return (written[: 20 + kind.digits] if kind.digits else written[:19]) + "Z"


def _day(value: Any) -> int | None:
    found = _moment(str(value), Kind("date"))
    return None if found is None else (found - EPOCH).days


def _clock(value: Any) -> int:
    """In microseconds; it may be negative, and longer than a day."""
    text = str(value)
    hours, minutes, seconds = text.lstrip("-").split(":")
    us = (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)
    return -us if text.startswith("-") else us


def _geometry(value: bytes) -> dict[str, Any]:
    """Four bytes with the number of the reference system, then well-known binary."""
    (srid,) = struct.unpack_from("<I", value)
    return {"wkb": _bytes(value[4:]), "srid": srid or None}


def _point(value: bytes) -> dict[str, Any]:
    x, y = struct.unpack_from("<dd", value, 9)
    return {"x": x, "y": y, **_geometry(value)}


_WKB: Final = [said("bytes", "wkb", False), said("int32", "srid")]
_GEOMETRY: Final = {
    "type": "struct",
    "fields": _WKB,
    "name": f"{DATA}geometry.Geometry",
    "version": 1,
    "doc": "Geometry",
}
_TYPES: Final[dict[str, Found]] = {
    "float": plain("float", lambda value: float(str(np.float32(value)))),
    "double": plain("double", float),
    "date": (semantic("int32", f"{TIME}Date"), _day),
    "time": (semantic("int64", f"{TIME}MicroTime"), _clock),
    "year": (semantic("int32", f"{TIME}Year"), int),
    "json": (semantic("string", f"{DATA}Json"), str),
    "point": (POINT, _point),
}
_SOURCE: Final = [
    *(said("string", each, False) for each in ("version", "connector", "name")),
    said("int64", "ts_ms", False),
    SNAPSHOT,
    said("string", "db", False),
    said("string", "sequence"),
    *(said("int64", each) for each in ("ts_us", "ts_ns")),
    said("string", "table"),
    said("int64", "server_id", False),
    said("string", "gtid"),
    said("string", "file", False),
    said("int64", "pos", False),
    said("int32", "row", False),
    said("int64", "thread"),
    said("string", "query"),
]
