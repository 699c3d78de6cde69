"""A flow's state, of which many keys are read by Spark's workers, side by side. Each worker opens the state where the
store lies; what it finds comes back by `carrying`.

Why the reading, and not the step: of a large step of a join, most of the time goes into rows that come from the store
one by one. What is left is Arrow, and cheaper than to divide the records and to put the results together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.flows.folding.carrying import in_workers
from headrace.flows.spark import session
from headrace.operators.result_rows import key_numbers
from headrace.views.contract import State, TableSpec
from headrace.views.values import sort_by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flows.spark.spark_use import SparkUse

__all__ = ["KEYS_MIN", "ReadInParts"]

KEYS_MIN = 100_000
"""To read fewer keys is not worth a Spark job."""
LOW, HIGH = "/low", "/high"


class ReadInParts(State):
    """`state`: what it is made of, for all that is small. `open_state`: opens the same in a worker."""

    def __init__(
        self,
        state: State,
        tables: Sequence[TableSpec],
        open_state: Callable[[], State],
        spark: SparkSession,
        use: SparkUse,
    ) -> None:
        self._state, self._open, self._spark, self._use = state, open_state, spark, use
        self._keys = {each.name: each.key_names for each in tables}

    def get(self, table: str, keys: pa.Table) -> pa.Table:
        return self.scan(table, keys.select(self._keys[table]))

    def scan(
        self,
        table: str,
        prefixes: pa.Table,
        low: Sequence[int] | None = None,
        high: Sequence[int] | None = None,
        *,
        floor: bool = False,
        limit: int | None = None,
        descending: bool = False,
    ) -> pa.Table:
        if prefixes.num_rows < KEYS_MIN or not prefixes.num_columns:
            return self._state.scan(table, prefixes, low, high, floor=floor, limit=limit, descending=descending)
        for name, bounds in ((LOW, low), (HIGH, high)):
            if bounds is not None:
                prefixes = prefixes.append_column(name, pa.array(bounds, pa.int64()))
        parts = _parts(prefixes, self._keys[table], session.cores(self._spark))

        def read(part: pa.Table) -> pa.Table:
            low, high = (part[name].to_pylist() if name in part.column_names else None for name in (LOW, HIGH))
            part = part.select([name for name in part.column_names if name not in (LOW, HIGH)])
            return open_state().scan(table, part, low, high, floor=floor, limit=limit, descending=descending)

        open_state = self._open
        return pa.concat_tables(in_workers(parts, read, self._spark, self._use))

    def due(self, table: str, upto_us: int, limit: int | None = None, *, after_us: int | None = None) -> pa.Table:
        return self._state.due(table, upto_us, limit, after_us=after_us)

    def last_us(self, table: str) -> int | None:
        return self._state.last_us(table)


def _parts(prefixes: pa.Table, key: Sequence[str], count: int) -> list[pa.Table]:
    """About equal, one behind the other in the order of the keys; equal prefixes stay together."""
    names = [name for name in key if name in prefixes.column_names]
    prefixes = sort_by_key(prefixes, names)
    (number,) = key_numbers(prefixes.select(names))
    begins = np.flatnonzero(np.diff(number, prepend=-1))
    cuts = [*begins[np.arange(count) * len(begins) // count].tolist(), prefixes.num_rows]
    return [prefixes.slice(start, stop - start) for start, stop in itertools.pairwise(cuts) if stop > start]
