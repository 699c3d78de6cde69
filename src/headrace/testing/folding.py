"""A view store whose commits are partial rows: what a flow does between its query and its commit, without Spark. For
the suites of stores and operators: `FoldingStore(store)` is the store, but for `begin` and `commit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.operators.aggregate import Bounds
from headrace.operators.fold import Fold
from headrace.views.contract import Commit, FlowSpec, FlowState

__all__ = ["FoldingStore", "PartialCommit"]


@dataclass(frozen=True)
class PartialCommit:
    """A commit before its fold. `facts`: further fields of the `Commit`."""

    partials: pa.Table | None = None
    shape: Callable[[pa.Table], pa.Table] | None = None
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class FoldingStore:
    def __init__(self, store: Any) -> None:
        self._store = store
        self._specs: dict[str, FlowSpec] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState:
        self._specs[spec.name] = with_tables(spec)
        state: FlowState = self._store.begin(self._specs[spec.name], replace=replace)
        return state

    def refuse_changed(self, spec: FlowSpec) -> None:
        self._store.refuse_changed(with_tables(spec))

    def begin_beside(self, spec: FlowSpec, program: str) -> None:
        self._store.begin_beside(with_tables(spec), program)

    def commit(self, flow: FlowState, commit: PartialCommit) -> FlowState:
        spec = self._specs[flow.name]
        made = Commit(**commit.facts)
        if spec.view is not None:
            spec = replace(spec, feeds=self._store.feeds(flow.name))
            fold = Fold(spec, commit.aggregates, commit.shape)
            now = Bounds(made.frontier_us, made.closed_us, made.unchanged_us)
            before = Bounds(flow.frontier_us, flow.closed_us, flow.unchanged_us)
            watched = self._store.is_watched(flow.name)
            found = fold(commit.partials, self._store.read_state(flow), now, before, watched=watched)
            outgoing = [*made.outgoing, *found.outgoing]
            made = replace(made, writes=found.writes, outgoing=outgoing, changes=found.changes)
        state: FlowState = self._store.commit(flow, made)
        return state

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.__exit__(kind, error, trace)


def with_tables(spec: FlowSpec) -> FlowSpec:
    """The flow with the tables that its operator keeps."""
    return spec if spec.view is None or spec.tables else replace(spec, tables=Fold(spec, {}).tables)
