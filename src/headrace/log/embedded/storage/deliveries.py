"""What becomes of a queue's messages, inside a write transaction: handed out, answered, buried, put back. Owns the
rows of `queues`, `cursors` and `deliveries`, and what must be true of them. Knows neither Arrow nor threads; the clock
is an argument.

    a message at or behind its partition's cursor      has not been handed out; no row holds it
    a message below the cursor                         is held by one row until it is done (acknowledged, buried, gone)
    a row with `due` in the future                     is with a consumer, who names it by the row's `lease`
    a row with `due` in the past                       is to be handed out (again); after too many times, to be buried
    a row with `due` WAITING (order="key")             waits: of the rows of a key, all but one do

A row holds neighbours that were handed out together, and is cut when they are answered apart: a batch that is received
and acknowledged costs two rows, whatever its size. All of it changes in the transactions that say so, and in no other
way: a crash leaves a message with its consumer until its visibility has run out, and nothing else. Times are of the
machine's monotonic clock; when the machine was restarted since, everything that was with a consumer is due at once."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError, LeaseExpired, TopicReplaced
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.index import (
    CURSORS,
    DELIVERIES,
    PARTITIONS,
    QUEUES,
    CursorRow,
    DeliveryRow,
    PartitionRow,
    QueueRow,
)

if TYPE_CHECKING:
    from headrace.log.embedded.consume.windows import Window

WAITING = 1 << 62
"""Later than any time: the row waits for another one of its key."""
WAITING_MAX = 10_000
"""So many messages of a queue may wait for others of their keys; then no new ones are looked at."""
WAITING_STEP = 1_000
"""So many are set waiting in one transaction: others want to write, too."""


class Claim(NamedTuple):
    """What a consumer answers with: the delivery it means."""

    partition: int
    offset: int
    lease: int
    key: int | None


@dataclass(slots=True)
class Taken:
    """What one receive got: deliveries of earlier times, places in windows, and what was found on the way."""

    lease: int = 0
    again: list[DeliveryRow] = field(default_factory=list)
    fresh: list[tuple[int, Window, Sequence[int]]] = field(default_factory=list)
    exhausted: list[DeliveryRow] = field(default_factory=list)
    missing: bool = False  # a partition has more, but not in the window
    moved: bool = False  # a cursor has


@dataclass(eq=False, repr=False)
class NothingTaken(HeadraceError):
    """Refuses the transaction of a receive that changed nothing."""

    taken: Taken


def current(tx: Tx, queue: int, boot: str) -> QueueRow | None:
    """The queue; its deliveries are of this boot's clock afterwards. None: it was deleted."""
    row = QUEUES.get(tx.db, queue)
    if row is None or row.boot == boot:
        return row
    for held in DELIVERIES.select(tx.db, "WHERE queue = ? AND due < ?", queue, WAITING):
        DELIVERIES.change(tx.db, held._replace(due=0))
    row = row._replace(boot=boot)
    QUEUES.change(tx.db, row)
    return row


def cursor_of(db: sqlite3.Connection, queue: int | None, partition: int) -> int:
    """The next offset to hand out; a partition added since the queue was made begins at its first."""
    row = CURSORS.get(db, queue, partition)
    return row.next if row else 0


# -- handing out -------------------------------------------------------------------------------------


def take(
    tx: Tx, queue: QueueRow, windows: Mapping[int, Window], partitions: Sequence[int], count: int, now_us: int
) -> Taken:
    """Up to `count` messages: those that are due first, then new ones of the partitions, in this order."""
    assert queue.id is not None
    taken = Taken(lease=secrets.randbits(63) | 1)
    until = now_us + queue.visibility
    redelivered = _take_due(tx, queue, taken, count, until, now_us)
    room = count - sum(row.stop - row.offset for row in taken.again)
    new: list[DeliveryRow] = []
    keys = _Keys(tx.db, queue) if queue.by_key and room else None
    for partition in partitions if room else ():
        state = _state(tx, queue, partition)
        cursor = cursor_of(tx.db, queue.id, partition)
        if not state.earliest <= cursor < state.next:
            continue
        window = windows.get(partition)
        if window is None or not window.fits(cursor, state):
            taken.missing = True
            continue
        begin = window.first(cursor)
        found: Sequence[int]
        if keys is None:
            end = min(begin + room, len(window.offsets))
            found = range(begin, end)
            for start, stop in window.runs(begin, end):
                new.append(DeliveryRow(queue.id, partition, start, stop, 1, until, taken.lease, None))
        else:
            found, waiting, end = keys.sorted_out(window, begin, room)
            for place in sorted([*found, *waiting]):
                offset, key = int(window.offsets[place]), (window.hashes or [])[place]
                how = (0, WAITING, 0) if place in waiting else (1, until, taken.lease)
                new.append(DeliveryRow(queue.id, partition, offset, offset + 1, *how, key))
        reached = window.stop if end == len(window.offsets) else int(window.offsets[end])
        if reached > cursor:
            CURSORS.put(tx.db, CursorRow(queue.id, partition, reached))
            taken.moved = True
        if found:
            taken.fresh.append((partition, window, found))
            room -= len(found)
            if not room:
                break
        elif cursor < reached < state.next:
            taken.missing = True  # all of it waits, or is gone: there is more behind
    if not taken.again and not taken.moved:
        raise NothingTaken(taken)
    DELIVERIES.add_all(tx.db, new)
    counted = {"delivered": queue.delivered + count - room, "redelivered": queue.redelivered + redelivered}
    QUEUES.change(tx.db, queue._replace(**counted))  # type: ignore[arg-type]
    return taken


def _take_due(tx: Tx, queue: QueueRow, taken: Taken, count: int, until: int, now_us: int) -> int:
    """Those to be delivered again, or at last; how many were delivered before."""
    redelivered = 0
    where = "WHERE queue = ? AND due <= ? ORDER BY due, partition, offset LIMIT ?"
    for row in DELIVERIES.select(tx.db, where, queue.id, now_us, count):
        if row.deliveries >= queue.max_deliveries:
            taken.exhausted.append(row)
            continue
        part = row._replace(stop=min(row.stop, row.offset + count))
        if part.stop < row.stop:
            DELIVERIES.add(tx.db, row._replace(offset=part.stop))
        part = part._replace(deliveries=row.deliveries + 1, due=until, lease=taken.lease)
        DELIVERIES.change(tx.db, part)
        taken.again.append(part)
        count -= part.stop - part.offset
        redelivered += part.stop - part.offset if row.deliveries else 0
        if not count:
            break
    return redelivered


class _Keys:
    """Which keys have a message that is not done: another one of theirs has to wait."""

    def __init__(self, db: sqlite3.Connection, queue: QueueRow) -> None:
        self._db, self._queue = db, queue.id
        self._busy: set[int] = set()
        (waiting,) = db.execute(
            "SELECT count(*) FROM deliveries WHERE queue = ? AND due = ?", (queue.id, WAITING)
        ).fetchone()
        self._room = WAITING_MAX - waiting

    def sorted_out(self, window: Window, begin: int, room: int) -> tuple[list[int], set[int], int]:
        """Places in the window: `room` of those that may go, those before them that have to wait, where to go on."""
        assert window.hashes is not None
        go: list[int] = []
        wait: set[int] = set()
        for place in range(begin, len(window.hashes)):
            key = window.hashes[place]
            waits = key in self._busy or _has_rows(self._db, self._queue, key)
            if len(go) == room or (waits and (not self._room or len(wait) == WAITING_STEP)):
                return go, wait, place
            self._busy.add(key)
            if waits:
                wait.add(place)
                self._room -= 1
            else:
                go.append(place)
        return go, wait, len(window.hashes)


def _has_rows(db: sqlite3.Connection, queue: int | None, key: int) -> bool:
    found = db.execute("SELECT 1 FROM deliveries WHERE queue = ? AND key = ? LIMIT 1", (queue, key))
    return found.fetchone() is not None


def _state(tx: Tx, queue: QueueRow, partition: int) -> PartitionRow:
    state = PARTITIONS.get(tx.db, queue.topic, partition)
    if state is None:
        raise TopicReplaced(topic=f"of queue {queue.name!r}", topic_id="")
    return state


# -- answers -----------------------------------------------------------------------------------------


def finish(tx: Tx, queue: QueueRow, claims: Iterable[Claim], now_us: int) -> int:
    """The messages are done: no row holds them any more, and the next ones of their keys may go. How many there were;
    LeaseExpired refuses all. The caller counts them, and writes the queue's row."""
    rows = _cut(tx, queue, claims)
    release(tx, queue, {row.key for row in rows if row.key is not None}, now_us)
    return sum(row.stop - row.offset for row in rows)


def move(tx: Tx, queue: QueueRow, claims: Iterable[Claim], due_us: int, *, keep: bool, count: int = 0) -> None:
    """Other times for deliveries. `keep`: they stay with their consumer; else this answer was the last. `count` is
    added to how often they were delivered. LeaseExpired refuses all."""
    rows = _cut(tx, queue, claims)
    how = {"due": due_us} if keep else {"due": due_us, "lease": 0}
    DELIVERIES.add_all(tx.db, [row._replace(deliveries=max(0, row.deliveries + count), **how) for row in rows])
    if rows and not keep:
        _touch(tx, queue)


def holding(db: sqlite3.Connection, queue: int | None, partition: int, start: int, stop: int) -> list[DeliveryRow]:
    """The rows that hold something of [start, stop), in order."""
    return DELIVERIES.select(
        db,
        "WHERE queue = ?1 AND partition = ?2 AND stop > ?3 AND offset < ?4 AND offset >= coalesce((SELECT max(offset) "
        "FROM deliveries WHERE queue = ?1 AND partition = ?2 AND offset <= ?3), ?3) ORDER BY offset",
        queue,
        partition,
        start,
        stop,
    )


def _cut(tx: Tx, queue: QueueRow, claims: Iterable[Claim]) -> list[DeliveryRow]:
    """Takes what is claimed out of the rows, and returns it as rows; what lies beside it stays."""
    runs: list[list[int]] = []
    for partition, lease, offset in sorted({(claim.partition, claim.lease, claim.offset) for claim in claims}):
        last = runs[-1] if runs else None
        if last is not None and (last[0], last[1], last[3]) == (partition, lease, offset):
            last[3] += 1
        else:
            runs.append([partition, lease, offset, offset + 1])
    out: list[DeliveryRow] = []
    for partition, lease, start, stop in runs:
        at = start
        for row in holding(tx.db, queue.id, partition, start, stop):
            if row.offset > at or row.lease != lease:
                break
            at = min(row.stop, stop)
            out.append(row._replace(offset=max(row.offset, start), stop=at))
            if row.offset < start:
                DELIVERIES.change(tx.db, row._replace(stop=start))
            else:
                DELIVERIES.delete(tx.db, "WHERE queue = ? AND partition = ? AND offset = ?", *row[:3])
            if row.stop > stop:
                DELIVERIES.add(tx.db, row._replace(offset=stop))
        if at < stop:
            topic = tx.topic(queue.topic)
            raise LeaseExpired((topic and topic.name) or "", queue.name, partition, at)
    return out


def release(tx: Tx, queue: QueueRow, keys: Iterable[int], now_us: int) -> None:
    """After rows of these keys went: where none is left that does not wait, the first one is due now."""
    for key in keys:
        for row in DELIVERIES.select(
            tx.db, "WHERE queue = ? AND key = ? ORDER BY due, partition, offset LIMIT 1", queue.id, key
        ):
            if row.due == WAITING:
                DELIVERIES.change(tx.db, row._replace(due=now_us))
                _touch(tx, queue)


def _touch(tx: Tx, queue: QueueRow) -> None:
    """Whoever waits for a message looks again."""
    row = tx.topic(queue.topic)
    if row is not None:
        tx.touched.add(row.uid)


# -- beginning, putting back, setting anew -----------------------------------------------------------


def begin(tx: Tx, queue: QueueRow, offsets: Mapping[int, int]) -> QueueRow:
    """A new queue; the row with its id."""
    made = QUEUES.add(tx.db, queue)
    CURSORS.add_all(tx.db, [CursorRow(made, partition, offset) for partition, offset in offsets.items()])
    return queue._replace(id=made)


def put_back(tx: Tx, queue: QueueRow, partition: int, offset: int, key: int | None, now_us: int) -> None:
    """A message that was done is to be delivered again, as if for the first time. One that a row holds, or that the
    cursor has yet to reach, comes anyway."""
    assert queue.id is not None
    if offset >= cursor_of(tx.db, queue.id, partition) or holding(tx.db, queue.id, partition, offset, offset + 1):
        return
    waits = key is not None and _has_rows(tx.db, queue.id, key)
    due_us = WAITING if waits else now_us
    DELIVERIES.add(tx.db, DeliveryRow(queue.id, partition, offset, offset + 1, 0, due_us, 0, key))
    _touch(tx, queue)


def rewind(tx: Tx, queue: QueueRow, offsets: Mapping[int, int], now_us: int) -> None:
    """Sets cursors and forgets deliveries of these partitions. What retention took meanwhile is counted now."""
    assert queue.id is not None
    lost = 0
    for partition, offset in offsets.items():
        lost += max(0, _state(tx, queue, partition).earliest - cursor_of(tx.db, queue.id, partition))
        held = DELIVERIES.select(tx.db, "WHERE queue = ? AND partition = ?", queue.id, partition)
        DELIVERIES.delete(tx.db, "WHERE queue = ? AND partition = ?", queue.id, partition)
        CURSORS.put(tx.db, CursorRow(queue.id, partition, offset))
        release(tx, queue, {row.key for row in held if row.key is not None}, now_us)
    QUEUES.change(tx.db, queue._replace(lost=queue.lost + lost))
    _touch(tx, queue)


def lose(tx: Tx, topic: int, partition: int, earliest: int) -> None:
    """Retention has deleted the records below: messages that were not done are lost, and counted."""
    for queue in QUEUES.select(tx.db, "WHERE topic = ?", topic):
        where = "WHERE queue = ? AND partition = ? AND offset < ? ORDER BY offset"
        held = DELIVERIES.select(tx.db, where, queue.id, partition, earliest)
        if not held:
            continue
        DELIVERIES.delete(tx.db, "WHERE queue = ? AND partition = ? AND offset < ?", queue.id, partition, earliest)
        if held[-1].stop > earliest:
            DELIVERIES.add(tx.db, held[-1]._replace(offset=earliest))
        lost = sum(min(row.stop, earliest) - row.offset for row in held)
        QUEUES.change(tx.db, queue._replace(lost=queue.lost + lost))
        release(tx, queue, {row.key for row in held if row.key is not None}, 0)


def forget(tx: Tx, queue: QueueRow) -> None:
    """The queue is no more. Its dead letters stay, to be read and dropped."""
    for table in (CURSORS, DELIVERIES):
        table.delete(tx.db, "WHERE queue = ?", queue.id)
    QUEUES.delete(tx.db, "WHERE id = ?", queue.id)
    _touch(tx, queue)
