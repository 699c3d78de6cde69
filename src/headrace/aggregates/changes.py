"""Aggregates over records that can be taken back: a view's changes, those in a topic, and what an exact dedup lets
through. Each aggregate says whether it can be made of those, and how (`of_changes`, `rolled_up`); here it is asked, and
what cannot be is refused. `merge`, which rolls a view's results up, is the one that is for changes only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.aggregates.aggregate import Aggregate
from headrace.aggregates.algebra import Algebra
from headrace.aggregates.families.sums import Sum, SumOfChanges
from headrace.aggregates.table import SHRINKS
from headrace.errors import InvalidArgument


@dataclass(frozen=True)
class Merge(Algebra):
    """As it is written; over a view it becomes what the view's aggregate says."""

    called: ClassVar[str] = "merge"


def merge(column: Any, *, where: Any = None) -> Aggregate:
    """Over a view's changes: what the view's aggregate of that name keeps, merged. Minutes become hours, and hours
    days, without the events: `merge("p95")` of `p95=approx_quantile("ms", 0.95)`."""
    if not isinstance(column, str) or not column:
        raise InvalidArgument("column", column, "merge() takes the name of an aggregate of the view that is streamed")
    return Aggregate(Merge(column, where))


def over_changes(
    name: str,
    aggregate: Aggregate,
    upstream: Mapping[str, Aggregate] | None,
    *,
    transformed: bool = False,
) -> Aggregate:
    """The aggregate as it is made of the changes of a view with the aggregates `upstream`; {}: of those in a topic;
    None: of records that an exact dedup lets through. `transformed`: a column may be something else than the view's of
    that name."""
    algebra = aggregate.algebra
    if isinstance(algebra, Merge) and upstream is not None:
        return _rolled_up(name, algebra, upstream)
    found = algebra.of_changes()
    if found is None:
        raise InvalidArgument(name, str(aggregate), _refusal(upstream, ", ".join(SHRINKS)))
    if isinstance(found, SumOfChanges) and isinstance(found.argument, str) and not transformed:
        of = (upstream or {}).get(found.argument)
        sums = of is not None and isinstance(of.algebra, Sum | SumOfChanges) and of.kind == found.called == "sum"
        found = replace(found, merges=found.argument if sums else "")
    return aggregate.with_algebra(found)


def _refusal(upstream: Mapping[str, Aggregate] | None, those: str) -> str:
    if upstream is None:
        return (
            "cannot follow dedup(…), which may take a record back when an earlier one of its key comes, and this "
            f"aggregate cannot take one out. Use one of {those}; or dedup(…, approx=…), which takes nothing back"
        )
    if not upstream:
        return f"cannot be made of changes in a topic, because it cannot be taken back. Over changes there are {those}"
    return (
        "cannot be made of a view's changes, because it cannot be taken back: make it where the records are, in "
        f"the view, and roll it up with hr.merge(…). Over changes there are {those} and merge"
    )


def _rolled_up(name: str, merge: Merge, upstream: Mapping[str, Aggregate]) -> Aggregate:
    """What becomes of the results of one aggregate when they are rolled up."""
    column = merge.argument
    if column not in upstream:
        known = ", ".join(sorted(upstream)) or "none"
        raise InvalidArgument(name, str(merge), f"the view has no aggregate of that name; it has {known}")
    of = upstream[column]
    found = of.algebra.rolled_up(column, of)
    if found is None:
        why = f"the view keeps too little of {of} to merge two of them: {of.algebra.instead}"
        raise InvalidArgument(name, str(merge), why)
    algebra = found.algebra.of_changes() or found.algebra
    return found.with_algebra(replace(algebra, where=merge.where))
