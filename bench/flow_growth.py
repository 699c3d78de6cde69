"""What a commit costs as the view grows: in recent windows, as streams have it, and at random over all of it. The store
alone, without Spark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bench.settings import Run
from bench.table import Measured, Row
from headrace.testing.folding import FoldingStore, PartialCommit
from headrace.views.contract import Column, FlowSpec, FlowState, Place, Result, SlotColumn, ViewSpec
from headrace.views.sqlite.store import SqliteViews

KEYS = 10_000
"""A window's worth of rows, and a commit's."""
INSTANT = pa.timestamp("us", tz="UTC")
SECOND_US = 1_000_000
VIEW = ViewSpec(
    "v",
    (Column("user", "string"),),
    (SlotColumn("n", "bigint", "add"), SlotColumn("m", "int", "greatest")),
    (Result("n", "bigint", ("n",)), Result("m", "int", ("m",))),
    (10 * SECOND_US, 10 * SECOND_US),
)


def growth(run: Run) -> Iterator[Row]:
    large = run.size(5_000_000, 40_000)
    random = np.random.default_rng(7)
    names = np.array([f"user-{number:05}" for number in range(KEYS)])
    with FoldingStore(SqliteViews(run.fresh("home"))) as store:
        state = store.begin(FlowSpec("v", "bench", ("t",), VIEW))

        def commit(state: FlowState, windows: np.ndarray, users: np.ndarray) -> tuple[FlowState, float]:
            began = time.perf_counter()
            places = {"t": {0: Place(state.sequence + 1, None)}}
            partials = rows(windows, users)
            facts = {"sequence": state.sequence, "places": places, "topic_ids": {"t": "id"}}
            state = store.commit(state, PartialCommit(partials, facts=facts))
            return state, time.perf_counter() - began

        def recent(state: FlowState, last: int) -> tuple[FlowState, float]:
            """Half of the last window's rows, and the other half of the one before: a window's worth of new ones."""
            return commit(state, np.repeat([last - 1, last], KEYS // 2), names)

        state, _ = commit(state, np.zeros(KEYS, np.int64), names)
        small, state, window = [], state, 1
        for _ in range(5):
            state, took = recent(state, window := window + 1)
            small.append(took)
        while window * KEYS < large:
            state, took = recent(state, window := window + 1)
        full = []
        for _ in range(5):
            state, took = recent(state, window := window + 1)
            full.append(took)
        at = f"{large / 1e6:g} M"
        few, many = _rates(small), _rates(full)
        yield Row("growth", f"rows merged into a view of {KEYS // 1000} k rows, recent windows", "rows/s", few)
        yield Row("growth", f"the same into a view of {at} rows", "rows/s", many)
        ratio = statistics.median(full) / statistics.median(small)
        yield Row(
            "growth", f"a commit into {at} rows against one into {KEYS // 1000} k", "x", Measured(ratio, ratio), 1.5,
            smaller_is_better=True,
        )  # fmt: skip
        spread = []
        for _ in range(run.size(5, 1)):
            windows = random.integers(0, window, KEYS)
            state, took = commit(state, windows, names[random.integers(0, KEYS, KEYS)])
            spread.append(took)
        yield Row("growth", f"rows merged at random keys of all {at} rows", "rows/s", _rates(spread))


def rows(windows: np.ndarray, users: np.ndarray) -> pa.Table:
    starts = pa.array(windows.astype(np.int64) * 10 * SECOND_US + 1_750_000_000 * SECOND_US)
    count = len(users)
    return pa.table(
        {
            "window_start": starts.cast(INSTANT),
            "window_end": pa.compute.add(starts, 10 * SECOND_US).cast(INSTANT),
            "user": pa.array(users),
            "n": pa.array(np.ones(count, np.int64)),
            "m": pa.array(np.arange(count, dtype=np.int32)),
            "_corrections": pa.array(np.zeros(count, np.int64)),
            "_updated_at": pa.repeat(pa.scalar(1_750_000_000 * SECOND_US, INSTANT), count),
        }
    )


def _rates(seconds: list[float]) -> Measured:
    return Measured(KEYS / statistics.median(seconds), KEYS / min(seconds))
