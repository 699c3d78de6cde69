"""What is different between two versions of a view in SQLite: SQL over both. Owns these statements, not the
transactions they are part of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from headrace.views.contract import RESULTS, FlowSpec
from headrace.views.naming import NUMBER
from headrace.views.reading import Counts, quoted
from headrace.views.sql.compared import THERE, UNROUNDED, Versions
from headrace.views.sqlite import keyed
from headrace.views.sqlite.tables import ViewTables, tables_of
from headrace.views.sqlite.values import declared
from headrace.views.values import arrow_type

__all__ = ["Compared"]


def _nulls(db: sqlite3.Connection, name: str) -> frozenset[str]:
    return keyed.nulls_in(db, name).get(RESULTS, frozenset())


class Compared(Versions):
    """Two versions of a view, row by row. Sums of doubles are compared as far as their order does not matter;
    `exactly`: all of them."""

    def __init__(self, served: FlowSpec, other: FlowSpec, *, exactly: bool = False) -> None:
        self._sides = {"o": tables_of(served), "n": tables_of(other)}
        super().__init__(self._sides["o"].spec, self._sides["n"].spec, exactly=exactly)
        keys = [f"/{number}" for number in range(len(self._sides["n"].key))]
        self._key = [*keys, *([NUMBER] if self._numbered else [])]
        """The columns of the key as the tables have them, in which no null is missing."""
        same = [self._same(name, kind, exactly=exactly) for name, kind in self._compared.items()]
        self._is_same = " AND ".join(same) or "1"

    def rows(self, db: sqlite3.Connection, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """What is different: '-' a row as it was, '+' as it is, by window and group."""
        order = ", ".join([*(quoted(name) for name in self._new.key if self._alike), quoted(NUMBER)])
        both = self._both(self._differing(db, "o", "n"), self._differing(db, "n", "o"))
        return db.execute(f"{both} ORDER BY {order} LIMIT ?", (-1 if limit is None else limit,))

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


def _kind(ddl: str) -> str:
    return declared(arrow_type(ddl)).split("(")[0]
