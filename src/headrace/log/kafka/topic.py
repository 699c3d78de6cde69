"""The topic handle of a log on Kafka, as users have it: reading and appending, groups, producers, references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.durations import Duration
from headrace.errors import BatchDiffers, TopicReplaced
from headrace.log.capabilities import OpenTransaction, Order, ReadMark
from headrace.log.contract import Overload, Progress, Start
from headrace.log.kafka.base_topic import BaseTopic, Handle
from headrace.log.kafka.catalog import Entry
from headrace.log.kafka.consume.groups import KafkaGroup, groups_of
from headrace.log.kafka.forms.registry import registry_of
from headrace.log.kafka.held import open_transactions
from headrace.log.kafka.reading import Mark
from headrace.log.kafka.sender import KafkaProducer, KafkaSender
from headrace.log.kafka.settings import Kafka
from headrace.log.loading import load
from headrace.log.producer import AsyncProducer
from headrace.time import UNSET

if TYPE_CHECKING:
    from headrace.log.kafka.consume.queues import KafkaQueue

__all__ = ["KafkaRef", "KafkaTopic"]


class KafkaTopic(BaseTopic):
    """A topic of a Kafka cluster. `topic_id` is Kafka's: another if the topic is deleted and created again."""

    def open_transactions(self) -> list[OpenTransaction]:
        numbers = range(self.entry().settings.partitions)
        return open_transactions(self._client, self.name, self.physical, numbers)

    def written(self) -> dict[int, int]:
        from confluent_kafka.admin import OffsetSpec

        places = [(self.physical, number) for number in range(self.entry().settings.partitions)]
        found = self._client.offsets(places, OffsetSpec.latest(), committed=False)
        return {number: each.offset for (_, number), each in found.items()}

    def ref(self) -> KafkaRef:
        entry, reader = self.entry(), self._reader()
        return self._ref(entry, {number: reader.some_marks(number) for number in range(entry.settings.partitions)})

    def _ref(self, entry: Entry, marks: Mapping[int, Sequence[Mark]]) -> KafkaRef:
        registry = registry_of(self._handle.settings) if entry.avro is not None else None
        schemas = {} if registry is None else registry.known()
        return KafkaRef(self._handle.settings, self.name, self.topic_id, marks, schemas)

    def ref_from(self, starts: Mapping[int, Iterable[int]]) -> KafkaRef:
        reader = self._reader()
        return self._ref(self.entry(), {number: reader.marks_for(number, at) for number, at in starts.items()})

    def remember(self, marks: Mapping[int, Iterable[ReadMark]]) -> None:
        for number, some in marks.items():
            for each in some:
                progress_us = UNSET if each.progress_us is None else each.progress_us
                self._reader().add_mark(number, Mark(each.offset, progress_us, each.arrived_us or 0, each.raised))

    def reached(self, partition: int, offset: int) -> Mark:
        reader = self._reader()
        known = reader.mark_below(partition, offset)
        if known.offset == offset:
            return known
        return reader.mark_at(partition, offset, self._ends(self.entry(), [partition])[partition])

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

    def queue(
        self,
        name: str,
        *,
        visibility: Duration | None = None,
        max_deliveries: int | None = None,
        order: Order | None = None,
        start: Start = "earliest",
        create: bool = True,
    ) -> KafkaQueue:
        """A queue: a share group of Kafka's, which delivers each record to one consumer. The settings are as those of
        every queue, within the limits that the brokers set."""
        from headrace.log.kafka.consume.queues import opened

        self._refuse_own()
        how = {"visibility": visibility, "max_deliveries": max_deliveries, "order": order}
        return opened(self._handle, self, name, **how, start=start, create=create)  # type: ignore[arg-type]

    def queues(self) -> list[KafkaQueue]:
        from headrace.log.kafka.consume.queues import KafkaQueue

        return [KafkaQueue(self._handle, self, each.name) for each in self.entry().queues]


@dataclass(frozen=True)
class KafkaRef:
    """A reference to a topic, for any process that reaches the cluster. `marks`: what the driver knows of its progress,
    so that a worker begins near its range; `schemas`: what it knows of the registry's. Holds references to secrets, and
    no secret."""

    settings: Kafka
    name: str
    topic_id: str
    marks: Mapping[int, Sequence[Mark]]
    schemas: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def open(self) -> KafkaTopic:
        handle = Handle.opened(self.settings)
        entry = handle.catalog.named(self.name)
        if entry.topic_id != self.topic_id:
            raise TopicReplaced(topic=self.name, topic_id=self.topic_id)
        topic = KafkaTopic(handle, entry)
        if self.schemas and (registry := registry_of(self.settings)) is not None:
            registry.remember(self.schemas)
        for number, marks in self.marks.items():
            for mark in marks:
                topic._reader().add_mark(number, mark)
        return topic
