"""A batch of partial rows folded into a view: what is written, what goes out, and what readers who watch are told. Owns
the order of these; operators, `emit` and `views.changes` do the work. Pure: state and time are arguments, nothing is
locked, and a transform behind the aggregation, which may be a Spark job, is a function that is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates import Aggregate
from headrace.aggregates.groups import dense, json_texts, row_numbers
from headrace.operators.aggregate import OP, Bounds
from headrace.operators.contract import Step
from headrace.operators.emit import closing, comes_in, emitted
from headrace.operators.kinds import aggregation
from headrace.operators.result_rows import aligned, chosen, column, differ, together
from headrace.operators.shaped import Shape, ShapedAggregation
from headrace.views.changes import as_fed, as_results, as_seen, marked, with_status
from headrace.views.contract import RESULTS, WINDOW, Emit, FlowSpec, Outgoing, ViewSpec, feed_topic
from headrace.views.keyed import Staged, State, TableSpec, Writes

__all__ = ["Fold", "Folded", "StagedRows", "difference"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Folded:
    """What a batch comes to. `changes()`: what changes for readers of the view, with `op`, as they see rows."""

    writes: Writes
    outgoing: list[Outgoing]
    changes: Callable[[], pa.Table]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Partial rows that lie in the store already, each key once in a part. `read()`: these rows."""

    parts: tuple[Staged, ...]
    read: Callable[[], pa.Table]

    @property
    def num_rows(self) -> int:
        return sum(each.rows for each in self.parts)


class Fold:
    """The fold of one flow. `shape`: the transform behind the aggregation, if there is one: results in, rows out."""

    def __init__(self, spec: FlowSpec, aggregates: Mapping[str, Aggregate], shape: Shape | None = None) -> None:
        assert spec.view is not None
        self._spec, self._view, self._shape = spec, spec.view, shape
        self._operator = aggregation(spec, aggregates)
        self._shaped = None if spec.view.shaped is None else ShapedAggregation(self._operator)

    @property
    def view(self) -> ViewSpec:
        return self._view

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self._operator.tables if self._shaped is None else self._shaped.tables

    @property
    def adds_up(self) -> bool:
        """Whether a batch whose changes nobody asks for is rows that the store adds to its own, and no more: then they
        can be staged."""
        return self._shaped is None and not self._tells and self._operator.adds_up

    @property
    def _tells(self) -> bool:
        return self._spec.emit is not None or bool(self._spec.feeds)

    def addable(self, partials: pa.Table) -> pa.Table:
        """The rows to be staged."""
        return self._operator.addable(partials)

    def of_staged(
        self, staged: StagedRows, state: State, now: Bounds, before: Bounds, *, watched: bool = False
    ) -> Folded:
        """The same as of the rows that are staged. `watched`: they are read back, for what changes must be known."""
        if watched:
            return self(staged.read(), state, now, before, watched=True)
        made = self(None, state, now, before)
        gone_us = self._operator.gone_us(now, before)
        above = None if gone_us is None or self._view.window_us is None else (WINDOW[1], gone_us)
        writes = replace(made.writes, staged={RESULTS: staged.parts}, staged_above=above)
        return replace(made, writes=writes, changes=lambda: self(staged.read(), state, now, before).changes())

    def __call__(
        self, partials: pa.Table | None, state: State, now: Bounds, before: Bounds, *, watched: bool = False
    ) -> Folded:
        """`watched`: somebody will ask what changes. Otherwise the step need not read old rows, if nothing goes out."""
        told = watched or self._tells
        step, made = self._step(partials, state, now, before, changes=told)

        def changes() -> pa.Table:
            known = step if step.changes is not None else self._step(partials, state, now, before, changes=True)[0]
            return self._seen(known, made, state, now, before)

        return Folded(step.writes, self._outgoing(step, made, state, now, before), changes)

    def _step(
        self, partials: pa.Table | None, state: State, now: Bounds, before: Bounds, *, changes: bool
    ) -> tuple[Step, pa.Table]:
        """The step, whose changes are of results; and the rows that the transform made of those."""
        if self._shaped is not None:
            assert self._shape is not None, "a shaped view needs its transform"
            return self._shaped.fold(partials, state, now, before, self._shape)
        return self._operator.fold(partials, state, now, before, changes=changes), pa.table({})

    # -- what goes out ---------------------------------------------------------------------------------

    def _outgoing(self, step: Step, made: pa.Table, state: State, now: Bounds, before: Bounds) -> list[Outgoing]:
        view, out = self._view, []
        closes = now.final_us is not None and (before.final_us is None or now.final_us > before.final_us)
        marks = (now.final_us, now.unchanged_us) if closes else None
        if view.records and now.frontier_us is not None:  # records are judged again, by how far their input is
            marks = now.frontier_us, now.unchanged_us
        for emit in self._spec.feeds:
            rows = marked(view, self._emitted(step, made, state, emit, now, before, partial(as_fed, view)), marks)
            if rows.num_rows:
                out.append(Outgoing(feed_topic(self._spec.name, emit), rows))
        if self._spec.emit is None:
            return out
        rows = self._emitted(step, made, state, self._spec.emit, now, before, partial(as_results, view))
        if view.window_us:
            rows = rows.append_column("_progress", rows["window_start"])  # a change of a view is never late
        if self._shape is not None and rows.num_rows:
            rows = self._shape(rows)
        assert self._spec.target is not None, "what is emitted goes somewhere"
        return [*out, Outgoing(self._spec.target, rows)] if rows.num_rows else out

    def _emitted(
        self,
        step: Step,
        made: pa.Table,
        state: State,
        emit: Emit,
        now: Bounds,
        before: Bounds,
        tell: Callable[[pa.Table], pa.Table],
    ) -> pa.Table:
        if self._shaped is None:
            return emitted(self._operator, step, state, emit, now, before, tell)
        return tell(self._shaped.emitted(step, made, state, emit, now, before))

    # -- what readers see ------------------------------------------------------------------------------

    def _seen(self, step: Step, made: pa.Table, state: State, now: Bounds, before: Bounds) -> pa.Table:
        """'-' a row as it was, '+' as it is; rows that only become final, and rows that are dropped, too."""
        raw = step.changes
        assert raw is not None
        closes = raw.slice(0, 0)
        if self._view.window_us is not None:
            closes = self._untouched(closing(self._operator, Step(changes=closes), state, now, before), raw)
        drops = self._untouched(self._dropped(state, now, before, raw), raw, closes)
        rows = together([raw, closes.set_column(0, OP, pa.repeat("-", closes.num_rows)), closes, drops])
        if self._operator.lasting(rows, now, before).num_rows < rows.num_rows:  # what is dropped at once is never seen
            goes, stays = _sides(rows)
            rows = together([goes, self._operator.lasting(stays, now, before)])
        if self._shaped is not None:
            goes, stays = _sides(rows)
            made = together([made, self._shaped.stored(closes, state)])
            rows = together([self._shaped_rows(goes, self._shaped.stored(goes, state)), self._shaped_rows(stays, made)])
        later = [us for us in (now.final_us, before.final_us) if us is not None]
        return difference(self._view, rows, before.final_us, max(later, default=None))

    def _dropped(self, state: State, now: Bounds, before: Bounds, like: pa.Table) -> pa.Table:
        rows = self._operator.dropped(state, now, before)
        if rows is None:
            return like.slice(0, 0)
        return rows.add_column(0, OP, pa.repeat("-", rows.num_rows)).select(like.column_names).cast(like.schema)

    def _untouched(self, rows: pa.Table, *others: pa.Table) -> pa.Table:
        """Without rows whose keys are among the others."""
        names = self._operator.rows.key_names
        for other in others:
            if other.num_rows and rows.num_rows:
                rows = rows.filter(pa.array(aligned(rows, other, names) < 0)) if names else rows.slice(0, 0)
        return rows

    def _shaped_rows(self, rows: pa.Table, made: pa.Table) -> pa.Table:
        """What the transform made of the rows, which readers see instead."""
        assert self._shaped is not None
        return self._shaped.joined(rows, np.arange(rows.num_rows), made)[0]


def _sides(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Those that go, and those that come."""
    comes = comes_in(rows)
    return rows.filter(pa.array(~comes)), rows.filter(pa.array(comes))


def difference(view: ViewSpec, rows: pa.Table, before_us: int | None, final_us: int | None) -> pa.Table:
    """What changes for readers when stored rows go and come, as their `op` says: without those that stay as they were
    seen. First rows whose key is gone, then by key. Windows that end by `before_us` were final before, by `final_us`
    are now."""
    sign, never = comes_in(rows), -(2**63)
    bounds = [never if us is None else us for us in (before_us, final_us)]
    both = with_status(view, as_seen(view, rows), np.where(sign, bounds[1], bounds[0]))
    if not both.num_rows:
        return both
    keys = dense(row_numbers([column(both, name) for name in view.key], both.num_rows))
    count = int(keys.max()) + 1
    left, right = (np.bincount(keys[side], minlength=count) for side in (~sign, sign))
    kept = np.ones(both.num_rows, np.bool_)
    pair = (left == 1) & (right == 1)  # one row of its key on either side: these are compared with each other
    order = np.argsort(2 * keys + sign, kind="stable")
    one, other = order[pair[keys[order]]].reshape(-1, 2).T
    rows = both.drop_columns([OP])
    kept[one] = kept[other] = differ(chosen(rows, one), chosen(rows, other))
    if (many := np.flatnonzero((left + right - 2 * pair)[keys] > 1)).size:
        kept[many] = _unpaired(rows.take(pa.array(many)), sign[many])
    order = order[np.argsort((right > 0)[keys[order]], kind="stable")]
    return chosen(both, order[kept[order]])


def _unpaired(rows: pa.Table, sign: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Rows that are more often on their own side than on the other."""
    plain = [column(rows, name) for name in rows.column_names]
    plain = [json_texts(each) if types.is_nested(each.type) else each for each in plain]
    number = dense(row_numbers(plain, rows.num_rows))
    rank = np.zeros(len(number), np.int64)
    for side in (False, True):
        mine = np.flatnonzero(sign == side)
        order = mine[np.argsort(number[mine], kind="stable")]
        first = np.r_[True, number[order][1:] != number[order][:-1]] if len(order) else np.zeros(0, np.bool_)
        start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        rank[order] = np.arange(len(order)) - start
    pair = number * (len(number) + 1) + rank
    return np.where(sign, ~np.isin(pair, pair[~sign]), ~np.isin(pair, pair[sign]))
