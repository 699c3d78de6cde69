"""Queues: deliver messages of a topic to consumers, one by one. Owns the handle that users call, the wait for messages,
and acks. `deliveries` owns the meaning of rows, `receiving` the choice of messages, `burying` the dead letters.

A receive is one transaction, unsynced: after a power loss the messages are delivered again. An ack is one transaction,
as durable as the topic; acks that wait together share one. So a message is never lost, and is delivered twice only if
its ack was not committed. Nothing polls: appends, and rejections that make a message due, wake receivers, and receivers
know when the next visibility runs out."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from headrace.durations import Duration, duration_us
from headrace.errors import HeadraceError, InvalidArgument, LeaseExpired, UnknownQueue, WaitTimeout
from headrace.failpoints import reach
from headrace.log.answering import Answering
from headrace.log.contract import Appended, QueueStats, Record, Start
from headrace.log.embedded.consume import burying, queue_core, windows
from headrace.log.embedded.consume.queue_core import ATTEMPTS, QueueCore
from headrace.log.embedded.consume.receiving import Receiver, look
from headrace.log.embedded.read.reading import Reader, partition_states, start_offset
from headrace.log.embedded.storage import deliveries, retention
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Job, Tx
from headrace.log.embedded.storage.datafiles import Draft
from headrace.log.embedded.storage.deliveries import WAITING, Claim
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import BATCHES, DELIVERIES, QUEUES, QueueRow
from headrace.log.embedded.write.append import Stale
from headrace.log.embedded.write.dead_letters import DeadLetter
from headrace.position import Position

Order = Literal["none", "key"]

VISIBILITY_US = 30_000_000
MAX_DELIVERIES = 5
VISIBILITY_MAX_US = 365 * 86_400_000_000
RECEIVE_MAX = 10_000


@dataclass(slots=True, eq=False)
class Message(Answering):
    """A record that a queue delivered. Call `ack` or `nack` before its visibility runs out, or use `with message:`,
    which acknowledges it, or rejects it if the block raises (the exception is passed on)."""

    topic: str
    partition: int
    offset: int
    arrived_at: datetime
    key: Any
    value: dict[str, Any]
    deliveries: int
    """How often it was handed out, this time included."""
    _lease: int = field(repr=False)
    _hash: int | None = field(repr=False)
    _queue: EmbeddedQueue = field(repr=False)
    answered: bool = field(default=False, repr=False)

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def claim(self) -> Claim:
        """What names this delivery, inside the log."""
        return Claim(self.partition, self.offset, self._lease, self._hash)

    def ack(self) -> None:
        """Acknowledges the message. LeaseExpired if it was delivered to another consumer meanwhile."""
        self._queue.ack([self])

    def nack(self, error: str = "", *, delay: Duration | None = None) -> None:
        """Rejects the message: it is delivered again after `delay`. After `max_deliveries` it becomes a dead letter."""
        self._queue.nack([self], error, delay=delay)

    def extend(self, duration: Duration) -> None:
        """Extends the visibility: no other consumer gets the message for `duration` from now on."""
        self._queue.extend([self], duration)


def mark_answered(messages: Iterable[Message]) -> None:
    """Marks messages whose ack or nack is committed, so that a `with` block around one does nothing more."""
    for message in messages:
        message.answered = True


class EmbeddedQueue:
    """A queue on a topic: delivers each message to one consumer, and again until it is acknowledged."""

    has_stats = True

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._receiver = Receiver(core)
        self._interrupted = False
        self.name = core.name
        self.synced = core.topic.synced

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of topic {self._core.topic.name!r}>"

    # -- what it is --------------------------------------------------------------------------------

    @property
    def visibility(self) -> timedelta:
        """How long a message stays with a consumer that does not acknowledge it."""
        return timedelta(microseconds=self._core.row().visibility)

    @property
    def max_deliveries(self) -> int:
        """After this many deliveries without an ack, a message becomes a dead letter."""
        return self._core.row().max_deliveries

    @property
    def order(self) -> Order:
        """`none`, or `key`: one message of a key at a time, in their order."""
        return "key" if self._core.row().by_key else "none"

    def stats(self) -> QueueStats:
        """The number of messages in each state, the counters, and the age of the oldest message that is not done."""
        core, outlook = self._core, look(self._core)
        queue, states = outlook.queue, outlook.states
        now_us = WAITING - 1 if queue.boot != core.engine.boot else queue_core.now()
        with core.engine.index.snapshot() as db:
            waiting, in_flight, due = db.execute(
                "SELECT total(stop - offset) FILTER (WHERE due = ?1), total(stop - offset) FILTER (WHERE due > ?2 AND "
                "due < ?1), total(stop - offset) FILTER (WHERE due <= ?2) FROM deliveries WHERE queue = ?3",
                (WAITING, now_us, core.id),
            ).fetchone()
            first = "SELECT partition, min(offset) FROM deliveries WHERE queue = ? GROUP BY partition"
            held = dict(db.execute(first, (core.id,)).fetchall())
            oldest = []
            for number, state in states.items():
                at = max(held.get(number, outlook.cursor(number)), state.earliest)
                if at < state.next:
                    where = "WHERE topic = ? AND partition = ? AND base <= ? ORDER BY base DESC LIMIT 1"
                    oldest += [row.arrived for row in BATCHES.select(db, where, core.topic.id, number, at)]
            (dead_open,) = db.execute("SELECT count(*) FROM dead WHERE queue = ?", (core.id,)).fetchone()
        clock_us = core.engine.clock_us()
        return QueueStats(
            ready=sum(state.next - max(outlook.cursor(number), state.earliest) for number, state in states.items()),
            in_flight=int(in_flight),
            waiting=int(waiting),
            due=int(due),
            delivered=queue.delivered,
            redelivered=queue.redelivered,
            acked=queue.acked,
            dead=queue.dead,
            dead_open=dead_open,
            lost=queue.lost + sum(max(0, state.earliest - outlook.cursor(number)) for number, state in states.items()),
            oldest=timedelta(microseconds=max(0, clock_us - min(oldest, default=clock_us))),
        )

    def time_to_loss(self) -> timedelta | None:
        """The time until retention deletes the oldest message that is not done; None if never."""
        return retention.time_to_loss(self._core.engine, self._core.topic_now(), self.name, kind="queue")

    def peek(self, count: int = 10) -> list[Record]:
        """The next messages, without delivering them."""
        _whole_number("count", count)
        core, outlook, topic = self._core, look(self._core), self._core.topic_now()
        queue = outlook.queue
        with core.engine.index.reading() as db:
            due = DELIVERIES.select(
                db,
                "WHERE queue = ? AND due <= ? AND deliveries < ? ORDER BY due",
                core.id,
                WAITING - 1 if queue.boot != core.engine.boot else queue_core.now(),
                queue.max_deliveries,
            )
        out: list[Record] = []
        for row in due:  # records of some may be gone: compacted, or erased
            if len(out) >= count:
                return out
            start = max(row.offset, outlook.states[row.partition].earliest)
            out += Reader(core.engine, core.catalog, topic, row.partition).records(start, row.stop, count - len(out))
        busy: set[int] = set()
        passed = 0
        for number in outlook.fresh:
            reader = Reader(core.engine, core.catalog, topic, number)
            for record in reader.records(outlook.cursor(number), outlook.states[number].next):
                if len(out) >= count or passed >= deliveries.WAITING_MAX:  # behind so many nobody looks
                    return out
                if queue.by_key:
                    key = windows.hash_of(record.key, core.catalog, topic)
                    if key in busy or self._waits(key):
                        passed += 1
                        continue
                    busy.add(key)
                out.append(record)
        return out

    def _waits(self, key: int) -> bool:
        with self._core.engine.index.reading() as db:
            return bool(DELIVERIES.select(db, "WHERE queue = ? AND key = ? LIMIT 1", self._core.id, key))

    # -- receiving ---------------------------------------------------------------------------------

    def receive(self, max: int = 1, wait: Duration | None = None) -> list[Message]:
        """Receives up to `max` messages: first those that are due again, then new ones. With `wait`, it waits that long
        for the first. The messages belong to this caller until their visibility runs out."""
        _whole_number("max", max, RECEIVE_MAX)
        limit = 0.0 if wait is None else duration_us(wait, argument="wait", positive=False) / 1e6
        until = time.monotonic() + limit
        topic, wakes = self._core.topic, self._core.engine.wakes
        while True:
            seen = wakes.count(topic.uid) if limit else 0
            handed, due = self._receiver.receive(max)
            if handed:
                return [Message(topic.name, *each, self) for each in handed]
            left = until - time.monotonic()
            if left <= 0 or self._interrupted:
                return []
            wakes.wait(topic.uid, seen, left if due is None else min(left, (due - queue_core.now()) / 1e6))

    def interrupt(self) -> None:
        """Ends the wait of `receive` on this handle, now and for later calls. For other threads and signal handlers."""
        self._interrupted = True
        self._core.engine.wakes.stir(self._core.topic.uid)

    # -- answering ---------------------------------------------------------------------------------

    def ack(self, messages: Iterable[Message]) -> None:
        """Acknowledges all of them in one transaction. LeaseExpired names one that no longer belongs to this caller;
        then none is acknowledged."""
        mine = self._mine(messages)
        if mine:
            self._core.engine.submit(_Ack(self, list(mine))).result()
            reach("queue.acked")
            mark_answered(mine.values())

    def apply_ack(self, tx: Tx, claims: Iterable[Claim]) -> None:
        """Inside a write transaction; LeaseExpired refuses it."""
        queue = self._core.row_in(tx)
        count = deliveries.finish(tx, queue, claims, queue_core.now())
        QUEUES.change(tx.db, queue._replace(acked=queue.acked + count))
        self._core.freed(tx)

    def nack(self, messages: Iterable[Message], error: str = "", *, delay: Duration | None = None) -> None:
        """Rejects all of them in one transaction: they are delivered again after `delay`. Those that were delivered
        `max_deliveries` times become dead letters with this error."""
        later_us = 0 if delay is None else _span("delay", delay, positive=False)
        if not isinstance(error, str):
            raise InvalidArgument("error", error, "must be text")
        mine = self._mine(messages)
        if not mine:
            return
        for _ in range(ATTEMPTS):
            most = self._core.row().max_deliveries
            counts = {claim: message.deliveries for claim, message in mine.items() if message.deliveries >= most}

            def apply(tx: Tx, most: int = most, counts: Mapping[Claim, int] = counts) -> None:
                queue = self._core.row_in(tx)
                if queue.max_deliveries != most:
                    raise Stale
                again = [claim for claim in mine if claim not in counts]
                deliveries.move(tx, queue, again, queue_core.now() + later_us, keep=False)

            try:
                if counts:
                    burying.bury(self._core, dict.fromkeys(counts, error), counts, apply)
                else:
                    self._core.engine.committer.run(apply, synced=False)
                    reach("queue.nacked")
            except Stale:
                continue
            mark_answered(mine.values())
            return
        raise WaitTimeout(f"queue {self.name!r}, which is altered all the time", 0.0)

    def extend(self, messages: Iterable[Message], duration: Duration) -> None:
        """Extends the visibility of all of them: no other consumer gets them for `duration` from now on."""
        self._move(self._mine(messages), _span("duration", duration), keep=True)

    def give_back(self, messages: Iterable[Message]) -> None:
        """Gives back messages that were not started: others get them at once, and this delivery does not count."""
        mine = self._mine(messages)
        self._move(mine, 0, keep=False)
        mark_answered(mine.values())

    def _move(self, mine: Mapping[Claim, Message], later_us: int, *, keep: bool) -> None:
        def apply(tx: Tx) -> None:
            due_us = queue_core.now() + later_us
            deliveries.move(tx, self._core.row_in(tx), mine, due_us, keep=keep, count=0 if keep else -1)

        if mine:
            self._core.engine.committer.run(apply, synced=False)

    def _mine(self, messages: Iterable[Message]) -> dict[Claim, Message]:
        core = self._core
        core.catalog.check()
        out = {}
        for message in [messages] if isinstance(messages, Message) else messages:
            theirs = message._queue._core if isinstance(message, Message) else None
            if theirs is None or theirs.id != core.id or theirs.engine is not core.engine:
                raise InvalidArgument("messages", message, f"was not received from queue {self.name!r}")
            out[message.claim] = message
        return out

    # -- dead letters, and setting anew ------------------------------------------------------------

    def redrive(self) -> int:
        """Puts the messages of all dead letters of this queue back into it, and removes the letters. Returns their
        number. A letter whose record was deleted from the topic stays."""
        return burying.redrive(self._core)

    def rewind(self, start: Start) -> dict[int, int]:
        """Sets the queue's offsets: "earliest", "latest", a time, or `{partition: offset}` (other partitions stay).
        Deliveries there that are not acknowledged are forgotten: an ack of them is LeaseExpired."""
        core, topic = self._core, self._core.topic_now()
        offsets = {
            number: start_offset(core.engine, core.catalog, topic, state, start)
            for number, state in partition_states(core.engine, topic).items()
            if not isinstance(start, Mapping) or number in start
        }
        if isinstance(start, Mapping) and (unknown := sorted(set(start) - set(offsets))):
            raise InvalidArgument("start", start, f"topic {topic.name!r} has no partition {unknown[0]}")

        def apply(tx: Tx) -> None:
            deliveries.rewind(tx, core.row_in(tx), offsets, queue_core.now())

        core.engine.committer.run(apply, synced=topic.synced)
        return offsets

    def delete(self) -> None:
        """Deletes the queue, its offsets and its deliveries. Its dead letters stay, but cannot be replayed."""

        def apply(tx: Tx) -> None:
            deliveries.forget(tx, self._core.row_in(tx))

        self._core.catalog.check()
        self._core.engine.committer.run(apply, synced=self.synced)


class _Ack:
    """One caller's acks. The acks of a queue that wait together are one statement."""

    frees = True

    def __init__(self, queue: EmbeddedQueue, claims: list[Claim]) -> None:
        self.queue, self.claims = queue, claims
        self.synced = queue.synced

    @property
    def merge_key(self) -> Hashable:
        return "ack", self.queue._core.id

    def combine(self, jobs: Sequence[_Ack]) -> Job:
        return _Acks(jobs)

    def drafts(self) -> list[Draft]:
        raise NotImplementedError

    def apply(self, tx: Tx) -> Any:
        raise NotImplementedError


class _Acks:
    merge_key = None
    frees = True

    def __init__(self, jobs: Sequence[_Ack]) -> None:
        self._jobs = jobs
        self.synced = jobs[0].synced

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        return []

    def apply(self, tx: Tx) -> list[HeadraceError | None]:
        if len(self._jobs) == 1:
            self._jobs[0].queue.apply_ack(tx, self._jobs[0].claims)
            return [None]
        if self._refusal(tx, [claim for job in self._jobs for claim in job.claims]) is None:
            return [None] * len(self._jobs)
        return [self._refusal(tx, job.claims) for job in self._jobs]

    def _refusal(self, tx: Tx, claims: list[Claim]) -> HeadraceError | None:
        """Applies the acks. Returns None, or the error if they are refused; then nothing of them stays."""
        touched = set(tx.touched)
        tx.db.execute("SAVEPOINT acks")
        try:
            self._jobs[0].queue.apply_ack(tx, claims)
        except LeaseExpired as refused:
            tx.db.execute("ROLLBACK TO acks")
            tx.touched = touched
            return refused
        finally:
            tx.db.execute("RELEASE acks")
        return None


# -- opening -----------------------------------------------------------------------------------------


def opened(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    name: str,
    *,
    visibility: Duration | None,
    max_deliveries: int | None,
    order: Order | None,
    start: Start,
    create: bool,
) -> EmbeddedQueue:
    """The queue of that name. It is created if it does not exist; otherwise the given settings are changed."""
    changes: dict[str, Any] = {}
    if visibility is not None:
        changes["visibility"] = _span("visibility", visibility)
    if max_deliveries is not None:
        changes["max_deliveries"] = _whole_number("max_deliveries", max_deliveries)
    if order not in (None, "none", "key"):
        raise InvalidArgument("order", order, "must be 'none' or 'key'")
    if order == "key" and not topic.settings.key:
        raise InvalidArgument("order", order, f"topic {topic.name!r} has no key")
    with engine.index.reading() as db:
        known = {row.name: row for row in QUEUES.select(db, "WHERE topic = ?", topic.id)}
    row = known.get(name)
    if row is None and not create:
        raise UnknownQueue(topic.name, name, list(known))
    if row is None or not _is_so(row, changes, order, topic):
        offsets = {
            number: start_offset(engine, catalog, topic, state, start)
            for number, state in partition_states(engine, topic).items()
            if row is None
        }

        def apply(tx: Tx) -> QueueRow:
            if tx.topic(topic.id) is None or not tx.partitions(topic.id):
                catalog.current(topic.id, topic.name, topic.uid)  # TopicReplaced
            there = QUEUES.select(tx.db, "WHERE topic = ? AND name = ?", topic.id, name)
            if there:
                _is_so(there[0], changes, order, topic)
                QUEUES.change(tx.db, there[0]._replace(**changes))
                return there[0]
            fresh = QueueRow(
                *(None, topic.id, name, VISIBILITY_US, MAX_DELIVERIES, int(order == "key"), engine.boot),
                *(0, 0, 0, 0, 0),
            )._replace(**changes)
            earliest = {state.partition: state.earliest for state in tx.partitions(topic.id)}  # retention may be faster
            return deliveries.begin(tx, fresh, {n: max(at, earliest[n]) for n, at in offsets.items()})

        row = engine.committer.run(apply, synced=topic.synced)
    assert row is not None and row.id is not None
    return EmbeddedQueue(QueueCore(engine, catalog, topic, row.id, name))


def _is_so(row: QueueRow, changes: Mapping[str, int], order: Order | None, topic: TopicState) -> bool:
    """True if the queue has the given settings. Its order cannot be changed."""
    has = "key" if row.by_key else "none"
    if order is not None and order != has:
        why = f"queue {row.name!r} of {topic.name!r} has order {has!r}, for ever: make a queue of another name"
        raise InvalidArgument("order", order, why)
    return all(getattr(row, name) == value for name, value in changes.items())


def replay(queue: int, letter: DeadLetter, engine: Engine, catalog: Catalog, topic: TopicState) -> Appended:
    """A queue's letter: its message goes back into that queue alone. The range is where its record has always been."""
    with engine.index.reading() as db:
        row = QUEUES.get(db, queue)
    if row is None:
        why = f"its queue was deleted ({letter.origin.source}): append the value to {topic.name!r}, or drop the letter"
        raise InvalidArgument("letter", letter.id, why)
    burying.put_back(QueueCore(engine, catalog, topic, queue, row.name), [letter], missing_ok=False)
    partition, offset = letter.origin.partition or 0, letter.origin.offset or 0
    position = Position.of(topic.name, topic.uid, {partition: offset + 1})
    return Appended(position, {partition: range(offset, offset + 1)}, duplicate=True)


def _span(argument: str, value: Duration, *, positive: bool = True) -> int:
    found = duration_us(value, argument=argument, positive=positive)
    if found > VISIBILITY_MAX_US:
        raise InvalidArgument(argument, value, "is too long; at most 365 days")
    return found


def _whole_number(argument: str, value: Any, most: int = 1 << 31) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgument(argument, value, f"must be a whole number from 1 to {most}")
    return value


__all__ = ["EmbeddedQueue", "Message", "Order", "mark_answered", "opened", "replay"]
