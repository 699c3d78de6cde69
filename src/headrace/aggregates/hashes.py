"""Spark's `xxhash64`, over Arrow columns: so that a value has one hash, whoever folds its record. Long numbers and
times are hashed as their eight bytes, shorter numbers, days and truth values as four, texts as they are. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

__all__ = ["can_hash", "hashes"]

U64 = npt.NDArray[np.uint64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_SEED = np.uint64(42)
_LANES = [np.uint64((42 + add) % 2**64) for add in (int(_P1) + int(_P2), int(_P2), 0, -int(_P1))]


def can_hash(arrow: pa.DataType) -> bool:
    return _is_bytes(arrow) or bool(
        types.is_integer(arrow) or types.is_boolean(arrow) or types.is_date32(arrow) or types.is_timestamp(arrow)
    )


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(types.is_string(arrow) or types.is_binary(arrow))


def hashes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A hash for each value; what null has means nothing."""
    encoded = column.combine_chunks().dictionary_encode()  # each value once
    values = encoded.dictionary
    if _is_bytes(values.type):
        found = _of_bytes(values.cast(pa.binary()))
    else:
        wide = values.type == pa.int64() or types.is_timestamp(values.type)
        numbers = values.cast(pa.int64() if wide else pa.int32()).to_numpy()
        found = _of_longs(numbers.view(np.uint64)) if wide else _of_ints(numbers.view(np.uint32).astype(np.uint64))
    if not len(found):
        return np.zeros(len(column), np.int64)
    out: npt.NDArray[np.int64] = found.view(np.int64)[encoded.indices.fill_null(0).to_numpy()]
    return out


def _of_longs(values: U64) -> U64:
    return _mixed(_with_word(np.full(len(values), _SEED + _P5 + np.uint64(8)), values))


def _of_ints(values: U64) -> U64:
    return _mixed(_with_half(np.full(len(values), _SEED + _P5 + np.uint64(4)), values))


def _of_bytes(values: pa.Array) -> U64:
    """Values of one length at a time: columns of a matrix are hashed together."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    body = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    lengths = np.diff(ends)
    out = np.empty(len(values), np.uint64)
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        out[chosen] = _of_matrix(body[ends[chosen][:, None] + np.arange(length)])
    return out


def _of_matrix(rows: npt.NDArray[np.uint8]) -> U64:
    count, length = rows.shape
    words: U64 = rows[:, : length // 8 * 8].copy().view("<u8")
    stripes = length // 32 * 4
    hashed = np.full(count, _SEED + _P5)
    if stripes:
        lanes: list[U64] = [np.full(count, begin) for begin in _LANES]
        for at in range(stripes):
            lanes[at % 4] = _turned(lanes[at % 4] + words[:, at] * _P2, 31) * _P1
        hashed = _turned(lanes[0], 1) + _turned(lanes[1], 7) + _turned(lanes[2], 12) + _turned(lanes[3], 18)
        for lane in lanes:
            hashed = (hashed ^ (_turned(lane * _P2, 31) * _P1)) * _P1 + _P4
    hashed = hashed + np.uint64(length)
    for at in range(stripes, length // 8):
        hashed = _with_word(hashed, words[:, at])
    at = length // 8 * 8
    if length - at >= 4:
        half = rows[:, at : at + 4].copy().view("<u4")[:, 0].astype(np.uint64)
        hashed = _with_half(hashed, half)
        at += 4
    for one in range(at, length):
        hashed = _turned(hashed ^ (rows[:, one].astype(np.uint64) * _P5), 11) * _P1
    return _mixed(hashed)


def _with_word(hashed: U64, words: U64) -> U64:
    return _turned(hashed ^ (_turned(words * _P2, 31) * _P1), 27) * _P1 + _P4


def _with_half(hashed: U64, words: U64) -> U64:
    return _turned(hashed ^ (words * _P1), 23) * _P2 + _P3


def _mixed(hashed: U64) -> U64:
    hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
    return hashed ^ (hashed >> np.uint64(32))


def _turned(numbers: U64, by: int) -> U64:
    return (numbers << np.uint64(by)) | (numbers >> np.uint64(64 - by))
