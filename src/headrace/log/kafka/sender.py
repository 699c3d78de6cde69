"""The outbox's way into Kafka: numbered rows, each once. A send is one transaction of the sender's own transactional
id, which holds the rows and, as the offset of a group, the number behind the last of them. So a sender may be killed
anywhere: the number says what is there. A new sender of the same name fences the one before it. Owns ids and
numbers, and the producers whose ids are such names."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import BatchDiffers, KafkaFailed, ProducerFenced
from headrace.log.contract import DEAD_LETTERS, Progress, Rows
from headrace.log.kafka.base_topic import BaseTopic, Handle
from headrace.log.kafka.client import REQUEST_SECONDS
from headrace.log.kafka.transactional import ProducerReplaced, Transactional
from headrace.log.kafka.writing import Prepared, ahead_letters
from headrace.log.producer import BufferedProducer
from headrace.position import Position

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaProducer", "KafkaSender"]


class KafkaSender:
    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name
        self._transactional: Transactional | None = None
        self._group_metadata: Any = None

    @classmethod
    def unnamed(cls, handle: Handle) -> KafkaSender:
        """For one transaction that nobody repeats."""
        return cls(handle, f"once.{uuid.uuid4().hex}")

    @property
    def _group(self) -> str:
        return f"{self._handle.settings.prefix}__sender.{self._name}"

    def take(self) -> Transactional:
        """The transactional id: whoever had it is fenced from now on."""
        if self._transactional is None:
            id = f"headrace.{self._handle.settings.prefix}{self._name}"
            self._transactional = Transactional(self._handle.catalog.client, id)
        return self._transactional

    def next_number(self, topic: str) -> int:
        """The number of the next row for a topic."""
        return self._committed(topic)[0]

    def sent(self, topic: str) -> int:
        """Of what an earlier sender of the name has on its way, nothing counts."""
        return self._said(topic, require_stable=False)[0]

    def _committed(self, topic: str) -> tuple[int, str]:
        self.take()  # so that nothing of an earlier sender is still on its way
        return self._said(topic, require_stable=True)

    def _said(self, topic: str, *, require_stable: bool) -> tuple[int, str]:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        client = self._handle.catalog.client
        at = TopicPartition(self._handle.catalog.physical(topic), 0)
        asked = ConsumerGroupTopicPartitions(self._group, [at])
        for seconds in (2.0, REQUEST_SECONDS):  # again by a new client, where the coordinator was restarted or moved
            admin = client.admin
            (future,) = admin.list_consumer_group_offsets(
                [asked], require_stable=require_stable, request_timeout=seconds
            ).values()
            try:
                (found,) = client.ask("asking for a sender's number", future).topic_partitions
                break
            except KafkaFailed:
                if seconds == REQUEST_SECONDS:
                    raise
        return max(0, found.offset), found.metadata or ""

    # -- sending -----------------------------------------------------------------------------------

    def send(
        self, topic: str, rows: pa.Table, number: int, *, partition: int | None = None, progress: Progress = None
    ) -> Position:
        handle = self._topic(topic)
        if partition is not None and partition >= handle.settings.partitions:
            self._handle.catalog.alter(handle.entry(), {"partitions": partition + 1})
        if number < (there := self.next_number(topic)):
            if number + rows.num_rows > there:  # an outbox sends again what it has sent, and not more of it at once
                raise BatchDiffers(topic, self._name, number, rows.num_rows)
            return handle.position()
        prepared = handle.prepare(rows, partition=partition, progress=progress)
        return handle.position_behind(self._run(handle, prepared, number + rows.num_rows, ""))

    def send_rows(self, handle: BaseTopic, rows: Rows, number: int, rejected: int) -> Position:
        """For a producer: `rejected` rows count, too."""
        prepared = handle.prepare(rows)
        count = len(prepared.records) + (0 if prepared.ahead is None else prepared.ahead.num_rows)
        return handle.position_behind(self._run(handle, prepared, number + count + rejected, ""))

    def send_once(self, handle: BaseTopic, rows: pa.Table, *, progress: Progress) -> None:
        self._run(handle, handle.prepare(rows, progress=progress), None, "")

    def send_numbered(self, handle: BaseTopic, rows: pa.Table, number: int, progress: Progress) -> int | None:
        """A whole batch by its number. If the log has that batch, the number of its rows, and nothing is sent."""
        after, said = self._committed(handle.name)
        if number < after:
            return int(said) if number == after - 1 and said.isdigit() else rows.num_rows
        self._run(handle, handle.prepare(rows, progress=progress), number + 1, str(rows.num_rows))
        return None

    def bury(self, topic: str, letters: Sequence[Mapping[str, Any]], number: int) -> range:
        owner = self._handle.letters
        if number < self.next_number(DEAD_LETTERS):
            return range(number, number + len(letters))
        records = owner.records(letters, self._topic(topic).entry())
        sending = [(owner.physical, records)]
        (given,) = self._transact(topic, sending, owner.physical, number + len(letters), "")
        self._handle.catalog.client.notify()
        return given.get(0, range(0))

    def _topic(self, name: str) -> BaseTopic:
        self._handle.check()
        return BaseTopic(self._handle, self._handle.catalog.named(name))

    def _run(self, handle: BaseTopic, prepared: Prepared, after: int | None, said: str) -> dict[int, range]:
        sending = [(handle.physical, prepared.records)]
        if letters := ahead_letters(prepared):
            sending.append((self._handle.letters.physical, self._handle.letters.records(letters, prepared.entry)))
        given = self._transact(handle.name, sending, handle.physical, after, said)
        self._handle.catalog.client.notify()
        return given[0]

    def _transact(
        self, topic: str, sending: Sequence[tuple[str, Any]], physical: str, after: int | None, said: str
    ) -> list[dict[int, range]]:
        from confluent_kafka import TopicPartition

        commits = []
        if after is not None:
            commits = [([TopicPartition(physical, 0, after, said)], self._metadata())]
        try:
            return self.take().run(sending, commits)
        except BaseException as error:
            self._transactional = None  # it may be inside a transaction still: the id is taken again, which ends that
            if isinstance(error, ProducerReplaced):
                raise ProducerFenced(topic=topic, producer=self._name, epoch=-1, current_epoch=-1) from None
            raise

    def _metadata(self) -> Any:
        """Names the group to a transaction; it has no members."""
        if self._group_metadata is None:
            consumer = self._handle.catalog.client.new_consumer(group_id=self._group)
            self._group_metadata = consumer.consumer_group_metadata()
            consumer.close()
        return self._group_metadata


class KafkaProducer(BufferedProducer):
    """Batches of the buffer become appends; with an id, transactions of a sender, whose number says where the id goes
    on after a restart."""

    def __init__(self, handle: Handle, topic: BaseTopic, id: str | None, **how: Any) -> None:
        topic.entry()  # a closed log or a deleted topic is said now, not with the first batch
        self._handle, self._appends = handle, topic
        self._sender: KafkaSender | None = None
        super().__init__(topic.name, id, **how)

    def _begin(self, id: str) -> int:
        self._sender = KafkaSender(self._handle, f"producer.{id}.{self._appends.name}")
        return self._sender.next_number(self._appends.name)

    def _check_log(self) -> None:
        self._handle.check()

    def _append_rows(self, rows: Sequence[Mapping[str, Any]], rejected: int) -> Position:
        if self._sender is None:
            return self._appends.append(rows).position
        return self._sender.send_rows(self._appends, rows, self.sequence, rejected)
