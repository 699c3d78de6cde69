"""What merging a batch into a row of the state costs, aggregate by aggregate: processor time of a commit, for each row
it touches. The store alone, without Spark; an additive aggregate beside them, to compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bench.settings import Run
from bench.table import Row, of_samples
from headrace.aggregates import (
    Aggregate,
    approx_count_distinct,
    approx_quantile,
    collect,
    count,
    count_distinct,
    histogram,
    top_k,
)
from headrace.aggregates.families.lists import TopK
from headrace.aggregates.merged import Merged
from headrace.aggregates.packing import counted
from headrace.testing.folding import FoldingStore, PartialCommit
from headrace.views.contract import Column, FlowSpec, FlowState, Place, Result, SlotColumn, ViewSpec
from headrace.views.sqlite.store import SqliteViews

INSTANT = pa.timestamp("us", tz="UTC")
NEW = 10
"""Values that each commit brings for each row."""
Values = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Case:
    what: str
    aggregate: Aggregate
    types: tuple[str, ...]
    """Of its slots, in order."""
    values: Values
    begins: int = 0
    """Values that each row has before."""


def some_of(largest: int) -> Values:
    return lambda random, size: random.integers(0, largest, size)


def hashes(random: np.random.Generator, size: int) -> np.ndarray:
    return random.integers(-(2**63), 2**63 - 1, size)


def latencies(random: np.random.Generator, size: int) -> np.ndarray:
    return random.lognormal(4, 1, size)


COUNTED = "array<struct<value:bigint,count:bigint>>"
KEPT = "array<struct<at:timestamp,partition:int,offset:bigint,value:bigint>>"
CASES = [
    Case("count", count(), ("bigint",), some_of(10)),
    Case("count_distinct, 1 k values a row", count_distinct("x"), ("bigint",), some_of(2_000), 1_000),
    Case("approx_count_distinct, 100 values a row", approx_count_distinct("x"), ("binary", "bigint"), hashes, 100),
    Case("approx_count_distinct, full", approx_count_distinct("x"), ("binary", "bigint"), hashes, 10_000),
    Case("approx_quantile, 10 k values a row", approx_quantile("x", 0.95), ("binary", "double"), latencies, 10_000),
    Case("top_k, 100 values a row", top_k("x", 10), (COUNTED,), some_of(100), 1_000),
    Case("top_k, 10 k values a row", top_k("x", 10), (COUNTED,), some_of(10_000), 30_000),
    Case("histogram, 10 bounds", histogram("x", list(range(10))), ("array<bigint>",), some_of(12)),
    Case("collect, limit 10", collect("x", limit=10), (KEPT, "array<bigint>"), some_of(100), 10),
]


def merge(run: Run) -> Iterator[Row]:
    for case in CASES:
        few = case.begins > 1_000
        rows = run.size(200 if few else 2_000, 10)
        with FoldingStore(SqliteViews(run.fresh("home"))) as store:
            loop = _Commits(store, case, rows)
            if case.begins:
                loop.commit(case.begins)
            loop.commit(NEW)
            samples = [loop.commit(NEW) / rows * 1e6 for _ in range(run.size(5, 1))]
        yield Row("merge", f"processor time per touched row: {case.what}", "µs", of_samples(samples))


class _Commits:
    def __init__(self, store: FoldingStore, case: Case, rows: int) -> None:
        self._store, self._case, self._rows = store, case, rows
        self._random = np.random.default_rng(7)
        slots = case.aggregate.slots("x")
        columns = [SlotColumn(s.name, kind, s.rule, s.of) for s, kind in zip(slots, case.types, strict=True)]
        result = "bigint" if slots[-1].rule == "distinct" else case.types[-1]
        view = ViewSpec("v", (Column("user", "bigint"),), tuple(columns), (Result("x", result, ("x",)),))
        self._state: FlowState = store.begin(FlowSpec("v", "bench", ("t",), view))

    def commit(self, values: int) -> float:
        """Merges so many values into each row; the seconds of processor time it took."""
        partials = self._partials(values)
        began = time.process_time()
        places = {"t": {0: Place(self._state.sequence + 1, None)}}
        aggregates = {"x": self._case.aggregate}
        facts = {"sequence": self._state.sequence, "places": places, "topic_ids": {"t": "id"}}
        self._state = self._store.commit(self._state, PartialCommit(partials, aggregates=aggregates, facts=facts))
        return time.process_time() - began

    def _partials(self, values: int) -> pa.Table:
        rows, case = self._rows, self._case
        of = np.repeat(np.arange(rows), values)
        drawn: Any = pa.array(case.values(self._random, rows * values))
        match case.aggregate.kind:
            case "count":
                made = pa.array(np.full(rows, values))
            case "count_distinct":
                ends = pa.array(np.arange(0, rows * values + 1, values), pa.int32())
                made = pa.ListArray.from_arrays(ends, drawn)
            case "collect":
                at = pa.array(self._random.integers(0, 2**40, len(of)), pa.int64()).cast(INSTANT)
                order = [at, pa.array(np.zeros(len(of), np.int32)), pa.array(np.arange(len(of)))]
                drawn = pa.StructArray.from_arrays([*order, drawn], names=["at", "partition", "offset", "value"])
                made = self._packed(of, drawn, rows)
            case _:
                made = self._packed(of, drawn, rows)
        return pa.table(
            {
                "user": pa.array(np.arange(rows)),
                case.aggregate.slots("x")[0].name: made,
                "_corrections": pa.array(np.zeros(rows, np.int64)),
                "_updated_at": pa.repeat(pa.scalar(0, INSTANT), rows),
            }
        )

    def _packed(self, of: Any, values: Any, rows: int) -> Any:
        algebra = self._case.aggregate.algebra
        if isinstance(algebra, TopK):
            return counted(of, values, np.ones(len(of), np.int64), rows)
        assert isinstance(algebra, Merged)
        return algebra.pack(of, values, rows)
