"""The values of several columns as one number: rows that are equal in all of them have the same one. Owns the numbering
of one table. Nulls are equal to each other; for types whose values are equal in Arrow as in Spark (`same_in_arrow`).
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

__all__ = ["CHUNK_ROWS", "in_chunks", "numbered"]

_I64 = npt.NDArray[np.int64]
CHUNK_ROWS = 1_000_000
"""So many records are grouped, or numbered, together."""
SPARSE = 8
"""There are no more numbers that are nobody's than this part of the rows."""
_LARGEST = 2**62


def in_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches in tables of at least CHUNK_ROWS rows; the last one has what is left, and is not empty."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting)


def numbered(columns: Sequence[pa.ChunkedArray]) -> tuple[_I64, _I64]:
    """Of columns of one length: the number of each row, counted from 0, and for each number a row that has it; some
    numbers may be nobody's, with any row."""
    rows = len(columns[0])
    number, count = np.zeros(rows, np.int64), 1
    for column in columns:
        if _is_constant(column):
            continue
        codes, size = _codes(column)
        if count * size > _LARGEST:
            number, count = _codes(pa.chunked_array([number]))
        number, count = (number * size + codes, count * size) if count > 1 else (codes, size)
    if count > max(rows // SPARSE, 1):  # most numbers may stand for nothing
        number, count = _codes(pa.chunked_array([number]))
    row = np.zeros(count, np.int64)
    row[number] = np.arange(rows)
    return number, row


def _is_constant(column: pa.ChunkedArray) -> bool:
    if not types.is_integer(column.type) or column.null_count:
        return False
    bounds = pc.min_max(column)
    return bool(bounds["min"] == bounds["max"])


def _codes(column: pa.ChunkedArray) -> tuple[_I64, int]:
    """A number for each value, and how many values there are."""
    encoded = column.dictionary_encode(null_encoding="encode").combine_chunks()
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    codes: _I64 = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, len(encoded.dictionary)
