"""Rows into a view's tables, inside a transaction of the store: merging partial rows, dropping what can no longer
change, and saying what changed. Owns no transaction and no connection.

Cost grows with the rows that are merged. Rows are sorted by key first: neighbours in the file are written together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.views.contract import Emit, ViewSpec, change_columns
from headrace.views.tables import ViewTables, quoted
from headrace.views.values import arrow_type, decode, encode, text_of_us

__all__ = ["Changes", "ending", "forget", "merge"]

Row = tuple[Any, ...]


def merge(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table) -> None:
    """Merges rows of key columns and slots; a `distinct` slot comes as a list of values."""
    spec = tables.spec
    if tables.key:
        partials = partials.sort_by([(name, "ascending") for name in spec.key])
    columns = {name: encode(partials[name]) for name in tables.names if name not in _distinct_names(tables)}
    columns |= {name: [0] * partials.num_rows for name in _distinct_names(tables)}
    rows: Iterable[Row] = zip(*(columns[name] for name in tables.names), strict=True)
    if tables.distinct:
        _merge_distinct(db, tables, list(rows), partials)
        return
    nullable = any(partials[name].null_count for name in spec.key)
    if tables.key and not nullable:
        db.executemany(tables.upsert(), rows)
        return
    at = [tables.names.index(name) for name in spec.key]
    upsert, plain = tables.upsert() if tables.key else "", []
    for row in rows:
        if tables.key and all(row[i] is not None for i in at):
            plain.append(row)
        else:
            _put(db, tables, row)
    if plain:
        db.executemany(upsert, plain)


def _distinct_names(tables: ViewTables) -> set[str]:
    return {slot.name for slot in tables.distinct}


def _put(db: sqlite3.Connection, tables: ViewTables, row: Row) -> int:
    """One row, nulls in its key and all; returns its rowid."""
    at = [tables.names.index(name) for name in tables.spec.key]
    where = " AND ".join(f"{quoted(name)} IS ?" for name in tables.spec.key) or "1"
    found = db.execute(f"SELECT rowid FROM {tables.state} WHERE {where}", [row[i] for i in at]).fetchone()
    if found is None:
        return db.execute(tables.insert(), row).lastrowid or 0
    db.execute(tables.update(), row)
    return int(found[0])


def _merge_distinct(db: sqlite3.Connection, tables: ViewTables, rows: list[Row], partials: pa.Table) -> None:
    """Values are kept under their row's number; what was new of them is added to the row's count."""
    numbers = [_put(db, tables, row) for row in rows]
    for slot in tables.distinct:
        lists = partials[slot.name].combine_chunks()
        values, ends = encode(lists.flatten()), lists.value_lengths().fill_null(0).to_pylist()
        add = f"INSERT OR IGNORE INTO {tables.values_of(slot)} VALUES (?, ?)"
        fresh, start = [], 0
        for number, length in zip(numbers, ends, strict=True):
            before = db.total_changes
            db.executemany(add, [(number, value) for value in values[start : start + length]])
            fresh.append((db.total_changes - before, number))
            start += length
        name = quoted(slot.name)
        db.executemany(f"UPDATE {tables.state} SET {name} = {name} + ? WHERE rowid = ?", fresh)


def forget(db: sqlite3.Connection, tables: ViewTables, before: str | None, now_us: int | None) -> None:
    """Drops the values kept for windows that can no longer change: that end by `now_us`, and did not by `before`."""
    if now_us is None or not tables.spec.window_us or not tables.distinct:
        return
    where, values = ending(tables.spec, before, now_us)
    for slot in tables.distinct:
        rows = f"SELECT rowid FROM {tables.state} WHERE {where}"
        db.execute(f"DELETE FROM {tables.values_of(slot)} WHERE row IN ({rows})", values)


def ending(spec: ViewSpec, after: str | None, upto_us: int) -> tuple[str, tuple[str, ...]]:
    """The windows that end in (after, upto], as a condition on window_start, by which rows are found."""
    assert spec.window_us is not None
    upto = text_of_us(upto_us - spec.window_us[0])
    if after is None:
        return "window_start <= ?", (upto,)
    return "window_start <= ? AND window_end > ?", (upto, after)


class Changes:
    """What a commit changes in a view, as rows with `op` '-' and '+'. Made before the merge, asked after it.

    "updates": every row that is touched. "final": touched rows of windows that were closed before, and all rows of the
    windows that the commit closes."""

    def __init__(
        self, db: sqlite3.Connection, tables: ViewTables, emit: Emit, partials: pa.Table | None, closed: str | None
    ) -> None:
        self._db, self._tables, self._emit, self._closed = db, tables, emit, closed
        columns = [encode(partials[name]) for name in tables.spec.key] if partials is not None else []
        keys = set(zip(*columns, strict=True)) if columns else {(None,)}
        db.execute("DROP TABLE IF EXISTS temp.touched")
        db.execute(f"CREATE TEMP TABLE touched ({', '.join(tables.key) or 'nothing'})")
        if partials is not None:
            db.executemany(f"INSERT INTO temp.touched VALUES ({', '.join('?' * max(len(columns), 1))})", keys)
        self._old = self._touched()

    def _touched(self) -> dict[int, Row]:
        on = " AND ".join(f"s.{name} IS t.{name}" for name in self._tables.key) or "1"
        where = "WHERE s.window_end <= ?" if self._emit == "final" else ""
        return self._found(
            f"temp.touched t JOIN {self._tables.state} s ON {on} {where}", [self._closed or ""][: len(where)]
        )

    def _found(self, source: str, values: Iterable[Any]) -> dict[int, Row]:
        wanted = self._tables.shown("s.", status=False)
        return {row[0]: row[1:] for row in self._db.execute(f"SELECT s.rowid, {wanted} FROM {source}", tuple(values))}

    def rows(self, closed_us: int | None) -> pa.Table:
        """After the merge: what was, and what is. Sorted by key, '-' before '+'."""
        spec, new = self._tables.spec, self._touched()
        changed = [("-", row) for number, row in self._old.items() if new.get(number) != row]
        changed += [("+", row) for number, row in new.items() if self._old.get(number) != row]
        if self._emit == "final" and closed_us is not None:
            where, values = ending(spec, self._closed, closed_us)
            closing = self._found(f"{self._tables.state} s WHERE {where}", values)
            changed += [("+", row) for number, row in closing.items() if number not in new]
        width = len(spec.key) + (1 if spec.window_us else 0)
        changed.sort(key=lambda each: ([(value is not None, value) for value in each[1][:width]], each[0] == "+"))
        columns = change_columns(spec)
        values_by_column = zip(*((op, *row) for op, row in changed), strict=True) if changed else [[]] * len(columns)
        arrays = {
            column.name: decode(list(values), arrow_type(column.type))
            for column, values in zip(columns, values_by_column, strict=True)
        }
        return pa.table(arrays)
