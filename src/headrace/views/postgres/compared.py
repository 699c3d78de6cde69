"""What is different between two versions of a view in Postgres: SQL over both. Owns these statements, not the
transactions they are part of."""

from __future__ import annotations

import pyarrow as pa

from headrace.views.contract import FlowSpec
from headrace.views.naming import NUMBER
from headrace.views.postgres.connections import Connection, quoted
from headrace.views.postgres.tables import ViewTables, tables_of
from headrace.views.postgres.values import table_of
from headrace.views.reading import Counts, schema_of
from headrace.views.sql.compared import THERE, UNROUNDED, Versions
from headrace.views.values import arrow_type

__all__ = ["Compared"]


class Compared(Versions):
    """Two versions of a view, row by row. Sums of doubles are compared as far as their order does not matter;
    `exactly`: all of them."""

    def __init__(self, served: FlowSpec, other: FlowSpec, *, exactly: bool = False) -> None:
        self._sides = {"o": tables_of(served), "n": tables_of(other)}
        super().__init__(self._sides["o"].spec, self._sides["n"].spec, exactly=exactly)
        same = [self._same(name, kind, exactly=exactly) for name, kind in self._compared.items()]
        self._is_same = " AND ".join(same) or "true"

    def rows(self, db: Connection, limit: int | None = None) -> pa.Table:
        """What is different: '-' a row as it was, '+' as it is, by window and group."""
        keys = [f"{quoted(name)} NULLS FIRST" for name in self._new.key if self._alike]
        order = ", ".join([*keys, quoted(NUMBER)])
        most = "" if limit is None else f" LIMIT {limit:d}"
        both = self._both(self._differing("o", "n"), self._differing("n", "o"))
        return table_of(db.copy_out(f"{both} ORDER BY {order}{most}"), schema_of(self.columns))

    def counts(self, db: Connection) -> Counts:
        (old,), (new,) = (db.run(f"SELECT count(*) FROM {side.counted}").fetchone() for side in self._sides.values())
        if not self._alike:
            return Counts(new, old, 0, 0)
        both = f"FROM {self._side('o')} JOIN {self._side('n')} ON {self._together()}"
        found, same = db.run(f"SELECT count(*), count(*) FILTER (WHERE {self._is_same}) {both}").fetchone()
        return Counts(new - found, old - found, found - same, same)

    def _same(self, name: str, kind: str, *, exactly: bool) -> str:
        old, new = f"o.{quoted(name)}", f"n.{quoted(name)}"
        if name in self._texts:
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
        terms += [f"o.{quoted(NUMBER)} = n.{quoted(NUMBER)}"] if self._numbered else []
        return " AND ".join(terms) or "true"

    def _side(self, side: str) -> str:
        """A version's rows as readers see them. Of one result a transform may have made several, which are taken in
        order. Doubles decide last: they may differ in their last digits."""
        tables: ViewTables = self._sides[side]
        numbered = ""
        if self._numbered:
            made = sorted(tables.spec.shaped or (), key=lambda column: pa.types.is_floating(arrow_type(column.type)))
            by = ", ".join(f"f.{quoted(column.name)} NULLS FIRST" for column in made) or "1"
            of = ", ".join(f"s.{quoted(name)}" for name in tables.rows.key) or "1"
            numbered = f", row_number() OVER (PARTITION BY {of} ORDER BY {by}) AS {quoted(NUMBER)}"
        return f"(SELECT 1 AS {quoted(THERE)}, {tables.seen()}{numbered} FROM {tables.seen_from}) AS {side}"
