"""From partial rows to what the store merges: panes become windows, and every record lands in the ledger. Arrow and
numpy only; no Spark session, no store."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import Aggregate
from headrace.kernels import hops
from headrace.kernels.columns import CARRIED, FIRST, LAST, RECORDS, UPDATED
from headrace.kernels.judge import DROPPED, LATE, PANE, REACHED, SOURCE
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
from headrace.windows import Aligned, Window
from headrace.windows.window import Panes

INSTANT = pa.timestamp("us", tz="UTC")
_I64 = npt.NDArray[np.int64]
Aggregates = Mapping[str, Aggregate]


def folded(
    partials: pa.Table, window: Window | None, groups: tuple[str, ...], aggregates: Aggregates
) -> tuple[pa.Table, list[LedgerRow]]:
    """The rows to merge, and what became of the records."""
    partials = packed(partials, aggregates)
    if CARRIED in partials.column_names:
        partials = partials.append_column(ROWS, partials[RECORDS])
    own = {*groups, PANE, DROPPED, LATE, RECORDS, FIRST, LAST, SOURCE, "_partition", REACHED, CARRIED}
    values = [*groups, *(name for name in partials.column_names if name not in own)]
    if window is None:
        if not groups:  # of no records, Spark makes a row
            partials = partials.filter(pc.is_valid(partials[UPDATED]))
        rows = partials.select(values).append_column("_corrections", pa.array(_carried(partials)))
        total = pc.sum(partials[RECORDS]).as_py() or 0
        return rows, [LedgerRow(None, None, on_time=total)] if total else []
    timed, untimed = partials, 0
    if partials[PANE].null_count:
        timed = partials.filter(pc.is_valid(partials[PANE]))
        untimed = pc.sum(partials.filter(pc.is_null(partials[PANE]))[RECORDS]).as_py()
    rows = _merged(timed, values, window, groups, aggregates)
    ledger = _tally(timed, window) if isinstance(window, Aligned) else _of_flow(timed)
    if untimed:
        ledger.append(LedgerRow(None, None, untimed=untimed))
    return rows, ledger


def _merged(
    timed: pa.Table, values: list[str], window: Window, groups: tuple[str, ...], aggregates: Aggregates
) -> pa.Table:
    """A row for each window of a pane; of windows that overlap, or grow together, if possible one for all of the panes
    of a group."""
    overlap, gap_us = window.windows_max > 1, window.joins_us
    functions = hops.merging(timed, groups, aggregates) if overlap or gap_us is not None else None
    if functions is not None and overlap:
        kept = [hops.KEY, *(name for name in values if name not in groups)]
        return hops.merged(timed, groups, functions, lambda some: _in_windows(some, kept, window), window.windows_max)
    rows = _in_windows(timed, values, window)
    if functions is not None and gap_us is not None and rows.num_rows:
        return hops.together(rows, groups, functions, gap_us)
    return rows


def _in_windows(timed: pa.Table, values: list[str], window: Window) -> pa.Table:
    """The partial rows, once for each of their windows that they are not too late for."""
    carried, out = _carried(timed), []
    for piece in window.pieces(_panes(timed)):
        chosen = slice(None) if piece.chosen.all() else piece.chosen
        rows = timed.select(values)
        rows = rows if isinstance(chosen, slice) else rows.filter(pa.array(chosen))
        rows = _within(rows, piece.start[chosen], piece.end[chosen])
        for name, times in (COUNTS_FROM, piece.counts_from), (ON_TIME_FROM, piece.on_time_from):
            if times is not None:
                rows = rows.append_column(name, pa.array(times[chosen], pa.int64()).cast(INSTANT))
        out.append(rows.append_column("_corrections", pa.array((piece.corrections + carried)[chosen])))
    return pa.concat_tables(out)


def _panes(timed: pa.Table) -> Panes:
    """What windows are asked about. Where the first and the last record do not matter, nobody has looked."""
    pane, dropped, late, records = (_numbers(timed[name]) for name in (PANE, DROPPED, LATE, RECORDS))
    known = FIRST in timed.column_names
    first, last = (_numbers(timed[name]) if known else pane for name in (FIRST, LAST))
    return Panes(pane, dropped, late, records, first, last)


def _tally(timed: pa.Table, window: Aligned) -> list[LedgerRow]:
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


def _of_flow(timed: pa.Table) -> list[LedgerRow]:
    """What became of the records, told of the flow: which window they are part of may change, or they are part of many.
    Each is told as what it is for the window that ends with it."""
    records, dropped, late = (_numbers(timed[name]) for name in (RECORDS, DROPPED, LATE))
    accepted, on_time = dropped == 0, late == 0
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
    found = window.missed(_numbers(dropped[PANE]), _numbers(dropped[DROPPED]))
    rows = _within(dropped.drop_columns([PANE, DROPPED]), found.start, found.end)
    counted = pa.nulls(dropped.num_rows, pa.int64()) if found.counted is None else pa.array(found.counted)
    return rows.append_column(WINDOWS_MISSED, pa.array(found.missed)).append_column(WINDOWS_COUNTED, counted)


def reached(partials: pa.Table) -> dict[tuple[int, int], int]:
    """(source, partition) -> the largest time its records had."""
    out: dict[tuple[int, int], int] = {}
    columns = (partials[name].to_pylist() for name in (SOURCE, "_partition", REACHED))
    for source, partition, us in zip(*columns, strict=True):
        if us is not None:
            out[source, partition] = max(us, out.get((source, partition), us))
    return out


def packed(partials: pa.Table, aggregates: Aggregates) -> pa.Table:
    """Partial rows, whoever made them, with the aggregates' slots."""
    for name, aggregate in aggregates.items():
        partials = aggregate.algebra.packed(name, partials)
    return partials


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
    window = (
        *(WINDOW if spec.window_us or spec.lives else ()),
        *((COUNTS_FROM, ON_TIME_FROM) if spec.windows == "sliding" else ()),
    )
    slots = [slot.name for slot in spec.slots if slot.rule != "finished"]
    return [*window, *(each.name for each in spec.groups), *slots, "_corrections", UPDATED]
