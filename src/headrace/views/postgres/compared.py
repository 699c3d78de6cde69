"""What is different between two versions of a view in Postgres: SQL over both. Owns these statements, not the
transactions they are part of."""

from __future__ import annotations

import pyarrow as pa

from headrace.views.contract import Column, FlowSpec
from headrace.views.naming import NUMBER
from headrace.views.postgres.connections import Connection, quoted
from headrace.views.postgres.tables import ViewTables, tables_of
from headrace.views.postgres.values import table_of
from headrace.views.reading import Counts, schema_of
from headrace.views.values import arrow_type

__all__ = ["Compared"]

THERE = "/there"
UNROUNDED = 1e-9
"""Sums of doubles depend on their order this much, of the larger of the two."""


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
        self._number = old.shaped is not None or new.shaped is not None
        self._alike = old.places == new.places and old.windows == new.windows
        common = [name for name in after if name in before]
        same = [self._same(name, after[name], exactly=exactly) for name in common if exactly or name != "_status"]
        self._is_same = " AND ".join(same) or "true"
        self._texts = {name for name in common if before[name] != after[name]}
        kept = [Column(name, "string" if name in self._texts else after[name]) for name in after]
        self.columns = [Column("op", "string"), *kept, *(Column(name, before[name]) for name in self.removed)]
        """Of `rows`: what the new version has, then what only the old one has. A column of another type is text."""

    def rows(self, db: Connection, limit: int | None = None) -> pa.Table:
        """What is different: '-' a row as it was, '+' as it is, by window and group."""
        side = quoted(NUMBER)  # a user's column may be called op
        names = ", ".join(quoted(column.name) for column in self.columns[1:])
        keys = [f"{quoted(name)} NULLS FIRST" for name in self._new.key if self._alike]
        most = "" if limit is None else f" LIMIT {limit:d}"
        return table_of(
            db.copy_out(
                f"SELECT CASE {side} WHEN 0 THEN '-' ELSE '+' END, {names} FROM ("
                f"SELECT 0 AS {side}, {self._shown('o')} {self._differing('o', 'n')} UNION ALL "
                f"SELECT 1 AS {side}, {self._shown('n')} {self._differing('n', 'o')}) AS d "
                f"ORDER BY {', '.join([*keys, side])}{most}"
            ),
            schema_of(self.columns),
        )

    def counts(self, db: Connection) -> Counts:
        (old,), (new,) = (db.run(f"SELECT count(*) FROM {side.counted}").fetchone() for side in self._sides.values())
        if not self._alike:
            return Counts(new, old, 0, 0)
        both = f"FROM {self._side('o')} JOIN {self._side('n')} ON {self._together()}"
        found, same = db.run(f"SELECT count(*), count(*) FILTER (WHERE {self._is_same}) {both}").fetchone()
        return Counts(new - found, old - found, found - same, same)

    def _same(self, name: str, kind: str, *, exactly: bool) -> str:
        old, new = f"o.{quoted(name)}", f"n.{quoted(name)}"
        if {column.name: column.type for column in self._old.columns}[name] != kind:
            old, new = f"{old}::text", f"{new}::text"
        same = f"{old} IS NOT DISTINCT FROM {new}"
        if exactly or not pa.types.is_floating(arrow_type(kind)) or old.endswith("::text"):
            return same
        old, new = f"{old}::double precision", f"{new}::double precision"
        most = f"greatest(abs({old}), abs({new}), 1e-290)"  # what is less could not be multiplied
        close = f"CASE WHEN {most} < 8e307 THEN abs({old} - {new}) <= {UNROUNDED} * {most} END"  # nor more subtracted
        return f"({same} OR coalesce({close}, false))"

    def _differing(self, here: str, there: str) -> str:
        """The rows of one side that the other has not, or not so."""
        if not self._alike:
            return f"FROM {self._side(here)}"
        missing = f"{there}.{quoted(THERE)} IS NULL OR NOT coalesce({self._is_same}, false)"
        return f"FROM {self._side(here)} LEFT JOIN {self._side(there)} ON {self._together()} WHERE {missing}"

    def _together(self) -> str:
        """Nulls are equal; of texts Postgres makes a hash join."""
        keys = [quoted(name) for name in self._new.key]
        terms = [f"coalesce(o.{key}::text, '') = coalesce(n.{key}::text, '')" for key in keys]
        terms += [f"(o.{key} IS NULL) = (n.{key} IS NULL)" for key in keys]
        terms += [f"o.{quoted(NUMBER)} = n.{quoted(NUMBER)}"] if self._number else []
        return " AND ".join(terms) or "true"

    def _side(self, side: str) -> str:
        """A version's rows as readers see them. Of one result a transform may have made several, which are taken in
        order. Doubles decide last: they may differ in their last digits."""
        tables: ViewTables = self._sides[side]
        numbered = ""
        if self._number:
            made = sorted(tables.spec.shaped or (), key=lambda column: pa.types.is_floating(arrow_type(column.type)))
            by = ", ".join(f"f.{quoted(column.name)} NULLS FIRST" for column in made) or "1"
            of = ", ".join(f"s.{quoted(name)}" for name in tables.rows.key) or "1"
            numbered = f", row_number() OVER (PARTITION BY {of} ORDER BY {by}) AS {quoted(NUMBER)}"
        return f"(SELECT 1 AS {quoted(THERE)}, {tables.seen()}{numbered} FROM {tables.seen_from}) AS {side}"

    def _shown(self, side: str) -> str:
        has = {column.name for column in (self._old if side == "o" else self._new).columns}
        out = []
        for column in self.columns[1:]:
            value = f"{side}.{quoted(column.name)}" if column.name in has else "NULL"
            value = f"{value}::text" if column.name in self._texts else value
            out.append(f"{value} AS {quoted(column.name)}")
        return ", ".join(out)
