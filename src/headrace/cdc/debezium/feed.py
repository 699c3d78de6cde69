"""Where Debezium's events come from: topics of a Kafka cluster, or one topic of the own log. Owns reading them in the
order of their offsets, and waiting for more. Does not know what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from headrace.cdc.debezium.address import Events
from headrace.errors import InvalidArgument, OffsetOutOfRange
from headrace.log.capabilities import RawTopics
from headrace.log.contract import Log, Topic
from headrace.log.open import open_raw

__all__ = ["Feed", "Item", "KafkaFeed", "LogFeed", "feed_of"]

READ_ROWS = 5_000


class Item(NamedTuple):
    """`place`: a topic and its partition, "events/0". `destination`: the topic that Debezium meant."""

    place: str
    offset: int
    destination: str
    key: bytes | str | None
    value: bytes | str | None


class Feed(Protocol):
    def ends(self) -> dict[str, tuple[int, int]]:
        """Of each place its earliest offset, and the one behind its last."""

    def read(self, at: Mapping[str, int], seconds: float) -> tuple[list[Item], dict[str, int]]:
        """Some of the next events from these offsets on, and the offsets behind them. Waits so long for the first."""

    def close(self) -> None: ...


def feed_of(events: Events, log: Log) -> Feed:
    if events.cluster is None:
        return LogFeed(log, events.name)
    return KafkaFeed(open_raw(events.cluster), events.name)


class LogFeed:
    """The rows of a topic with columns `key` and `value`, and perhaps `destination`."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self._topic = log, log.topic(name)
        there = self._topic.schema.names
        if not {"key", "value"} <= {*there}:
            why = f"topic {name!r} must have the columns key and value; it has {', '.join(there)}"
            raise InvalidArgument("url", name, why)
        self._names = [each for each in ("destination", "key", "value") if each in there]

    def ends(self) -> dict[str, tuple[int, int]]:
        return {
            f"{self._topic.name}/{number}": (end.earliest, end.next) for number, end in self._topic.offsets().items()
        }

    def read(self, at: Mapping[str, int], seconds: float) -> tuple[list[Item], dict[str, int]]:
        seen = self._log.news([self._topic])
        found, behind = self._read_now(self._topic, at)
        if not found and seconds and self._log.wait(seen, seconds):
            found, behind = self._read_now(self._topic, at)
        return found, behind

    def _read_now(self, topic: Topic, at: Mapping[str, int]) -> tuple[list[Item], dict[str, int]]:
        found: list[Item] = []
        behind = dict(at)
        for number, end in topic.offsets().items():
            place = f"{topic.name}/{number}"
            start = at.get(place, end.earliest)
            if not end.earliest <= start <= end.next:
                raise OffsetOutOfRange(topic.name, number, start, end.earliest, end.next)
            items = [] if start >= end.next else self._items(topic, number, start, end.next)
            found += items
            behind[place] = items[-1].offset + 1 if len(items) >= READ_ROWS else end.next
            if len(found) >= READ_ROWS:
                break
        return found, behind

    def _items(self, topic: Topic, number: int, start: int, stop: int) -> list[Item]:
        found: list[Item] = []
        for batch in topic.batches(number, start, stop, columns=[*self._names, "_offset"]):
            for row in batch.slice(0, READ_ROWS - len(found)).to_pylist():
                place = f"{topic.name}/{number}"
                found.append(Item(place, row["_offset"], row.get("destination") or "", row["key"], row["value"]))
            if len(found) >= READ_ROWS:
                break
        return found

    def close(self) -> None: ...


class KafkaFeed:
    """The topics of a cluster whose names begin with Debezium's prefix, and have a schema and a table behind it."""

    def __init__(self, raw: RawTopics, prefix: str) -> None:
        self._raw, self._prefix = raw, prefix

    def _is_ours(self, topic: str) -> bool:
        return topic.startswith(f"{self._prefix}.") and topic.removeprefix(f"{self._prefix}.").count(".") >= 1

    def ends(self) -> dict[str, tuple[int, int]]:
        found = self._raw.ends(self._is_ours)
        return {f"{topic}/{number}": ends for (topic, number), ends in found.items()}

    def read(self, at: Mapping[str, int], seconds: float) -> tuple[list[Item], dict[str, int]]:
        given = {_place(place): offset for place, offset in at.items()}
        found, behind = self._raw.read(given, READ_ROWS, seconds)
        items = [Item(f"{topic}/{number}", offset, topic, key, value) for topic, number, offset, key, value in found]
        return items, {f"{topic}/{number}": offset for (topic, number), offset in behind.items()}

    def close(self) -> None:
        self._raw.close()


def _place(text: str) -> tuple[str, int]:
    topic, _, number = text.rpartition("/")
    return topic, int(number)
