"""A view store in memory: as much of a store as the suites of views need to see what merging makes. A twin: it shows
that operators ask for nothing but what `headrace.views.keyed` has, and that a store need know no aggregate."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import CommitConflict, FlowChanged
from headrace.operators.result_rows import aligned, in_order
from headrace.testing.memory_tables import MemoryState, MemoryTables
from headrace.views.changes import CHANGE_OP, as_seen, snapshot, with_status
from headrace.views.contract import Commit, Emit, FlowSpec, FlowState, Outgoing, Waiting, widened
from headrace.views.values import arrow_type


@dataclass
class Kept:
    """One flow."""

    spec: FlowSpec
    tables: MemoryTables
    state: FlowState
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
            state = FlowState(spec.name, 1, 0, {}, {}, None)
            self.flows[spec.name] = Kept(spec, MemoryTables(*spec.tables), state)
        else:
            if changed := known.spec.changes(spec):
                raise FlowChanged(flow=spec.name, changes=changed)
            new = [emit for emit in spec.feeds if emit not in known.spec.feeds]
            wide = [each.name for each in known.spec.view.results if each.widened] if known.spec.view else []
            known.spec = spec if spec.view is None else dataclasses.replace(spec, view=widened(spec.view, wide))
            self._feed_what_is(known, new)
        return self.state(spec.name)

    def state(self, flow: str) -> FlowState:
        return self.flows[flow].state

    def feeds(self, flow: str) -> tuple[Emit, ...]:
        return self.flows[flow].spec.feeds

    def outbox(self, flow: str) -> list[Waiting]:
        return list(self.flows[flow].outbox)

    def read_state(self, flow: FlowState) -> MemoryState:
        return self.flows[flow.name].tables.state()

    def is_watched(self, flow: str) -> bool:
        return self.flows[flow].state.sequence % 2 == 1  # with and without changes, the same is written

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        known = self.flows[flow.name]
        if commit.sequence != known.state.sequence:
            raise CommitConflict(flow=flow.name, sequence=commit.sequence, current=known.state.sequence)
        before = _all(known)
        known.tables.apply(commit.writes)
        self._check_changes(known, before, commit)
        self._put_out(known, commit.outgoing)
        known.ledger |= {(row.window_start_us, row.window_end_us) for row in commit.ledger}
        known.spec = self._widened(known.spec, known.tables)
        known.state = dataclasses.replace(
            known.state,
            sequence=commit.sequence + 1,
            frontier_us=_later(known.state.frontier_us, commit.frontier_us),
            closed_us=_later(known.state.closed_us, commit.closed_us),
            unchanged_us=_later(known.state.unchanged_us, commit.unchanged_us),
        )
        return known.state

    def _check_changes(self, known: Kept, before: pa.Table, commit: Commit) -> None:
        """What the commit says of changes makes of the rows before it those after it."""
        view = known.spec.view
        if commit.changes is None or view is None:
            return
        now_us = _later(known.state.closed_us, commit.closed_us)
        was = _bag(with_status(view, as_seen(view, before), known.state.closed_us))
        becomes = _bag(with_status(view, as_seen(view, _all(known)), now_us))
        changes = commit.changes()
        gone = _bag(changes.filter(pc.equal(changes[CHANGE_OP], "-")))
        come = _bag(changes.filter(pc.equal(changes[CHANGE_OP], "+")))
        assert (sorted(gone), sorted(come)) == (_without(was, becomes), _without(becomes, was))

    def _put_out(self, known: Kept, outgoing: Any) -> None:
        base = {each.target: each.base + each.rows.num_rows for each in known.outbox}
        for each in outgoing:
            known.outbox.append(Waiting(known.state.sequence, each.target, base.get(each.target, 0), each.rows))

    def _feed_what_is(self, known: Kept, emits: list[Any]) -> None:
        assert known.spec.view is not None
        rows, final_us = _all(known).drop_columns([CHANGE_OP]), known.state.closed_us
        told: list[Outgoing] = []
        for emit in emits:
            told += snapshot(known.spec.view, known.spec.name, rows, emit, "+", final_us)
        self._put_out(known, told)
        known.state = dataclasses.replace(known.state, sequence=known.state.sequence + bool(emits))

    def _widened(self, spec: FlowSpec, tables: MemoryTables) -> FlowSpec:
        assert spec.view is not None
        rows = tables.state().scan("rows", EVERYTHING)
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
        rows = with_status(spec, as_seen(spec, _all(known)), known.state.closed_us).drop_columns([CHANGE_OP])
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


EVERYTHING = pa.table({"x": [1]}).select([])


def _all(known: Kept) -> pa.Table:
    """All rows, with those that a transform made in the place of the results."""
    rows = known.tables.state().scan("rows", EVERYTHING)
    if known.spec.view is not None and known.spec.view.shaped is not None:
        made = known.tables.state().scan("shaped", EVERYTHING)
        key = known.spec.view.key
        of = aligned(made, rows, key) if key else np.zeros(made.num_rows, np.int64)
        for name in (each for each in rows.column_names if each not in made.column_names):
            made = made.append_column(name, rows[name].take(pa.array(of)))
        rows = made
    return rows.add_column(0, CHANGE_OP, pa.repeat("+", rows.num_rows))


def _bag(rows: pa.Table) -> list[str]:
    """Rows, to be compared: sums are the same however wide their column is."""
    return [
        repr([int(value) if isinstance(value, Decimal) and value == int(value) else value for value in row.values()])
        for row in rows.drop_columns([CHANGE_OP]).to_pylist()
    ]


def _without(rows: list[str], others: list[str]) -> list[str]:
    return sorted((Counter(rows) - Counter(others)).elements())


def _later(*times_us: int | None) -> int | None:
    return max((us for us in times_us if us is not None), default=None)
