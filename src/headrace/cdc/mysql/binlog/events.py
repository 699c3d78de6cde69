"""The events of a binlog, of MySQL and MariaDB. Pure: bytes in, values out; the values of rows are `images.py`'s. Knows
no connection. `BadEvent` for bytes that are no event, or whose checksum is wrong."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

__all__ = [
    "BadEvent",
    "Begin",
    "Commit",
    "Event",
    "Header",
    "Prepared",
    "Refused",
    "Rotate",
    "Rows",
    "Statement",
    "TableMap",
    "WireColumn",
    "checksummed",
    "decode",
    "ends_with_checksum",
    "header_of",
    "is_mariadb",
]

HEADER_BYTES: Final = 19
CRC_BYTES: Final = 4
ARTIFICIAL: Final = 0x20
"""A flag of events that are in no file: the server made them for whoever reads."""
QUERY, ROTATE, FORMAT, XID, TABLE_MAP = 2, 4, 15, 16, 19
INCIDENT, HEARTBEAT, PARTIAL_ROWS, PAYLOAD = 26, 27, 39, 40
GTIDS, XA_PREPARE, QUERY_COMPRESSED, MARIADB_GTID = (33, 34, 42), 38, 165, 162
_ROWS: Final = {
    **{23: "insert", 24: "update", 25: "delete", 30: "insert", 31: "update", 32: "delete"},
    **{166: "insert", 167: "update", 168: "delete", 169: "insert", 170: "update", 171: "delete"},
}
_WIDE: Final = {30, 31, 32, 169, 170, 171}
"""Rows of the second version, which have a header of their own length."""
_STANDALONE, _PREPARED = 1, 64
_HEADER, _QUERY_HEAD, _GTID = Struct("<IBIIIH"), Struct("<IIBHH"), Struct("<QIB")


class BadEvent(ValueError):
    """Bytes that are no event of a binlog."""


class Header(NamedTuple):
    """`end`: where the event ends in its file; 0 for one that is in no file. `at`: when the server wrote it, in
    seconds."""

    at: int
    kind: int
    server: int
    size: int
    end: int
    flags: int


class Rotate(NamedTuple):
    """The next events are of this file."""

    file: str
    position: int


class Begin(NamedTuple):
    """A group of events begins. `gtid`: "" where the server has none. `standalone`: it is a single statement.
    `prepared`: of a transaction that another one commits, or not (XA)."""

    gtid: str = ""
    number: int = 0
    standalone: bool = False
    prepared: bool = False


class Commit(NamedTuple):
    number: int


class Prepared(NamedTuple):
    """The group is a transaction that waits for XA COMMIT, or does not wait (`committed`)."""

    committed: bool


class Statement(NamedTuple):
    schema: str
    text: str


class WireColumn(NamedTuple):
    """`type` and `meta` as in the binlog; `name` is "" unless binlog_row_metadata is FULL. `charset`: number of the
    collation, 63 for bytes. `elements`: of an enum or a set."""

    name: str
    type: int
    meta: int
    charset: int = 63
    elements: tuple[bytes, ...] = ()


class TableMap(NamedTuple):
    """From here on, rows of this number are of this table."""

    number: int
    schema: str
    table: str
    columns: tuple[WireColumn, ...]


class Rows(NamedTuple):
    """`data`: images of rows, one after the other (pairs of them for an update). `whole`: each has all columns."""

    op: str
    number: int
    columns: int
    whole: bool
    data: bytes


class Refused(NamedTuple):
    """An event that a capture cannot do without, and cannot read: what to do."""

    why: str


Event = Rotate | Begin | Commit | Prepared | Statement | TableMap | Rows | Refused


def header_of(data: bytes) -> Header:
    try:
        found = Header(*_HEADER.unpack_from(data))
    except StructError:
        raise BadEvent(f"an event of {len(data)} bytes has no header") from None
    if found.size != len(data):
        raise BadEvent(f"an event has {len(data)} bytes, and says {found.size}")
    return found


def checksummed(data: bytes) -> bool:
    """What the first event of a file says: whether events end with a checksum."""
    if len(data) < HEADER_BYTES + 57 + 1 + CRC_BYTES:
        raise BadEvent("the server does not say whether events have checksums: it is too old")
    return data[-CRC_BYTES - 1] == 1


def ends_with_checksum(data: bytes) -> bool:
    """Of an event before the first that says it: whether its last bytes are one."""
    return zlib.crc32(data[:-CRC_BYTES]) == int.from_bytes(data[-CRC_BYTES:], "little")


def is_mariadb(data: bytes) -> bool:
    """What the first event of a file says of its server."""
    return b"mariadb" in data[HEADER_BYTES + 2 : HEADER_BYTES + 52].lower()


def decode(data: bytes, header: Header, *, checksum: bool, mariadb: bool = True) -> Event | None:
    """One event; None for what says nothing of rows."""
    if checksum:
        if not ends_with_checksum(data):
            raise BadEvent("the checksum of an event is wrong")
        data = data[:-CRC_BYTES]
    try:
        if header.kind in _ROWS:
            return _rows(data, header.kind)
        if header.kind == TABLE_MAP:
            return _table_map(data, _TEXTS | {GEOMETRY} if mariadb else _TEXTS)
        read = _READERS.get(header.kind)
        return None if read is None else read(data)
    except (StructError, IndexError, ValueError, zlib.error) as error:
        raise BadEvent(f"an event of kind {header.kind} and {len(data)} bytes ends early: {error}") from None


def length_at(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None:
        raise BadEvent("a length is none")
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _uncompressed(data: bytes) -> bytes:
    """MariaDB's: a byte with the method and the size of the length, the length, then zlib."""
    size = data[0] & 7
    return zlib.decompress(data[1 + size :])


def _query(data: bytes) -> Event:
    return _statement(data, data[HEADER_BYTES + 13 :])


def _query_compressed(data: bytes) -> Event:
    return _statement(data, data[HEADER_BYTES + 13 :], compressed=True)


def _statement(data: bytes, body: bytes, *, compressed: bool = False) -> Event:
    _, _, schema_length, _, more = _QUERY_HEAD.unpack_from(data, HEADER_BYTES)
    schema = body[more : more + schema_length].decode("utf-8", "replace")
    said = body[more + schema_length + 1 :]
    text = (_uncompressed(said) if compressed else said).decode("utf-8", "replace")
    first = text[:16].strip().upper()
    if first == "BEGIN":
        return Begin()
    if first == "COMMIT":
        return Commit(0)
    return Statement(schema, text)


def _rotate(data: bytes) -> Event:
    return Rotate(data[HEADER_BYTES + 8 :].decode(), int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 8], "little"))


def _mariadb_gtid(data: bytes) -> Event:
    sequence, domain, flags = _GTID.unpack_from(data, HEADER_BYTES)
    server = int.from_bytes(data[5:9], "little")
    return Begin(f"{domain}-{server}-{sequence}", sequence, bool(flags & _STANDALONE), bool(flags & _PREPARED))


def _mysql_gtid(data: bytes) -> Event | None:
    """What follows says whether it is a transaction."""
    source, number = data[HEADER_BYTES + 1 : HEADER_BYTES + 17].hex(), data[HEADER_BYTES + 17 : HEADER_BYTES + 25]
    text = f"{source[:8]}-{source[8:12]}-{source[12:16]}-{source[16:20]}-{source[20:]}"
    return Begin(f"{text}:{int.from_bytes(number, 'little')}", int.from_bytes(number, "little"), standalone=True)


def _xid(data: bytes) -> Event:
    return Commit(int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 8], "little"))


def _rows(data: bytes, kind: int) -> Event:
    at = HEADER_BYTES + 8
    number = int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 6], "little")
    if kind in _WIDE:
        at += int.from_bytes(data[at : at + 2], "little")
    count, at = length_at(data, at)
    size, op = (count + 7) // 8, _ROWS[kind]
    whole = True
    for _ in range(2 if op == "update" else 1):
        whole = whole and sum(byte.bit_count() for byte in data[at : at + size]) >= count
        at += size
    rows = data[at:]
    return Rows(op, number, count, whole, _uncompressed(rows) if kind >= 166 else rows)


_META_BYTES: Final = {
    **{4: 1, 5: 1, 15: 2, 16: 2, 17: 1, 18: 1, 19: 1, 140: 1, 141: 2, 242: 1, 245: 1, 246: 2, 247: 2, 248: 2},
    **{249: 1, 250: 1, 251: 1, 252: 1, 253: 2, 254: 2, 255: 1},
}
ENUM, SET, STRING, GEOMETRY = 247, 248, 254, 255
_TEXTS: Final = {15, 140, 141, 252, 253, STRING}
"""Types of columns that have a character set in a table map; in MariaDB shapes have one, too."""


def real_type(kind: int, meta: int) -> tuple[int, int]:
    """Enums, sets and long CHARs hide behind STRING: the type, and its length."""
    if kind != STRING:
        return kind, meta
    first, length = meta & 0xFF, meta >> 8
    if first & 0x30 != 0x30:
        return first | 0x30, length | ((first & 0x30) ^ 0x30) << 4
    return first, length


def _table_map(data: bytes, texts: Collection[int]) -> Event:
    at = HEADER_BYTES + 8
    number = int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 6], "little")
    length = data[at]
    schema, at = data[at + 1 : at + 1 + length].decode(), at + length + 2
    length = data[at]
    table, at = data[at + 1 : at + 1 + length].decode(), at + length + 2
    count, at = length_at(data, at)
    types, at = data[at : at + count], at + count
    length, at = length_at(data, at)
    metas, end = [], at + length
    for kind in types:
        size = _META_BYTES.get(kind, 0)
        metas.append(int.from_bytes(data[at : at + size], "little"))
        at += size
    if at != end or len(types) != count:
        raise BadEvent(f"the columns of table {table!r} end early")
    at += (count + 7) // 8
    columns = [WireColumn("", *real_type(kind, meta)) for kind, meta in zip(types, metas, strict=True)]
    return TableMap(number, schema, table, tuple(_with_metadata(columns, data, at, texts)))


def _with_metadata(columns: list[WireColumn], data: bytes, at: int, kinds: Collection[int]) -> list[WireColumn]:
    """What binlog_row_metadata=FULL adds: names, character sets, elements."""
    texts = [place for place, column in enumerate(columns) if column.type in kinds]
    chosen = [place for place, column in enumerate(columns) if column.type in (ENUM, SET)]
    while at < len(data):
        kind = data[at]
        length, at = length_at(data, at + 1)
        field, at = data[at : at + length], at + length
        if kind == 4:
            for place, name in enumerate(_strings(field)):
                columns[place] = columns[place]._replace(name=name.decode())
        elif kind in (2, 3, 10, 11):
            places = texts if kind < 10 else chosen
            for place, charset in zip(places, _charsets(field, len(places), kind in (2, 10)), strict=True):
                columns[place] = columns[place]._replace(charset=charset)
        elif kind in (5, 6):
            wanted = [place for place in chosen if columns[place].type == (SET if kind == 5 else ENUM)]
            for place, elements in zip(wanted, _lists(field), strict=True):
                columns[place] = columns[place]._replace(elements=elements)
    return columns


def _strings(field: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(field):
        length, at = length_at(field, at)
        found.append(field[at : at + length])
        at += length
    return found


def _lists(field: bytes) -> list[tuple[bytes, ...]]:
    found, at = [], 0
    while at < len(field):
        count, at = length_at(field, at)
        elements = []
        for _ in range(count):
            length, at = length_at(field, at)
            elements.append(field[at : at + length])
            at += length
        found.append(tuple(elements))
    return found


def _charsets(field: bytes, count: int, default: bool) -> list[int]:
    numbers, at = [], 0
    while at < len(field):
        number, at = length_at(field, at)
        numbers.append(number)
    if not default:
        return numbers
    others = dict(zip(numbers[1::2], numbers[2::2], strict=True))
    return [others.get(place, numbers[0]) for place in range(count)]


_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    QUERY: _query,
    QUERY_COMPRESSED: _query_compressed,
    ROTATE: _rotate,
    MARIADB_GTID: _mariadb_gtid,
    **dict.fromkeys(GTIDS, _mysql_gtid),
    XID: _xid,
    XA_PREPARE: lambda data: Prepared(bool(data[HEADER_BYTES])),
    INCIDENT: lambda _: Refused("the server says that its log misses changes (an incident)"),
    PARTIAL_ROWS: lambda _: Refused("the log has parts of JSON documents: SET GLOBAL binlog_row_value_options = ''"),
    PAYLOAD: lambda _: Refused("the log is compressed: SET GLOBAL binlog_transaction_compression = OFF"),
}
