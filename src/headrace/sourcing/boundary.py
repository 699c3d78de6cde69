"""Appends on a boundary that is wider than one entity: they are refused if an event came that a query matches. Owns
queries, tags and the two topics that keep events by tag. Knows no entities and no Spark.

    with boundary(log, query(tags={"course": "c1"}), events=[Enrolled]) as course:
        if len(course.events) < 30:
            course.append(tagged(Enrolled("ann"), course="c1", student="ann"))

Two topics: `events` has each event once. `events.tags` has it once for each of its tags, and an entry for its type: the
log counts the records of each, so an append on the condition that these counts are still the same is refused if another
append touched the same tag or type. What touched it is then looked at: only an event that the query really matches is a
conflict. Both topics and the condition are one transaction of the log."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.errors import BoundaryConflict, InvalidArgument, VersionConflict
from headrace.log.capabilities import Erasure, Versions, capability
from headrace.log.contract import Log, Topic
from headrace.names import check_name
from headrace.position import Position
from headrace.schema import TIMESTAMP
from headrace.sourcing.entities import RETRIES
from headrace.sourcing.events import EventTypes
from headrace.sourcing.topics import Transaction, check_ahead, topic_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "Appended",
    "Boundary",
    "Happened",
    "Query",
    "Tagged",
    "append",
    "boundary",
    "erase",
    "query",
    "read",
    "tagged",
]

EVENTS = "events"
NUMBERED = re.compile(r"/[0-9]+\Z")
HEADER = pa.schema(
    {
        "id": pa.string(),
        "event": pa.string(),
        "event_version": pa.int32(),
        "tags": pa.map_(pa.string(), pa.string()),
        "at": TIMESTAMP,
    }
)
"""The columns beside the events' own."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """An event with its tags."""

    event: Any
    tags: Mapping[str, str]


def tagged(event: Any, **tags: str) -> Tagged:
    """An event with tags, by which it can be found and by which appends are kept apart."""
    return Tagged(event, _checked_tags(tags))


@dataclass(frozen=True, slots=True)
class Item:
    """Events of any of the types, or of all if there are none, that have all of the tags."""

    types: frozenset[str]
    tags: tuple[tuple[str, str], ...]

    def matches(self, event: str, tags: Mapping[str, str]) -> bool:
        return (not self.types or event in self.types) and all(tags.get(name) == value for name, value in self.tags)

    def entries(self) -> list[str]:
        """The entries under which each of its events is: one tag is enough, whichever it is."""
        return [_tag_entry(*self.tags[0])] if self.tags else [_type_entry(name) for name in sorted(self.types)]

    def __str__(self) -> str:
        of_types = [f"types={sorted(self.types)}"] if self.types else []
        return f"query({', '.join([*of_types, *([f'tags={dict(self.tags)}'] if self.tags else [])])})"


@dataclass(frozen=True, slots=True)
class Query:
    """Events that match any of the items, behind a position. `q | r` matches what either does."""

    items: tuple[Item, ...]
    after: Position | None = None

    def __or__(self, other: Query) -> Query:
        if not isinstance(other, Query):
            return NotImplemented
        if self.after != other.after:
            raise InvalidArgument("after", str(other.after), "must be the same position in both queries")
        return Query((*self.items, *other.items), self.after)

    def __str__(self) -> str:
        return " | ".join(map(str, self.items))


def query(
    *, types: Sequence[type | str] = (), tags: Mapping[str, str] | None = None, after: Position | None = None
) -> Query:
    """Events of these types (of any, if none is given) that have all of these tags. `after`: only those behind this
    position, such as that of a boundary that was read."""
    if isinstance(types, str | type):
        raise InvalidArgument("types", types, "must be a list of event classes or their names")
    names = frozenset(each if isinstance(each, str) else each.__name__ for each in types)
    if not names and not tags:
        raise InvalidArgument(
            "tags", tags, "a query needs a type or a tag: one that matches all would conflict with all"
        )
    return Query((Item(names, tuple(sorted(_checked_tags(tags or {}).items()))),), after)


@dataclass(frozen=True, slots=True)
class Happened:
    """An event that was read."""

    event: Any
    tags: dict[str, str]
    id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Appended:
    """`position`: behind the events, for `wait_for=` and for `after=`. `duplicate`: an append of this id was made
    before, and this is its position."""

    position: Position
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a query matched, and where the log ended before it was read: an append is refused if an event that matches
    came since."""

    events: list[Happened]
    position: Position
    _append: Callable[..., Appended] = field(repr=False)

    def append(self, *events: Any, id: str | None = None) -> Appended:
        """Appends the events, or raises BoundaryConflict: then read the boundary again, and decide again."""
        return self._append(events, id=id)


@contextmanager
def boundary(log: Log, matching: Query, *, events: Sequence[type], topic: str = EVENTS) -> Iterator[Boundary]:
    """Reads the events that the query matches, of these classes, to decide on and to append to."""
    store = _Store(log, topic, EventTypes(events, header=HEADER))
    position = store.position()
    found = list(store.read(matching))
    unless = replace(matching, after=position)
    yield Boundary(found, position, lambda given, id: append(log, given, unless=unless, id=id, topic=topic))


def read(log: Log, matching: Query, *, events: Sequence[type], topic: str = EVENTS) -> Iterator[Happened]:
    """The events that the query matches, of these classes, in the order in which they were appended."""
    return _Store(log, topic, EventTypes(events, header=HEADER)).read(matching)


def erase(log: Log, matching: Query, *, topic: str = EVENTS) -> int:
    """Removes the events that the query matches, and their copies for each tag and type, bytes and all; returns how
    many events went. What the log has counted of their tags stays: who has read a boundary meets no conflict."""
    events, by_tag = log.topic(check_name(topic, argument="topic")), log.topic(f"{topic}.tags")
    ids = sorted({row["id"] for item in matching.items for _, row in _matched(by_tag, item, matching.after)})
    if not ids:
        return 0
    # The copies by tag go last: as long as they are there, a call after a crash finds the same events.
    gone = capability(events, Erasure).erase(*ids).records
    capability(by_tag, Erasure).erase(*ids, column="id")
    return gone


def append(
    log: Log,
    events: Sequence[Any],
    *,
    unless: Query | None = None,
    id: str | None = None,
    topic: str = EVENTS,
    at: datetime | None = None,
) -> Appended:
    """Appends the events, all or none. `unless`: BoundaryConflict if an event that this query matches is there. With an
    `id`, an append that was made before is not made again, and gives its first result."""
    given = [each if isinstance(each, Tagged) else Tagged(each, {}) for each in events]
    if not given:
        raise InvalidArgument("events", events, "must be events, one at least")
    if id is not None and (not isinstance(id, str) or not id):
        raise InvalidArgument("id", id, "must be a text that names the append, such as a UUID")
    types = EventTypes(list(dict.fromkeys(type(each.event) for each in given)), header=HEADER)
    store = _Store(log, topic, types)
    when, name = datetime.now(UTC) if at is None else at, id or uuid.uuid4().hex
    store.check_ahead(when)
    rows = [
        types.row(each.event) | {"id": _event_id(name, number), "tags": list(each.tags.items()), "at": when}
        for number, each in enumerate(given)
    ]
    return store.append(rows, unless, id)


class _Store:
    """The two topics."""

    def __init__(self, log: Log, topic: str, types: EventTypes) -> None:
        self._log, self._types, self._name = log, types, check_name(topic, argument="topic")
        by_tag = pa.schema([pa.field("entry", pa.string()), *types.schema])
        self._events = topic_of(log, topic, types.schema, key="id")
        self._by_tag = topic_of(log, f"{topic}.tags", by_tag, key="entry")

    def check_ahead(self, at: datetime) -> None:
        check_ahead(self._events, at)

    def position(self) -> Position:
        """The end of the topic of tags, which is written with the other."""
        return Position.of(self._by_tag.name, self._by_tag.topic_id, {0: self._by_tag.ends()[0].next})

    def read(self, matching: Query) -> Iterator[Happened]:
        found = {}
        for item in matching.items:
            for offset, row in _matched(self._by_tag, item, matching.after):
                found[row["id"]] = (offset, row)
        for _, row in sorted(found.values(), key=lambda each: each[0]):
            yield Happened(self._types.event(row, self._name), dict(row["tags"]), row["id"], row["at"])

    def append(self, rows: list[dict[str, Any]], unless: Query | None, id: str | None) -> Appended:
        entries = [row | {"entry": entry} for row in rows for entry in _entries_of(row)]
        for _ in range(RETRIES):
            if id is not None and (before := self._before(id)) is not None:
                return before
            versions = self._versions(unless)
            self._check(unless)
            try:
                with cast("AbstractContextManager[Transaction]", self._log.transaction()) as tx:
                    tx.append(self._events.name, rows, expect=None if id is None else {_event_id(id, 0): 0})
                    tx.append(self._by_tag.name, entries, expect=versions)
            except VersionConflict as conflict:
                last = conflict
                continue
            events, tags = tx.results
            return Appended(events.position | tags.position)
        raise last

    def _versions(self, unless: Query | None) -> dict[str, int]:
        topic = capability(self._by_tag, Versions)
        items = () if unless is None else unless.items
        return {entry: topic.version(entry) for item in items for entry in item.entries()}

    def _check(self, unless: Query | None) -> None:
        for item in () if unless is None else unless.items:
            for offset, row in _matched(self._by_tag, item, cast(Query, unless).after):
                position = Position.of(self._by_tag.name, self._by_tag.topic_id, {0: offset + 1})
                raise BoundaryConflict(self._name, str(unless), row["event"], position)

    def _before(self, id: str) -> Appended | None:
        """Where an append of this id is, if there was one: behind its last event."""
        topic = capability(self._events, Versions)
        if not topic.version(_event_id(id, 0)):
            return None
        last = next(number for number in itertools.count() if not topic.version(_event_id(id, number + 1)))
        record = next(iter(self._events.records(key=_event_id(id, last))), None)
        if record is None:
            raise InvalidArgument("id", id, f"was appended before, and erased from {self._name!r}: use another")
        position = Position.of(self._events.name, self._events.topic_id, {0: record.offset + 1})
        entries = _entries(self._by_tag, _entries_of(record.value)[-1], None)
        offset = max((offset for offset, row in entries if row["id"] == record.value["id"]), default=-1)
        return Appended(
            position | Position.of(self._by_tag.name, self._by_tag.topic_id, {0: offset + 1}), duplicate=True
        )


def _matched(by_tag: Topic, item: Item, after: Position | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Copies of the item's events, with their offsets."""
    for entry in item.entries():
        for offset, row in _entries(by_tag, entry, after):
            if item.matches(row["event"], dict(row["tags"])):
                yield offset, row


def _entries(by_tag: Topic, entry: str, after: Position | None) -> Iterator[tuple[int, dict[str, Any]]]:
    offset = 0 if after is None else after.offsets(by_tag.name).get(0, 0)
    start: Any = {0: offset} if offset else "earliest"
    for record in by_tag.records(start, key=entry):
        yield record.offset, record.value


def _entries_of(row: Mapping[str, Any]) -> list[str]:
    return [_type_entry(row["event"]), *(_tag_entry(name, value) for name, value in dict(row["tags"]).items())]


def _event_id(append: str, number: int) -> str:
    """Of the event of this number in an append: no other append has one that is the same, whatever its own id is."""
    return f"{append}/{number}" if number or NUMBERED.search(append) else append


def _tag_entry(name: str, value: str) -> str:
    return f"tag {name}={value}"


def _type_entry(name: str) -> str:
    return f"type {name}"


def _checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    for name, value in tags.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument("tags", name, "a tag's name is letters, digits and _, as a Python name")
        if not isinstance(value, str) or not value:
            raise InvalidArgument("tags", value, f"the tag {name!r} needs a text that is not empty")
    return dict(tags)
