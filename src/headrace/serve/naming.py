"""The names that users chose, for the topics and flows that headrace names itself: the changes of a view, and the flows
that keep state before another one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.log.contract import FLOW_GROUP
from headrace.views.contract import FlowSpec
from headrace.views.sources import named_sources

__all__ = ["flow_names", "named_sources", "reader_name"]


def flow_names(specs: Sequence[FlowSpec]) -> dict[str, dict[str, Any]]:
    """Of each flow `helps` and `reads`, as the overview has them."""
    return {spec.name: {"helps": spec.parent, "reads": named_sources(spec, specs)} for spec in specs}


def reader_name(group: str, helps: Mapping[str, str | None]) -> str:
    """How a sentence calls the reader of a topic: a flow reads as a group of its own, and a helper for the flow that it
    `helps`."""
    if not group.startswith(FLOW_GROUP):
        return f"group {group}"
    flow = group.removeprefix(FLOW_GROUP)
    return f"flow {helps.get(flow) or flow}"
