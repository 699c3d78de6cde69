"""Keys: their bytes, their partition, their hash.

Owns the published rule by which a key finds its partition, so that other writers can follow it:

- the bytes of a value: text as UTF-8; integers as ASCII decimals; dates as ISO text; booleans as `true` or
  `false`; binary as it is. One key column: these bytes, and none at all for null.
- several key columns: each part as its length in 4 bytes, big-endian, and its bytes; a null part is the length
  0xFFFFFFFF and no bytes.
- partition = crc32(bytes) % partitions, with the crc32 of zlib, gzip and Ethernet.

Two of the vectors in tests/test_keys.py: `"u1"` is 7531, crc32 0x424f9f76, partition 2 of 4; `("u1", 7)` of a
string and an integer is 00000002 7531 00000001 37, crc32 0xf972095b, partition 3 of 4.

Knows batches, not topics or files. In bulk the crc is computed over Arrow's buffers, eight bytes of all rows at a
time; rows with long keys go through zlib one by one, so the cost is linear in the bytes."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from datetime import date, datetime
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InvalidArgument, InvalidSchema, nearest
from headrace.schema import to_ddl, type_ddl

__all__ = ["check_key_columns", "key_bytes", "key_hash", "key_hashes", "partitions_of", "split"]

NULL_LENGTH: Final = 0xFFFFFFFF
HASH_BYTES: Final = 16

_U32 = npt.NDArray[np.uint32]
_I64 = npt.NDArray[np.int64]


# -- one key ---------------------------------------------------------------------------------------


def check_key_columns(schema: pa.Schema, names: Sequence[str]) -> None:
    """Whether these columns can be a key: known, each once, of a type that is equal or not equal."""
    if isinstance(names, str):
        raise InvalidArgument("key", names, "expected a sequence of column names")
    for i, name in enumerate(names):
        at = schema.get_field_index(name) if isinstance(name, str) else -1
        if at < 0:
            hint = nearest(name, schema.names) if isinstance(name, str) else ""
            raise InvalidArgument("key", name, f"is not a column.{hint} Columns are {', '.join(schema.names)}")
        if name in names[:i]:
            raise InvalidArgument("key", name, "is there twice")
        arrow = schema.field(at).type
        if not _is_key_type(arrow):
            why = f"column {name!r} is {type_ddl(arrow)}; a key is string, an integer, date, boolean or binary"
            raise InvalidSchema(to_ddl(schema), why)


def _is_key_type(arrow: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_string(arrow)
        or t.is_signed_integer(arrow)
        or t.is_date32(arrow)
        or t.is_boolean(arrow)
        or t.is_binary(arrow)
    )


def key_bytes(key: object, schema: pa.Schema, columns: Sequence[str]) -> bytes:
    """The bytes of one key as a user gives it: a value for one key column, a tuple for several."""
    if not columns:
        raise InvalidArgument("key", key, "the topic has no key")
    if len(columns) == 1:
        part = _part_bytes(key, schema.field(columns[0]))
        return b"" if part is None else part
    if not isinstance(key, tuple | list) or len(key) != len(columns):
        raise InvalidArgument("key", key, f"the key has {len(columns)} parts: pass a tuple ({', '.join(columns)})")
    parts = [_part_bytes(value, schema.field(name)) for value, name in zip(key, columns, strict=True)]
    return b"".join(
        struct.pack(">I", NULL_LENGTH) if part is None else struct.pack(">I", len(part)) + part for part in parts
    )


def _part_bytes(value: Any, column: pa.Field) -> bytes | None:
    t, arrow = pa.types, column.type
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    if t.is_string(arrow) and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("key", value, "has a lone surrogate, which is no Unicode") from None
    if t.is_integer(arrow) and isinstance(value, int) and not isinstance(value, bool):
        limit = 1 << (arrow.bit_width - 1)
        if not -limit <= value < limit:
            raise InvalidArgument("key", value, f"column {column.name!r} is {type_ddl(arrow)}, {-limit}..{limit - 1}")
        return b"%d" % value
    if t.is_date(arrow) and isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat().encode()
    if t.is_boolean(arrow) and isinstance(value, bool):
        return b"true" if value else b"false"
    if t.is_binary(arrow) and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument("key", value, f"column {column.name!r} is {type_ddl(arrow)}, not {type(value).__name__}")


def key_hash(key: bytes) -> bytes:
    """16 bytes that stand for the key where the key itself must not be kept."""
    return hashlib.blake2b(key, digest_size=HASH_BYTES).digest()


# -- all keys of a batch ---------------------------------------------------------------------------


def key_hashes(batch: pa.RecordBatch, columns: Sequence[str]) -> list[bytes]:
    """`key_hash` of the key of each row."""
    blake2b = hashlib.blake2b
    return [blake2b(key, digest_size=HASH_BYTES).digest() for key in all_key_bytes(batch, columns)]


def all_key_bytes(batch: pa.RecordBatch, columns: Sequence[str]) -> list[bytes]:
    """The key bytes of each row."""
    parts = [_parts(batch, name) for name in columns]
    if len(parts) == 1:
        return [b"" if part is None else part for part in parts[0]]
    null, pack = struct.pack(">I", NULL_LENGTH), struct.Struct(">I").pack
    framed = [[null if part is None else pack(len(part)) + part for part in column] for column in parts]
    return list(map(b"".join, zip(*framed, strict=True)))


def _parts(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    parts: list[bytes | None] = _text(batch, name).cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return parts


def _text(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column as string or binary, whose bytes are the key's."""
    array = batch.column(name)
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return array
    return array.cast(pa.string())  # 7 -> '7', 2026-01-31 -> '2026-01-31', true -> 'true'


def partitions_of(batch: pa.RecordBatch, columns: Sequence[str], partitions: int) -> npt.NDArray[np.int64]:
    """The partition of each row: crc32 of its key bytes, modulo `partitions`."""
    rows = batch.num_rows
    if partitions == 1 or not rows:
        return np.zeros(rows, np.int64)
    byte, _ = _tables()
    state = np.full(rows, 0xFFFFFFFF, np.uint32)
    for name in columns:
        data, starts, lengths, null = _spans(_text(batch, name))
        if len(columns) > 1:
            framed = lengths if null is None else np.where(null, NULL_LENGTH, lengths)
            for shift in (24, 16, 8, 0):
                low = (state ^ (framed >> shift).astype(np.uint32)) & np.uint32(0xFF)
                state = byte[low] ^ (state >> np.uint32(8))
        _feed(state, data, starts, lengths)
    crc = ~state
    if partitions & (partitions - 1) == 0:
        return (crc & np.uint32(partitions - 1)).astype(np.int64)
    return (crc % np.uint32(partitions)).astype(np.int64)


def _spans(array: pa.Array) -> tuple[npt.NDArray[np.uint8], _I64, _I64, npt.NDArray[np.bool_] | None]:
    """(bytes, start of each row, length of each row, which rows are null); the length of a null is 0."""
    _, offsets_buffer, data_buffer = array.buffers()
    rows = len(array)
    if offsets_buffer is None:
        return np.empty(0, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.int64), None
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + rows + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    null = None
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        lengths[null] = 0
    return data, offsets[:-1].copy(), lengths, null


@cache
def _tables() -> tuple[_U32, tuple[_U32, ...]]:
    """crc32 of one byte; and of two bytes followed by 0, 2, 4 and 6 zero bytes. Made when first needed (1 ms)."""
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = (byte >> np.uint32(1)) ^ (np.uint32(0xEDB88320) * (byte & np.uint32(1)))

    def one_more(crc: _U32) -> _U32:
        out: _U32 = byte[crc & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        return out

    pairs = [one_more(one_more(np.arange(65536, dtype=np.uint32)))]
    for _ in range(3):
        pairs.append(one_more(one_more(pairs[-1])))
    return byte, tuple(pairs)


_LONG: Final = 256  # bytes; keys beyond go through zlib, one by one
_FEW: Final = 16  # rows; fewer go through zlib, too


def _feed(state: _U32, data: npt.NDArray[np.uint8], cursor: _I64, left: _I64) -> None:
    """Continues the crc of each row with its next `left` bytes from `cursor` on, in place: eight bytes of all rows
    that have them at a time, then the rest by fours, twos and ones. Uses up `cursor` and `left`."""
    if int(left.max(initial=0)) > _LONG:
        _feed_slowly(np.flatnonzero(left > _LONG), state, data, cursor, left)
    while True:
        having = left >= 8
        count = int(np.count_nonzero(having))
        if count < _FEW:
            _feed_slowly(np.flatnonzero(having), state, data, cursor, left)
            break
        _advance(state, data, cursor, left, 8, having, count)
    for size in (4, 2, 1):
        having = (left & size) != 0
        count = int(np.count_nonzero(having))
        if count:
            _advance(state, data, cursor, left, size, having, count)


def _feed_slowly(rows: _I64, state: _U32, data: npt.NDArray[np.uint8], cursor: _I64, left: _I64) -> None:
    view = data.data
    for row in rows.tolist():
        start, stop = int(cursor[row]), int(cursor[row] + left[row])
        state[row] = ~np.uint32(zlib.crc32(view[start:stop], int(~state[row])))
        left[row] = 0


def _advance(
    state: _U32,
    data: npt.NDArray[np.uint8],
    cursor: _I64,
    left: _I64,
    size: int,
    having: npt.NDArray[np.bool_],
    count: int,
) -> None:
    """`size` bytes of the rows that have them."""
    rows: Any = slice(None) if count == len(state) else np.flatnonzero(having)
    byte, pairs = _tables()
    crc, at = state[rows], cursor[rows]
    if size == 1:
        state[rows] = byte[(crc & np.uint32(0xFF)) ^ data[at]] ^ (crc >> np.uint32(8))
        return  # nothing is left of a row after its last byte
    # Every position of the bytes seen as the start of a word: rows begin where they begin.
    words = np.ndarray((len(data) - size + 1,), f"<u{size}", data.data, strides=(1,))[at]
    if size == 2:
        state[rows] = pairs[0].take(words ^ crc.astype(np.uint16)) ^ (crc >> np.uint32(16))
    else:
        halves = (words ^ crc).view("<u2").reshape(-1, size // 2)
        out = pairs[0].take(halves[:, -1])
        for i in range(1, size // 2):
            out ^= pairs[i].take(halves[:, -1 - i])
        state[rows] = out
    cursor[rows] += size
    left[rows] -= size


def split(
    batch: pa.RecordBatch, assignment: npt.NDArray[np.int64], partitions: int
) -> list[tuple[int, pa.RecordBatch]]:
    """The batch's rows by partition, in their order; only partitions that have any."""
    rows = batch.num_rows
    assert len(assignment) == rows
    if not rows:
        return []
    counts = np.bincount(assignment, minlength=partitions)
    assert len(counts) == partitions, "an assignment beyond the last partition"
    used = np.flatnonzero(counts).tolist()
    if len(used) == 1:
        return [(used[0], batch)]
    small = assignment.astype(np.uint8 if partitions <= 256 else np.uint16 if partitions <= 65536 else np.int64)
    sorted_batch = batch.take(pa.array(np.argsort(small, kind="stable")))
    out, start = [], 0
    for partition in used:
        count = int(counts[partition])
        out.append((partition, sorted_batch.slice(start, count)))
        start += count
    return out
