"""What readers see of a view's keyed tables in Postgres: SQL text, made once per flow. Owns the SQL view under the
view's own name, which other applications read and join.

Whether a window is final is computed there from the flow's frontier, so that closing a million windows changes one row.
Rows that a transform made of the results lie in a table beside it, under the same key: readers see these, joined with
the row for what is common."""

from __future__ import annotations

from functools import lru_cache

from headrace.errors import InvalidArgument, InvalidName
from headrace.views.contract import BESIDE, FINAL_AT, RESULTS, SHAPED, WIDE, FlowSpec, Result, is_version
from headrace.views.postgres.connections import quoted
from headrace.views.postgres.keyed import NAME_BYTES_MAX
from headrace.views.postgres.keyed import tables_of as keyed_tables
from headrace.views.postgres.values import declared
from headrace.views.values import arrow_type

__all__ = ["ViewTables", "check_flow", "tables_of"]


def check_flow(spec: FlowSpec) -> None:
    """Refuses what Postgres cannot hold, or this store does not do."""
    view = spec.view
    if view is None or not view.public:
        return
    if view.fill is not None:
        why = "views in Postgres have no fill= yet: leave it out, and fill gaps in your query with generate_series()"
        raise InvalidArgument("fill", spec.name, why)
    if spec.name.lower().startswith("pg_"):
        raise InvalidName("view", spec.name, "Postgres finds its own tables under names that begin with 'pg_'")
    if len(f"{spec.name}_partials".encode()) > NAME_BYTES_MAX:
        raise InvalidName("view", spec.name, "is too long for Postgres, whose names have at most 63 bytes")
    for column in view.columns:
        if len(column.name.encode()) > NAME_BYTES_MAX:
            why = f"Postgres' names have at most {NAME_BYTES_MAX} bytes: choose a shorter one"
            raise InvalidArgument("column", column.name, why)


@lru_cache(maxsize=256)
def tables_of(spec: FlowSpec) -> ViewTables:
    return ViewTables(spec)


class ViewTables:
    """Of a flow with a view."""

    def __init__(self, flow: FlowSpec) -> None:
        assert flow.view is not None
        self.flow, self.spec = flow.name, flow.view
        tables = keyed_tables(flow)
        self.rows, self.shaped = tables[RESULTS], tables.get(SHAPED)
        self.beside = {f"{self.spec.name}_{shown}": tables[name] for name, shown in BESIDE.items() if name in tables}
        """Tables that readers see beside the view, by name."""
        together = " AND ".join(
            f"(f.{quoted(name)} = s.{quoted(name)} OR (f.{quoted(name)} IS NULL AND s.{quoted(name)} IS NULL))"
            for name in self.rows.key
        )
        joined = "" if self.shaped is None else f" JOIN {self.shaped.name} f ON {together or 'true'}"
        self.seen_from = f"{self.rows.name} s{joined}"
        """Where `seen` is selected from."""

    @property
    def counted(self) -> str:
        """The table that has a row for each that readers see."""
        return (self.shaped or self.rows).name

    @property
    def is_shown(self) -> bool:
        return self.spec.public and not is_version(self.flow)

    def show(self) -> dict[str, str]:
        """The SQL views: name -> what they select."""
        if not self.is_shown:
            return {}
        views = {self.spec.name: f"SELECT {self.seen()} FROM {self.seen_from}"}
        for beside, table in self.beside.items():
            columns = [quoted(each) for each in table.types if not each.startswith("/")]
            views[beside] = f"SELECT {', '.join(columns)} FROM {table.name}"
        return views

    def stored(self) -> str:
        """What readers see, as a table."""
        return f"(SELECT {self.seen()} FROM {self.seen_from})"

    def seen(self) -> str:
        """The columns readers see, for a SELECT from `seen_from`."""
        places = [f"s.{quoted(column.name)} AS {quoted(column.name)}" for column in self.spec.places]
        if self.spec.shaped is None:
            values = [f"{self._value(result)} AS {quoted(result.name)}" for result in self.spec.results]
        else:
            values = [f"f.{quoted(column.name)} AS {quoted(column.name)}" for column in self.spec.shaped]
        tail = [f"{self._status()} AS _status", "s._corrections AS _corrections", "s._updated_at AS _updated_at"]
        return ", ".join([*places, *values, *tail])

    def _value(self, result: Result) -> str:
        slots = [f"s.{quoted(slot)}" for slot in result.slots]
        if len(slots) == 1:
            seen, has = arrow_type(WIDE if result.widened else result.type), self.rows.types[result.slots[0]]
            value = slots[0] if seen == has else f"{slots[0]}::{declared(seen)}"
        else:
            value = _ratio(*slots)
        return f"CASE s.{quoted(result.unless)} WHEN 0 THEN NULL ELSE {value} END" if result.unless else value

    def _status(self) -> str:
        """Final or open: without windows nothing is ever final."""
        if not self.spec.window_us and not self.spec.final_by_row:
            return "'open'::text"
        ends = f"s.{quoted(FINAL_AT)}" if self.spec.final_by_row else "s.window_end"
        closed = f"(SELECT closed FROM _flows WHERE flow = '{self.flow}')"  # a name has no quotes: names.py
        return f"CASE WHEN {ends} <= {closed} THEN 'final' ELSE 'open' END"


def _ratio(above: str, below: str) -> str:
    """Postgres takes a quotient that is too small for a double for an error, where others round it to 0."""
    above = f"{above}::double precision"
    small = f"abs({above}) < 1e-290 AND {above} <> 0"
    return f"CASE WHEN {small} THEN 0 ELSE {above} / nullif({below}, 0) END"
