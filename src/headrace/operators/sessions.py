"""Sessions: results that grow, and results that become one. Owns which old rows partial rows touch; which belong
together is `windows.sessions.joined`, and what they become is merged like anything else.

Sessions of a key lie more than the gap apart. So of the rows that begin before a stretch of new records only the last
can reach it, and all that begin in it, or at most the gap behind it, are part of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.aggregates.groups import row_numbers
from headrace.operators.aggregate import END, START, Aggregation, Bounds
from headrace.operators.result_rows import Merged, Pieces, ResultRows, column, keys_of
from headrace.views.contract import RESULTS, WINDOW
from headrace.views.keyed import State
from headrace.views.values import time_column, us_column
from headrace.windows.sessions import joined

__all__ = ["SessionAggregation", "merge_sessions"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SessionAggregation(Aggregation):
    def _result_rows(self) -> ResultRows:
        return self._table(RESULTS, (*self.view.groups, START), (END,), self.view.slots, WINDOW[1])

    @property
    def by(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.view.groups)

    @property
    def _adds(self) -> bool:
        return False

    @property
    def _moves(self) -> bool:
        return True

    def _merged(self, given: pa.Table, state: State, now: Bounds, pieces: Pieces) -> Merged:
        assert self.view.window_us is not None
        return merge_sessions(self.rows, list(self.by), given, self.view.window_us[0], state, pieces, now.unchanged_us)


def merge_sessions(
    table: ResultRows,
    groups: list[str],
    given: pa.Table,
    gap_us: int,
    state: State,
    pieces: Pieces,
    unchanged_us: int | None,
) -> Merged:
    """Partial rows, which are stretches [window_start, window_end] of sessions, into those that are there."""
    start, end = (us_column(given[name]) for name in WINDOW)
    key = row_numbers([column(given, name) for name in groups], given.num_rows)
    span, first, last = joined(key, start, end, gap_us)
    one_of = np.unique(span, return_index=True)[1]
    prefixes = keys_of(given, groups, one_of)
    old = state.scan(table.table, prefixes, first.tolist(), (last + gap_us).tolist(), floor=True)
    both = [pa.concat_arrays([column(old, name), column(given, name)]) for name in groups]
    key = row_numbers(both, old.num_rows + given.num_rows)
    starts, ends = (np.concatenate((us_column(old[name]), us_column(given[name]))) for name in WINDOW)
    session, first, last = joined(key, starts, ends, gap_us)
    touched = np.unique(session[old.num_rows :])
    mine = np.isin(session[: old.num_rows], touched)
    number = np.searchsorted(touched, session)
    number = np.concatenate((number[: old.num_rows][mine], number[old.num_rows :]))
    old = old.filter(pa.array(mine))
    member = np.unique(number[old.num_rows :], return_index=True)[1]
    places = {name: column(given, name).take(pa.array(member)) for name in groups}
    first, last = first[touched], last[touched]
    places |= {name: time_column(times) for name, times in zip(WINDOW, (first, last), strict=True)}
    lasting = None if unchanged_us is None else last > unchanged_us
    return table.merge(given, old, number, pa.table(places), state, pieces, lasting)
