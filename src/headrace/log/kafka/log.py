"""The handle of a log on Kafka: `hr.open_log(hr.kafka("host:9092"))`. Owns nothing but whether it is closed: handles on
one cluster share their clients. Kafka keeps topics, records, groups and transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.durations import Duration
from headrace.errors import InvalidArgument, TopicReplaced
from headrace.log.contract import FLOW_GROUP, Appended, Group, Topic, Verified
from headrace.log.declared import DeclaredTopic
from headrace.log.grown import grown
from headrace.log.kafka.base_topic import Handle
from headrace.log.kafka.client import wait_until
from headrace.log.kafka.letters import KafkaLetter
from headrace.log.kafka.settings import Kafka
from headrace.log.kafka.topic import KafkaTopic
from headrace.log.kafka.values import TIMESTAMP
from headrace.log.settings import Avro, Epoch, settings_of
from headrace.names import OWN_PREFIX, check_name

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.kafka.sender import KafkaSender
    from headrace.log.kafka.transaction import KafkaSoleWriter, KafkaTransaction

__all__ = ["KafkaLog"]


class KafkaLog:
    """A log on a Kafka cluster. Thread-safe; a forked child opens its own."""

    def __init__(self, settings: Kafka) -> None:
        self.settings = settings
        self._handle = Handle.opened(settings)
        self._seen: dict[str, KafkaTopic] = {}
        """The topics that `news` was asked for."""
        self._log_id = f"kafka-{self._handle.catalog.client.cluster_id()}-{settings.prefix}"

    def __repr__(self) -> str:
        return f"<log {self.address}>"

    @property
    def address(self) -> str:
        return self.settings.address

    @property
    def log_id(self) -> str:
        return self._log_id

    @property
    def in_place(self) -> bool:
        return True

    def servers(self) -> list[str]:
        self._handle.check()
        return self._handle.catalog.client.brokers()

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(self, name: str, schema: object, *, exist_ok: bool = False, **settings: Any) -> KafkaTopic:
        """A new topic, in Kafka and with its schema. With `exist_ok`, one that headrace knows is returned as it is."""
        self._handle.check()
        made = self._handle.catalog.create(name, schema, settings_of(settings), exist_ok=exist_ok)
        return KafkaTopic(self._handle, made)

    def adopt_topic(self, name: str, schema: object, **settings: Any) -> KafkaTopic:
        """A topic that others have made, read with this schema. `event_time`: a column, `hr.epoch("ts", "ms")` for a
        number, or "_timestamp" for Kafka's own. `values=hr.avro()`: they are Avro, not JSON. Its keys are in whatever
        partitions its writers have put them."""
        from headrace.schema import schema_from

        self._handle.check()
        given, columns = dict(settings), schema_from(schema)
        unit, when = None, given.get("event_time")
        if isinstance(when, Epoch):
            unit, given["event_time"] = when.unit, when.column
            columns = when.with_instant(columns)
        elif when == TIMESTAMP:
            columns = _with_timestamp(columns)
        values = given.pop("values", None)
        if not isinstance(values, Avro | None):
            raise InvalidArgument("values", values, "must be hr.avro(), or left out where values are JSON")
        return KafkaTopic(self._handle, self._handle.catalog.adopt(name, columns, settings_of(given), unit, values))

    def topic(self, name: str) -> KafkaTopic:
        self._handle.check()
        return KafkaTopic(self._handle, self._handle.catalog.named(name))

    def topics(self) -> list[KafkaTopic]:
        """The topics that headrace knows, by name; others of the cluster can be adopted."""
        self._handle.check()
        return [KafkaTopic(self._handle, entry) for entry in self._handle.catalog.all()]

    def delete_topic(self, name: str) -> None:
        check_name(name, argument="name")
        self.delete_own_topic(name)

    def delete_own_topic(self, name: str) -> None:
        self._handle.check()
        self._handle.catalog.delete(self._handle.catalog.named(name))

    def own_topic(
        self,
        name: str,
        schema: pa.Schema,
        *,
        event_time: str | None = None,
        max_ahead: Duration = "1 hour",
        partitions: int = 1,
    ) -> KafkaTopic:
        self._handle.check()
        settings = settings_of({"event_time": event_time, "max_ahead": max_ahead, "partitions": partitions})
        self._handle.catalog.create(name, schema, settings, exist_ok=True, system=True)
        return self._grown_topic(name, schema)

    def text_topic(self, name: str) -> KafkaTopic:
        self._handle.check()
        made = self._handle.catalog.create(
            name, "key string, value string", settings_of({"key": "key"}), exist_ok=True, texts=True
        )
        return KafkaTopic(self._handle, made)

    def flow_topic(self, name: str, schema: pa.Schema, *, flow: str, **settings: Any) -> KafkaTopic:
        self._handle.check()
        made = replace(settings_of(settings), made_by=flow)
        entry = self._handle.catalog.create(name, schema, made, exist_ok=True)
        return self._grown_topic(name, schema) if entry.settings.made_by == flow else self.topic(name)

    def _grown_topic(self, name: str, schema: pa.Schema) -> KafkaTopic:
        entry = self._handle.catalog.named(name)
        wider = grown(entry.columns, schema)
        if wider != entry.columns:
            self._handle.catalog.alter(entry, {"schema": wider})
        return self.topic(name)

    def clone_topic(self, topic: Topic) -> KafkaTopic:
        own = topic.name.startswith(OWN_PREFIX)
        settings = topic.settings
        if settings.archive is not None:  # retention moves records there; here it would delete them
            settings = replace(settings, archive=None, retention_us=None, retention_bytes=None)
        made = self._handle.catalog.create(topic.name, topic.schema, settings, exist_ok=True, system=own)
        return KafkaTopic(self._handle, made)

    # -- across topics -----------------------------------------------------------------------------

    def transaction(self) -> AbstractContextManager[KafkaTransaction]:
        """All or nothing, across topics. A reader sees all of a topic's part at once, but not of all topics at once."""
        from headrace.log.kafka.transaction import transaction

        self._handle.check()
        return transaction(self._handle)

    def sole_writer(self, name: str) -> KafkaSoleWriter:
        from headrace.log.kafka.transaction import KafkaSoleWriter

        self._handle.check()
        return KafkaSoleWriter(self._handle, name)

    def sync(self) -> None:
        """Does nothing: what was appended is as durable as the cluster makes it."""
        self._handle.check()

    def sender(self, name: str) -> KafkaSender:
        from headrace.log.kafka.sender import KafkaSender

        self._handle.check()
        return KafkaSender(self._handle, name)

    # -- readers -----------------------------------------------------------------------------------

    def news(self, topics: Iterable[Topic]) -> dict[str, int]:
        self._handle.check()
        return {topic.topic_id: self._count(topic) for topic in topics}

    def _count(self, topic: Topic) -> int:
        own = self._seen[topic.topic_id] = self._own(topic)
        try:
            return sum(end for _, end in own._ends(own.entry()).values())
        except TopicReplaced:
            return -1

    def wait(self, seen: Mapping[str, int], timeout: float | None = None) -> bool:
        def changed() -> bool:
            known = [(self._seen[topic_id], count) for topic_id, count in seen.items() if topic_id in self._seen]
            return any(self._count(topic) != count for topic, count in known)

        return wait_until(self._handle.catalog.client, changed, timeout, self._handle.check)

    def _own(self, topic: Topic) -> KafkaTopic:
        found = topic.opened() if isinstance(topic, DeclaredTopic) else topic
        if not isinstance(found, KafkaTopic):
            raise InvalidArgument("topic", topic, "is of another log")
        return found

    def report(self, flow: str, places: Iterable[tuple[Topic, Mapping[int, int]]]) -> Future[None]:
        """Shows the flow's offsets as a group of Kafka's, `__flow.NAME`. Nobody reads them back."""
        from confluent_kafka import TopicPartition

        from headrace.log.kafka.consume.groups import commit_offsets

        self._handle.check()
        done: Future[None] = Future()
        at = [
            TopicPartition(self._own(topic).physical, number, offset)
            for topic, offsets in places
            for number, offset in offsets.items()
        ]
        if not at:
            done.set_result(None)
            return done
        asked = commit_offsets(self._handle, f"{FLOW_GROUP}{flow}", at)

        def shown(answer: Any) -> None:  # or not: nothing depends on it
            client.admin_stale |= answer.exception() is not None
            done.set_result(None)

        client = self._handle.catalog.client
        asked.add_done_callback(shown)
        return done

    def forget_flow(self, flow: str) -> None:
        client, physical = self._handle.catalog.client, f"{self.settings.prefix}{FLOW_GROUP}{flow}"
        with contextlib.suppress(TimeoutError):
            client.admin.delete_consumer_groups([physical])[physical].exception(10)  # there may be none

    def groups(self) -> list[tuple[Topic, Group]]:
        """The groups of all topics that headrace knows."""
        from headrace.log.kafka.consume.groups import KafkaGroup, committed_by_all

        topics = {topic.physical: topic for topic in self.topics()}
        return [
            (topics[physical], KafkaGroup(self._handle, topics[physical], name))
            for name, offsets in committed_by_all(self._handle).items()
            for physical in sorted({at.topic for at in offsets} & topics.keys())
        ]

    def verify(self) -> Verified:
        """Reads every record of every topic that headrace knows, and checks that topics are as headrace has made
        them. Changes nothing."""
        from headrace.log.kafka.verify import verify

        self._handle.check()
        return verify(self._handle)

    # -- dead letters ------------------------------------------------------------------------------

    def dead_letters(self, *, newest: int | None = None) -> Iterator[KafkaLetter]:
        self._handle.check()
        return self._handle.letters.listed(self._replay, newest)

    def dead_letter(self, id: int) -> KafkaLetter:
        self._handle.check()
        for found in self._handle.letters.listed(self._replay, None, id=id):
            return found
        raise InvalidArgument("id", id, "there is no such dead letter (any more). See headrace dead list")

    def dead_letters_count(self) -> int:
        self._handle.check()
        return self._handle.letters.count()

    def _replay(self, letter: KafkaLetter) -> Appended:
        from headrace.log.kafka.transaction import transactional
        from headrace.log.kafka.writing import prepare

        origin = letter.origin
        target = None if origin.topic is None else self.topic(origin.topic)
        if target is not None and target.topic_id != origin.topic_id:
            raise TopicReplaced(topic=target.name, topic_id=origin.topic_id or "")
        if target is None or isinstance(letter.value, bytes):
            why = "is not a row of a topic: correct it, append it, then drop the letter"
            raise InvalidArgument("letter", letter.id, why)
        prepared = prepare(target.entry(), letter.value)
        if prepared.ahead is not None:
            raise InvalidArgument("letter", letter.id, f"would be quarantined again: {letter.error}")
        letters, client = self._handle.letters, self._handle.catalog.client
        sending = [(target.physical, prepared.records), (letters.physical, letters.ending(letter.id))]
        with transactional(client, self.settings.prefix) as producer:
            ranges = producer.run(sending)[0]
        return Appended(target.position_behind(ranges), ranges)

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes this handle; others on the cluster stay open."""
        if not self._handle.closed:
            self._handle.closed = True
            for close in list(self._handle.closing):
                close()
            self._handle.catalog.client.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _with_timestamp(columns: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return columns.append(pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")))
