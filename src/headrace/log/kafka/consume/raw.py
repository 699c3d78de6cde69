"""Topics of others as bytes: keys and values as they are, committed records only. Owns one consumer, and where it
reads. Knows no schema, keeps no offsets: whoever reads says from where."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.errors import OffsetOutOfRange
from headrace.log.kafka.client import REQUEST_SECONDS, Place, client_of
from headrace.log.kafka.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["KafkaRaw"]

RawRecord = tuple[str, int, int, bytes | None, bytes | None]


class KafkaRaw:
    """See `RawTopics`."""

    def __init__(self, settings: Kafka) -> None:
        self._client = client_of(settings)
        self._consumer: Consumer | None = None
        self._at: dict[Place, int] = {}

    def ends(self, chosen: Callable[[str], bool]) -> dict[Place, tuple[int, int]]:
        with self._client.translated("listing topics"):
            told = self._client.admin.list_topics(timeout=REQUEST_SECONDS).topics
        places = [(name, number) for name, topic in told.items() if chosen(name) for number in topic.partitions]
        return self._client.ends(places) if places else {}

    def read(self, at: Mapping[Place, int], rows_max: int, seconds: float) -> tuple[list[RawRecord], dict[Place, int]]:
        from confluent_kafka import KafkaError

        consumer = self._assigned(at)
        found: list[RawRecord] = []
        until = time.monotonic() + seconds
        while not found and at:
            messages = consumer.consume(rows_max, max(0.0, min(0.05, until - time.monotonic())))
            for message in messages:
                error, place = message.error(), (message.topic() or "", message.partition() or 0)
                if error is None:
                    offset = message.offset() or 0
                    found.append((*place, offset, message.key(), message.value()))
                    self._at[place] = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._at[place] = max(self._at[place], message.offset() or 0)
                elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                    self._lost(place)
                elif not error.retriable():
                    raise self._client.failed(f"reading {place[0]!r}", error)
            if not messages and time.monotonic() >= until:
                break
        return found, dict(self._at)

    def _lost(self, place: Place) -> None:
        earliest, end = self._client.ends([place])[place]
        raise OffsetOutOfRange(place[0], place[1], self._at[place], earliest, end)

    def _assigned(self, at: Mapping[Place, int]) -> Consumer:
        from confluent_kafka import TopicPartition

        if self._consumer is None:
            self._consumer = self._client.new_consumer()
        if self._at != at:
            self._at = dict(at)
            self._consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in at.items()])
        return self._consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
