"""From values to what aggregates keep of them: sketches, and counted values. A value comes with the number of the
partial row it belongs to; all rows are made at once, with arrays. Owns the form of what Spark hands over as plain
lists, and what Arrow packs where records are read. Arrow and numpy only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates import ORDER, Aggregate, Partial
from headrace.sketches import COUNT, HASH, HASHES_MAX, buckets

__all__ = ["as_lists", "from_lists", "packed", "packed_type"]

I64 = npt.NDArray[np.int64]
COUNTED = pa.int64()
_BUCKETS = 1 << 19
"""More than there are, with both signs."""


def packed_type(partial: Partial, arrow: pa.DataType) -> pa.DataType | None:
    """How a partial row has the values; `arrow` is what Spark makes of them. None: as it is."""
    match partial.kind:
        case _ if partial.retracts:
            return None
        case "approx_count_distinct" | "approx_quantile":
            return pa.binary()
        case "top_k":
            return pa.list_(pa.struct([("value", arrow.value_type), ("count", COUNTED)]))
    return None


def from_lists(rows: pa.Table, aggregates: Mapping[str, Aggregate]) -> pa.Table:
    """Partial rows, with what Spark brings as lists of values packed."""
    for name, aggregate in aggregates.items():
        slot = aggregate.slots(name)[0].name
        kind = rows.schema.field(slot).type if slot in rows.column_names else None
        if kind is None or not types.is_list(kind) or types.is_struct(kind.value_type):
            continue
        if packed_type(aggregate.partial, kind) is None:
            continue
        lists = rows[slot].combine_chunks()
        of = np.repeat(np.arange(len(lists)), lists.value_lengths().fill_null(0).to_numpy())
        made = packed(aggregate.partial, of, lists.flatten(), rows.num_rows)
        rows = rows.set_column(rows.column_names.index(slot), slot, made)
    return rows


def packed(partial: Partial, of: I64, values: pa.Array, rows: int) -> pa.Array:
    """What is kept of the values other than null, for each row; `of` says which row a value belongs to."""
    if values.null_count:
        known = values.is_valid()
        of, values = of[known.to_numpy(zero_copy_only=False)], values.filter(known)
    match partial.kind:
        case "approx_count_distinct":
            return _hashes(of, values.to_numpy(), rows)
        case "approx_quantile":
            return _bucket_counts(of, values.cast(pa.float64()).to_numpy(), rows)
        case "top_k":
            return _value_counts(of, values, rows)
        case "histogram":
            return _histogram(of, values.to_numpy(), partial.bounds, rows)
        case "collect":
            return _earliest(of, values, partial.limit, rows)
    raise AssertionError(partial.kind)


def _hashes(of: I64, hashes: I64, rows: int) -> pa.Array:
    order = np.lexsort((hashes, of))
    of, hashes = of[order], hashes[order]
    fresh = np.ones(len(of), np.bool_)
    fresh[1:] = (of[1:] != of[:-1]) | (hashes[1:] != hashes[:-1])
    of, hashes = of[fresh], hashes[fresh]
    first = _place_in_row(of) < HASHES_MAX
    return _as_bytes(of[first], hashes[first].astype(HASH), rows)


def _bucket_counts(of: I64, values: npt.NDArray[np.float64], rows: int) -> pa.Array:
    pairs, counts = np.unique(of * _BUCKETS + buckets(values) + _BUCKETS // 2, return_counts=True)
    kept = np.stack((pairs % _BUCKETS - _BUCKETS // 2, counts), axis=1).astype(COUNT)
    return _as_bytes(pairs // _BUCKETS, kept, rows)


def _value_counts(of: I64, values: pa.Array, rows: int) -> pa.Array:
    few = values.dictionary_encode()
    width = max(1, len(few.dictionary))
    pairs, counts = np.unique(of * width + few.indices.to_numpy(), return_counts=True)
    fields = [few.dictionary.take(pa.array(pairs % width)), pa.array(counts, COUNTED)]
    return as_lists(pairs // width, pa.StructArray.from_arrays(fields, names=["value", "count"]), rows)


def _histogram(of: I64, values: npt.NDArray[np.float64], bounds: tuple[float, ...], rows: int) -> pa.Array:
    width = len(bounds) + 1
    place = np.searchsorted(np.array(bounds), values, side="right")
    counts = np.bincount(of * width + place, minlength=rows * width)
    return as_lists(np.repeat(np.arange(rows), width), pa.array(counts, COUNTED), rows)


def _earliest(of: I64, records: pa.Array, limit: int, rows: int) -> pa.Array:
    """`records`: structs of what orders them, and the value."""
    keys = {part: records.field(part) for part in ORDER}
    order = pc.sort_indices(pa.table({"of": of, **keys}), [(name, "ascending") for name in ("of", *ORDER)]).to_numpy()
    first = order[_place_in_row(of[order]) < limit]
    return as_lists(of[first], records.take(pa.array(first)), rows)


def _place_in_row(of: I64) -> I64:
    """The number of each value among those of its row; rows are in order."""
    return np.arange(len(of)) - np.searchsorted(of, of)


def as_lists(of: I64, values: pa.Array, rows: int) -> pa.Array:
    ends = np.searchsorted(of, np.arange(rows + 1))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def _as_bytes(of: I64, items: npt.NDArray[np.int64], rows: int) -> pa.Array:
    size = items.itemsize * (items.shape[1] if items.ndim > 1 else 1)
    ends = (np.searchsorted(of, np.arange(rows + 1)) * size).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(items))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)
