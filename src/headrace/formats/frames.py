"""What zstd and lz4 have compressed, found in bytes of any kind. Owns how long a frame is, by the published formats of
both (RFC 8878; LZ4 frame format 1.6); Arrow decompresses it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

__all__ = ["plain_frames"]

ZSTD, LZ4 = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
PIECE_BYTES = 1 << 20

Bytes = bytes | mmap.mmap


def plain_frames(raw: Bytes, overlap: int) -> Iterator[bytes]:
    """Each frame in the bytes, decompressed, in pieces. A piece repeats the end of the one before it, so that a text of
    up to `overlap` bytes is whole in one of them."""
    for magic, codec, length in ((ZSTD, "zstd", _zstd_length), (LZ4, "lz4", _lz4_length)):
        at = raw.find(magic)
        while at >= 0:
            try:
                stop = length(raw, at + len(magic))
            except (IndexError, struct.error, ValueError):  # only the first bytes of one
                stop = len(raw) + 1
            if stop <= len(raw):
                yield from _pieces(raw[at:stop], codec, overlap)
            at = raw.find(magic, at + 1)


def _pieces(frame: bytes, codec: str, overlap: int) -> Iterator[bytes]:
    import pyarrow as pa

    before = b""
    try:
        with pa.CompressedInputStream(pa.BufferReader(frame), codec) as stream:
            while piece := stream.read(PIECE_BYTES):
                yield (whole := before + piece)
                before = whole[-overlap:]
    except OSError:  # it looked like a frame, and is none
        return


def _zstd_length(raw: Bytes, at: int) -> int:
    """Where the frame ends whose descriptor is there."""
    descriptor = raw[at]
    single, checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    size_bytes = (single, 2, 4, 8)[descriptor >> 6]
    at += 1 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
    last = 0
    while not last:
        (block,) = struct.unpack("<I", raw[at : at + 3] + b"\0")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        if kind == 3:
            raise ValueError("a reserved kind of block")
        at += 3 + (1 if kind == 1 else size)
    return at + 4 * checksum


def _lz4_length(raw: Bytes, at: int) -> int:
    flags = raw[at]
    if flags >> 6 != 1:
        raise ValueError("another version")
    at += 2 + 8 * (flags >> 3 & 1) + 4 * (flags & 1) + 1
    while True:
        (size,) = struct.unpack("<I", raw[at : at + 4])
        at += 4
        if size == 0:
            return at + 4 * (flags >> 2 & 1)
        at += (size & 0x7FFFFFFF) + 4 * (flags >> 4 & 1)
