"""A view's tables in SQLite: their columns, and the SQL that merges rows into them. Text only, made once per flow.

The state is one plain table, a row per window and group, with the slots of the aggregates as columns. What readers see
is an SQL view over it under the view's own name; whether a window is final is computed there from the flow's frontier,
so that closing a million windows changes one row. Values of `count_distinct` lie in a table of their own.

A group's name is a user's column and may be anything, so it is quoted. Names with a '/' are ours: no view has one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from headrace.aggregates import ORDER
from headrace.errors import InvalidArgument, InvalidName
from headrace.names import check_name
from headrace.views.contract import TAIL, WINDOW, SlotColumn, ViewSpec
from headrace.views.values import arrow_type, declared

__all__ = ["ViewTables", "quoted", "tables_of"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


ROW = "/row"
"""The number of a row. Not SQLite's own name for it: a user's column may be called rowid."""


@lru_cache(maxsize=256)
def tables_of(spec: ViewSpec) -> ViewTables:
    """Made once: a small commit is quicker than writing its statements."""
    return ViewTables(spec)


class ViewTables:
    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self.state = quoted(f"{spec.name}/state")
        self.row = quoted(ROW)
        self.key = [quoted(name) for name in spec.key]
        self.distinct = [slot for slot in spec.slots if slot.rule == "distinct"]
        window = [f"{quoted(name)} UTC_TIMESTAMP" for name in WINDOW] if spec.window_us else []
        groups = [f"{quoted(each.name)} {declared(arrow_type(each.type), column=each.name)}" for each in spec.groups]
        slots = [f"{quoted(slot.name)} {_slot_type(slot)}" for slot in spec.slots]
        tail = ["_corrections INTEGER NOT NULL", "_updated_at UTC_TIMESTAMP"]
        self._columns = [f"{self.row} INTEGER PRIMARY KEY", *window, *groups, *slots, *tail]
        self.names = [*(WINDOW if spec.window_us else ()), *(group.name for group in spec.groups)]
        self.names += [*(slot.name for slot in spec.slots), "_corrections", "_updated_at"]
        self._upserts: dict[int, str] = {}

    # -- making them -------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuses names that SQLite could not hold apart: it does not tell 'User' from 'user'."""
        spec = self.spec
        check_name(spec.name, argument="view", system=True)
        if spec.public and spec.name.lower().startswith(("_", "sqlite_")):
            why = "names that begin with '_' or 'sqlite_' are the store's own tables: choose another"
            raise InvalidName("view", spec.name, why)
        if spec.keep_us is not None and spec.window_us is None:
            raise InvalidArgument(
                "keep", spec.name, "without a window no row ever ends: there is nothing to count from"
            )
        own = (ROW, *TAIL, *(WINDOW if spec.window_us else ()), *(() if spec.public else ("op", "_progress")))
        taken = {name.lower(): "headrace's own" for name in own}
        results = {result.name for result in spec.results if result.name not in {slot.name for slot in spec.slots}}
        users = [*(("group_by", group.name) for group in spec.groups), *(("agg", slot.name) for slot in spec.slots)]
        for argument, name in [*users, *(("agg", name) for name in sorted(results))]:
            other = taken.setdefault(name.lower(), f"{argument} {name!r}")
            if other != f"{argument} {name!r}" or "\0" in name:
                why = f"view {spec.name!r} cannot have a column of this name: it is {other}. Rename it in a transform"
                raise InvalidArgument(argument, name, why)

    def create(self) -> list[str]:
        unique = f", UNIQUE ({', '.join(self.key)})" if self.key else ""
        made = [f"CREATE TABLE {self.state} ({', '.join(self._columns)}{unique})"]
        for slot in self.distinct:
            value = declared(arrow_type(slot.type), column=slot.name)
            made.append(
                f"CREATE TABLE {self.values_of(slot)} (row INTEGER NOT NULL, value {value} NOT NULL, "
                f"PRIMARY KEY (row, value)) WITHOUT ROWID"
            )
        return [*made, *self.show()]

    def show(self) -> list[str]:
        """Makes what readers see; again when the order of the results has changed."""
        if not self.spec.public:
            return []
        name = quoted(self.spec.name)
        return [f"DROP VIEW IF EXISTS {name}", f"CREATE VIEW {name} AS SELECT {self.shown()} FROM {self.state}"]

    def drop(self) -> list[str]:
        tables = [self.state, *(self.values_of(slot) for slot in self.distinct)]
        views = [f"DROP VIEW IF EXISTS {quoted(self.spec.name)}"] if self.spec.public else []
        return [*views, *(f"DROP TABLE IF EXISTS {table}" for table in tables)]

    def values_of(self, slot: SlotColumn) -> str:
        return quoted(f"{self.spec.name}/values/{slot.name}")

    def shown(self, of: str = "", *, status: bool = True) -> str:
        """What readers see of a row, as the columns of a SELECT; `of` is the table's alias."""
        spec = self.spec
        plain = [*(WINDOW if spec.window_us else ()), *(group.name for group in spec.groups)]
        out = [f"{of}{quoted(name)}" for name in plain]
        types = {slot.name: slot.type for slot in spec.slots}
        for result in spec.results:
            slots = [f"{of}{quoted(slot)}" for slot in result.slots]
            if len(slots) == 1:
                out.append(slots[0])
            else:
                out.append(f"{_ratio(*slots, type_above=types[result.slots[0]])} AS {quoted(result.name)}")
        if not status:
            return ", ".join(out)
        return ", ".join([*out, f"{self.status()} AS _status", "_corrections", "_updated_at"])

    def status(self) -> str:
        """Final or open: without windows nothing is ever final."""
        if not self.spec.window_us:
            return "'open'"
        closed = f"(SELECT closed FROM _flows WHERE flow = '{self.spec.name}')"  # a name has no quotes: names.py
        return f"CASE WHEN window_end <= {closed} THEN 'final' ELSE 'open' END"

    # -- merging -----------------------------------------------------------------------------------

    def upsert(self, count: int = 1) -> str:
        """Inserts rows, or merges each into the one of its key. For keys without a null: SQLite holds nulls apart."""
        if count not in self._upserts:
            merges = self._merges(lambda name: f"excluded.{quoted(name)}")
            sets = ", ".join(f"{quoted(name)} = {rule}" for name, rule in merges.items())
            conflict = f"ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {sets}"
            self._upserts[count] = f"{self.insert(count)} {conflict}"
        return self._upserts[count]

    def insert(self, count: int = 1) -> str:
        row = f"({', '.join('?' * len(self.names))})"
        names = ", ".join(quoted(name) for name in self.names)
        return f"INSERT INTO {self.state} ({names}) VALUES {', '.join([row] * count)}"

    def update(self) -> str:
        """Merges a row, bound in the order of `names`, into the one of its key, nulls and all."""
        at = {name: f"?{number}" for number, name in enumerate(self.names, start=1)}
        sets = ", ".join(f"{quoted(name)} = {rule}" for name, rule in self._merges(at.__getitem__).items())
        where = " AND ".join(f"{quoted(name)} IS {at[name]}" for name in self.spec.key) or "1"
        return f"UPDATE {self.state} SET {sets} WHERE {where}"

    def _merges(self, incoming: Callable[[str], str]) -> dict[str, str]:
        """Column -> the SQL of its merged value; `incoming` writes the new value of a column."""
        slots = [slot for slot in self.spec.slots if slot.rule != "distinct"]
        out = {slot.name: _merge(slot, quoted(slot.name), incoming) for slot in slots}
        out["_corrections"] = f"_corrections + {incoming('_corrections')}"
        out["_updated_at"] = _better("_updated_at", incoming("_updated_at"), ">")
        return out


def _ratio(above: str, below: str, *, type_above: str) -> str:
    """NaN is a text, which SQLite would divide as if it were zero."""
    ratio = f"CAST({above} AS REAL) / nullif({below}, 0)"
    return f"CASE {above} WHEN 'NaN' THEN 'NaN' ELSE {ratio} END" if _kind(type_above) == "DOUBLE" else ratio


def _kind(ddl: str) -> str:
    return declared(arrow_type(ddl)).split("(")[0]


def _slot_type(slot: SlotColumn) -> str:
    return "INTEGER" if slot.rule == "distinct" else declared(arrow_type(slot.type), column=slot.name)


def _better(old: str, new: str, sign: str) -> str:
    return f"CASE WHEN {old} IS NULL OR {new} {sign} {old} THEN {new} ELSE {old} END"


def _merge(slot: SlotColumn, old: str, incoming: Callable[[str], str]) -> str:
    new = incoming(slot.name)
    match slot.rule:
        case "add":
            total = {
                "DECIMAL_TEXT": f"hr_add_decimal({old}, {new}, '{slot.type}')",
                "DOUBLE": f"CASE WHEN 'NaN' IN ({old}, {new}) THEN 'NaN' ELSE coalesce({old} + {new}, 'NaN') END",
            }.get(
                _kind(slot.type),
                f"CASE typeof({old} + {new}) WHEN 'integer' THEN {old} + {new} ELSE hr_no_fit({old}, {new}) END",
            )
            return f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {total} END"
        case "least" | "greatest":
            return _better(old, new, "<" if slot.rule == "least" else ">")
        case "earliest" | "latest":
            # Among equals the value decides: two topics have records of one partition number and offset.
            parts = [*(f"{slot.of}__{part}" for part in ORDER), slot.of]
            before, after = ", ".join(quoted(part) for part in parts), ", ".join(incoming(part) for part in parts)
            sign = "<" if slot.rule == "earliest" else ">"
            return (
                f"CASE WHEN {incoming(parts[0])} IS NOT NULL AND "
                f"({quoted(parts[0])} IS NULL OR ({after}) {sign} ({before})) THEN {new} ELSE {old} END"
            )
        case "exact":
            return f"hr_add_exact({old}, {new})"
        case "rounded":
            return f"hr_round_exact(hr_add_exact({quoted(slot.of)}, {incoming(slot.of)}))"
        case "distinct":
            raise AssertionError("counted by merging, value by value")
