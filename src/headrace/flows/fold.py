"""From partial rows to what the store merges: panes become windows, and every record lands in the ledger. Arrow and
numpy only; no Spark session, no store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import Aggregate
from headrace.flows import hops
from headrace.flows.judge import DROPPED, LATE, PANE, REACHED, SOURCE
from headrace.flows.packing import from_lists
from headrace.flows.partials import CARRIED, FIRST, LAST, RECORDS, UPDATED
from headrace.views.contract import (
    COUNTS_FROM,
    ON_TIME_FROM,
    ROWS,
    WINDOW,
    WINDOWS_COUNTED,
    WINDOWS_MISSED,
    LedgerRow,
    ViewSpec,
)
from headrace.views.exact import exact_sum, rounded
from headrace.windows import Calendar, Fixed, Session, Sliding, Window

if TYPE_CHECKING:
    from headrace.windows.judging import Flags

INSTANT = pa.timestamp("us", tz="UTC")
_I64 = npt.NDArray[np.int64]
Aggregates = Mapping[str, Aggregate]


def folded(
    partials: pa.Table, window: Window | None, groups: tuple[str, ...], aggregates: Aggregates
) -> tuple[pa.Table, list[LedgerRow]]:
    """The rows to merge, and what became of the records."""
    partials = from_lists(partials, aggregates)
    if CARRIED in partials.column_names:
        partials = partials.append_column(ROWS, partials[RECORDS])
    own = {*groups, PANE, DROPPED, LATE, RECORDS, FIRST, LAST, SOURCE, "_partition", REACHED, CARRIED}
    values = [*groups, *(name for name in partials.column_names if name not in own)]
    if window is None:
        if not groups:  # of no records, Spark makes a row
            partials = partials.filter(pc.is_valid(partials[UPDATED]))
        rows = partials.select(values).append_column("_corrections", pa.array(_carried(partials)))
        total = pc.sum(partials[RECORDS]).as_py() or 0
        return _slots(rows, aggregates), [LedgerRow(None, None, on_time=total)] if total else []
    timed = partials.filter(pc.is_valid(partials[PANE]))
    untimed = pc.sum(partials.filter(pc.is_null(partials[PANE]))[RECORDS]).as_py() or 0
    match window:
        case Session():
            rows, ledger = _of_sessions(timed, values, window, groups, aggregates)
        case Sliding():
            rows, ledger = _of_slides(timed, values, window)
        case _:
            rows, ledger = _of_windows(timed, values, window, groups, aggregates)
    if untimed:
        ledger.append(LedgerRow(None, None, untimed=untimed))
    return _slots(rows, aggregates), ledger


def _of_windows(
    timed: pa.Table, values: list[str], window: Fixed | Calendar, groups: tuple[str, ...], aggregates: Aggregates
) -> tuple[pa.Table, list[LedgerRow]]:
    """A row for each window of a pane; of windows that overlap, if possible one for all of the panes of a group."""
    functions = hops.merging(timed, groups, aggregates) if isinstance(window, Fixed) else None
    if functions is None or not isinstance(window, Fixed) or window.windows_max == 1:
        return _in_windows(timed, values, window), _tally(timed, window)
    kept = [hops.KEY, *(name for name in values if name not in groups)]
    rows = hops.merged(timed, groups, functions, lambda piece: _in_windows(piece, kept, window), window.windows_max)
    return rows, _tally(timed, window)


def _in_windows(timed: pa.Table, values: list[str], window: Fixed | Calendar) -> pa.Table:
    records, dropped, late = (_numbers(timed[name]) for name in (RECORDS, DROPPED, LATE))
    carried = _carried(timed)
    pieces = []
    for number, held in enumerate(window.windows(_numbers(timed[PANE]))):
        accepted = held.inside & (number >= dropped)
        chosen = _within(timed.select(values).filter(pa.array(accepted)), held.start[accepted], held.end[accepted])
        corrections = np.where(number >= late, 0, records) + carried
        pieces.append(chosen.append_column("_corrections", pa.array(corrections[accepted])))
    return pa.concat_tables(pieces)


def _tally(timed: pa.Table, window: Fixed | Calendar) -> list[LedgerRow]:
    """Records by window and what became of them."""
    few = timed.group_by([PANE, DROPPED, LATE], use_threads=False).aggregate([(RECORDS, "sum")])
    records, dropped, late = (_numbers(few[name]) for name in (f"{RECORDS}_sum", DROPPED, LATE))
    counts: dict[tuple[int, int], list[int]] = {}
    for number, held in enumerate(window.windows(_numbers(few[PANE]))):
        kinds = np.where(number >= late, 0, np.where(number >= dropped, 1, 2))
        found = zip(*(each[held.inside].tolist() for each in (held.start, held.end, kinds, records)), strict=True)
        for start, end, kind, count in found:
            counts.setdefault((start, end), [0, 0, 0])[kind] += count
    return [LedgerRow(start, end, *each) for (start, end), each in sorted(counts.items())]


def _of_sessions(
    timed: pa.Table, values: list[str], window: Session, groups: tuple[str, ...], aggregates: Aggregates
) -> tuple[pa.Table, list[LedgerRow]]:
    """A row for each pane, from its first record to its last, or if possible for each session of the batch: the store
    joins them. What became of the records is told of the flow: which session they are part of may change."""
    records, dropped, late = (_numbers(timed[name]) for name in (RECORDS, DROPPED, LATE))
    accepted = dropped == 0
    first, last = (_numbers(timed[name])[accepted] for name in (FIRST, LAST))
    rows = _within(timed.select(values).filter(pa.array(accepted)), first, last)
    rows = rows.append_column("_corrections", pa.array(np.where(late > 0, records, 0)[accepted]))
    functions = hops.merging(timed, groups, aggregates)
    if functions is not None and rows.num_rows:
        rows = hops.together(rows, groups, functions, window.gap_us)
    return rows, _of_flow(records, accepted, late == 0)


def _of_slides(timed: pa.Table, values: list[str], window: Sliding) -> tuple[pa.Table, list[LedgerRow]]:
    """A row for each instant and how late its records were: from when on they count, and count as on time. The store
    makes windows of them. A record is told as what it is for the window that ends with it."""
    at, records, dropped, late = (_numbers(timed[name]) for name in (PANE, RECORDS, DROPPED, LATE))
    counts = dropped <= window.size_us
    rows = _within(timed.select(values).filter(pa.array(counts)), (at - window.size_us)[counts], at[counts])
    for name, times in (COUNTS_FROM, at + dropped), (ON_TIME_FROM, at + late):
        rows = rows.append_column(name, pa.array(times[counts], pa.int64()).cast(INSTANT))
    rows = rows.append_column("_corrections", pa.array(records[counts]))
    return rows, _of_flow(records, dropped == 0, late == 0)


def _of_flow(records: _I64, accepted: Flags, on_time: Flags) -> list[LedgerRow]:
    counts = [int(records[kind].sum()) for kind in (on_time, accepted & ~on_time, ~accepted)]
    return [LedgerRow(None, None, *counts)] if any(counts) else []


def _within(rows: pa.Table, start: _I64, end: _I64) -> pa.Table:
    for name, times in zip(WINDOW, (start, end), strict=True):
        rows = rows.append_column(name, pa.array(times, pa.int64()).cast(INSTANT))
    return rows


def dropped_records(dropped: pa.Table, window: Window) -> pa.Table:
    """Dropped records, each with the stretch of the windows that it was too late for, with how many they are, and of
    how many others it is part. Of a session or a sliding window that is the record's own; how many sliding windows it
    is part of depends on what is to come."""
    pane, missed = _numbers(dropped[PANE]), _numbers(dropped[DROPPED])
    plain = dropped.drop_columns([PANE, DROPPED])
    one, none = np.ones_like(missed), np.zeros_like(missed)
    match window:
        case Session():
            return _missing(_within(plain, pane, pane), one, pa.array(none))
        case Sliding():
            return _missing(_within(plain, pane - window.size_us, pane), one, pa.nulls(len(pane), pa.int64()))
    held = list(window.windows(pane))
    ends = np.stack([each.end for each in held])[missed - 1, np.arange(len(pane))]
    counted = np.sum([each.inside for each in held], axis=0) - missed
    return _missing(_within(plain, held[0].start, ends), missed, pa.array(counted))


def _missing(rows: pa.Table, missed: _I64, counted: pa.Array) -> pa.Table:
    return rows.append_column(WINDOWS_MISSED, pa.array(missed)).append_column(WINDOWS_COUNTED, counted)


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
        if aggregate.partial.retracts:
            rows = _exact(rows, name, aggregate) if aggregate.partial.exact else rows
        elif aggregate.kind in ("first", "last"):
            at = rows.column_names.index(name)
            best = rows[name].combine_chunks()
            for part in ("at", "partition", "offset"):
                rows = rows.append_column(f"{name}__{part}", pc.struct_field(best, part))
            rows = rows.set_column(at, name, pc.struct_field(best, "value"))
        elif aggregate.kind == "sum" and aggregate.partial.exact:
            rows = _exact(rows, name, aggregate)
    return rows


def _exact(rows: pa.Table, name: str, aggregate: Aggregate) -> pa.Table:
    """Values, or values with how often each comes or goes, summed; and the sums, rounded."""
    exact, sums, *_ = (slot.name for slot in aggregate.slots(name))
    values = rows[exact].to_pylist()
    if aggregate.partial.retracts:
        texts = [exact_sum([one["value"] for one in some], [one["count"] for one in some]) for some in values]
    else:
        texts = [exact_sum(some) for some in values]
    rows = rows.set_column(rows.column_names.index(exact), exact, pa.array(texts, pa.string()))
    floats = [float(value) if isinstance(value, str) else value for value in map(rounded, texts)]
    return rows.append_column(sums, pa.array(floats, pa.float64()))


def _numbers(column: pa.ChunkedArray) -> _I64:
    numbers: _I64 = column.cast(pa.int64()).to_numpy()
    return numbers


def _carried(partials: pa.Table) -> _I64:
    """The corrections that changes bring with them."""
    if CARRIED not in partials.column_names:
        return np.zeros(partials.num_rows, np.int64)
    return _numbers(partials[CARRIED])


def needed(spec: ViewSpec) -> list[str]:
    """The columns that `folded` has to bring for the view."""
    window = (*(WINDOW if spec.window_us else ()), *((COUNTS_FROM, ON_TIME_FROM) if spec.windows == "sliding" else ()))
    slots = [slot.name for slot in spec.slots if slot.rule != "finished"]
    return [*window, *(each.name for each in spec.groups), *slots, "_corrections", UPDATED]
