"""Tables joined with tables, by primary keys, foreign keys or any other columns. Owns the latest rows of both sides,
and for each an index by the columns that it is joined on, where these are not of its key.

A step applies the changes of both sides, and passes on join(after) - join(before) of the rows that they touch. Nothing
between the two is ever seen: a row that moves to another foreign key goes and comes in one step, in whatever order the
changes of the two sides were read. What is read is the changed rows, the rows that these were or are joined with, and
for outer joins whether there are others that those are joined with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates.groups import codes, row_numbers
from headrace.errors import InvalidArgument
from headrace.jsonrows import encoder
from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.joins.changelog import CHANGE, ORDER, POSITION, LatestRows, changes_of, columns_of, keys_in
from headrace.operators.joins.rows import FINAL_AT, ID
from headrace.operators.joins.table_history import VALID, valid_times
from headrace.operators.joins.view_changes import ORDER as VIEW_ORDER
from headrace.operators.joins.view_changes import VIEW_CORRECTIONS
from headrace.operators.result_rows import Pieces, aligned, column, differ, joined_writes
from headrace.rows import python_values
from headrace.schema import type_ddl
from headrace.views.keyed import Column, State, TableSpec
from headrace.views.values import INSTANT, cast_to

__all__ = [
    "LEFT",
    "RIGHT",
    "How",
    "Pairs",
    "Part",
    "Side",
    "TableJoin",
    "Taken",
    "known_values",
    "meeting",
    "value_numbers",
]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
How = Literal["inner", "left", "right", "full"]
LEFT, RIGHT, OP = "left", "right", "op"
UPDATED_AT = POSITION[0].name
OWN = (ID, FINAL_AT, "_corrections", UPDATED_AT, "_progress")
"""What a row has besides the columns of both sides."""
NULL = -1
"""The number of a value that meets nothing."""


@dataclass(frozen=True)
class TableJoin:
    """`on`: pairs of a left and a right column, in which rows that meet are equal; null meets nothing. The columns of a
    pair that have the same name are one. `suffix`: behind the name of any other right column that the left has, too."""

    left: pa.Schema
    right: pa.Schema
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    on: tuple[tuple[str, str], ...]
    how: How = "inner"
    suffix: str = "_right"
    views: tuple[str, ...] = ()
    """The sides that are views, whose changes are ordered by offset alone."""
    valid_from: tuple[str | None, str | None] = (None, None)
    """Of a table with a history, left and right: the column with the time by which its latest row is known."""

    def __post_init__(self) -> None:
        if self.how not in ("inner", "left", "right", "full"):
            raise InvalidArgument("how", self.how, "must be 'inner', 'left', 'right' or 'full'")
        if not self.on:
            raise InvalidArgument("on", self.on, "must name at least one column of each side")
        names = [name.lower() for name in self.schema.names]
        for name in names:
            if names.count(name) > 1 or name in (OP, CHANGE, *OWN):
                why = "is taken, so it cannot be the name of a column of the join. Rename it, or choose another suffix="
                raise InvalidArgument("on", name, why)

    # -- what it is ------------------------------------------------------------------------------------

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        kinds = tuple(_common_type(self.left, self.right, *pair) for pair in self.on)
        left, right = zip(*self.on, strict=True)
        of = ((LEFT, self.left, self.left_key, left), (RIGHT, self.right, self.right_key, right))
        one, other = (
            Side(*each, kinds, valid_from, is_view=each[0] in self.views)
            for each, valid_from in zip(of, self.valid_from, strict=True)
        )
        return one, other

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Rows that meet are equal in the columns that they are joined on. Where these are not of the key, a change can
        move a row from one value to another: then nothing is promised."""
        stays = all(side.by_key for side in self.sides)
        return tuple(
            Input(
                side.name,
                (*columns_of(side.schema, side.schema.names), Column(CHANGE, "string")),
                side.on if stays else (),
                first=True,
            )
            for side in self.sides
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(spec for side in self.sides for spec in side.tables)

    @property
    def output(self) -> Output:
        return Output(None, None, None, columns_of(self.schema, self.schema.names), (ID,))

    @cached_property
    def schema(self) -> pa.Schema:
        """What readers see: the left's columns, then the right's."""
        kinds = {left: kind for (left, right), kind in zip(self.on, self.sides[0].kinds, strict=True) if left == right}
        fields = [pa.field(each.name, kinds.get(each.name, each.type)) for each in self.left if _is_shown(each.name)]
        return pa.schema([*fields, *(pa.field(name, self.right.field(of).type) for of, name in self._right_names)])

    @cached_property
    def _right_names(self) -> list[tuple[str, str]]:
        """The right's columns that are not one with a left one, and what they are called."""
        taken = {name.lower() for name in self.left.names}
        own = [name for name in self.right.names if (name, name) not in self.on and _is_shown(name)]
        return [(name, name + self.suffix if name.lower() in taken else name) for name in own]

    @property
    def timers(self) -> tuple[Timer, ...]:
        return ()

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        both = [times[side.name] for side in self.sides]
        return InputTimes(_least(each.frontier_us for each in both), _least(each.reach_us for each in both))

    def reset(self) -> None:
        """It knows nothing between steps."""

    # -- one step --------------------------------------------------------------------------------------

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],
        *,
        changes: bool,  # noqa: ARG002 (what is passed on is what the step is for)
    ) -> Step:
        pieces = Pieces()
        moved = [side.fold(batch.get(side.name), state, times[side.name].reach_us, pieces) for side in self.sides]
        return Step(joined_writes(pieces, self.tables, state), self._changes(moved, state))

    @property
    def outer(self) -> tuple[bool, bool]:
        """Whether rows of the left, and of the right, that meet no other are rows of the join."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    def _changes(self, moved: Sequence[Moved], state: State) -> pa.Table:
        """join(after) - join(before). Rows that stay are joined with those that change, and not with each other."""
        before, after = self._parts(moved, state)
        old, new = _pairs_of(*before), _pairs_of(*after)
        for at, outer in enumerate(self.outer):
            if outer:
                old = old.with_lone(at, _lone(before[at], before[1 - at]))
                new = new.with_lone(at, _lone(after[at], after[1 - at]))
        return _difference(
            (self.rows(before, old), old.codes(*before)),
            (self.rows(after, new), new.codes(*after)),
        )

    def _parts(self, moved: Sequence[Moved], state: State) -> tuple[tuple[Part, Part], tuple[Part, Part]]:
        """Both sides before and after: the rows that change, and those that stay of what these are joined with."""
        touched = [each.values() for each in moved]
        stay, values = [], []
        for at, each in enumerate(moved):
            side, other_is_outer = each.side, self.outer[1 - at]
            stay.append(side.unchanged(each, touched[1 - at], state))
            also = side.values_of_unchanged(each, touched[at], state) if other_is_outer else touched[at].slice(0, 0)
            values += [*(side.values(rows) for rows in (each.old, each.new, stay[at])), also]
        numbers = value_numbers(values)
        left, right = (each.parts(stay[at], *numbers[4 * at : 4 * at + 4]) for at, each in enumerate(moved))
        return (left[0], right[0]), (left[1], right[1])

    def rows(self, parts: tuple[Part, Part], pairs: Pairs) -> pa.Table:
        left, right = Taken(parts[0].rows, pairs.left), Taken(parts[1].rows, pairs.right)
        made: dict[str, pa.Array] = {}
        for each in self.left:
            if not _is_shown(each.name):
                continue
            made[each.name] = cast_to(left[each.name], self.schema.field(each.name).type)
            if (each.name, each.name) in self.on:
                made[each.name] = pc.coalesce(made[each.name], cast_to(right[each.name], made[each.name].type))
        made |= {name: right[of] for of, name in self._right_names}
        count = len(pairs.left)
        made[ID] = pc.binary_join_element_wise(left.key_texts(self.left_key), right.key_texts(self.right_key), "|")
        made[FINAL_AT] = made["_progress"] = pa.nulls(count, INSTANT)
        corrections = [side[VIEW_CORRECTIONS] for role, side in ((LEFT, left), (RIGHT, right)) if role in self.views]
        made["_corrections"] = sum((each.fill_null(0).to_numpy() for each in corrections), np.zeros(count, np.int64))
        updated_us = pc.max_element_wise(left[UPDATED_AT].cast(pa.int64()), right[UPDATED_AT].cast(pa.int64()))
        made[UPDATED_AT] = updated_us.cast(INSTANT)
        return pa.table({name: made[name] for name in (*self.schema.names, *OWN)})


# -- a side --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One of the tables. `on`: the columns it is joined on, which are compared as `kinds`. `valid_from`: where it has a
    history, the column with the time by which its latest row is known."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    on: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    valid_from: str | None = None
    is_view: bool = False

    @property
    def by_key(self) -> bool:
        """Whether rows are found by the columns it is joined on without an index: then its key is stored so that it
        begins with these."""
        same = all(self.schema.field(name).type == kind for name, kind in zip(self.on, self.kinds, strict=True))
        return same and len({*self.on}) == len(self.on) and {*self.on} <= {*self.key}

    @cached_property
    def latest(self) -> LatestRows:
        first = self.on if self.by_key else ()
        key = [*first, *(name for name in self.key if name not in first)]
        others = columns_of(self.schema, [name for name in self.schema.names if name not in key])
        order = VIEW_ORDER if self.is_view else ORDER
        if self.valid_from is not None:
            others, order = (*others, VALID), (VALID.name, *ORDER)
        return LatestRows(self.name, columns_of(self.schema, key), others, order)

    @cached_property
    def index(self) -> TableSpec | None:
        if self.by_key:
            return None
        values = tuple(Column(name, type_ddl(kind)) for name, kind in zip(self.value_names, self.kinds, strict=True))
        return TableSpec(f"{self.name}/index", (*values, *self.latest.key), ())

    @property
    def value_names(self) -> list[str]:
        return [f"/on{number}" for number in range(len(self.on))]

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        own = (self.latest.rows, self.latest.deletes)
        return own if self.index is None else (*own, self.index)

    def values(self, rows: pa.Table) -> pa.Table:
        """What the rows are joined on."""
        columns = [cast_to(column(rows, name), kind) for name, kind in zip(self.on, self.kinds, strict=True)]
        return pa.table(columns, names=self.value_names)

    def fold(self, records: pa.Table | None, state: State, reach_us: int | None, pieces: Pieces) -> Moved:
        given = None if records is None or not records.num_rows else self.changes(records)
        replaced = self.latest.fold(given, state, reach_us, pieces)
        if replaced is None:
            none, nobody = self.latest.schema.empty_table(), np.zeros(0, np.int64)
            return Moved(self, none.select(self.latest.rows.key_names), none, nobody, none, nobody)
        names = self.latest.rows.names
        moved = Moved(
            self,
            replaced.changes.select(self.latest.rows.key_names),
            replaced.old.select(names).cast(self.latest.schema),
            replaced.of,
            replaced.new.select(names),
            np.flatnonzero(replaced.upserts),
        )
        if self.index is not None:
            self._write_index(self.index, moved, pieces)
        return moved

    def changes(self, records: pa.Table) -> pa.Table:
        found = changes_of(records, self.schema)
        if self.valid_from is None:
            return found
        return found.append_column(VALID.name, valid_times(found, self.valid_from))

    def _write_index(self, index: TableSpec, moved: Moved, pieces: Pieces) -> None:
        """What is null meets nothing, and is not in the index."""
        was, is_now = self.values(moved.old), self.values(moved.new)
        goes, comes = known_values(was), known_values(is_now)
        _, one, other = np.intersect1d(moved.old_key, moved.new_key, assume_unique=True, return_indices=True)
        same = ~differ(was.take(pa.array(one)), is_now.take(pa.array(other)))
        goes[one[same]] = comes[other[same]] = False
        pieces.delete(index.name, self._entries(index, moved.old, was).filter(pa.array(goes)))
        pieces.put(index.name, self._entries(index, moved.new, is_now).filter(pa.array(comes)))

    def _entries(self, index: TableSpec, rows: pa.Table, values: pa.Table) -> pa.Table:
        return pa.table({name: (values if name in self.value_names else rows)[name] for name in index.key_names})

    def unchanged(self, moved: Moved, values: pa.Table, state: State) -> pa.Table:
        """The rows with these values that stay as they are."""
        found = self._found(values, state, None)
        found = found if self.index is None else state.get(self.name, found.select(self.latest.rows.key_names))
        return self._without(moved, found.cast(self.latest.schema))

    def values_of_unchanged(self, moved: Moved, values: pa.Table, state: State) -> pa.Table:
        """Those of the values that a row has that stays as it is. Not all such rows are read."""
        if self.index is None and len(self.on) == len(self.key):
            return values.slice(0, 0)  # a row of these values is the one that changes
        most = max((self._most_of_one(rows) for rows in (moved.old, moved.new)), default=0)
        found = self._without(moved, self._found(values, state, most + 1))
        return self.values(found) if self.index is None else found.select(self.value_names)

    def _most_of_one(self, rows: pa.Table) -> int:
        """How many rows have the same value, at most."""
        return int(np.bincount(keys_in(self.values(rows), self.value_names).number).max(initial=0))

    def _found(self, values: pa.Table, state: State, limit: int | None) -> pa.Table:
        """Rows with these values, or where there is an index its entries; so many of each."""
        if self.index is None:
            return state.scan(self.name, values.rename_columns(list(self.on)), limit=limit)
        return state.scan(self.index.name, values, limit=limit)

    def _without(self, moved: Moved, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(aligned(rows, moved.keys, self.latest.rows.key_names) < 0))


# -- joining -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """Rows of a side that change, as they were and as they are. `keys`: theirs; `old_key`, `new_key`: which of them."""

    side: Side
    keys: pa.Table
    old: pa.Table
    old_key: I64
    new: pa.Table
    new_key: I64

    def values(self) -> pa.Table:
        """What they were and are joined on: each value once, and no null."""
        both = pa.concat_tables([self.side.values(self.old), self.side.values(self.new)])
        return keys_in(both.filter(pa.array(known_values(both))), both.column_names).rows

    def parts(self, stay: pa.Table, old: I64, new: I64, stays_at: I64, also: I64) -> tuple[Part, Part]:
        """Before and after, together with rows that stay. What follows are the numbers of their values."""
        first = self.keys.num_rows
        stays = first + np.arange(stay.num_rows)
        before, after = (
            Part(
                pa.concat_tables([rows, stay]),
                np.concatenate((key, stays)),
                np.concatenate((value, stays_at)),
                rows.num_rows,
                first + stay.num_rows,
                also,
            )
            for rows, key, value in ((self.old, self.old_key, old), (self.new, self.new_key, new))
        )
        return before, after


@dataclass(frozen=True)
class Part:
    """Rows of a side, before or after. The first `changed` are those that change. `key`: a number for each key, the
    same before and after, below `keys`; `value`: one for what they are joined on; `also`: values that others have."""

    rows: pa.Table
    key: I64
    value: I64
    changed: int
    keys: int
    also: I64


@dataclass(frozen=True)
class Pairs:
    """Numbers of a left row and a right one; -1: there is none."""

    left: I64
    right: I64

    def with_lone(self, side: int, lone: Flags) -> Pairs:
        rows = np.flatnonzero(lone)
        none = np.full(len(rows), -1)
        left, right = (rows, none) if side == 0 else (none, rows)
        return Pairs(np.concatenate((self.left, left)), np.concatenate((self.right, right)))

    def codes(self, left: Part, right: Part) -> I64:
        """A number for each pair of keys."""
        one, other = (
            np.where(numbers < 0, -1, part.key[numbers]) if len(part.key) else numbers
            for part, numbers in ((left, self.left), (right, self.right))
        )
        return (one + 1) * (right.keys + 1) + other + 1


def _pairs_of(left: Part, right: Part) -> Pairs:
    one = meeting(left.value[: left.changed], right.value)
    other = meeting(left.value[left.changed :], right.value[: right.changed])
    return Pairs(np.concatenate((one[0], other[0] + left.changed)), np.concatenate((one[1], other[1])))


def meeting(left: I64, right: I64) -> tuple[I64, I64]:
    """All pairs that have the same number."""
    order = np.argsort(right, kind="stable")
    there = right[order]
    first, behind = (np.searchsorted(there, left, side=side) for side in ("left", "right"))
    count = np.where(left == NULL, 0, behind - first)
    skipped = np.cumsum(count) - count
    at = np.arange(count.sum()) - np.repeat(skipped, count) + np.repeat(first, count)
    return np.repeat(np.arange(len(left)), count), order[at]


def _lone(part: Part, other: Part) -> Flags:
    """Rows that meet no row of the other side."""
    flags: Flags = (part.value == NULL) | ~np.isin(part.value, np.concatenate((other.value, other.also)))
    return flags


def _difference(before: tuple[pa.Table, I64], after: tuple[pa.Table, I64]) -> pa.Table:
    """What goes and what comes, without rows that stay the same."""
    (old, was), (new, is_now) = before, after
    _, one, other = np.intersect1d(was, is_now, assume_unique=True, return_indices=True)
    same = ~differ(old.take(pa.array(one)), new.take(pa.array(other)))
    goes = np.setdiff1d(np.arange(len(was)), one[same], assume_unique=True)
    comes = np.setdiff1d(np.arange(len(is_now)), other[same], assume_unique=True)
    sign = np.repeat([0, 1], [len(goes), len(comes)])
    order = np.lexsort((sign, np.concatenate((was[goes], is_now[comes]))))
    both = pa.concat_tables([old, new]).take(pa.array(np.concatenate((goes, comes + len(was)))[order]))
    return both.add_column(0, OP, pa.array(["-", "+"]).take(pa.array(sign[order])))


class Taken:
    """Rows by number, column by column; null where there is none."""

    def __init__(self, rows: pa.Table, numbers: I64) -> None:
        self._rows, self._numbers = rows, pa.array(numbers, mask=numbers < 0)

    def __getitem__(self, name: str) -> pa.Array:
        return column(self._rows, name).take(self._numbers)

    def key_texts(self, key: Sequence[str]) -> pa.Array:
        """Keys as JSON lists; no text where there is no row."""
        columns = [_json_column(column(self._rows, name)) for name in key]
        texts = pc.binary_join_element_wise("[", pc.binary_join_element_wise(*columns, ","), "]", "")
        return texts.take(self._numbers).fill_null("")


# -- values --------------------------------------------------------------------------------------------------


def _is_shown(name: str) -> bool:
    """Whether readers of the join see the column."""
    return not name.startswith("/")


def _common_type(left: pa.Schema, right: pa.Schema, left_name: str, right_name: str) -> pa.DataType:
    """As what a left and a right column are compared."""
    for schema, name in ((left, left_name), (right, right_name)):
        if name not in schema.names:
            raise InvalidArgument("on", name, f"is not a column: there are {', '.join(schema.names)}")
    one, other = left.field(left_name).type, right.field(right_name).type
    if one == other and not types.is_nested(one):
        return one
    for kind in (types.is_integer, types.is_floating):
        if kind(one) and kind(other):
            return max(one, other, key=lambda each: each.bit_width)
    why = f"{type_ddl(one)} cannot be compared with {type_ddl(other)}: cast one of them in a transform"
    raise InvalidArgument("on", {left_name: right_name}, why)


def known_values(values: pa.Table) -> Flags:
    """Rows without a null."""
    flags = np.ones(values.num_rows, np.bool_)
    for name in values.column_names:
        flags &= np.asarray(column(values, name).is_valid())
    return flags


def value_numbers(tables: Sequence[pa.Table]) -> list[I64]:
    """A number for each row of each table, the same for the same values."""
    both = pa.concat_tables(tables)
    columns = [column(both, name) for name in both.column_names]
    numbers = codes(columns[0])[0] if len(columns) == 1 else row_numbers(columns, both.num_rows)
    numbers = np.where(known_values(both), numbers, NULL)
    return np.split(numbers, np.cumsum([each.num_rows for each in tables])[:-1])


_ESCAPED = r'["\\\x00-\x1f]'


def _json_column(values: pa.Array) -> pa.Array:
    """Each value as JSON: numbers, and texts without anything that JSON escapes, at Arrow's speed."""
    if types.is_integer(values.type) or types.is_boolean(values.type):
        return values.cast(pa.string()).fill_null("null")
    write = encoder(values.type)
    if not types.is_string(values.type):
        return pa.array(["null" if value is None else write(value) for value in python_values(values)], pa.string())
    texts = pc.binary_join_element_wise('"', values, '"', "").fill_null("null")
    special = pc.match_substring_regex(values, _ESCAPED).fill_null(False)
    if not special.true_count:
        return texts
    return pc.replace_with_mask(texts, special, pa.array([write(each) for each in values.filter(special).to_pylist()]))


def _least(times_us: Iterable[int | None]) -> int | None:
    known = list(times_us)
    return None if None in known else min(us for us in known if us is not None)
