"""A table of results: a row for each key, with the slots of aggregates. Owns which tables keep it, and how partial rows
become rows of it. Pure: reads old rows from `State`, says what is to be written.

Values that count by themselves lie in a table of their own beside it, under their row's key: `values/SLOT`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates import Aggregate, Slot
from headrace.aggregates.algebra import ddl
from headrace.aggregates.groups import Groups, dense, json_texts, one_zero, ordered, row_numbers
from headrace.aggregates.kept import Quick
from headrace.aggregates.rules import AddRule, Functions, Merger, added, extreme, mergers
from headrace.aggregates.value_rules import Changed, Counts, Values, value_rules
from headrace.views.contract import Column, SlotColumn
from headrace.views.keyed import State, TableSpec, Writes
from headrace.views.values import INSTANT, arrow_type, cast_to, numbered

__all__ = [
    "Merged",
    "Pieces",
    "ResultRows",
    "aligned",
    "chosen",
    "differ",
    "in_order",
    "joined_writes",
    "keys_of",
    "stacked",
    "together",
]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
CORRECTIONS, UPDATED = Column("_corrections", "bigint"), Column("_updated_at", "timestamp")
VALUE, COUNT = "/value", "/count"


@dataclass
class Pieces:
    """Writes as they are collected: tables, several of one name."""

    puts: dict[str, list[pa.Table]] = field(default_factory=dict)
    deletes: dict[str, list[pa.Table]] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)

    def put(self, table: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self.puts.setdefault(table, []).append(rows)

    def delete(self, table: str, keys: pa.Table) -> None:
        if keys.num_rows:
            self.deletes.setdefault(table, []).append(keys)


def joined_writes(pieces: Pieces, specs: Sequence[TableSpec], state: State) -> Writes:
    """One table for each name. Where keys go and first columns of keys, too, the rows of the latter are looked up."""
    deletes = {}
    for spec in specs:
        some = pieces.deletes.get(spec.name, [])
        if len({each.num_columns for each in some}) > 1:
            whole = [each if each.num_columns == len(spec.key) else state.scan(spec.name, each) for each in some]
            some = [each.select(spec.key_names) for each in whole]
        if some:
            deletes[spec.name] = together(some) if some[0].num_columns else some[0]  # Arrow: of no column no row
    puts = {name: together(some) for name, some in pieces.puts.items()}
    return Writes(puts=puts, deletes=deletes, drops=dict(pieces.drops))


@dataclass(frozen=True)
class Merged:
    """Rows as they become, in the order of their keys. `old`: rows as they were; `number`: which of the rows each of
    those becomes part of."""

    rows: pa.Table
    old: pa.Table
    number: I64


class ResultRows:
    """`key`: as rows lie in the store; `more`: columns besides the slots, such as a window's end."""

    def __init__(
        self,
        table: str,
        flow: str,
        key: Sequence[Column],
        more: Sequence[Column],
        slots: Sequence[SlotColumn],
        aggregates: Mapping[str, Aggregate],
        time: str | None,
    ) -> None:
        self.table, self._flow, self._aggregates, self.time = table, flow, aggregates, time
        self.key, self._more = tuple(key), tuple(more)
        self.slots = tuple(Slot(slot.name, slot.rule, slot.type, slot.of) for slot in slots)
        self.mergers: list[Merger] = mergers(self.slots, self._own)
        self.values: list[Values] = value_rules(self.slots, self._own)
        stored = {rule.slot.name: rule.stored for rule in self.values}
        self.columns = (*self._more, *(Column(s.name, stored.get(s.name, s.type)) for s in self.slots))
        self.columns += (CORRECTIONS, UPDATED)
        self.schema = pa.schema([(each.name, arrow_type(each.type)) for each in (*self.key, *self.columns)])

    def _own(self, name: str) -> Functions:
        return Functions(self._flow, name, self._aggregates.get(name))

    # -- its tables ------------------------------------------------------------------------------------

    @cached_property
    def key_names(self) -> list[str]:
        return [column.name for column in self.key]

    @cached_property
    def spec(self) -> TableSpec:
        return TableSpec(self.table, self.key, self.columns, self.time, self._rules())

    def _rules(self) -> dict[str, AddRule]:
        """What a store can add up by itself: all of it, or nothing."""
        found = {merger.takes[0]: merger.adds for merger in self.mergers if merger.adds is not None}
        if self.values or len(found) < len(self.slots):
            return {}
        greatest: AddRule = "greatest"
        ends = {each.name: greatest for each in (*self._more, UPDATED)}
        return {**ends, **found, CORRECTIONS.name: "add"}

    @cached_property
    def value_specs(self) -> list[TableSpec]:
        time = self.time if self.time in self.key_names else None
        return [
            TableSpec(
                self.values_of(rule),
                (*self.key, Column(VALUE, ddl(rule.value))),
                (Column(COUNT, "bigint"),) if rule.counts else (),
                time,
            )
            for rule in self.values
        ]

    def values_of(self, rule: Values) -> str:
        return f"{'' if self.table == 'rows' else self.table + '/'}values/{rule.slot.name}"

    # -- merging ---------------------------------------------------------------------------------------

    def grouped(self, partials: pa.Table) -> Groups:
        """Which partial rows are of one key, in the order of keys."""
        return Groups(dense(row_numbers([column(partials, name) for name in self.key_names], partials.num_rows)))

    def added(self, partials: pa.Table) -> pa.Table:
        """Partial rows as rows that a store adds to its own."""
        return pa.table([cast_to(column(partials, each.name), each.type) for each in self.schema], schema=self.schema)

    def _rows(self, places: pa.Table, groups: Groups, rows: pa.Table) -> pa.Table:
        """The merged rows, without what is made of values. `places`: has the key and what is not merged; either a row
        for each group, or for each of the rows."""
        columns = {name: column(rows, name) for merger in self.mergers for name in merger.takes}
        one_of = None if places.num_rows == groups.count and places is not rows else pa.array(groups.first)
        made = {
            each.name: column(places, each.name) if one_of is None else column(places, each.name).take(one_of)
            for each in (*self.key, *self._more)
        }
        for merger in self.mergers:
            made |= merger.merged(columns, groups)
        made[CORRECTIONS.name] = added(column(rows, CORRECTIONS.name), groups, pa.int64())
        made[UPDATED.name] = extreme(cast_to(column(rows, UPDATED.name), INSTANT), groups, greatest=True)
        for rule in self.values:
            made.setdefault(rule.slot.name, pa.nulls(groups.count, arrow_type(rule.stored)))
        named = {slot.name for slot in self.slots} - made.keys()
        made |= {name: pa.nulls(groups.count, self.schema.field(name).type) for name in named}
        return pa.table([cast_to(made[each.name], each.type) for each in self.schema], schema=self.schema)

    def merge(
        self,
        partials: pa.Table,
        old: pa.Table,
        number: I64,
        places: pa.Table,
        state: State,
        pieces: Pieces,
        lasting: Flags | None = None,
    ) -> Merged:
        """Partial rows into old ones. `number`: the result of each old row, then of each partial one; `places`: key and
        further columns of the results, in the order of their keys. Values go to `pieces`; those of results that are not
        `lasting` are not kept. An old row whose key is another than its result's is the caller's to delete."""
        groups = Groups(number)
        rows = self._rows(places, groups, stacked(old, partials, self._merged_names))
        if self.values:
            mine = aligned(places, old, self.key_names)  # the old row of each result's own key
            moved = np.setdiff1d(np.arange(old.num_rows), mine)
            for rule in self.values:
                rows = self._with_values(rule, rows, partials, old, number, mine, moved, state, pieces, lasting)
        return Merged(rows, old, number[: old.num_rows])

    @cached_property
    def _merged_names(self) -> list[str]:
        return [name for merger in self.mergers for name in merger.takes] + [CORRECTIONS.name, UPDATED.name]

    def _with_values(
        self,
        rule: Values,
        rows: pa.Table,
        partials: pa.Table,
        old: pa.Table,
        number: I64,
        mine: I64,
        moved: I64,
        state: State,
        pieces: Pieces,
        lasting: Flags | None,
    ) -> pa.Table:
        """The rows with what becomes of a slot's values, which are those of the partial rows, and of old rows that
        become part of another."""
        table, names = self.values_of(rule), self.key_names
        given = rule.given(column(partials, rule.slot.name), number[old.num_rows :])
        if len(moved):
            keys = keys_of(old, names, moved)
            taken = self._held(rule, state.scan(table, keys), keys, number[moved])
            both = (given, taken)
            given = Counts.summed(
                np.concatenate([each.of for each in both]),
                pa.concat_arrays([each.values for each in both]),
                np.concatenate([each.count for each in both]),
            )
            pieces.delete(table, keys)
        touched = self._keyed(rows, given)
        found = state.get(table, touched)
        at = aligned(touched, found, [*names, VALUE])
        was = np.where(at < 0, 0, _counts(rule, found)[at]) if found.num_rows else np.zeros(len(at), np.int64)
        now = replace(given, count=was + given.count) if rule.counts else given

        def others(results: I64, end: Quick = "") -> Counts:
            known = results[mine[results] >= 0]
            keys = keys_of(rows, names, known)
            limit = 1 + int(np.bincount(given.of).max(initial=0)) if end else None  # one is left that is not touched
            descending = end == "greatest"
            scanned = state.scan(table, keys, limit=limit, descending=descending) if len(known) else found.slice(0, 0)
            untouched = scanned.filter(pa.array(aligned(scanned, touched, [*names, VALUE]) < 0))
            return self._held(rule, untouched, keys, known)

        before = column(old, rule.slot.name).take(pa.array(np.maximum(mine, 0), mask=mine < 0))
        for name, made in rule.results(before, Changed(now, was, others)).items():
            rows = rows.set_column(rows.column_names.index(name), name, made)
        kept = np.ones(len(now.of), np.bool_) if lasting is None else lasting[now.of]
        if rule.counts:
            gone = kept & (now.count == 0)
            pieces.delete(table, touched.filter(pa.array(gone & (was != 0))))
            kept &= ~gone
            touched = touched.append_column(COUNT, pa.array(now.count))
        else:
            kept &= was == 0
        pieces.put(table, touched.filter(pa.array(kept)))
        return rows

    def _keyed(self, rows: pa.Table, counts: Counts) -> pa.Table:
        """The keys of values."""
        keys = rows.select(self.key_names)
        names = [column(keys, name).take(pa.array(counts.of)) for name in self.key_names]
        return pa.table([*names, counts.values], names=[*self.key_names, VALUE])

    def _held(self, rule: Values, found: pa.Table, keys: pa.Table, of: I64) -> Counts:
        """Rows of a table of values; `of`: the results that the keys are of."""
        result = of[aligned(found, keys, self.key_names)] if found.num_rows else np.zeros(0, np.int64)
        return Counts(result, column(found, VALUE), _counts(rule, found))

    def packed(self, partials: pa.Table, groups: Groups) -> pa.Table:
        """Partial rows that meet, as one partial row each."""
        columns = {name: column(partials, name) for merger in self.mergers for name in merger.takes}
        made: dict[str, pa.Array] = {}
        for merger in self.mergers:
            made |= merger.merged(columns, groups)
        for rule in self.values:
            counts = rule.given(column(partials, rule.slot.name), groups.number)
            made[rule.slot.name] = rule.packed(counts, groups.count)
        made[CORRECTIONS.name] = added(column(partials, CORRECTIONS.name), groups, pa.int64())
        made[UPDATED.name] = extreme(column(partials, UPDATED.name), groups, greatest=True)
        one_of, kinds = pa.array(groups.first), partials.schema
        return pa.table(
            {
                name: made[name].cast(kinds.field(name).type) if name in made else column(partials, name).take(one_of)
                for name in partials.column_names
            }
        )

    def forget(self, keys: pa.Table, pieces: Pieces) -> None:
        """Values under these keys go."""
        for rule in self.values:
            pieces.delete(self.values_of(rule), keys)


def _counts(rule: Values, found: pa.Table) -> I64:
    if not rule.counts:
        return np.ones(found.num_rows, np.int64)
    counts: I64 = column(found, COUNT).to_numpy()
    return counts


# -- tables --------------------------------------------------------------------------------------------------


def column(rows: pa.Table, name: str) -> pa.Array:
    found = rows[name]
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def together(some: Sequence[pa.Table]) -> pa.Table:
    """Tables of the same columns, one behind the other, each column in one piece."""
    known = [each for each in some if each.num_rows]
    return known[0] if len(known) == 1 else pa.concat_tables(known or some[:1]).combine_chunks()


def in_order(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows by these columns, nulls first."""
    if not names or rows.num_rows < 2:
        return rows
    number = row_numbers([column(rows, name) for name in names], rows.num_rows)
    return rows.take(pa.array(np.argsort(number, kind="stable")))


def keys_of(rows: pa.Table, names: Sequence[str], numbers: I64) -> pa.Table:
    """Columns of some rows. Without any column the number of rows is kept, which `take` does not."""
    if not names:
        return rows.select([]).slice(0, len(numbers))
    return chosen(rows.select(names), numbers)


def chosen(rows: pa.Table, numbers: I64) -> pa.Table:
    """The rows of these numbers; those that lie one behind the other need no copy."""
    first = int(numbers[0]) if len(numbers) else 0
    if bool((numbers == np.arange(first, first + len(numbers))).all()):
        return rows if len(numbers) == rows.num_rows else rows.slice(first, len(numbers))
    return rows.take(pa.array(numbers))


def stacked(old: pa.Table, partials: pa.Table, names: Sequence[str]) -> pa.Table:
    """Old rows, then partial ones."""
    if not old.num_rows:
        return partials.select(names)
    if not partials.num_rows:
        return old.select(names)
    return pa.table({name: _both(column(old, name), column(partials, name)) for name in names})


def _both(one: pa.Array, other: pa.Array) -> pa.Array:
    """One behind the other, with the type of the first."""
    return pa.concat_arrays([one, cast_to(other, one.type)])


def aligned(wanted: pa.Table, found: pa.Table, names: Sequence[str]) -> I64:
    """For each wanted row, which of those found has the same values in these columns; -1: none."""
    if not found.num_rows or not wanted.num_rows:
        return np.full(wanted.num_rows, -1, np.int64)
    pairs = [(column(wanted, name), column(found, name)) for name in names]
    if wanted.num_rows == found.num_rows and all(one.equals(other) for one, other in pairs):
        return np.arange(wanted.num_rows)
    columns = [_both(*pair) for pair in pairs]
    number = row_numbers(columns, wanted.num_rows + found.num_rows)
    mine, theirs = number[: wanted.num_rows], number[wanted.num_rows :]
    in_order = bool((theirs[1:] >= theirs[:-1]).all())  # as a state answers
    order = np.arange(len(theirs)) if in_order else np.argsort(theirs, kind="stable")
    at = order[np.minimum(np.searchsorted(theirs, mine, sorter=None if in_order else order), len(theirs) - 1)]
    return np.where(theirs[at] == mine, at, -1)


def key_numbers(*tables: pa.Table) -> list[I64]:
    """For the rows of each table a number, the same for those that are equal in the columns of the first one. Numbers
    are given from 0 on, to the rows of the first table first."""
    names = tables[0].column_names
    both = {name: one_zero(pa.concat_arrays([column(each, name) for each in tables])) for name in names}
    number = numbered(pa.table(both), names)
    return np.split(number, np.cumsum([each.num_rows for each in tables])[:-1])


def differ(a: pa.Table, b: pa.Table) -> Flags:
    """Which rows of two tables of the same columns are not the same. Null is itself, and so is NaN."""
    out = np.zeros(a.num_rows, np.bool_)
    for name in a.column_names:
        one, two = column(a, name), column(b, name)
        if one.equals(two):
            continue
        if types.is_nested(one.type):
            one, two = json_texts(one), json_texts(two)
        if types.is_floating(one.type):
            one, two = (pa.array(ordered(each)[0], mask=np.asarray(each.is_null())) for each in (one, two))
        other = pc.not_equal(one, two)
        if other.null_count:  # one of the two, or both, are
            other = pc.if_else(pc.is_null(other), pc.not_equal(one.is_null(), two.is_null()), other)
        out |= np.asarray(other)
        if out.all():
            break
    return out
