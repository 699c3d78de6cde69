"""What is compressed is found wherever it begins, whole, and nothing else is taken for it."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headrace.formats.frames import PIECE_BYTES, plain_frames

OVERLAP_BYTES = 4096


def streamed(raw: bytes, codec: str) -> bytes:
    """With no size in its header, and many blocks."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        for at in range(0, len(raw), 70_000):
            out.write(raw[at : at + 70_000])
    return bytes(sink.getvalue())


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("size", [0, 1, 100, 300_000, 3 * PIECE_BYTES])
def test_frames_are_found_among_other_bytes(codec: str, size: int, seed: int) -> None:
    rng = random.Random(seed)
    plain = bytes(rng.choices(b"ab \n", k=min(size, 5_000))) * (size // 5_000 or 1)
    raw = b""
    for frame in (bytes(pa.Codec(codec).compress(plain, asbytes=True)), streamed(plain, codec)):
        raw += rng.randbytes(rng.randrange(50)) + frame
    raw += rng.randbytes(50)
    found = list(plain_frames(raw, OVERLAP_BYTES))
    whole, pieces = b"", []
    for piece in found:  # of the first frame, then of the second
        if len(whole) == len(plain):
            pieces.append(whole)
            whole = b""
        whole += piece[OVERLAP_BYTES:] if whole else piece
    assert [*pieces, whole] == [plain, plain] if plain else not b"".join(found)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_is_cut_off_or_damaged_is_no_frame(codec: str, seed: int) -> None:
    rng = random.Random(seed)
    frame = bytes(pa.Codec(codec).compress(rng.randbytes(500) * 3, asbytes=True))
    for stop in range(len(frame)):
        assert list(plain_frames(frame[:stop], 9)) == []
    for _ in range(300):
        at = rng.randrange(4, len(frame))
        list(plain_frames(frame[:at] + rng.randbytes(1) + frame[at + 1 :], 9))  # whatever comes out of it, it ends
    for magic in (frame[:4],):
        list(plain_frames(b"".join(magic + rng.randbytes(rng.randrange(30)) for _ in range(300)), 9))
