"""Exact percentiles of numbers: percentile. Keeps each value, and how often it came, while its window can change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import Algebra, share
from headrace.aggregates.kept import Held, Kept, order


def percentile(column: Any, q: float, *, where: Any = None) -> Aggregate:
    """The number at the share `q` of the numbers in their order, exactly; between two, what lies between them, as
    Spark's `percentile` has it: `percentile("ms", 0.5)` is the median. Null of no number."""
    return Aggregate(Percentile(given(column, "percentile"), where, q=share(q)))


@dataclass(frozen=True)
class Percentile(Kept):
    q: float = 0.5

    called: ClassVar[str] = "percentile"
    only_numbers: ClassVar[bool] = True
    instead: ClassVar[str] = "use approx_quantile(…) there"

    def options(self) -> list[str]:
        return [str(self.q)]

    def result(self) -> str:
        return "double"

    def made_of(self, held: Held) -> float | None:
        if not held:
            return None
        position = (sum(count for _, count in held) - 1) * self.q
        below, above = math.floor(position), math.ceil(position)
        found: list[float] = []
        passed = 0
        for value, count in sorted(held, key=lambda one: order(one[0])):
            passed += count
            found += [float(value) for place in (below, above)[len(found) :] if place < passed]
        low, high = found
        return low if low == high or below == above else (above - position) * low + (position - below) * high

    def of_changes(self) -> Algebra:
        return self
