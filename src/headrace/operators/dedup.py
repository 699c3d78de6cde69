"""Repetitions taken out. Approximately: records in order, by partition, through that partition's filters, whose pages
are rows of a keyed table; `bloom` says what a repetition is. A step reads the pages that its records' keys are in, and
writes those that changed: so it costs what its records cost.

Exactly, a repetition is a record of a session that is not its first: that is `sessions`, of the aggregate `first`,
whose results are records (`ViewSpec.records`); an earlier record that comes later takes the other's place.

What is decided of a record depends on those before it in its partition and on nothing else: so partitions are steps of
their own, in any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bloom import Dedup, Filters
from headrace.operators.contract import InputTimes, Output, Step
from headrace.operators.records import HASH, INPUT, OP, PARTITION, PLACE, TOPIC, OverRecords, columns_of
from headrace.operators.result_rows import column, in_order
from headrace.time import UNSET
from headrace.views.contract import Column, LedgerRow
from headrace.views.keyed import State, TableSpec, Writes

__all__ = ["ApproximateDedup", "TakeOut"]

I64 = npt.NDArray[np.int64]
PAGES = TableSpec("pages", (*PLACE, Column("stretch", "bigint"), Column("page", "bigint")), (Column("bits", "binary"),))
STRETCHES = TableSpec("stretches", (*PLACE, Column("stretch", "bigint")), ())
"""Those of which there are pages: found without reading these."""
REACHED = TableSpec("reached", PLACE, (Column("reached_us", "bigint"),))


@dataclass(frozen=True)
class TakeOut:
    """The step of a program that takes repetitions out, approximately."""

    dedup: Dedup
    called = "dedup"
    timed = True

    @property
    def needs(self) -> tuple[str, ...]:
        return self.dedup.key

    @property
    def hashed(self) -> tuple[str, ...]:
        return self.dedup.key

    def over(self, schema: pa.Schema, time: str | None) -> ApproximateDedup:
        assert time is not None, "it asks for an event time"
        return ApproximateDedup(self.dedup, columns_of(schema), time)

    def __str__(self) -> str:
        return str(self.dedup)


@dataclass(frozen=True)
class ApproximateDedup(OverRecords):
    """Records come with `TOPIC`, `_partition`, `_offset`, `_progress`, `HASH` and the column `time`, which is null of
    records that are in no stretch: those do not go on."""

    dedup: Dedup
    columns: tuple[Column, ...]
    time: str

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return PAGES, STRETCHES, REACHED

    @property
    def output(self) -> Output:
        return Output(None, self.time, None)

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],  # noqa: ARG002 (a record's own progress says how far its partition is)
        *,
        changes: bool,  # noqa: ARG002 (what goes on is what the step is for)
    ) -> Step:
        records = batch.get(INPUT)
        if records is None or not records.num_rows:
            none = None if records is None else records.add_column(0, OP, pa.nulls(0, pa.string()))
            return Step(changes=none)
        records = in_order(records, (TOPIC, PARTITION, "_offset"))
        timed = records.filter(column(records, self.time).is_valid())
        first, late = np.zeros(timed.num_rows, np.bool_), np.zeros(timed.num_rows, np.bool_)
        writes = _Written()
        for start, stop in _runs(timed):
            some = timed.slice(start, stop - start)
            first[start:stop], late[start:stop] = self._judged(some, state, writes)
        row = LedgerRow(
            None,
            None,
            on_time=int((~late).sum()),
            dropped=int(late.sum()),
            untimed=records.num_rows - timed.num_rows,
        )
        goes_on = timed.filter(pa.array(first))
        told = goes_on.add_column(0, OP, pa.repeat("+", goes_on.num_rows))
        return Step(writes.writes(), told, (row,), timed.filter(pa.array(late)))

    def _judged(self, some: pa.Table, state: State, writes: _Written) -> tuple[npt.NDArray[np.bool_], ...]:
        """Records of one partition, in the order of their offsets."""
        place = some.select([TOPIC, PARTITION]).slice(0, 1)
        hashes, times_us, progress_us = (_numbers(some, name) for name in (HASH, self.time, "_progress"))
        filters = Filters(self.dedup)
        reached = state.get(REACHED.name, place)
        if reached.num_rows:
            filters.reached_us = reached["reached_us"][0].as_py()
        pages = self._pages(place, hashes, times_us)
        for row in state.get(PAGES.name, pages).select(["stretch", "page", "bits"]).to_pylist():
            filters.put(row["stretch"], row["page"], row["bits"])
        found = filters.step(hashes, times_us, progress_us)
        changed = list(filters.changed())
        known = state.scan(STRETCHES.name, place, high=[filters.lowest - 1])
        writes.put(place, changed, filters.reached_us, known)
        return found.first, found.late

    def _pages(self, place: pa.Table, hashes: I64, times_us: I64) -> pa.Table:
        """The keys of the pages that these records may be found in."""
        stretch, page = self.dedup.stretches_of(times_us), self.dedup.pages_of(hashes)
        pairs = np.unique(np.stack((stretch.ravel(), np.repeat(page, stretch.shape[1]))), axis=1)
        return _keyed(place, {"stretch": pairs[0], "page": pairs[1]})


class _Written:
    """What is written of all partitions."""

    def __init__(self) -> None:
        self._pages: list[pa.Table] = []
        self._stretches: list[pa.Table] = []
        self._reached: list[pa.Table] = []
        self._gone: list[pa.Table] = []

    def put(self, place: pa.Table, changed: list[tuple[int, int, bytes]], reached_us: int, gone: pa.Table) -> None:
        stretch, page = (np.array([each[at] for each in changed], np.int64) for at in (0, 1))
        rows = _keyed(place, {"stretch": stretch, "page": page})
        self._pages.append(rows.append_column("bits", pa.array([each[2] for each in changed], pa.binary())))
        self._stretches.append(_keyed(place, {"stretch": np.unique(stretch)}))
        self._reached.append(place.append_column("reached_us", pa.array([reached_us], pa.int64())))
        self._gone.append(gone)

    def writes(self) -> Writes:
        if not self._reached:
            return Writes()
        gone = pa.concat_tables(self._gone)
        puts = {PAGES.name: self._pages, STRETCHES.name: self._stretches, REACHED.name: self._reached}
        joined = {name: pa.concat_tables(some) for name, some in puts.items()}
        deletes = {PAGES.name: gone, STRETCHES.name: gone} if gone.num_rows else {}
        return Writes(puts={name: rows for name, rows in joined.items() if rows.num_rows}, deletes=deletes)


def _keyed(place: pa.Table, columns: Mapping[str, I64]) -> pa.Table:
    count = len(next(iter(columns.values())))
    same = {name: place[name].take(pa.array(np.zeros(count, np.int64))) for name in place.column_names}
    return pa.table({**same, **{name: pa.array(values) for name, values in columns.items()}})


def _runs(records: pa.Table) -> list[tuple[int, int]]:
    """From where to where the records of a partition are; they are in order."""
    if not records.num_rows:
        return []
    topic, partition = (column(records, name) for name in (TOPIC, PARTITION))
    same = pc.and_(pc.equal(topic[1:], topic[:-1]), pc.equal(partition[1:], partition[:-1]))
    cuts = (np.flatnonzero(~np.asarray(same)) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, records.num_rows], strict=True))


def _numbers(records: pa.Table, name: str) -> I64:
    numbers: I64 = column(records, name).cast(pa.int64()).fill_null(UNSET).to_numpy()
    return numbers
