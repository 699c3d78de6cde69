"""Groups that go: results without windows, each kept until no record of its group has arrived for so long.

What came of a group at most that time apart, by arrival, is one *life* of it: a session. Lives are kept beside the
results, so that records of several partitions find theirs in whatever order they are read. A group's row is its newest
life; with that it goes, and a record that comes later begins a new one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.horizon import over_us
from headrace.operators.aggregate import END, START, Aggregation, Bounds, ended_keys
from headrace.operators.result_rows import Merged, Pieces, ResultRows, aligned, in_order, keys_of
from headrace.operators.sessions import merge_sessions
from headrace.views.contract import RESULTS, WINDOW, Column
from headrace.views.keyed import State, TableSpec
from headrace.views.values import us_column

__all__ = ["GroupsThatGo"]

LIVES = "lives"
ENDS = "/ends"
"""When the last record of a group's newest life arrived."""


@dataclass(frozen=True)
class GroupsThatGo(Aggregation):
    lives: ResultRows = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        lives = self._table(LIVES, (*self.view.groups, START), (END,), self.view.slots, WINDOW[1])
        object.__setattr__(self, "lives", lives)

    def _result_rows(self) -> ResultRows:
        return self._table(RESULTS, self.view.groups, (Column(ENDS, "timestamp"),), self.view.slots, ENDS)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self.rows.spec, self.lives.spec, *self.lives.value_specs)

    def _places(self) -> list[Column]:
        return [START, END, *self.view.groups]

    @property
    def _adds(self) -> bool:
        return False

    def _merged(self, given: pa.Table, state: State, now: Bounds, pieces: Pieces) -> Merged:
        """The newest lives of the groups that are touched, in the place of their rows."""
        assert self.view.keep_us is not None
        groups, over = self.rows.key_names, self._over_us(now)
        merged = merge_sessions(self.lives, groups, given, self.view.keep_us, state, pieces, over)
        lives = merged.rows
        moved = np.flatnonzero(aligned(merged.old, lives, self.lives.key_names) < 0)
        pieces.delete(LIVES, keys_of(merged.old, self.lives.key_names, moved))
        ends = us_column(lives[WINDOW[1]])
        pieces.put(LIVES, lives if over is None else lives.filter(pa.array(ends > over)))
        number, keys = self._groups_of(lives)
        newest = state.scan(LIVES, keys, limit=1, descending=True)
        untouched = newest.filter(pa.array(aligned(newest, merged.old, self.lives.key_names) < 0))
        both = in_order(pa.concat_tables([lives, untouched.select(lives.column_names)]), self.lives.key_names)
        number, _ = self._groups_of(both)
        last = both.take(pa.array(np.flatnonzero(np.diff(number, append=-1))))  # by group, and then by start
        rows = pa.table({name: last[WINDOW[1] if name == ENDS else name] for name in self.rows.schema.names})
        old = state.get(RESULTS, keys)
        found = aligned(old, rows, groups) if groups else np.zeros(old.num_rows, np.int64)
        return Merged(rows.cast(self.rows.schema), old, found)

    def _groups_of(self, rows: pa.Table) -> tuple[np.typing.NDArray[np.int64], pa.Table]:
        """Of rows in order: the number of each row's group; and the groups."""
        if not self.rows.key_names:
            return np.zeros(rows.num_rows, np.int64), rows.select([]).slice(0, 1)
        found = self.rows.grouped(rows)
        return found.number, keys_of(rows, self.rows.key_names, found.first)

    def _over_us(self, now: Bounds) -> int | None:
        assert self.view.keep_us is not None
        return over_us(self.view.keep_us, now.unchanged_us)

    def lasting(self, rows: pa.Table, now: Bounds, before: Bounds) -> pa.Table:  # noqa: ARG002
        over = self._over_us(now)
        return rows if over is None else rows.filter(pa.array(us_column(rows[ENDS]) > over))

    def dropped(self, state: State, now: Bounds, before: Bounds) -> pa.Table | None:  # noqa: ARG002
        over = self._over_us(now)
        return None if over is None else state.due(RESULTS, over)

    def _forget(self, state: State, now: Bounds, before: Bounds, pieces: Pieces) -> None:
        """Values go with their lives."""

    def _expire(self, state: State, now: Bounds, before: Bounds, pieces: Pieces) -> None:  # noqa: ARG002
        """Lives that are over go, and groups whose newest life is."""
        over = self._over_us(now)
        if over is None:
            return
        if self.lives.values:
            self.lives.forget(ended_keys(self.lives, state.due(LIVES, over), over, pieces), pieces)
        pieces.drops |= {LIVES: over, RESULTS: over}
