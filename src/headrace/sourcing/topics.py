"""The topics of events: created when they are first used, and given a column for each event class that is new. Owns
what such a topic must be like. Knows no entities."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import IncompatibleSchema, InvalidArgument, TopicExists, UnknownTopic, Unsupported
from headrace.log.contract import Appended, Log, Topic
from headrace.places import ADDRESS
from headrace.schema import to_ddl

__all__ = ["Transaction", "beside", "check_ahead", "topic_of"]


class Transaction(Protocol):
    """As the log's, with conditions."""

    def append(self, topic: str, rows: Any, *, expect: Mapping[Any, int] | None = None) -> None: ...

    @property
    def results(self) -> list[Appended]: ...


def check_ahead(topic: Topic, at: datetime) -> None:
    """Refuses a time that the topic would quarantine: events are there, or they are refused."""
    ahead = timedelta(0) if at.tzinfo is None else at - datetime.now(UTC)  # without a zone it is refused anyway
    if ahead > timedelta(0) and ahead > timedelta(microseconds=topic.settings.max_ahead_us):
        why = f"is further ahead of now than topic {topic.name!r} takes (max_ahead): keep a future time in a field"
        raise InvalidArgument("at", at, why)


def beside(log: Log, topic: Topic, column: str | None) -> Iterator[tuple[Topic, str]]:
    """What holds the same subject beside a topic of events, and the column that names it: the ids of an entity's
    commands, what a process has asked for, the copies of events by tag."""
    of_entities, of_events = topic.settings.key == ("entity",), topic.settings.key == ("id",)
    found = {}
    if of_entities and column in (None, "entity"):
        found = {f"{topic.name}.{side}": "process" for side in ("outbox", "timers")}
        found[f"{topic.name}.commands"] = "entity"
    if of_events:
        found[f"{topic.name}.tags"] = column or "id"
    for name, named in found.items():
        with contextlib.suppress(UnknownTopic):
            other = log.topic(name)
            if named in other.schema.names:
                yield other, named


def topic_of(log: Log, name: str, schema: pa.Schema, *, key: str, partitions: int = 1, versioned: bool = True) -> Topic:
    """The topic of that name, with these columns at least."""
    if versioned and ADDRESS.match(log.address):
        raise Unsupported(repr(log), "versions")
    while True:
        topic = _opened(log, name, schema, key, partitions, versioned)
        missing = _missing(topic, schema)
        if not missing:
            return topic
        known = topic.schema
        try:
            topic.alter(schema=to_ddl(pa.schema([*known, *missing])))
            return topic
        except IncompatibleSchema:  # another program was first, with columns of its own
            if log.topic(name).schema == known:
                raise


def _opened(log: Log, name: str, schema: pa.Schema, key: str, partitions: int, versioned: bool) -> Topic:
    try:
        topic = log.topic(name)
    except UnknownTopic:
        try:
            return log.create_topic(name, schema, key=key, event_time="at", versioned=versioned, partitions=partitions)
        except TopicExists:  # another process was first
            topic = log.topic(name)
    has = topic.settings
    whole = has.retention_us is None and not has.retention_bytes and has.cleanup == "delete"
    if has.key != (key,) or (versioned and not has.versioned) or not whole:
        why = "is a topic of something else, or its records go: events need one of their own, which keeps all of it"
        raise InvalidArgument("name", name, why)
    return topic


def _missing(topic: Topic, schema: pa.Schema) -> list[pa.Field]:
    there = {field.name: field.type for field in topic.schema}
    for field in schema:
        if field.name in there and there[field.name] != field.type:
            why = (
                f"has other fields than in topic {topic.name!r}: {field.type}, stored {there[field.name]}. Give it a "
                f"version, and say how the stored fields become the new ones: upcasts={{{field.name}: {{1: …}}}}"
            )
            raise InvalidArgument("events", field.name, why)
    return [field for field in schema if field.name not in there]
