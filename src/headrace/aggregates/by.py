"""The value where something else is least or greatest: min_by, max_by. Of records with an equal measure the earliest is
the least and the latest the greatest, by event time, partition and offset, and then by value: so there is one answer
whatever the cut. Keep the value, the measure, and what orders records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.aggregates.algebra import Aggregate, Algebra, Rule, given
from headrace.aggregates.ordered import Ordered, OrderedOfChanges


def min_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """The value of the record in which `by` is least: `min_by("page", "ms")`. Of several, the earliest. Records in
    which one of both is null are passed over. `min_by("struct(*)", "ms")` is the whole record."""
    return Aggregate(MinBy(given(column, "min_by"), where, by=given(by, "min_by", argument="by")))


def max_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """The value of the record in which `by` is greatest: `max_by("page", "ms")`. Of several, the latest. Records in
    which one of both is null are passed over. `max_by("struct(*)", "ms")` is the whole record."""
    return Aggregate(MaxBy(given(column, "max_by"), where, by=given(by, "max_by", argument="by")))


@dataclass(frozen=True)
class _By(Ordered):
    by: Any = None

    before: ClassVar[tuple[str, ...]] = ("by",)

    def parts(self) -> dict[str, Any]:
        return {"value": self.argument, "by": self.by}


@dataclass(frozen=True)
class _ByOfChanges(OrderedOfChanges):
    by: Any = None

    before: ClassVar[tuple[str, ...]] = ("by",)

    def parts(self) -> dict[str, Any]:
        return {"value": self.argument, "by": self.by}


@dataclass(frozen=True)
class MinBy(_By):
    called: ClassVar[str] = "min_by"
    rule: ClassVar[Rule] = "least_by"
    best: ClassVar[str] = "min"
    instead: ClassVar[str] = "use hr.min_by(…)"

    def of_changes(self) -> Algebra:
        return MinByOfChanges(self.argument, self.where, by=self.by)


@dataclass(frozen=True)
class MaxBy(_By):
    called: ClassVar[str] = "max_by"
    rule: ClassVar[Rule] = "greatest_by"
    best: ClassVar[str] = "max"
    instead: ClassVar[str] = "use hr.max_by(…)"

    def of_changes(self) -> Algebra:
        return MaxByOfChanges(self.argument, self.where, by=self.by)


@dataclass(frozen=True)
class MinByOfChanges(_ByOfChanges):
    called: ClassVar[str] = "min_by"
    instead: ClassVar[str] = MinBy.instead
    pick: ClassVar[int] = 0


@dataclass(frozen=True)
class MaxByOfChanges(_ByOfChanges):
    called: ClassVar[str] = "max_by"
    instead: ClassVar[str] = MaxBy.instead
    pick: ClassVar[int] = -1
