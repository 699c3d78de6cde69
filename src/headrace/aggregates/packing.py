"""From values to what partial rows have of them: lists, bytes, and values with how often each came. A value comes with
the number of the partial row it belongs to; all rows are made at once, with arrays. Knows no aggregate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

__all__ = ["COUNTED", "as_bytes", "as_lists", "counted", "known", "place_in_row", "unpacked", "with_column"]

I64 = npt.NDArray[np.int64]
COUNTED = pa.int64()


def unpacked(lists: pa.Array) -> tuple[I64, pa.Array]:
    """The values of lists, each with the number of its row."""
    return np.repeat(np.arange(len(lists)), lists.value_lengths().fill_null(0).to_numpy()), lists.flatten()


def known(of: I64, values: pa.Array) -> tuple[I64, pa.Array]:
    """The values other than null."""
    if not values.null_count:
        return of, values
    valid = values.is_valid()
    return of[valid.to_numpy(zero_copy_only=False)], values.filter(valid)


def counted(of: I64, values: pa.Array, weights: I64, rows: int) -> pa.Array:
    """For each row a list of its values other than null, with how often each came: each value once, where it is plain;
    otherwise as they are."""
    valid = np.asarray(values.is_valid())
    of, values, weights = of[valid], values.filter(pa.array(valid)), weights[valid]
    if types.is_nested(values.type):
        order = np.argsort(of, kind="stable")
        pairs = pa.StructArray.from_arrays([values, pa.array(weights, COUNTED)], names=["value", "count"])
        return as_lists(of[order], pairs.take(pa.array(order)), rows)
    few = values.dictionary_encode()
    width = max(1, len(few.dictionary))
    pairs, at = np.unique(of * width + few.indices.to_numpy(), return_inverse=True)
    counts = np.bincount(at.reshape(-1), weights, len(pairs)).astype(np.int64)
    fields = [few.dictionary.take(pa.array(pairs % width)), pa.array(counts, COUNTED)]
    return as_lists(pairs // width, pa.StructArray.from_arrays(fields, names=["value", "count"]), rows)


def place_in_row(of: I64) -> I64:
    """The number of each value among those of its row; rows are in order."""
    return np.arange(len(of)) - np.searchsorted(of, of)


def as_lists(of: I64, values: pa.Array, rows: int) -> pa.Array:
    """A list for each row; rows are in order."""
    ends = np.searchsorted(of, np.arange(rows + 1))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def as_bytes(of: I64, items: npt.NDArray[np.int64], rows: int) -> pa.Array:
    """The same with numbers as bytes."""
    size = items.itemsize * (items.shape[1] if items.ndim > 1 else 1)
    ends = (np.searchsorted(of, np.arange(rows + 1)) * size).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(items))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def with_column(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The rows with another column in the place of that of the name."""
    return rows.set_column(rows.column_names.index(name), name, column)
