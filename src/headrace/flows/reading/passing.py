"""Columns that a transform only passes on do not go through the JVM. Spark computes the other columns, and each row
comes back with the place of its record, which no transform changes: by that the columns are put together again, with
what this process reads of the log. Owns the putting together. For flows that write records of one topic to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.flows.reading import ranges

PLACE = ("_partition", "_offset")


@dataclass(frozen=True, slots=True)
class Passed:
    """`origins`: a column behind the transforms -> the topic's column that it is. `order`: all columns behind them."""

    origins: dict[str, str]
    order: tuple[str, ...]

    @property
    def computed(self) -> list[str]:
        """What Spark is asked for."""
        return [name for name in self.order if name not in self.origins or name in PLACE]

    def joined(self, computed: pa.Table, columns: ranges.Columns, chosen: Sequence[ranges.Range]) -> pa.Table:
        """The rows with all columns. A record that was erased in between is gone."""
        needed = frozenset({*self.origins.values(), *PLACE})
        columns = ranges.only(columns, needed)
        schema = ranges.arrow_schema(columns.known, columns.schema.names)
        records = pa.Table.from_batches(ranges.read_on_driver(columns, chosen), schema)
        rows, at = _matched(_places(computed), _places(records))
        if rows is not None:
            computed = computed.take(rows)
        if at is not None:
            records = records.take(at)
        found = [
            records[self.origins[name]] if name in self.origins and name not in PLACE else computed[name]
            for name in self.order
        ]
        return pa.table(found, names=list(self.order))


def _places(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Partition and offset of each row, as one number that keeps their order."""
    partition, offset = (rows[name].cast(pa.int64()).to_numpy() for name in PLACE)
    places: npt.NDArray[np.int64] = (partition << 44) | offset
    return places


def _matched(wanted: npt.NDArray[np.int64], there: npt.NDArray[np.int64]) -> tuple[pa.Array | None, pa.Array | None]:
    """Which rows have their record, and where; None: all, as they are."""
    if len(wanted) == len(there) and np.array_equal(wanted, there):
        return None, None
    order = None if np.all(there[1:] > there[:-1]) else np.argsort(there, kind="stable")
    at = np.searchsorted(there, wanted, sorter=order)
    at = np.minimum(at, len(there) - 1) if len(there) else at
    at = at if order is None else order[at]
    found = there[at] == wanted if len(there) else np.zeros(len(wanted), np.bool_)
    rows = None if found.all() else pa.array(np.flatnonzero(found))
    return rows, pa.array(at[found])
