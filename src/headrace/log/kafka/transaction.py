"""Transactions of a log on Kafka: appends to topics and offsets of members, all or none. Owns which transactional ids
this process uses for them. The records are sent when the block ends; a process that dies before leaves nothing."""

from __future__ import annotations

import functools
import operator
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.errors import Closed, InvalidArgument, Unsupported
from headrace.log.contract import Progress, Rows, Topic
from headrace.log.declared import DeclaredTopic
from headrace.log.kafka.base_topic import Handle
from headrace.log.kafka.client import Client, Outgoing
from headrace.log.kafka.consume.groups import KafkaMember
from headrace.log.kafka.topic import KafkaTopic
from headrace.log.kafka.transactional import Transactional
from headrace.log.kafka.writing import Prepared, ahead_letters
from headrace.position import Position

__all__ = ["KafkaSoleWriter", "KafkaTransaction", "transaction"]

SOLE_SECONDS = 60
"""A transaction of a sole writer may take so long. Readers of its topics wait as long if it dies in one and nobody
takes its name."""
_idle: dict[tuple[int, str], list[Transactional]] = {}
_idle_lock = threading.Lock()


class KafkaTransaction:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._asked: list[tuple[KafkaTopic, Prepared]] = []
        self._members: list[KafkaMember] = []
        self._open = True
        self._position: Position | None = None

    def append(self, topic: str | Topic, rows: Rows, *, progress: Progress = None) -> None:
        self._check()
        found: Any = topic.opened() if isinstance(topic, DeclaredTopic) else topic
        if isinstance(found, str):
            found = KafkaTopic(self._handle, self._handle.catalog.named(found))
        if not isinstance(found, KafkaTopic):
            raise InvalidArgument("topic", topic, "is of another log")
        self._asked.append((found, found.prepare(rows, progress=progress)))

    def commit(self, member: Any) -> None:
        """A member's offsets become part of the transaction."""
        self._check()
        if not isinstance(member, KafkaMember):
            raise InvalidArgument("member", member, "must be what group.join() returned")
        self._members.append(member)

    def ack(self, *messages: Any) -> None:
        """Unsupported: Kafka has no transactions over share groups."""
        self._check()
        raise Unsupported(f"a transaction on Kafka ({len(messages)} messages)", "ack")

    @property
    def position(self) -> Position:
        if self._position is None:
            raise Closed(what="the transaction")
        return self._position

    def _check(self) -> None:
        if not self._open:
            raise Closed(what="the transaction")

    def end(self) -> None:
        self._open = False

    def finish(self) -> None:
        self.end()
        sending: list[tuple[str, list[Outgoing]]] = []
        for topic, prepared in self._asked:
            topic.entry()  # TopicReplaced if it was deleted since
            sending.append((topic.physical, prepared.records))
        letters = [each for _, prepared in self._asked for each in self._letters(prepared)]
        if letters:
            sending.append((self._handle.letters.physical, letters))
        commits = [each for each in (member.offsets_for_transaction() for member in self._members) if each[0]]
        found: list[dict[int, range]] = []
        if commits or any(records for _, records in sending):
            with transactional(self._handle.catalog.client, self._handle.settings.prefix) as producer:
                found = producer.run(sending, commits)
        for member in self._members:
            member.note_committed()
        self._handle.catalog.client.notify()
        behind = [topic.position_behind(given) for (topic, _), given in zip(self._asked, found, strict=False)]
        self._position = functools.reduce(operator.or_, behind, Position())

    def _letters(self, prepared: Prepared) -> list[Outgoing]:
        found = ahead_letters(prepared)
        return self._handle.letters.records(found, prepared.entry) if found else []


class KafkaSoleWriter:
    """Holds the transactional id of a name. After an error it is of no use: whoever takes the name again learns what
    became of its last transaction."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        id = f"headrace.{handle.settings.prefix}sole.{name}"
        self._producer = Transactional(handle.catalog.client, id, SOLE_SECONDS)

    @contextmanager
    def transaction(self) -> Iterator[SoleTransaction]:
        tx = SoleTransaction(self._handle)
        yield tx
        tx.finish(self._producer)


class SoleTransaction:
    """Rows for topics, which are encoded when they are sent."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._asked: list[tuple[KafkaTopic, Rows]] = []

    def append(self, topic: str | Topic, rows: Rows) -> None:
        name = topic if isinstance(topic, str) else topic.name
        self._asked.append((KafkaTopic(self._handle, self._handle.catalog.named(name)), rows))

    def finish(self, producer: Transactional) -> None:
        self._handle.check()
        producer.run((topic.physical, topic.prepare(rows).records) for topic, rows in self._asked)
        self._handle.catalog.client.notify()


@contextmanager
def transactional(client: Client, prefix: str) -> Iterator[Transactional]:
    """A transactional producer of this process; one that failed is not used again."""
    with _idle_lock:
        waiting = _idle.setdefault((id(client), prefix), [])
        found = waiting.pop() if waiting else None
    found = found or Transactional(client, f"headrace.{prefix}tx.{uuid.uuid4().hex}")
    yield found
    with _idle_lock:
        waiting.append(found)


@contextmanager
def transaction(handle: Handle) -> Iterator[KafkaTransaction]:
    tx = KafkaTransaction(handle)
    try:
        yield tx
    except BaseException:
        tx.end()
        raise
    tx.finish()
