"""A view store in memory: a twin. It shows that nothing reaches around the seam: a store keeps keyed tables and commits
them with a flow's position, and need know no aggregate, no window and no SQL. It has no versions and no watchers."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import Closed, CommitConflict, FlowChanged, FlowFenced, UnknownView, ViewTaken
from headrace.operators.result_rows import aligned, in_order
from headrace.position import Position
from headrace.testing.memory_tables import MemoryState, MemoryTables
from headrace.views import writers
from headrace.views.changes import CHANGE_OP, as_seen, snapshot, with_status
from headrace.views.contract import (
    Commit,
    Emit,
    FlowSpec,
    FlowState,
    LedgerRow,
    Mark,
    Outgoing,
    ReadMark,
    Waiting,
    widened,
)
from headrace.views.naming import check_names
from headrace.views.values import arrow_type


@dataclass
class Kept:
    """One flow."""

    spec: FlowSpec
    tables: MemoryTables
    state: FlowState
    outbox: list[Waiting] = field(default_factory=list)
    relayed: int = -1
    sent: dict[str, int] = field(default_factory=dict)
    """How many rows have gone to each target."""
    ledger: dict[tuple[int | None, int | None], LedgerRow] = field(default_factory=dict)
    read_marks: list[ReadMark] = field(default_factory=list)


@dataclass
class Home:
    flows: dict[str, Kept] = field(default_factory=dict)
    epochs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    lock: threading.RLock = field(default_factory=threading.RLock)


class MemoryStore:
    """`MemoryStore(home)`: the flows of that home, as long as the process lives. Knows no versions of a view."""

    homes: ClassVar[dict[Path, Home]] = {}

    def __init__(self, home: Path) -> None:
        self._home, self.path = self.homes.setdefault(home, Home()), home / "memory"
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- flows -------------------------------------------------------------------------------------

    @property
    def flows(self) -> dict[str, Kept]:
        if self._closed:
            raise Closed(what="the views in memory")
        return self._home.flows

    def _known(self, flow: str) -> Kept:
        if flow not in self.flows:
            raise UnknownView(view=flow, known=list(self.flows))
        return self.flows[flow]

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState:
        if spec.view is not None:
            check_names(spec.view, max(len(table.names) for table in spec.tables))
        with self._home.lock:
            for name, other in self.flows.items():
                if name.lower() == spec.name.lower() and (name, other.spec.app) != (spec.name, spec.app):
                    raise ViewTaken(view=name, app=other.spec.app)
            known = self.flows.get(spec.name)
            if known is not None and not replace:
                self._go_on(known, spec)
            else:
                state = FlowState(spec.name, 0, 0, {}, {}, None, born=uuid.uuid4().hex[:12])
                self.flows[spec.name] = Kept(spec, MemoryTables(*spec.tables), state)
            kept = self.flows[spec.name]
            kept.state = dataclasses.replace(kept.state, epoch=next(self._home.epochs))
            return kept.state

    def _go_on(self, known: Kept, spec: FlowSpec) -> None:
        if changed := known.spec.changes(spec):
            raise FlowChanged(flow=spec.name, changes=changed)
        new = [emit for emit in spec.feeds if emit not in known.spec.feeds]
        wide = [each.name for each in known.spec.view.results if each.widened] if known.spec.view else []
        view = None if spec.view is None else widened(spec.view, wide)
        known.spec = dataclasses.replace(spec, view=view, feeds=(*known.spec.feeds, *new))
        self._feed_what_is(known, new)

    def state(self, flow: str) -> FlowState:
        return self._known(flow).state

    def read_marks(self, flow: str) -> list[ReadMark]:
        return self._known(flow).read_marks

    def feeds(self, flow: str) -> tuple[Emit, ...]:
        known = self.flows.get(flow)
        return () if known is None else known.spec.feeds

    def outbox(self, flow: str) -> list[Waiting]:
        known = self._known(flow)
        return [each for each in known.outbox if each.sequence > known.relayed]

    def carried(self, flow: str) -> dict[str, int]:
        return dict(self._known(flow).sent)

    def read_state(self, flow: FlowState) -> MemoryState:
        return self._mine(flow).tables.state()

    def _mine(self, flow: FlowState) -> Kept:
        known = self.flows.get(flow.name)
        if known is None or known.state.epoch != flow.epoch:
            raise FlowFenced(flow=flow.name, epoch=flow.epoch, current_epoch=known.state.epoch if known else 0)
        return known

    def is_watched(self, flow: str) -> bool:
        known = self.flows.get(flow)
        return known is not None and known.state.sequence % 2 == 1  # with and without changes, the same is written

    def wipe(self) -> list[str]:
        return []

    def drop(self, flow: str) -> list[str]:
        dropped = writers.with_helpers(self._known(flow).spec, self._specs())
        for spec in dropped:
            del self.flows[spec.name]
        return sorted(topic for spec in dropped for topic in spec.writes if topic.startswith("__"))

    # -- what follows from other flows ----------------------------------------------------------------

    def _specs(self) -> list[FlowSpec]:
        return [each.spec for each in self.flows.values()]

    def goes_back(self, topics: Any) -> bool:
        return writers.goes_back(topics, self._specs(), lambda flow: sum(map(len, self.state(flow).places.values())))

    def closes(self, flow: str, frontier_us: int) -> bool:
        return writers.closes(self._known(flow).spec, frontier_us, self._specs(), self._has_open)

    def _has_open(self, spec: FlowSpec, closed_us: int) -> bool:
        known, more_us = self._known(spec.name), _length(spec)
        after_us = None if known.state.closed_us is None else known.state.closed_us - more_us
        return bool(known.tables.state().due("rows", closed_us - more_us, 1, after_us=after_us).num_rows)

    def marks(self, topics: Any) -> dict[str, Mark | None]:
        found = {
            topic: [
                (each.spec, each.state.frontier_us, not self.outbox(name))
                for name, each in self.flows.items()
                if each.spec.target == topic
            ]
            for topic in topics
        }
        return {topic: writers.mark_of(some) for topic, some in found.items() if some}

    def last_window_end(self, flow: str) -> int | None:
        known = self._known(flow)
        if known.spec.view is None or known.spec.view.window_us is None:
            return None
        last = known.tables.state().last_us("rows")
        return None if last is None else last + _length(known.spec)

    # -- committing --------------------------------------------------------------------------------

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        with self._home.lock:
            known = self._mine(flow)
            if commit.sequence != known.state.sequence:
                raise CommitConflict(flow=flow.name, sequence=commit.sequence, current=known.state.sequence)
            before = None if known.spec.view is None else _all(known)
            known.tables.apply(commit.writes)
            if before is not None:
                self._check_changes(known, before, commit)
            self._settle(known, commit.relayed)
            self._put_out(known, commit.outgoing)
            known.read_marks += commit.read_marks
            for row in commit.ledger:
                self._count(known, row)
            known.spec = self._widened(known.spec, known.tables)
            known.state = self._after(known.state, commit)
            return known.state

    def _after(self, state: FlowState, commit: Commit) -> FlowState:
        places = {topic: dict(some) for topic, some in state.places.items()}
        for topic, some in commit.places.items():
            places.setdefault(topic, {}).update(some)
        begins = state.begins or {topic: dict(some) for topic, some in commit.begins.items()}
        return dataclasses.replace(
            state,
            sequence=commit.sequence + 1,
            places=places,
            begins=begins,
            topic_ids={**state.topic_ids, **commit.topic_ids},
            frontier_us=_later(state.frontier_us, commit.frontier_us),
            closed_us=_later(state.closed_us, commit.closed_us),
            unchanged_us=_later(state.unchanged_us, commit.unchanged_us),
        )

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

    def note_relayed(self, flow: FlowState, relayed: int, written: Position) -> None:  # noqa: ARG002
        self._settle(self._mine(flow), relayed)

    def _settle(self, known: Kept, relayed: int) -> None:
        known.relayed = max(known.relayed, relayed)
        known.outbox = [each for each in known.outbox if each.sequence > known.relayed]

    def _put_out(self, known: Kept, outgoing: Any) -> None:
        for each in outgoing:
            base = known.sent.get(each.target, 0)
            known.outbox.append(Waiting(known.state.sequence, each.target, base, each.rows))
            known.sent[each.target] = base + each.rows.num_rows

    def _count(self, known: Kept, row: LedgerRow) -> None:
        key = row.window_start_us, row.window_end_us
        old = known.ledger.get(key, LedgerRow(*key))
        counts = ("on_time", "corrected", "dropped", "untimed")
        known.ledger[key] = LedgerRow(*key, *(getattr(old, name) + getattr(row, name) for name in counts))

    def _feed_what_is(self, known: Kept, emits: list[Any]) -> None:
        if not emits:
            return
        assert known.spec.view is not None
        rows, final_us = _all(known).drop_columns([CHANGE_OP]), known.state.closed_us
        told: list[Outgoing] = []
        for emit in emits:
            told += snapshot(known.spec.view, known.spec.name, rows, emit, "+", final_us)
        self._put_out(known, told)
        known.state = dataclasses.replace(known.state, sequence=known.state.sequence + 1)

    def _widened(self, spec: FlowSpec, tables: MemoryTables) -> FlowSpec:
        if spec.view is None:
            return spec
        rows = tables.state().scan("rows", EVERYTHING)
        wide = []
        for result in spec.view.whole_sums:
            try:
                rows[result.slots[0]].cast(pa.int64())
            except pa.ArrowInvalid:
                wide.append(result.name)
        wide += [each.name for each in spec.view.results if each.widened]
        return dataclasses.replace(spec, view=widened(spec.view, wide))


def _length(spec: FlowSpec) -> int:
    """How long after the time of its row a window ends."""
    assert spec.view is not None
    return spec.view.window_us[0] if spec.view.windows == "fixed" and spec.view.window_us else 0


@dataclass
class MemoryViews:
    home: Path

    def _known(self, view: str) -> Kept:
        flows = MemoryStore.homes[self.home].flows
        if view not in flows:
            raise UnknownView(view=view, known=list(flows))
        return flows[view]

    def to_arrow(self, view: str, where: dict[str, Any] | None = None) -> pa.Table:
        known = self._known(view)
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
        rows = sorted(
            self._known(view).ledger.values(), key=lambda row: (row.window_start_us or -1, row.window_end_us or -1)
        )
        times = ("window_start", "window_end")
        columns: dict[str, Any] = {
            name: pa.array([getattr(row, f"{name}_us") for row in rows], pa.int64()).cast(arrow_type("timestamp"))
            for name in times
        }
        counts = ("on_time", "corrected", "dropped", "untimed")
        return pa.table(columns | {name: pa.array([getattr(row, name) for row in rows], pa.int64()) for name in counts})

    def names(self) -> list[str]:
        flows = MemoryStore.homes[self.home].flows if self.home in MemoryStore.homes else {}
        return sorted(name for name, each in flows.items() if each.spec.view is not None and each.spec.view.public)

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
