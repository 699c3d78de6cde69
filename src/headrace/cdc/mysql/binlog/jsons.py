"""MySQL's binary JSON as text, written as MySQL itself writes it. Pure. (MariaDB's JSON is a text.)"""

from __future__ import annotations

import base64
import json
from struct import unpack_from
from typing import Any, Final

from headrace.cdc.mysql.binlog.decimals import decimal_reader
from headrace.cdc.mysql.binlog.events import BadEvent

__all__ = ["json_text"]

_LITERALS: Final = {0: None, 1: True, 2: False}
_NUMBERS: Final = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q", 11: "<d"}
_STRING, _OPAQUE = 12, 15
DEPTH_MAX: Final = 100
"""MySQL's own."""


class Written(float):
    """A number that is written as it stands."""

    text: str

    def __repr__(self) -> str:
        return self.text


def json_text(data: bytes) -> str | None:
    """The document; None for an empty one, which says null."""
    if not data:
        return None
    return _written(_value(data[0], data, 1, 0))


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {_written(v)}" for name, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return value.text if isinstance(value, Written) else json.dumps(value, ensure_ascii=False)


def _value(kind: int, data: bytes, at: int, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise BadEvent("a JSON document is nested too deeply")
    if kind in (0, 1, 2, 3):
        return _container(kind, data, at, depth)
    if kind == 4:
        if data[at] not in _LITERALS:
            raise BadEvent(f"a JSON document has a literal {data[at]}")
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return unpack_from(_NUMBERS[kind], data, at)[0]
    if kind == _STRING:
        length, at = _length(data, at)
        return data[at : at + length].decode()
    if kind == _OPAQUE:
        length, begin = _length(data, at + 1)
        return _opaque(data[at], data[begin : begin + length])
    raise BadEvent(f"a JSON document has a value of the type {kind}")


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits in a byte; the eighth says that there are more."""
    found = shift = 0
    while True:
        byte = data[at]
        found, shift, at = found | (byte & 0x7F) << shift, shift + 7, at + 1
        if not byte & 0x80:
            return found, at


def _container(kind: int, data: bytes, at: int, depth: int) -> Any:
    """Small ones have offsets of two bytes, large ones of four; what fits there is in place of its offset."""
    code, size = ("<I", 4) if kind & 1 else ("<H", 2)
    count = unpack_from(code, data, at)[0]
    entries = at + 2 * size
    names = []
    if kind < 2:
        for number in range(count):
            place = entries + number * (size + 2)
            begin = at + unpack_from(code, data, place)[0]
            length = unpack_from("<H", data, place + size)[0]
            names.append(data[begin : begin + length].decode())
        entries += count * (size + 2)
    values = []
    for number in range(count):
        place = entries + number * (size + 1)
        inner = data[place]
        inlined = inner in (4, 5, 6) or (size == 4 and inner in (7, 8))
        begin = place + 1 if inlined else at + unpack_from(code, data, place + 1)[0]
        values.append(_value(inner, data, begin, depth + 1))
    return dict(zip(names, values, strict=True)) if kind < 2 else values


def _opaque(kind: int, data: bytes) -> Any:
    """What JSON has no type for: decimals are numbers, dates and times texts."""
    if kind == 246:
        number = Written(0)
        number.text = decimal_reader(data[0], data[1])(data, 2)[0]
        return number
    if kind in (7, 10, 11, 12):
        packed = int.from_bytes(data[:8], "little", signed=True)
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        micros, packed = packed & 0xFFFFFF, packed >> 24
        clock = f"{packed >> 6 & 63:02d}:{packed & 63:02d}.{micros:06d}"
        if kind == 11:
            return f"{sign}{packed >> 12 & 1023:02d}:{clock}"
        months, day = packed >> 22, packed >> 17 & 31
        date = f"{months // 13:04d}-{months % 13:02d}-{day:02d}"
        return date if kind == 10 else f"{date} {packed >> 12 & 31:02d}:{clock}"
    return f"base64:type{kind}:{base64.b64encode(data).decode()}"
