"""Versions of a view beside the one that is served: what they are called, how one takes the other's place, and what is
different between two. Owns these statements, not the transactions they are part of; knows no flow and no log.

`views/next` is made from the log while `views` is served, and takes its name; what was served is `views/previous` then,
until the next one is made. Each is whole, with tables, positions, ledger and outbox of its own, so a switch is a matter
of names, in one transaction: a reader sees the one or the other. There is never more than one version beside."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace.views.contract import RESULTS, VERSIONS, Column, FlowSpec
from headrace.views.naming import NUMBER
from headrace.views.reading import Counts, quoted
from headrace.views.sqlite import keyed, watchers
from headrace.views.sqlite.tables import ViewTables, tables_of
from headrace.views.sqlite.values import declared
from headrace.views.values import arrow_type

__all__ = ["FLOW_TABLES", "Compared", "exchange", "found_beside", "program"]

FLOW_TABLES = ("_flows", "_positions", "_begins", "_buried", "_ledger", "_outbox", "_carried", "_nulls", "_kept")
"""What the store keeps of a flow, under its name; it goes with a version to another. The steps of a view (`origins`) do
not: they say what those who read its changes have, of whatever version it was."""
THERE = "/there"
UNROUNDED = 1e-9
"""Sums of doubles depend on their order this much, of the larger of the two."""


def found_beside(db: sqlite3.Connection, view: str) -> list[str]:
    names = [f"{view}/{which}" for which in VERSIONS]
    return [name for name in names if db.execute("SELECT 1 FROM _flows WHERE flow = ?", (name,)).fetchone()]


def program(db: sqlite3.Connection, version: str) -> str | None:
    """What a version was made by, as who made it wrote it."""
    (found,) = db.execute("SELECT value FROM _meta WHERE name = ?", (f"program/{version}",)).fetchone() or (None,)
    return found


# -- taking a place ------------------------------------------------------------------------------------


def exchange(db: sqlite3.Connection, served: FlowSpec, comes: FlowSpec, goes: str) -> bool:
    """`comes` takes the name of `served`, which is called `goes` from then on. The sequence of the switch is after all
    commits of both. Returns whether those who watch go on from there: they cannot if the columns are others."""
    view = served.name
    (last,) = db.execute("SELECT max(sequence) FROM _flows WHERE flow IN (?, ?)", (view, comes.name)).fetchone()
    sequence = int(last) + 1
    assert served.view is not None and comes.view is not None, "flows into topics have no versions"
    alike = served.view.columns == comes.view.columns
    columns = watchers.watched_columns(comes.view) if alike else []
    compared = Compared(served, comes, exactly=True)
    watchers.switched(db, view, sequence, columns, lambda: compared.rows(db))
    _rename(db, served, goes)
    _rename(db, comes, view)
    db.execute("UPDATE _flows SET sequence = ? WHERE flow = ?", (sequence, view))
    db.execute("DELETE FROM _meta WHERE name = ?", (f"line/{view}",))
    return alike


def _rename(db: sqlite3.Connection, spec: FlowSpec, name: str) -> None:
    assert spec.view is not None
    named = replace(spec, name=name, view=replace(spec.view, name=name))
    for statement in tables_of(spec).hide():
        db.execute(statement)
    for table in _tables(db, spec.name):
        db.execute(f"ALTER TABLE {quoted(table)} RENAME TO {quoted(name + table[len(spec.name) :])}")
    for table in FLOW_TABLES:
        db.execute(f"UPDATE {table} SET flow = ? WHERE flow = ?", (name, spec.name))
    for fact in ("born", "program"):
        db.execute("UPDATE _meta SET name = ? WHERE name = ?", (f"{fact}/{name}", f"{fact}/{spec.name}"))
    db.execute("UPDATE _flows SET spec = ? WHERE flow = ?", (json.dumps(named.as_json()), name))
    for statement in tables_of(named).show(_nulls(db, name)):
        db.execute(statement)


def _nulls(db: sqlite3.Connection, name: str) -> frozenset[str]:
    return keyed.nulls_in(db, name).get(RESULTS, frozenset())


def _tables(db: sqlite3.Connection, name: str) -> list[str]:
    """All tables of a view begin with its name and '/'; so do those of its versions."""
    prefix = f"{name}/"
    sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, ?) = ?"
    found = [table for (table,) in db.execute(sql, (len(prefix), prefix))]
    return [table for table in found if not table.startswith(tuple(f"{prefix}{version}/" for version in VERSIONS))]


# -- what is different ---------------------------------------------------------------------------------


class Compared:
    """Two versions of a view, row by row. Rows belong together that have the same window and groups; if these are not
    of the same names and types, none do. Compared is what both have, but how far it is called final, and sums of
    doubles as far as their order does not matter; `exactly`: all of it."""

    def __init__(self, served: FlowSpec, other: FlowSpec, *, exactly: bool = False) -> None:
        self._sides = {"o": tables_of(served), "n": tables_of(other)}
        old, new = (tables.spec for tables in self._sides.values())
        self._old, self._new = old, new
        before, after = ({column.name: column.type for column in spec.columns} for spec in (old, new))
        self.added = [name for name in after if name not in before]
        self.removed = [name for name in before if name not in after]
        keys = [f"/{number}" for number in range(len(self._sides["n"].key))]
        self._key = [*keys, *([NUMBER] if old.shaped is not None or new.shaped is not None else [])]
        """The columns of the key as the tables have them, in which no null is missing."""
        self._alike = old.places == new.places and old.windows == new.windows
        common = [name for name in after if name in before]
        same = [self._same(name, after[name], exactly=exactly) for name in common if exactly or name != "_status"]
        self._is_same = " AND ".join(same) or "1"
        texts = {name for name in common if before[name] != after[name]}
        kept = [Column(name, "string" if name in texts else after[name]) for name in after]
        self._texts = texts
        self.columns = [Column("op", "string"), *kept, *(Column(name, before[name]) for name in self.removed)]
        """Of `rows`: what the new version has, then what only the old one has. A column of another type is text."""

    def rows(self, db: sqlite3.Connection, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """What is different: '-' a row as it was, '+' as it is, by window and group."""
        side = quoted(NUMBER)  # a user's column may be called op
        names = ", ".join(quoted(column.name) for column in self.columns[1:])
        order = ", ".join([*(quoted(name) for name in self._new.key if self._alike), side])
        sql = (
            f"SELECT CASE {side} WHEN 0 THEN '-' ELSE '+' END, {names} FROM ("
            f"SELECT 0 AS {side}, {self._shown('o')} {self._differing(db, 'o', 'n')} UNION ALL "
            f"SELECT 1 AS {side}, {self._shown('n')} {self._differing(db, 'n', 'o')}) ORDER BY {order} LIMIT ?"
        )
        return db.execute(sql, (-1 if limit is None else limit,))

    def counts(self, db: sqlite3.Connection) -> Counts:
        sides = [db.execute(f"SELECT count(*) FROM {tables.counted}") for tables in self._sides.values()]
        (old,), (new,) = (side.fetchone() for side in sides)
        if not self._alike:
            return Counts(new, old, 0, 0)
        both = f"FROM {self._side(db, 'o')} JOIN {self._side(db, 'n')} ON {self._together()}"
        found, same = db.execute(f"SELECT count(*), coalesce(sum(coalesce({self._is_same}, 0)), 0) {both}").fetchone()
        return Counts(new - found, old - found, found - same, same)

    def _same(self, name: str, kind: str, *, exactly: bool) -> str:
        old, new = f"o.{quoted(name)}", f"n.{quoted(name)}"
        if exactly or _kind(kind) != "DOUBLE":
            return f"{old} IS {new}"
        numbers = f"typeof({old}) <> 'text' AND typeof({new}) <> 'text'"  # NaN is a text
        most = f"min({UNROUNDED} * max(abs({old}), abs({new})), 1e308)"  # from infinity everything is infinitely far
        close = f"abs({old} - {new}) <= {most}"
        return f"({old} IS {new} OR ({numbers} AND coalesce({close}, 0)))"

    def _differing(self, db: sqlite3.Connection, here: str, there: str) -> str:
        """The rows of one side that the other has not, or not so."""
        if not self._alike:
            return f"FROM {self._side(db, here)}"
        missing = f"{there}.{quoted(THERE)} IS NULL OR NOT coalesce({self._is_same}, 0)"
        sides = f"FROM {self._side(db, here)} LEFT JOIN {self._side(db, there)} ON {self._together()}"
        return f"{sides} WHERE {missing}"

    def _together(self) -> str:
        return " AND ".join(f"o.{quoted(name)} = n.{quoted(name)}" for name in self._key) or "1"

    def _side(self, db: sqlite3.Connection, side: str) -> str:
        """A version's rows as readers see them, with their keys. Of one result a transform may have made several, which
        are taken in order. Doubles decide last: they may differ in their last digits."""
        tables: ViewTables = self._sides[side]
        keys = "".join(f"s.{name} AS {quoted(f'/{number}')}, " for number, name in enumerate(tables.key))
        numbered = ""
        if NUMBER in self._key:
            made = sorted(tables.spec.shaped or (), key=lambda column: _kind(column.type) == "DOUBLE")
            by = ", ".join(f"f.{quoted(column.name)}" for column in made) or "1"
            of = ", ".join(f"s.{name}" for name in tables.key) or "1"
            numbered = f", row_number() OVER (PARTITION BY {of} ORDER BY {by}) AS {quoted(NUMBER)}"
        seen = tables.seen(_nulls(db, tables.spec.name))
        return f"(SELECT 1 AS {quoted(THERE)}, {keys}{seen}{numbered} FROM {tables.seen_from}) {side}"

    def _shown(self, side: str) -> str:
        has = {column.name for column in (self._old if side == "o" else self._new).columns}
        out = []
        for column in self.columns[1:]:
            value = f"{side}.{quoted(column.name)}" if column.name in has else "NULL"
            value = f"CAST({value} AS TEXT)" if column.name in self._texts else value
            out.append(f"{value} AS {quoted(column.name)}")
        return ", ".join(out)


def _kind(ddl: str) -> str:
    return declared(arrow_type(ddl)).split("(")[0]
