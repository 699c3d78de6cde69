"""Records that an operator holds back, by arrival: the least progress of those that arrived from some time on. Owns the
table in which that is kept. A record leaves by arrival, so what is left is a range of arrivals, up to the newest.

Arrivals are counted in buckets of one millisecond, in buckets of sixteen of these, and so on. Each bucket has the least
progress of its records. So a range is a few buckets of each size, and adding records reads nothing. Records need not
come in the order of their arrival or their progress. Records of one millisecond count as held until the last of them
has left."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.durations import INSTANT_MAX_US
from headrace.views.keyed import Column, State, TableSpec
from headrace.views.values import time_column

__all__ = ["HELD", "held_rows", "least_progress_us"]

I64 = npt.NDArray[np.int64]
SIZES, RATIO, FINEST_US = 8, 16, 1_000
SIZE, BUCKET, PROGRESS, UNTIL = "size", "bucket", "progress_us", "until"
HELD = TableSpec(
    "held",
    (Column(SIZE, "int"), Column(BUCKET, "bigint")),
    (Column(PROGRESS, "bigint"), Column(UNTIL, "timestamp")),
    UNTIL,
    {PROGRESS: "least", UNTIL: "greatest"},
)
"""`until`: the last arrival of a bucket, by which it is dropped. A record without progress counts as `time.UNSET`."""


def held_rows(arrived: I64, progress: I64) -> pa.Table:
    """Rows to be added to `HELD` for records with these arrivals and progress."""
    bucket, least = _least_of(arrived // FINEST_US, progress)
    sizes, buckets, leasts, until = [], [], [], []
    for size in range(SIZES):
        sizes.append(np.full(len(bucket), size, np.int32))
        buckets.append(bucket)
        leasts.append(least)
        until.append(np.minimum((bucket + 1) * FINEST_US * RATIO**size - 1, INSTANT_MAX_US))
        bucket, least = _least_of(bucket // RATIO, least)
    columns = [np.concatenate(each) for each in (sizes, buckets, leasts)]
    return pa.table([*map(pa.array, columns), time_column(np.concatenate(until))], names=list(HELD.names))


def least_progress_us(state: State, since_us: int) -> int | None:
    """The least progress of records held that arrived then or later; None: there are none."""
    low, high = [], []
    first = since_us // FINEST_US
    for size in range(SIZES):
        above = -(-first // RATIO)
        low.append(first)
        high.append(above * RATIO - 1 if size < SIZES - 1 else 2**62)
        first = above
    rows = state.scan(HELD.name, pa.table({SIZE: pa.array(range(SIZES), pa.int32())}), low, high)
    return int(rows[PROGRESS].to_numpy().min()) if rows.num_rows else None


def _least_of(bucket: I64, progress: I64) -> tuple[I64, I64]:
    """Each bucket once, with the least progress."""
    buckets, number = np.unique(bucket, return_inverse=True)
    least = np.full(len(buckets), 2**63 - 1, np.int64)
    np.minimum.at(least, number.reshape(-1), progress)
    return buckets, least
