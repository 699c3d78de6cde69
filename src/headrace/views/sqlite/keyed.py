"""Keyed tables (`views.keyed`) in SQLite: how they are laid out, read and written. Owns these statements, not the
transactions they are part of.

A table is one B-tree, clustered by its key: WITHOUT ROWID, and no second index but for a `time` that is not the key's
first column. A null in a key is an empty blob, which no other value is (of a binary column: the number 0); `seen` makes
a null of it again. Keys come and go as bound values, some hundred to a statement: that is quicker than JSON, and exact
for every type.

Times are whole numbers of microseconds. Readers see text, and look for rows by it (`WHERE window_start = '…'`). So
where many rows are of one window, a small table beside the rows has a row for each window, with its start and its end
as text; rows have neither text nor end. Sessions and sliding windows have the times that rows are found by as text.
`select_from` has all columns as readers see them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.aggregates.groups import Groups, row_numbers
from headrace.errors import ViewsDamaged
from headrace.views.contract import RESULTS, SHAPED, WINDOW, FlowSpec
from headrace.views.keyed import AddRule, Column, State, TableSpec, Writes
from headrace.views.reading import quoted
from headrace.views.sql.database import text_of_us, us_of
from headrace.views.sqlite.kept import REPLACED, counting
from headrace.views.sqlite.values import (
    BY_VALUE,
    WHOLE,
    declared,
    decode,
    decode_whole,
    encode,
    encode_whole,
)
from headrace.views.values import arrow_type, sort_by_key, us_column

__all__ = ["NULLS", "TYPES", "KeyedTable", "SqliteState", "apply", "nulls_in", "tables_of"]

NULLS = (
    "CREATE TABLE _nulls (flow TEXT NOT NULL, name TEXT NOT NULL, column TEXT NOT NULL, "
    "PRIMARY KEY (flow, name, column)) WITHOUT ROWID"
)
"""Key columns of tables that have had a null: there the order is not that of the file, in which nulls come last."""
TYPES = "CREATE TABLE _types (utc UTC_TIMESTAMP, local LOCAL_TIMESTAMP)"
"""Without rows: SQLite takes the type of a computed column from here."""
RAW = "/us"
"""In `select_from`: the key's first column as it is stored, where readers see a window's text."""
ROWS_SORTED = 100
"""Fewer rows are written in the order they come."""
ROWS_WRITTEN = 100
ROWS_READ = (1, 4, 16, 64, 256, 1024)
"""So many rows go in one statement; few different numbers, since each is a statement of its own."""

Cells = list[list[Any]]


class KeyedTable:
    """`whole`: columns that are sums of whole numbers of any size, most of which fit 64 bits. `texts`: times that are
    stored as text. `windows`: the key begins with a window's start, and there is a table of windows; it has their ends,
    if these are a column of the table. `counted`: commits keep the number of its rows (`kept`)."""

    def __init__(
        self,
        flow: str,
        spec: TableSpec,
        whole: frozenset[str] = frozenset(),
        texts: frozenset[str] = frozenset(),
        *,
        windows: bool = False,
        counted: bool = False,
    ) -> None:
        self.flow, self.spec, self.counted = flow, spec, counted
        self.name = quoted(f"{flow}/{spec.name}")
        self.windows = quoted(f"{flow}/{spec.name}/windows") if windows else None
        self._whole = whole & {column.name for column in spec.columns}
        self._texts = texts
        self.key = [quoted(name) for name in spec.key_names]
        self._columns = [each for each in spec.columns if not (windows and each.name == WINDOW[1])]
        self.stored = [*spec.key_names, *(column.name for column in self._columns)]
        self.names = ", ".join(map(quoted, self.stored))
        self._arrow = {column.name: arrow_type(column.type) for column in (*spec.key, *spec.columns)}
        self._upserts: dict[tuple[bool, int], str] = {}

    # -- making it ---------------------------------------------------------------------------------

    def create(self) -> list[str]:
        columns = [
            *(f"{self._declared(each)} NOT NULL" for each in self.spec.key),
            *map(self._declared, self._columns),
        ]
        if not self.key:  # one row at most
            return [f'CREATE TABLE {self.name} ("/one" INTEGER PRIMARY KEY CHECK ("/one" = 0), {", ".join(columns)})']
        by_time = [] if self._time is None or self._time == self.key[0] else [self._time, *self._behind_time]
        unique = f", UNIQUE ({', '.join(by_time)})" if by_time and not self._time_of_window else ""
        primary = f"PRIMARY KEY ({', '.join(self.key)}){unique}"  # unique for its index, which goes with the table
        made = [f"CREATE TABLE {self.name} ({', '.join(columns)}, {primary}) WITHOUT ROWID"]
        if self.windows is not None:
            made.append(
                f"CREATE TABLE {self.windows} (us INTEGER PRIMARY KEY, window_start UTC_TIMESTAMP NOT NULL UNIQUE, "
                "window_end UTC_TIMESTAMP NOT NULL, end_us INTEGER NOT NULL, UNIQUE (end_us, us))"
            )
        return made

    def drop(self) -> list[str]:
        return [f"DROP TABLE IF EXISTS {name}" for name in (self.name, self.windows) if name is not None]

    def _declared(self, column: Column) -> str:
        name, arrow = quoted(column.name), self._arrow[column.name]
        if column.name in self._whole:
            return f"{name} {WHOLE} COLLATE {BY_VALUE}"
        if pa.types.is_timestamp(arrow) and column.name not in self._texts:
            return f"{name} INTEGER"
        return f"{name} {declared(arrow, column=column.name)}"

    def select_from(self) -> str:
        """For a FROM clause, with an alias behind it: all columns by name, as readers see them but for nulls in the key
        (`seen`). Times are text, with a declared type. SQLite finds the rows of a window by the table of windows."""
        seen = {name: f"s.{quoted(name)}" for name in self.stored}
        for name in self.stored:
            if name not in self._texts and pa.types.is_timestamp(self._arrow[name]):
                typed = "utc" if self._arrow[name].tz else "local"
                seen[name] = f"(SELECT {_text_of(seen[name])} UNION ALL SELECT {typed} FROM _types WHERE 0)"
        if self.windows is None:
            columns = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in seen.items())
            return f"(SELECT {columns} FROM {self.name} s)"
        first = self.spec.key_names[0]
        seen |= {name: f"w.{name}" for name in WINDOW} | {RAW: f"s.{quoted(first)}"}
        columns = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in seen.items())
        return f"(SELECT {columns} FROM {self.windows} w CROSS JOIN {self.name} s ON s.{quoted(first)} = w.us)"

    def raw(self, column: str) -> str:
        """The name in `select_from` of a column of the key as it is stored."""
        return quoted(RAW if self.windows is not None and column == self.spec.key_names[0] else column)

    def seen(self, column: str, nulls: frozenset[str]) -> str:
        """SQL, of `select_from` as `s`: what readers see of the column. `nulls`: key columns that have had a null."""
        name = f"s.{quoted(column)}"
        if column not in nulls:
            return name
        arrow = self._arrow[column]
        order = f" COLLATE {BY_VALUE}" if pa.types.is_decimal(arrow) else ""
        return f"nullif({name}, {_literal(_null(arrow))}){order}"

    def is_null(self, column: str) -> str:
        """SQL, of the table as `s`: whether a column of the key is null."""
        return f"s.{quoted(column)} = {_literal(_null(self._arrow[column]))}"

    def key_cell(self, column: str, value: Any) -> Any:
        """A value, encoded, as the key has it."""
        return _null(self._arrow[column]) if value is None else value

    @property
    def _time(self) -> str | None:
        return None if self.spec.time is None else quoted(self.spec.time)

    @property
    def _behind_time(self) -> list[str]:
        return [name for name in self.key if name != self._time]

    @property
    def _time_of_window(self) -> bool:
        """Whether the time that rows are found by is in the table of windows alone."""
        return self.windows is not None and self.spec.time == WINDOW[1]

    def time_cell(self, us: int) -> int | str:
        return text_of_us(us) if self.spec.time in self._texts else us

    def bound_cells(self, column: str, bounds: Sequence[int]) -> Sequence[int | str]:
        """What a column of the key is compared with, of numbers or microseconds."""
        return [text_of_us(us) for us in bounds] if column in self._texts else bounds

    # -- cells -------------------------------------------------------------------------------------

    def key_cells(self, rows: pa.Table, names: Sequence[str]) -> Cells:
        return [self._key_cells(rows, name) for name in names]

    def _key_cells(self, rows: pa.Table, name: str) -> list[Any]:
        cells = self._cells(rows, name)
        if not rows[name].null_count:
            return cells
        null = _null(self._arrow[name])
        return [null if cell is None else cell for cell in cells]

    def cells(self, rows: pa.Table) -> Cells:
        return [
            *self.key_cells(rows, self.spec.key_names),
            *(self._cells(rows, each.name) for each in self._columns),
        ]

    def _cells(self, rows: pa.Table, name: str) -> list[Any]:
        given, arrow = rows[name], self._arrow[name]
        given = given if given.type == arrow else given.cast(arrow)
        if name in self._whole:
            return encode_whole(given)
        if pa.types.is_timestamp(arrow) and name not in self._texts:
            return list(us_column(given).tolist() if not given.null_count else given.cast(pa.int64()).to_pylist())
        return encode(given)

    def decoded(self, db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Rows of a SELECT of all stored columns."""
        arrays = {}
        for number, name in enumerate(self.stored):
            values = [row[number] for row in rows]  # quicker than to zip them
            if number < len(self.key):
                null = _null(self._arrow[name])
                values = [None if value == null else value for value in values] if null in values else values
            arrays[name] = self._array(name, values)
        if len(self.stored) < len(self._arrow):
            arrays[WINDOW[1]] = self._ends(db, arrays[WINDOW[0]])
        return pa.table({name: arrays[name] for name in self._arrow})

    def _array(self, name: str, values: list[Any]) -> pa.Array:
        arrow = self._arrow[name]
        if name in self._whole:
            return decode_whole(values)
        if not pa.types.is_timestamp(arrow) or name in self._texts:
            return decode(values, arrow)
        try:
            return pa.array(values, pa.int64()).view(arrow)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise ViewsDamaged(path="views.db", why=f"there is no time in column {name!r}: {error}") from error

    def _ends(self, db: sqlite3.Connection, starts: pa.Array) -> pa.Array:
        """The ends of the windows that begin then."""
        begun = us_column(starts)
        groups = Groups(begun)
        first = begun[groups.first]
        statement = f"SELECT us, end_us FROM {self.windows} WHERE us IN "
        asked = _pieces([first.tolist()], len(first), lambda count: f"{statement}({', '.join('?' * count)})")
        ends = dict(row for sql, values in asked for row in db.execute(sql, values))
        if len(ends) < len(first):
            raise ViewsDamaged(path="views.db", why=f"table {self.windows} lacks windows that have rows")
        found = np.repeat(np.array([ends[us] for us in first.tolist()], np.int64), groups.sizes)
        if groups.order is not None:
            found = found[np.argsort(groups.order)]
        return pa.array(found).view(self._arrow[WINDOW[1]])

    def in_order(self, rows: pa.Table) -> pa.Table:
        """By key, after nulls were made of what stands for them."""
        nulls = any(rows[name].null_count for name in self.spec.key_names)
        return sort_by_key(rows, self.spec.key_names) if nulls else rows

    # -- reading -----------------------------------------------------------------------------------

    def select(self, widths: int, conditions: str) -> Callable[[int], str]:
        """Statements that join `j`, so many rows of bound values, with the table as `s`."""
        selected = ", ".join(f"s.{quoted(name)}" for name in self.stored)
        if not widths:
            return lambda _: f"SELECT {selected} FROM {self.name} s WHERE {conditions}"
        names = ", ".join(f"c{number}" for number in range(widths))
        row = f"({', '.join('?' * widths)})"
        found = f"SELECT {selected} FROM j CROSS JOIN {self.name} s ON {conditions}"
        return lambda count: f"WITH j({names}) AS (VALUES {', '.join([row] * count)}) {found}"

    def order(self, alias: str, columns: Sequence[str], nulls: frozenset[str], *, descending: bool = False) -> str:
        way, terms = " DESC" if descending else "", []
        for name in columns:
            if name in nulls:
                terms.append(f"{alias}.{quoted(name)} IS NOT {_literal(_null(self._arrow[name]))}{way}")
            terms.append(f"{alias}.{quoted(name)}{way}")
        return ", ".join(terms)

    def due(self, nulls: frozenset[str], *, after: bool) -> str:
        assert self.spec.time is not None
        time = "w.end_us" if self._time_of_window else f"s.{self._time}"
        behind = [name for name in self.spec.key_names if name != self.spec.time]
        selected = ", ".join(f"s.{quoted(name)}" for name in self.stored)
        table = f"{self.name} s"
        if self._time_of_window:
            table = f"{self.windows} w CROSS JOIN {table} ON s.{self.key[0]} = w.us"
        more = f" AND {time} > ?" if after else ""
        order = ", ".join(filter(None, (time, self.order("s", behind, nulls))))
        return f"SELECT {selected} FROM {table} WHERE {time} <= ?{self._timed}{more} ORDER BY {order} LIMIT ?"

    @property
    def _timed(self) -> str:
        """Not rows whose time is null, which in a key is no SQL null."""
        if self.spec.time not in self.spec.key_names:
            return ""
        return f" AND {self._time} <> {_literal(_null(self._arrow[self.spec.time]))}"

    def last(self) -> str:
        if self._time_of_window:
            return f"SELECT max(end_us) FROM {self.windows}"
        return f"SELECT max({self._time}) FROM {self.name} WHERE {self._time} IS NOT NULL{self._timed}"

    # -- writing -----------------------------------------------------------------------------------

    def upsert(self, count: int, *, add: bool) -> str:
        """Puts rows, or with `add` merges them by the table's rules."""
        if (add, count) not in self._upserts:
            row = f"({', '.join('?' * len(self.stored))})"
            key, names = ", ".join(self.key), self.names
            if not self.key:
                key, names, row = '"/one"', f'"/one", {names}', f"(0, {row[1:]}"
            sets = ", ".join(f"{quoted(each.name)} = {self._new(each, add)}" for each in self._columns)
            then = f"UPDATE SET {sets}{f' WHERE {REPLACED}' if self.counted else ''}" if sets else "NOTHING"
            self._upserts[add, count] = (
                f"INSERT INTO {self.name} ({names}) VALUES {', '.join([row] * count)} ON CONFLICT ({key}) DO {then}"
            )
        return self._upserts[add, count]

    def _new(self, column: Column, add: bool) -> str:
        old, new = quoted(column.name), f"excluded.{quoted(column.name)}"
        return self._merged(self.spec.rules[column.name], column, old, new) if add else new

    def _merged(self, rule: AddRule, column: Column, old: str, new: str) -> str:
        """Null is neutral. NaN is a text: above all numbers where they are compared, and nothing that can be added."""
        total = f"{old} + {new}"
        if rule != "add":
            total = f"{'min' if rule == 'least' else 'max'}({old}, {new})"
        elif column.name in self._whole:
            wide = f"hr_add_whole({old}, {new}, {_literal(column.name)})"
            total = f"CASE typeof({old} + {new}) WHEN 'integer' THEN {old} + {new} ELSE {wide} END"
            return f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {total} END"
        elif pa.types.is_decimal(self._arrow[column.name]):
            total = f"hr_add_decimal({old}, {new}, {_literal(column.type)})"
            return f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {total} END"
        elif pa.types.is_floating(self._arrow[column.name]):
            total = f"CASE WHEN 'NaN' IN ({old}, {new}) THEN 'NaN' ELSE coalesce({old} + {new}, 'NaN') END"
            return f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {total} END"
        return f"coalesce({total}, {old}, {new})"

    def delete(self, db: sqlite3.Connection, keys: pa.Table) -> None:
        names = [name for name in self.spec.key_names if name in keys.column_names]
        assert names == list(self.spec.key_names[: len(names)]), "the first columns of the key"
        if not names:
            for table in (self.name, self.windows) if keys.num_rows else ():
                if table is not None:
                    db.execute(f"DELETE FROM {table}")
            return
        # One key to a statement: of many in one, SQLite reads the whole table where they are only first columns.
        where = " AND ".join(f"{quoted(name)} = ?" for name in names)
        cells = self.key_cells(keys, names)
        db.executemany(f"DELETE FROM {self.name} WHERE {where}", zip(*cells, strict=True))
        if self.windows is not None:
            rows = f"SELECT 1 FROM {self.name} s WHERE s.{self.key[0]} = us"
            empty = f"DELETE FROM {self.windows} WHERE us = ? AND NOT EXISTS ({rows})"
            db.executemany(empty, [(us,) for us in dict.fromkeys(cells[0])])

    def drop_until(self, db: sqlite3.Connection, upto_us: int) -> None:
        upto = (self.time_cell(upto_us),)
        if self._time_of_window:
            ended = f"SELECT us FROM {self.windows} WHERE end_us <= ?"
            db.execute(f"DELETE FROM {self.name} WHERE {self.key[0]} IN ({ended})", upto)
        else:
            db.execute(f"DELETE FROM {self.name} WHERE {self._time} <= ?{self._timed}", upto)
        if self.windows is not None:
            db.execute(f"DELETE FROM {self.windows} WHERE {'end_us' if self._time_of_window else 'us'} <= ?", upto)

    def put(self, db: sqlite3.Connection, rows: pa.Table, *, add: bool) -> None:
        if rows.num_rows >= ROWS_SORTED:
            rows = sort_by_key(rows, self.spec.key_names)  # neighbours in the file are written together
        if self.windows is not None and rows.num_rows:
            self._put_windows(db, rows)
        for name in self.spec.key_names:
            if rows[name].null_count:
                db.execute("INSERT OR IGNORE INTO _nulls VALUES (?, ?, ?)", (self.flow, self.spec.name, name))
        cells = self.cells(rows)
        for name in self._whole:
            if str in set(map(type, cells[self.stored.index(name)])):
                db.execute("SELECT hr_add_whole(?, 0, ?)", (str(2**63), name))  # which notes that there is one
        with self.counting(db, rows):
            _many(db, lambda count: self.upsert(count, add=add), cells)

    def counting(self, db: sqlite3.Connection, rows: pa.Table | None = None) -> AbstractContextManager[None]:
        """Around statements that change its rows; `rows`: those that they put."""
        return counting(db, self.flow, self.spec.name, rows) if self.counted else nullcontext()

    def _put_windows(self, db: sqlite3.Connection, rows: pa.Table) -> None:
        """The windows of the rows. The end of a window is a function of its start."""
        starts, ends = (us_column(rows[name]) for name in WINDOW)
        groups = Groups(starts)
        first = groups.first
        assert (groups.least(ends) == groups.greatest(ends)).all(), "windows have one end each"
        texts = ([text_of_us(us) for us in times[first].tolist()] for times in (starts, ends))
        db.executemany(
            f"INSERT INTO {self.windows} VALUES (?, ?, ?, ?) ON CONFLICT (us) DO UPDATE SET "
            "window_end = excluded.window_end, end_us = excluded.end_us WHERE end_us <> excluded.end_us",
            zip(starts[first].tolist(), *texts, ends[first].tolist(), strict=True),
        )


def apply(db: sqlite3.Connection, tables: Mapping[str, KeyedTable], writes: Writes) -> None:
    """What a step writes, in a transaction of the store."""
    for name, keys in writes.deletes.items():
        with tables[name].counting(db):
            tables[name].delete(db, keys)
    for name, upto_us in writes.drops.items():
        with tables[name].counting(db):
            tables[name].drop_until(db, upto_us)
    for name, rows in writes.puts.items():
        tables[name].put(db, rows, add=False)
    for name, rows in writes.adds.items():
        tables[name].put(db, rows, add=True)


@lru_cache(maxsize=256)
def tables_of(spec: FlowSpec) -> dict[str, KeyedTable]:
    """The tables of a flow. Made once: a small commit is quicker than writing its statements."""
    return {table.name: _table_of(spec, table) for table in spec.tables}


def _table_of(spec: FlowSpec, table: TableSpec) -> KeyedTable:
    view = spec.view
    if view is None or table.name not in (RESULTS, SHAPED):
        return KeyedTable(spec.name, table, counted=bool(spec.sides))
    aligned = view.window_us is not None and view.windows in ("fixed", "calendar") and bool(view.groups)
    times = {column.name for column in (*table.key, *table.columns) if pa.types.is_timestamp(arrow_type(column.type))}
    texts = {*table.key_names, table.time} - ({*WINDOW} if aligned else set())
    if table.name == SHAPED:  # under the same key; readers see its columns as they are
        return KeyedTable(spec.name, table, texts=frozenset(times - ({WINDOW[0]} if aligned else set())))
    whole = frozenset(slot.name for slot in view.slots if slot.rule == "whole")
    counted = bool(spec.sides)
    return KeyedTable(spec.name, table, whole, frozenset(times & texts), windows=aligned, counted=counted)


def nulls_in(db: sqlite3.Connection, flow: str) -> dict[str, frozenset[str]]:
    """Key columns that have had a null, by table."""
    out: dict[str, frozenset[str]] = {}
    for name, column in db.execute("SELECT name, column FROM _nulls WHERE flow = ?", (flow,)):
        out[name] = out.get(name, frozenset()) | {column}
    return out


class SqliteState(State):
    """`reading()`: a connection, for one call. `nulls`: key columns that have had a null, by table."""

    def __init__(
        self,
        tables: Mapping[str, KeyedTable],
        nulls: Mapping[str, frozenset[str]],
        reading: Callable[[], AbstractContextManager[sqlite3.Connection]],
    ) -> None:
        self._tables, self._nulls, self._reading = tables, nulls, reading

    def get(self, table: str, keys: pa.Table) -> pa.Table:
        return self.scan(table, keys.select(self._tables[table].spec.key_names))

    def scan(
        self,
        table: str,
        prefixes: pa.Table,
        low: Sequence[int] | None = None,
        high: Sequence[int] | None = None,
        *,
        floor: bool = False,
        limit: int | None = None,
        descending: bool = False,
    ) -> pa.Table:
        assert limit is None or not floor, "what is the limit of rows below?"
        one, width = self._tables[table], prefixes.num_columns
        names = one.spec.key_names[:width]
        assert set(prefixes.column_names) == set(names), "prefixes are the first columns of the key"
        number = row_numbers([prefixes[name].combine_chunks() for name in names], prefixes.num_rows)
        groups = Groups(number)  # neighbours in the file are read together, and come in order
        if low is None and high is None:
            if not groups.alone or groups.order is not None:
                prefixes = prefixes.take(pa.array(groups.first)) if width else prefixes.slice(0, 1)
        elif groups.order is not None:
            prefixes = prefixes.take(pa.array(groups.order))
            at_once = groups.order.tolist()
            low, high = (None if bounds is None else [bounds[at] for at in at_once] for bounds in (low, high))
        asked, count = one.key_cells(prefixes, names), prefixes.num_rows
        with self._reading() as db:
            found = self._found(db, one, asked, count, low, high, limit, descending)
            if floor and low is not None:
                below = [us - 1 if high is None else min(us - 1, high[at]) for at, us in enumerate(low)]
                found += self._found(db, one, asked, count, None, below, 1, True)
            elif (low is None and high is None) or groups.alone:
                return one.in_order(one.decoded(db, found))
            each_once = {row[: len(one.key)]: row for row in found}
            return sort_by_key(one.decoded(db, list(each_once.values())), one.spec.key_names)

    def due(self, table: str, upto_us: int, limit: int | None = None, *, after_us: int | None = None) -> pa.Table:
        one = self._tables[table]
        times = [upto_us] if after_us is None else [upto_us, after_us]
        sql = one.due(self._nulls.get(table, frozenset()), after=after_us is not None)
        with self._reading() as db:
            values = [*map(one.time_cell, times), -1 if limit is None else limit]
            return one.decoded(db, db.execute(sql, values).fetchall())

    def last_us(self, table: str) -> int | None:
        with self._reading() as db:
            (found,) = db.execute(self._tables[table].last()).fetchone()
        return us_of(found) if isinstance(found, str) else found

    def _found(
        self,
        db: sqlite3.Connection,
        one: KeyedTable,
        asked: Cells,
        count: int,
        low: Sequence[int] | None,
        high: Sequence[int] | None,
        limit: int | None,
        descending: bool,
    ) -> list[tuple[Any, ...]]:
        """The rows that each prefix asks for, in the order of these and of the file."""
        if not count:
            return []
        width, key = len(asked), one.spec.key_names
        bounds = [(sign, given) for sign, given in ((">=", low), ("<=", high)) if given is not None]
        cells = [*asked, *(one.bound_cells(key[width], given) for _, given in bounds)]
        terms = [f"{quoted(name)} = j.c{number}" for number, name in enumerate(key[:width])]
        terms += [f"{quoted(key[width])} {sign} j.c{width + number}" for number, (sign, _) in enumerate(bounds)]
        terms += [f"{quoted(key[width])} <> x''"] if bounds else []  # a null is no time
        conditions = " AND ".join(f"s.{term}" for term in terms)
        rest = key[width:]
        if limit is not None and rest:
            order = one.order("q", rest, self._nulls.get(one.spec.name, frozenset()), descending=descending)
            mine, chosen = (", ".join(f"{alias}.{quoted(name)}" for name in rest) for alias in ("s", "q"))
            where = " AND ".join(f"q.{term}" for term in terms) or "1"
            some = f"SELECT {chosen} FROM {one.name} q WHERE {where} ORDER BY {order} LIMIT {limit}"
            # Without the bounds, which hold in there: by these SQLite would look through all rows of the prefix.
            same = [f"s.{term}" for term in terms[:width]]
            conditions = " AND ".join([*same, f"({mine}) {'=' if limit == 1 else 'IN'} ({some})"])
        statement = one.select(width + len(bounds), conditions or "1")
        found: list[tuple[Any, ...]] = []
        for sql, values in _pieces(cells, count, cache(statement)):
            found += db.execute(sql, values).fetchall()
        return found


def _pieces(
    columns: Sequence[Sequence[Any]], rows: int, statement: Callable[[int], str]
) -> Iterator[tuple[str, list[Any]]]:
    """Statements that take all the rows, in their order, with the values each takes."""
    if not columns:
        yield statement(1), []
        return
    flat, step = _flat(columns, rows), len(columns) * ROWS_READ[-1]
    for at in range(0, len(flat), step):
        some = flat[at : at + step]
        count = next(size for size in ROWS_READ if len(some) <= size * len(columns))
        yield statement(count), some + [None] * (count * len(columns) - len(some))  # which equals nothing


def _flat(columns: Sequence[Sequence[Any]], rows: int) -> list[Any]:
    """The cells, row by row."""
    flat: list[Any] = [None] * (len(columns) * rows)
    for number, column in enumerate(columns):
        flat[number :: len(columns)] = column
    return flat


def _many(db: sqlite3.Connection, statement: Callable[[int], str], columns: Cells) -> None:
    """Runs `statement(count)`, which takes `count` rows, over all rows of the columns."""
    width, rows = len(columns), len(columns[0])
    together = min(ROWS_WRITTEN, db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width)
    flat = _flat(columns, rows)
    rest = rows // together * together * width
    step = width * together
    if rest:
        db.executemany(statement(together), (flat[at : at + step] for at in range(0, rest, step)))
    if rest < len(flat):
        db.executemany(statement(1), (flat[at : at + width] for at in range(rest, len(flat), width)))


def _null(arrow: pa.DataType) -> bytes | int:
    """What stands for null in a key of that type."""
    return 0 if pa.types.is_binary(arrow) else b""


def _literal(value: str | bytes | int) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _text_of(us: str) -> str:
    """SQL: microseconds as the text `text_of_us` makes, for any SQLite."""
    part = f"({us} % 1000000 + 1000000) % 1000000"
    whole, below = (f"datetime({us} / 1000000{less}, 'unixepoch')" for less in ("", f" - ({us} < 0)"))
    return f"CASE {us} % 1000000 WHEN 0 THEN {whole} ELSE {below} || '.' || substr({part} + 1000000, 2) END"
