"""A frame: 64 bytes of header and one Arrow record batch, as they lie in a data file. Pure: bytes in,
bytes out. Does not know files or the index. Length and checksums are checked before anything is parsed.

    offset  size  field                                             (little-endian)
         0     4  magic  b"HRF1"
         4     2  format version, 1
         6     2  flags: 1 = the body's last columns are _offset, _arrived_at, _progress (per row)
                         2 = before those, the column _extra (unknown fields, as JSON text)
                         4 = of the same append or transaction as the frame before it
         8    16  topic id
        24     4  partition
        28     4  count of records
        32     8  length of the body in bytes
        40     4  crc32 of the body
        44     4  schema version
        48     8  highest synced commit number its writer knew
        56     4  reserved, 0
        60     4  crc32 of the 60 bytes before

The body is one Arrow IPC record-batch message without its schema; frames start at multiples of 64 bytes."""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"HRF1"
VERSION = 1
HEADER_BYTES = 64
ALIGN_BYTES = 64
BODY_BYTES_MAX = 1 << 30
PER_ROW = 1
"""Flag: the body ends with the columns _offset, _arrived_at and _progress, one value per row."""
EXTRA = 2
"""Flag: the users' columns are followed by _extra, the unknown fields a topic with extra="keep" keeps."""
JOINED = 4
"""Flag: of the same append or transaction as the frame before it in the file; they are lost together, or not at all."""

_HEADER = struct.Struct("<4sHH16sIIQIIQI")
_CRC = struct.Struct("<I")


class BadFrame(Exception):
    """Bytes that are not a whole frame; the caller knows where they lie and says so."""


@dataclass(frozen=True, slots=True)
class Header:
    topic_id: bytes
    partition: int
    count: int
    length: int
    body_crc: int
    schema_version: int
    commit_known: int
    flags: int = 0

    def pack(self) -> bytes:
        raw = _HEADER.pack(
            MAGIC,
            VERSION,
            self.flags,
            self.topic_id,
            self.partition,
            self.count,
            self.length,
            self.body_crc,
            self.schema_version,
            self.commit_known,
            0,
        )
        return raw + _CRC.pack(zlib.crc32(raw))

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> Header:
        if len(raw) < HEADER_BYTES:
            raise BadFrame(f"{len(raw)} bytes where a header of {HEADER_BYTES} should be")
        if bytes(raw[:4]) != MAGIC:
            raise BadFrame("no frame starts here")
        if _CRC.unpack_from(raw, 60)[0] != zlib.crc32(raw[:60]):
            raise BadFrame("header checksum differs")
        _, version, flags, topic, partition, count, length, crc, schema, known, _ = _HEADER.unpack_from(raw)
        if version != VERSION:
            raise BadFrame(f"format version {version}, this headrace reads {VERSION}")
        if length > BODY_BYTES_MAX:
            raise BadFrame(f"a body of {length} bytes")
        return cls(topic, partition, count, length, crc, schema, known, flags)


@dataclass(frozen=True, slots=True)
class Body:
    """An encoded record batch: what can be made before any lock is taken."""

    data: memoryview
    count: int
    crc: int

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Body:
        data = memoryview(_on_its_own(batch).serialize())
        return cls(data, batch.num_rows, zlib.crc32(data))


def _on_its_own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Arrow pads a slice with what lies behind it: up to 63 bytes of another record, that would survive its erasure."""
    import pyarrow as pa

    if all(map(_is_whole, batch.columns)):
        return batch
    copies = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(copies, schema=batch.schema)


def _is_whole(column: pa.Array) -> bool:
    """Whether its buffers hold its values and nothing else; False when that is not easily said."""
    import pyarrow.types as types

    kind, count = column.type, len(column)
    if column.offset or types.is_nested(kind):
        return False
    if types.is_null(kind):
        return True
    _, values, *data = column.buffers()
    if values is None:
        return True
    if types.is_string(kind) or types.is_binary(kind):
        last = int.from_bytes(memoryview(values)[4 * count : 4 * count + 4], sys.byteorder)
        return values.size <= 4 * (count + 1) and (data[0] is None or data[0].size == last)
    fixed = types.is_primitive(kind) or types.is_decimal(kind)
    return bool(fixed and values.size * 8 < count * kind.bit_width + 8)


def padding(length: int) -> bytes:
    """What stands between a frame of `length` bytes and the next multiple of 64."""
    return bytes(-length % ALIGN_BYTES)
