"""Queues: share groups of Kafka's. Owns how messages are fetched, answered and buried, and which settings of a queue
are Kafka's. A queue is known by an entry in the catalog of topics; what it has delivered is known to the broker alone,
so nobody here can count it, look at it, or move it.

A broker hands out whole batches of records to a consumer, which may fetch again when all are answered. So a queue has
several consumers: one for each caller whose messages are not answered yet. What was fetched and not asked for waits in
this process, for others as if it were being worked on. Answers are sent before `ack` returns; a process that dies gives
back what it has when its visibility runs out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace import jsonrows, rows
from headrace.durations import Duration, duration_us, from_us
from headrace.errors import InvalidArgument, KafkaFailed, LeaseExpired, TopicReplaced, UnknownQueue, Unsupported
from headrace.log.answering import Answering
from headrace.log.contract import QueueStats, Record, Start
from headrace.log.kafka.base_topic import BaseTopic, Handle, key_of
from headrace.log.kafka.catalog import Entry, QueueEntry
from headrace.log.kafka.client import REQUEST_SECONDS
from headrace.log.kafka.forms.chosen import form_of
from headrace.log.kafka.values import decode
from headrace.log.starting import check_start
from headrace.names import check_name

if TYPE_CHECKING:
    from confluent_kafka import Message, ShareConsumer

__all__ = ["KafkaMessage", "KafkaQueue", "opened"]

VISIBILITY_MS = 30_000
MAX_DELIVERIES = 5
RECEIVE_MAX = 10_000
SPAN_MAX_US = 365 * 86_400_000_000
JOIN_SECONDS = 6.0
"""A consumer is in its group after one heartbeat, 5 seconds by default. The first receive waits for it."""
POLL_SECONDS = 0.2
CONSUMERS_MAX = 32
CLOSE_SECONDS = 5.0
"""The client library, whose consumer of share groups is a preview, was seen to wait for ever when it leaves a group.
The broker gives up on a member that is silent."""
MARGIN = 0.9
"""A message that this share of its visibility has gone by is not handed out any more."""


@dataclass(slots=True, eq=False)
class KafkaMessage(Answering):
    """A record that a queue delivered. Call `ack` or `nack` before its visibility runs out, or use `with message:`,
    which acknowledges it, or rejects it if the block raises (the exception is passed on)."""

    topic: str
    partition: int
    offset: int
    arrived_at: datetime
    key: Any
    value: dict[str, Any]
    deliveries: int
    _queue: KafkaQueue = field(repr=False)
    _consumer: _Consumer = field(repr=False)
    _raw: Message = field(repr=False)
    answered: bool = field(default=False, repr=False)

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._queue.name

    def ack(self) -> None:
        """Acknowledges the message. LeaseExpired if its visibility has run out."""
        self._queue.ack([self])

    def nack(self, error: str = "", *, delay: Duration | None = None) -> None:
        """Rejects the message: it is delivered again. After `max_deliveries` it becomes a dead letter."""
        self._queue.nack([self], error, delay=delay)

    def extend(self, duration: Duration) -> None:
        """Unsupported."""
        self._queue.extend([self], duration)

    def close(self) -> None:
        """Gives it back, if it is not answered."""
        if not self.answered:
            self._queue.give_back([self])


class _Consumer:
    """A member of the share group. Used by one thread at a time; `lock` is held while it is."""

    def __init__(self, made: ShareConsumer, topic: str) -> None:
        self.made = made
        made.subscribe([topic])
        self.began = self.fetched = time.monotonic()
        self.joined = False
        self.held: dict[tuple[int, int], KafkaMessage] = {}
        """Fetched, and not answered."""
        self.ready: deque[KafkaMessage] = deque()
        """Of these, those that nobody has asked for yet."""
        self.lock = threading.Lock()

    def leave(self) -> None:
        with self.lock:
            self.made.close()


class KafkaQueue:
    """A queue on a topic: delivers each message to one consumer, and again until it is acknowledged."""

    has_stats = False

    def __init__(self, handle: Handle, topic: BaseTopic, name: str) -> None:
        self._handle, self._topic, self.name = handle, topic, name
        self._consumers: list[_Consumer] = []
        self._lock = threading.Lock()
        self._interrupted = False

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of {self._topic!r}>"

    # -- what it is --------------------------------------------------------------------------------

    @property
    def physical(self) -> str:
        """The share group's name in Kafka."""
        return share_group(self._handle, self._topic, self.name)

    def _entry(self) -> QueueEntry:
        known = {each.name: each for each in self._topic.entry().queues}
        if self.name not in known:
            raise UnknownQueue(self._topic.name, self.name, list(known))
        return known[self.name]

    @property
    def visibility(self) -> timedelta:
        """How long a message stays with a consumer that does not acknowledge it."""
        return timedelta(milliseconds=self._entry().visibility_ms)

    @property
    def max_deliveries(self) -> int:
        """After this many deliveries without an ack, a message becomes a dead letter."""
        return self._entry().max_deliveries

    @property
    def order(self) -> Any:
        return "none"

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(repr(self), what)

    def stats(self) -> QueueStats:
        """Unsupported: the broker counts, and this client cannot ask it."""
        self._entry()
        raise self._unsupported("stats")

    def time_to_loss(self) -> timedelta | None:
        """Unsupported."""
        raise self._unsupported("time_to_loss")

    def peek(self, count: int = 10) -> list[Record]:
        """Unsupported."""
        whole_number("count", count)
        self._entry()
        raise self._unsupported("peek")

    def redrive(self) -> int:
        """Unsupported: replay a letter to append its row again."""
        self._entry()
        raise self._unsupported("redrive")

    def rewind(self, start: Start) -> dict[int, int]:
        """Unsupported: delete the queue, and create it again."""
        check_start(start)
        raise self._unsupported("rewind")

    # -- receiving ---------------------------------------------------------------------------------

    def receive(self, max: int = 1, wait: Duration | None = None) -> list[KafkaMessage]:
        """Receives up to `max` messages. With `wait`, it waits that long for the first; without, as long as the broker
        takes to answer."""
        whole_number("max", max, RECEIVE_MAX)
        seconds = 0.0 if wait is None else duration_us(wait, argument="wait", positive=False) / 1e6
        until, asked = time.monotonic() + seconds, False
        while True:
            entry = self._entry()
            if found := self._fetched(max, entry):
                return found
            left = until - time.monotonic()
            if asked and (left <= 0 or self._interrupted):
                return []
            consumer = self._free_consumer()
            if consumer is None:  # all of them wait for answers
                asked = True
                time.sleep(min(POLL_SECONDS, left) if left > 0 else 0)
                continue
            try:
                self._fetch(consumer, entry)
            finally:
                consumer.lock.release()
            settled = consumer.joined or time.monotonic() - consumer.began > JOIN_SECONDS
            asked = settled or self._interrupted

    def _fetched(self, count: int, entry: QueueEntry) -> list[KafkaMessage]:
        """What was fetched before, and is not too old."""
        out: list[KafkaMessage] = []
        with self._lock:
            for consumer in self._consumers:
                if self._is_late(consumer, entry, MARGIN):
                    consumer.ready.clear()
                while consumer.ready and len(out) < count:
                    out.append(consumer.ready.popleft())
        return out

    def _is_late(self, consumer: _Consumer, entry: QueueEntry, share: float = 1.0) -> bool:
        return time.monotonic() - consumer.fetched > share * entry.visibility_ms / 1000

    def _free_consumer(self) -> _Consumer | None:
        """One that can fetch, locked; None if there may be no more."""
        entry = self._entry()
        with self._lock:
            for consumer in self._consumers:
                if not consumer.lock.acquire(blocking=False):
                    continue
                free = False
                try:
                    if consumer.held and self._is_late(consumer, entry):
                        self._forget(consumer)
                    free = not consumer.held
                finally:
                    if not free:
                        consumer.lock.release()
                if free:
                    return consumer
            if len(self._consumers) >= CONSUMERS_MAX:
                return None
            made = _Consumer(self._handle.catalog.client.new_share_consumer(self.physical), self._topic.physical)
            made.lock.acquire()
            if not self._consumers:
                self._handle.closing.append(self.close)
            self._consumers.append(made)
            return made

    def _forget(self, consumer: _Consumer) -> None:
        """The visibility of what it has is over. The broker knows; the client wants an answer before it fetches."""
        self._answer(consumer, list(consumer.held.values()), "RELEASE", check=False)

    def _fetch(self, consumer: _Consumer, entry: QueueEntry) -> None:
        from confluent_kafka import KafkaError

        found: list[Message] = []
        with self._handle.catalog.client.translated("receiving"):
            polled = list(consumer.made.poll(POLL_SECONDS))
        for message in polled:
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                raise TopicReplaced(topic=self._topic.name, topic_id=self._topic.topic_id)
            elif not error.retriable():
                raise self._handle.catalog.client.failed("receiving", error)
        if not found:
            return
        consumer.joined, consumer.fetched = True, time.monotonic()
        self._sort(consumer, found, entry, self._topic.entry())

    def _sort(self, consumer: _Consumer, found: list[Message], queue: QueueEntry, topic: Entry) -> None:
        """Messages to hand out, and those to bury: no rows, or delivered too often."""
        times_us = np.array([each.timestamp()[1] for each in found], np.int64) * 1000
        form = form_of(topic, self._handle.settings)
        decoded, bad = decode([each.value() for each in found], [each.key() for each in found], times_us, topic, form)
        why = {each.number: each for each in bad}
        values = iter(rows.to_rows(decoded))
        buried, dead = [], []
        for number, raw in enumerate(found):
            partition, offset, count = raw.partition() or 0, raw.offset() or 0, raw.delivery_count() or 1
            value = {} if number in why else next(values)
            key = None if number in why else key_of(value, topic)
            at = from_us(int(times_us[number]))
            message = KafkaMessage(topic.name, partition, offset, at, key, value, count, self, consumer, raw)
            consumer.held[partition, offset] = message
            if number in why:
                self._handle.letters.bury_unreadable(topic, partition, [(offset, why[number])])
                buried.append(message)
            elif count > queue.max_deliveries:
                dead.append(message)
            else:
                consumer.ready.append(message)
        if dead:
            self._bury(dead, "was not acknowledged in time", queue)
        self._answer(consumer, [*buried, *dead], "REJECT", check=False)

    def interrupt(self) -> None:
        """Ends the wait of `receive` on this handle, now and for later calls."""
        self._interrupted = True

    # -- answering ---------------------------------------------------------------------------------

    def ack(self, messages: Iterable[Any]) -> None:
        """Acknowledges them. LeaseExpired names one whose visibility has run out, or that was answered before."""
        self._answered(self._mine(messages), "ACCEPT")

    def nack(self, messages: Iterable[Any], error: str = "", *, delay: Duration | None = None) -> None:
        """Rejects them: they are delivered again at once. Those that were delivered `max_deliveries` times become dead
        letters with this error. `delay` is Unsupported."""
        if not isinstance(error, str):
            raise InvalidArgument("error", error, "must be text")
        if delay is not None and span_us("delay", delay, positive=False):
            raise self._unsupported("delay")
        mine, queue = self._mine(messages), self._entry()
        self._check(mine)
        dead = [each for each in mine if each.deliveries >= queue.max_deliveries]
        if dead:
            self._bury(dead, error, queue)
        self._answered([each for each in mine if each not in dead], "RELEASE")
        self._answered(dead, "REJECT")

    def extend(self, messages: Iterable[Any], duration: Duration) -> None:
        """Unsupported: the visibility is the same for all."""
        span_us("duration", duration)
        self._check(self._mine(messages))
        raise self._unsupported("extend")

    def give_back(self, messages: Iterable[Any]) -> None:
        """Gives back messages that were not started. The delivery counts, as the broker counts all."""
        self._answered(self._mine(messages), "RELEASE")

    def _mine(self, messages: Iterable[Any]) -> list[KafkaMessage]:
        self._entry()
        out: dict[int, KafkaMessage] = {}
        for message in [messages] if isinstance(messages, KafkaMessage) else messages:
            if not isinstance(message, KafkaMessage) or message._queue is not self:
                raise InvalidArgument("messages", message, f"was not received from this handle of queue {self.name!r}")
            out[id(message)] = message
        return list(out.values())

    def _check(self, mine: list[KafkaMessage]) -> None:
        queue = self._entry()
        for message in mine:
            if message.answered or self._is_late(message._consumer, queue):
                raise self._expired(message)

    def _expired(self, message: KafkaMessage) -> LeaseExpired:
        return LeaseExpired(self._topic.name, self.name, message.partition, message.offset)

    def _answered(self, mine: list[KafkaMessage], how: str) -> None:
        self._check(mine)
        for consumer in {id(each._consumer): each._consumer for each in mine}.values():
            with consumer.lock:
                self._answer(consumer, [each for each in mine if each._consumer is consumer], how, check=True)

    def _answer(self, consumer: _Consumer, messages: list[KafkaMessage], how: str, *, check: bool) -> None:
        """Tells the broker, and waits for its answer. LeaseExpired for the first that it does not take."""
        from confluent_kafka import AcknowledgeType, IllegalStateException

        if not messages:
            return
        for message in messages:
            try:
                consumer.made.acknowledge(message._raw, AcknowledgeType[how])
            except IllegalStateException:
                if check:
                    raise self._expired(message) from None
            message.answered = True
            consumer.held.pop((message.partition, message.offset), None)
        client = self._handle.catalog.client
        with client.translated("answering messages"):
            answers = consumer.made.commit_sync(REQUEST_SECONDS)
        for at, error in answers.items():
            if error is not None and check:
                code = error.args[0]
                if code.name() in ("INVALID_RECORD_STATE", "UNKNOWN_MEMBER_ID", "SHARE_SESSION_NOT_FOUND"):
                    raise self._expired(next(each for each in messages if each.partition == at.partition))
                raise client.failed("answering messages", code)

    def _bury(self, dead: list[KafkaMessage], error: str, _queue: QueueEntry) -> None:
        """Before they are rejected: a process that dies in between leaves a letter twice, never none."""
        letters = [
            {
                "reason": "deliveries",
                "error": error.encode("utf-8", "replace").decode(),
                "partition": each.partition,
                "offset": each.offset,
                "deliveries": each.deliveries,
                "source": f"queue {self.name}",
                "row": jsonrows.encode_row(each.value).decode(),
            }
            for each in dead
        ]
        self._handle.letters.bury(letters, self._topic.entry())

    # -- ending ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the share group: what was not answered goes to others."""
        with self._lock:
            consumers, self._consumers = self._consumers, []
            if consumers and self.close in self._handle.closing:
                self._handle.closing.remove(self.close)
        leaving = [threading.Thread(target=consumer.leave, daemon=True) for consumer in consumers]
        for thread in leaving:
            thread.start()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in leaving:
            thread.join(max(0.0, until - time.monotonic()))

    def delete(self) -> None:
        """Deletes the queue, and what the broker knows of its deliveries. Its dead letters stay."""
        self._entry()
        self.close()
        self._handle.catalog.drop_queue(self._topic.entry(), self.name)
        admin = self._handle.catalog.client.admin
        try:
            asked = admin.delete_consumer_groups([self.physical])[self.physical]
            self._handle.catalog.client.ask("deleting a share group", asked)
        except KafkaFailed as error:
            if error.code != "GROUP_ID_NOT_FOUND":  # nobody has received yet
                raise


def share_group(handle: Handle, topic: BaseTopic, name: str) -> str:
    return f"{handle.settings.prefix}__queue.{topic.name}.{name}"


def opened(
    handle: Handle,
    topic: BaseTopic,
    name: str,
    *,
    visibility: Duration | None,
    max_deliveries: int | None,
    order: str | None,
    start: Start,
    create: bool,
) -> KafkaQueue:
    """The queue of that name. It is created if it does not exist; otherwise the given settings are changed."""
    check_name(name, argument="queue")
    changes: dict[str, Any] = {}
    if visibility is not None:
        changes["visibility_ms"] = max(1, span_us("visibility", visibility) // 1000)
    if max_deliveries is not None:
        changes["max_deliveries"] = whole_number("max_deliveries", max_deliveries)
    if order not in (None, "none", "key"):
        raise InvalidArgument("order", order, "must be 'none' or 'key'")
    if order == "key":
        if not topic.settings.key:
            raise InvalidArgument("order", order, f"topic {topic.name!r} has no key")
        raise Unsupported(repr(topic), "queues in the order of keys")
    begins = check_start(start)
    known = {each.name: each for each in topic.entry().queues}
    if name not in known and not create:
        raise UnknownQueue(topic.name, name, list(known))
    if name not in known and begins not in ("earliest", "latest"):
        raise Unsupported(repr(topic), "queues that begin elsewhere than at 'earliest' or 'latest'")
    entry = replace(known.get(name, QueueEntry(name, VISIBILITY_MS, MAX_DELIVERIES)), **changes)
    if entry != known.get(name):
        config = {
            "share.isolation.level": "read_committed",
            "share.record.lock.duration.ms": str(entry.visibility_ms),
            "share.delivery.count.limit": str(entry.max_deliveries + 1),
        }
        if name not in known:
            config["share.auto.offset.reset"] = str(begins)
        handle.catalog.put_queue(topic.entry(), entry, share_group(handle, topic, name), config)
    return KafkaQueue(handle, topic, name)


def span_us(argument: str, value: Duration, *, positive: bool = True) -> int:
    found = duration_us(value, argument=argument, positive=positive)
    if found > SPAN_MAX_US:
        raise InvalidArgument(argument, value, "is too long; at most 365 days")
    return found


def whole_number(argument: str, value: Any, most: int = 1 << 31) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgument(argument, value, f"must be a whole number from 1 to {most}")
    return value
