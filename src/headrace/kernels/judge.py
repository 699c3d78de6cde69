"""The one judge: which pane a record is in, for how many of the pane's windows it is too late, and for how many it is
not on time. Owns the step from records to these three columns, wherever records are judged: where they are read, or
behind a transform that makes their time. `windows.*.judged` has the meaning. Arrow and numpy only; goes to the workers.

Behind a transform the log does not know how far the time has come: then progress is made here too (`OwnProgress`), in
the order of offsets, from what each partition had reached before the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.time import UNSET
from headrace.views.contract import ARRIVED
from headrace.windows import Window, timed_us

if TYPE_CHECKING:
    from headrace.windows.judging import Flags

__all__ = [
    "DROPPED",
    "EVENT",
    "JUDGED",
    "LATE",
    "PANE",
    "REACHED",
    "SOURCE",
    "UNTIMED",
    "Judge",
    "OwnProgress",
    "without_untimed",
]

PANE, DROPPED, LATE = JUDGED = "_pane", "_dropped", "_late"
"""What a judged record has more, whole numbers of 64 bits."""
UNTIMED = UNSET
"""The pane of a record without a time. Not null, for a transform may fill or drop nulls."""
EVENT, REACHED, SOURCE = "_event", "_reached", "_source"
"""Behind a transform: a record's time in microseconds, that time capped at its arrival, the number of its topic."""
_I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Judge:
    """`time`, `progress`: columns, in microseconds or as timestamps. Without progress nothing is late: a view's change
    was judged where its records came from a topic."""

    window: Window
    grace_us: int
    within_us: int
    time: str
    progress: str | None

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.time} | ({self.progress} if self.progress else set()))

    def judged(self, records: pa.Table | pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Pane, null where there is none; dropped; late."""
        event, untimed = _numbers(records[self.time])
        if len(event):
            first, last = timed_us(self.window)
            if event.min() < first or event.max() > last:
                untimed = untimed | (event < first) | (event > last)
                event = np.where(untimed, 0, event)  # no calendar has such times
        progress, unknown = (event, untimed) if self.progress is None else _numbers(records[self.progress])
        pane, dropped, late = self.window.judged(event, progress, self.grace_us, self.within_us)
        if self.progress is None:
            dropped = late = np.zeros(len(event), np.int64)
        elif late.any() and (untimed.any() or unknown.any()):
            counts = ~(untimed | unknown)
            dropped, late = dropped * counts, late * counts
        return pa.array(pane, mask=untimed if untimed.any() else None), pa.array(dropped), pa.array(late)

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records with the three columns behind their own."""
        for batch in batches:
            pane, dropped, late = self.judged(batch)
            for name, column in zip(JUDGED, (pane.fill_null(UNTIMED), dropped, late), strict=True):
                batch = batch.append_column(name, column)
            yield batch


@dataclass(frozen=True, slots=True)
class OwnProgress:
    """Makes the progress of a time that transforms made. Records come in the order of offsets, each partition of a
    source in one task; their `_progress` is what the partition had reached before the batch. It becomes what the
    partition had reached before the record: the largest time, capped at arrival, of those at lower offsets."""

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reached: dict[tuple[int, int], _Reached] = {}
        for batch in batches:
            source, partition, offset = (_numbers(batch.column(name))[0] for name in (SOURCE, "_partition", "_offset"))
            (event, untimed), (arrived, _) = (_numbers(batch.column(name)) for name in (EVENT, ARRIVED))
            carried, none = _numbers(batch.column("_progress"))
            capped = np.where(untimed, UNSET, np.minimum(event, arrived))
            progress = np.where(none, UNSET, carried)
            for start, stop in _runs(source, partition):
                known = reached.setdefault((int(source[start]), int(partition[start])), _Reached(int(progress[start])))
                progress[start:stop] = known.before(offset[start:stop], capped[start:stop])
            at = batch.schema.get_field_index("_progress")
            known_before = pa.array(progress, mask=progress == UNSET).cast(batch.schema.field(at).type)
            batch = batch.set_column(at, batch.schema.field(at), known_before)
            yield batch.append_column(REACHED, pa.array(capped, mask=capped == UNSET))


@dataclass(slots=True)
class _Reached:
    """How far a partition is: before its last offset, and with it. A record may have become several."""

    with_last: int
    before_last: int = field(init=False)
    last: int = -1

    def __post_init__(self) -> None:
        self.before_last = self.with_last

    def before(self, offset: _I64, capped: _I64) -> _I64:
        """What had been reached before each of the next records."""
        assert offset[0] >= self.last and np.all(offset[1:] >= offset[:-1]), "records out of order"
        so_far = np.maximum(np.maximum.accumulate(capped), self.with_last)
        first = np.searchsorted(offset, offset)  # the first record of the same offset
        if offset[0] != self.last:
            self.before_last = self.with_last
        out = np.where(first == 0, self.before_last, so_far[np.maximum(first - 1, 0)])
        self.before_last, self.with_last, self.last = int(out[-1]), int(so_far[-1]), int(offset[-1])
        return out


def _runs(*columns: _I64) -> Iterator[tuple[int, int]]:
    """Start and stop of each run of rows that are alike."""
    if not len(columns[0]):
        return
    cut = np.flatnonzero(np.any([column[1:] != column[:-1] for column in columns], axis=0)) + 1
    starts = [0, *cut.tolist()]
    yield from zip(starts, [*starts[1:], len(columns[0])], strict=True)


def without_untimed(pane: pa.Array) -> pa.Array:
    """Panes with nulls where records have none."""
    return pc.if_else(pc.equal(pane, UNTIMED), pa.scalar(None, pa.int64()), pane)


def _numbers(column: pa.Array | pa.ChunkedArray) -> tuple[_I64, Flags]:
    """Times in microseconds, and where there is none: zero stands there."""
    whole = column.cast(pa.int64())
    if not whole.null_count:
        numbers: _I64 = whole.to_numpy()
        return numbers, np.zeros(len(numbers), np.bool_)
    return whole.fill_null(0).to_numpy(), np.asarray(column.is_null())
