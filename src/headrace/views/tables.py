"""A view's tables in SQLite: their columns, and the SQL that merges rows into them. Text only, made once per flow.

The state is one plain table, a row per window and group, with the slots of the aggregates as columns. What readers see
is an SQL view over it under the view's own name; whether a window is final is computed there from the flow's frontier,
so that closing a million windows changes one row. Values of `count_distinct` lie in a table of their own."""

from __future__ import annotations

from collections.abc import Callable

from headrace.views.contract import WINDOW, SlotColumn, ViewSpec
from headrace.views.values import arrow_type, declared

__all__ = ["ViewTables", "quoted"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class ViewTables:
    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self.state = quoted(f"{spec.name}__state")
        self.key = [quoted(name) for name in spec.key]
        self.distinct = [slot for slot in spec.slots if slot.rule == "distinct"]
        window = [f"{quoted(name)} UTC_TIMESTAMP" for name in WINDOW] if spec.window_us else []
        groups = [f"{quoted(each.name)} {declared(arrow_type(each.type), column=each.name)}" for each in spec.groups]
        slots = [f"{quoted(slot.name)} {_slot_type(slot)}" for slot in spec.slots]
        self._columns = [*window, *groups, *slots, "_corrections INTEGER NOT NULL", "_updated_at UTC_TIMESTAMP"]
        self.names = [*(WINDOW if spec.window_us else ()), *(group.name for group in spec.groups)]
        self.names += [*(slot.name for slot in spec.slots), "_corrections", "_updated_at"]

    # -- making them -------------------------------------------------------------------------------

    def create(self) -> list[str]:
        unique = f", UNIQUE ({', '.join(self.key)})" if self.key else ""
        made = [f"CREATE TABLE {self.state} ({', '.join(self._columns)}{unique})"]
        for slot in self.distinct:
            value = declared(arrow_type(slot.type), column=slot.name)
            made.append(
                f"CREATE TABLE {self.values_of(slot)} (row INTEGER NOT NULL, value {value} NOT NULL, "
                f"PRIMARY KEY (row, value)) WITHOUT ROWID"
            )
        if self.spec.public:
            made.append(f"CREATE VIEW {quoted(self.spec.name)} AS SELECT {self.shown()} FROM {self.state}")
        return made

    def drop(self) -> list[str]:
        tables = [self.state, *(self.values_of(slot) for slot in self.distinct)]
        return [
            f"DROP VIEW IF EXISTS {quoted(self.spec.name)}",
            *(f"DROP TABLE IF EXISTS {table}" for table in tables),
        ]

    def values_of(self, slot: SlotColumn) -> str:
        return quoted(f"{self.spec.name}__{slot.name}")

    def shown(self, of: str = "", *, status: bool = True) -> str:
        """What readers see of a row, as the columns of a SELECT; `of` is the table's alias."""
        spec = self.spec
        plain = [*(WINDOW if spec.window_us else ()), *(group.name for group in spec.groups)]
        out = [f"{of}{quoted(name)}" for name in plain]
        for result in spec.results:
            slots = [f"{of}{quoted(slot)}" for slot in result.slots]
            out.append(slots[0] if len(slots) == 1 else f"{_ratio(*slots)} AS {quoted(result.name)}")
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

    def upsert(self) -> str:
        """Inserts a row, or merges it into the one of its key. For keys without a null: SQLite holds nulls apart."""
        names = [quoted(name) for name in self.names]
        sets = ", ".join(
            f"{quoted(name)} = {rule}" for name, rule in self._merges(lambda name: f"excluded.{quoted(name)}").items()
        )
        return (
            f"INSERT INTO {self.state} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
            f"ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {sets}"
        )

    def insert(self) -> str:
        names = [quoted(name) for name in self.names]
        return f"INSERT INTO {self.state} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"

    def update(self) -> str:
        """Merges a row, bound in the order of `names`, into the one of its key, nulls and all."""
        at = {name: f"?{number}" for number, name in enumerate(self.names, start=1)}
        sets = ", ".join(f"{quoted(name)} = {rule}" for name, rule in self._merges(at.__getitem__).items())
        where = " AND ".join(f"{quoted(name)} IS {at[name]}" for name in self.spec.key) or "1"
        return f"UPDATE {self.state} SET {sets} WHERE {where}"

    def _merges(self, incoming: Callable[[str], str]) -> dict[str, str]:
        """Column -> the SQL of its merged value; `incoming` writes the new value of a column."""
        out = {slot.name: _merge(slot, quoted(slot.name), incoming) for slot in self.spec.slots}
        out["_corrections"] = f"_corrections + {incoming('_corrections')}"
        arrived = incoming("_updated_at")
        out["_updated_at"] = f"CASE WHEN _updated_at >= {arrived} THEN _updated_at ELSE {arrived} END"
        return out


def _ratio(above: str, below: str) -> str:
    """NaN is a text, which SQLite would divide as if it were zero."""
    return f"CASE {above} WHEN 'NaN' THEN 'NaN' ELSE CAST({above} AS REAL) / nullif({below}, 0) END"


def _slot_type(slot: SlotColumn) -> str:
    return "INTEGER" if slot.rule == "distinct" else declared(arrow_type(slot.type), column=slot.name)


def _merge(slot: SlotColumn, old: str, incoming: Callable[[str], str]) -> str:
    new = incoming(slot.name)
    arrow = arrow_type(slot.type)
    kind = declared(arrow).split("(")[0]
    match slot.rule:
        case "add" | "distinct":
            total = {
                "DECIMAL_TEXT": f"hr_add_decimal({old}, {new}, '{slot.type}')",
                "DOUBLE": f"CASE WHEN 'NaN' IN ({old}, {new}) THEN 'NaN' ELSE coalesce({old} + {new}, 'NaN') END",
            }.get(
                kind, f"CASE typeof({old} + {new}) WHEN 'integer' THEN {old} + {new} ELSE hr_no_fit({old}, {new}) END"
            )
            return f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {total} END"
        case "least" | "greatest":
            sign = "<" if slot.rule == "least" else ">"
            better = f"hr_compare_decimals({new}, {old}) {sign} 0" if kind == "DECIMAL_TEXT" else f"{new} {sign} {old}"
            return f"CASE WHEN {old} IS NULL OR {better} THEN {new} ELSE {old} END"
        case "earliest" | "latest":
            sign = "<" if slot.rule == "earliest" else ">"
            parts = [f"{slot.of}__{part}" for part in ("at", "partition", "offset")]
            before = ", ".join(quoted(part) for part in parts)
            after = ", ".join(incoming(part) for part in parts)
            first = quoted(parts[0])
            return (
                f"CASE WHEN {incoming(parts[0])} IS NOT NULL AND ({first} IS NULL OR ({after}) {sign} ({before})) "
                f"THEN {new} ELSE {old} END"
            )
        case "exact":
            return f"hr_add_exact({old}, {new})"
        case "rounded":
            return f"hr_round_exact(hr_add_exact({quoted(slot.of)}, {incoming(slot.of)}))"
