"""Sliding windows in a view's tables: which windows the records of an instant are part of. Inside a transaction of the
store.

A window is a row, and ends with a record of its key. The records are kept, too, as *parts*, as long as a window that
holds them can come. What comes new is merged into the windows that are there, and a window that comes new gets all
parts that are in it: both as partial rows like any other, so that each aggregate is merged by its own rule."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import Aggregate
from headrace.views import merging
from headrace.views.contract import COUNTS_FROM, ON_TIME_FROM, WINDOW
from headrace.views.tables import ViewTables, quoted
from headrace.views.values import INSTANT, decode, encode, time_column, us_column

__all__ = ["spread"]


def spread(
    db: sqlite3.Connection, tables: ViewTables, given: pa.Table, aggregates: Mapping[str, Aggregate]
) -> pa.Table:
    """The records of some instants, as partial rows of all windows that they change. They are kept as parts."""
    parts = tables.parts
    assert parts is not None
    at = given.set_column(given.column_names.index(WINDOW[0]), WINDOW[0], given[WINDOW[1]])
    merging.merge(db, parts, merging.in_order(parts.spec, at), aggregates)
    rows = [_in_windows_there(db, tables, given), _in_new_windows(db, tables, given)]
    return merging.in_order(tables.spec, pa.concat_tables(rows))


def _in_windows_there(db: sqlite3.Connection, tables: ViewTables, given: pa.Table) -> pa.Table:
    """What comes new, in the windows that have a row: those that end from when it counts on, and begin by then."""
    size_us = _size_us(tables)
    times = {"low": us_column(given[COUNTS_FROM]) - size_us, "high": us_column(given[WINDOW[1]])}
    columns = {name: encode(time_column(each)) for name, each in times.items()} | merging.group_columns(tables, given)
    merging.staged(db, "given", range(given.num_rows), columns)
    found = db.execute(
        f"SELECT t.number, s.window_end FROM temp.given t CROSS JOIN {tables.state} s "
        f"ON s.window_start >= t.low AND s.window_start <= t.high{merging.same_groups(tables, 's')}"
    ).fetchall()
    return _windowed(tables, given, [number for number, _ in found], decode([end for _, end in found], INSTANT))


def _in_new_windows(db: sqlite3.Connection, tables: ViewTables, given: pa.Table) -> pa.Table:
    """All parts, those that come new among them, in the windows that have no row yet."""
    parts, size_us = tables.parts, _size_us(tables)
    assert parts is not None
    own = given.filter(pc.equal(given[COUNTS_FROM], given[WINDOW[1]]))
    ends = us_column(own[WINDOW[1]])
    columns = {"low": encode(time_column(ends - size_us)), "ends": encode(time_column(ends))} | merging.group_columns(
        tables, own
    )
    merging.staged(db, "fresh", range(own.num_rows), columns)
    found = db.execute(
        f"SELECT t.ends, p.{parts.row} FROM (SELECT DISTINCT {', '.join(columns)} FROM temp.fresh) t "
        f"CROSS JOIN {parts.state} p ON p.window_start >= t.low AND p.window_start <= t.ends"
        f"{merging.same_groups(tables, 'p')} WHERE p.{quoted(COUNTS_FROM)} <= t.ends AND NOT EXISTS "
        f"(SELECT 1 FROM {tables.state} s WHERE s.window_start = t.low{merging.same_groups(tables, 's')})"
    ).fetchall()
    numbers = sorted({number for _, number in found})
    at = {number: place for place, number in enumerate(numbers)}
    rows = merging.read_out(db, parts, numbers).select(given.column_names).cast(given.schema)
    return _windowed(tables, rows, [at[number] for _, number in found], decode([end for end, _ in found], INSTANT))


def _windowed(tables: ViewTables, rows: pa.Table, numbers: Sequence[int], ends: pa.Array) -> pa.Table:
    """The rows of these numbers as parts of windows with these ends."""
    rows, end = rows.take(pa.array(numbers, pa.int64())), us_column(ends)
    corrections = np.where(end < us_column(rows[ON_TIME_FROM]), rows["_corrections"].to_numpy(), 0)
    for name, column in zip(
        (*WINDOW, "_corrections"), (time_column(end - _size_us(tables)), ends, corrections), strict=True
    ):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(column))
    return rows.drop_columns([COUNTS_FROM, ON_TIME_FROM])


def _size_us(tables: ViewTables) -> int:
    assert tables.spec.window_us is not None
    return tables.spec.window_us[0]
