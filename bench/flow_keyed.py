"""What keyed tables cost: rows added to a view's table in recent windows, and at random keys of a large one, in small
commits and large ones; and reading rows by their keys. The store alone, without Spark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from bench.flow_growth import KEYS, VIEW, rows
from bench.settings import Run
from bench.table import Measured, Row
from headrace.operators.fold import Fold
from headrace.views.contract import Commit, FlowSpec, Place
from headrace.views.keyed import Writes
from headrace.views.open import open_store

SPEC = FlowSpec("v", "bench", ("t",), VIEW)


def keyed(run: Run) -> Iterator[Row]:
    large = run.size(5_000_000, 40_000)
    random = np.random.default_rng(7)
    names = np.array([f"user-{number:05}" for number in range(KEYS)])
    with open_store(run.fresh("home")) as store:
        state = store.begin(replace(SPEC, tables=Fold(SPEC, {}).tables))

        def commit(windows: np.ndarray, users: np.ndarray) -> float:
            nonlocal state
            began = time.perf_counter()
            places = {"t": {0: Place(state.sequence + 1, None)}}
            writes = Writes(adds={"rows": rows(windows, users)})
            state = store.commit(state, Commit(state.sequence, places, {"t": "id"}, writes=writes))
            return len(users) / (time.perf_counter() - began)

        commit(np.zeros(KEYS, np.int64), names)
        recent, window = [], 1
        for _ in range(9):
            recent.append(commit(np.repeat([window, window + 1], KEYS // 2), names))
            window += 1
        yield Row("keyed", "rows added, recent windows, 10 k a commit", "rows/s", _measured(recent))
        there = [commit(np.repeat([window - 1, window], KEYS // 2), names) for _ in range(9)]
        yield Row("keyed", "rows added that are there, 10 k a commit", "rows/s", _measured(there), 770_000)
        together = 20
        while window * KEYS < large:
            commit(np.repeat(np.arange(window, window + together), KEYS), np.tile(names, together))
            window += together
        at = f"{large / 1e6:g} M"
        for count, target in ((KEYS, 72_000), (20 * KEYS, 144_000)):
            rates = []
            for _ in range(run.size(5, 1)):
                picked = np.unique(random.integers(0, window * KEYS, count))
                rates.append(commit(picked // KEYS, names[picked % KEYS]))
            what = f"rows added at random keys of {at}, {count // 1000} k a commit"
            yield Row("keyed", what, "rows/s", _measured(rates), target)
        for count in (KEYS, 10 * KEYS):
            rates = []
            for _ in range(run.size(5, 1)):
                picked = np.unique(random.integers(0, window * KEYS, min(count, window * KEYS)))
                keys: pa.Table = rows(picked // KEYS, names[picked % KEYS]).select(["window_start", "user"])
                began = time.perf_counter()
                found = store.read_state(state).get("rows", keys).num_rows
                rates.append(found / (time.perf_counter() - began))
            what = f"rows read at random keys of {at}, {count // 1000} k at once"
            yield Row("keyed", what, "rows/s", _measured(rates), 300_000)


def _measured(rates: list[float]) -> Measured:
    return Measured(statistics.median(rates), max(rates))
