"""The requests of a night, the same in every run: a backlog for Spark; and what the view of them must be, counted in
plain Python. Pure: no log, no Spark, no flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.demo.traffic import OPENS, PAGES, SEED

REQUESTS, MINUTES = 300_000, 60
MINUTE_US = 60_000_000
BEGINS = OPENS - timedelta(hours=9)
SLOW_MS = 800

Key = tuple[datetime, str]


def requests() -> pa.Table:
    """In the order of their time: an hour of the night, some 83 a second."""
    chance = np.random.default_rng(SEED)
    pages = pa.array(list(PAGES)).take(pa.array(chance.integers(0, len(PAGES), REQUESTS)))
    sessions = pa.array(chance.integers(0, 10_000, REQUESTS)).cast(pa.string())
    at_us = np.sort(chance.integers(0, MINUTES * MINUTE_US, REQUESTS)) + int(BEGINS.timestamp() * 1_000_000)
    return pa.table(
        {
            "path": pc.binary_join_element_wise(pages, sessions, "?session="),
            "ms": chance.integers(5, 1_000, REQUESTS),
            "at": pa.array(at_us, pa.timestamp("us", "UTC")),
        }
    )


def by_hand(batches: Iterable[pa.RecordBatch]) -> dict[Key, tuple[int, int, int]]:
    """(minute, page) -> requests, slow ones, the slowest in milliseconds."""
    found: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for batch in batches:
        at_us = batch["at"].cast(pa.int64()).to_pylist()  # 300,000 dates would take longer than all the rest
        for path, ms, us in zip(batch["path"].to_pylist(), batch["ms"].to_pylist(), at_us, strict=True):
            cell = found[us // MINUTE_US, path.partition("?")[0]]
            cell[0] += 1
            cell[1] += ms > SLOW_MS
            cell[2] = max(cell[2], ms)
    begin = datetime.fromtimestamp(0, UTC)
    return {
        (begin + timedelta(minutes=minute), page): (count, slow, slowest)
        for (minute, page), (count, slow, slowest) in found.items()
    }


def in_view(rows: Iterable[dict[str, Any]]) -> dict[Key, tuple[int, int, int]]:
    return {(row["window_start"], row["page"]): (row["requests"], row["slow"], row["slowest"]) for row in rows}
