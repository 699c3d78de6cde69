"""The payload: the same seeded rows for everybody, made before any clock runs. Owns their shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

DDL = "user string, page string, ms int, at timestamp"
BATCH_ROWS = 10_000
DISTINCT_BATCHES = 8
"""Batches are used again in turn: no one gains from it, everybody stores every row."""
BEGIN_US = 1_750_000_000_000_000


@dataclass(frozen=True)
class Payload:
    batches: list[pa.RecordBatch]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All distinct rows as dicts."""
        return [row for batch in self.batches for row in batch.to_pylist()]

    @cached_property
    def tuples(self) -> list[list[tuple[Any, ...]]]:
        """For SQLite: each batch as tuples, timestamps as integers."""
        out = []
        for batch in self.batches:
            columns = [batch.column(i).to_pylist() for i in range(3)] + [batch.column(3).cast(pa.int64()).to_pylist()]
            out.append(list(zip(*columns, strict=True)))
        return out

    @cached_property
    def messages(self) -> list[list[bytes]]:
        """For a message broker: each row as the text of a JSON object."""
        names = ("user", "page", "ms", "at")
        return [[orjson.dumps(dict(zip(names, row, strict=True))) for row in batch] for batch in self.tuples]

    def cycle(self, count: int) -> list[pa.RecordBatch]:
        return [self.batches[i % len(self.batches)] for i in range(count)]


def payload(seed: int = 7) -> Payload:
    random = np.random.default_rng(seed)
    return Payload([_batch(random, number) for number in range(DISTINCT_BATCHES)])


def _batch(random: np.random.Generator, number: int) -> pa.RecordBatch:
    begin = BEGIN_US + number * 10_000_000
    columns = [
        pa.array([f"user-{n}" for n in random.integers(0, 100_000, BATCH_ROWS)]),
        pa.array([f"/shop/page/{n}" for n in random.zipf(1.5, BATCH_ROWS) % 1000]),
        pa.array(random.integers(0, 5_000, BATCH_ROWS).astype(np.int32)),
        pa.array(begin + np.sort(random.integers(0, 10_000_000, BATCH_ROWS))).cast(pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["user", "page", "ms", "at"])
