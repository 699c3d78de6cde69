"""Postgres' values as Debezium's connector encodes them, with its default settings: precise decimals, times as precise
as the column, intervals as microseconds. Owns the types; pure but for a column's kind, which the catalog knows."""

from __future__ import annotations

import base64
import datetime as dt
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from importlib.metadata import version
from typing import Any, Final

from headrace.cdc.change import Transaction
from headrace.cdc.envelopes.encoding import (
    DATA,
    DECIMAL,
    POINT,
    SNAPSHOT,
    TIME,
    Found,
    as_texts,
    base64_of,
    checked,
    masking,
    plain,
    said,
    semantic,
    unscaled,
)
from headrace.cdc.envelopes.writing import PLACEHOLDER, Encoded, SourceFacts
from headrace.cdc.postgres.types import Kind, read_array
from headrace.cdc.tables import Column, Known, NotHeld

__all__ = ["encoded", "facts_of"]

EPOCH: Final = dt.datetime(1970, 1, 1)
DAYS_PER_MONTH: Final = 365.25 / 12
_INTERVAL: Final = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)
_ENDS: Final = {"infinity": dt.datetime.max, "-infinity": dt.datetime.min}


def facts_of(database: str) -> SourceFacts:
    """`database`: its name. The version is headrace's."""

    def table(known: Known) -> dict[str, Any]:
        return {"db": database, "schema": known.schema, "table": known.name}

    def place(transaction: Transaction | None, at: int | None, behind: int | None) -> dict[str, Any]:
        sequence = f"[{_quoted(behind)},{_quoted(at if at is not None else behind)}]"
        number = None if transaction is None else transaction.number
        return {"txId": number, "sequence": sequence, "lsn": at, "xmin": None, "origin": None, "origin_lsn": None}

    def id_of(transaction: Transaction, at: int) -> str:
        return f"{transaction.number}:{at}"

    return SourceFacts("postgresql", version("headrace"), table, place, id_of, _SOURCE)


def _quoted(lsn: int | None) -> str:
    return "null" if lsn is None else f'"{lsn}"'


def encoded(
    columns: Sequence[Column], kind_of: Callable[[Column], Kind], masks: Mapping[str, str], secret: bytes
) -> list[Encoded]:
    found = []
    for column in columns:
        if column.name in masks:
            found.append(masking(column.name, masks[column.name], secret, as_texts))
            continue
        kind, convert = _type_of(kind_of(column))
        read = checked(column.name, _of_text(convert))
        found.append(Encoded(column.name, kind, read, _as_text, _unavailable(kind)))
    return found


def _of_text(convert: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: convert(value.decode() if isinstance(value, bytes) else value)


def _same(value: Any) -> Any:
    return value


def _unavailable(kind: Mapping[str, Any]) -> Any:
    if kind["type"] == "bytes":
        return base64.b64encode(PLACEHOLDER.encode()).decode()
    if kind["type"] == "array":
        return [PLACEHOLDER] if kind["items"]["type"] == "string" else [*PLACEHOLDER.encode()]
    return PLACEHOLDER


# -- types ---------------------------------------------------------------------------------------------


def _type_of(kind: Kind) -> Found:
    if kind.element is not None:
        inner, convert = _type_of(kind.element)
        items = {"type": inner["type"], "optional": True, **{name: inner[name] for name in inner if name != "type"}}
        return {"type": "array", "items": items}, lambda text: [
            None if each is None else convert(each) for each in read_array(text)
        ]
    digits = (kind.modifier - 4) >> 16 if kind.modifier >= 4 else 0
    if kind.name == "numeric":
        if not digits:
            return {**_VARIABLE}, _variable
        scale = (((kind.modifier - 4) & 0x7FF) ^ 1024) - 1024
        return semantic(
            "bytes", DECIMAL, scale=str(scale), connect__decimal__precision=str(digits)
        ), lambda text: unscaled(Decimal(text), scale)
    precise = not 0 <= kind.modifier <= 3
    if kind.name == "timestamp":
        if precise:
            return semantic("int64", f"{TIME}MicroTimestamp"), lambda text: _us(_moment(text) - EPOCH)
        return semantic("int64", f"{TIME}Timestamp"), lambda text: _us(_moment(text) - EPOCH) // 1000
    if kind.name == "time":
        if precise:
            return semantic("int64", f"{TIME}MicroTime"), _clock_us
        return semantic("int32", f"{TIME}Time"), lambda text: _clock_us(text) // 1000
    if kind.name == "timestamptz":
        digits = kind.modifier if kind.modifier >= 0 else 6
        return semantic("string", f"{TIME}ZonedTimestamp"), lambda text: _instant(text, digits)
    if kind.name in ("bit", "varbit"):
        if kind.name == "bit" and kind.modifier == 1:
            return plain("boolean", lambda text: text == "1")
        length = str(kind.modifier if kind.modifier > 0 else 0x7FFFFFFF)
        return semantic("bytes", f"{DATA}Bits", length=length), _bits
    return _TYPES.get(kind.name) or plain("string", _same)


def _us(span: dt.timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _moment(text: str) -> dt.datetime:
    if text in _ENDS:
        return _ENDS[text]
    if text.endswith(" BC"):
        raise NotHeld("a date is before the year 1")
    return dt.datetime.fromisoformat(text)


def _instant(text: str, digits: int) -> str:
    """In UTC, with as many digits as the column has."""
    found = _moment(text.removesuffix("+00")).isoformat(timespec="microseconds")
    return found[: 20 + digits].removesuffix(".") + "Z"


def _clock_us(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)


def _zoned_clock(text: str) -> str:
    """In UTC: Postgres writes the zone that the value has."""
    found = dt.datetime.fromisoformat(f"2000-01-02T{text}").astimezone(dt.UTC)
    return found.strftime("%H:%M:%S") + (f".{found.microsecond:06}".rstrip("0") if found.microsecond else "") + "Z"


def _interval(text: str) -> int:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError
    years, months, days, hours, minutes = (int(each or 0) for each in match.groups()[:5])
    whole = (12 * years + months) * DAYS_PER_MONTH + days
    rest = Decimal(match[6] or 0) * 1_000_000
    return int(whole * 86_400_000_000) + (hours * 60 + minutes) * 60_000_000 + int(rest)


def _variable(text: str) -> dict[str, Any]:
    found = Decimal(text)
    scale = max(0, -int(found.as_tuple().exponent)) if found.is_finite() else 0
    return {"scale": scale, "value": unscaled(found, scale)}


def _bits(text: str) -> str:
    return base64.b64encode(int(text or "0", 2).to_bytes((len(text) + 7) // 8, "little")).decode()


def _float(text: str) -> float | str:
    """JSON has no number for the others."""
    return text if text in ("NaN", "Infinity", "-Infinity") else float(text)


def _money(text: str) -> str:
    number = int(re.sub(r"\D", "", text))
    return base64_of(-number if "-" in text or "(" in text else number)


def _point(text: str) -> dict[str, Any]:
    """Little-endian well-known binary, of type 1."""
    x, y = map(float, text.strip("()").split(","))
    return {"x": x, "y": y, "wkb": base64.b64encode(struct.pack("<BIdd", 1, 1, x, y)).decode(), "srid": None}


_VARIABLE: Final[dict[str, Any]] = {
    "type": "struct",
    "fields": [
        {"type": "int32", "optional": False, "field": "scale"},
        {"type": "bytes", "optional": False, "field": "value"},
    ],
    "name": f"{DATA}VariableScaleDecimal",
    "version": 1,
    "doc": "Variable scaled decimal",
}
_TYPES: Final[dict[str, Found]] = {
    "bool": plain("boolean", lambda text: text == "t"),
    "int2": plain("int16", int),
    "int4": plain("int32", int),
    "int8": plain("int64", int),
    "oid": plain("int64", int),
    "float4": plain("float", _float),
    "float8": plain("double", _float),
    "bytea": plain("bytes", lambda text: base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()),
    "date": (semantic("int32", f"{TIME}Date"), lambda text: (_moment(text) - EPOCH).days),
    "timetz": (semantic("string", f"{TIME}ZonedTime"), _zoned_clock),
    "interval": (semantic("int64", f"{TIME}MicroDuration"), _interval),
    "json": (semantic("string", f"{DATA}Json"), _same),
    "jsonb": (semantic("string", f"{DATA}Json"), _same),
    "uuid": (semantic("string", f"{DATA}Uuid"), _same),
    "money": (semantic("bytes", DECIMAL, scale="2"), _money),
    "point": (POINT, _point),
    "xml": (semantic("string", f"{DATA}Xml"), _same),
    "ltree": (semantic("string", f"{DATA}Ltree"), _same),
    "tsvector": (semantic("string", f"{DATA}Tsvector"), _same),
}


def _as_text(value: Any) -> Any:
    """A value of the topic, as Postgres writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ") + ("+00" if value.tzinfo is not None else "")
    if isinstance(value, list):
        return f"{{{','.join(_element(_as_text(each)) for each in value)}}}"
    return str(value)


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_SOURCE: Final = [
    *(said("string", each, False) for each in ("version", "connector", "name")),
    said("int64", "ts_ms", False),
    SNAPSHOT,
    said("string", "db", False),
    said("string", "sequence"),
    *(said("int64", each) for each in ("ts_us", "ts_ns")),
    *(said("string", each, False) for each in ("schema", "table")),
    *(said("int64", each) for each in ("txId", "lsn", "xmin")),
    said("string", "origin"),
    said("int64", "origin_lsn"),
]  # fmt: skip
