"""Consumer groups: Kafka's own, so that its tools show their members and their lag. Owns how a group's records become
ours, and what a member may commit. What Kafka's groups cannot do (rewind while members live) is refused."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from headrace import rows
from headrace.durations import Duration, duration_us, from_us
from headrace.errors import (
    Closed,
    CommitBackwards,
    InvalidArgument,
    MemberFenced,
    OffsetOutOfRange,
    TopicReplaced,
    UnknownGroup,
    Unsupported,
    WaitTimeout,
)
from headrace.log.contract import FLOW_GROUP, Lag, MemberInfo, Record, Start
from headrace.log.kafka.base_topic import BaseTopic, Handle, key_of
from headrace.log.kafka.forms.chosen import form_of
from headrace.log.kafka.values import decode
from headrace.log.starting import check_start
from headrace.names import check_name

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

__all__ = ["KafkaGroup", "KafkaMember", "commit_offsets", "groups_of"]

JOIN_SECONDS = 1.0
"""A member waits so long for its first partitions. Those that others have come while both poll."""
SETTLE_SECONDS = 1.0
"""A poll that may not wait still gives the broker so long to say what is there."""


def groups_of(handle: Handle, topic: BaseTopic) -> list[KafkaGroup]:
    """The groups that have committed offsets of the topic, by name."""
    return [
        KafkaGroup(handle, topic, name)
        for name, offsets in committed_by_all(handle).items()
        if any(at.topic == topic.physical for at in offsets)
    ]


def committed_by_all(handle: Handle) -> dict[str, list[TopicPartition]]:
    """What each group of the log has committed, of all topics, by the group's name. All are asked at once."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    client, prefix = handle.catalog.client, handle.settings.prefix
    listed = client.ask("listing groups", client.admin.list_consumer_groups())
    names = sorted(each.group_id.removeprefix(prefix) for each in listed.valid if each.group_id.startswith(prefix))
    ours = [name for name in names if not name.startswith("__") or name.startswith(FLOW_GROUP)]
    asked = {
        name: client.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(prefix + name)], require_stable=True
        )[prefix + name]
        for name in ours
    }
    found = {name: client.ask("asking for a group's offsets", each) for name, each in asked.items()}
    return {name: [at for at in each.topic_partitions or [] if at.offset >= 0] for name, each in found.items()}


def commit_offsets(handle: Handle, group: str, offsets: Iterable[TopicPartition]) -> Any:
    """Sets a group's offsets, from outside: while it has no members. The future of the answer."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    physical = handle.settings.prefix + group
    asked = ConsumerGroupTopicPartitions(physical, list(offsets))
    return handle.catalog.client.admin.alter_consumer_group_offsets([asked])[physical]


class KafkaGroup:
    def __init__(self, handle: Handle, topic: BaseTopic, name: str) -> None:
        flow = isinstance(name, str) and name.startswith(FLOW_GROUP)
        self.name = check_name(name, argument="group", system=flow)
        self._handle, self._topic = handle, topic
        topic.entry()

    def __repr__(self) -> str:
        return f"<group {self.name!r} of {self._topic!r}>"

    @property
    def flow(self) -> str | None:
        return self.name.removeprefix(FLOW_GROUP) if self.name.startswith(FLOW_GROUP) else None

    @property
    def physical(self) -> str:
        """Its name in Kafka."""
        return self._handle.settings.prefix + self.name

    @property
    def _client(self) -> Any:
        return self._handle.catalog.client

    def join(self, *, lease: Duration = "10 seconds", start: Start = "earliest") -> KafkaMember:
        """`lease`: Kafka's session timeout. `start`: where a group begins that has no offsets yet."""
        lease_ms = max(1, duration_us(lease, argument="lease") // 1000)
        begins = self._topic.start_offsets(check_start(start))
        return KafkaMember(self._handle, self._topic, self, lease_ms, begins)

    def committed(self) -> dict[int, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        (future,) = self._client.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self.physical)], require_stable=True
        ).values()
        found = self._client.ask("asking for a group's offsets", future).topic_partitions or []
        mine = [at for at in found if at.topic == self._topic.physical and at.offset >= 0]
        return {at.partition: at.offset for at in sorted(mine, key=lambda at: at.partition)}

    def _described(self) -> Any:
        (future,) = self._client.admin.describe_consumer_groups([self.physical]).values()
        return self._client.ask("describing a group", future)

    def _check_exists(self) -> dict[int, int]:
        committed = self.committed()
        if not committed and not self.members():
            known = [group.name for group in groups_of(self._handle, self._topic)]
            raise UnknownGroup(topic=self._topic.name, group=self.name, known=known)
        return committed

    def members(self) -> list[MemberInfo]:
        from confluent_kafka import KafkaError

        from headrace.errors import KafkaFailed

        self._topic.entry()
        try:
            described = self._described()
        except KafkaFailed as error:
            if error.code == KafkaError(KafkaError.GROUP_ID_NOT_FOUND).name():
                return []
            raise
        out = []
        for each in described.members:
            mine = [at.partition for at in each.assignment.topic_partitions if at.topic == self._topic.physical]
            host = each.host.removeprefix("/")
            out.append(MemberInfo(each.member_id, host, 0, tuple(sorted(mine)), from_us(0), True))
        return out

    def lag(self) -> dict[int, Lag]:
        committed = self._check_exists()
        out = {}
        ends = self._topic._ends(self._topic.entry())
        for number, (first, end) in ends.items():
            at = max(first, committed.get(number, first))
            waited = timedelta(0)
            if at < end:
                found, time_us = self._topic._reader().first_from(number, at, ends[number])
                waited = timedelta(0) if found is None else max(timedelta(0), _now() - from_us(time_us))
            out[number] = Lag(committed.get(number), end, max(0, end - at), waited)
        return out

    def time_to_loss(self) -> timedelta | None:
        """The oldest unread record's age, against the retention by age."""
        retention_us = self._topic.settings.retention_us
        if retention_us is None:
            return None
        unread = [lag.time for lag in self.lag().values() if lag.records]
        return max(timedelta(0), timedelta(microseconds=retention_us) - max(unread)) if unread else None

    def wait(
        self, *, members: int | None = None, lag: int | None = None, timeout: Duration = "1 minute"
    ) -> tuple[int, int]:
        from headrace.log.kafka.client import wait_until

        seconds = duration_us(timeout, argument="timeout") / 1e6
        now = [0, 0]

        def done() -> bool:
            now[0] = len(self.members())
            now[1] = sum(each.records for each in self.lag().values()) if self.committed() else 0
            return (members is None or now[0] >= members) and (lag is None or now[1] <= lag)

        if not wait_until(self._client, done, seconds, self._handle.check):
            raise WaitTimeout(f"group {self.name!r}", seconds)
        return now[0], now[1]

    def rewind(self, start: Start) -> dict[int, int]:
        """Only while the group has no members: Kafka's groups cannot be moved under them."""
        from confluent_kafka import TopicPartition

        offsets = self._topic.start_offsets(check_start(start))
        if self.members():
            raise Unsupported(repr(self), "rewind while members are in it")
        at = [TopicPartition(self._topic.physical, number, offset) for number, offset in offsets.items()]
        self._client.ask(f"rewinding group {self.name!r}", commit_offsets(self._handle, self.name, at))
        return offsets

    def delete(self) -> None:
        """Forgets its offsets. Only while it has no members."""
        self._check_exists()
        if self.members():
            raise Unsupported(repr(self), "delete while members are in it")
        physical = self.physical
        asked = self._client.admin.delete_consumer_groups([physical])[physical]
        self._client.ask(f"deleting group {self.name!r}", asked)


def _now() -> Any:
    return from_us(time.time_ns() // 1000)


class KafkaMember:
    """One consumer of a group. Records lie in a queue for each of its partitions, and are taken from them in turn."""

    def __init__(
        self, handle: Handle, topic: BaseTopic, group: KafkaGroup, lease_ms: int, begins: dict[int, int]
    ) -> None:
        self._handle, self._topic, self._group = handle, topic, group
        self._begins = begins
        self._waiting: dict[int, deque[Message]] = {}
        self._at_end: set[int] = set()
        self._polled: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._lost: set[int] = set()
        self._overtaken: dict[int, OffsetOutOfRange] = {}
        """Partitions whose next record retention has deleted."""
        self._assigned = False
        self._closed = False
        self._consumer: Consumer = handle.catalog.client.new_consumer(
            group_id=group.physical,
            session_timeout_ms=lease_ms,
            heartbeat_interval_ms=max(1, min(3000, lease_ms // 4)),
            max_poll_interval_ms=max(lease_ms, 300_000),
            fetch_wait_max_ms=50,
            topic_metadata_refresh_interval_ms=1000,
        )
        self._consumer.subscribe([topic.physical], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)
        until = time.monotonic() + JOIN_SECONDS
        while not self._assigned and time.monotonic() < until:
            self._fill(0.05)

    @property
    def id(self) -> str:
        return str(self._consumer.memberid())

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(sorted(self._waiting))

    def _assign(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        self._assigned = True
        for at in consumer.committed(found, timeout=15) if found else []:
            if at.offset < 0:
                at.offset = self._begins.get(at.partition, 0)
            else:
                self._committed[at.partition] = at.offset
            next(each for each in found if each.partition == at.partition).offset = at.offset
        self._waiting = {at.partition: deque() for at in found}
        self._lost -= set(self._waiting)
        self._overtaken.clear()
        self._at_end.clear()
        consumer.assign(found)

    def _revoke(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        self._lost |= {at.partition for at in found if at.partition in self._polled}
        self._waiting = {}
        consumer.unassign()

    # -- polling -----------------------------------------------------------------------------------

    def poll(self, timeout: Duration = "1 second", max_records: int = 500) -> list[Record]:
        limit = duration_us(timeout, argument="timeout", positive=False) / 1e6
        if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
            raise InvalidArgument("max_records", max_records, "must be a whole number, 1 or more")
        self._check()
        self._topic.entry()
        until = time.monotonic() + limit
        settled = time.monotonic() + SETTLE_SECONDS
        while True:
            self._fill(0.02)
            now = time.monotonic()
            if any(self._waiting.values()) and (self._knows_all() or now > settled):
                if records := self._take(max_records):
                    return records
            elif self._overtaken and self._knows_all():
                raise next(iter(self._overtaken.values()))  # each time there is nothing else
            elif now >= until and (self._knows_all() or now > settled):
                return []

    def _knows_all(self) -> bool:
        """Whether each partition has a record waiting, or is at its end."""
        known = self._at_end | self._overtaken.keys()
        return all(queue or number in known for number, queue in self._waiting.items())

    def _fill(self, seconds: float) -> None:
        from confluent_kafka import KafkaError

        if sum(map(len, self._waiting.values())) > 50_000:
            return
        found = self._consumer.consume(500, seconds)
        for message in sorted(found, key=lambda each: each.error() is not None):  # an error loses no record
            error, number = message.error(), message.partition()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._at_end.add(number if number is not None else -1)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET and number is not None:
                    self._out_of_range(number)
                elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                    raise TopicReplaced(topic=self._topic.name, topic_id=self._topic.topic_id)
                elif not error.retriable():
                    raise self._handle.catalog.client.failed("polling", error)
            elif number in self._waiting:
                self._waiting[number].append(message)
                self._at_end.discard(number)

    def _out_of_range(self, number: int) -> None:
        """Retention has deleted what comes next. A group that has committed is told what it lost; one that has not
        begins at what is there."""
        from confluent_kafka import TopicPartition

        first, end = self._topic._ends(self._topic.entry(), [number])[number]
        if number not in self._committed and number not in self._polled:
            self._consumer.seek(TopicPartition(self._topic.physical, number, first))
            return
        at = max(self._committed.get(number, 0), self._polled.get(number, 0))
        self._overtaken[number] = OffsetOutOfRange(self._topic.name, number, at, first, end)

    def _take(self, count: int) -> list[Record]:
        """From the partitions in turn, so that none starves."""
        chosen: list[Message] = []
        while len(chosen) < count and any(self._waiting.values()):
            for number in list(self._waiting):
                if self._waiting[number] and len(chosen) < count:
                    chosen.append(self._waiting[number].popleft())
                    self._waiting[number] = self._waiting.pop(number)  # the next turn begins behind it
        try:
            entry = self._topic.entry()
            form = form_of(entry, self._handle.settings)
            times_us = np.array([message.timestamp()[1] for message in chosen], np.int64) * 1000
            values, keys = [each.value() for each in chosen], [each.key() for each in chosen]
            found, bad = decode(values, keys, times_us, entry, form)
            skipped = {each.number for each in bad}
            for each in bad:
                where = chosen[each.number]
                self._handle.letters.bury_unreadable(entry, where.partition() or 0, [(where.offset() or 0, each)])
        except BaseException:
            for message in reversed(chosen):  # they come with the next poll
                if (number := message.partition() or 0) in self._waiting:
                    self._waiting[number].appendleft(message)
            raise
        for message in chosen:
            self._polled[message.partition() or 0] = (message.offset() or 0) + 1
        kept = [message for number, message in enumerate(chosen) if number not in skipped]
        return [
            Record(
                self._topic.name,
                message.partition() or 0,
                message.offset() or 0,
                from_us(message.timestamp()[1] * 1000),
                None,
                key_of(value, entry),
                value,
            )
            for message, value in zip(kept, rows.to_rows(found), strict=True)
        ]

    # -- committing --------------------------------------------------------------------------------

    def commit(self, upto: Record | None = None) -> None:
        from confluent_kafka import KafkaException

        self._check()
        wanted = self._wanted(upto)
        self._refuse_lost(wanted)
        if not wanted:
            return
        try:
            self._consumer.commit(offsets=self._positions(wanted), asynchronous=False)
        except KafkaException as error:
            raise self._fenced(error.args[0], wanted) from None
        self._committed |= wanted

    def _wanted(self, upto: Record | None) -> dict[int, int]:
        if upto is None:
            return {number: at for number, at in self._polled.items() if at > self._committed.get(number, 0)}
        if upto.topic != self._topic.name or upto.offset >= self._polled.get(upto.partition, 0):
            raise InvalidArgument("upto", (upto.topic, upto.partition, upto.offset), "was not polled by this member")
        before = self._committed.get(upto.partition, 0)
        if upto.offset + 1 < before:
            raise CommitBackwards(self._topic.name, self._group.name, upto.partition, before, upto.offset + 1)
        return {upto.partition: upto.offset + 1}

    def _refuse_lost(self, wanted: dict[int, int]) -> None:
        if lost := sorted(self._lost & set(wanted)):
            for number in lost:
                self._polled.pop(number, None)
            self._lost -= set(lost)
            raise MemberFenced(self._topic.name, self._group.name, self.id, lost, "another member has them")

    def _positions(self, wanted: dict[int, int]) -> list[TopicPartition]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self._topic.physical, number, offset) for number, offset in wanted.items()]

    def _fenced(self, error: Any, wanted: dict[int, int]) -> Exception:
        from confluent_kafka import KafkaError

        gone = (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS)
        if error.code() in (*gone, KafkaError.FENCED_INSTANCE_ID, KafkaError._NO_OFFSET, KafkaError._STATE):
            return MemberFenced(self._topic.name, self._group.name, self.id, sorted(wanted), error.str())
        failed: Exception = self._handle.catalog.client.failed("a commit", error)
        return failed

    def offsets_for_transaction(self) -> tuple[list[TopicPartition], Any]:
        wanted = self._wanted(None)
        self._refuse_lost(wanted)
        return self._positions(wanted), self._consumer.consumer_group_metadata()

    def note_committed(self) -> None:
        self._committed |= self._wanted(None)

    # -- closing -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise Closed(what=f"the member of group {self._group.name!r}")
        self._handle.check()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
