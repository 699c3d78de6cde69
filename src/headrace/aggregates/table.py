"""The aggregates there are: the name under which a program calls each, the function that makes it, and what it is."""

from __future__ import annotations

from collections.abc import Callable

from headrace.aggregates.aggregate import Aggregate
from headrace.aggregates.algebra import Algebra
from headrace.aggregates.families.approximate import (
    ApproxCountDistinct,
    ApproxQuantile,
    approx_count_distinct,
    approx_quantile,
)
from headrace.aggregates.families.counts import Count, count
from headrace.aggregates.families.deviation import Stddev, Variance, stddev, variance
from headrace.aggregates.families.distinct import CountDistinct, SumDistinct, count_distinct, sum_distinct
from headrace.aggregates.families.extremes import Max, Min, max, min
from headrace.aggregates.families.lists import Collect, Histogram, TopK, collect, histogram, top_k
from headrace.aggregates.families.ordered import First, Last, MaxBy, MinBy, first, last, max_by, min_by
from headrace.aggregates.families.percentiles import Percentile, percentile
from headrace.aggregates.families.sums import Avg, Sum, avg, sum

TABLE: dict[str, tuple[Callable[..., Aggregate], type[Algebra]]] = {
    "count": (count, Count),
    "sum": (sum, Sum),
    "avg": (avg, Avg),
    "min": (min, Min),
    "max": (max, Max),
    "first": (first, First),
    "last": (last, Last),
    "min_by": (min_by, MinBy),
    "max_by": (max_by, MaxBy),
    "stddev": (stddev, Stddev),
    "variance": (variance, Variance),
    "percentile": (percentile, Percentile),
    "sum_distinct": (sum_distinct, SumDistinct),
    "count_distinct": (count_distinct, CountDistinct),
    "approx_count_distinct": (approx_count_distinct, ApproxCountDistinct),
    "approx_quantile": (approx_quantile, ApproxQuantile),
    "top_k": (top_k, TopK),
    "histogram": (histogram, Histogram),
    "collect": (collect, Collect),
}

SHRINKS = tuple(name for name, (_, algebra) in TABLE.items() if algebra.of_changes is not Algebra.of_changes)
"""Those of which a record can be taken back."""
