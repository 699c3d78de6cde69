"""How many different values there are, and their sum, exactly: count_distinct, sum_distinct. Keep the values while
their window can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow.types as types

from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import Algebra, Columns, Records, Slot, ddl, same_in_arrow
from headrace.aggregates.exact import exact_sum, rounded
from headrace.aggregates.families.sums import WIDE
from headrace.aggregates.grouping import Grouping
from headrace.aggregates.kept import Held, Kept, Quick


def count_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """How many different values other than null, exactly: each is kept while its window can change."""
    return Aggregate(CountDistinct(given(column, "count_distinct"), where))


def sum_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """The sum of the different values other than null, exactly; of doubles rounded once. Of `bigint` it is a
    `decimal(38,0)`, which holds all such sums. Null of no value."""
    return Aggregate(SumDistinct(given(column, "sum_distinct"), where))


@dataclass(frozen=True)
class CountDistinct(Algebra):
    called: ClassVar[str] = "count_distinct"
    zero: ClassVar[bool] = True
    instead: ClassVar[str] = "use approx_count_distinct(…) there"

    def slots(self, name: str) -> tuple[Slot, ...]:
        return (Slot(name, "distinct", ddl(self.of())),)

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {name: f"collect_set({columns['value']})"}

    def possible(self) -> bool:
        return same_in_arrow(self.of())

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        grouping.value(name, records.part(self), "distinct")

    def of_changes(self) -> Algebra:
        return CountDistinctOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class CountDistinctOfChanges(Kept):
    called: ClassVar[str] = "count_distinct"
    zero: ClassVar[bool] = True
    instead: ClassVar[str] = CountDistinct.instead
    quick: ClassVar[Quick] = "number"

    def result(self) -> str:
        return "bigint"


@dataclass(frozen=True)
class SumDistinct(Kept):
    called: ClassVar[str] = "sum_distinct"
    zero: ClassVar[bool] = True
    only_numbers: ClassVar[bool] = True
    instead: ClassVar[str] = "sum by value there"

    def result(self) -> str:
        arrow = self.of()
        if types.is_decimal(arrow):
            return f"decimal({min(38, arrow.precision + 10)},{arrow.scale})"
        if types.is_floating(arrow):
            return "double"
        return WIDE if types.is_int64(arrow) else "bigint"

    def made_of(self, held: Held) -> Any:
        values = [value for value, _ in held]
        if types.is_floating(self.of()):
            found = rounded(exact_sum(values))
            return float(found) if isinstance(found, str) else found
        return sum(values) if values else None

    def of_changes(self) -> Algebra:
        return self
