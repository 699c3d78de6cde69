"""The messages of pgoutput, Postgres' own plugin for logical replication (protocol version 1, `messages` on, streaming
off). Pure: bytes in, values out. Knows no connection and no types. `BadMessage` for bytes that are no message.

Values of columns are what Postgres' output functions say: bytes of text, None for null, `UNCHANGED` for a large value
that an update did not touch (Postgres keeps those apart, and does not read them to send them)."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from headrace.cdc.change import UNCHANGED, Row
from headrace.cdc.tables import Column

__all__ = [
    "EPOCH_US",
    "BadMessage",
    "Begin",
    "Commit",
    "Delete",
    "Insert",
    "Logical",
    "Message",
    "Origin",
    "Relation",
    "Truncate",
    "TypeName",
    "Update",
    "decode",
]

EPOCH_US: Final = 946_684_800_000_000
"""Postgres counts microseconds from 2000-01-01."""


class BadMessage(ValueError):
    """Bytes that are not a message of pgoutput."""


class Begin(NamedTuple):
    """`final`: where the commit's record begins."""

    final: int
    at_us: int
    xid: int


class Commit(NamedTuple):
    """`commit`: where the commit's record begins; `end`: where it ends. Since Postgres 17 the next transaction's first
    change may lie at `end`, too."""

    commit: int
    end: int
    at_us: int


class Relation(NamedTuple):
    """`identity`: d(efault), i(ndex), f(ull) or n(othing)."""

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[Column, ...]


class Insert(NamedTuple):
    oid: int
    new: Row


class Update(NamedTuple):
    """`old`: None, if the identity has not changed; `whole`: it is all of the old row, not only its identity."""

    oid: int
    old: Row | None
    whole: bool
    new: Row


class Delete(NamedTuple):
    oid: int
    old: Row
    whole: bool


class Truncate(NamedTuple):
    oids: tuple[int, ...]
    cascade: bool
    restart: bool


class TypeName(NamedTuple):
    oid: int
    namespace: str
    name: str


class Origin(NamedTuple):
    commit: int
    name: str


class Logical(NamedTuple):
    """What `pg_logical_emit_message` wrote."""

    transactional: bool
    at: int
    prefix: str
    content: bytes


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate | TypeName | Origin | Logical

_U16, _U32, _U64 = Struct(">H"), Struct(">I"), Struct(">Q")
_BEGIN, _COMMIT, _RELATION_COLUMN = Struct(">QqI"), Struct(">BQQq"), Struct(">Ii")
_NULL, _TEXT, _SAME = b"ntu"
_NEW, _KEY, _OLD = b"NKO"
_u32 = _U32.unpack_from


def decode(data: bytes) -> Message:
    """One message."""
    try:
        read = _READERS[data[0]]
    except (KeyError, IndexError):
        raise BadMessage(f"no message of pgoutput begins with {data[:1]!r}") from None
    try:
        found: Message
        found, end = read(data)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise BadMessage(f"a message {data[:1]!r} of {len(data)} bytes ends early, or has no text: {error}") from None
    if end != len(data):
        raise BadMessage(f"a message {data[:1]!r} has {len(data)} bytes, and ends after {end}")
    return found


def _row(data: bytes, at: int) -> tuple[Row, int]:
    """A row, and where it ends."""
    count = data[at] << 8 | data[at + 1]
    at += 2
    row: list[Any] = []
    add = row.append
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            begin = at + 5
            at = begin + _u32(data, at + 1)[0]
            add(data[begin:at])
        elif kind == _NULL:
            add(None)
            at += 1
        elif kind == _SAME:
            add(UNCHANGED)
            at += 1
        else:
            raise BadMessage(f"a column is of kind {kind:#x}: neither text, null nor unchanged")
    if at > len(data):
        raise BadMessage("a row ends behind its message")
    return tuple(row), at


def _insert(data: bytes) -> tuple[Insert, int]:
    _expect(data[5], _NEW)
    row, at = _row(data, 6)
    return Insert(_u32(data, 1)[0], row), at


def _update(data: bytes) -> tuple[Update, int]:
    old, kind, at = None, data[5], 6
    if kind in (_KEY, _OLD):
        old, at = _row(data, 6)
        _expect(data[at], _NEW)
        at += 1
    else:
        _expect(kind, _NEW)
    new, at = _row(data, at)
    return Update(_u32(data, 1)[0], old, kind == _OLD, new), at


def _delete(data: bytes) -> tuple[Delete, int]:
    if data[5] not in (_KEY, _OLD):
        raise BadMessage(f"a delete has {data[5]:#x} where the old row begins")
    row, at = _row(data, 6)
    return Delete(_u32(data, 1)[0], row, data[5] == _OLD), at


def _expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise BadMessage(f"found {found:#x} where a row begins with {wanted:#x}")


def _begin(data: bytes) -> tuple[Begin, int]:
    final, at, xid = _BEGIN.unpack_from(data, 1)
    return Begin(final, at + EPOCH_US, xid), 21


def _commit(data: bytes) -> tuple[Commit, int]:
    _, commit, end, at = _COMMIT.unpack_from(data, 1)
    return Commit(commit, end, at + EPOCH_US), 26


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise BadMessage("a name has no end")
    return data[at:end].decode(), end + 1


def _relation(data: bytes) -> tuple[Relation, int]:
    oid = _u32(data, 1)[0]
    namespace, at = _text(data, 5)
    name, at = _text(data, at)
    identity, count = chr(data[at]), _U16.unpack_from(data, at + 1)[0]
    at += 3
    columns = []
    for _ in range(count):
        in_identity = bool(data[at] & 1)
        column, at = _text(data, at + 1)
        kind, modifier = _RELATION_COLUMN.unpack_from(data, at)
        at += 8
        columns.append(Column(column, kind, modifier, in_identity))
    return Relation(oid, namespace or "pg_catalog", name, identity, tuple(columns)), at


def _truncate(data: bytes) -> tuple[Truncate, int]:
    count, options = _u32(data, 1)[0], data[5]
    end = 6 + 4 * count
    if end > len(data):
        raise BadMessage(f"a truncate of {count} tables in {len(data)} bytes")
    oids = tuple(_u32(data, at)[0] for at in range(6, end, 4))
    return Truncate(oids, bool(options & 1), bool(options & 2)), end


def _type(data: bytes) -> tuple[TypeName, int]:
    namespace, at = _text(data, 5)
    name, at = _text(data, at)
    return TypeName(_u32(data, 1)[0], namespace or "pg_catalog", name), at


def _origin(data: bytes) -> tuple[Origin, int]:
    name, at = _text(data, 9)
    return Origin(_U64.unpack_from(data, 1)[0], name), at


def _logical(data: bytes) -> tuple[Logical, int]:
    prefix, at = _text(data, 10)
    length = _u32(data, at)[0]
    end = at + 4 + length
    if end > len(data):
        raise BadMessage("a logical message ends early")
    return Logical(bool(data[1] & 1), _U64.unpack_from(data, 2)[0], prefix, data[at + 4 : end]), end


_READERS: Final[dict[int, Callable[[bytes], tuple[Any, int]]]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("Y"): _type,
    ord("O"): _origin,
    ord("M"): _logical,
}
