"""Keyed tables (`views.keyed`) in SQLite: how they are laid out, read and written. Owns these statements, not the
transactions they are part of.

A table is one B-tree, clustered by its key: WITHOUT ROWID, and no second index but for a `time` that is not the key's
first column. Times are text, since readers look for rows by them (`WHERE window_start = '…'`). A null in a key is an
empty blob, which no other value is (of a binary column: the number 0); `seen` makes a null of it again. Keys come and
go as bound values, some hundred to a statement: that is quicker than JSON, and exact for every type."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.views.contract import SHAPED, FlowSpec
from headrace.views.keyed import AddRule, Column, State, TableSpec, Writes
from headrace.views.reading import quoted
from headrace.views.sqlite.values import (
    BY_VALUE,
    WHOLE,
    declared,
    decode,
    decode_whole,
    encode,
    encode_whole,
    text_of_us,
    us_of,
)
from headrace.views.values import arrow_type, key_order, sort_by_key

__all__ = ["NULLS", "KeyedTable", "SqliteState", "apply", "nulls_in", "tables_of"]

NULLS = (
    "CREATE TABLE _nulls (flow TEXT NOT NULL, name TEXT NOT NULL, column TEXT NOT NULL, "
    "PRIMARY KEY (flow, name, column)) WITHOUT ROWID"
)
"""Key columns of tables that have had a null: there the order is not that of the file, in which nulls come last."""
ROWS_SORTED = 100
"""Fewer rows are written in the order they come."""
ROWS_WRITTEN = 100
ROWS_READ = (256, 16, 1)
"""So many rows go in one statement; few different numbers, since each is a statement of its own."""

Cells = list[list[Any]]


class KeyedTable:
    """`whole`: columns that are sums of whole numbers of any size, most of which fit 64 bits."""

    def __init__(self, flow: str, spec: TableSpec, whole: frozenset[str] = frozenset()) -> None:
        self.flow, self.spec = flow, spec
        self.name = quoted(f"{flow}/{spec.name}")
        self._whole = whole & {column.name for column in spec.columns}
        self.key = [quoted(name) for name in spec.key_names]
        self.names = ", ".join(map(quoted, spec.names))
        self._arrow = {column.name: arrow_type(column.type) for column in (*spec.key, *spec.columns)}
        self._upserts: dict[tuple[bool, int], str] = {}

    # -- making it ---------------------------------------------------------------------------------

    def create(self) -> str:
        spec = self.spec
        key = [
            f"{quoted(each.name)} {declared(self._arrow[each.name], column=each.name)} NOT NULL" for each in spec.key
        ]
        columns = [*key, *map(self._declared, spec.columns)]
        if not key:  # one row at most
            return f'CREATE TABLE {self.name} ("/one" INTEGER PRIMARY KEY CHECK ("/one" = 0), {", ".join(columns)})'
        by_time = [] if self._time is None or self._time == self.key[0] else [self._time, *self._behind_time]
        unique = f", UNIQUE ({', '.join(by_time)})" if by_time else ""  # for its index, which goes with the table
        primary = f"PRIMARY KEY ({', '.join(self.key)})"
        return f"CREATE TABLE {self.name} ({', '.join(columns)}, {primary}{unique}) WITHOUT ROWID"

    def _declared(self, column: Column) -> str:
        name, arrow = quoted(column.name), self._arrow[column.name]
        if column.name in self._whole:
            return f"{name} {WHOLE} COLLATE {BY_VALUE}"
        return f"{name} {declared(arrow, column=column.name)}"

    def seen(self, column: str, nulls: frozenset[str]) -> str:
        """SQL, of the table as `s`: what readers see of the column. `nulls`: key columns that have had a null."""
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

    # -- cells -------------------------------------------------------------------------------------

    def key_cells(self, rows: pa.Table, names: Sequence[str]) -> Cells:
        return [self._key_cells(rows[name], self._arrow[name]) for name in names]

    def _key_cells(self, column: pa.ChunkedArray, arrow: pa.DataType) -> list[Any]:
        cells = encode(column if column.type == arrow else column.cast(arrow))
        return [_null(arrow) if cell is None else cell for cell in cells] if column.null_count else cells

    def cells(self, rows: pa.Table) -> Cells:
        return [
            *self.key_cells(rows, self.spec.key_names),
            *(self._value_cells(rows, each) for each in self.spec.columns),
        ]

    def _value_cells(self, rows: pa.Table, column: Column) -> list[Any]:
        given, arrow = rows[column.name], self._arrow[column.name]
        given = given if given.type == arrow else given.cast(arrow)
        if column.name in self._whole:
            return encode_whole(given)
        return encode(given)

    def decoded(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Rows of a SELECT of all columns."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._arrow)
        key = len(self.spec.key)
        arrays = {}
        for number, (name, values) in enumerate(zip(self._arrow, columns, strict=True)):
            arrow = self._arrow[name]
            arrays[name] = self._key_array(values, arrow) if number < key else self._value_array(name, values, arrow)
        return pa.table(arrays)

    def _key_array(self, values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
        null = _null(arrow)
        cells = [None if value == null else value for value in values] if null in values else list(values)
        return decode(cells, arrow)

    def _value_array(self, name: str, values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
        return decode_whole(list(values)) if name in self._whole else decode(list(values), arrow)

    def in_order(self, rows: pa.Table) -> pa.Table:
        """By key, after nulls were made of what stands for them."""
        nulls = any(rows[name].null_count for name in self.spec.key_names)
        return sort_by_key(rows, self.spec.key_names) if nulls else rows

    # -- reading -----------------------------------------------------------------------------------

    def select(self, widths: int, conditions: str) -> Callable[[int], str]:
        """Statements that join `j`, so many rows of bound values, with the table as `s`."""
        selected = ", ".join(f"s.{quoted(name)}" for name in self.spec.names)
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
        behind = [name for name in self.spec.key_names if name != self.spec.time]
        more = f" AND s.{self._time} > ?" if after else ""
        order = self.order("s", [self.spec.time, *behind], nulls)
        return (
            f"SELECT {self.names} FROM {self.name} s WHERE s.{self._time} <= ?{self._timed}{more} "
            f"ORDER BY {order} LIMIT ?"
        )

    @property
    def _timed(self) -> str:
        """Not rows whose time is null, which in a key is no SQL null."""
        if self.spec.time not in self.spec.key_names:
            return ""
        return f" AND {self._time} <> {_literal(_null(self._arrow[self.spec.time]))}"

    def last(self) -> str:
        return f"SELECT max({self._time}) FROM {self.name} WHERE {self._time} IS NOT NULL{self._timed}"

    # -- writing -----------------------------------------------------------------------------------

    def upsert(self, count: int, *, add: bool) -> str:
        """Puts rows, or with `add` merges them by the table's rules."""
        if (add, count) not in self._upserts:
            row = f"({', '.join('?' * len(self.spec.names))})"
            key, names = ", ".join(self.key), self.names
            if not self.key:
                key, names, row = '"/one"', f'"/one", {names}', f"(0, {row[1:]}"
            sets = ", ".join(f"{quoted(each.name)} = {self._new(each, add)}" for each in self.spec.columns)
            then = f"UPDATE SET {sets}" if sets else "NOTHING"
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
            if keys.num_rows:
                db.execute(f"DELETE FROM {self.name}")
            return
        # One key to a statement: of many in one, SQLite reads the whole table where they are only first columns.
        where = " AND ".join(f"{quoted(name)} = ?" for name in names)
        db.executemany(f"DELETE FROM {self.name} WHERE {where}", zip(*self.key_cells(keys, names), strict=True))

    def drop_until(self, db: sqlite3.Connection, upto_us: int) -> None:
        db.execute(f"DELETE FROM {self.name} WHERE {self._time} <= ?{self._timed}", (text_of_us(upto_us),))

    def put(self, db: sqlite3.Connection, rows: pa.Table, *, add: bool) -> None:
        if rows.num_rows >= ROWS_SORTED:
            rows = sort_by_key(rows, self.spec.key_names)  # neighbours in the file are written together
        for name in self.spec.key_names:
            if rows[name].null_count:
                db.execute("INSERT OR IGNORE INTO _nulls VALUES (?, ?, ?)", (self.flow, self.spec.name, name))
        cells = self.cells(rows)
        for name in self._whole:
            if str in set(map(type, cells[self.spec.names.index(name)])):
                db.execute("SELECT hr_add_whole(?, 0, ?)", (str(2**63), name))  # which notes that there is one
        _many(db, lambda count: self.upsert(count, add=add), cells)


def apply(db: sqlite3.Connection, tables: Mapping[str, KeyedTable], writes: Writes) -> None:
    """What a step writes, in a transaction of the store."""
    for name, keys in writes.deletes.items():
        tables[name].delete(db, keys)
    for name, upto_us in writes.drops.items():
        tables[name].drop_until(db, upto_us)
    for name, rows in writes.puts.items():
        tables[name].put(db, rows, add=False)
    for name, rows in writes.adds.items():
        tables[name].put(db, rows, add=True)


@lru_cache(maxsize=256)
def tables_of(spec: FlowSpec) -> dict[str, KeyedTable]:
    """The tables of a flow. Made once: a small commit is quicker than writing its statements."""
    slots = () if spec.view is None else spec.view.slots
    whole = frozenset(slot.name for slot in slots if slot.rule == "whole")
    return {
        table.name: KeyedTable(spec.name, table, frozenset() if table.name == SHAPED else whole)
        for table in spec.tables
    }


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
        if width and prefixes.num_rows > 1:  # neighbours in the file are read together, and come in order
            order = key_order(prefixes, names)
            prefixes = prefixes.take(pa.array(order))
            low, high = (None if bounds is None else [bounds[at] for at in order.tolist()] for bounds in (low, high))
        asked = list(zip(*one.key_cells(prefixes, names), strict=True)) if width else [()] * prefixes.num_rows
        found = self._found(one, asked, low, high, limit, descending)
        in_order = low is None and high is None
        if floor and low is not None:
            below = [us - 1 if high is None else min(us - 1, high[at]) for at, us in enumerate(low)]
            found += self._found(one, asked, None, below, 1, True)
        elif not in_order:
            in_order = len(set(asked)) == len(asked)
        if in_order:
            return one.in_order(one.decoded(found))
        each_once = {row[: len(one.key)]: row for row in found}
        return sort_by_key(one.decoded(list(each_once.values())), one.spec.key_names)

    def due(self, table: str, upto_us: int, limit: int | None = None, *, after_us: int | None = None) -> pa.Table:
        one = self._tables[table]
        times = [upto_us] if after_us is None else [upto_us, after_us]
        sql = one.due(self._nulls.get(table, frozenset()), after=after_us is not None)
        with self._reading() as db:
            values = [*(text_of_us(us) for us in times), -1 if limit is None else limit]
            return one.decoded(db.execute(sql, values).fetchall())

    def last_us(self, table: str) -> int | None:
        with self._reading() as db:
            (found,) = db.execute(self._tables[table].last()).fetchone()
        return us_of(found)

    def _found(
        self,
        one: KeyedTable,
        asked: list[tuple[Any, ...]],
        low: Sequence[int] | None,
        high: Sequence[int] | None,
        limit: int | None,
        descending: bool,
    ) -> list[tuple[Any, ...]]:
        """The rows that each prefix asks for, in the order of these and of the file."""
        if not asked:
            return []
        width, key = len(asked[0]), one.spec.key_names
        bounds = [(sign, given) for sign, given in ((">=", low), ("<=", high)) if given is not None]
        timed = bool(bounds) and pa.types.is_timestamp(arrow_type(one.spec.key[width].type))
        cells = [[text_of_us(us) if timed else us for us in given] for _, given in bounds]
        rows = [(*row, *more) for row, *more in zip(asked, *cells, strict=True)]
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
            conditions = " AND ".join(filter(None, (conditions, f"({mine}) IN ({some})")))
        statement = one.select(width + len(bounds), conditions or "1")
        with self._reading() as db:
            pieces = _pieces(list(dict.fromkeys(rows)), statement)
            return [row for sql, values in pieces for row in db.execute(sql, values).fetchall()]


def _pieces(rows: list[tuple[Any, ...]], statement: Callable[[int], str]) -> Iterator[tuple[str, list[Any]]]:
    """Statements that take all the rows, in their order, with the values each takes."""
    at = 0
    while at < len(rows):
        count = next(size for size in ROWS_READ if size <= len(rows) - at)
        yield statement(count), [cell for row in rows[at : at + count] for cell in row]
        at += count


def _many(db: sqlite3.Connection, statement: Callable[[int], str], columns: Cells) -> None:
    """Runs `statement(count)`, which takes `count` rows, over all rows of the columns."""
    width, rows = len(columns), len(columns[0])
    together = min(ROWS_WRITTEN, db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width)
    flat: list[Any] = [None] * (width * rows)
    for number, column in enumerate(columns):
        flat[number::width] = column
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
