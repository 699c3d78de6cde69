"""A frame's header and body, byte by byte: what is written is read, what is changed is noticed."""

from __future__ import annotations

import itertools
import random
import struct
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.embedded.storage.frames import (
    ALIGN_BYTES,
    BODY_BYTES_MAX,
    EXTRA,
    HEADER_BYTES,
    PER_ROW,
    BadFrame,
    Body,
    Header,
    padding,
)
from headrace.log.embedded.write import append

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
headers = st.builds(
    Header,
    topic_id=st.binary(min_size=16, max_size=16),
    partition=u32,
    count=u32,
    length=st.integers(0, BODY_BYTES_MAX),
    body_crc=u32,
    schema_version=u32,
    commit_known=u64,
    flags=st.sampled_from([0, PER_ROW, EXTRA, PER_ROW | EXTRA]),
)
EXAMPLE = Header(bytes(range(16)), 3, 2, 300, 0xDEADBEEF, 7, 41, PER_ROW)


def test_the_published_layout() -> None:
    raw = EXAMPLE.pack()
    assert len(raw) == HEADER_BYTES == 64
    assert raw[0:4] == b"HRF1"
    assert struct.unpack_from("<HH", raw, 4) == (1, PER_ROW)  # format version, flags
    assert raw[8:24] == bytes(range(16))  # topic id
    assert struct.unpack_from("<IIQII", raw, 24) == (3, 2, 300, 0xDEADBEEF, 7)  # partition … schema version
    assert struct.unpack_from("<QI", raw, 48) == (41, 0)  # commit known, reserved
    assert struct.unpack_from("<I", raw, 60) == (zlib.crc32(raw[:60]),)


@given(headers)
def test_what_is_packed_is_unpacked(header: Header) -> None:
    assert Header.unpack(header.pack()) == header
    assert Header.unpack(memoryview(header.pack())) == header


@given(headers, st.integers(0, 8 * HEADER_BYTES - 1))
def test_any_flipped_bit_is_noticed(header: Header, bit: int) -> None:
    raw = bytearray(header.pack())
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadFrame):
        Header.unpack(bytes(raw))


@given(st.binary(max_size=80))
def test_other_bytes_are_no_frame(raw: bytes) -> None:
    with pytest.raises(BadFrame):
        Header.unpack(raw)


@pytest.mark.parametrize("length", [0, 1, 63])
def test_a_header_cut_short_is_no_frame(length: int) -> None:
    with pytest.raises(BadFrame, match=f"{length} bytes"):
        Header.unpack(EXAMPLE.pack()[:length])


def _with(at: int, data: bytes) -> bytes:
    """The example with other bytes in one place, its checksum right."""
    raw = bytearray(EXAMPLE.pack()[:60])
    raw[at : at + len(data)] = data
    return bytes(raw) + struct.pack("<I", zlib.crc32(raw))


def test_a_format_of_the_future_is_refused_not_guessed() -> None:
    with pytest.raises(BadFrame, match="format version 2"):
        Header.unpack(_with(4, b"\x02\x00"))


def test_a_length_beyond_reason_is_refused_before_anybody_allocates_it() -> None:
    with pytest.raises(BadFrame, match="a body of"):
        Header.unpack(_with(32, struct.pack("<Q", BODY_BYTES_MAX + 1)))


@given(st.lists(st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text(max_size=5)), max_size=20))
def test_a_body_is_its_batch(rows: list[tuple[int | None, str | None]]) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    batch = pa.RecordBatch.from_pylist([{"n": n, "s": s} for n, s in rows], schema=schema)
    body = Body.of(batch)
    assert body.count == len(rows)
    assert body.crc == zlib.crc32(body.data)
    assert pa.ipc.read_record_batch(pa.py_buffer(body.data), schema).equals(batch)


def test_a_slice_encodes_only_its_own_rows() -> None:
    whole = pa.record_batch({"s": ["x" * 1000] * 1000})
    assert len(Body.of(whole.slice(10, 1)).data) < 3000


@given(st.integers(0, 10_000))
def test_padding_reaches_the_next_boundary(length: int) -> None:
    assert (length + len(padding(length))) % ALIGN_BYTES == 0
    assert len(padding(length)) < ALIGN_BYTES


def test_neighbours_are_cut_only_where_they_do_not_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no two of them are small, whatever the sizes of their records: sealing would join them for ever."""
    monkeypatch.setattr(append, "FRAME_BYTES_MAX", 1_000)
    monkeypatch.setattr(append, "FRAME_ROWS_MAX", 40)
    dice = random.Random(5)
    texts = ["x" * dice.choice((0, 1, 30, 400, 1_500)) for _ in range(500)]
    batch = pa.record_batch({"text": texts})
    frames = append.frames_of(batch)
    assert pa.Table.from_batches(frames).column("text").to_pylist() == texts
    assert all(frame.num_rows == 1 or (frame.nbytes <= 1_000 and frame.num_rows <= 40) for frame in frames)
    for one, other in itertools.pairwise(frames):
        both = pa.concat_batches([one, other.slice(0, 1)])
        assert both.nbytes > 1_000 or both.num_rows > 40
