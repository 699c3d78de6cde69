"""How many different values, exactly: count_distinct. Keeps the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.aggregates.algebra import Aggregate, Algebra, Columns, Records, Slot, ddl, given, same_in_arrow
from headrace.aggregates.grouping import Grouping
from headrace.aggregates.kept import Kept, Quick


def count_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """How many different values other than null, exactly: each is kept while its window can change."""
    return Aggregate(CountDistinct(given(column, "count_distinct"), where))


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
    by_sql: ClassVar[str] = "count(*) FROM {values} WHERE row = {row}"
    quick: ClassVar[Quick] = "number"

    def result(self) -> str:
        return "bigint"
