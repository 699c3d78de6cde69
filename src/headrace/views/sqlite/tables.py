"""A view's tables in SQLite: their columns, and the SQL that merges rows into them. Text only, made once per flow.

The state is one plain table, a row per window and group, with the slots of the aggregates as columns. What readers see
is an SQL view over it under the view's own name; whether a window is final is computed there from the flow's frontier,
so that closing a million windows changes one row. Values of `count_distinct` and `top_k`, and others that may go again,
lie in tables of their own, as do the rows that a transform made of the results: readers see these, joined with the
state's row for what is common.

A group's name is a user's column and may be anything, so it is quoted. Names with a '/' are ours: no view has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.aggregates import ORDER, ORDER_BY
from headrace.errors import InvalidArgument, InvalidName
from headrace.names import check_name
from headrace.views.contract import (
    COUNTS_FROM,
    ON_TIME_FROM,
    ROWS,
    TAIL,
    VERSIONS,
    WINDOW,
    Column,
    Fill,
    SlotColumn,
    ViewSpec,
)
from headrace.views.reading import quoted
from headrace.views.sqlite.filling import made_rows
from headrace.views.sqlite.values import BY_VALUE, WHOLE, declared
from headrace.views.values import arrow_type

__all__ = ["ViewTables", "tables_of", "value_type"]


ROW = "/row"
"""The number of a row. Not SQLite's own name for it: a user's column may be called rowid."""
NUMBER = "/number"
"""Of a row that a transform made, among those of its result."""


INTEGER = "'integer'"
"""As SQLite's typeof() says it."""

"""`views/next`: a version of the view `views` beside it; see `versions`."""


@lru_cache(maxsize=256)
def tables_of(spec: ViewSpec) -> ViewTables:
    """Made once: a small commit is quicker than writing its statements."""
    return ViewTables(spec)


COLUMNS_MAX = 1_990
"""SQLite's own limit is 2,000."""


class ViewTables:
    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self.state = quoted(f"{spec.name}/state")
        self.row = quoted(ROW)
        self.key = [quoted(name) for name in spec.key]
        self.distinct = [slot for slot in spec.slots if slot.rule == "distinct"]
        self.counted = [slot for slot in spec.slots if slot.rule == "counted"]
        self.kept = [slot for slot in spec.slots if slot.rule == "kept"]
        self.merged = [slot for slot in spec.slots if slot.rule == "merged"]
        self.whole = {slot.name for slot in spec.slots if slot.rule == "whole"}
        window = [f"{quoted(name)} UTC_TIMESTAMP" for name in WINDOW] if spec.window_us else []
        groups = [f"{quoted(each.name)} {declared(arrow_type(each.type), column=each.name)}" for each in spec.groups]
        finished = [slot.of for slot in spec.slots if slot.rule == "finished"]
        slots = [f"{quoted(slot.name)} {_slot_type(slot)}" for slot in spec.slots if slot.name not in finished]
        tail = ["_corrections INTEGER NOT NULL", "_updated_at UTC_TIMESTAMP"]
        # Large, and of no interest to readers: behind what they read, so that SQLite need not read past it.
        kept = [f"{quoted(slot.name)} {_slot_type(slot)}" for slot in spec.slots if slot.name in finished]
        self._columns = [f"{self.row} INTEGER PRIMARY KEY", *window, *groups, *slots, *tail, *kept]
        self.names = [*(WINDOW if spec.window_us else ()), *(group.name for group in spec.groups)]
        self.names += [*(slot.name for slot in spec.slots), "_corrections", "_updated_at"]
        self.finished = {slot.of: slot.name for slot in spec.slots if slot.rule == "finished"}
        begins: dict[str, Any] = {"distinct": 0, "counted": "[]", "kept": None}
        self.begins = {slot.name: begins[slot.rule] for slot in self.with_values}
        """What is made of values, after the rest of a row is merged; and what it is until then."""
        self.begins |= {self.finished[slot.name]: None for slot in self.kept if slot.name in self.finished}
        self._upserts: dict[int, str] = {}
        self.parts = None if spec.parts is None else ViewTables(spec.parts)
        self.lives = None if spec.lives is None else ViewTables(spec.lives)
        self.shaped = None if spec.shaped is None else quoted(f"{spec.name}/shaped")
        self.joined = "" if self.shaped is None else f" JOIN {self.shaped} f ON f.{self.row} = s.{self.row}"
        """Behind the state's table as `s`: the rows that a transform made of each result, as `f`."""
        self.shaped_names = [ROW, NUMBER, *(column.name for column in spec.shaped or ())]
        self.seen_from = f"{self.state} s{self.joined}"
        """Where `seen` is selected from."""

    @property
    def stored(self) -> str:
        """What readers see, as a table, without rows that fill gaps."""
        return f"(SELECT {self.seen()} FROM {self.seen_from})"

    # -- making them -------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuses names that SQLite could not hold apart: it does not tell 'User' from 'user'."""
        spec = self.spec
        base, _, version = spec.name.partition("/")
        check_name(base if version in VERSIONS else spec.name, argument="view", system=True)
        if spec.public and spec.name.lower().startswith(("_", "sqlite_")):
            why = "names that begin with '_' or 'sqlite_' are the store's own tables: choose another"
            raise InvalidName("view", spec.name, why)
        if len(self.names) > COLUMNS_MAX:
            why = f"its state needs {len(self.names)} columns, and {COLUMNS_MAX} fit into a table: make several views"
            raise InvalidArgument("agg", spec.name, why)
        own = (ROW, NUMBER, *TAIL, *(WINDOW if spec.window_us else ()), *(() if spec.public else ("op", "_progress")))
        own += (COUNTS_FROM, ON_TIME_FROM) if spec.windows == "sliding" else ()
        results = {result.name for result in spec.results if result.name not in {slot.name for slot in spec.slots}}
        slots = [slot.name for slot in spec.slots if slot.name != ROWS]
        users = [*(("group_by", group.name) for group in spec.groups), *(("agg", name) for name in slots)]
        self._refuse_alike(own, [*users, *(("agg", name) for name in sorted(results))])
        groups = [("group_by", group.name) for group in spec.groups]
        self._refuse_alike(own, [*groups, *(("transform", column.name) for column in spec.shaped or ())])

    def _refuse_alike(self, own: Sequence[str], users: Sequence[tuple[str, str]]) -> None:
        taken = {name.lower(): "headrace's own" for name in own}
        for argument, name in users:
            other = taken.setdefault(name.lower(), f"{argument} {name!r}")
            if other != f"{argument} {name!r}" or "\0" in name:
                view = self.spec.name
                why = f"view {view!r} cannot have a column of this name: it is {other}. Rename it in a transform"
                raise InvalidArgument(argument, name, why)

    def create(self) -> list[str]:
        unique = f", UNIQUE ({', '.join(map(quoted, self.spec.order))})" if self.key else ""
        if self.spec.window_us and self.spec.windows != "fixed":
            unique += (
                f", UNIQUE (window_end, {self.row})"  # for its index, which follows the table when that is renamed
            )
        made = [f"CREATE TABLE {self.state} ({', '.join(self._columns)}{unique})"]
        for slot in self.with_values:
            value = declared(value_type(slot), column=slot.name)
            count = "" if slot.rule == "distinct" else ", count INTEGER NOT NULL"
            made.append(
                f"CREATE TABLE {self.values_of(slot)} (row INTEGER NOT NULL, value {value} NOT NULL{count}, "
                f"PRIMARY KEY (row, value)) WITHOUT ROWID"
            )
        if self.shaped is not None:
            kinds = [(column.name, declared(arrow_type(column.type), column=column.name)) for column in self._made]
            columns = "".join(f", {quoted(name)} {kind}" for name, kind in kinds)
            made.append(
                f"CREATE TABLE {self.shaped} ({self.row} INTEGER NOT NULL, {quoted(NUMBER)} INTEGER NOT NULL{columns}, "
                f"PRIMARY KEY ({self.row}, {quoted(NUMBER)})) WITHOUT ROWID"
            )
        beside = [
            statement for tables in (self.parts, self.lives) if tables is not None for statement in tables.create()
        ]
        return [*made, *beside, *self.show()]

    @property
    def _made(self) -> tuple[Column, ...]:
        return self.spec.shaped or ()

    def show(self) -> list[str]:
        """Makes what readers see; again when the order of the results has changed."""
        if not self.spec.public:
            return []
        name = quoted(self.spec.name)
        return [f"DROP VIEW IF EXISTS {name}", f"CREATE VIEW {name} AS {self.shown()}"]

    def shown(self, only: Sequence[str] = ()) -> str:
        """A SELECT of what readers see; `only`: conditions on groups, of which gaps need be filled."""
        rows, fill = f"SELECT {self.seen()} FROM {self.seen_from}", self.spec.fill
        if fill is None:
            return rows
        # Stored rows on both sides: there SQLite looks for the columns' types.
        return f"{rows} WHERE 0 UNION ALL SELECT * FROM ({self._made_rows(fill, only)}) UNION ALL {rows}"

    def _made_rows(self, fill: Fill, only: Sequence[str]) -> str:
        """The rows of windows that have none."""
        results = self._results()
        types = {result.name: result.type for result in self.spec.results}
        if fill.gaps != "previous":
            results = {name: _zero(types[name]) if name in fill.zeros else "NULL" for name in results}
        values = {quoted(name): sql for name, sql in results.items()}
        groups = [quoted(group.name) for group in self.spec.groups]
        return made_rows(self.spec.name, fill, self.state, self.row, groups, values, self.closed, only)

    def drop(self) -> list[str]:
        tables = [self.state, *(self.values_of(slot) for slot in self.with_values)]
        tables += [] if self.shaped is None else [self.shaped]
        views = [f"DROP VIEW IF EXISTS {quoted(self.spec.name)}"] if self.spec.public else []
        beside = [statement for each in (self.parts, self.lives) if each is not None for statement in each.drop()]
        return [*views, *(f"DROP TABLE IF EXISTS {table}" for table in tables), *beside]

    def numbered(self) -> list[tuple[str, str]]:
        """All tables with something of a row, and the column with its number; the row itself last."""
        beside = [(self.values_of(slot), "row") for slot in self.with_values]
        return [*beside, *([] if self.shaped is None else [(self.shaped, self.row)]), (self.state, self.row)]

    @property
    def ending(self) -> tuple[str, int]:
        """By which column rows are found that end at some time, and how long after it they end: the start, where that
        tells, or the end, which then has an index."""
        assert self.spec.window_us is not None
        return ("window_start", self.spec.window_us[0]) if self.spec.windows == "fixed" else ("window_end", 0)

    @property
    def with_values(self) -> list[SlotColumn]:
        """The slots whose values lie in a table of their own."""
        return [*self.distinct, *self.counted, *self.kept]

    def values_of(self, slot: SlotColumn) -> str:
        return quoted(f"{self.spec.name}/values/{slot.name}")

    def results(self) -> str:
        """The columns of results, for a SELECT from the state's table as `s`; a sum that does not fit is null."""
        sums = {result.name for result in self.spec.whole_sums}
        results = [
            f"{f'CASE typeof({sql}) WHEN {INTEGER} THEN {sql} END' if name in sums else sql} AS {quoted(name)}"
            for name, sql in self._results().items()
        ]
        return ", ".join([*self._places(), *results])

    def whole_sums(self) -> dict[str, str]:
        """Result -> the SQL of a sum of whole numbers, of any size."""
        results = self._results()
        return {result.name: results[result.name] for result in self.spec.whole_sums}

    def _places(self) -> list[str]:
        return [f"s.{quoted(column.name)} AS {quoted(column.name)}" for column in self.spec.places]

    def _results(self) -> dict[str, str]:
        types = {slot.name: slot.type for slot in self.spec.slots}
        out = {}
        for result in self.spec.results:
            slots = [f"s.{quoted(slot)}" for slot in result.slots]
            value = slots[0] if len(slots) == 1 else _ratio(*slots, type_above=types[result.slots[0]])
            value = f"CASE s.{quoted(result.unless)} WHEN 0 THEN NULL ELSE {value} END" if result.unless else value
            out[result.name] = value
        return out

    def made(self) -> list[str]:
        """The columns of the rows that a transform made of a result, selected as `seen` is."""
        return [*self._places(), *(f"f.{quoted(column.name)} AS {quoted(column.name)}" for column in self._made)]

    def seen(self) -> str:
        """The columns readers see, for a SELECT from the state's table as `s` and the shaped one, if any, as `f`."""
        results = [f"{sql} AS {quoted(name)}" for name, sql in self._results().items()]
        values = [*self._places(), *results] if self.shaped is None else self.made()
        tail = [f"{self.status()} AS _status", "s._corrections AS _corrections", "s._updated_at AS _updated_at"]
        return ", ".join([*values, *tail])

    def status(self) -> str:
        """Final or open: without windows nothing is ever final."""
        if not self.spec.window_us:
            return "'open'"
        return f"CASE WHEN s.window_end <= {self.closed} THEN 'final' ELSE 'open' END"

    @property
    def closed(self) -> str:
        """Up to when windows are closed."""
        return f"(SELECT closed FROM _flows WHERE flow = '{self.spec.name}')"  # a name has no quotes: names.py

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

    def insert_shaped(self, count: int = 1) -> str:
        row = f"({', '.join('?' * (2 + len(self._made)))})"
        return f"INSERT INTO {self.shaped} VALUES {', '.join([row] * count)}"

    def _merges(self, incoming: Callable[[str], str]) -> dict[str, str]:
        """Column -> the SQL of its merged value; `incoming` writes the new value of a column."""
        slots = [slot for slot in self.spec.slots if slot.name not in self.begins]
        out = {slot.name: _merge(slot, quoted(slot.name), incoming) for slot in slots}
        if self.spec.windows == "session":
            out["window_end"] = _better("window_end", incoming("window_end"), ">")
        out["_corrections"] = f"_corrections + {incoming('_corrections')}"
        out["_updated_at"] = _better("_updated_at", incoming("_updated_at"), ">")
        return out


def _zero(ddl: str) -> str:
    return {"DOUBLE": "0.0", "DECIMAL_TEXT": "'0'"}.get(_kind(ddl), "0")


def _ratio(above: str, below: str, *, type_above: str) -> str:
    """NaN is a text, which SQLite would divide as if it were zero."""
    ratio = f"CAST({above} AS REAL) / nullif({below}, 0)"
    return f"CASE {above} WHEN 'NaN' THEN 'NaN' ELSE {ratio} END" if _kind(type_above) == "DOUBLE" else ratio


def value_type(slot: SlotColumn) -> pa.DataType:
    """Of the values in a slot's own table."""
    if slot.rule == "kept":
        return arrow_type(slot.of)
    arrow = arrow_type(slot.type)
    return arrow if slot.rule == "distinct" else arrow.value_type.field("value").type


def _kind(ddl: str) -> str:
    return declared(arrow_type(ddl)).split("(")[0]


def _slot_type(slot: SlotColumn) -> str:
    if slot.rule == "whole":
        return f"{WHOLE} COLLATE {BY_VALUE}"
    return "INTEGER" if slot.rule == "distinct" else declared(arrow_type(slot.type), column=slot.name)


def _better(old: str, new: str, sign: str) -> str:
    return f"CASE WHEN {old} IS NULL OR {new} {sign} {old} THEN {new} ELSE {old} END"


def _added(old: str, new: str, total: str) -> str:
    return f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {total} END"


def _merge(slot: SlotColumn, old: str, incoming: Callable[[str], str]) -> str:
    new = incoming(slot.name)
    match slot.rule:
        case "add":
            total = {
                "DECIMAL_TEXT": f"hr_add_decimal({old}, {new}, '{slot.type}')",
                "DOUBLE": f"CASE WHEN 'NaN' IN ({old}, {new}) THEN 'NaN' ELSE coalesce({old} + {new}, 'NaN') END",
            }.get(_kind(slot.type), f"{old} + {new}")
            return _added(old, new, total)
        case "whole":
            name = slot.name.replace("'", "''")
            wide = f"hr_add_whole({old}, {new}, '{name}')"
            return _added(old, new, f"CASE typeof({old} + {new}) WHEN {INTEGER} THEN {old} + {new} ELSE {wide} END")
        case "least" | "greatest":
            return _better(old, new, "<" if slot.rule == "least" else ">")
        case "earliest" | "latest" | "least_by" | "greatest_by":
            # Among equals the value decides: two topics have records of one partition number and offset.
            order = ORDER if slot.rule in ("earliest", "latest") else ORDER_BY
            parts = [*(f"{slot.of}__{part}" for part in order), slot.of]
            before, after = ", ".join(quoted(part) for part in parts), ", ".join(incoming(part) for part in parts)
            sign = "<" if slot.rule in ("earliest", "least_by") else ">"
            return (
                f"CASE WHEN {incoming(parts[0])} IS NOT NULL AND "
                f"({quoted(parts[0])} IS NULL OR ({after}) {sign} ({before})) THEN {new} ELSE {old} END"
            )
        case "exact":
            return f"hr_add_exact({old}, {new})"
        case "rounded":
            return f"hr_round_exact(hr_add_exact({quoted(slot.of)}, {incoming(slot.of)}))"
        case "merged" | "finished":
            return new  # merging has asked the functions
        case "distinct" | "counted" | "kept":
            raise AssertionError("counted by merging, value by value")
