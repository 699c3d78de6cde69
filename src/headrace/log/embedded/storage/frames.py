"""A frame: 64 bytes of header and one Arrow record batch, as they lie in a data file. Pure: bytes in,
bytes out. Does not know files or the index. Length and checksums are checked before anything is parsed.

    offset  size  field                                             (little-endian)
         0     4  magic  b"HRF1"
         4     2  format version, 1
         6     2  flags: 1 = the body's last columns are _offset, _arrived_at, _progress (per row)
                         2 = before those, the column _extra (unknown fields, as JSON text)
                         4 = of the same append or transaction as the frame before it
                         8 = the body is compressed with LZ4 (its frame format), 16 = with Zstandard
         8    16  topic id
        24     4  partition
        28     4  count of records
        32     8  length of the body in bytes
        40     4  crc32 of the body
        44     4  schema version
        48     8  highest synced commit number its writer knew
        56     4  length of the body before it was compressed; the same as above where it is not
        60     4  crc32 of the 60 bytes before

The body is one Arrow IPC record-batch message without its schema, compressed as a whole or plain; frames start at
multiples of 64 bytes. Decompressing never takes more memory than the header says, nor more than PLAIN_BYTES_MAX."""

from __future__ import annotations

import struct
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
PLAIN_BYTES_MAX = 128 << 20
"""Of a body before it is compressed. Frames of several records are cut at 2 MiB; the largest single record, a dead
letter, has 64."""
PER_ROW = 1
"""Flag: the body ends with the columns _offset, _arrived_at and _progress, one value per row."""
EXTRA = 2
"""Flag: the users' columns are followed by _extra, the unknown fields a topic with extra="keep" keeps."""
JOINED = 4
"""Flag: of the same append or transaction as the frame before it in the file; they are lost together, or not at all."""
CODECS = {"none": 0, "lz4": 8, "zstd": 16}
"""What a topic's `compression` can be -> its flag."""
COMPRESSED = CODECS["lz4"] | CODECS["zstd"]
ARCHIVED = 64
"""Of a batch's row, never of a frame: its records are a row group of a Parquet file, and `position` is its number."""
KNOWN_FLAGS = PER_ROW | EXTRA | JOINED | COMPRESSED
ZSTD_LEVEL = 1

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
    plain_bytes: int = 0

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
            self.plain_bytes,
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
        _, version, flags, topic, partition, count, length, crc, schema, known, plain_bytes = _HEADER.unpack_from(raw)
        if version != VERSION:
            raise BadFrame(f"format version {version}, this headrace reads {VERSION}")
        if flags & ~KNOWN_FLAGS or flags & COMPRESSED == COMPRESSED:
            raise BadFrame(f"flags {flags:#x}, this headrace reads {KNOWN_FLAGS:#x}, and one compression at a time")
        if length > BODY_BYTES_MAX:
            raise BadFrame(f"a body of {length} bytes")
        if plain_bytes > (PLAIN_BYTES_MAX if flags & COMPRESSED else BODY_BYTES_MAX):
            raise BadFrame(f"a body of {plain_bytes} bytes before compression")
        return cls(topic, partition, count, length, crc, schema, known, flags, plain_bytes)


@dataclass(frozen=True, slots=True)
class Body:
    """An encoded record batch: what can be made before any lock is taken. `plain_bytes`: before it was compressed."""

    data: memoryview
    count: int
    crc: int
    plain_bytes: int

    @classmethod
    def of(cls, batch: pa.RecordBatch, compression: str = "none") -> Body:
        import pyarrow as pa

        # Copied, as it may be a slice: Arrow would fill its buffers up, to 64 bytes, with the rows that lie behind it.
        columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
        plain = pa.RecordBatch.from_arrays(columns, schema=batch.schema).serialize()
        assert len(plain) <= PLAIN_BYTES_MAX, f"a body of {len(plain)} bytes, which no reader would take"
        stored = plain if compression == "none" else _codec(compression).compress(plain)
        data = memoryview(stored.slice(0))  # the view of a buffer that was shrunk has the length from before
        return cls(data, batch.num_rows, zlib.crc32(data), len(plain))


def plain_body(body: memoryview, flags: int, plain_bytes: int) -> pa.Buffer:
    """The Arrow message in a body that was checked. BadFrame when it is not `plain_bytes` long."""
    import pyarrow as pa

    name = next((name for name, flag in CODECS.items() if flag and flags & flag), "none")
    if name == "none":
        return pa.py_buffer(body)
    if plain_bytes > PLAIN_BYTES_MAX:
        raise BadFrame(f"a body of {plain_bytes} bytes before compression")
    try:
        return _codec(name).decompress(body, plain_bytes)
    except OSError as error:
        raise BadFrame(f"cannot be decompressed to {plain_bytes} bytes: {error}") from error


def _codec(compression: str) -> pa.Codec:
    import pyarrow as pa

    return pa.Codec(compression, compression_level=ZSTD_LEVEL if compression == "zstd" else None)


def padding(length: int) -> bytes:
    """What stands between a frame of `length` bytes and the next multiple of 64."""
    return bytes(-length % ALIGN_BYTES)
