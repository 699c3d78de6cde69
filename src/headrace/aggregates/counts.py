"""How many records: count. Keeps a number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import sums
from headrace.aggregates.algebra import Aggregate, Algebra, Columns, Records, Slot, written
from headrace.aggregates.grouping import Grouping


def count(where: Any = None) -> Aggregate:
    """How many records; with `where`, how many of which it is true: `count(where="status >= 500")`."""
    return Aggregate(Count(where=where))


@dataclass(frozen=True)
class Count(Algebra):
    weighs: bool = False
    """Whether records can be taken back."""

    called: ClassVar[str] = "count"
    zero: ClassVar[bool] = True

    def slots(self, name: str) -> tuple[Slot, ...]:
        return (Slot(name, "add", "bigint"),)

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        if self.weighs:
            return {name: f"sum({f'if({columns.where}, {columns.once}, 0L)' if columns.where else columns.once})"}
        return {name: f"count({f'CASE WHEN {columns.where} THEN 1 END' if columns.where else 1})"}

    def possible(self) -> bool:
        return True

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        chosen = records.chosen(self)
        if self.weighs:
            counts = records.weights if chosen is None else pc.if_else(chosen, records.weights, 0)
            grouping.value(name, counts, "sum")
        elif chosen is None:
            grouping.value(name, [], "count_all")
        else:
            grouping.value(name, chosen.cast(pa.int64()), "sum")

    def arrow_merges(self, name: str) -> dict[str, str] | None:
        return None if self.weighs else {name: "sum"}

    def of_changes(self) -> Algebra:
        return replace(self, weighs=True)

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate:
        return sums.sum(written(column))
