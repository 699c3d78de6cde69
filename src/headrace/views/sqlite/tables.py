"""What readers see of a view's keyed tables: SQL text, made once per flow. Owns the SQL view under the view's own name.

The rows lie in one keyed table (`keyed`), a row per window and group, with the slots of the aggregates as columns. An
SQL view over it has what readers see. Whether a window is final is computed there from the flow's frontier, so that
closing a million windows changes one row. Rows that a transform made of the results lie in a table beside it, under
the same key: readers see these, joined with the row for what is common.

A group's name is a user's column and may be anything, so it is quoted. Names with a '/' are ours: no view has one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from headrace.views.contract import (
    BESIDE,
    FINAL_AT,
    RESULTS,
    SHAPED,
    Fill,
    FlowSpec,
    ViewSpec,
)
from headrace.views.reading import quoted
from headrace.views.sqlite.filling import made_rows
from headrace.views.sqlite.keyed import tables_of as keyed_tables
from headrace.views.sqlite.values import declared
from headrace.views.values import arrow_type

__all__ = ["ViewTables", "tables_of"]

Nulls = frozenset[str]
"""Key columns that have had a null: `keyed.nulls_in`."""


@lru_cache(maxsize=256)
def tables_of(spec: FlowSpec) -> ViewTables:
    return ViewTables(spec)


class ViewTables:
    """Of a flow with a view."""

    def __init__(self, flow: FlowSpec) -> None:
        assert flow.view is not None
        self.spec: ViewSpec = flow.view
        tables = keyed_tables(flow)
        self.rows, self.shaped = tables[RESULTS], tables.get(SHAPED)
        self.beside = {f"{self.spec.name}_{shown}": tables[name] for name, shown in BESIDE.items() if name in tables}
        """Tables that readers see beside the view, by name."""
        self.key = [quoted(name) for name in self.rows.spec.key_names]
        self.joined = "" if self.shaped is None else f" JOIN {self.shaped.name} f ON {self._together('f')}"
        """Behind the table of results as `s`: the rows that a transform made of each, as `f`."""
        self.seen_from = f"{self.rows.select_from()} s{self.joined}"
        """Where `seen` is selected from."""

    def _together(self, other: str) -> str:
        names = self.rows.spec.key_names
        return " AND ".join(f"{other}.{quoted(name)} = s.{self.rows.raw(name)}" for name in names) or "1"

    @property
    def counted(self) -> str:
        """The table that has a row for each that readers see."""
        return (self.shaped or self.rows).name

    # -- what readers see --------------------------------------------------------------------------

    def show(self, nulls: Nulls) -> list[str]:
        """Makes the SQL view; again when the order of results has changed, or a key has its first null."""
        if not self.spec.public:
            return []
        name = quoted(self.spec.name)
        made = [*self.hide(), f"CREATE VIEW {name} AS {self.shown(nulls)}"]
        for beside, table in self.beside.items():
            columns = [each for each in table.spec.names if not each.startswith("/")]
            seen = ", ".join(f"{table.seen(each, nulls)} AS {quoted(each)}" for each in columns)
            made.append(f"CREATE VIEW {quoted(beside)} AS SELECT {seen} FROM {table.select_from()} s")
        return made

    def hide(self) -> list[str]:
        """Drops what readers see."""
        return [f"DROP VIEW IF EXISTS {quoted(name)}" for name in (self.spec.name, *self.beside)]

    def shown(self, nulls: Nulls, only: Sequence[str] = ()) -> str:
        """A SELECT of what readers see; `only`: conditions on groups, of which gaps need be filled."""
        rows, fill = self._selected(nulls), self.spec.fill
        if fill is None:
            return rows
        typed = f"SELECT {self.seen(frozenset())} FROM {self.seen_from} WHERE 0"
        # Stored rows on both sides: there SQLite looks for the columns' types.
        return f"{typed} UNION ALL SELECT * FROM ({self._made_rows(fill, nulls, only)}) UNION ALL {rows}"

    def _selected(self, nulls: Nulls) -> str:
        """SQLite knows a column's type, by which readers' values are converted, only where it is a column and no
        expression: so rows with a null come apart, where that matters."""
        typed = [column.name for column in self.spec.groups if column.name in nulls and _is_converted(column.type)]
        rows = f"SELECT {self.seen(nulls)} FROM {self.seen_from}"
        if not typed:
            return rows
        none = " OR ".join(map(self.rows.is_null, typed))
        plain = f"SELECT {self.seen(nulls - {*typed})} FROM {self.seen_from}"
        return f"{plain} WHERE NOT ({none}) UNION ALL {rows} WHERE {none} UNION ALL {plain} WHERE 0"

    def stored(self, nulls: Nulls) -> str:
        """What readers see, as a table, without rows that fill gaps."""
        return f"(SELECT {self.seen(nulls)} FROM {self.seen_from})"

    def seen(self, nulls: Nulls) -> str:
        """The columns readers see, for a SELECT from `seen_from`."""
        places = [f"{self.rows.seen(column.name, nulls)} AS {quoted(column.name)}" for column in self.spec.places]
        if self.spec.shaped is None:
            values = [f"{sql} AS {quoted(name)}" for name, sql in self._results().items()]
        else:
            values = [f"f.{quoted(column.name)} AS {quoted(column.name)}" for column in self.spec.shaped]
        tail = [f"{self._status()} AS _status", "s._corrections AS _corrections", "s._updated_at AS _updated_at"]
        return ", ".join([*places, *values, *tail])

    def _results(self) -> dict[str, str]:
        types = {slot.name: slot.type for slot in self.spec.slots}
        out = {}
        for result in self.spec.results:
            slots = [f"s.{quoted(slot)}" for slot in result.slots]
            value = slots[0] if len(slots) == 1 else _ratio(*slots, type_above=types[result.slots[0]])
            value = f"CASE s.{quoted(result.unless)} WHEN 0 THEN NULL ELSE {value} END" if result.unless else value
            out[result.name] = value
        return out

    def _status(self) -> str:
        """Final or open: without windows nothing is ever final."""
        if not self.spec.window_us and not self.spec.final_by_row:
            return "'open'"
        ends = f"s.{quoted(FINAL_AT)}" if self.spec.final_by_row else "s.window_end"
        return f"CASE WHEN {ends} <= {self._closed} THEN 'final' ELSE 'open' END"

    @property
    def _closed(self) -> str:
        """Up to when windows are closed."""
        return f"(SELECT closed FROM _flows WHERE flow = '{self.spec.name}')"  # a name has no quotes: names.py

    def _made_rows(self, fill: Fill, nulls: Nulls, only: Sequence[str]) -> str:
        """The rows of windows that have none."""
        results = self._results()
        types = {result.name: result.type for result in self.spec.results}
        if fill.gaps != "previous":
            results = {name: _zero(types[name]) if name in fill.zeros else "NULL" for name in results}
        values = {quoted(name): sql for name, sql in results.items()}
        groups = {quoted(group.name): self.rows.seen(group.name, nulls) for group in self.spec.groups}
        return made_rows(self.spec.name, fill, self.rows.select_from(), groups, values, self._closed, only)


def _is_converted(ddl: str) -> bool:
    """Whether readers get another value than the file has."""
    arrow = arrow_type(ddl)
    return any(of(arrow) for of in (pa.types.is_boolean, pa.types.is_temporal, pa.types.is_decimal, pa.types.is_nested))


def _zero(ddl: str) -> str:
    return {"DOUBLE": "0.0", "DECIMAL_TEXT": "'0'"}.get(_kind(ddl), "0")


def _ratio(above: str, below: str, *, type_above: str) -> str:
    """NaN is a text, which SQLite would divide as if it were zero."""
    ratio = f"CAST({above} AS REAL) / nullif({below}, 0)"
    return f"CASE {above} WHEN 'NaN' THEN 'NaN' ELSE {ratio} END" if _kind(type_above) == "DOUBLE" else ratio


def _kind(ddl: str) -> str:
    return declared(arrow_type(ddl)).split("(")[0]
