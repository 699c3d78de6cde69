"""The topic handle of a log on Kafka, as users have it: reading and appending, groups, producers, references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.durations import Duration
from headrace.errors import BatchDiffers, TopicReplaced
from headrace.log.capabilities import Place
from headrace.log.contract import Overload, Progress
from headrace.log.kafka.base_topic import BaseTopic, Handle
from headrace.log.kafka.groups import KafkaGroup, groups_of
from headrace.log.kafka.producer import KafkaProducer
from headrace.log.kafka.reading import Mark
from headrace.log.kafka.sender import KafkaSender
from headrace.log.kafka.settings import Kafka
from headrace.log.loading import load
from headrace.log.producer import AsyncProducer
from headrace.time import UNSET

__all__ = ["KafkaRef", "KafkaTopic"]


class KafkaTopic(BaseTopic):
    """A topic of a Kafka cluster. `topic_id` is Kafka's: another if the topic is deleted and created again."""

    def ref(self) -> KafkaRef:
        entry, reader = self.entry(), self._reader()
        marks = {number: reader.some_marks(number) for number in range(entry.settings.partitions)}
        return KafkaRef(self._handle.settings, self.name, self.topic_id, marks)

    def remember(self, places: Mapping[int, Place]) -> None:
        """Progress is made from these places on: what is before them need not be read again, nor be there any more."""
        for number, place in places.items():
            progress_us = UNSET if place.progress_us is None else place.progress_us
            self._reader().add_mark(number, Mark(place.offset, progress_us, place.arrived_us or 0))

    def append_batch(
        self, rows: pa.Table, writer: str | None = None, number: int | None = None, *, progress: Progress = None
    ) -> None:
        if writer is None or number is None:
            KafkaSender.unnamed(self._handle).send_once(self, rows, progress=progress)
            return
        known = KafkaSender(self._handle, f"batches.{writer}").send_numbered(self, rows, number, progress)
        if known is not None and known != rows.num_rows:
            raise BatchDiffers(self.name, writer, number, rows.num_rows)

    def load(
        self,
        data: Any,
        *,
        id: str | None = None,
        batch_rows: int = 100_000,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        sender = None if id is None else KafkaSender(self._handle, f"load.{id}")
        there = 0 if sender is None else sender.next_number(self.name)

        def append(batch: pa.RecordBatch, done: int) -> None:
            if sender is None:
                self.append(batch)
            else:
                sender.send(self.name, pa.Table.from_batches([batch]), done)

        return load(append, data, there, batch_rows, progress)

    def producer(
        self,
        id: str | None = None,
        *,
        linger: Duration = "5 milliseconds",
        batch_rows: int = 10_000,
        buffer_bytes: int = 64 << 20,
        overload: Overload = "block",
    ) -> KafkaProducer:
        return KafkaProducer(
            self._handle, self, id, linger=linger, batch_rows=batch_rows, buffer_bytes=buffer_bytes, overload=overload
        )

    def async_producer(self, id: str | None = None, **how: Any) -> AsyncProducer:
        return AsyncProducer(lambda: self.producer(id, **how))

    def group(self, name: str) -> KafkaGroup:
        return KafkaGroup(self._handle, self, name)

    def groups(self) -> list[KafkaGroup]:
        return groups_of(self._handle, self)


@dataclass(frozen=True)
class KafkaRef:
    """A reference to a topic, for any process that reaches the cluster. `marks`: what the driver knows of its progress,
    so that a worker begins near its range. Holds references to secrets, and no secret."""

    settings: Kafka
    name: str
    topic_id: str
    marks: Mapping[int, Sequence[Mark]]

    def open(self) -> KafkaTopic:
        handle = Handle.opened(self.settings)
        entry = handle.catalog.named(self.name)
        if entry.topic_id != self.topic_id:
            raise TopicReplaced(topic=self.name, topic_id=self.topic_id)
        topic = KafkaTopic(handle, entry)
        for number, marks in self.marks.items():
            for mark in marks:
                topic._reader().add_mark(number, mark)
        return topic
