"""Values as Debezium has them in JSON, and the types of topics that they become. Owns the types of Kafka Connect and
Debezium's semantic types, by their schema or, where events have none, by the type that a column was given. Pure.

Exact: a Decimal is a decimal(p,s); one without a precision, or with more than 38 digits, is text, and so is a
VariableScaleDecimal. Times of day are text (`12:30:00`), durations ISO 8601. Nanoseconds are cut to microseconds."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from headrace.cdc.envelopes.writing import PLACEHOLDER
from headrace.cdc.tables import Column, NotHeld
from headrace.durations import parse_iso
from headrace.schema import TIMESTAMP, TIMESTAMP_NTZ, parse_ddl, type_ddl

__all__ = ["column_of_ddl", "columns_of", "is_placeholder", "key_type", "reader_of", "type_of"]

Convert = Callable[[Any], Any]
DIGITS_MAX: Final = 38
_CONTEXT: Final = Context(prec=200_000)
EPOCH: Final = datetime(1970, 1, 1)
PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int16(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_CONNECT: Final = "org.apache.kafka.connect.data."
_TIMESTAMPS: Final = {
    "io.debezium.time.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1,
    "io.debezium.time.NanoTimestamp": -1_000,
    f"{_CONNECT}Timestamp": 1_000,
}
_TIMES: Final = {
    "io.debezium.time.Time": 1_000,
    "io.debezium.time.MicroTime": 1,
    "io.debezium.time.NanoTime": -1_000,
    f"{_CONNECT}Time": 1_000,
}
_DAYS: Final = ("io.debezium.time.Date", f"{_CONNECT}Date")
_DURATIONS: Final = {"io.debezium.time.MicroDuration": 1, "io.debezium.time.NanoDuration": -1_000}
_DECIMAL: Final = f"{_CONNECT}Decimal"
_KEPT: Final = ("scale", "connect.decimal.precision", "length")
"""The parameters that are part of what a type is: the values of an enum are not."""


# -- columns -------------------------------------------------------------------------------------------


def columns_of(fields: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The columns of a row's schema."""
    return tuple(Column(each["field"], json.dumps(_spec(each), sort_keys=True)) for each in fields)


def column_of_ddl(name: str, kind: pa.DataType, unit: str, decimals: str) -> Column:
    """A column of which only its type here was given. `unit`: of times that are numbers; `decimals`: "precise" (bytes)
    or "string"."""
    return Column(name, json.dumps({"ddl": type_ddl(kind), "unit": unit, "decimals": decimals}, sort_keys=True))


def _spec(said: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": said["type"]}
    if (said.get("name") and said["type"] != "struct") or str(said.get("name", "")).startswith("io.debezium."):
        found["name"] = said["name"]
    parameters = {name: value for name, value in (said.get("parameters") or {}).items() if name in _KEPT}
    if parameters:
        found["parameters"] = parameters
    if said["type"] == "array" and isinstance(said.get("items"), Mapping):
        found["items"] = _spec(said["items"])
    return found


def type_of(column: Column) -> pa.DataType:
    """In the topic."""
    return _read(json.loads(str(column.type)))[0]


def key_type(kind: pa.DataType) -> pa.DataType:
    """Of a column that is part of the key: what cannot be one in a topic is text there."""
    t = pa.types
    fits = t.is_string(kind) or t.is_integer(kind) or t.is_date32(kind) or t.is_boolean(kind) or t.is_binary(kind)
    return kind if fits else pa.string()


def reader_of(column: Column, wanted: pa.DataType) -> Callable[[Sequence[Any]], pa.Array]:
    """Values as JSON has them, as a column of a topic; NotHeld if one of them cannot be told in that type."""
    found, convert = _read(json.loads(str(column.type)))
    text = pa.types.is_string(wanted) and not pa.types.is_string(found)  # a key's

    def read(values: Sequence[Any]) -> pa.Array:
        try:
            told = [None if value is None else convert(value) for value in values]
            return pa.array([None if each is None else str(each) for each in told] if text else told, wanted)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError, KeyError) as error:
            if isinstance(error, NotHeld):
                raise
            raise NotHeld(f"a value of {column.name!r} is no {type_ddl(wanted)} as Debezium writes it") from None

    return read


def _read(spec: Mapping[str, Any]) -> tuple[pa.DataType, Convert]:
    if "ddl" in spec:
        kind = parse_ddl(f"c {spec['ddl']}").field(0).type
        return kind, _converter(kind, spec["unit"], spec["decimals"] == "string")
    kind, name, parameters = spec["type"], spec.get("name", ""), spec.get("parameters", {})
    if name == _DECIMAL:
        return _decimal(parameters)
    if name in _TIMESTAMPS:
        scale = _TIMESTAMPS[name]
        return TIMESTAMP_NTZ, lambda value: EPOCH + timedelta(microseconds=_us(value, scale))
    if name in _TIMES:
        scale = _TIMES[name]
        return pa.string(), lambda value: _clock(_us(value, scale))
    if name in _DAYS:
        return pa.date32(), _day
    if name in _DURATIONS:
        scale = _DURATIONS[name]
        return pa.string(), lambda value: _duration(_us(value, scale))
    if name == "io.debezium.time.ZonedTimestamp":
        return TIMESTAMP, _instant
    if name == "io.debezium.data.VariableScaleDecimal":
        return pa.string(), lambda value: str(_scaled(value))
    if name == "io.debezium.data.Bits":
        length = int(parameters.get("length", 0))
        return pa.string(), lambda value: _bits(value, length)
    if kind == "array" and "items" in spec:
        inner, convert = _read(spec["items"])
        return pa.list_(inner), lambda value: [None if each is None else convert(each) for each in value]
    if kind in PLAIN:
        return PLAIN[kind], _converter(PLAIN[kind])
    return pa.string(), _text  # structs and maps


# -- values --------------------------------------------------------------------------------------------


def _us(value: Any, scale: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotHeld("a time is no number")
    return value * scale if scale > 0 else value // -scale


def _day(value: Any) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else date(1970, 1, 1) + timedelta(days=value)


def _clock(us: int) -> str:
    """MySQL's times of day may be negative, and longer than a day."""
    sign, us = ("-", -us) if us < 0 else ("", us)
    seconds, rest = divmod(us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    part = f".{rest:06}".rstrip("0") if rest else ""
    return f"{sign}{hour:02}:{minute:02}:{second:02}{part}"


def _duration(us: int) -> str:
    """ISO 8601, in hours, minutes and seconds: Debezium has made of months and days what it takes them for."""
    sign, us = ("-", -us) if us < 0 else ("", us)
    seconds, rest = divmod(us, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    part = f".{rest:06}".rstrip("0") if rest else ""
    told = f"{f'{sign}{hours}H' if hours else ''}{f'{sign}{minute}M' if minute else ''}"
    return f"PT{told}" + (f"{sign}{second}{part}S" if second or rest or not told else "")


def _instant(value: Any) -> datetime:
    found = parse_iso(value)
    if found is None or found.tzinfo is None:
        raise NotHeld("an instant has no zone")
    return found.astimezone(UTC)


def _scaled(value: Any) -> Decimal:
    return _unscaled(value["value"], int(value["scale"]))


def _unscaled(text: str, scale: int) -> Decimal:
    number = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
    return Decimal(number).scaleb(-scale, _CONTEXT) if scale else Decimal(number)


def _decimal(parameters: Mapping[str, str]) -> tuple[pa.DataType, Convert]:
    scale, precision = int(parameters.get("scale", 0)), int(parameters.get("connect.decimal.precision", 0))

    def convert(value: Any) -> Decimal:
        return _unscaled(value, scale)

    if 0 < precision <= DIGITS_MAX and 0 <= scale <= precision:
        return pa.decimal128(precision, scale), convert
    return pa.string(), lambda value: f"{convert(value):f}"


def _bits(value: str, length: int) -> str:
    number = int.from_bytes(base64.b64decode(value, validate=True), "little")
    return f"{number:0{length or 1}b}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _converter(kind: pa.DataType, unit: str = "us", digits: bool = False) -> Convert:
    """By the type in the topic: for plain types, and for events without a schema."""
    t = pa.types
    if t.is_decimal(kind):
        return lambda value: _decimal_of(value, kind.scale, digits)
    if t.is_timestamp(kind):
        return lambda value: _time_of(value, unit, kind.tz is not None)
    if t.is_date32(kind):
        return _day
    if t.is_binary(kind):
        return lambda value: base64.b64decode(value, validate=True)
    if t.is_floating(kind):
        return float
    if t.is_string(kind):
        return lambda value: str(_scaled(value)) if _is_scaled(value) else _text(value)
    if t.is_list(kind):
        inner = _converter(kind.value_type, unit, digits)
        return lambda value: [None if each is None else inner(each) for each in value]
    return lambda value: value


def _is_scaled(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"scale", "value"}


def _decimal_of(value: Any, scale: int, digits: bool) -> Decimal:
    if _is_scaled(value):
        return _scaled(value)
    if isinstance(value, str) and not digits:
        return _unscaled(value, scale)
    return Decimal(value if isinstance(value, str) else repr(value))


def _time_of(value: Any, unit: str, zoned: bool) -> datetime:
    if isinstance(value, str):
        found = _instant(value)
        return found if zoned else found.replace(tzinfo=None)
    at = EPOCH + timedelta(microseconds=_us(value, {"ms": 1_000, "us": 1, "ns": -1_000}[unit]))
    return at.replace(tzinfo=UTC) if zoned else at


# -- values that Debezium does not know ------------------------------------------------------------------

_BYTES: Final = PLACEHOLDER.encode()
_UNAVAILABLE: Final = (
    PLACEHOLDER,
    base64.b64encode(_BYTES).decode(),
    json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
)
_UNAVAILABLE_PARTS: Final = (
    [PLACEHOLDER],
    [*_BYTES],
    [float(each) for each in _BYTES],
    [str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3))],
    {PLACEHOLDER: PLACEHOLDER},
)


def is_placeholder(value: Any) -> bool:
    """Whether it stands for a large value that an update did not touch."""
    if isinstance(value, str):
        return value in _UNAVAILABLE
    return isinstance(value, list | dict) and value in _UNAVAILABLE_PARTS
