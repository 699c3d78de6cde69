"""How topics, groups and queues stand, as plain values: what `headrace groups list` prints and the HTTP API answers.
Owns the names of the facts; reads, and changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace.durations import format_duration

if TYPE_CHECKING:
    from datetime import timedelta

    from headrace.log.contract import Lag
    from headrace.log.embedded.groups import EmbeddedGroup
    from headrace.log.embedded.queues import EmbeddedQueue
    from headrace.log.embedded.topic import EmbeddedTopic
    from headrace.log.settings import TopicDescription

__all__ = ["duration", "group_facts", "lag_seconds", "queue_facts", "topic_facts"]


def topic_facts(found: TopicDescription) -> dict[str, Any]:
    settings = found.settings
    return {
        "topic": found.name,
        "records": found.records,
        "bytes": found.bytes,
        "partitions": settings.partitions,
        "key": list(settings.key),
        "event_time": settings.event_time,
        "retention": duration(settings.retention_us),
        "cleanup": settings.cleanup,
        "durability": settings.durability,
        "schema": found.schema,
    }


def group_facts(topic: EmbeddedTopic, group: EmbeddedGroup) -> dict[str, Any]:
    """A flow that reads the topic is a group without members: `members` is None."""
    lag = group.lag().values()
    return {
        "group": group.name,
        "topic": topic.name,
        "members": None if group.flow else sum(member.alive for member in group.members()),
        "lag_records": sum(part.records for part in lag),
        "lag_seconds": max((lag_seconds(part) for part in lag), default=0.0),
        "time_to_loss_seconds": _seconds(group.time_to_loss()),
    }


def queue_facts(topic: str, queue: EmbeddedQueue) -> dict[str, Any]:
    stats = asdict(queue.stats())
    oldest = stats.pop("oldest")
    return {
        "queue": queue.name,
        "topic": topic,
        "order": queue.order,
        "visibility_seconds": queue.visibility.total_seconds(),
        "max_deliveries": queue.max_deliveries,
        **stats,
        "oldest_seconds": _seconds(oldest),
    }


def lag_seconds(lag: Lag) -> float:
    """How long the oldest unread record has waited."""
    return round(lag.time.total_seconds(), 3)


def duration(us: int | None) -> str | None:
    return None if us is None else format_duration(us)


def _seconds(time: timedelta | None) -> float | None:
    return None if time is None else round(time.total_seconds(), 3)
