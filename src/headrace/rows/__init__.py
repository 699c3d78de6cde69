"""Rows in and out: mappings and Arrow data to one typed batch, and back.

The promise is that nothing is changed in silence: a value is stored as exactly what it is, or the whole append is
refused with its row, its column and what to do. `values` has the rules for single values, `mappings` and `arrow` the
ways in, `out` the way out. Knows no topics (but for the name in the error) and no files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import pyarrow as pa

from headrace.errors import InvalidArgument
from headrace.rows.arrow import from_arrow, from_pandas, one_batch, without_stream
from headrace.rows.mappings import as_dict, from_mappings, from_one, plan_of
from headrace.rows.out import python_values, to_rows
from headrace.rows.values import EXPECTED, cut

__all__ = ["python_values", "to_batch", "to_rows", "without_stream"]


def to_batch(data: object, schema: pa.Schema, *, extra: str, topic: str) -> pa.RecordBatch:
    """One batch of `storage_schema(schema, extra)` from a mapping, an iterable of mappings, or Arrow data.
    RecordRejected names the first bad row; then nothing of the data is used."""
    plan = plan_of(schema, extra)
    single = data[0] if type(data) is list and len(data) == 1 else data
    if type(single) is dict:
        one = from_one(single, plan)
        return from_mappings([single], plan, topic) if one is None else one
    if isinstance(data, pa.RecordBatch):
        return from_arrow(data, plan, topic)
    if isinstance(data, Mapping):
        return from_mappings([dict(data)], plan, topic)
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)  # none while another thread is importing it
    if frame is not None and isinstance(data, frame):
        return from_pandas(data, plan, topic)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return from_arrow(one_batch(data), plan, topic)
    if isinstance(data, str | bytes | bytearray) or not isinstance(data, Iterable):
        raise InvalidArgument("data", cut(data), f"is {type(data).__name__}; {EXPECTED}")
    rows = data if type(data) is list else list(data)
    if not set(map(type, rows)) <= {dict}:
        rows = [as_dict(row, i) for i, row in enumerate(rows)]
    return from_mappings(rows, plan, topic)
