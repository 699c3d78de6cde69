"""Sliding windows: which windows the records of an instant are part of. A window is a result, and ends with a record of
its key.

Records are kept, too, as *parts*, as long as a window that holds them can come. What comes new is merged into the
windows that are there, and a window that comes new gets all parts that are in it: both as partial rows like any other,
so that each aggregate is merged by its own rule. Parts are kept as they come: values that count by themselves are lists
in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.aggregates.algebra import ddl
from headrace.aggregates.groups import Groups, row_numbers
from headrace.operators.aggregate import END, START, Aggregation, Bounds
from headrace.operators.result_rows import Merged, Pieces, ResultRows, column, keys_of
from headrace.views.contract import COUNTS_FROM, ON_TIME_FROM, RESULTS, WINDOW, Column
from headrace.views.keyed import State, TableSpec
from headrace.views.values import time_column, us_column
from headrace.windows.sessions import joined

__all__ = ["SlidingAggregation"]

I64 = npt.NDArray[np.int64]
PARTS = "parts"
PAIRS_MAX = 1_000_000
"""So many records, each in a window, are looked at together; of one window all."""


@dataclass(frozen=True)
class SlidingAggregation(Aggregation):
    parts: PartRows = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", PartRows(self.rows, self.view.groups))

    def _result_rows(self) -> ResultRows:
        return self._table(RESULTS, (*self.view.groups, START), (END,), self.view.slots, WINDOW[1])

    @property
    def by(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.view.groups)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (*super().tables, self.parts.spec)

    @property
    def _adds(self) -> bool:
        return False

    def _places(self) -> list[Column]:
        return [*self.view.places, Column(COUNTS_FROM, "timestamp"), Column(ON_TIME_FROM, "timestamp")]

    @property
    def size_us(self) -> int:
        assert self.view.window_us is not None
        return self.view.window_us[0]

    def _merged(self, given: pa.Table, state: State, now: Bounds, pieces: Pieces) -> Merged:
        """The records of some instants, as partial rows of all windows that they change; merged as windows."""
        there = self._windows_there(given, state)
        rows = pa.concat_tables([self._in_windows_there(given, there), self._in_new_windows(given, there, state)])
        self._keep(given, state, now, pieces)
        if not rows.num_rows:  # all of them count in windows that may come later, or in none
            none = self.rows.schema.empty_table()
            return Merged(none, none, np.zeros(0, np.int64))
        groups = self.rows.grouped(rows)
        places = keys_of(rows, [*self.rows.key_names, WINDOW[1]], groups.first)
        keys = places.select(self.rows.key_names)
        old = state.get(RESULTS, keys)
        number = np.concatenate((self._numbers(keys, old), groups.number))
        return self.rows.merge(rows, old, number, places, state, pieces, self._lasts(places, now))

    def _groups(self, *tables: pa.Table) -> I64:
        """A number for each row of the tables: the same for those of one group."""
        columns = [pa.concat_arrays([column(each, name) for each in tables]) for name in self.by]
        return row_numbers(columns, sum(each.num_rows for each in tables))

    def _scan(self, table: str, rows: pa.Table, low: I64, high: I64, state: State) -> pa.Table:
        """The stored rows of the rows' groups that begin in [low, high]; stretches that overlap are looked at once."""
        last_us = state.last_us(table)
        begins_us = -(2**63) if last_us is None else last_us - (self.size_us if table == RESULTS else 0)
        near = np.flatnonzero(low <= begins_us)
        rows, low, high = rows.take(pa.array(near)), low[near], high[near]
        span, first, last_of = joined(self._groups(rows), low, high, 0)
        one_of = np.unique(span, return_index=True)[1]
        return state.scan(table, keys_of(rows, list(self.by), one_of), first.tolist(), last_of.tolist())

    def _windows_there(self, given: pa.Table, state: State) -> pa.Table:
        """Windows that have a row and may hold one of the records: those that end from when it counts on, and begin by
        then."""
        return self._scan(
            RESULTS, given, us_column(given[COUNTS_FROM]) - self.size_us, us_column(given[WINDOW[1]]), state
        ).select([*self.by, *WINDOW])

    def _in_windows_there(self, given: pa.Table, there: pa.Table) -> pa.Table:
        group = self._groups(there, given)
        theirs, mine = group[: there.num_rows], group[there.num_rows :]
        counts, at = us_column(given[COUNTS_FROM]), us_column(given[WINDOW[1]])
        ends = us_column(there[WINDOW[1]])
        number, row = _pairs(theirs, ends, mine, counts, at + self.size_us)
        return self._windowed(given, number, ends[row])

    def _in_new_windows(self, given: pa.Table, there: pa.Table, state: State) -> pa.Table:
        """All parts, those that come new among them, in the windows that have no row yet: those that end with a
        record."""
        at = us_column(given[WINDOW[1]])
        group = self._groups(there, given)
        ended = _as_one(group, np.concatenate((us_column(there[WINDOW[1]]), at)))
        has_row = np.isin(ended[there.num_rows :], ended[: there.num_rows])
        fresh = np.flatnonzero((us_column(given[COUNTS_FROM]) == at) & ~has_row)
        fresh = fresh[np.unique(ended[there.num_rows :][fresh], return_index=True)[1]]
        old = self._scan(PARTS, given.take(pa.array(fresh)), at[fresh] - self.size_us, at[fresh], state)
        rows = pa.concat_tables([old.select(given.column_names).cast(given.schema), given])
        group, at = self._groups(rows), us_column(rows[WINDOW[1]])
        fresh = fresh + old.num_rows
        made, ends = [], at[fresh]
        order = np.lexsort((at, group))
        begin = _places(group[order], at[order], group[fresh], ends - self.size_us, "left")
        count = _places(group[order], at[order], group[fresh], ends, "right") - begin
        counts_from = us_column(rows[COUNTS_FROM])
        for some in np.split(np.arange(len(fresh)), np.flatnonzero(np.diff(np.cumsum(count) // PAIRS_MAX)) + 1):
            window = np.repeat(some, count[some])
            number = order[_ranges(begin[some], count[some])]
            counts = counts_from[number] <= ends[window]
            window, number = window[counts], number[counts]
            made.append(self.parts.merged(self._windowed(rows, number, ends[window]), window))
        return pa.concat_tables(made)

    def _windowed(self, rows: pa.Table, numbers: I64, end: I64) -> pa.Table:
        """The rows of these numbers as parts of windows with these ends."""
        rows = rows.take(pa.array(numbers, pa.int64()))
        corrections = np.where(end < us_column(rows[ON_TIME_FROM]), rows["_corrections"].to_numpy(), 0)
        made = {WINDOW[0]: time_column(end - self.size_us), WINDOW[1]: time_column(end)}
        made["_corrections"] = pa.array(corrections)
        for name, values in made.items():
            rows = rows.set_column(rows.column_names.index(name), name, values)
        return rows.drop_columns([COUNTS_FROM, ON_TIME_FROM])

    def _keep(self, given: pa.Table, state: State, now: Bounds, pieces: Pieces) -> None:
        """The records as parts, unless they are in no window that can come after this step."""
        at = given.set_column(given.column_names.index(WINDOW[0]), WINDOW[0], given[WINDOW[1]])
        if now.unchanged_us is not None:
            at = at.filter(pa.array(us_column(at[WINDOW[1]]) > now.unchanged_us - self.size_us))
        if not at.num_rows:
            return
        keys = self.parts.grouped(at)
        old = state.get(PARTS, keys).select(at.column_names).cast(at.schema)
        both = pa.concat_tables([old, at])
        number = row_numbers([column(both, name) for name in self.parts.key_names], both.num_rows)
        pieces.put(PARTS, self.parts.merged(both, np.unique(number, return_inverse=True)[1].reshape(-1)))

    def _forget(self, state: State, now: Bounds, before: Bounds, pieces: Pieces) -> None:
        super()._forget(state, now, before, pieces)
        if now.unchanged_us is not None and not self.view.retracts:
            pieces.drops[PARTS] = now.unchanged_us - self.size_us


class PartRows:
    """Partial rows as they are kept, and merged with each other."""

    def __init__(self, rows: ResultRows, groups: tuple[Column, ...]) -> None:
        self._rows = rows
        values = {rule.slot.name: ddl(rule.partial) for rule in rows.values}
        taken = {name for merger in rows.mergers for name in merger.takes} | values.keys()
        slots = [Column(s.name, values.get(s.name, s.type)) for s in rows.slots if s.name in taken]
        late = (Column(COUNTS_FROM, "timestamp"), Column(ON_TIME_FROM, "timestamp"))
        tail = (Column("_corrections", "bigint"), Column("_updated_at", "timestamp"))
        self.spec = TableSpec(PARTS, (*groups, START, *late), (END, *slots, *tail), WINDOW[0])
        self.key_names = list(self.spec.key_names)

    def grouped(self, rows: pa.Table) -> pa.Table:
        """The keys of the rows, each once."""
        number = row_numbers([column(rows, name) for name in self.key_names], rows.num_rows)
        return rows.select(self.key_names).take(pa.array(np.unique(number, return_index=True)[1]))

    def merged(self, rows: pa.Table, number: I64) -> pa.Table:
        """One row for each number; numbers begin with 0, and none is left out within those that are there."""
        if not rows.num_rows:
            return rows
        groups = Groups(np.unique(number, return_inverse=True)[1].reshape(-1))
        return self._rows.packed(rows, groups)


def _as_one(group: I64, us: I64) -> I64:
    """Group and time as one number."""
    times, rank = np.unique(us, return_inverse=True)
    return group * (len(times) + 1) + rank.reshape(-1)


def _places(groups: I64, times: I64, group: I64, us: I64, side: str) -> I64:
    """Where rows of that group and time would be among rows in order of group and time."""
    known, at = np.unique(times), len(groups)
    width = len(known) + 1
    mine = group * width + np.searchsorted(known, us, side=side)  # type: ignore[call-overload]
    theirs = groups * width + np.searchsorted(known, times, side="left")
    found: I64 = np.searchsorted(theirs, mine, side="left") if at else np.zeros(len(group), np.int64)
    return found


def _ranges(begin: I64, count: I64) -> I64:
    """begin, begin + 1, …: so many of each."""
    behind = np.repeat(np.cumsum(count) - count, count)
    return np.repeat(begin, count) + np.arange(int(count.sum())) - behind


def _pairs(theirs: I64, ends: I64, mine: I64, low: I64, high: I64) -> tuple[I64, I64]:
    """For each of mine, the windows of its group that end in [low, high]: number of the one, number of the other."""
    order = np.lexsort((ends, theirs))
    begin = _places(theirs[order], ends[order], mine, low, "left")
    count = _places(theirs[order], ends[order], mine, high, "right") - begin
    return np.repeat(np.arange(len(mine)), count), order[_ranges(begin, count)]
