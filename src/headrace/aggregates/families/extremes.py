"""The least and the greatest value: min, max. Keep a value; of records that can be taken back all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import Algebra, Columns, Records, Rule, Slot, ddl, plain_in_arrow, written
from headrace.aggregates.grouping import Grouping
from headrace.aggregates.kept import Kept, Quick


def min(column: Any, *, where: Any = None) -> Aggregate:
    """The least value."""
    return Aggregate(Min(given(column, "min"), where))


def max(column: Any, *, where: Any = None) -> Aggregate:
    """The greatest value; of doubles, NaN is the greatest, as in Spark."""
    return Aggregate(Max(given(column, "max"), where))


@dataclass(frozen=True)
class _Extreme(Algebra):
    rule: ClassVar[Rule]

    def slots(self, name: str) -> tuple[Slot, ...]:
        return (Slot(name, self.rule, ddl(self.of())),)

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {name: f"{self.called}({columns['value']})"}

    def possible(self) -> bool:
        return plain_in_arrow(self.of())

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        grouping.value(name, records.part(self), self.called)

    def arrow_merges(self, name: str) -> dict[str, str]:
        return {name: self.called}


class _Least:
    called: ClassVar[str] = "min"

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate:
        return min(written(column))


class _Greatest:
    called: ClassVar[str] = "max"

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate:
        return max(written(column))


@dataclass(frozen=True)
class Min(_Least, _Extreme):
    rule: ClassVar[Rule] = "least"

    def of_changes(self) -> Algebra:
        return MinOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class Max(_Greatest, _Extreme):
    rule: ClassVar[Rule] = "greatest"

    def of_changes(self) -> Algebra:
        return MaxOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class MinOfChanges(_Least, Kept):
    quick: ClassVar[Quick] = "least"


@dataclass(frozen=True)
class MaxOfChanges(_Greatest, Kept):
    quick: ClassVar[Quick] = "greatest"
