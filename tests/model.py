"""The log, in memory: what the embedded log must do, written so that it is obviously right. Lists and dicts, no
files, no threads, no clock: time is an argument. Records lie in lists, so offsets are places in them; those that upkeep
removed stay there, marked. What it cannot know it is told: which batches the log has, because retention deletes whole
ones, and how many bytes an append takes. Knows the pure functions that have tests of their own (which partition a key
goes to, who gets which partition) and nothing else of headrace; refusals are its errors, by class."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import (
    CommitBackwards,
    ForgottenSequence,
    InvalidArgument,
    MemberFenced,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    TopicExists,
    TopicFull,
    TopicReplaced,
    UnknownTopic,
    VersionConflict,
)
from headrace.log.embedded.consume.assignment import assign

SEQUENCES_REMEMBERED = 128


class Refused(Exception):
    """The log must refuse this, with an error of class `kind`."""

    def __init__(self, kind: type[Exception]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


@dataclass
class Row:
    """A record to be: its key, its event time in microseconds, and the columns as they are read back. A null key and
    an empty one are the same key: they have the same bytes."""

    key: str | None
    event_us: int | None
    value: dict[str, Any]
    progress_us: int | None = None  # given by the writer, if `given`
    given: bool = False


@dataclass
class Stored:
    arrived_us: int
    progress_us: int | None
    row: Row
    before_us: int | None = None  # the partition's progress before the append
    gone: bool = False  # compacted away, or erased


@dataclass
class Span:
    """A batch of the log: the offsets it covers."""

    base: int
    next: int
    arrived_us: int
    bytes: int


@dataclass
class Partition:
    arrived_us: int  # creation counts as an arrival
    progress_us: int | None = None
    records: list[Stored] = field(default_factory=list)
    earliest: int = 0
    spans: list[Span] = field(default_factory=list)

    @property
    def next(self) -> int:
        return len(self.records)

    def held(self, start: int = 0, stop: int | None = None) -> list[tuple[int, Stored]]:
        """What is there, with its offset."""
        wanted = range(max(start, self.earliest), self.next if stop is None else min(stop, self.next))
        return [(offset, self.records[offset]) for offset in wanted if not self.records[offset].gone]


@dataclass
class Held:
    epoch: int
    position: int
    committed: int | None
    begin: int


@dataclass
class Member:
    id: str
    lease_us: int
    deadline_us: int
    start: str
    held: dict[int, Held] = field(default_factory=dict)


@dataclass
class Share:
    committed: int | None = None
    epoch: int = 0
    owner: str | None = None
    wanted_by: str | None = None
    wanted_until_us: int = 0


@dataclass
class Group:
    members: dict[str, Member] = field(default_factory=dict)
    shares: dict[int, Share] = field(default_factory=dict)

    def share(self, partition: int) -> Share:
        return self.shares.setdefault(partition, Share())


@dataclass
class Producer:
    epoch: int = 0
    sequence: int = 0
    known: dict[int, tuple[int, dict[int, range]]] = field(default_factory=dict)  # first → (count, ranges)


@dataclass(eq=False)
class Topic:
    name: str
    uid: str
    keyed: bool
    versioned: bool
    max_ahead_us: int
    forget_us: int
    columns: list[str]
    partitions: list[Partition]
    versions: Counter[str] = field(default_factory=Counter)
    producers: dict[str, Producer] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    retention_us: int | None = None
    retention_bytes: int | None = None
    unread: str = "delete"
    cleanup: str = "delete"
    grace_us: int = 86_400_000_000
    partitions_added: bool = False

    def __repr__(self) -> str:
        return f"<{self.name} {self.uid[:4]}>"

    def value(self, row: Row) -> dict[str, Any]:
        """As it is read now: columns added since are null."""
        return {name: row.value.get(name) for name in self.columns}

    def is_tombstone(self, row: Row) -> bool:
        return all(value is None for name, value in self.value(row).items() if name not in ("k", "at"))

    def needed(self, number: int) -> dict[str, int]:
        """From which offset on each group needs a partition."""
        return {
            name: self.partitions[number].earliest if share.committed is None else share.committed
            for name, group in self.groups.items()
            for share in [group.shares.get(number, Share())]
        }


@dataclass(eq=False)
class Letter:
    """A dead letter."""

    topic: str
    uid: str
    row: Row


@dataclass
class Done:
    ranges: dict[int, range]
    quarantined: int = 0
    duplicate: bool = False


@dataclass
class Intent:
    """One append: to be done, or part of a transaction. `turn`: the partition a row without key goes to, first."""

    topic: Topic
    rows: list[Row]
    expect: dict[str, int] = field(default_factory=dict)
    stamp: tuple[str, int, int] | None = None
    turn: int = 0
    bytes: int = 0


class Log:
    def __init__(self, newest_us: int = 0) -> None:
        self.newest_us = newest_us  # the newest arrival
        self.topics: dict[str, Topic] = {}
        self.letters: list[Letter] = []  # still open
        self.buried: list[Letter] = []  # all there ever were, but those erased

    # -- topics ------------------------------------------------------------------------------------

    def create(self, topic: Topic) -> None:
        if topic.name in self.topics:
            raise Refused(TopicExists)
        self.topics[topic.name] = topic

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise Refused(UnknownTopic)
        return self.topics[name]

    def delete(self, name: str) -> None:
        del self.topics[self.topic(name).name]

    def alive(self, topic: Topic) -> None:
        """A handle is of one topic, not of whatever has its name."""
        if self.topics.get(topic.name) is not topic:
            raise Refused(TopicReplaced)

    # -- appending ---------------------------------------------------------------------------------

    def append(self, intents: list[Intent], now_us: int) -> list[Done]:
        """All or nothing: everything is checked, on a copy of what conditions look at, before anything is written."""
        versions: dict[int, Counter[str]] = {}
        for intent in intents:
            self.alive(intent.topic)
            if intent.stamp is not None and self.repetition(intent) is not None:
                continue
            seen = versions.setdefault(id(intent.topic), Counter(intent.topic.versions))
            for key, version in intent.expect.items():
                if seen[key] != version:
                    raise Refused(VersionConflict)
            seen.update(row.key or "" for row in intent.rows if not ahead(intent.topic, row, now_us))
        return [self.write(intent, now_us) for intent in intents]

    def repetition(self, intent: Intent) -> dict[int, range] | None:
        """The original offsets if this append was made before; None if it is the next one."""
        assert intent.stamp is not None
        name, epoch, sequence = intent.stamp
        producer = intent.topic.producers.setdefault(name, Producer())
        if epoch != producer.epoch:
            raise Refused(ProducerFenced)
        if sequence == producer.sequence:
            return None
        if sequence > producer.sequence:
            raise Refused(OutOfOrderSequence)
        remembered = sorted(producer.known)[-SEQUENCES_REMEMBERED:]
        if sequence < remembered[0]:
            raise Refused(ForgottenSequence)
        count, ranges = producer.known.get(sequence, (-1, {}))
        if count != len(intent.rows):
            raise Refused(OutOfOrderSequence)
        return ranges

    def write(self, intent: Intent, now_us: int) -> Done:
        topic = intent.topic
        if intent.stamp is not None:
            original = self.repetition(intent)
            if original is not None:
                return Done(original, duplicate=True)
        good = [row for row in intent.rows if not ahead(topic, row, now_us)]
        late = [row for row in intent.rows if ahead(topic, row, now_us)]
        self.make_room(topic, intent.bytes, now_us)
        places: dict[int, list[Row]] = {}
        for number, row in enumerate(good):
            places.setdefault(self.place(topic, row, intent.turn + number), []).append(row)
        ranges = {}
        for partition, rows in sorted(places.items()):
            ranges[partition] = self.extend(topic, topic.partitions[partition], rows, now_us)
        topic.versions.update(row.key or "" for row in good)
        aside = [Letter(topic.name, topic.uid, row) for row in late]
        if aside:
            self.arrival(now_us)  # of the letters
        self.letters, self.buried = self.letters + aside, self.buried + aside
        if intent.stamp is not None:
            name, _, sequence = intent.stamp
            producer = topic.producers[name]
            producer.sequence = sequence + len(intent.rows)
            producer.known[sequence] = (len(intent.rows), ranges)
        return Done(ranges, len(late))

    def place(self, topic: Topic, row: Row, turn: int) -> int:
        if topic.keyed:
            return zlib.crc32((row.key or "").encode()) % len(topic.partitions)
        return turn % len(topic.partitions)

    def arrival(self, now_us: int) -> int:
        """Never goes back within the home, whatever the topic."""
        self.newest_us = max(self.newest_us, now_us)
        return self.newest_us

    def extend(self, topic: Topic, partition: Partition, rows: list[Row], now_us: int) -> range:
        """Progress of a record: the largest min(t, a) below it, on the floor at least."""
        base = partition.next
        arrived = self.arrival(now_us)
        progress = partition.progress_us
        if arrived - partition.arrived_us > topic.forget_us:
            others = [p.progress_us for p in topic.partitions if p.progress_us is not None]
            if others:
                progress = largest(progress, max(others) - topic.forget_us)
        before = progress
        for row in rows:
            partition.records.append(Stored(arrived, row.progress_us if row.given else progress, row, before))
            if not row.given:
                progress = largest(progress, None if row.event_us is None else min(row.event_us, arrived))
        for row in rows:
            if row.given:
                progress = largest(progress, row.progress_us)
        partition.arrived_us, partition.progress_us = arrived, progress
        return range(base, partition.next)

    # -- dead letters ------------------------------------------------------------------------------

    def replay(self, number: int, now_us: int, turn: int, size: int = 0) -> Done:
        letter = self.letters[number]
        topic = self.topic(letter.topic)
        if topic.uid != letter.uid:
            raise Refused(TopicReplaced)
        if ahead(topic, letter.row, now_us):
            raise Refused(InvalidArgument)
        row = Row(letter.row.key, letter.row.event_us, letter.row.value)  # given progress is not kept
        done = self.append([Intent(topic, [row], turn=turn, bytes=size)], now_us)[0]
        del self.letters[number]
        return done

    # -- upkeep ------------------------------------------------------------------------------------

    def retain(self, topic: Topic, now_us: int, room: int = 0) -> dict[tuple[str, int], tuple[int, int]]:
        """Batches go from the front, the longest arrived first, while they are too old, or all are too large; to make
        room, only while they are too large. Says which groups have not read what in which partition."""
        needed = [topic.needed(number) for number in range(len(topic.partitions))]
        earliest = [partition.earliest for partition in topic.partitions]
        if topic.retention_us is None and topic.retention_bytes is None:
            return {}
        while True:
            heads = [
                (partition.spans[0].arrived_us, number)
                for number, partition in enumerate(topic.partitions)
                if partition.spans
                and (topic.unread == "delete" or all(partition.spans[0].next <= at for at in needed[number].values()))
            ]
            if not heads:
                break
            arrived_us, number = min(heads)
            old = not room and topic.retention_us is not None and arrived_us < now_us - topic.retention_us
            large = topic.retention_bytes is not None and size_of(topic) + room > topic.retention_bytes
            if not old and not large:
                break
            topic.partitions[number].earliest = topic.partitions[number].spans.pop(0).next
        return {
            (name, number): (at, partition.earliest)
            for number, partition in enumerate(topic.partitions)
            for name, at in needed[number].items()
            if partition.earliest > earliest[number] and at < partition.earliest
        }

    def make_room(self, topic: Topic, size: int, now_us: int) -> None:
        limit = topic.retention_bytes
        if limit is None or size == 0 or size_of(topic) + size <= limit:
            return
        before = [(partition, partition.earliest, list(partition.spans)) for partition in topic.partitions]
        self.retain(topic, now_us, size)
        if topic.unread == "keep" and size_of(topic) and size_of(topic) + size > limit:
            for partition, earliest, spans in before:
                partition.earliest, partition.spans = earliest, spans
            raise Refused(TopicFull)

    def compact(self, topic: Topic, now_us: int) -> int:
        """Of each key the newest stays; a tombstone until its grace is over and all groups have read it."""
        gone = []
        for number, partition in enumerate(topic.partitions):
            newest = {record.row.key: offset for offset, record in partition.held()}
            seen = min(topic.needed(number).values(), default=partition.next)
            for offset, record in partition.held():
                over = record.arrived_us < now_us - topic.grace_us and offset < seen
                if newest[record.row.key] != offset or (topic.is_tombstone(record.row) and over):
                    gone.append(record)
        for record in gone:
            record.gone = True
        return len(gone)

    def erase(self, topic: Topic, key: str | None) -> tuple[int, int]:
        """How many records went, and how many dead letters."""
        self.alive(topic)
        if not topic.keyed:
            raise Refused(InvalidArgument)
        gone = [record for p in topic.partitions for _, record in p.held() if record.row.key == key]
        for record in gone:
            record.gone = True
        erased = [x for x in self.buried if x.uid == topic.uid and x.row.key == key]
        self.buried = [letter for letter in self.buried if letter not in erased]
        self.letters = [letter for letter in self.letters if letter not in erased]
        return len(gone), len(erased)

    # -- groups ------------------------------------------------------------------------------------

    def rebalance(self, topic: Topic, group: Group, now_us: int) -> None:
        for member in [m for m in group.members.values() if m.deadline_us <= now_us]:
            del group.members[member.id]
        numbers = list(range(len(topic.partitions)))
        target = assign(numbers, list(group.members), {n: group.share(n).owner for n in numbers})
        for number in numbers:
            share, owner = group.share(number), target.get(number)
            if share.owner == owner:
                share.wanted_by = None
            elif share.owner not in group.members or (share.wanted_by is not None and share.wanted_until_us <= now_us):
                self.give(share, owner)
            elif share.wanted_by is None:
                share.wanted_by, share.wanted_until_us = owner, now_us + group.members[share.owner].lease_us
            else:
                share.wanted_by = owner

    def give(self, share: Share, owner: str | None) -> None:
        share.owner, share.epoch, share.wanted_by = owner, share.epoch + 1, None

    def join(self, topic: Topic, name: str, member: Member, now_us: int) -> None:
        self.alive(topic)
        group = topic.groups.setdefault(name, Group())
        member.deadline_us, member.held = now_us + member.lease_us, {}
        group.members[member.id] = member
        self.rebalance(topic, group, now_us)
        self.refresh(topic, group, member)

    def beat(self, topic: Topic, name: str, member: Member, now_us: int) -> None:
        group = topic.groups.get(name)
        if self.topics.get(topic.name) is topic and group is not None and member.id in group.members:
            member.deadline_us = now_us + member.lease_us
            self.rebalance(topic, group, now_us)

    def leave(self, topic: Topic, name: str, member: Member, now_us: int) -> None:
        group = topic.groups.get(name)
        if self.topics.get(topic.name) is topic and group is not None:
            group.members.pop(member.id, None)
            self.rebalance(topic, group, now_us)

    def before_poll(self, topic: Topic, name: str, member: Member, id_now: str, now_us: int) -> None:
        """Partitions others wait for are handed over; whoever was put out joins anew, under a new id."""
        self.alive(topic)
        group = topic.groups.get(name)
        if group is None or member.id not in group.members:
            member.id = id_now
            self.join(topic, name, member, now_us)
            return
        for share in group.shares.values():
            if share.owner == member.id and share.wanted_by is not None:
                self.give(share, share.wanted_by)
        self.refresh(topic, group, member)

    def refresh(self, topic: Topic, group: Group, member: Member) -> None:
        held = {}
        for number, share in group.shares.items():
            if share.owner == member.id:
                old = member.held.get(number)
                if old is None or old.epoch != share.epoch:
                    partition = topic.partitions[number]
                    begin = partition.next if member.start == "latest" else partition.earliest
                    first = begin if share.committed is None else share.committed
                    old = Held(share.epoch, first, share.committed, first)
                held[number] = old
        member.held = held

    def commit(self, topic: Topic, name: str, member: Member, upto: tuple[int, int] | None = None) -> None:
        self.check_commit(topic, name, member, upto)
        for number, offset in self.claims(member, upto).items():
            topic.groups[name].share(number).committed = offset
            member.held[number].committed = offset

    def claims(self, member: Member, upto: tuple[int, int] | None) -> dict[int, int]:
        if upto is not None:
            return {upto[0]: upto[1] + 1}
        return {n: held.position for n, held in member.held.items() if held.position != held.committed}

    def check_commit(self, topic: Topic, name: str, member: Member, upto: tuple[int, int] | None = None) -> None:
        live = self.topics.get(topic.name) is topic
        group = topic.groups.get(name, Group()) if live else Group()
        for number, offset in self.claims(member, upto).items():
            share, held = group.shares.get(number, Share()), member.held.get(number)
            if held is not None and offset > held.position:
                raise Refused(InvalidArgument)
            if held is None or share.owner != member.id or share.epoch != held.epoch:
                for each in self.claims(member, upto).keys() & member.held.keys():
                    kept = member.held[each]
                    kept.position = kept.begin if kept.committed is None else kept.committed
                raise Refused(MemberFenced)
            if share.committed is not None and offset < share.committed:
                raise Refused(CommitBackwards)

    def rewind(self, topic: Topic, name: str, offsets: dict[int, int]) -> None:
        self.alive(topic)
        for number, offset in offsets.items():
            if not topic.partitions[number].earliest <= offset <= topic.partitions[number].next:
                raise Refused(OffsetOutOfRange)
        group = topic.groups.setdefault(name, Group())
        for number, offset in offsets.items():
            share = group.share(number)
            share.committed, share.epoch = offset, share.epoch + 1


def ahead(topic: Topic, row: Row, now_us: int) -> bool:
    return row.event_us is not None and row.event_us > now_us + topic.max_ahead_us


def size_of(topic: Topic) -> int:
    return sum(span.bytes for partition in topic.partitions for span in partition.spans)


def largest(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
