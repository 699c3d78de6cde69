"""The same as `arrow_partials`, of changes: what came counts, what went is taken away. Owns what is asked of Arrow for
aggregates that shrink; what cannot be taken away comes as it is, each value with how often. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates import Aggregate
from headrace.flows.grouping import Grouping, rows_of, summable
from headrace.flows.packing import as_lists
from headrace.flows.partials import CARRIED, RECORDS, UPDATED
from headrace.views.contract import CORRECTIONS, OP, UPDATED_AT

OF = "/of"


class Weighed:
    """Records that are changes, with their time, about to be grouped."""

    def __init__(self, records: pa.Table, time: str | None, grouping: Grouping) -> None:
        self._records, self._grouping = records, grouping
        self._went = pc.equal(records[OP], "-").combine_chunks()
        self._once = pc.if_else(self._went, pa.scalar(-1, pa.int64()), pa.scalar(1, pa.int64()))
        self._time = UPDATED_AT if time is None else time

    def ask(self, aggregates: dict[str, Aggregate]) -> None:
        for name, aggregate in aggregates.items():
            self._ask(name, aggregate)
        group = self._grouping
        group.value(CARRIED, self._signed(self._records[CORRECTIONS].combine_chunks()), "sum")
        group.value(RECORDS, self._once, "sum")
        group.value(UPDATED, self._records[UPDATED_AT], "max")
        group.value(OF, pa.array(np.arange(self._records.num_rows)), "list")

    def _ask(self, name: str, aggregate: Aggregate) -> None:
        partial, group = aggregate.partial, self._grouping
        if partial.kind == "count":
            counts = self._once
            if partial.where is not None:
                counts = pc.if_else(self._column(partial.where).fill_null(False), counts, 0)
            return group.value(name, counts, "sum")
        if partial.kind not in ("sum", "avg"):
            return None
        column = self._column(partial.argument)
        if not partial.exact:
            wide = column.cast(pa.int64()) if types.is_integer(column.type) else column
            group.value(f"{name}__sum", summable(pa.chunked_array([self._signed(wide)])), "sum")
        of = pc.if_else(column.is_valid(), self._once, 0)
        group.value(f"{name}__count", self._signed(self._column(partial.count)) if partial.count else of, "sum")
        return None

    def made(self, aggregates: dict[str, Aggregate], found: dict[str, pa.Array]) -> None:
        """After grouping: the values of each row, for what is made of them."""
        of = rows_of(found.pop(OF), self._records.num_rows)
        for name, aggregate in aggregates.items():
            partial, slot = aggregate.partial, aggregate.slots(name)[0]
            if slot.rule not in ("kept", "exact"):
                continue
            value = column = self._column(partial.argument)
            known = column.is_valid()
            if partial.exact:
                value = column.cast(pa.float64())
            elif partial.kind in ("first", "last"):
                when = self._column(self._time)
                value = pa.StructArray.from_arrays([when, column], names=["at", "value"])
                known = pc.and_(known, when.is_valid())
            pairs = pa.StructArray.from_arrays([value, self._once], names=["value", "count"])
            chosen = np.flatnonzero(np.asarray(known))
            chosen = chosen[np.argsort(of[chosen], kind="stable")]
            found[slot.name] = as_lists(of[chosen], pairs.take(pa.array(chosen)), len(found[RECORDS]))

    def _column(self, name: str) -> pa.Array:
        return self._records[name].combine_chunks()

    def _signed(self, column: pa.Array) -> pa.Array:
        if column.type == pa.int64() and pc.min(column).as_py() == -(2**63):
            column = column.cast(pa.decimal128(19, 0))  # there is no such number above zero
        return pc.if_else(self._went, pc.negate_checked(column), column)
