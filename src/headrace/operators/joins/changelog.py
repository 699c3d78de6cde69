"""Changelogs: upserts and deletes of keyed rows. Owns the order of a key's changes, and which of them counts.

A key's changes are ordered by position: arrival, partition, offset. They normally lie in one partition; where
partitions were added they may lie in two, which are read in any order. So what counts is never the change that was read
last, and a delete is remembered until every older change has been read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.groups import one_zero, row_numbers
from headrace.operators.result_rows import UPDATED, Pieces, aligned, column, keys_of
from headrace.schema import type_ddl
from headrace.views.contract import ARRIVED
from headrace.views.keyed import Column, State, TableSpec
from headrace.views.values import arrow_type, cast_to, us_column

__all__ = [
    "CHANGE",
    "LOADED",
    "ORDER",
    "POSITION",
    "Keys",
    "LatestRows",
    "Replaced",
    "changes_of",
    "columns_of",
    "keys_in",
    "later_changes",
    "without_marks",
]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
CHANGE = "_op"
"""Of a record of a changelog: "upsert" or "delete"; or `LOADED`, which is no change."""
LOADED = "loaded"
"""Of a record that says that a table has been loaded: what arrived before it was there from the beginning."""
POSITION = (UPDATED, Column("/partition", "int"), Column("/offset", "bigint"))
"""Of a stored row: when its record arrived, and where it lies."""
ORDER = tuple(each.name for each in POSITION)


def columns_of(schema: pa.Schema, names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(name, type_ddl(schema.field(name).type)) for name in names)


def without_marks(records: pa.Table) -> pa.Table:
    """The records that are changes."""
    marks = pc.equal(records[CHANGE], LOADED)
    return records.filter(pc.invert(marks)) if pc.any(marks).as_py() else records


def changes_of(records: pa.Table, schema: pa.Schema) -> pa.Table:
    """Records of a changelog, with the columns of the schema, their position and `CHANGE`."""
    records = without_marks(records)
    values = {each.name: one_zero(cast_to(column(records, each.name), each.type)) for each in schema}
    given = zip(POSITION, (ARRIVED, "_partition", "_offset"), strict=True)
    place = {each.name: cast_to(column(records, name), arrow_type(each.type)) for each, name in given}
    return pa.table({**values, **place, CHANGE: column(records, CHANGE)})


@dataclass(frozen=True)
class Keys:
    """The keys of some rows, in order. `number`: which of them each row has."""

    rows: pa.Table
    number: I64


def keys_in(rows: pa.Table, names: Sequence[str]) -> Keys:
    found = row_numbers([column(rows, name) for name in names], rows.num_rows)
    _, first, number = np.unique(found, return_index=True, return_inverse=True)
    return Keys(keys_of(rows, names, first), number.reshape(-1))


@dataclass(frozen=True)
class Replaced:
    """Keys whose row is another now. `changes`: the last change of each, in the order of keys. `old`: the rows as they
    were, of those keys that had one; `of`: which of the changes is of each of these."""

    changes: pa.Table
    old: pa.Table
    of: I64

    @cached_property
    def upserts(self) -> Flags:
        flags: Flags = np.asarray(pc.equal(column(self.changes, CHANGE), "upsert"))
        return flags

    @cached_property
    def new(self) -> pa.Table:
        return self.changes.filter(pa.array(self.upserts))

    @cached_property
    def gone(self) -> pa.Table:
        return self.changes.filter(pa.array(~self.upserts))


def later_changes(
    changes: pa.Table, keys: Keys, old: pa.Table, deletes: pa.Table, order: Sequence[str] = ORDER
) -> Replaced:
    """The last change of each key, if it comes behind the stored row and the remembered delete of the key."""
    last = changes.take(pa.array(_last_of_each(changes, keys.number, order)))
    names = keys.rows.column_names
    later, of = np.ones(last.num_rows, np.bool_), aligned(old, keys.rows, names)
    for known, number in ((old, of), (deletes, aligned(deletes, keys.rows, names))):
        later[number] &= _is_later(last.take(pa.array(number)), known, order)
    place = np.cumsum(later) - 1
    mine = later[of]
    return Replaced(last.filter(pa.array(later)), old.filter(pa.array(mine)), place[of[mine]])


def _last_of_each(rows: pa.Table, number: I64, order: Sequence[str]) -> I64:
    """By number: the row of each that is the last."""
    sorted_rows = np.lexsort((*(us_column(rows[name]) for name in reversed(order)), number))
    number = number[sorted_rows]
    last: I64 = sorted_rows[np.append(number[1:] != number[:-1], True)]
    return last


def _is_later(rows: pa.Table, others: pa.Table, order: Sequence[str]) -> Flags:
    later, same = np.zeros(rows.num_rows, np.bool_), np.ones(rows.num_rows, np.bool_)
    for name in order:
        one, other = us_column(rows[name]), us_column(others[name])
        later |= same & (one > other)
        same &= one == other
    return later


@dataclass(frozen=True)
class LatestRows:
    """The last row of each key in a table `name`, and deletes in a table beside it. `order`: what orders changes; the
    position, the offset alone, or a time that is one of the `columns`, then the position."""

    name: str
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    order: tuple[str, ...] = ORDER

    @property
    def rows(self) -> TableSpec:
        return TableSpec(self.name, self.key, (*self.columns, *POSITION))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(each.name, arrow_type(each.type)) for each in (*self.key, *self.columns, *POSITION)])

    @property
    def deletes(self) -> TableSpec:
        """Time is arrival: so deletes go when reach has passed them. Where another time comes first in the order, a
        change may always be older than a delete: it stays until its key has a row again."""
        own = tuple(each for each in self.columns if each.name in self.order)
        return TableSpec(f"{self.name}/deletes", self.key, (*own, *POSITION), None if own else ORDER[0])

    def fold(self, changes: pa.Table | None, state: State, reach_us: int | None, pieces: Pieces) -> Replaced | None:
        """Writes what became of the keys. `reach_us`: changes that are still to come arrived then or later."""
        by_arrival = self.deletes.time is not None
        if reach_us is not None and by_arrival:
            pieces.drops[self.deletes.name] = reach_us - 1
        if changes is None or not changes.num_rows:
            return None
        keys = keys_in(changes, self.rows.key_names)
        none = by_arrival and state.last_us(self.deletes.name) is None  # most of the time
        deleted = state.get(self.deletes.name, keys.rows.slice(0, 0) if none else keys.rows)
        replaced = later_changes(changes, keys, state.get(self.name, keys.rows), deleted, self.order)
        self.write(replaced, pieces)
        if ORDER[0] not in self.order:  # by offset: they are read in order, and no older change comes behind a delete
            return replaced
        gone = replaced.gone
        if not by_arrival:
            back = aligned(deleted, replaced.new, self.rows.key_names) >= 0
            pieces.delete(self.deletes.name, deleted.filter(pa.array(back)).select(self.rows.key_names))
        elif reach_us is not None:
            gone = gone.filter(pa.array(us_column(gone[ORDER[0]]) >= reach_us))
        pieces.put(self.deletes.name, gone.select(self.deletes.names))
        return replaced

    def write(self, replaced: Replaced, pieces: Pieces) -> None:
        pieces.put(self.name, replaced.new.select(self.rows.names))
        had = np.flatnonzero(~replaced.upserts[replaced.of])
        pieces.delete(self.name, keys_of(replaced.old, self.rows.key_names, had))
