"""Event-time progress: how far a partition had come when a record was appended. Pure functions over
microseconds since the epoch; knows no clock and no storage.

Progress of a record is the largest min(event time, arrival) at lower offsets of its partition. Capping
at arrival means that no clock in the future can make other records late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _I64 = npt.NDArray[np.int64]

UNSET = -(2**63)
"""No progress yet: below every event time. As a stored value it is null."""


def progress_after(before_us: int, event_max_us: int | None, arrived_us: int) -> int:
    """A partition's progress behind a batch: the largest min(t, arrival) is min(largest t, arrival)."""
    if event_max_us is None:
        return before_us
    return max(before_us, min(event_max_us, arrived_us))


def progress_of_rows(before_us: _I64, events_us: _I64, arrived_us: _I64) -> _I64:
    """Each row's progress: what is before its batch, and the rows above it. Untimed rows are `UNSET`. The rows may be
    of several batches in a row: what is before a batch is not less than what the rows of the one above it make it."""
    import numpy as np

    out = before_us.copy()
    if len(out) > 1:
        above = np.maximum.accumulate(np.minimum(events_us[:-1], arrived_us[:-1]))
        np.maximum(out[1:], above, out=out[1:])
    return out


def with_floor(before_us: int, last_arrival_us: int, arrived_us: int, topic_progress_us: int, forget_us: int) -> int:
    """The floor under a partition that slept longer than `forget`: the topic's largest progress less `forget`.
    It keeps sleepers from reopening the past, and so lets state be dropped."""
    if topic_progress_us == UNSET or arrived_us - last_arrival_us <= forget_us:
        return before_us
    return max(before_us, topic_progress_us - forget_us)
