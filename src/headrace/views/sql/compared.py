"""What two versions of a view have in common, and how their differences are shown, in any SQL database. Owns which
columns are compared. Knows no statement that only one database has, and no connection."""

from __future__ import annotations

from headrace.views.contract import Column, ViewSpec
from headrace.views.naming import NUMBER
from headrace.views.reading import quoted

__all__ = ["THERE", "UNROUNDED", "Versions"]

THERE = "/there"
UNROUNDED = 1e-9
"""Sums of doubles depend on their order this much, of the larger of the two."""


class Versions:
    """Rows belong together that have the same window and groups; if these are not of the same names and types, none do.
    Compared is what both have, but how far it is called final; `exactly`: that, too."""

    def __init__(self, old: ViewSpec, new: ViewSpec, *, exactly: bool) -> None:
        self._old, self._new = old, new
        before, after = ({column.name: column.type for column in spec.columns} for spec in (old, new))
        self.added = [name for name in after if name not in before]
        self.removed = [name for name in before if name not in after]
        self._numbered = old.shaped is not None or new.shaped is not None
        """Of one result there may be several rows."""
        self._alike = old.places == new.places and old.windows == new.windows
        common = [name for name in after if name in before]
        self._compared = {name: after[name] for name in common if exactly or name != "_status"}
        self._texts = {name for name in common if before[name] != after[name]}
        kept = [Column(name, "string" if name in self._texts else after[name]) for name in after]
        self.columns = [Column("op", "string"), *kept, *(Column(name, before[name]) for name in self.removed)]
        """Of differing rows: what the new version has, then what only the old one has. A column of another type is
        text."""

    def _both(self, rows_o: str, rows_n: str) -> str:
        """Rows of either side, '-' and '+'."""
        side = quoted(NUMBER)  # a user's column may be called op
        names = ", ".join(quoted(column.name) for column in self.columns[1:])
        return (
            f"SELECT CASE {side} WHEN 0 THEN '-' ELSE '+' END, {names} FROM ("
            f"SELECT 0 AS {side}, {self._shown('o')} {rows_o} UNION ALL "
            f"SELECT 1 AS {side}, {self._shown('n')} {rows_n}) AS d"
        )

    def _shown(self, side: str) -> str:
        has = {column.name for column in (self._old if side == "o" else self._new).columns}
        out = []
        for column in self.columns[1:]:
            value = f"{side}.{quoted(column.name)}" if column.name in has else "NULL"
            value = f"CAST({value} AS TEXT)" if column.name in self._texts else value
            out.append(f"{value} AS {quoted(column.name)}")
        return ", ".join(out)
