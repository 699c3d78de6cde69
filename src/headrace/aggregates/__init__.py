"""Aggregates as algebra: what one keeps, how two of it become one, and what a reader sees. One file per family, in
`families`, says all of what its aggregates are (`algebra` says what there is to say), and `table` names them. Spark or
Arrow computes the partial rows (`flows.compiler.partials`, `kernels.arrow_partials`), a store merges them into what it
has.

To add one: its file, a line in `table`, its name in `headrace`, and its section in docs/aggregates.md. The tests that
run over the table (tests/flows/test_arrow_partials.py) then have it, too."""

from __future__ import annotations

from headrace.aggregates.aggregate import Aggregate
from headrace.aggregates.algebra import ORDER, ORDER_BY, Algebra, Columns, Records, Rule, Slot, written
from headrace.aggregates.changes import merge, over_changes
from headrace.aggregates.families.approximate import approx_count_distinct, approx_quantile
from headrace.aggregates.families.counts import count
from headrace.aggregates.families.deviation import stddev, variance
from headrace.aggregates.families.distinct import count_distinct, sum_distinct
from headrace.aggregates.families.extremes import max, min
from headrace.aggregates.families.lists import collect, histogram, top_k
from headrace.aggregates.families.ordered import first, last, max_by, min_by
from headrace.aggregates.families.percentiles import percentile
from headrace.aggregates.families.sums import WIDE, avg, sum, whole_of
from headrace.aggregates.kept import Kept
from headrace.aggregates.table import TABLE

__all__ = [
    "ORDER",
    "ORDER_BY",
    "TABLE",
    "WIDE",
    "Aggregate",
    "Algebra",
    "Columns",
    "Kept",
    "Records",
    "Rule",
    "Slot",
    "approx_count_distinct",
    "approx_quantile",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "first",
    "histogram",
    "last",
    "max",
    "max_by",
    "merge",
    "min",
    "min_by",
    "over_changes",
    "percentile",
    "stddev",
    "sum",
    "sum_distinct",
    "top_k",
    "variance",
    "whole_of",
    "written",
]
