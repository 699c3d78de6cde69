"""Images of rows in a binlog: the bytes of each column as a value. Pure. One decoder is made for each column of a table
map; what its bytes mean is in the map, but for two things that only the catalog knows: whether a number has a sign, and
MariaDB's own types (uuid, inet).

Dates are texts as SQL writes them, decimals are texts, timestamps are microseconds since 1970 in UTC (None for the zero
date), intervals of time are texts; enums and sets are their names. Bytes that end early are a BadEvent."""

from __future__ import annotations

import ipaddress
import uuid
import zlib
from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from headrace.cdc.mysql.binlog.decimals import decimal_reader
from headrace.cdc.mysql.binlog.events import BadEvent, WireColumn
from headrace.cdc.mysql.binlog.jsons import json_text

__all__ = ["Value", "decoder_of", "rows_of"]

Value = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value that begins there; where it ends."""


def rows_of(data: bytes, decoders: Sequence[Value]) -> list[tuple[Any, ...]]:
    """All images, in order."""
    rows, at, count, end = [], 0, len(decoders), len(data)
    size = (count + 7) // 8
    try:
        while at < end:
            nulls = int.from_bytes(data[at : at + size], "little")
            at += size
            row: list[Any] = []
            add = row.append
            if nulls:
                for place, read in enumerate(decoders):
                    if nulls >> place & 1:
                        add(None)
                    else:
                        value, at = read(data, at)
                        add(value)
            else:
                for read in decoders:
                    value, at = read(data, at)
                    add(value)
            rows.append(tuple(row))
    except (StructError, IndexError, zlib.error) as error:
        raise BadEvent(f"the image of a row ends early: {error}") from None
    if at != end:
        raise BadEvent("the image of a row ends behind its event")
    return rows


def _fixed(code: str) -> Value:
    struct = Struct(code)
    unpack, size = struct.unpack_from, struct.size
    return lambda data, at: (unpack(data, at)[0], at + size)


def _number(size: int, signed: bool) -> Value:
    return lambda data, at: (int.from_bytes(data[at : at + size], "little", signed=signed), at + size)


def _bytes(size: int, made: Callable[[bytes], Any] = lambda data: data) -> Value:
    """Bytes with their length before them."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        begin = at + size
        end = begin + int.from_bytes(data[at:begin], "little")
        if end > len(data):
            raise IndexError("a value is longer than its event")
        return made(data[begin:end]), end

    return read


def _bit(meta: int) -> Value:
    bits, size = meta & 0xFF, meta >> 8
    length = size + (1 if bits else 0)
    return lambda data, at: (int.from_bytes(data[at : at + length], "big"), at + length)


def _fraction(digits: int) -> tuple[int, int]:
    """How many bytes it has, and what a unit of them is in microseconds."""
    size = (digits + 1) // 2
    return size, 10 ** (6 - 2 * size)


def _timestamp(digits: int) -> Value:
    size, unit = _fraction(digits)

    def read(data: bytes, at: int) -> tuple[int | None, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        end = at + 4 + size
        micros = int.from_bytes(data[at + 4 : end], "big") * unit
        return (seconds * 1_000_000 + micros if seconds or micros else None), end

    return read


def _datetime(digits: int) -> Value:
    size, unit = _fraction(digits)

    def read(data: bytes, at: int) -> tuple[str, int]:
        packed = int.from_bytes(data[at : at + 5], "big") - 0x8000000000
        end = at + 5 + size
        months, clock = packed >> 22, packed & 0x1FFFF
        day = packed >> 17 & 31
        said = (
            f"{months // 13:04d}-{months % 13:02d}-{day:02d} {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        )
        if digits:
            said += f".{int.from_bytes(data[at + 5 : end], 'big') * unit:06d}"[: digits + 1]
        return said, end

    return read


def _time(digits: int) -> Value:
    """As the server writes it: `-838:59:59`, with as many digits behind the point as the column has."""
    size, unit = _fraction(digits)
    length = 3 + size

    def read(data: bytes, at: int) -> tuple[str, int]:
        packed = int.from_bytes(data[at : at + length], "big") - (0x800000 << 8 * size)
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        clock, micros = packed >> 8 * size, packed & (1 << 8 * size) - 1
        said = f"{sign}{clock >> 12 & 1023:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        if digits:
            said += "." + f"{micros * unit:06d}"[:digits]
        return said, at + length

    return read


def _date(data: bytes, at: int) -> tuple[str, int]:
    packed = int.from_bytes(data[at : at + 3], "little")
    return f"{packed >> 9:04d}-{packed >> 5 & 15:02d}-{packed & 31:02d}", at + 3


def _year(data: bytes, at: int) -> tuple[int, int]:
    return (data[at] + 1900 if data[at] else 0), at + 1


def _old_datetime(data: bytes, at: int) -> tuple[str, int]:
    said = f"{int.from_bytes(data[at : at + 8], 'little'):014d}"
    return f"{said[:4]}-{said[4:6]}-{said[6:8]} {said[8:10]}:{said[10:12]}:{said[12:]}", at + 8


def _old_timestamp(data: bytes, at: int) -> tuple[int | None, int]:
    seconds = int.from_bytes(data[at : at + 4], "little")
    return (seconds * 1_000_000 or None), at + 4


def _old_time(data: bytes, at: int) -> tuple[str, int]:
    packed = int.from_bytes(data[at : at + 3], "little", signed=True)
    said = f"{abs(packed):06d}"
    return f"{'-' if packed < 0 else ''}{said[:-4]}:{said[-4:-2]}:{said[-2:]}", at + 3


def _names(column: WireColumn, text: Callable[[bytes], str]) -> tuple[int, tuple[str, ...]]:
    return column.meta & 0xFF, tuple(map(text, column.elements))


def _enum(column: WireColumn, text: Callable[[bytes], str]) -> Value:
    size, names = _names(column, text)

    def read(data: bytes, at: int) -> tuple[str, int]:
        number = int.from_bytes(data[at : at + size], "little")
        return (names[number - 1] if number else ""), at + size

    return read


def _set(column: WireColumn, text: Callable[[bytes], str]) -> Value:
    size, names = _names(column, text)

    def read(data: bytes, at: int) -> tuple[str, int]:
        bits = int.from_bytes(data[at : at + size], "little")
        return ",".join(name for place, name in enumerate(names) if bits >> place & 1), at + size

    return read


def _decompressed(data: bytes) -> bytes:
    """A column that MariaDB keeps COMPRESSED: a byte with method and header, then zlib without its own header."""
    if not data:
        return b""
    if not data[0]:
        return data[1:]
    return zlib.decompress(data[1 + (data[0] & 7) :], wbits=-15 if data[0] & 8 else 15)


_OWN_TYPES: Final[dict[str, tuple[int, Callable[[bytes], str]]]] = {
    "uuid": (16, lambda data: str(uuid.UUID(bytes=data))),
    "inet6": (16, lambda data: str(ipaddress.IPv6Address(data))),
    "inet4": (4, lambda data: str(ipaddress.IPv4Address(data))),
}


def decoder_of(
    column: WireColumn, encoding: Callable[[int], str], *, type_name: str = "", unsigned: bool = False
) -> Value:
    """`encoding`: of a collation's number, Python's name of its character set. `type_name`: the column's type in the
    catalog, without what is in brackets."""
    kind, meta = column.type, column.meta
    codec = "" if column.charset == 63 else encoding(column.charset)

    def text(data: bytes) -> str:
        return data.decode(codec or "utf-8", "replace")

    def made(data: bytes) -> Any:
        return data.decode(codec, "replace") if codec else data

    match kind:
        case 1 | 2 | 3 | 8:
            code = {1: "b", 2: "h", 3: "i", 8: "q"}[kind]
            return _fixed("<" + (code.upper() if unsigned else code))
        case 9:
            return _number(3, not unsigned)
        case 4:
            return _fixed("<f")
        case 5:
            return _fixed("<d")
        case 246:
            return decimal_reader(meta & 0xFF, meta >> 8)
        case 7:
            return _old_timestamp
        case 17:
            return _timestamp(meta)
        case 12:
            return _old_datetime
        case 18:
            return _datetime(meta)
        case 11:
            return _old_time
        case 19:
            return _time(meta)
        case 10 | 14:
            return _date
        case 13:
            return _year
        case 16:
            return _bit(meta)
        case 247:
            return _enum(column, text)
        case 248:
            return _set(column, text)
        case 245:
            return _bytes(meta, json_text)
        case 15 | 253:
            return _bytes(2 if meta > 255 else 1, made)
        case 141:
            return _bytes(2 if meta > 255 else 1, lambda data: made(_decompressed(data)))
        case 249 | 250 | 251 | 252 | 255:
            return _bytes(meta, made)
        case 140:
            return _bytes(meta, lambda data: made(_decompressed(data)))
        case 254:
            length = 2 if meta > 255 else 1
            if type_name in _OWN_TYPES:
                size, said = _OWN_TYPES[type_name]
                return _bytes(length, lambda data: said(data.ljust(size, b"\0")))
            if not codec:  # BINARY(n): zeros at its end are not written
                return _bytes(length, lambda data: data.ljust(meta, b"\0"))
            return _bytes(length, made)
    raise BadEvent(f"column {column.name!r} is of the type {kind}, which is unknown here")
