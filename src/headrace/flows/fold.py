"""From partial rows to what the store merges: panes become windows, and every record lands in the ledger. Arrow and
numpy only; no Spark session, no store."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import Aggregate
from headrace.flows.packing import from_lists
from headrace.flows.partials import DROPPED, LATE, PANE, REACHED, RECORDS, SOURCE, UPDATED
from headrace.views.contract import WINDOW, LedgerRow, ViewSpec
from headrace.views.exact import exact_sum, rounded
from headrace.windows import Fixed

INSTANT = pa.timestamp("us", tz="UTC")
_I64 = npt.NDArray[np.int64]


def folded(
    partials: pa.Table, window: Fixed | None, groups: tuple[str, ...], aggregates: Mapping[str, Aggregate]
) -> tuple[pa.Table, list[LedgerRow]]:
    """The rows to merge, and what became of the records."""
    partials = from_lists(partials, aggregates)
    own = {*groups, PANE, DROPPED, LATE, RECORDS, SOURCE, "_partition", REACHED}
    values = [*groups, *(name for name in partials.column_names if name not in own)]
    if window is None:
        if not groups:  # of no records, Spark makes a row
            partials = partials.filter(pc.greater(partials[RECORDS], 0))
        rows = partials.select(values).append_column("_corrections", _zeros(partials.num_rows))
        total = pc.sum(partials[RECORDS]).as_py() or 0
        return _slots(rows, aggregates), [LedgerRow(None, None, on_time=total)] if total else []
    timed = partials.filter(pc.is_valid(partials[PANE]))
    untimed = pc.sum(partials.filter(pc.is_null(partials[PANE]))[RECORDS]).as_py() or 0
    pane, records = _numbers(timed[PANE]), _numbers(timed[RECORDS])
    dropped, late = _numbers(timed[DROPPED]), _numbers(timed[LATE])
    lowest = pane + window.pane_us - window.size_us
    first = -(-lowest // window.every_us) * window.every_us
    count = (pane - first) // window.every_us + 1
    tally = _Tally(window.size_us)
    pieces = []
    for number in range(window.windows_max):
        start = first + number * window.every_us
        inside = number < count
        accepted, on_time = inside & (number >= dropped), inside & (number >= late)
        tally.add(start, records, inside=inside, accepted=accepted, on_time=on_time)
        chosen = timed.select(values).filter(pa.array(accepted))
        starts = start[accepted]
        pieces.append(
            chosen.append_column(WINDOW[0], pa.array(starts, pa.int64()).cast(INSTANT))
            .append_column(WINDOW[1], pa.array(starts + window.size_us, pa.int64()).cast(INSTANT))
            .append_column("_corrections", pa.array(np.where(on_time, 0, records)[accepted]))
        )
    ledger = tally.rows()
    if untimed:
        ledger.append(LedgerRow(None, None, untimed=untimed))
    return _slots(pa.concat_tables(pieces), aggregates), ledger


def spread(dropped: pa.Table, window: Fixed) -> pa.Table:
    """Dropped records, one row for each window they were too late for."""
    pane, count = _numbers(dropped[PANE]), _numbers(dropped[DROPPED])
    first = -(-(pane + window.pane_us - window.size_us) // window.every_us) * window.every_us
    plain = dropped.drop_columns([PANE, DROPPED])
    pieces = []
    for number in range(window.windows_max):
        start = (first + number * window.every_us)[number < count]
        pieces.append(
            plain.filter(pa.array(number < count))
            .append_column(WINDOW[0], pa.array(start, pa.int64()).cast(INSTANT))
            .append_column(WINDOW[1], pa.array(start + window.size_us, pa.int64()).cast(INSTANT))
        )
    return pa.concat_tables(pieces)


def reached(partials: pa.Table) -> dict[tuple[int, int], int]:
    """(source, partition) -> the largest time its records had."""
    out: dict[tuple[int, int], int] = {}
    columns = (partials[name].to_pylist() for name in (SOURCE, "_partition", REACHED))
    for source, partition, us in zip(*columns, strict=True):
        if us is not None:
            out[source, partition] = max(us, out.get((source, partition), us))
    return out


def _slots(rows: pa.Table, aggregates: Mapping[str, Aggregate]) -> pa.Table:
    """What Spark could not bring in the shape of slots."""
    for name, aggregate in aggregates.items():
        if aggregate.kind in ("first", "last"):
            at = rows.column_names.index(name)
            best = rows[name].combine_chunks()
            for part in ("at", "partition", "offset"):
                rows = rows.append_column(f"{name}__{part}", pc.struct_field(best, part))
            rows = rows.set_column(at, name, pc.struct_field(best, "value"))
        elif aggregate.kind == "sum" and aggregate.partial.exact:
            texts = [exact_sum(values) for values in rows[f"{name}__exact"].to_pylist()]
            rows = rows.set_column(
                rows.column_names.index(f"{name}__exact"), f"{name}__exact", pa.array(texts, pa.string())
            )
            sums = [rounded(text) for text in texts]
            floats = [float(value) if isinstance(value, str) else value for value in sums]
            rows = rows.append_column(name, pa.array(floats, pa.float64()))
    return rows


class _Tally:
    """Records by window and what became of them."""

    def __init__(self, size_us: int) -> None:
        self._size_us = size_us
        self._counts: dict[int, list[int]] = {}

    def add(
        self,
        start: _I64,
        records: _I64,
        *,
        inside: npt.NDArray[np.bool_],
        accepted: npt.NDArray[np.bool_],
        on_time: npt.NDArray[np.bool_],
    ) -> None:
        starts, at = np.unique(start[inside], return_inverse=True)
        kinds = (on_time, accepted & ~on_time, inside & ~accepted)
        sums = [np.bincount(at, weights=np.where(kind, records, 0)[inside], minlength=len(starts)) for kind in kinds]
        for number, window in enumerate(starts.tolist()):
            counts = self._counts.setdefault(window, [0, 0, 0])
            for kind in range(3):
                counts[kind] += int(sums[kind][number])

    def rows(self) -> list[LedgerRow]:
        return [LedgerRow(start, start + self._size_us, *counts) for start, counts in sorted(self._counts.items())]


def _numbers(column: pa.ChunkedArray) -> _I64:
    numbers: _I64 = column.cast(pa.int64()).to_numpy()
    return numbers


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int64))


def needed(spec: ViewSpec) -> list[str]:
    """The columns that `folded` has to bring for the view."""
    window = WINDOW if spec.window_us else ()
    slots = [slot.name for slot in spec.slots if slot.rule != "finished"]
    return [*window, *(each.name for each in spec.groups), *slots, "_corrections", UPDATED]
