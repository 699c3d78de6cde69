"""Stream-stream joins by an interval of time: which records of two inputs meet. Owns the records of both sides that one
still to come may meet, and which of them have no match.

A pair is two records with equal keys, none of them null, where the right one's time lies in [t - before, t + after], t
being the left one's time. A record is judged by its own time and progress: on time up to its time + grace, corrected up
to that + within, then dropped. So the pairs are a function of the records alone. A record of an outer side without a
pair becomes a row of its own when the *other* side's frontier is past the end of its interval + grace; that row is
taken back if a match comes later. A record with a null in its key meets nothing: its row comes at once, and nothing of
it is kept.

The records of a side lie under their key, then their time: one scan finds what a batch meets, and the index by time
drops what no record still to come can meet. A record is written once; one of an outer side a second time when its first
match comes, or its row without one. Reach alone drops, the other side's, and exactly: nothing is kept longer.

Records may be taken back: they then come with a column `op`. A '-' has the time and progress of its '+'. Its pairs go,
and a partner that is left without a match becomes a row of its own again, when that is due. All that this takes is
still kept. Let l be a left record that goes. What is still to come of a side, '-' as well as '+', has a progress or a
time of at least the side's reach R. If R_left <= l's progress, then R_left <= l.t + grace + within, or l had been
dropped; else R_left <= l.t. A partner r of l has r.t >= l.t - before. So R_left <= r.t + before + grace + within: r is
still kept. The record l itself may not be kept any more: then R_right is past its interval and grace, so if it has no
partner, its row without a match has been published. Other matches of r may not be kept either: so where records can be
taken back, an outer side's record says how many matches it has.

A row is final when the frontiers of *both* inputs are past its `/final_at` (`IntervalJoin.final_us`). That is the time
of a pair + grace, and of a record without a match the end of its interval + grace.

The records of a step may be divided by key if frontiers stay as they are. Frontiers then move in a step of their own,
with an empty batch: which rows without a match are due is asked for all keys together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates.groups import row_numbers
from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.errors import InvalidArgument
from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.joins.rows import FINAL_AT, ID, gone_and_come
from headrace.operators.records import OP, columns_of
from headrace.operators.result_rows import aligned, column, keys_of
from headrace.schema import type_ddl
from headrace.time import UNSET
from headrace.views.contract import DUE as TIMERS
from headrace.views.contract import LedgerRow
from headrace.views.keyed import Column, State, TableSpec, Writes
from headrace.views.values import arrow_type, cast_to, time_column, us_column
from headrace.windows.sessions import joined

__all__ = ["IntervalJoin"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
How = Literal["inner", "left", "right", "full"]
HOWS = ("inner", "left", "right", "full")
JOINED_AT, INPUT = "joined_at", "/input"
AT, ARRIVED, LATE, MATCH, DUE = "/at", "/arrived_at", "/late", "/match", "/due"
WAITING, UNMATCHED = 0, -1
"""`MATCH` of an outer side's record: it has no match yet, or its row without one has been published. Larger than 0: it
has a match; and where records can be taken back, how many."""
LONGEST_US = 365_250 * 86_400_000_000
"""A thousand years: no sum of a time and these leaves the calendar."""


@dataclass(frozen=True)
class Side:
    """One input, and how its records are kept. `end_us`: how long after a record the other side's may be."""

    name: str
    schema: pa.Schema
    by: tuple[str, ...]
    time: str
    end_us: int
    outer: bool

    @cached_property
    def kept(self) -> TableSpec:
        """The records that one of the other side may still meet."""
        key = [Column(name, type_ddl(self.schema.field(name).type)) for name in self.by]
        rest = [each for each in self.schema if each.name not in (*self.by, self.time)]
        own = [Column(ARRIVED, "timestamp"), Column(LATE, "boolean"), Column(MATCH, "int")]
        columns = (*columns_of(pa.schema(rest)), *(own if self.outer else own[:-1]))
        return TableSpec(self.name, (*key, Column(AT, "timestamp"), Column(ID, "string")), columns, AT)

    @cached_property
    def due(self) -> TableSpec:
        """One row: no record that waits for a match has the end of its interval + grace before that."""
        return TableSpec(f"{TIMERS}{self.name}", (), (Column(DUE, "timestamp"),), DUE, {DUE: "least"})

    @cached_property
    def row_schema(self) -> pa.Schema:
        columns = (*self.kept.key, *self.kept.columns)
        return pa.schema([(each.name, arrow_type(each.type)) for each in columns])

    def rows(self, records: pa.Table, late: Flags) -> pa.Table:
        """Records as they are kept."""
        own = {
            AT: column(records, self.time).cast(pa.int64()),
            ARRIVED: column(records, "_arrived_at"),
            LATE: pa.array(late),
            MATCH: pa.array(np.full(len(late), WAITING, np.int32)),
        }
        schema = self.row_schema
        columns = [own[name] if name in own else column(records, name) for name in schema.names]
        return pa.table([cast_to(each, kind) for each, kind in zip(columns, schema.types, strict=True)], schema=schema)

    def column(self, rows: pa.Table, name: str) -> pa.Array:
        """A column of the input, of rows as they are kept."""
        if name != self.time or name in self.by:
            return column(rows, name)
        return cast_to(column(rows, AT), pa.int64()).cast(self.schema.field(name).type)


@dataclass(frozen=True)
class Judged:
    """The records of a batch as rows. `alone`: accepted ones with a null in their key, of an outer side."""

    accepted: pa.Table
    alone: pa.Table
    dropped: pa.Table
    on_time: int = 0
    corrected: int = 0
    untimed: int = 0

    @property
    def rows(self) -> pa.Table:
        """Those that are, or were, in results."""
        return pa.concat_tables([self.accepted, self.alone])

    @property
    def verdicts(self) -> tuple[int, int, int, int]:
        return self.on_time, self.corrected, self.dropped.num_rows, self.untimed


@dataclass
class Rows:
    """A side's rows in a step: `old` ones, which are kept and stay, then `gone` ones, then new ones. `key`: a number
    for each key, the same on both sides; negative where there is a null. `comes`, `goes`: how many of its pairs do."""

    side: Side
    table: pa.Table
    old: int
    gone: int
    key: I64

    def __post_init__(self) -> None:
        self.at = us_column(self.table[AT])
        number = np.arange(len(self.at))
        self.new: Flags = number >= self.old + self.gone
        self.going: Flags = (number >= self.old) & ~self.new
        self.comes: I64 = np.zeros(len(self.at), np.int64)
        self.goes: I64 = self.comes

    def lasting(self, gone_us: int | None) -> Flags:
        """Which may meet a record that is still to come: not those up to `gone_us`."""
        keyed: Flags = (self.key >= 0) & ~self.going
        return keyed if gone_us is None else keyed & (self.at > gone_us)


@dataclass(frozen=True)
class Told:
    """Rows that go or come: the numbers of the left and the right row of each; -1 for none."""

    left: I64
    right: I64


@dataclass
class Written:
    """What a step writes, as it is collected."""

    puts: dict[str, pa.Table] = field(default_factory=dict)
    deletes: dict[str, pa.Table] = field(default_factory=dict)
    adds: dict[str, pa.Table] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Wait:
    """Which records no longer wait for a match: those up to `upto_us`; None: all wait. `from_us`: the first that did
    so far may have that time; None: none did."""

    upto_us: int | None = None
    from_us: int | None = None


@dataclass(frozen=True)
class IntervalJoin:
    """`on`: pairs of (left, right) columns that are equal. `before_us`, `after_us`: how long before and after the left
    record the right one may be. `retracts`: whether records of one of the inputs can be taken back."""

    left: pa.Schema
    right: pa.Schema
    on: tuple[tuple[str, str], ...]
    left_time: str
    right_time: str
    before_us: int
    after_us: int
    how: How
    grace_us: int
    within_us: int
    suffix: str = "_right"
    retracts: bool = False
    _names: dict[str, tuple[str | None, str | None]] = field(init=False, repr=False, compare=False)
    """The columns of a row but for its time: of which left column, or else of which right one, it is made."""

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise InvalidArgument("how", self.how, f"must be one of {', '.join(map(repr, HOWS))}")
        for argument in ("before", "after", "grace", "within"):
            us = getattr(self, f"{argument}_us")
            if not 0 <= us <= LONGEST_US:
                raise InvalidArgument(argument, us, "must be between 0 and 1000 years")
        _check_columns(self.left, self.right, self.on)
        for schema, name in ((self.left, self.left_time), (self.right, self.right_time)):
            if name not in schema.names or not types.is_timestamp(schema.field(name).type):
                raise InvalidArgument("time", name, "must be a column of its input, and a timestamp")
        left, right = (
            _without_time(schema, time, names)
            for schema, time, names in zip(
                (self.left, self.right), (self.left_time, self.right_time), zip(*self.on, strict=True), strict=True
            )
        )
        object.__setattr__(self, "_names", _row_names(left, right, self.on, self.suffix))

    # -- what it is ------------------------------------------------------------------------------------

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        left, right = zip(*self.on, strict=True)
        return (
            Side("left", self.left, left, self.left_time, self.after_us, self.how in ("left", "full")),
            Side("right", self.right, right, self.right_time, self.before_us, self.how in ("right", "full")),
        )

    @property
    def _both(self) -> tuple[tuple[Side, Side], tuple[Side, Side]]:
        """Each side, with the other."""
        left, right = self.sides
        return (left, right), (right, left)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(Input(side.name, columns_of(side.schema), side.by, changes=self.retracts) for side in self.sides)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (*(side.kept for side in self.sides), *(side.due for side in self.sides if side.outer))

    @property
    def output(self) -> Output:
        fields = [
            pa.field(name, (self.right.field(two) if one is None else self.left.field(one)).type)
            for name, (one, two) in self._names.items()
        ]
        columns = (*columns_of(pa.schema(fields)), Column(JOINED_AT, "timestamp"))
        return Output(None, JOINED_AT, FINAL_AT, columns, (ID,))

    @property
    def timers(self) -> tuple[Timer, ...]:
        """A record's row without a match is due when the other side's frontier is past (>) the time in the table."""
        return tuple(Timer(side.due.name, other.name) for side, other in self._both if side.outer)

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def reset(self) -> None:
        """It knows nothing between steps."""

    # -- time ------------------------------------------------------------------------------------------

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        left, right = (times[side.name] for side in self.sides)
        return InputTimes(
            self._ahead_us(left.frontier_us, right.frontier_us, self.grace_us),
            self._ahead_us(left.reach_us, right.reach_us, self.grace_us + self.within_us),
        )

    def _ahead_us(self, left_us: int | None, right_us: int | None, less_us: int) -> int | None:
        """A row without a match has its record's time, and comes when the *other* side is past its interval."""
        if left_us is None or right_us is None:
            return None
        left, right = self.sides
        us = min(left_us - right.end_us * right.outer, right_us - left.end_us * left.outer) - less_us
        return us if us >= INSTANT_MIN_US else None

    def behind_us(self, column: str | None) -> int | None:
        """How far the times in a column of the rows may be before `joined_at`; None: that is not known."""
        if column == JOINED_AT:
            return 0
        one, two = self._names.get(column or "", (None, None))
        if one is not None:
            return self.after_us if one == self.left_time else None
        return self.before_us if two == self.right_time else None

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        """A row is final when its `/final_at` is before that; None: none is."""
        left, right = (times[side.name].frontier_us for side in self.sides)
        return None if left is None or right is None else min(left, right)

    def _gone_us(self, side: Side, other: InputTimes) -> int | None:
        """Records up to that time meet none that is still to come."""
        if other.reach_us is None:
            return None
        return other.reach_us - 1 - side.end_us - self.grace_us - self.within_us

    # -- one step --------------------------------------------------------------------------------------

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],
        *,
        changes: bool,  # noqa: ARG002 (what goes on is what the step is for)
    ) -> Step:
        read = [gone_and_come(batch[side.name]) if side.name in batch else (None, None) for side in self.sides]
        gone = [self._judged(side, records) for side, (records, _) in zip(self.sides, read, strict=True)]
        new = [self._judged(side, records) for side, (_, records) in zip(self.sides, read, strict=True)]
        waits = [self._wait(side, times[other.name], state) for side, other in self._both]
        old = [self._old(*self._both[n], gone[n], (gone[1 - n], new[1 - n]), waits[n], state) for n in (0, 1)]
        left, right = self._numbered(
            old, [self._as_kept(*each, state) for each in zip(self.sides, gone, strict=True)], new
        )
        back, pairs = self._pairs(left, right)
        went, come, written = [back], [pairs], Written()
        for rows, wait, (side, other) in zip((left, right), waits, self._both, strict=True):
            gone_us = self._gone_us(side, times[other.name])
            lasting, changed, table = rows.lasting(gone_us), rows.new, rows.table
            if side.outer:
                match, taken_back, alone = _unmatched(rows, wait, count=self.retracts)
                went.append(_of_one_side(side, taken_back))
                come.append(_of_one_side(side, alone))
                changed = changed | (match != column(table, MATCH).to_numpy())
                self._put_due(side, rows.at[changed & lasting & (match == WAITING)], wait, state, written)
                table = table.set_column(table.column_names.index(MATCH), MATCH, pa.array(match.astype(np.int32)))
            if (changed & lasting).any():
                written.puts[side.kept.name] = _some(table, changed & lasting)
            if (rows.going & (rows.key >= 0)).any():
                written.deletes[side.kept.name] = _some(table, rows.going & (rows.key >= 0)).select(side.kept.key_names)
            if gone_us is not None:
                written.drops[side.kept.name] = gone_us
        writes = Writes(written.puts, written.adds, written.deletes, written.drops)
        return Step(writes, self._changes(left, right, went, come), _ledger(gone, new), self._dropped(new))

    def _judged(self, side: Side, records: pa.Table | None) -> Judged:
        none = side.row_schema.empty_table()
        if records is None or not records.num_rows:
            return Judged(none, none, none)
        timed = column(records, side.time).is_valid()
        untimed = len(timed) - timed.true_count
        records = records.filter(timed) if untimed else records
        on_time_us = us_column(records[side.time]) + self.grace_us
        progress_us = column(records, "_progress").cast(pa.int64()).fill_null(UNSET).to_numpy()
        late, gone = progress_us > on_time_us, progress_us > on_time_us + self.within_us
        rows = side.rows(records, late)
        null = np.zeros(rows.num_rows, np.bool_)
        for name in side.by:
            if records[name].null_count:
                null |= np.asarray(column(records, name).is_null())
        return Judged(
            _some(rows, ~gone & ~null),
            _some(rows, ~gone & null) if side.outer else none,
            _some(rows, gone),
            int((~late).sum()),
            int((late & ~gone).sum()),
            untimed,
        )

    def _wait(self, side: Side, other: InputTimes, state: State) -> Wait:
        known = [us for us in (other.frontier_us, other.reach_us) if us is not None]
        if not side.outer or not known:
            return Wait()
        past_us, behind_us = max(known) - 1, side.end_us + self.grace_us
        least = us_column(state.due(side.due.name, past_us, 1)[DUE]).tolist()
        return Wait(past_us - behind_us, least[0] - behind_us if least else None)

    def _old(
        self, side: Side, other: Side, gone: Judged, met_by: Sequence[Judged], wait: Wait, state: State
    ) -> pa.Table:
        """The side's kept rows that stay: those that rows of the other side, which come or go, may meet, and those that
        no longer wait for a match."""
        met = self._met(side, other, pa.concat_tables([each.accepted for each in met_by]), state)
        if wait.upto_us is not None and wait.from_us is not None:
            due = state.due(side.kept.name, wait.upto_us, after_us=wait.from_us - 1)
            due = due.filter(pc.equal(due[MATCH], WAITING))
            met = pa.concat_tables([met, _without(due, met)])
        return _without(met, gone.accepted)

    def _as_kept(self, side: Side, gone: Judged, state: State) -> pa.Table:
        """Rows that go, with their match. One that is not kept any more, and has no partner, was published without."""
        rows = gone.rows
        if not side.outer or not rows.num_rows:
            return rows
        keys = rows.select(side.kept.key_names)
        kept = state.get(side.kept.name, keys)
        at = aligned(keys, kept, keys.column_names)
        known = np.append(column(kept, MATCH).to_numpy(), UNMATCHED)[at]  # -1 is the last
        return rows.set_column(rows.column_names.index(MATCH), MATCH, pa.array(known.astype(np.int32)))

    def _met(self, side: Side, other: Side, new: pa.Table, state: State) -> pa.Table:
        last_us = state.last_us(side.kept.name) if new.num_rows else None
        if last_us is None:
            return side.row_schema.empty_table()
        new = _some(new, us_column(new[AT]) - side.end_us <= last_us)
        at = us_column(new[AT])
        key = row_numbers([column(new, name) for name in other.by], new.num_rows)
        span, first, last = joined(key, at - side.end_us, at + other.end_us, 0)
        prefixes = keys_of(new, other.by, np.unique(span, return_index=True)[1]).rename_columns(list(side.by))
        return state.scan(side.kept.name, prefixes, first.tolist(), last.tolist())

    def _numbered(self, old: Sequence[pa.Table], gone: Sequence[pa.Table], new: Sequence[Judged]) -> tuple[Rows, Rows]:
        tables = [
            pa.concat_tables([was, goes, comes.rows]).combine_chunks()
            for was, goes, comes in zip(old, gone, new, strict=True)
        ]
        keys = [
            pa.concat_arrays([column(rows, name) for rows, name in zip(tables, names, strict=True)])
            for names in self.on
        ]
        counts = [rows.num_rows for rows in tables]
        number = np.split(row_numbers(keys, sum(counts)), counts[:1])
        nulls = np.zeros(sum(counts), np.bool_)
        for each in keys:
            nulls |= np.asarray(each.is_null()) if each.null_count else False
        for n, null in enumerate(np.split(nulls, counts[:1])):
            number[n][null] = -1 - n  # nobody's on the other side
        left, right = (
            Rows(side, rows, was.num_rows, goes.num_rows, key)
            for side, rows, was, goes, key in zip(self.sides, tables, old, gone, number, strict=True)
        )
        return left, right

    def _pairs(self, left: Rows, right: Rows) -> tuple[Told, Told]:
        """The pairs that go, of rows that were there, and those that come, of rows that are there now."""
        old_left = ~left.going & ~left.new
        back = _both_of(self._meet(left, left.going, right, ~right.new), self._meet(left, old_left, right, right.going))
        come = _both_of(self._meet(left, left.new, right, ~right.going), self._meet(left, old_left, right, right.new))
        for rows, gone, new in ((left, back.left, come.left), (right, back.right, come.right)):
            rows.goes, rows.comes = (np.bincount(each, minlength=len(rows.at)) for each in (gone, new))
        return back, come

    def _meet(self, left: Rows, some: Flags, right: Rows, others: Flags) -> Told:
        """Pairs of some of the left rows with some of the right ones."""
        one, two = np.flatnonzero(some), np.flatnonzero(others)
        low, high = left.at[one] - self.before_us, left.at[one] + self.after_us
        mine, theirs = _within(left.key[one], low, high, right.key[two], right.at[two])
        return Told(one[mine], two[theirs])

    def _put_due(self, side: Side, new: I64, wait: Wait, state: State, written: Written) -> None:
        """Until when none is due: until the first record that waits no longer does. `new`: times of new ones."""
        behind_us = side.end_us + self.grace_us
        if wait.upto_us is not None:
            written.drops[side.due.name] = wait.upto_us + behind_us
        if wait.from_us is not None:
            old = state.due(side.kept.name, INSTANT_MAX_US, 1, after_us=wait.upto_us)
            new = np.append(new, us_column(old[AT]))
        if len(new):
            written.adds[side.due.name] = pa.table({DUE: time_column(new.min(keepdims=True) + behind_us)})

    # -- what comes out --------------------------------------------------------------------------------

    def _changes(self, left: Rows, right: Rows, gone: Sequence[Told], come: Sequence[Told]) -> pa.Table:
        one = np.concatenate([each.left for each in (*gone, *come)])
        two = np.concatenate([each.right for each in (*gone, *come)])
        back = sum(len(each.left) for each in gone)
        both = ((left, one), (right, two))
        at = np.maximum(*(_picked(rows.at, numbers, UNSET) for rows, numbers in both))
        arrived = np.maximum(*(_picked(us_column(rows.table[ARRIVED]), numbers, UNSET) for rows, numbers in both))
        late = [_picked(np.asarray(column(rows.table, LATE)).astype(np.int64), numbers, 0) for rows, numbers in both]
        ids = [_in_brackets(column(rows.table, ID)).take(_indices(numbers)).fill_null("") for rows, numbers in both]
        end = np.where(two < 0, self.after_us, np.where(one < 0, self.before_us, 0))
        return pa.table(
            {
                OP: pa.concat_arrays([pa.repeat("-", back), pa.repeat("+", len(one) - back)]),
                **self._visible(left.table, right.table, one, two),
                JOINED_AT: time_column(at),
                ID: pc.binary_join_element_wise(*ids, "|"),
                FINAL_AT: time_column(at + end + self.grace_us),
                "_corrections": pa.array(late[0] + late[1]),
                "_updated_at": time_column(arrived),
                "_progress": time_column(at),  # a row is never late, and reach does not pass it before it comes
            }
        )

    def _visible(self, left: pa.Table, right: pa.Table, one: I64, two: I64) -> dict[str, pa.Array]:
        """What readers see of rows, but for their time."""
        tables, numbers = (left, right), (_indices(one), _indices(two))
        made = {}
        for name, sources in self._names.items():
            parts = [
                side.column(rows, source).take(number)
                for side, rows, source, number in zip(self.sides, tables, sources, numbers, strict=True)
                if source is not None
            ]
            made[name] = parts[0] if len(parts) == 1 else pc.coalesce(*parts)  # a shared key: of whichever is there
        return made

    def _dropped(self, judged: Sequence[Judged]) -> pa.Table | None:
        """As rows without a match have them: columns of the other side are null. With `ID` and `INPUT`, their input."""
        left, right = (each.dropped for each in judged)
        if not left.num_rows and not right.num_rows:
            return None
        nobody = [np.full(rows.num_rows, -1, np.int64) for rows in (left, right)]
        one = np.concatenate((np.arange(left.num_rows), nobody[1]))
        two = np.concatenate((nobody[0], np.arange(right.num_rows)))
        names = [pa.repeat(side.name, rows.num_rows) for side, rows in zip(self.sides, (left, right), strict=True)]
        ids = pa.concat_arrays([column(left, ID), column(right, ID)])
        return pa.table({**self._visible(left, right, one, two), INPUT: pa.concat_arrays(names), ID: ids})


# -- checks --------------------------------------------------------------------------------------------------


def _check_columns(left: pa.Schema, right: pa.Schema, on: tuple[tuple[str, str], ...]) -> None:
    if not on or any(len({*names}) < len(names) for names in zip(*on, strict=True)):
        raise InvalidArgument("on", on, "must name columns in which the records of a pair are equal, each once")
    for one, two in on:
        for side, schema, name in (("left", left, one), ("right", right, two)):
            if name not in schema.names:
                raise InvalidArgument("on", name, f"the {side} input has no such column: {', '.join(schema.names)}")
        kinds = left.field(one).type, right.field(two).type
        if kinds[0] != kinds[1]:
            said = " and ".join(map(type_ddl, kinds))
            raise InvalidArgument("on", (one, two), f"are of types {said}: cast one of them in a transform")


def _without_time(schema: pa.Schema, time: str, on: Sequence[str]) -> pa.Schema:
    """Of rows of a join, without their `joined_at`: that of the next join takes its place."""
    own = time == JOINED_AT and JOINED_AT not in on
    return schema.remove(schema.get_field_index(JOINED_AT)) if own else schema


def _row_names(
    left: pa.Schema, right: pa.Schema, on: tuple[tuple[str, str], ...], suffix: str
) -> dict[str, tuple[str | None, str | None]]:
    shared = {one for one, two in on if one == two}
    names: dict[str, tuple[str | None, str | None]] = {
        name: (name, name if name in shared else None) for name in left.names
    }
    theirs = [name for name in right.names if name not in shared]
    mine, known = {name.lower() for name in left.names}, [name.lower() for name in theirs]  # as Spark and SQL know them
    for name in theirs:
        taken = name.lower() in mine
        seen = name + suffix if taken else name
        if seen.lower() in map(str.lower, names) or (taken and seen.lower() in known):
            why = f"both inputs have a column {name!r}, and {seen!r} is taken, too: choose another suffix"
            raise InvalidArgument("suffix", suffix, why)
        names[seen] = (None, name)
    if JOINED_AT in map(str.lower, names):
        raise InvalidArgument("column", JOINED_AT, "is the name of a joined row's time: give yours another one")
    return names


# -- rows ----------------------------------------------------------------------------------------------------


def _within(key: I64, low: I64, high: I64, their_key: I64, their_at: I64) -> tuple[I64, I64]:
    """The numbers of rows with the same key, the other's time in [low, high]."""
    if not len(key) or not len(their_key):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    times, rank = np.unique(their_at, return_inverse=True)
    width = len(times) + 1
    place = their_key * width + rank.reshape(-1)  # ordered by key, then by time
    order = np.argsort(place, kind="stable")
    place = place[order]
    begin = np.searchsorted(place, key * width + np.searchsorted(times, low, "left"))
    count = np.searchsorted(place, key * width + np.searchsorted(times, high, "right")) - begin
    behind = np.repeat(np.cumsum(count) - count, count)
    theirs = order[np.repeat(begin, count) + np.arange(len(behind)) - behind]
    return np.repeat(np.arange(len(key)), count), theirs


def _unmatched(rows: Rows, wait: Wait, *, count: bool) -> tuple[I64, I64, I64]:
    """What `MATCH` of the rows becomes; of which the row without a match goes, and of which it comes. `count`: how many
    matches a row has matters."""
    was = column(rows.table, MATCH).to_numpy().astype(np.int64)
    over = rows.key < 0
    if wait.upto_us is not None:
        over |= rows.at <= wait.upto_us
    matches = np.maximum(was, 0) + rows.comes - rows.goes
    matches = matches if count else np.minimum(matches, 1)
    alone = (matches == 0) & (was != UNMATCHED) & over & ~rows.going
    match = np.where(matches > 0, matches, np.where(alone | (was == UNMATCHED), UNMATCHED, WAITING))
    back = (was == UNMATCHED) & np.where(rows.going, rows.goes == 0, matches > 0)
    return np.where(rows.going, was, match), np.flatnonzero(back), np.flatnonzero(alone)


def _of_one_side(side: Side, numbers: I64) -> Told:
    nobody = np.full(len(numbers), -1, np.int64)
    return Told(numbers, nobody) if side.name == "left" else Told(nobody, numbers)


def _both_of(one: Told, other: Told) -> Told:
    return Told(np.concatenate((one.left, other.left)), np.concatenate((one.right, other.right)))


def _ledger(gone: Sequence[Judged], new: Sequence[Judged]) -> tuple[LedgerRow, ...]:
    """Each record once, by its verdict; one that goes is counted no more."""
    counts = [sum(sign * each.verdicts[n] for sign, some in ((-1, gone), (1, new)) for each in some) for n in range(4)]
    return (LedgerRow(None, None, *counts),) if any(counts) else ()


def _without(rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows but for those with the ids of the others."""
    if not rows.num_rows or not others.num_rows:
        return rows
    return rows.filter(pc.invert(pc.is_in(column(rows, ID), column(others, ID))))


def _some(rows: pa.Table, flags: Flags) -> pa.Table:
    return rows if bool(flags.all()) else rows.filter(pa.array(flags))


def _in_brackets(ids: pa.Array) -> pa.Array:
    """Ids of rows that a join has made are of several records: in brackets, none of their pairs looks like another."""
    several = pc.match_substring(ids, "|")
    if not several.true_count:
        return ids
    return pc.if_else(several, pc.binary_join_element_wise("(", ids, ")", ""), ids)


def _indices(numbers: I64) -> pa.Array:
    """For `take`: null for -1."""
    none = numbers < 0
    return pa.array(numbers, mask=none if none.any() else None)


def _picked(values: I64, numbers: I64, none: int) -> I64:
    picked: I64 = np.append(values, none)[numbers]  # -1 is the last
    return picked
