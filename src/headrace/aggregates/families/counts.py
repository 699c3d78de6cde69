"""How many records: count. Keeps a number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Never

import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.aggregate import Aggregate
from headrace.aggregates.algebra import Algebra, Columns, Records, Slot, written
from headrace.aggregates.families import sums
from headrace.aggregates.grouping import Grouping
from headrace.errors import InvalidArgument


def count(*unnamed: Never, where: Any = None) -> Aggregate:
    """How many records; with `where`, how many of which it is true: `count(where="status >= 500")`."""
    if unnamed:
        raise InvalidArgument("count", unnamed[0], f"counts records, and takes no column. {_meant(unnamed[0])}")
    return Aggregate(Count(where=where))


def _meant(argument: Any) -> str:
    """What somebody who knows SQL's count(…) means by its argument."""
    if not isinstance(argument, str) or argument in ("*", "1"):
        return "Write hr.count(); with a condition, hr.count(where=…)"
    where = f"{argument} is not null" if argument.isidentifier() else argument
    return f"Write hr.count(where={where!r}); for different values, hr.count_distinct(…)"


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
