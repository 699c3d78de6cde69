"""How topics, groups and queues stand, as plain values: what `headrace groups list` prints and the HTTP API answers.
Owns the names of the facts; reads, and changes nothing."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from headrace.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from headrace.log.capabilities import Queue
    from headrace.log.contract import AtRisk, Group, Lag, Log, Topic
    from headrace.log.settings import TopicDescription

__all__ = [
    "counted_queues",
    "duration",
    "group_facts",
    "groups_in",
    "lag_seconds",
    "queue_facts",
    "queues_of",
    "risks_of",
    "topic_facts",
]


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


def group_facts(topic: Topic, group: Group) -> dict[str, Any]:
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


def groups_in(log: Log, topics: Sequence[Topic]) -> list[tuple[Topic, Group]]:
    """The groups of these topics of a log."""
    from headrace.log.capabilities import GroupsAtOnce

    if not isinstance(log, GroupsAtOnce):
        return [(topic, group) for topic in topics for group in topic.groups()]
    asked = {topic.topic_id: topic for topic in topics}
    return [(asked[topic.topic_id], group) for topic, group in log.groups() if topic.topic_id in asked]


def queues_of(topic: Topic) -> Sequence[Queue]:
    """The topic's queues; none where its log has no queues."""
    from headrace.log.capabilities import Queues

    return topic.queues() if isinstance(topic, Queues) else ()


def counted_queues(topic: Topic) -> list[Queue]:
    """The topic's queues, where its log counts their messages."""
    return [queue for queue in queues_of(topic) if queue.has_stats]


def risks_of(topic: Topic) -> list[AtRisk]:
    """The groups and queues that retention overtakes soon, where the log can tell."""
    from headrace.log.capabilities import Usage

    return topic.at_risk() if isinstance(topic, Usage) else []


def queue_facts(topic: str, queue: Queue) -> dict[str, Any]:
    from headrace.log.contract import QueueStats

    stats = asdict(queue.stats()) if queue.has_stats else dict.fromkeys(each.name for each in fields(QueueStats))
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
