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
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidArgument, InvalidSchema, nearest
from headrace.schema import to_ddl, type_ddl

__all__ = [
    "check_key_columns",
    "key_bytes",
    "key_counts",
    "key_crcs",
    "key_hash",
    "key_hashes",
    "partitions_of",
    "rows_of_key",
    "split",
]

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


def key_counts(batch: pa.RecordBatch, columns: Sequence[str]) -> dict[bytes, int]:
    """How many rows each key has, by its `key_hash`."""
    return {key_hash(key): count for key, count in Counter(all_key_bytes(batch, columns)).items()}


def all_key_bytes(batch: pa.RecordBatch, columns: Sequence[str]) -> list[bytes]:
    """The key bytes of each row."""
    parts = [_parts(batch, name) for name in columns]
    if len(parts) == 1:
        return [b"" if part is None else part for part in parts[0]]
    null, pack = struct.pack(">I", NULL_LENGTH), struct.Struct(">I").pack
    framed = [[null if part is None else pack(len(part)) + part for part in column] for column in parts]
    return list(map(b"".join, zip(*framed, strict=True)))


def _parts(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    parts: list[bytes | None] = _text(batch, name).view(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return parts


def _text(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column as string or binary, whose bytes are the key's."""
    array = batch.column(name)
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return array
    return array.cast(pa.string())  # 7 -> '7', 2026-01-31 -> '2026-01-31', true -> 'true'


def key_crcs(batch: pa.RecordBatch, columns: Sequence[str]) -> _U32:
    """crc32 of the key bytes of each row."""
    return _crc32(_text(batch, columns[0]) if len(columns) == 1 else _framed(batch, columns))


def rows_of_key(batch: pa.RecordBatch, columns: Sequence[str], key: bytes, crcs: _U32) -> _I64:
    """Which rows have the key of these bytes. `crcs`: of the batch."""
    rows = np.flatnonzero(crcs == np.uint32(zlib.crc32(key)))
    found = all_key_bytes(batch.take(pa.array(rows)), columns) if len(rows) else []
    return rows[np.fromiter((each == key for each in found), np.bool_, len(rows))]


def partitions_of(batch: pa.RecordBatch, columns: Sequence[str], partitions: int) -> npt.NDArray[np.int64]:
    """The partition of each row: crc32 of its key bytes, modulo `partitions`."""
    if partitions == 1 or not batch.num_rows:
        return np.zeros(batch.num_rows, np.int64)
    crc = key_crcs(batch, columns)
    if partitions & (partitions - 1) == 0:
        return (crc & np.uint32(partitions - 1)).astype(np.int64)
    return (crc % np.uint32(partitions)).astype(np.int64)


def _framed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """The key bytes of several columns."""
    pieces = []
    for name in columns:
        part = _text(batch, name).view(pa.binary())
        lengths = pc.binary_length(part).fill_null(-1).to_numpy(zero_copy_only=False).astype(">i4")  # -1: 0xFFFFFFFF
        frames = pa.Array.from_buffers(pa.binary(4), len(part), [None, pa.py_buffer(lengths.tobytes())])
        pieces += [frames.cast(pa.binary()), part.fill_null(b"")]
    return pc.binary_join_element_wise(*pieces, b"")


_LONG: Final = 256  # bytes; keys beyond go through zlib, one by one
_FEW: Final = 16  # rows; fewer go through zlib, too


def _crc32(keys: pa.Array) -> _U32:
    """crc32 of each key, a null's as of no bytes.

    The crc register, begun with 0, does not change with leading zeros: so every key is seen right-aligned, as words of
    eight bytes whose first is filled up with zeros, and no row differs from the others. That the register begins with
    ones adds a constant that depends on the length alone."""
    data, ends, lengths = _spans(keys)
    slow = np.flatnonzero(lengths > (_LONG if len(keys) >= _FEW else 0))
    by_hand = {row: zlib.crc32(data.data[int(ends[row] - lengths[row]) : int(ends[row])]) for row in slow.tolist()}
    lengths[slow] = 0
    pairs, masks, begun = _tables()
    padded = np.concatenate([np.zeros(8, np.uint8), data])  # so that a word may begin before the first key
    words = np.ndarray((len(padded) - 7,), "<u8", padded.data, strides=(1,))  # one begins at every byte
    state = np.zeros(len(lengths), np.uint32)
    for behind in range((int(lengths.max(initial=0)) - 1) // 8 * 8, -1, -8):
        having = lengths > behind
        rows: Any = slice(None) if 2 * np.count_nonzero(having) > len(state) else np.flatnonzero(having)
        word = words[np.maximum(ends[rows] - behind, 0)]
        word &= masks.take(lengths[rows] - behind, mode="clip")
        word ^= state[rows]
        quarters = word.view("<u2").reshape(-1, 4)
        crc = pairs[0].take(quarters[:, 3])
        for i in (1, 2, 3):
            crc ^= pairs[i].take(quarters[:, 3 - i])
        state[rows] = crc
    crcs: _U32 = ~(state ^ begun.take(lengths))
    for row, crc in by_hand.items():
        crcs[row] = crc
    return crcs


def _spans(array: pa.Array) -> tuple[npt.NDArray[np.uint8], _I64, _I64]:
    """(bytes, end of each row, length of each row); the length of a null is 0."""
    _, offsets_buffer, data_buffer = array.buffers()
    rows = len(array)
    if offsets_buffer is None:
        return np.empty(0, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + rows + 1].astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)[begin:end]
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return data, offsets[1:] - begin, lengths


@cache
def _tables() -> tuple[tuple[_U32, ...], npt.NDArray[np.uint64], _U32]:
    """The crc of two bytes followed by 0, 2, 4 and 6 zeros; what to keep of a word that has 0..8 bytes of a key; and
    the register after 0..256 zeros that began with ones. Made when first needed (1 ms)."""
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = (byte >> np.uint32(1)) ^ (np.uint32(0xEDB88320) * (byte & np.uint32(1)))

    def one_more(crc: _U32) -> _U32:
        out: _U32 = byte[crc & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        return out

    pairs = [one_more(one_more(np.arange(65536, dtype=np.uint32)))]
    for _ in range(3):
        pairs.append(one_more(one_more(pairs[-1])))
    masks = np.array([0, *(~0 << 8 * (8 - held) & (1 << 64) - 1 for held in range(1, 9))], np.uint64)
    begun = [np.array([0xFFFFFFFF], np.uint32)]
    for _ in range(_LONG):
        begun.append(one_more(begun[-1]))
    return tuple(pairs), masks, np.concatenate(begun)


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
