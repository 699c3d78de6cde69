"""Consumer groups: members share a topic's partitions and keep their offsets in the log. Owns membership, leases,
hand-over and offsets. Does not know what members do with records.

A member holds a lease and renews it from a thread. A process that finds an expired lease removes the member and shares
its partitions out again. A live member is asked to hand a partition over: it does so at its next poll, when the records
it polled before are done, or loses the partition if it does not within its lease. Every change of owner or offset by
others raises the partition's epoch. A commit names the epoch under which its records were polled, so a member that
slept through its lease can commit nothing. Time is the machine's monotonic clock; a lease of another boot has
expired."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from headrace.durations import Duration, duration_us, from_us
from headrace.errors import (
    Closed,
    CommitBackwards,
    HeadraceError,
    InvalidArgument,
    MemberFenced,
    OffsetOutOfRange,
    TopicReplaced,
    UnknownGroup,
    WaitTimeout,
)
from headrace.failpoints import reach
from headrace.log.contract import Lag, MemberInfo, Record, Start
from headrace.log.embedded.consume.assignment import assign
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import GROUPS, MEMBERS, PARTITIONS, SHARES, GroupRow, MemberRow, ShareRow
from headrace.log.embedded.storage.retention import kind_of, paced, time_to_loss

BEATS_PER_LEASE = 4


def _now() -> int:
    return time.monotonic_ns() // 1000


class EmbeddedGroup:
    """A consumer group of a topic. `name` is its name."""

    def __init__(self, engine: Engine, catalog: Catalog, topic: TopicState, name: str) -> None:
        self._engine, self._catalog, self._topic = engine, catalog, topic
        self.name = name

    def __repr__(self) -> str:
        return f"<group {self.name!r} of topic {self._topic.name!r}>"

    @property
    def flow(self) -> str | None:
        """The flow that this group stands for; None if it is an ordinary group."""
        kind, name = kind_of(self.name)
        return name if kind == "flow" else None

    def join(self, *, lease: Duration = "10 seconds", start: Start = "earliest") -> EmbeddedMember:
        """Joins the group as a new member. `start`: where partitions without a committed offset begin. `lease`: how
        long a member keeps its partitions without a sign of life."""
        self._refuse_flow()
        return EmbeddedMember(self._engine, self._catalog, self._topic, self.name, lease=lease, start=start)

    def committed(self) -> dict[int, int]:
        """The next offset to read, by partition; partitions without a commit are missing."""
        return {row.partition: row.committed for row in self._shares() if row.committed is not None}

    def lag(self) -> dict[int, Lag]:
        """How far the group is behind, in records and in time. Partitions without a commit count from the earliest."""
        from headrace.log.embedded.read.reading import Reader, partition_states

        topic = self._current()
        self._require()
        committed = self.committed()
        now_us = self._engine.clock_us()
        out = {}
        for partition, state in partition_states(self._engine, topic).items():
            at = max(committed.get(partition, state.earliest), state.earliest)
            waited = timedelta(0)
            with contextlib.suppress(OffsetOutOfRange):  # retention has passed it this moment
                oldest = Reader(self._engine, self._catalog, topic, partition).first_arrival(at, state.next)
                waited = timedelta(microseconds=max(0, now_us - (now_us if oldest is None else oldest)))
            out[partition] = Lag(committed.get(partition), state.next, max(0, state.next - at), waited)
        return out

    def time_to_loss(self) -> timedelta | None:
        """The time until retention deletes the oldest record that this group has not read, at its pace and that of its
        producers. None if that does not happen at this pace."""
        topic = self._current()
        self._require()
        kind, name = kind_of(self.name)
        return time_to_loss(self._engine, topic, name, kind=kind)

    def members(self) -> list[MemberInfo]:
        """The members, with their partitions, and whether they are alive."""
        self._catalog.check()
        with self._engine.index.snapshot() as db:
            rows = MEMBERS.select(db, "WHERE topic = ? AND group_name = ? ORDER BY joined", self._topic.id, self.name)
            shares = SHARES.select(db, "WHERE topic = ? AND group_name = ?", self._topic.id, self.name)
        return [
            MemberInfo(
                row.member,
                row.host,
                row.pid,
                tuple(share.partition for share in shares if share.member == row.member),
                from_us(row.joined),
                alive=_alive(row, self._engine.boot, _now()),
            )
            for row in rows
        ]

    def wait(
        self, *, members: int | None = None, lag: int | None = None, timeout: Duration = "1 minute"
    ) -> tuple[int, int]:
        """Waits until `members` live members have all the partitions, and at most `lag` records are unread. Returns
        both numbers, or raises WaitTimeout. It polls ten times a second, because changes of offsets and leases wake
        nobody."""
        limit = duration_us(timeout, argument="timeout", positive=False) / 1e6
        until = time.monotonic() + limit
        while True:
            alive, unread = self._standing()
            if (members is None or alive == members) and (lag is None or 0 <= unread <= lag):
                return alive, unread
            if time.monotonic() >= until:
                now = f"now {alive} members, lag {unread}" if unread >= 0 else "there is none of this name yet"
                raise WaitTimeout(f"group {self.name!r} ({now})", limit)
            time.sleep(0.1)

    def _standing(self) -> tuple[int, int]:
        """The number of live members (-1 while a partition has no owner or is being handed over) and of unread records
        (-1 if unknown)."""
        try:
            unread = sum(part.records for part in self.lag().values())
        except UnknownGroup:
            return 0, -1
        shares = self._shares()
        alive = {member.member for member in self.members() if member.alive}
        settled = all((share.member in alive or not alive) and share.wanted_by is None for share in shares)
        return len(alive) if settled else -1, unread

    def rewind(self, start: Start) -> dict[int, int]:
        """Sets the group's offsets: "earliest", "latest", a time, or `{partition: offset}` (others stay). Members
        continue from there at their next poll; they can no longer commit what they polled before."""
        from headrace.log.embedded.read.reading import partition_states, start_offset

        self._refuse_flow()
        topic = self._current()
        offsets = {
            partition: start_offset(self._engine, self._catalog, topic, state, start)
            for partition, state in partition_states(self._engine, topic).items()
            if not isinstance(start, Mapping) or partition in start
        }
        if isinstance(start, Mapping) and (unknown := sorted(set(start) - set(offsets))):
            raise InvalidArgument("start", start, f"topic {topic.name!r} has no partition {unknown[0]}")

        def apply(tx: Tx) -> None:
            _register(tx, topic, self.name)
            for partition, offset in offsets.items():
                share = _share(tx.db, topic.id, self.name, partition)
                unpaced = share._replace(marked=0, marked_offset=0, before=0, before_offset=0)  # it has not read them
                SHARES.put(tx.db, unpaced._replace(committed=offset, epoch=share.epoch + 1))
            tx.touched.add(topic.uid)

        self._engine.committer.run(apply, synced=topic.synced)
        return offsets

    def _refuse_flow(self) -> None:
        if self.flow is not None:
            raise InvalidArgument(
                "group",
                self.name,
                f"is the flow {self.flow!r}, whose place is beside its results: to have it read again, drop what it "
                f"made (headrace views drop {self.flow})",
            )

    def delete(self) -> None:
        """Deletes the group and its offsets; live members are fenced."""
        topic = self._current()
        self._require()

        def apply(tx: Tx) -> None:
            GROUPS.delete(tx.db, "WHERE topic = ? AND name = ?", topic.id, self.name)
            for table in (SHARES, MEMBERS):
                table.delete(tx.db, "WHERE topic = ? AND group_name = ?", topic.id, self.name)
            tx.touched.add(topic.uid)

        self._engine.committer.run(apply, synced=topic.synced)

    def _current(self) -> TopicState:
        self._catalog.check()
        return self._catalog.current(self._topic.id, self._topic.name, self._topic.uid)

    def _shares(self) -> list[ShareRow]:
        self._catalog.check()
        with self._engine.index.reading() as db:
            return SHARES.select(db, "WHERE topic = ? AND group_name = ? ORDER BY partition", self._topic.id, self.name)

    def _require(self) -> None:
        with self._engine.index.reading() as db:
            if GROUPS.get(db, self._topic.id, self.name) is None:
                known = [row.name for row in GROUPS.select(db, "WHERE topic = ?", self._topic.id)]
                raise UnknownGroup(topic=self._topic.name, group=self.name, known=known)


@dataclass(slots=True)
class _Held:
    """A member's view of one of its partitions."""

    epoch: int
    position: int  # the next offset to poll
    committed: int | None
    begin: int  # where it goes back to while nothing is committed


Claims = dict[int, tuple[str, int, int]]
"""What is to be committed, by partition: the member and the epoch it was polled under, and the offset."""


class EmbeddedMember:
    """One consumer of a group: polls records of its partitions, and commits their offsets. `id` is its name."""

    def __init__(
        self, engine: Engine, catalog: Catalog, topic: TopicState, group: str, *, lease: Duration, start: Start
    ) -> None:
        self._engine, self._catalog, self._topic, self._group = engine, catalog, topic, group
        self._lease_us = duration_us(lease, argument="lease")
        self._start = start
        self._held: dict[int, _Held] = {}
        self._turn = 0
        self._lock = threading.RLock()
        self._closed = False
        self.id = ""
        self.synced = topic.synced
        try:
            self._join()
        except BaseException:
            if self.id:  # in the group already, but it does not know where to begin
                self._leave()
            raise
        _beats(engine).add(self)

    def __repr__(self) -> str:
        return f"<member {self.id} of group {self._group!r}, partitions {list(self.partitions)}>"

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of this member, as of its last poll."""
        return tuple(sorted(self._held))

    @property
    def lease_us(self) -> int:
        return self._lease_us

    # -- joining, living, leaving ------------------------------------------------------------------

    def _join(self) -> None:
        member = uuid.uuid4().hex[:16]
        self._catalog.check()

        def apply(tx: Tx) -> None:
            _register(tx, self._topic, self._group)
            row = MemberRow(
                self._topic.id,
                self._group,
                member,
                socket.gethostname(),
                os.getpid(),
                self._engine.boot,
                self._lease_us,
                _now() + self._lease_us,
                tx.now_us,
            )
            MEMBERS.put(tx.db, row)
            rebalance(tx, self._topic, self._group, self._engine.boot)

        self._engine.committer.run(apply, synced=False)
        reach("member.joined")
        self.id = member
        self._held = {}
        self._refresh()

    def beat(self) -> None:
        """Renews the lease, and checks the group: expired leases of others, and hand-overs that are due."""

        def apply(tx: Tx) -> None:
            row = MEMBERS.get(tx.db, self._topic.id, self._group, self.id)
            if row is None:
                return  # put out: the next poll joins anew
            MEMBERS.put(tx.db, row._replace(deadline=_now() + self._lease_us))
            rebalance(tx, self._topic, self._group, self._engine.boot)

        self._catalog.check()
        self._engine.committer.run(apply, synced=False)

    def close(self) -> None:
        """Leaves the group; its partitions go to the others at once. Records that are not committed will be read
        again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._engine.wakes.stir(self._topic.uid)  # whoever waits in a poll finds out now
            _beats(self._engine).remove(self)
            with contextlib.suppress(Closed):  # the log is closed, or the parent process's: the lease will run out
                self._engine.check()
                self._leave()

    def _leave(self) -> None:
        def apply(tx: Tx) -> None:
            MEMBERS.delete(
                tx.db, "WHERE topic = ? AND group_name = ? AND member = ?", self._topic.id, self._group, self.id
            )
            rebalance(tx, self._topic, self._group, self._engine.boot)

        self._engine.committer.run(apply, synced=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- reading -----------------------------------------------------------------------------------

    def poll(self, timeout: Duration = "1 second", max_records: int = 500) -> list[Record]:
        """Returns the next records of this member's partitions; waits up to `timeout` for the first. A poll means that
        the records polled before are done, so partitions that others wait for are handed over here."""
        limit = duration_us(timeout, argument="timeout", positive=False) / 1e6
        if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
            raise InvalidArgument("max_records", max_records, "must be 1 or more")
        until = time.monotonic() + limit
        while True:
            with self._lock:
                self._check()
                seen = self._engine.wakes.count(self._topic.uid)
                self._refresh(hand_over=True)
                found = self._fetch(max_records)
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            self._engine.wakes.wait(self._topic.uid, seen, left)  # without the lock: another thread may close or commit

    def _check(self) -> None:
        if self._closed:
            raise Closed(what=f"the member {self.id}")
        self._catalog.check()

    def _refresh(self, *, hand_over: bool = False) -> None:
        """Looks up which partitions this member has now, and their offsets."""
        with self._engine.index.snapshot() as db:
            alive = MEMBERS.get(db, self._topic.id, self._group, self.id) is not None
            shares = SHARES.select(
                db, "WHERE topic = ? AND group_name = ? AND member = ?", self._topic.id, self._group, self.id
            )
        if not alive and hand_over:
            self._join()
            return
        wanted = [share.partition for share in shares if share.wanted_by is not None]
        if wanted and hand_over:
            self._hand_over(wanted)
            shares = [share for share in shares if share.partition not in wanted]
        fresh: dict[int, _Held] = {}
        for share in shares:
            held = self._held.get(share.partition)
            if held is None or held.epoch != share.epoch:
                begin = self._begin(share)
                held = _Held(share.epoch, begin, share.committed, begin)
            fresh[share.partition] = held
        self._held = fresh

    def _begin(self, share: ShareRow) -> int:
        if share.committed is not None:
            return share.committed
        from headrace.log.embedded.read.reading import partition_state, start_offset

        topic = self._catalog.current(self._topic.id, self._topic.name, self._topic.uid)
        state = partition_state(self._engine, topic, share.partition)
        return start_offset(self._engine, self._catalog, topic, state, self._start)

    def _hand_over(self, partitions: list[int]) -> None:
        def apply(tx: Tx) -> None:
            for partition in partitions:
                share = _share(tx.db, self._topic.id, self._group, partition)
                if share.member == self.id and share.wanted_by is not None:
                    _give(tx, share, share.wanted_by)
            tx.touched.add(self._topic.uid)

        reach("member.handing_over")
        self._engine.committer.run(apply, synced=False)
        reach("member.handed_over")

    def _fetch(self, max_records: int) -> list[Record]:
        from headrace.log.embedded.read.reading import Reader, check_range, partition_states

        topic = self._catalog.current(self._topic.id, self._topic.name, self._topic.uid)
        states = partition_states(self._engine, topic)
        mine = sorted(self._held)
        out: list[Record] = []
        reached: dict[int, int] = {}
        turn, self._turn = self._turn, self._turn + 1
        for step in range(len(mine)):  # begin with another partition each time: none starves
            partition = mine[(turn + step) % len(mine)]
            begin, state = self._held[partition].position, states.get(partition)
            if state is None:
                raise TopicReplaced(topic=topic.name, topic_id=topic.uid)
            room = max_records - len(out)
            if room <= 0:
                break
            reader = Reader(self._engine, self._catalog, topic, partition)
            try:
                check_range(topic, state, begin)
                found = list(reader.records(begin, state.next, room))
                out += found
                reached[partition] = found[-1].offset + 1 if len(found) == room else state.next
            except HeadraceError:
                if not out:  # said when there is nothing else to hand out: what is whole goes on
                    raise
        for partition, position in reached.items():  # only now: records of a poll that failed were not handed out
            self._held[partition].position = position
        return out

    # -- committing --------------------------------------------------------------------------------

    def claims(self) -> Claims:
        """What `commit` would commit: the offset behind the last polled record, for each partition where it has
        changed."""
        with self._lock:
            return {
                partition: (self.id, held.epoch, held.position)
                for partition, held in self._held.items()
                if held.position != held.committed
            }

    def commit(self, upto: Record | None = None) -> None:
        """Commits the records that were polled; with `upto`, only those of its partition, up to and including that
        record. MemberFenced if partitions were taken, rewound or reassigned since they were polled: then nothing is
        committed, and the records of partitions that this member still has are polled again.

        It is not synced: a power loss may take the last commits, and their records are then polled again, as after a
        crash before a commit. In a transaction (`tx.commit(member)`) offsets are as durable as its appends."""
        with self._lock:
            self._check()
            claims = self.claims() if upto is None else self._claim(upto)
            if not claims:
                return
            try:
                self._engine.committer.run(lambda tx: self.apply_commit(tx, claims), synced=False)
            except MemberFenced:
                self.refused(claims)
                raise
            reach("member.committed")
            self.committed(claims)

    def _claim(self, upto: Record) -> Claims:
        held = self._held.get(upto.partition)
        if held is None:
            return {upto.partition: (self.id, -1, upto.offset + 1)}  # ours no more: refused with the facts
        if upto.topic != self._topic.name or upto.offset >= held.position:
            where = f"{upto.topic}/{upto.partition} offset {upto.offset}"
            raise InvalidArgument("upto", where, f"this member has not polled it from {self._topic.name!r}")
        return {upto.partition: (self.id, held.epoch, upto.offset + 1)}

    def apply_commit(self, tx: Tx, claims: Claims) -> None:
        """Inside a write transaction: checks ownership, then sets the offsets."""
        lost: list[int] = []
        for partition, (member, epoch, offset) in claims.items():
            share = _share(tx.db, self._topic.id, self._group, partition)
            if share.member != member or share.epoch != epoch:
                lost.append(partition)
                continue
            if share.committed is not None and offset < share.committed:
                raise CommitBackwards(self._topic.name, self._group, partition, share.committed, offset)
            state = PARTITIONS.get(tx.db, self._topic.id, partition)
            if state is None:
                raise TopicReplaced(topic=self._topic.name, topic_id=self._topic.uid)
            SHARES.put(tx.db, paced(share, offset, tx.now_us)._replace(committed=offset))
        if self._topic.settings.unread == "keep":  # there may be room for those who wait for it
            tx.touched.add(self._topic.uid)
        if lost:
            raise MemberFenced(
                self._topic.name,
                self._group,
                self.id,
                sorted(lost),
                "they were taken over, handed over or rewound since they were polled",
            )

    def refused(self, claims: Claims) -> None:
        """Called after a commit failed because another partition was lost: no record of this one may be skipped."""
        with self._lock:
            for partition, (_, epoch, _) in claims.items():
                held = self._held.get(partition)
                if held is not None and held.epoch == epoch:
                    held.position = held.begin if held.committed is None else held.committed

    def committed(self, claims: Claims) -> None:
        """After the commit."""
        with self._lock:
            for partition, (_, epoch, offset) in claims.items():
                held = self._held.get(partition)
                if held is not None and held.epoch == epoch:
                    held.committed = offset


# -- inside a write transaction ----------------------------------------------------------------------


def _register(tx: Tx, topic: TopicState, group: str) -> None:
    row = tx.topic(topic.id)
    if row is None or row.name is None:
        raise TopicReplaced(topic=topic.name, topic_id=topic.uid)
    if GROUPS.get(tx.db, topic.id, group) is None:
        GROUPS.put(tx.db, GroupRow(topic.id, group, 0))


def _share(db: sqlite3.Connection, topic: int, group: str, partition: int) -> ShareRow:
    found = SHARES.get(db, topic, group, partition)
    return found or ShareRow(topic, group, partition, None, 0, None, None, 0, 0, 0, 0, 0)


def _alive(row: MemberRow, boot: str, now: int) -> bool:
    return row.boot == boot and row.deadline > now


def _give(tx: Tx, share: ShareRow, member: str | None) -> None:
    SHARES.put(tx.db, share._replace(member=member, epoch=share.epoch + 1, wanted_by=None, wanted_until=0))


def rebalance(tx: Tx, topic: TopicState, group: str, boot: str) -> None:
    """Removes expired members and assigns partitions: free ones at once, held ones by asking their member."""
    now = _now()
    members = {row.member: row for row in MEMBERS.select(tx.db, "WHERE topic = ? AND group_name = ?", topic.id, group)}
    for row in [row for row in members.values() if not _alive(row, boot, now)]:
        MEMBERS.delete(tx.db, "WHERE topic = ? AND group_name = ? AND member = ?", topic.id, group, row.member)
        del members[row.member]
        reach("member.evicted")
    numbers = [state.partition for state in tx.partitions(topic.id)]
    shares = {number: _share(tx.db, topic.id, group, number) for number in numbers}
    target = assign(numbers, list(members), {number: share.member for number, share in shares.items()})
    changed = False
    for number, share in shares.items():
        owner = target.get(number)
        if share.member == owner:
            if share.wanted_by is not None:
                SHARES.put(tx.db, share._replace(wanted_by=None, wanted_until=0))
        elif (
            share.member is None
            or share.member not in members
            or (share.wanted_by is not None and share.wanted_until <= now)
        ):
            _give(tx, share, owner)
            changed = True
        elif share.wanted_by != owner:
            until = share.wanted_until if share.wanted_by is not None else now + members[share.member].lease
            SHARES.put(tx.db, share._replace(wanted_by=owner, wanted_until=until))
            changed = True
    if changed:
        known = GROUPS.get(tx.db, topic.id, group)
        GROUPS.put(tx.db, GroupRow(topic.id, group, (known.generation if known else 0) + 1))
        tx.touched.add(topic.uid)


# -- signs of life -----------------------------------------------------------------------------------


class _Beats:
    """One thread per engine that renews the leases of its members."""

    def __init__(self) -> None:
        self._members: dict[EmbeddedMember, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, member: EmbeddedMember) -> None:
        with self._changed:
            self._members[member] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, member: EmbeddedMember) -> None:
        with self._changed:
            self._members.pop(member, None)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._members:
                    if not self._changed.wait(timeout=30) and not self._members:
                        self._thread = None
                        return
                    continue
                due = {m: last + m.lease_us / 1e6 / BEATS_PER_LEASE for m, last in self._members.items()}
                first = min(due.values()) - time.monotonic()
                if first > 0:
                    self._changed.wait(timeout=first)
                    continue
                ready = [member for member, when in due.items() if when <= time.monotonic()]
                for member in ready:
                    self._members[member] = time.monotonic()
            for member in ready:
                try:
                    member.beat()
                except Closed:
                    self.remove(member)
                except HeadraceError:  # the disk is full, say: the lease then runs out, as it should
                    continue


_all_beats: weakref.WeakKeyDictionary[Any, _Beats] = weakref.WeakKeyDictionary()
_all_beats_lock = threading.Lock()


def _beats(engine: Engine) -> _Beats:
    with _all_beats_lock:
        return _all_beats.setdefault(engine, _Beats())
