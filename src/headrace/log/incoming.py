"""What an append takes, whatever log it goes to. Owns which records are too large or too far ahead, which partition
each goes to, and the progress that is given with them. Knows no log."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import keys
from headrace.durations import instant_us
from headrace.errors import InvalidArgument, RecordTooLarge
from headrace.log.contract import Progress, Rows
from headrace.log.settings import TopicSettings
from headrace.time import UNSET

__all__ = [
    "RECORD_BYTES_MAX",
    "assign_partitions",
    "beyond",
    "bounds",
    "given_progress",
    "refuse_too_large",
    "repeatable",
    "split_ahead",
    "split_partitions",
]

INSTANT = pa.timestamp("us", tz="UTC")
RECORD_BYTES_MAX = 16 << 20


def repeatable(rows: Rows) -> Rows:
    """An iterator or a stream can be read only once, but an append may be prepared twice."""
    if isinstance(rows, Mapping) or not hasattr(rows, "__next__"):
        return rows
    if hasattr(rows, "__arrow_c_stream__"):  # a RecordBatchReader: its items are batches, not rows
        return pa.table(rows)
    return list(rows)


_turns: dict[str, itertools.count[int]] = {}
_turns_lock = threading.Lock()


def _next_turn(uid: str, count: int) -> int:
    """Round-robin over the partitions of a topic without a key: where the next record goes."""
    with _turns_lock:
        turn = _turns.setdefault(uid, itertools.count())
        first = next(turn)
        if count > 1:
            _turns[uid] = itertools.count(first + count)
        return first


def assign_partitions(
    batch: pa.RecordBatch, topic: str, topic_id: str, settings: TopicSettings, partition: int | None = None
) -> npt.NDArray[np.int64] | None:
    """Each row's partition; None when there is only one."""
    count, partitions = batch.num_rows, settings.partitions
    if partition is not None:
        if settings.key:
            raise InvalidArgument("partition", partition, f"topic {topic!r} has a key, which chooses the partition")
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < partitions:
            raise InvalidArgument("partition", partition, f"topic {topic!r} has partitions 0 to {partitions - 1}")
        return np.full(count, partition, np.int64)
    if partitions == 1:
        return None
    if settings.key:
        return keys.partitions_of(batch, settings.key, partitions)
    return (_next_turn(topic_id, count) + np.arange(count)) % partitions


def split_partitions(
    batch: pa.RecordBatch, assigned: npt.NDArray[np.int64] | None, partitions: int
) -> list[tuple[int, pa.RecordBatch]]:
    if batch.num_rows == 0:
        return []
    return [(0, batch)] if assigned is None else keys.split(batch, assigned, partitions)


def bounds(times: pa.Array) -> tuple[int | None, int | None]:
    """The smallest and the largest, in microseconds; None where there is none."""
    if len(times) == 1:
        only = times[0].value
        return only, only
    found = pc.min_max(times.view(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()


def beyond(batch: pa.RecordBatch, event_time: str, limit_us: int) -> npt.NDArray[np.bool_]:
    times = np.asarray(batch.column(event_time).view(pa.int64()).fill_null(UNSET))
    return times > limit_us


def refuse_too_large(batch: pa.RecordBatch, topic: str, first: int = 0, limit: int = RECORD_BYTES_MAX) -> None:
    """By halves: costs nothing for ordinary batches, and finds the one record that is too large."""
    if batch.get_total_buffer_size() <= limit or batch.nbytes <= limit:
        return
    if batch.num_rows == 1:
        raise RecordTooLarge(
            topic=topic,
            row=first,
            column="",
            why=f"{batch.nbytes} bytes; a record may have {limit}. Store large values elsewhere",
            size_bytes=batch.nbytes,
            limit_bytes=limit,
        )
    half = batch.num_rows // 2
    refuse_too_large(batch.slice(0, half), topic, first, limit)
    refuse_too_large(batch.slice(half), topic, first + half, limit)


def split_ahead(
    batch: pa.RecordBatch, event_time: str, limit_us: int, carried: pa.Array | None
) -> tuple[pa.RecordBatch, pa.RecordBatch | None, pa.Array | None]:
    """Records whose event time is beyond the limit, apart from the rest."""
    largest = bounds(batch.column(event_time))[1]
    if largest is None or largest <= limit_us:
        return batch, None, carried
    ahead = pa.array(beyond(batch, event_time, limit_us))
    kept = pc.invert(ahead)
    return batch.filter(kept), batch.filter(ahead), None if carried is None else carried.filter(kept)


def given_progress(progress: Progress, count: int) -> pa.Array | None:
    if progress is None:
        return None
    if isinstance(progress, pa.ChunkedArray) and progress.type == INSTANT:
        found = progress.combine_chunks()
    elif isinstance(progress, datetime):
        found = pa.array([instant_us(progress, argument="progress")] * count, pa.int64()).cast(INSTANT)
    elif isinstance(progress, Sequence) and not isinstance(progress, str):
        each = [None if p is None else instant_us(p, argument="progress") for p in progress]
        found = pa.array(each, pa.int64()).cast(INSTANT)
    else:
        raise InvalidArgument("progress", progress, "must be an aware datetime, or one (or None) per record")
    if len(found) != count:
        raise InvalidArgument("progress", f"{len(found)} values", f"there are {count} records")
    return found
