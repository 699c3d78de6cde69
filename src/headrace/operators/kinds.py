"""Which operator a flow's view is made by. A new kind of window is a file beside this one, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.aggregates import Aggregate
from headrace.operators.aggregate import Aggregation
from headrace.operators.lives import GroupsThatGo
from headrace.operators.sessions import SessionAggregation
from headrace.operators.sliding import SlidingAggregation
from headrace.views.contract import FlowSpec

__all__ = ["aggregation"]


def aggregation(spec: FlowSpec, aggregates: Mapping[str, Aggregate]) -> Aggregation:
    """The operator of a flow that aggregates. `aggregates`: by result, those whose functions merge, or make, it."""
    assert spec.view is not None
    kind = GroupsThatGo if spec.view.lives else KINDS.get(spec.view.windows, Aggregation)
    return kind(spec.view, aggregates, spec.horizon, bool(spec.feeds))


KINDS: dict[str, type[Aggregation]] = {"session": SessionAggregation, "sliding": SlidingAggregation}
"""Windows over which records decide."""
