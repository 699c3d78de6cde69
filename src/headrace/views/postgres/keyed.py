"""Keyed tables (`views.keyed`) in Postgres: how they are laid out, read and written. Owns these statements, not the
transactions they are part of.

A table is an ordinary one, with the columns' own types, a unique index over the key, and one over the time. A null in a
key is a null, which no index finds by `=`: keys are asked for by which of their columns are null, one statement each.
Few keys and rows go into the statement as arrays; many are copied into a temporary table, which ends with the
transaction. Rows come back by COPY."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidArgument, StorageError
from headrace.views.contract import FlowSpec
from headrace.views.keyed import AddRule, Column, Staged, State, TableSpec, Writes
from headrace.views.postgres.connections import Connection, quoted
from headrace.views.postgres.values import array_text, csv_of, declared, table_of
from headrace.views.sql.database import text_of_us, us_of
from headrace.views.values import arrow_type, numbered, sort_by_key

__all__ = ["NAME_BYTES_MAX", "KeyedTable", "PostgresState", "apply", "table_name", "tables_of"]

NAME_BYTES_MAX = 63
COLUMNS_MAX = 1_500
INLINE_ROWS = 2_000
"""So many rows go into a statement; more are copied into a temporary table."""
NULLS_NOT_DISTINCT = 150_000
"""Since this version of Postgres a unique index can take nulls for equal."""


def table_name(flow: str, table: str) -> str:
    """`flow/table`, cut where Postgres would cut it, and still of its own."""
    full = f"{flow}/{table}"
    if len(full.encode()) > NAME_BYTES_MAX:
        full = f"{full[:44]}~{hashlib.sha256(full.encode()).hexdigest()[:16]}"
    return full


class KeyedTable:
    def __init__(self, flow: str, spec: TableSpec) -> None:
        self.spec = spec
        self.name = quoted(table_name(flow, spec.name))
        self.types = {column.name: arrow_type(column.type) for column in (*spec.key, *spec.columns)}
        self.schema = pa.schema(list(self.types.items()))
        self.key = spec.key_names
        self.names = ", ".join(map(quoted, self.types))
        self.selected = ", ".join(f"s.{quoted(name)}" for name in self.types)

    # -- making it ---------------------------------------------------------------------------------

    def create(self, version: int) -> list[str]:
        self._check()
        columns = ", ".join(f"{quoted(name)} {declared(arrow, column=name)}" for name, arrow in self.types.items())
        made = [f"CREATE TABLE {self.name} ({columns}) WITH (fillfactor = 90)"]
        by_key = ", ".join(f"{quoted(name)} NULLS FIRST" for name in self.key)
        nulls = " NULLS NOT DISTINCT" if version >= NULLS_NOT_DISTINCT else ""
        made += [f"CREATE UNIQUE INDEX ON {self.name} ({by_key}){nulls}"] if by_key else []
        if self.spec.time is not None and self.spec.time not in self.key[:1]:
            made.append(f"CREATE INDEX ON {self.name} ({quoted(self.spec.time)})")
        return made

    def _check(self) -> None:
        for name in self.types:
            if len(name.encode()) > NAME_BYTES_MAX:
                why = f"Postgres' names have at most {NAME_BYTES_MAX} bytes: choose a shorter one"
                raise InvalidArgument("column", name, why)
        if len(self.types) > COLUMNS_MAX:
            why = f"its state needs {len(self.types)} columns, and {COLUMNS_MAX} fit into a table of Postgres"
            raise InvalidArgument("agg", self.spec.name, f"{why}: make several views")

    def decoded(self, body: bytes) -> pa.Table:
        return table_of(body, self.schema)

    def order(self, alias: str, names: Sequence[str], *, descending: bool = False) -> str:
        way = "DESC NULLS LAST" if descending else "NULLS FIRST"
        return ", ".join(f"{alias}.{quoted(name)} {way}" for name in names)

    # -- rows and keys in a statement --------------------------------------------------------------

    def given(self, db: Connection, rows: pa.Table, types: Mapping[str, pa.DataType]) -> str:
        """A table expression with these columns of the rows."""
        if rows.num_rows > INLINE_ROWS:
            return self._copied(db, rows, types)
        arrays = ", ".join(f"{db.literal(array_text(rows[name], arrow))}::text[]" for name, arrow in types.items())
        texts = ", ".join(f"c{number}" for number in range(len(types)))
        typed = (f"c{at}::{declared(arrow)} AS {quoted(name)}" for at, (name, arrow) in enumerate(types.items()))
        return f"(SELECT {', '.join(typed)} FROM unnest({arrays}) AS u({texts}))"

    def _copied(self, db: Connection, rows: pa.Table, types: Mapping[str, pa.DataType]) -> str:
        columns = ", ".join(f"{quoted(name)} {declared(arrow)}" for name, arrow in types.items())
        db.run("DROP TABLE IF EXISTS pg_temp.headrace_rows")
        db.run(f"CREATE TEMPORARY TABLE headrace_rows ({columns}) ON COMMIT DROP")
        db.copy_in("pg_temp.headrace_rows", ", ".join(map(quoted, types)), csv_of(rows, types))
        return "pg_temp.headrace_rows"

    def by_nulls(self, rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[frozenset[str], pa.Table, np.ndarray]]:
        """The rows by which of these columns are null in them, and their numbers."""
        pattern = np.zeros(rows.num_rows, np.int64)
        for bit, name in enumerate(names):
            if rows[name].null_count:
                pattern |= np.asarray(rows[name].combine_chunks().is_null()).astype(np.int64) << bit
        for one in np.unique(pattern).tolist():
            at = np.flatnonzero(pattern == one)
            some = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
            yield frozenset(name for bit, name in enumerate(names) if one >> bit & 1), some, at

    def same(self, names: Sequence[str], nulls: frozenset[str], alias: str = "s") -> list[str]:
        """Conditions: the row as `alias` has the values of `j` in these columns."""
        return [
            f"{alias}.{quoted(name)} IS NULL" if name in nulls else f"{alias}.{quoted(name)} = j.{quoted(name)}"
            for name in names
        ]

    # -- writing -----------------------------------------------------------------------------------

    def delete(self, db: Connection, keys: pa.Table) -> None:
        names = [name for name in self.key if name in keys.column_names]
        assert names == list(self.key[: len(names)]), "the first columns of the key"
        if not names:
            if keys.num_rows:
                db.run(f"DELETE FROM {self.name}")
            return
        for nulls, some, _ in self.by_nulls(keys, names):
            known = {name: self.types[name] for name in names if name not in nulls}
            where = " AND ".join(self.same(names, nulls))
            using = f" USING {self.given(db, some, known)} AS j" if known else ""
            db.run(f"DELETE FROM {self.name} AS s{using} WHERE {where}")

    def drop_until(self, db: Connection, upto_us: int) -> None:
        assert self.spec.time is not None
        db.run(f"DELETE FROM {self.name} WHERE {quoted(self.spec.time)} <= $1::timestamptz", [text_of_us(upto_us)])

    def put(self, db: Connection, rows: pa.Table, whole: Sequence[str], *, add: bool) -> set[str]:
        """Puts rows, or with `add` merges them by the table's rules. Returns those of the columns `whole` in which a
        value that was written does not fit 64 bits."""
        wide: set[str] = set()
        for some in self._rounds(rows) if add else [rows]:
            for nulls, part, _ in self.by_nulls(sort_by_key(some, self.key), self.key):
                wide |= self._merge(db, part, nulls, whole, add)
        return wide

    def _rounds(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Rows in which each key comes once, in order."""
        if not self.key:
            yield from (rows.slice(at, 1) for at in range(rows.num_rows))
            return
        left = rows
        while left.num_rows:
            number = numbered(_comparable(left, self.key), self.key)
            first = np.unique(number, return_index=True)[1]
            if len(first) == left.num_rows:
                yield left
                return
            yield left.take(pa.array(np.sort(first)))
            left = left.take(pa.array(np.setdiff1d(np.arange(left.num_rows), first)))

    def _merge(
        self, db: Connection, rows: pa.Table, nulls: frozenset[str], whole: Sequence[str], add: bool
    ) -> set[str]:
        if not rows.num_rows:
            return set()
        return self._merge_given(db, self.given(db, rows, self.types), nulls, whole, add)

    def _merge_given(
        self, db: Connection, given: str, nulls: frozenset[str], whole: Sequence[str], add: bool
    ) -> set[str]:
        """`given`: a table expression with the rows, each key once."""
        columns = self.spec.columns
        if self.key and (not nulls or db.version >= NULLS_NOT_DISTINCT):
            sets = ", ".join(f"{quoted(each.name)} = {self._new(each, 's', 'excluded', add)}" for each in columns)
            key = ", ".join(map(quoted, self.key))
            then = f"UPDATE SET {sets}" if sets else "NOTHING"
            put = f"INSERT INTO {self.name} AS s ({self.names}) SELECT {self.names} FROM {given} AS j "
            return self._run(db, f"{put}ON CONFLICT ({key}) DO {then}", whole)
        where = " AND ".join(self.same(self.key, nulls)) or "true"
        wide: set[str] = set()
        if columns:
            sets = ", ".join(f"{quoted(each.name)} = {self._new(each, 's', 'j', add)}" for each in columns)
            wide |= self._run(db, f"UPDATE {self.name} AS s SET {sets} FROM {given} AS j WHERE {where}", whole)
        new = f"SELECT {self.names} FROM {given} AS j WHERE NOT EXISTS (SELECT 1 FROM {self.name} s WHERE {where})"
        return wide | self._run(db, f"INSERT INTO {self.name} AS s ({self.names}) {new}", whole)

    def add_staged(
        self, db: Connection, staged: Sequence[Staged], above: tuple[str, int] | None, whole: Sequence[str]
    ) -> set[str]:
        """Merges what workers have staged. A server that crashed since has emptied it: so the rows are counted."""
        wide: set[str] = set()
        for each in staged:
            place = quoted(each.place)
            (found,) = db.run(f"SELECT count(*) FROM {place}").fetchone()
            if found != each.rows:
                why = f"of {each.rows} staged rows {found} are left: the server was restarted. They are made again"
                raise StorageError(path=db.place, why=why)
            given = place
            if above is not None:
                time = f"{quoted(above[0])} > {db.literal(text_of_us(above[1]))}::timestamptz"
                given = f"(SELECT * FROM {place} WHERE {time})"
            wide |= self._merge_given(db, given, frozenset(each.nulls), whole, add=True)
            db.run(f"DROP TABLE {place}")
        return wide

    def _run(self, db: Connection, statement: str, whole: Sequence[str]) -> set[str]:
        """Runs what writes, and looks at what it has written."""
        if not whole:
            db.run(statement)
            return set()
        beyond = ", ".join(
            f"coalesce(bool_or(s.{quoted(name)} NOT BETWEEN {-(2**63)} AND {2**63 - 1}), false)" for name in whole
        )
        found = db.run(f"WITH s AS ({statement} RETURNING s.*) SELECT {beyond} FROM s").fetchone()
        return {name for name, wide in zip(whole, found, strict=True) if wide}

    def _new(self, column: Column, old: str, new: str, add: bool) -> str:
        before, after = f"{old}.{quoted(column.name)}", f"{new}.{quoted(column.name)}"
        return self._merged(self.spec.rules[column.name], column, before, after) if add else after

    def _merged(self, rule: AddRule, column: Column, old: str, new: str) -> str:
        """Null is neutral, which `least` and `greatest` know."""
        if rule != "add":
            return f"{rule}({old}, {new})"
        total = f"{old} + {new}"
        if pa.types.is_floating(self.types[column.name]):  # Postgres takes a sum beyond all doubles for an error
            kind = declared(self.types[column.name])
            safe, most = ("1e30", "1.7014117331926443e38") if kind == "real" else ("1e290", "8.988465674311579e307")
            half = f"({old} / 2 + {new} / 2)"
            beyond = f"abs({half}) > {most}::{kind} AND abs({half}) < 'Infinity'::{kind}"
            beyond = f"least(abs({old}), abs({new})) > {safe} AND {beyond}"  # else a half may be too small for it
            total = f"CASE WHEN {beyond} THEN (sign({half}) * 'Infinity'::float8)::{kind} ELSE {total} END"
        return f"coalesce({total}, {old}, {new})"


def _comparable(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Keys that Postgres takes for equal, alike: there is one zero, and lists are texts."""
    for name in names:
        arrow = rows[name].type
        if pa.types.is_floating(arrow):
            rows = rows.set_column(rows.column_names.index(name), name, pc.add(rows[name], pa.scalar(0, arrow)))
        elif pa.types.is_nested(arrow):
            texts = pa.array(map(repr, rows[name].to_pylist()), pa.string())
            rows = rows.set_column(rows.column_names.index(name), name, texts)
    return rows


def apply(db: Connection, tables: Mapping[str, KeyedTable], writes: Writes, whole: Mapping[str, list[str]]) -> set[str]:
    """What a step writes, in a transaction of the store. `whole`: by table, the columns that `put` looks at."""
    for name, keys in writes.deletes.items():
        tables[name].delete(db, keys)
    for name, upto_us in writes.drops.items():
        tables[name].drop_until(db, upto_us)
    wide: set[str] = set()
    for name, rows in writes.puts.items():
        wide |= tables[name].put(db, rows, whole.get(name, []), add=False)
    for name, rows in writes.adds.items():
        wide |= tables[name].put(db, rows, whole.get(name, []), add=True)
    for name, staged in writes.staged.items():
        wide |= tables[name].add_staged(db, staged, writes.staged_above, whole.get(name, []))
    return wide


@lru_cache(maxsize=256)
def tables_of(spec: FlowSpec) -> dict[str, KeyedTable]:
    return {table.name: KeyedTable(spec.name, table) for table in spec.tables}


class PostgresState(State):
    """`reading()`: a transaction, for one call."""

    def __init__(
        self, tables: Mapping[str, KeyedTable], reading: Callable[[], AbstractContextManager[Connection]]
    ) -> None:
        self._tables, self._reading = tables, reading

    def get(self, table: str, keys: pa.Table) -> pa.Table:
        return self.scan(table, keys.select(self._tables[table].key))

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
        one = self._tables[table]
        names = one.key[: prefixes.num_columns]
        assert set(prefixes.column_names) == set(names), "prefixes are the first columns of the key"
        if not prefixes.num_rows:
            return one.schema.empty_table()
        asked = prefixes.select(names) if names else pa.table({"/": pa.nulls(prefixes.num_rows, pa.int64())})
        found = []
        with self._reading() as db:
            for nulls, some, at in one.by_nulls(asked, names):
                bounds = _Bounds(one, len(names), low, high, at, floor=floor, limit=limit, descending=descending)
                found.append(one.decoded(db.copy_out(bounds.select(db, some, nulls))))
        return sort_by_key(pa.concat_tables(found), one.key)

    def due(self, table: str, upto_us: int, limit: int | None = None, *, after_us: int | None = None) -> pa.Table:
        one = self._tables[table]
        assert one.spec.time is not None, f"table {table} has no time"
        time, rest = f"s.{quoted(one.spec.time)}", [name for name in one.key if name != one.spec.time]
        after = "" if after_us is None else f" AND {time} > '{text_of_us(after_us)}'"
        order = ", ".join(filter(None, (time, one.order("s", rest))))
        most = "" if limit is None else f" LIMIT {limit:d}"
        where = f"{time} <= '{text_of_us(upto_us)}'{after}"
        with self._reading() as db:
            body = db.copy_out(f"SELECT {one.selected} FROM {one.name} s WHERE {where} ORDER BY {order}{most}")
        return one.decoded(body)

    def last_us(self, table: str) -> int | None:
        one = self._tables[table]
        assert one.spec.time is not None, f"table {table} has no time"
        with self._reading() as db:
            (found,) = db.run(f"SELECT max({quoted(one.spec.time)}) FROM {one.name}").fetchone()
        return us_of(found)


class _Bounds:
    """Which rows of each prefix are asked for: between bounds of the key's next column, and how many."""

    def __init__(
        self,
        one: KeyedTable,
        width: int,
        low: Sequence[int] | None,
        high: Sequence[int] | None,
        at: np.ndarray,
        *,
        floor: bool,
        limit: int | None,
        descending: bool,
    ) -> None:
        self._one, self._width = one, width
        self._limit, self._descending = limit, descending
        self._given = {
            name: [bounds[number] for number in at.tolist()]
            for name, bounds in (("/low", low), ("/high", high))
            if bounds is not None
        }
        self._floor = floor and low is not None

    def select(self, db: Connection, prefixes: pa.Table, nulls: frozenset[str]) -> str:
        """Rows that all have nulls in the same columns, so that these are no values to look for."""
        one, width = self._one, self._width
        names = one.key[:width]
        known = {name: one.types[name] for name in names if name not in nulls}
        columns = {name: prefixes[name] for name in known}
        types = dict(known)
        next_type = one.types[one.key[width]] if self._given else None
        for name, bounds in self._given.items():
            types[name] = next_type if pa.types.is_timestamp(next_type) else pa.int64()
            columns[name] = pa.array(_cells(bounds, next_type))
        same = one.same(names, nulls)
        where = " AND ".join([*same, *self._between("s")]) or "true"
        if not types:
            return self._chosen(f"SELECT {one.selected} FROM {one.name} s WHERE {where}", "s")
        given = self._texts(db, pa.table(columns), types)
        if self._limit is None and not self._given:
            return f"SELECT {one.selected} FROM {given} AS j JOIN {one.name} s ON {where}"
        some = self._chosen(f"SELECT s.ctid FROM {one.name} s WHERE {where}", "s")
        rows = f"SELECT s.ctid FROM {given} AS j CROSS JOIN LATERAL ({some}) AS s"
        if self._floor:
            behind = f"s.{quoted(one.key[width])}"
            highest = f' AND {behind} <= j."/high"' if "/high" in self._given else ""
            below = " AND ".join([*same, f'{behind} < j."/low"{highest}'])
            order = one.order("s", one.key[width:], descending=True)
            last = f"SELECT s.ctid FROM {one.name} s WHERE {below} ORDER BY {order} LIMIT 1"
            rows += f" UNION SELECT s.ctid FROM {given} AS j CROSS JOIN LATERAL ({last}) AS s"
        return f"SELECT {one.selected} FROM {one.name} s WHERE s.ctid IN ({rows})"

    def _texts(self, db: Connection, rows: pa.Table, types: Mapping[str, pa.DataType]) -> str:
        """Each once. Reading makes no temporary table: the transaction may be one that cannot write."""
        arrays = ", ".join(f"{db.literal(_array(rows[name], arrow))}::text[]" for name, arrow in types.items())
        texts = ", ".join(f"c{number}" for number in range(len(types)))
        typed = (f"c{at}::{declared(arrow)} AS {quoted(name)}" for at, (name, arrow) in enumerate(types.items()))
        return f"(SELECT DISTINCT {', '.join(typed)} FROM unnest({arrays}) AS u({texts}))"

    def _between(self, alias: str) -> list[str]:
        if not self._given:
            return []
        behind = f"{alias}.{quoted(self._one.key[self._width])}"
        signs = {"/low": ">=", "/high": "<="}
        return [f"{behind} {signs[name]} j.{quoted(name)}" for name in self._given]

    def _chosen(self, select: str, alias: str) -> str:
        rest = self._one.key[self._width :]
        if self._limit is None:
            return select
        order = self._one.order(alias, rest, descending=self._descending) if rest else ""
        return f"{select}{f' ORDER BY {order}' if order else ''} LIMIT {self._limit:d}"


def _cells(bounds: Sequence[int], arrow: pa.DataType) -> list[str]:
    if pa.types.is_timestamp(arrow):
        return [text_of_us(us) for us in bounds]
    return [str(max(-(2**63), min(2**63 - 1, number))) for number in bounds]


def _array(column: pa.ChunkedArray, arrow: pa.DataType) -> str:
    """Bounds are texts already."""
    plain = pa.types.is_string(column.type) and not pa.types.is_string(arrow)
    return array_text(column, pa.string() if plain else arrow)
