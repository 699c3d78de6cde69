"""Partial rows made by Arrow, where the records are read: for flows that leave Spark nothing to compute, because they
name plain columns and their transforms only choose (`sieve`). Owns the same question as `flows.compiler.partials`,
answered with arrays; the rows are the same, and so are their types. `flows.compiler.arrow_plan` says which flows these
are.

A record that is folded here never becomes a row of the JVM: that is most of a large batch's time. Pure; knows no
session, no range and no store."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import Aggregate, Records
from headrace.aggregates.grouping import Grouping, as_kept, rows_of
from headrace.kernels.columns import CARRIED, FIRST, LAST, RECORDS, UPDATED
from headrace.kernels.judge import JUDGED, PANE, Judge, without_untimed
from headrace.kernels.numbering import in_chunks
from headrace.views.contract import ARRIVED, CORRECTIONS, OP, UPDATED_AT

OF = "_of"


@dataclass(frozen=True, slots=True)
class ArrowPartials:
    """What to make of records; goes to the workers. `schema`: of the partial rows, as Spark would make them."""

    schema: pa.Schema
    judge: Judge | None
    time: str | None
    groups: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    retracts: bool = False

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The partial rows of the records."""
        judged = batches if self.judge is None else self.judge.of(batches)  # a batch at a time: it fits a cache
        for table in in_chunks(judged):
            yield from self._rows(table).to_batches()

    def _rows(self, table: pa.Table) -> pa.Table:
        grouping = Grouping()
        for name in self.groups:
            grouping.key(name, table[name])
        if self.judge is not None:
            for name in JUDGED:
                grouping.key(name, table[name])
        records = self._prepared(table)
        for name, aggregate in self.aggregates.items():
            aggregate.algebra.ask(name, records, grouping)
        if self.judge is not None and self.judge.window.joins_us is not None:
            grouping.value(FIRST, table[self.time].cast(pa.int64()), "min")
            grouping.value(LAST, table[self.time].cast(pa.int64()), "max")
        if any(each.algebra.packs for each in self.aggregates.values()):
            grouping.value(OF, pa.array(np.arange(table.num_rows)), "list")
        if self.retracts:
            grouping.value(CARRIED, records.signed(table[CORRECTIONS].combine_chunks()), "sum")
            grouping.value(RECORDS, records.weights, "sum")
            grouping.value(UPDATED, table[UPDATED_AT], "max")
        else:
            grouping.value(RECORDS, [], "count_all")
            grouping.value(UPDATED, table[ARRIVED], "max")
        found = grouping.done()
        if self.judge is not None:
            found[PANE] = without_untimed(found[PANE])
        of = functools.cache(lambda: rows_of(found[OF], table.num_rows))
        for name, aggregate in self.aggregates.items():
            aggregate.algebra.complete(name, records, found, of, len(found[RECORDS]))
        return pa.table([as_kept(found[field.name], field.type) for field in self.schema], schema=self.schema)

    def _prepared(self, table: pa.Table) -> Records:
        if not self.retracts:
            return Records(table, self.time or ARRIVED)
        went = pc.equal(table[OP], "-").combine_chunks()
        once = pc.if_else(went, pa.scalar(-1, pa.int64()), pa.scalar(1, pa.int64()))
        return Records(table, self.time or UPDATED_AT, once)
