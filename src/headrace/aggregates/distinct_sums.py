"""The sum of the different values: sum_distinct. Keeps every value, while its window can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow.types as types

from headrace.aggregates.algebra import Aggregate, Algebra, given
from headrace.aggregates.exact import exact_sum, rounded
from headrace.aggregates.kept import Held, Kept
from headrace.aggregates.sums import WIDE


def sum_distinct(column: Any, *, where: Any = None) -> Aggregate:
    """The sum of the different values other than null, exactly; of doubles rounded once. Of `bigint` it is a
    `decimal(38,0)`, which holds all such sums. Null of no value."""
    return Aggregate(SumDistinct(given(column, "sum_distinct"), where))


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
