"""Patterns: which events of a key match. Owns the events that a match still to come, or a match that can still change,
may need, and the partial match that each key waits with. What matches is `cep.matcher`'s.

The matches of a key are what a scan from left to right finds in its accepted events, ordered by time, partition and
offset: a function of the events alone. An event is judged by its own time and progress: on time up to its time + grace,
corrected up to that + within, then dropped.

A match is told as soon as it is certain if no event comes out of order; an absence, or a partial match that timed
out, when the frontier has passed its end + grace. A row is final when the frontier is past its start + the pattern's
`within` + grace: what comes later is behind all that the match looked at.

Each event is kept with the time up to which it is needed (`NEEDED`): the largest time that an attempt at it or before
it has looked at. An event still to come has a time of at least reach - grace - late: so an event that is needed up to a
time before that goes, by that one column. What is needed never falls from event to event, and rises where an attempt
begins: so events go from the front, and the first that stays is one at which an attempt begins. Reach alone drops.

An event that comes behind all that was looked at continues the scan where it stopped: at the open attempt, or at
itself. Any other one (a straggler, or one that is taken back) has the scan made twice over what is kept of its key,
without and with it: what the one finds and the other does not goes, or comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates.groups import row_numbers
from headrace.cep import matcher
from headrace.cep.conditions import marks_of
from headrace.cep.definition import Pattern, parts_of
from headrace.cep.evaluate import Compiler, Summary
from headrace.cep.fitting import check_conditions
from headrace.cep.matcher import LIMITS, Attempt, Limits, Scan
from headrace.durations import INSTANT_MIN_US
from headrace.errors import InvalidArgument, nearest
from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.joins.rows import FINAL_AT, ID, gone_and_come
from headrace.operators.patterns.judging import Judged, judge, ledger_of
from headrace.operators.patterns.match_rows import (
    ARRIVED,
    AT,
    END,
    LATE,
    OUTCOME,
    START,
    SYMBOL,
    MatchRows,
    Taken,
    place_of,
)
from headrace.operators.records import columns_of
from headrace.operators.result_rows import aligned, column, differ, key_numbers
from headrace.schema import type_ddl
from headrace.views.contract import PARTIALS
from headrace.views.keyed import Column, State, TableSpec, Writes
from headrace.views.values import arrow_type, cast_to, time_column, us_column

__all__ = ["EVENTS", "INPUT", "NEVER", "MatchPattern", "Span"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
EVENTS, INPUT = "events", "events"
MARKS, NEEDED = "/marks", "/needed"
LAST_AT, ROWS, WAITS_FOR, UNTIL, DUE = "last_at", "rows", "waits_for", "until", "/due"
NEVER = 2**62
"""A time that does not come."""
LONGEST_US = 365_250 * 86_400_000_000


@dataclass
class Events:
    """The events of a step: kept ones, of which some go, then new ones. `key`: a number for each key; `order`: by key,
    then in the order of the scan."""

    table: pa.Table
    key: I64
    old: int
    gone: Flags
    order: I64
    at: I64
    marks: I64


@dataclass(frozen=True, slots=True)
class Span:
    """`frontier_us`: no event is expected whose time is before that; `bound_us`: none can come. `ends_us`: where the
    frontier stands still, as nobody looks any more; `told_us`: where it did, when what is known was found."""

    frontier_us: int
    bound_us: int
    ends_us: int = NEVER
    told_us: float = NEVER

    @property
    def now_us(self) -> int:
        return min(self.frontier_us, self.ends_us)


@dataclass
class Found:
    """What the scans of all keys came to. `needed`: of each event that was scanned; -NEVER of others."""

    needed: I64
    taken: list[Taken] = field(default_factory=list)
    opened: list[tuple[Attempt, I64]] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class MatchPattern:
    """`events`: the columns of the input, with those that Spark computes. `late_us`: for how long behind grace a late
    event still corrects. `keeps`: the columns of the table of events, where several patterns share it. `together`: the
    measures are one column, as JSON. `limits`: of one attempt."""

    events: pa.Schema
    by: tuple[str, ...]
    time: str
    pattern: Pattern
    grace_us: int
    late_us: int
    retracts: bool = False
    keeps: tuple[str, ...] | None = None
    together: bool = False
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        for argument, us in (("grace", self.grace_us), ("late", self.late_us)):
            if not 0 <= us <= LONGEST_US:
                raise InvalidArgument(argument, us, "must be between 0 and 1000 years")
        names = [name for name in self.events.names if not name.startswith("/")]
        for name in self.by:
            if name not in names:
                raise InvalidArgument("by", name, f"the events have no such column.{nearest(name, names)}")
            if name.lower() in {START, LAST_AT, ROWS, WAITS_FOR, UNTIL, OUTCOME, END, SYMBOL} or name == self.time:
                raise InvalidArgument("by", name, "is also a column of matches, or the events' time: rename it before")
        if self.time not in names or not types.is_timestamp(self.events.field(self.time).type):
            raise InvalidArgument("time", self.time, "must be a column of the events, and a timestamp")
        order_by = self.pattern.order_by
        if order_by is not None and order_by != self.time:
            why = f"the events are ordered by their event time, {self.time!r}: name that in ORDER BY"
            raise InvalidArgument("order_by", order_by, why)
        check_conditions(self.pattern, self._types)
        taken = [name.lower() for name, _ in self._told.columns]
        for name in taken:
            if taken.count(name) > 1:
                why = f"the matches have two columns {name!r}: give the measure, or the events' column, another name"
                raise InvalidArgument("measures", name, why)

    # -- what it is ------------------------------------------------------------------------------------

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in self.events}

    @cached_property
    def _told(self) -> MatchRows:
        return MatchRows(self._types, self.by, self.time, self.pattern, self.grace_us, self.together)

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        """Of the events, those that conditions over several rows and measures look at."""
        compiler = Compiler(self.pattern.symbols, self._types)
        trees = [each.history for each in parts_of(self.pattern).conditions] + [
            tree for _, tree in parts_of(self.pattern).measure_trees
        ]
        for tree in trees:
            if tree is not None:
                compiler.value(tree, {})
        return tuple(compiler.columns)

    @cached_property
    def _kept(self) -> TableSpec:
        key = [Column(name, type_ddl(self._types[name])) for name in self.by]
        known = dict.fromkeys((*self._columns, *self._told.passed) if self.keeps is None else self.keeps)
        rest = [pa.field(name, self._types[name]) for name in known if name not in (*self.by, self.time)]
        own = (
            Column(MARKS, "bigint"),
            Column(LATE, "boolean"),
            Column(ARRIVED, "timestamp"),
            Column(NEEDED, "timestamp"),
        )
        at = (Column(AT, "timestamp"), Column(ID, "string"))
        return TableSpec(EVENTS, (*key, *at), (*columns_of(pa.schema(rest)), *own), NEEDED)

    @cached_property
    def _partials(self) -> TableSpec:
        """What each key waits for: its open attempt. Readers see it."""
        key = tuple(Column(name, type_ddl(self._types[name])) for name in self.by)
        columns = (
            Column(START, "timestamp"),
            Column(LAST_AT, "timestamp"),
            Column(ROWS, "int"),
            Column(WAITS_FOR, "string"),
            Column(UNTIL, "timestamp"),
            Column(ID, "string"),
            Column(DUE, "timestamp"),
        )
        return TableSpec(PARTIALS, key, columns, DUE)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input(INPUT, columns_of(self.events), self.by, changes=self.retracts),)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self._kept, self._partials

    @property
    def output(self) -> Output:
        return Output(None, END, FINAL_AT, columns_of(pa.schema(self._told.columns)), (ID,))

    @property
    def timers(self) -> tuple[Timer, ...]:
        return (Timer(PARTIALS, INPUT),)

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def reset(self) -> None:
        """It knows nothing between steps."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}

    # -- time ------------------------------------------------------------------------------------------

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        now, behind_us = times[INPUT], self.pattern.within_us + self.grace_us
        return InputTimes(_before(now.frontier_us, behind_us), _before(now.reach_us, behind_us + self.late_us))

    def behind_us(self, column: str | None) -> int | None:
        """How far the times in a column of the rows may be before `match_end`; None: that is not known."""
        return {END: 0, START: self.pattern.within_us}.get(column or "")

    def _bound_us(self, now: InputTimes) -> int:
        """No event still to come has an earlier time."""
        return -NEVER if now.reach_us is None else now.reach_us - self.grace_us - self.late_us

    # -- one step --------------------------------------------------------------------------------------

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],
        *,
        changes: bool,  # noqa: ARG002 (what goes on is what the step is for)
    ) -> Step:
        now = times.get(INPUT) or InputTimes(None, None)
        frontier_us = -NEVER if now.frontier_us is None else now.frontier_us
        bound_us = self._bound_us(now)
        went, came = gone_and_come(batch[INPUT]) if INPUT in batch else (None, None)
        shown = [name for name in self.events.names if not name.startswith("/")]
        gone, new = (judge(each, self.time, self.grace_us, self.late_us, shown) for each in (went, came))
        due = state.due(PARTIALS, frontier_us - 1) if frontier_us > -NEVER else None
        made = self.fold(gone, new, due, state, Span(frontier_us, bound_us))
        drops = {} if bound_us == -NEVER else {EVENTS: bound_us - 1}
        dropped = new.dropped if new.dropped is not None and new.dropped.num_rows else None
        writes = replace(made.writes, drops=drops)
        return replace(made, writes=writes, ledger=ledger_of(gone, new), dropped=dropped)

    def fold(
        self,
        gone: Judged,
        new: Judged,
        due: pa.Table | None,
        state: State,
        span: Span,
        ended: pa.Table | None = None,
    ) -> Step:
        """What accepted events change. `due`: partial matches whose time is over. `ended`: keys whose span has got an
        end with this step. Where a span has an end, partial matches that wait beyond it are in no table, so each key
        that is touched is scanned again."""
        gone_rows, new_rows = self._rows(gone), self._rows(new)
        if parts_of(self.pattern).is_one_row:
            return Step(changes=self._one_row_matches(gone_rows, new_rows))
        named = [gone_rows, new_rows, *(each for each in (ended, due) if each is not None)]
        keys, numbers = self._keys(named)
        if not keys.num_rows:
            return Step()
        partials = state.get(PARTIALS, keys)
        again = np.zeros(keys.num_rows, np.bool_)
        again[numbers[0]] = True
        if span.ends_us < NEVER:
            again[:] = True
        known, needed_us = self._read(keys, again, numbers[1], new_rows, partials, state)
        events = self._events(keys, known, gone_rows, new_rows)
        found = self._scanned(events, needed_us, again, partials, span)
        puts, deletes = self._kept_writes(events, found.needed, span.bound_us)
        self._partial_writes(events, found, partials, span, puts, deletes)
        changed = self._told.changes(events.table, found.taken) if found.taken else None
        letters = self._told.letters(events.table, found.given_up, self.limits)
        return Step(Writes(puts, {}, deletes), changed, letters=letters)

    def _one_row_matches(self, gone: pa.Table, new: pa.Table) -> pa.Table | None:
        """Of a pattern of one row, whose matches need no state."""
        both = pa.concat_tables([gone, new])
        found = np.flatnonzero(column(both, MARKS).to_numpy() & parts_of(self.pattern).program.first)
        taken = [Taken("match", (0,), (at,), comes=at >= gone.num_rows) for at in found.tolist()]
        return self._told.changes(both, taken) if taken else None

    @cached_property
    def _row_schema(self) -> pa.Schema:
        return pa.schema([(each.name, arrow_type(each.type)) for each in (*self._kept.key, *self._kept.columns)])

    def _rows(self, judged: Judged) -> pa.Table:
        """Events as they are kept. What shares their table with others leaves the columns empty that it does not
        need."""
        schema, records = self._row_schema, judged.records
        if records is None or not records.num_rows:
            return schema.empty_table()
        marks = marks_of(parts_of(self.pattern).row_conditions, self.pattern.symbols, records)
        at = column(records, self.time)
        own = {
            AT: at.cast(pa.int64()),
            MARKS: pa.array(marks),
            LATE: pa.array(judged.late),
            ARRIVED: column(records, "_arrived_at"),
            NEEDED: at.cast(pa.int64()),
        }
        if self.keeps is not None:
            needed = {*self.by, ID, *self._columns, *self._told.passed}
            own |= {name: pa.nulls(len(at)) for name in schema.names if name not in needed and name not in own}
        columns = [own[name] if name in own else column(records, name) for name in schema.names]
        return pa.table([cast_to(each, kind) for each, kind in zip(columns, schema.types, strict=True)], schema=schema)

    # -- what is read ----------------------------------------------------------------------------------

    def _keys(self, tables: Sequence[pa.Table]) -> tuple[pa.Table, list[I64]]:
        """The keys of these rows, each once; and for each table the numbers of its rows' keys."""
        sizes = [each.num_rows for each in tables]
        whole = pa.concat_tables([each.select(list(self.by)) for each in tables])
        number = row_numbers([column(whole, name) for name in self.by], whole.num_rows)
        _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
        return whole.take(pa.array(first)), np.split(inverse.reshape(-1), np.cumsum(sizes)[:-1])

    def _numbers(self, keys: pa.Table, rows: pa.Table) -> I64:
        """For each row the number of its key."""
        return key_numbers(keys, rows.select(list(self.by)))[1]

    def _read(
        self, keys: pa.Table, again: Flags, new_key: I64, new: pa.Table, partials: pa.Table, state: State
    ) -> tuple[pa.Table, I64]:
        """Kept events from which the scan goes on; by key, up to when events before these are needed. `again`: by key,
        whether all of it is scanned again; others that must be are added."""
        count = keys.num_rows
        start_us = np.full(count, NEVER, np.int64)
        start_us[self._numbers(keys, partials)] = us_column(partials[START])
        first_us = np.full(count, NEVER, np.int64)
        np.minimum.at(first_us, new_key, us_column(new[AT]))
        low = np.minimum(start_us, first_us)
        low[again] = INSTANT_MIN_US
        known = state.scan(EVENTS, keys, low.tolist(), floor=True)
        number, at = self._numbers(keys, known), us_column(known[AT])
        before = at < start_us[number]
        needed_us = np.full(count, -NEVER, np.int64)
        np.maximum.at(needed_us, number[before], us_column(known[NEEDED])[before])
        beside = np.zeros(count, np.int64)
        np.add.at(beside, number[at == start_us[number]], 1)
        again |= (needed_us >= first_us) | (first_us <= start_us) & (start_us < NEVER) | (beside > 1)
        rows = known.filter(pa.array(~before & ~again[number]))
        if again.any():
            rows = pa.concat_tables([rows, state.scan(EVENTS, keys.filter(pa.array(again)))])
            needed_us[again] = -NEVER
        return rows, needed_us

    def _events(self, keys: pa.Table, known: pa.Table, gone: pa.Table, new: pa.Table) -> Events:
        table = pa.concat_tables([known, new]).combine_chunks()
        key = self._numbers(keys, table)
        at = us_column(table[AT])
        going = np.zeros(table.num_rows, np.bool_)
        if gone.num_rows:
            going[: known.num_rows] = np.asarray(pc.is_in(column(known, ID), column(gone, ID)))
        order = np.lexsort((at, key))
        same = np.flatnonzero((np.diff(at[order]) == 0) & (np.diff(key[order]) == 0))
        if len(same):
            _sort_ties(order, same, table)
        marks = column(table, MARKS).to_numpy()
        return Events(table, key, known.num_rows, going, order, at, marks)

    # -- the scans -------------------------------------------------------------------------------------

    def _scanned(self, events: Events, needed_us: I64, again: Flags, partials: pa.Table, span: Span) -> Found:
        found = Found(np.full(events.table.num_rows, -NEVER, np.int64))
        there = events.order[~events.gone[events.order]]
        settings = matcher.Settings(
            self.pattern.within_us, self.grace_us, parts_of(self.pattern).skip_to, timed_out=self.pattern.timed_out
        )
        program = parts_of(self.pattern).program
        rows = self._matched(events, there)
        numbers, needs, begin_us, once_more = there.tolist(), list[int](), needed_us.tolist(), again.tolist()
        for key, low, high in _groups(events.key[there]):
            if once_more[key]:
                needs += [-NEVER] * (high - low)
                continue
            made = matcher.scan(
                program, rows, settings, low, high, span.now_us, needed_us=begin_us[key], limits=self.limits
            )
            needs += made.needed_us
            if made.found:
                found.taken += [_taken(each, numbers) for each in made.found]
            if made.given_up:
                found.given_up += [numbers[each.start] for each in made.given_up]
            if made.open is not None:
                found.opened.append((made.open, there))
        found.needed[there] = needs
        if again.any():
            self._scan_again(events, there, rows, settings, again, partials, span, found)
        return found

    def _scan_again(
        self,
        events: Events,
        there: I64,
        rows: matcher.Rows,
        settings: matcher.Settings,
        again: Flags,
        partials: pa.Table,
        span: Span,
        found: Found,
    ) -> None:
        """What was found without the events of this step goes, if it is not found with them."""
        program = parts_of(self.pattern).program
        was = events.order[(events.order < events.old) & again[events.key[events.order]]]
        old_rows = self._matched(events, was)
        ids = column(events.table, ID).take(pa.array(was)).to_pylist()
        stops = set(column(partials, ID).to_pylist())
        before: dict[int, Scan] = {}
        for key, low, high in _groups(events.key[was]):
            stop = next((at for at in range(low, high) if ids[at] in stops), -1)
            before[key] = matcher.scan(
                program, old_rows, settings, low, high, span.told_us, needed_us=-NEVER, stop=stop, limits=self.limits
            )
        after: dict[int, Scan] = {}
        for key, low, high in _groups(events.key[there]):
            if again[key]:
                made = after[key] = matcher.scan(
                    program, rows, settings, low, high, span.now_us, needed_us=-NEVER, limits=self.limits
                )
                found.needed[there[low:high]] = made.needed_us
                if made.open is not None:
                    found.opened.append((made.open, there))
        old_numbers, new_numbers = was.tolist(), there.tolist()
        for key in sorted({*before, *after}):
            old = {} if key not in before else {_taken(each, old_numbers): None for each in before[key].found}
            new = {} if key not in after else {_taken(each, new_numbers): None for each in after[key].found}
            found.taken += [
                Taken(each.outcome, each.symbols, each.rows, comes=False) for each in old if each not in new
            ]
            found.taken += [each for each in new if each not in old]
            given = set() if key not in before else {int(was[each.start]) for each in before[key].given_up}
            if key in after:
                found.given_up += [
                    int(there[each.start]) for each in after[key].given_up if int(there[each.start]) not in given
                ]

    def _matched(self, events: Events, order: I64) -> matcher.Rows:
        """Events in an order, as the matcher reads them."""
        times_us, bits = events.at[order].tolist(), events.marks[order].tolist()
        compiler, cells = Compiler(self.pattern.symbols, self._types), dict[str, Any]()
        tests: list[Any] = [None] * len(self.pattern.symbols)
        for each in parts_of(self.pattern).conditions:
            if each.history is not None:
                tests[self.pattern.symbols.index(each.symbol)] = _true(compiler.value(each.history, cells))
        if not any(tests):
            return matcher.Rows(times_us, bits)
        take = pa.array(order)
        for name in compiler.columns:
            cells[name] = self._told.cells(events.table, name).take(take).to_pylist()
        summary = Summary(compiler.slots, cells)
        return matcher.Rows(times_us, bits, tests, summary.add, summary.nothing)

    # -- what is written -------------------------------------------------------------------------------

    def _kept_writes(
        self, events: Events, needed: I64, bound_us: int
    ) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
        count = events.table.num_rows
        is_old = np.arange(count) < events.old
        scanned = needed > -NEVER
        stays = scanned & (needed >= bound_us)
        stored = us_column(events.table[NEEDED])
        put = stays & (~is_old | (stored != needed))
        gone = is_old & (events.gone | (scanned & ~stays & (stored >= bound_us)))
        puts, deletes = {}, {}
        if put.any():
            rows = events.table.filter(pa.array(put))
            at = rows.column_names.index(NEEDED)
            puts[EVENTS] = rows.set_column(at, NEEDED, time_column(needed[put]))
        if gone.any():
            deletes[EVENTS] = events.table.filter(pa.array(gone)).select(self._kept.key_names)
        return puts, deletes

    def _partial_writes(
        self,
        events: Events,
        found: Found,
        partials: pa.Table,
        span: Span,
        puts: dict[str, pa.Table],
        deletes: dict[str, pa.Table],
    ) -> None:
        """What each key waits for now; behind the end of the span, nothing comes."""
        starts, last, counts, waits, texts = [], [], [], [], dict[tuple[int, ...], str]()
        for each, order in found.opened:
            if events.at[order[each.start]] + self.pattern.within_us + self.grace_us >= span.ends_us:
                continue
            starts.append(int(order[each.start]))
            last.append(events.at[order[each.last]])
            counts.append(len(each.symbols) - each.symbols.count(matcher.PASSED))
            if each.stands not in texts:
                texts[each.stands] = parts_of(self.pattern).program.waits_for(each.stands)
            waits.append(texts[each.stands])
        rows = events.table.select([*self.by, AT, ID]).take(pa.array(starts, pa.int64()))
        start_us = us_column(rows[AT])
        until_us = start_us + self.pattern.within_us
        own = {
            START: time_column(start_us),
            LAST_AT: time_column(np.array(last, np.int64)),
            ROWS: pa.array(counts, pa.int32()),
            WAITS_FOR: pa.array(waits, pa.string()),
            UNTIL: time_column(until_us),
            ID: rows[ID],
            DUE: time_column(until_us + self.grace_us),
        }
        if starts:
            made = pa.table({**{name: rows[name] for name in self.by}, **own})
            known = aligned(made, partials, self.by)
            new = known < 0
            new[~new] = differ(made.filter(pa.array(~new)), partials.select(made.column_names).take(known[~new]))
            if new.any():
                puts[PARTIALS] = made.filter(pa.array(new))
        over = aligned(partials, rows, self.by) < 0
        if over.any():
            deletes[PARTIALS] = partials.select(list(self.by)).filter(pa.array(over))


def _before(us: int | None, by_us: int) -> int | None:
    return None if us is None or us - by_us < INSTANT_MIN_US else us - by_us


def _groups(key: I64) -> list[tuple[int, int, int]]:
    """Of sorted numbers: each, with the places where it begins and ends."""
    if not len(key):
        return []
    first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    return list(zip(key[first].tolist(), first.tolist(), [*first[1:].tolist(), len(key)], strict=True))


def _taken(attempt: Attempt, numbers: list[int]) -> Taken:
    symbols, first = attempt.symbols, attempt.start
    if matcher.PASSED not in symbols:
        return Taken(attempt.outcome, symbols, tuple(numbers[first : first + len(symbols)]))
    taken = matcher.labels(attempt)
    return Taken(attempt.outcome, tuple(symbol for symbol, _ in taken), tuple(numbers[row] for _, row in taken))


def _true(value: Any) -> matcher.Test:
    return lambda row, summed: value(row, summed) is True


def _sort_ties(order: I64, same: I64, table: pa.Table) -> None:
    """Events of one key and time, by partition and offset."""
    ids = column(table, ID)
    starts = same[np.r_[True, np.diff(same) > 1]]
    ends = same[np.r_[np.diff(same) > 1, True]] + 2
    for low, high in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = order[low:high]
        places = [place_of(ids[int(row)].as_py()) for row in rows]
        order[low:high] = rows[sorted(range(len(places)), key=places.__getitem__)]
