"""Sliding windows in a view's tables: which windows the records of an instant are part of. Inside a transaction of the
store.

A window is a row, and ends with a record of its key. The records are kept, too, as *parts*, as long as a window that
holds them can come. What comes new is merged into the windows that are there, and a window that comes new gets all
parts that are in it: both as partial rows like any other, so that each aggregate is merged by its own rule. What is
merged by adding and comparing numbers, and is of a window that comes new, is merged here already: a row for each window
goes to the store, and not one for each record in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates import Aggregate
from headrace.views.contract import COUNTS_FROM, ON_TIME_FROM, WINDOW
from headrace.views.sqlite import merging, retracting
from headrace.views.sqlite.tables import ViewTables
from headrace.views.sqlite.values import decode, encode, us_of
from headrace.views.values import I64, INSTANT, numbered, time_column, us_column

__all__ = ["spread"]

ADDED = {"add": "sum", "whole": "sum", "least": "min", "greatest": "max"}
"""Rule -> how Arrow merges numbers by it."""
PAIRS_MAX = 1_000_000
"""So many records, each in a window, are looked at together; of one window all."""


def spread(
    db: sqlite3.Connection,
    tables: ViewTables,
    given: pa.Table,
    aggregates: Mapping[str, Aggregate],
    reachable_us: int | None,
) -> pa.Table:
    """The records of some instants, as partial rows of all windows that they change. They are kept as parts, unless
    they are in no window that can come after this commit."""
    parts = tables.parts
    assert parts is not None
    number, ends = _windows_there(db, tables, given)
    has_row = np.zeros(given.num_rows, np.bool_)
    has_row[number[ends == us_column(given[WINDOW[1]])[number]]] = True
    rows = [_windowed(tables, given, number, ends), _in_new_windows(db, tables, given, has_row)]
    at = given.set_column(given.column_names.index(WINDOW[0]), WINDOW[0], given[WINDOW[1]])
    if reachable_us is not None:
        at = at.filter(pa.array(us_column(at[WINDOW[1]]) > reachable_us - _size_us(tables)))
    at = merging.in_order(parts.spec, at)
    merging.merge(db, parts, at, aggregates)
    if parts.kept:
        retracting.keep(db, parts, at, aggregates, results=False)
    return merging.in_order(tables.spec, pa.concat_tables(rows))


def _windows_there(db: sqlite3.Connection, tables: ViewTables, given: pa.Table) -> tuple[I64, I64]:
    """Which of the rows are in which windows that have a row, by their ends: those that end from when it counts on, and
    begin by then."""
    counts = us_column(given[COUNTS_FROM])
    near = np.flatnonzero(counts <= _last(db, tables))
    some = given.take(pa.array(near))
    times = {"low": counts[near] - _size_us(tables), "high": us_column(some[WINDOW[1]])}
    columns = {name: encode(time_column(each)) for name, each in times.items()} | merging.group_columns(tables, some)
    merging.staged(db, "given", near.tolist(), columns)
    found = db.execute(
        f"SELECT t.number, s.window_end FROM temp.given t CROSS JOIN {tables.state} s "
        f"ON s.window_start >= t.low AND s.window_start <= t.high{merging.same_groups(tables, 's')}"
    ).fetchall()
    return np.array([at for at, _ in found], np.int64), us_column(decode([end for _, end in found], INSTANT))


def _in_new_windows(
    db: sqlite3.Connection, tables: ViewTables, given: pa.Table, has_row: npt.NDArray[np.bool_]
) -> pa.Table:
    """All parts, those that come new among them, in the windows that have no row yet: those that end with a record."""
    at, key = us_column(given[WINDOW[1]]), numbered(given, [each.name for each in tables.spec.groups])
    fresh = np.flatnonzero((us_column(given[COUNTS_FROM]) == at) & ~has_row)
    fresh = fresh[np.lexsort((at[fresh], key[fresh]))]
    differ = (np.diff(key[fresh], prepend=-1) != 0) | (np.diff(at[fresh], prepend=-1) != 0)
    fresh = fresh[differ]
    old, old_key = _parts_there(db, tables, given, fresh, at, key)
    rows = pa.concat_tables([old, given])
    key, at = np.concatenate((old_key, key)), np.concatenate((us_column(old[WINDOW[1]]), at))
    fresh = fresh + old.num_rows
    instants, rank = np.unique(at, return_inverse=True)
    place, ends = key * len(instants) + rank, at[fresh]  # rows by group and time, as one number
    order = np.argsort(place, kind="stable")
    first = key[fresh] * len(instants) + np.searchsorted(instants, ends - _size_us(tables))
    begin, end = np.searchsorted(place[order], first), np.searchsorted(place[order], place[fresh], side="right")
    count, counts_from = end - begin, us_column(rows[COUNTS_FROM])
    made = []
    for some in np.split(np.arange(len(fresh)), np.flatnonzero(np.diff(np.cumsum(count) // PAIRS_MAX)) + 1):
        window, behind = np.repeat(some, count[some]), np.repeat(np.cumsum(count[some]), count[some])
        number = order[np.arange(len(window)) - behind + end[window]]
        counts = counts_from[number] <= ends[window]
        window = window[counts]
        made.append(_merged(tables, _windowed(tables, rows, number[counts], ends[window]), window))
    return pa.concat_tables(made)


def _parts_there(
    db: sqlite3.Connection, tables: ViewTables, given: pa.Table, fresh: I64, at: I64, key: I64
) -> tuple[pa.Table, I64]:
    """The parts that were kept and may be in new windows, which end with the rows `fresh`, in order; and their keys."""
    parts = tables.parts
    assert parts is not None
    one_of = fresh[np.diff(key[fresh], prepend=-1) != 0]
    last_of = fresh[np.diff(key[fresh], append=-1) != 0]
    low = at[one_of] - _size_us(tables)
    near = low <= _last(db, parts)
    times = {"low": low[near], "high": at[last_of[near]]}
    columns = {name: encode(time_column(each)) for name, each in times.items()}
    columns |= merging.group_columns(tables, given.take(pa.array(one_of[near])))
    merging.staged(db, "fresh", key[one_of[near]].tolist(), columns)
    found = dict(
        db.execute(
            f"SELECT p.{parts.row}, t.number FROM temp.fresh t CROSS JOIN {parts.state} p "
            f"ON p.window_start >= t.low AND p.window_start <= t.high{merging.same_groups(tables, 'p')}"
        ).fetchall()
    )
    rows = merging.read_out(db, parts, found).select(given.column_names).cast(given.schema)
    return rows, np.array([found[number] for number in sorted(found)], np.int64)


def _last(db: sqlite3.Connection, tables: ViewTables) -> int:
    """When the last row ends; very long ago if there is none."""
    (found,) = db.execute(f"SELECT max(window_end) FROM {tables.state}").fetchone()
    last = us_of(found)
    return int(np.iinfo(np.int64).min) if last is None else last


def _windowed(tables: ViewTables, rows: pa.Table, numbers: I64, end: I64) -> pa.Table:
    """The rows of these numbers as parts of windows with these ends."""
    rows = rows.take(pa.array(numbers, pa.int64()))
    corrections = np.where(end < us_column(rows[ON_TIME_FROM]), rows["_corrections"].to_numpy(), 0)
    for name, column in zip(
        (*WINDOW, "_corrections"), (time_column(end - _size_us(tables)), time_column(end), corrections), strict=True
    ):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(column))
    return rows.drop_columns([COUNTS_FROM, ON_TIME_FROM])


def _merged(tables: ViewTables, rows: pa.Table, window: I64) -> pa.Table:
    """One row for each window; as they are, if Arrow does not merge them as the store would."""
    functions = {slot.name: ADDED.get(slot.rule, "") for slot in tables.spec.slots}
    for name, function in functions.items():
        kind = rows.schema.field(name).type if function else pa.null()
        if not types.is_integer(kind) and name not in tables.whole:
            return rows
    functions |= {"_corrections": "sum", "_updated_at": "max"}
    asked = rows.select(list(functions)).append_column("/window", pa.array(window))
    found = asked.group_by("/window", use_threads=False).aggregate(list(functions.items()))
    rows = rows.take(pa.array(np.flatnonzero(np.diff(window, prepend=-1))))
    for name, function in functions.items():
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, found[f"{name}_{function}"].cast(rows.schema.field(name).type))
    return rows


def _size_us(tables: ViewTables) -> int:
    assert tables.spec.window_us is not None
    return tables.spec.window_us[0]
