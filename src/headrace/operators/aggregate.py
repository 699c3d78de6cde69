"""Aggregates by window and group: partial rows become rows of results. Owns what every kind of window has in common,
and windows over which time alone decides, or none. Sessions, sliding windows and groups that go have their own files.

The step's batch are partial rows, as `flows.fold` makes them: key columns and slots, `_corrections` and `_updated_at`;
several may be of one key. Where nobody asks what changes, and adding is all there is to do, the store adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import Aggregate
from headrace.aggregates.algebra import ddl
from headrace.aggregates.groups import one_zero
from headrace.horizon import Horizon, dropped_us
from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.result_rows import (
    Merged,
    Pieces,
    ResultRows,
    aligned,
    chosen,
    column,
    differ,
    joined_writes,
    keys_of,
    stacked,
)
from headrace.views.contract import RESULTS, ROWS, WINDOW, Column, SlotColumn, ViewSpec, is_fed
from headrace.views.keyed import State, TableSpec, Writes
from headrace.views.values import arrow_type, cast_to, us_column

__all__ = ["INPUT", "OP", "Aggregation", "Bounds", "ended_keys"]

I64 = npt.NDArray[np.int64]
INPUT = "partials"
OP = "op"
OPS = pa.array(["-", "+"])
START, END = (Column(name, "timestamp") for name in WINDOW)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What follows from how far the input is: windows that end by `final_us` are final, by `unchanged_us` can no longer
    change. None: none."""

    frontier_us: int | None = None
    final_us: int | None = None
    unchanged_us: int | None = None


@dataclass(frozen=True)
class Aggregation:
    """One view's aggregates. `fed`: other flows read what changes, and merge what slots keep."""

    view: ViewSpec
    aggregates: Mapping[str, Aggregate]
    horizon: Horizon
    fed: bool = False
    rows: ResultRows = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self._result_rows())

    def _result_rows(self) -> ResultRows:
        view = self.view
        window = () if view.window_us is None else (START, END) if view.windows == "cumulative" else (START,)
        more = (END,) if view.window_us is not None and view.windows != "cumulative" else ()
        time = None if view.window_us is None else WINDOW[0] if view.windows == "fixed" else WINDOW[1]
        return self._table(RESULTS, (*window, *view.groups), more, view.slots, time)

    def _table(
        self,
        table: str,
        key: tuple[Column, ...],
        more: tuple[Column, ...],
        slots: tuple[SlotColumn, ...],
        time: str | None,
    ) -> ResultRows:
        return ResultRows(table, self.view.name, key, more, slots, self.aggregates, time)

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input(INPUT, tuple(self._columns()), self.by),)

    @property
    def by(self) -> tuple[str, ...]:
        """Rows of results that meet are equal in these."""
        return self.view.key

    @cached_property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self.rows.spec, *self.rows.value_specs)

    @property
    def output(self) -> Output:
        windowed = self.view.window_us is not None
        return Output(RESULTS, WINDOW[0] if windowed else None, WINDOW[1] if windowed else None)

    @property
    def timers(self) -> tuple[Timer, ...]:
        return ()

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def _columns(self) -> list[Column]:
        """Of partial rows. What is finished is not among them: it is made."""
        values = {rule.slot.name: ddl(rule.partial) for rule in self.rows.values}
        taken = {name for merger in self.rows.mergers for name in merger.takes} | values.keys()
        slots = [Column(slot.name, values.get(slot.name, slot.type)) for slot in self.view.slots if slot.name in taken]
        return [*self._places(), *slots, Column("_corrections", "bigint"), Column("_updated_at", "timestamp")]

    def _places(self) -> list[Column]:
        return self.view.places

    @cached_property
    def told(self) -> list[str]:
        """The columns of changes: those of the table, but for slots that only merging needs."""
        seen = {name for result in self.view.results for name in (*result.slots, result.unless)}
        slots = {slot.name for slot in self.view.slots}
        fed = {slot for slot in slots if self.fed and is_fed(slot)}
        return [name for name in self.rows.schema.names if name not in slots or name in seen or name in fed]

    # -- time ------------------------------------------------------------------------------------------

    def bounds(self, frontier_us: int | None, reach_us: int | None) -> Bounds:
        return Bounds(frontier_us, self.horizon.final_us(frontier_us), self.horizon.unchanged_us(reach_us))

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        told = self.horizon.told_us
        now = self.bounds(times[INPUT].frontier_us, times[INPUT].reach_us)
        return InputTimes(told(now.final_us), told(now.unchanged_us))

    def reset(self) -> None:
        """It knows nothing between steps."""

    # -- one step --------------------------------------------------------------------------------------

    def step(
        self, batch: Mapping[str, pa.Table], state: State, times: Mapping[str, InputTimes], *, changes: bool
    ) -> Step:
        at = times[INPUT]
        now, before = self.bounds(at.frontier_us, at.reach_us), self.bounds(at.frontier_before_us, at.reach_before_us)
        return self.fold(batch.get(INPUT), state, now, before, changes=changes)

    def fold(self, partials: pa.Table | None, state: State, now: Bounds, before: Bounds, *, changes: bool) -> Step:
        """The step, by what windows make of time: a flow that closes its windows says so here."""
        pieces, told, adds = Pieces(), None, {}
        given = None if partials is None or not partials.num_rows else self._prepared(partials, before)
        if given is not None and given.num_rows:
            if not changes and self.adds_up:
                adds = {RESULTS: self.lasting(self.rows.added(given), now, before)}
            else:
                merged = self._merged(given, state, now, pieces)
                told = self._written(merged, now, before, pieces, changes)
        if changes and told is None:
            told = self._changes(self.rows.schema.empty_table(), np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._forget(state, now, before, pieces)
        self._expire(state, now, before, pieces)
        writes = joined_writes(pieces, self.tables, state)
        return Step(Writes(writes.puts, adds, writes.deletes, writes.drops), told)

    @property
    def adds_up(self) -> bool:
        """Whether a store can add partial rows to its own, without anybody reading these."""
        return bool(self.rows.spec.rules) and self._adds

    def addable(self, partials: pa.Table) -> pa.Table:
        """The rows that the store adds, each key once; of where it adds up. Those that are not kept are among them."""
        given = self._prepared(partials, Bounds())
        return self.rows.added(self.rows.packed(given, self.rows.grouped(given)))

    @property
    def _adds(self) -> bool:
        """True when a row is known by its key alone, and never goes."""
        return not self.view.retracts

    @property
    def _moves(self) -> bool:
        """True when a row can become another key's."""
        return False

    def _prepared(self, partials: pa.Table, before: Bounds) -> pa.Table:
        """The columns that matter, each in one piece, groups with one zero. What can be taken back and has gone for
        good is left out: it would begin anew, with nothing but itself in it."""
        columns = self._columns()
        rows = {each.name: one_zero(cast_to(column(partials, each.name), arrow_type(each.type))) for each in columns}
        given = pa.table(rows)
        gone_us = self.gone_us(before, before) if self.view.retracts else None
        return given if gone_us is None else given.filter(pa.array(us_column(given[WINDOW[1]]) > gone_us))

    def _merged(self, given: pa.Table, state: State, now: Bounds, pieces: Pieces) -> Merged:
        groups = self.rows.grouped(given)
        places = keys_of(given, [column.name for column in self._places()], groups.first)
        keys = places.select(self.rows.key_names)
        old = state.get(RESULTS, keys)
        number = np.concatenate((self._numbers(keys, old), groups.number))
        return self.rows.merge(given, old, number, places, state, pieces, self._lasts(places, now))

    def _numbers(self, keys: pa.Table, old: pa.Table) -> I64:
        """Which key each of the old rows has."""
        if not keys.num_columns:
            return np.zeros(old.num_rows, np.int64)
        return aligned(old, keys, self.rows.key_names)

    def _lasts(self, places: pa.Table, now: Bounds) -> npt.NDArray[np.bool_] | None:
        """Which results may still change: the values of the others need not be kept."""
        if now.unchanged_us is None or self.view.retracts or self.view.window_us is None:
            return None
        return us_column(places[WINDOW[1]]) > now.unchanged_us

    def _written(self, merged: Merged, now: Bounds, before: Bounds, pieces: Pieces, changes: bool) -> pa.Table | None:
        """Rows that came and went, to `pieces`; and, if asked for, as changes."""
        rows, names = merged.rows, self.rows.key_names
        stays, come = np.ones(rows.num_rows, np.bool_), rows
        if self.view.retracts:
            stays = np.asarray(pc.not_equal(column(rows, ROWS), 0).fill_null(True))
            gone = keys_of(rows, names, np.flatnonzero(~stays))
            self.rows.forget(gone, pieces)
            pieces.delete(RESULTS, gone)
            come = rows.filter(pa.array(stays))
        if self._moves:
            moved = np.flatnonzero(aligned(merged.old, rows, names) < 0)
            pieces.delete(RESULTS, keys_of(merged.old, names, moved))
        pieces.put(RESULTS, self.lasting(come, now, before))
        return self._changes(rows, np.flatnonzero(stays), merged.number, merged.old) if changes else None

    def lasting(self, rows: pa.Table, now: Bounds, before: Bounds) -> pa.Table:
        """Without rows that this step drops at once."""
        gone_us = self.gone_us(now, before)
        if gone_us is None or self.view.window_us is None:
            return rows
        return rows.filter(pa.array(us_column(rows[WINDOW[1]]) > gone_us))

    def _changes(self, rows: pa.Table, stays: I64, number: I64, old: pa.Table | None = None) -> pa.Table:
        """What was and what is, of results that are not the same: '-' before '+', by key; those that have gone come
        last."""
        old = (rows.slice(0, 0) if old is None else old).select(self.told)
        rows = rows.select(self.told)
        alone = np.bincount(number, minlength=rows.num_rows) == 1
        changed = np.ones(rows.num_rows, np.bool_)
        one_of = np.flatnonzero(alone[number])  # old rows that are all that their result was
        result = number[one_of]
        changed[result] = differ(chosen(old, one_of), chosen(rows, result))
        there = np.zeros(rows.num_rows, np.bool_)
        there[stays] = True
        changed[~there] = True
        goes, comes = np.flatnonzero(changed[number]), np.flatnonzero(changed & there)
        result = np.concatenate((number[goes], comes))
        sign = np.concatenate((np.zeros(len(goes), np.int64), np.ones(len(comes), np.int64)))
        order = np.lexsort((sign, result, ~there[result]))
        both = stacked(old, rows, self.told)
        both = both.take(pa.array(np.concatenate((goes, comes + old.num_rows))[order]))
        return both.add_column(0, OP, OPS.take(pa.array(sign[order])))

    # -- what goes -------------------------------------------------------------------------------------

    def row_time(self, end_us: int) -> int:
        """The time of a row whose window ends then."""
        assert self.view.window_us is not None
        return end_us - self.view.window_us[0] if self.rows.time == WINDOW[0] else end_us

    def gone_us(self, now: Bounds, before: Bounds) -> int | None:
        """Rows of windows that end by then are not kept. What can be taken back has gone for good."""
        if self.view.window_us is None:
            return None
        known = [now, before] if self.view.retracts else [now]
        most = (
            _largest(each) for each in zip(*((b.frontier_us, b.final_us, b.unchanged_us) for b in known), strict=True)
        )
        return dropped_us(self.view.keep_us, *most)

    def dropped(self, state: State, now: Bounds, before: Bounds) -> pa.Table | None:
        """The stored rows that a step drops because they are older than they are kept; None if it drops none."""
        gone_us = self.gone_us(now, before)
        return None if gone_us is None else state.due(RESULTS, self.row_time(gone_us))

    def _forget(self, state: State, now: Bounds, before: Bounds, pieces: Pieces) -> None:
        """Values of windows that can no longer change go; where results can go again, none is such."""
        if now.unchanged_us is None or self.view.retracts or self.view.window_us is None or not self.rows.values:
            return
        if self.rows.time == WINDOW[0]:
            for rule in self.rows.values:
                pieces.drops[self.rows.values_of(rule)] = self.row_time(now.unchanged_us)
        elif before.unchanged_us is None or now.unchanged_us > before.unchanged_us:
            ended = state.due(RESULTS, now.unchanged_us, after_us=before.unchanged_us)
            self.rows.forget(ended_keys(self.rows, ended, now.unchanged_us, pieces), pieces)

    def _expire(self, state: State, now: Bounds, before: Bounds, pieces: Pieces) -> None:
        """Rows that are older than they are kept go, and what is beside them."""
        gone_us = self.gone_us(now, before)
        if gone_us is None:
            return
        pieces.drops[RESULTS] = self.row_time(gone_us)
        if not self.rows.values or not self.view.retracts:
            return  # values have gone before
        if self.rows.time == WINDOW[0]:
            for rule in self.rows.values:
                pieces.drops[self.rows.values_of(rule)] = self.row_time(gone_us)
        else:
            ended = state.due(RESULTS, self.row_time(gone_us))
            self.rows.forget(ended_keys(self.rows, ended, gone_us, pieces), pieces)


def ended_keys(table: ResultRows, ended: pa.Table, upto_us: int, pieces: Pieces) -> pa.Table:
    """The keys of stored rows that ended by then, without sessions that this step has made longer."""
    keys = ended.select(table.key_names)
    for rows in pieces.puts.get(table.table, ()):
        longer = rows.filter(pa.array(us_column(rows[WINDOW[1]]) > upto_us))
        keys = keys.filter(pa.array(aligned(keys, longer, table.key_names) < 0))
    return keys


def _largest(times_us: tuple[int | None, ...]) -> int | None:
    return max((us for us in times_us if us is not None), default=None)
