"""The names that users chose, for topics that headrace names itself: the changes of a view, and what flows that help
another one write for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.views.contract import FlowSpec, feed_topic

__all__ = ["named_source", "named_sources"]

FEEDS = (feed_topic("", "updates"), feed_topic("", "final"))


def named_sources(spec: FlowSpec, specs: Sequence[FlowSpec]) -> list[dict[str, Any]]:
    """The topics and views that a user wrote as the flow's sources: [{"kind": "topic" | "view", "name"}]."""
    return [named for source in spec.sources for named in _named(source, spec, specs)]


def named_source(topic: str, spec: FlowSpec, specs: Sequence[FlowSpec]) -> str:
    """What a user calls a topic that the flow reads; of several, the first."""
    return next((str(each["name"]) for each in _named(topic, spec, specs)), topic)


def _named(source: str, spec: FlowSpec, specs: Sequence[FlowSpec]) -> list[dict[str, Any]]:
    helpers = {each.target: each for each in specs if each.parent == (spec.parent or spec.name)}
    if source in helpers:
        return named_sources(helpers[source], specs)
    feed = next((prefix for prefix in FEEDS if source.startswith(prefix)), None)
    return [{"kind": "view" if feed else "topic", "name": source.removeprefix(feed or "")}]
