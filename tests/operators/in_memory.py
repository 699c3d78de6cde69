"""A view store in memory, made of operators and `MemoryTables`: as much of a store as the suites of views need to see
what merging makes. A twin: it shows that operators ask for nothing but what `headrace.views.keyed` has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import CommitConflict, FlowChanged
from headrace.operators.aggregate import OP, Bounds
from headrace.operators.emit import emitted, feed_of, results, shown
from headrace.operators.kinds import aggregation
from headrace.operators.result_rows import aligned, in_order
from headrace.operators.shaped import ShapedAggregation
from headrace.testing.memory_tables import MemoryTables
from headrace.views.contract import (
    Commit,
    FlowSpec,
    FlowState,
    Outgoing,
    Waiting,
    feed_topic,
    widened,
)
from headrace.views.sqlite.feeding import marked
from headrace.views.values import arrow_type, us_column


@dataclass
class Kept:
    """One flow."""

    spec: FlowSpec
    tables: MemoryTables
    sequence: int = 0
    bounds: Bounds = field(default_factory=Bounds)
    outbox: list[Waiting] = field(default_factory=list)
    ledger: set[tuple[int | None, int | None]] = field(default_factory=set)
    """The windows of which something was told."""


class MemoryStore:
    """`MemoryStore(home)`: the flows of that home, as long as the process lives."""

    homes: ClassVar[dict[Path, dict[str, Kept]]] = {}

    def __init__(self, home: Path) -> None:
        self.flows = self.homes.setdefault(home, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState:
        known = self.flows.get(spec.name)
        if known is None or replace:
            operator = aggregation(spec, {})
            shaped = spec.view is not None and spec.view.shaped is not None
            tables = ShapedAggregation(operator).tables if shaped else operator.tables
            self.flows[spec.name] = Kept(spec, MemoryTables(*tables))
        else:
            if changed := known.spec.changes(spec):
                raise FlowChanged(flow=spec.name, changes=changed)
            new = [emit for emit in spec.feeds if emit not in known.spec.feeds]
            wide = [each.name for each in known.spec.view.results if each.widened] if known.spec.view else []
            known.spec = spec if spec.view is None else dataclasses.replace(spec, view=widened(spec.view, wide))
            self._feed_what_is(known, new)
        return self.state(spec.name)

    def state(self, flow: str) -> FlowState:
        known = self.flows[flow]
        return FlowState(flow, 1, known.sequence, {}, {}, known.bounds.frontier_us)

    def outbox(self, flow: str) -> list[Waiting]:
        return list(self.flows[flow].outbox)

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        known = self.flows[flow.name]
        if commit.sequence != known.sequence:
            raise CommitConflict(flow=flow.name, sequence=commit.sequence, current=known.sequence)
        spec, before = known.spec, known.bounds
        assert spec.view is not None
        operator = aggregation(spec, commit.aggregates)
        now = Bounds(commit.frontier_us, commit.closed_us, commit.reachable_us)
        told = spec.emit is not None or bool(spec.feeds) or commit.sequence % 2 == 1  # both ways are the same
        state = known.tables.state()
        if spec.view.shaped is not None:
            assert commit.shape is not None
            shaping = ShapedAggregation(operator)
            made = shaping.fold(commit.partials, state, now, before, commit.shape, changes=told)
            step, emitting = made.step, lambda emit, _: shaping.emitted(made, state, emit, now, before)
        else:
            step = operator.fold(commit.partials, state, now, before, changes=told)
            emitting = lambda emit, tell: emitted(operator, step, state, emit, now, before, tell)  # noqa: E731
        out = self._outgoing(known, commit, now, emitting)
        known.tables.apply(step.writes)
        known.spec = self._widened(spec, known.tables)
        known.bounds = Bounds(*map(_later, dataclasses.astuple(before), dataclasses.astuple(now)))
        base = {each.target: each.base + each.rows.num_rows for each in known.outbox}
        known.outbox += [Waiting(known.sequence, each.target, base.get(each.target, 0), each.rows) for each in out]
        known.ledger |= {(row.window_start_us, row.window_end_us) for row in commit.ledger}
        known.sequence += 1
        return self.state(flow.name)

    def _outgoing(self, known: Kept, commit: Commit, now: Bounds, emitting: Callable[..., pa.Table]) -> list[Outgoing]:
        spec, before = known.spec, known.bounds
        assert spec.view is not None
        out = []
        moved = now.final_us if now.final_us is not None and now.final_us > (before.final_us or -(2**63)) else None
        for emit in spec.feeds:
            rows = emitting(emit, feed_of(spec.view))
            if spec.view.shaped is not None:
                rows = feed_of(spec.view)(rows)
            marks = None if moved is None else (moved, commit.reachable_us)
            if spec.view.records and commit.frontier_us is not None:
                marks = commit.frontier_us, commit.reachable_us
            if (told := marked(spec.view, rows, marks)).num_rows:
                out.append(Outgoing(feed_topic(spec.name, emit), told))
        if spec.emit is not None:
            rows = emitting(spec.emit, results(spec.view))
            if spec.view.window_us:
                rows = rows.append_column("_progress", rows["window_start"])
            if commit.shape is not None and rows.num_rows:
                rows = commit.shape(rows)
            assert spec.target is not None
            out += [Outgoing(spec.target, rows)] if rows.num_rows else []
        return out

    def _feed_what_is(self, known: Kept, emits: list[Any]) -> None:
        spec = known.spec
        assert spec.view is not None
        for emit in emits:
            rows = feed_of(spec.view)(_all(known))
            if emit == "final":
                rows = rows.filter(pa.array(us_column(rows["window_end"]) <= (known.bounds.final_us or -(2**63))))
            rows = marked(spec.view, rows, None)
            if rows.num_rows:
                known.outbox.append(Waiting(known.sequence, feed_topic(spec.name, emit), 0, rows))
        known.sequence += bool(emits)

    def _widened(self, spec: FlowSpec, tables: MemoryTables) -> FlowSpec:
        assert spec.view is not None
        rows = tables.state().scan("rows", pa.table({"x": [1]}).select([]))
        wide = []
        for result in spec.view.whole_sums:
            try:
                rows[result.slots[0]].cast(pa.int64())
            except pa.ArrowInvalid:
                wide.append(result.name)
        wide += [each.name for each in spec.view.results if each.widened]
        return dataclasses.replace(spec, view=widened(spec.view, wide))

    def drop(self, flow: str) -> None:
        del self.flows[flow]

    def last_window_end(self, flow: str) -> int | None:
        known = self.flows[flow]
        assert known.spec.view is not None
        size = known.spec.view.window_us[0] if known.spec.view.windows == "fixed" and known.spec.view.window_us else 0
        last = known.tables.state().last_us("rows")
        return None if last is None else last + size


@dataclass
class MemoryViews:
    home: Path

    def to_arrow(self, view: str, where: dict[str, Any] | None = None) -> pa.Table:
        known = MemoryStore.homes[self.home][view]
        spec = known.spec.view
        assert spec is not None
        found = _all(known)
        rows = (found if spec.shaped is not None else shown(spec)(found)).drop_columns([OP])
        status = pa.repeat("open", rows.num_rows)
        if spec.window_us is not None and known.bounds.final_us is not None:
            final = us_column(rows["window_end"]) <= known.bounds.final_us
            status = pc.if_else(pa.array(final), "final", "open")
        rows = rows.append_column("_status", status).select([column.name for column in spec.columns])
        rows = in_order(rows, spec.key)
        for name, value in (where or {}).items():
            kind = next(arrow_type(column.type) for column in spec.columns if column.name == name)
            same = (
                pc.is_null(rows[name])
                if value is None
                else pc.equal(rows[name], pa.scalar(value, kind)).fill_null(False)
            )
            if isinstance(value, float) and np.isnan(value):
                same = pc.is_nan(rows[name]).fill_null(False)
            rows = rows.filter(same)
        return rows

    def status(self, view: str) -> Any:
        return SimpleNamespace(rows=self.to_arrow(view).num_rows)

    def ledger(self, view: str) -> Any:
        return SimpleNamespace(num_rows=len(MemoryStore.homes[self.home][view].ledger))

    def names(self) -> list[str]:
        return sorted(MemoryStore.homes[self.home])

    def query(self, sql: str) -> pa.Table:
        """`SELECT column FROM view`, and no more."""
        _, column, _, view = sql.split()
        return self.to_arrow(view).select([column])


def _all(known: Kept) -> pa.Table:
    """All rows, with those that a transform made in the place of the results."""
    everything = pa.table({"x": [1]}).select([])
    rows = known.tables.state().scan("rows", everything)
    if known.spec.view is not None and known.spec.view.shaped is not None:
        made = known.tables.state().scan("shaped", everything)
        key = known.spec.view.key
        of = aligned(made, rows, key) if key else np.zeros(made.num_rows, np.int64)
        for name in (each for each in rows.column_names if each not in made.column_names):
            made = made.append_column(name, rows[name].take(pa.array(of)))
        rows = made
    return rows.add_column(0, OP, pa.repeat("+", rows.num_rows))


def _later(*times_us: int | None) -> int | None:
    return max((us for us in times_us if us is not None), default=None)
