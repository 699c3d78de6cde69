"""The names that users chose, for the topics and flows that headrace names itself: the changes of a view, and the flows
that keep state before another one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headrace.log.contract import FLOW_GROUP
from headrace.views.contract import FlowSpec, feed_topic
from headrace.views.kept import Kept

__all__ = ["flow_names", "kept_facts", "named_sources", "reader_name"]

FEEDS = (feed_topic("", "updates"), feed_topic("", "final"))


def named_sources(spec: FlowSpec, specs: Sequence[FlowSpec]) -> list[dict[str, Any]]:
    """The topics and views that a user wrote as the flow's sources: [{"kind": "topic" | "view", "name"}]."""
    return [named for source in spec.sources for named in _named(source, spec, specs)]


def _named(source: str, spec: FlowSpec, specs: Sequence[FlowSpec]) -> list[dict[str, Any]]:
    helpers = {each.target: each for each in specs if each.parent == (spec.parent or spec.name)}
    if source in helpers:
        return named_sources(helpers[source], specs)
    feed = next((prefix for prefix in FEEDS if source.startswith(prefix)), None)
    return [{"kind": "view" if feed else "topic", "name": source.removeprefix(feed or "")}]


def kept_facts(kept: Sequence[Kept], spec: FlowSpec, specs: Sequence[FlowSpec]) -> list[dict[str, Any]]:
    """What a join keeps of each input, with the names that a user wrote."""

    def name(topic: str) -> str:
        return str(_named(topic, spec, specs)[0]["name"])

    return [
        {
            **asdict(each),
            "topics": list(dict.fromkeys(map(name, each.topics))),
            "held_by": None if each.held_by is None else {**asdict(each.held_by), "topic": name(each.held_by.topic)},
        }
        for each in kept
    ]


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
