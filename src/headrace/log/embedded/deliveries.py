"""What becomes of a queue's messages, inside a write transaction: handed out, answered, buried, put back. Owns the
rows of `queues`, `cursors` and `deliveries`, and what must be true of them. Knows neither Arrow nor threads; the clock
is an argument.

    a message at or behind its partition's cursor      has not been handed out; it has no row
    a message below the cursor                         has a row until it is done (acknowledged, buried, gone)
    a row with `due` in the future                     is with a consumer, who names it by the row's `lease`
    a row with `due` in the past                       is to be handed out (again); after too many times, to be buried
    a row with `due` WAITING (order="key")             waits: of the rows of a key, all but one do

All of it changes in the transactions that say so, and in no other way: a crash leaves a message with its consumer
until its visibility has run out, and nothing else. Times are of the machine's monotonic clock; when the machine was
restarted since, everything that was with a consumer is due at once."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError, TopicReplaced
from headrace.log.embedded.committer import Tx
from headrace.log.embedded.index import (
    CURSORS,
    DEAD,
    DELIVERIES,
    PARTITIONS,
    QUEUES,
    CursorRow,
    DeliveryRow,
    PartitionRow,
    QueueRow,
)

if TYPE_CHECKING:
    from headrace.log.embedded.windows import Window

WAITING = 1 << 62
"""Later than any time: the row waits for another one of its key."""
WAITING_MAX = 10_000
"""So many messages of a queue may wait for others of their keys; then no new ones are looked at."""


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
    fresh: list[tuple[int, Window, list[int]]] = field(default_factory=list)
    exhausted: list[DeliveryRow] = field(default_factory=list)
    missing: bool = False  # a partition has more, but its window does not fit


@dataclass(eq=False, repr=False)
class NothingTaken(HeadraceError):
    """Refuses the transaction of a receive that changed nothing."""

    taken: Taken


def current(tx: Tx, queue: int, boot: str) -> QueueRow | None:
    """The queue; its deliveries are of this boot's clock afterwards. None: it was deleted."""
    row = QUEUES.get(tx.db, queue)
    if row is None or row.boot == boot:
        return row
    held = DELIVERIES.select(tx.db, "WHERE queue = ? AND due < ?", queue, WAITING)
    DELIVERIES.put_all(tx.db, [delivery._replace(due=0) for delivery in held])
    row = row._replace(boot=boot)
    QUEUES.change(tx.db, row)
    return row


def cursor_of(db: sqlite3.Connection, queue: int, partition: int) -> int:
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
    due = DELIVERIES.select(tx.db, "WHERE queue = ? AND due <= ? ORDER BY due LIMIT ?", queue.id, now_us, count)
    for row in due:
        if row.deliveries >= queue.max_deliveries:
            taken.exhausted.append(row)
        else:
            taken.again.append(row._replace(deliveries=row.deliveries + 1, due=until, lease=taken.lease))
    rows = list(taken.again)
    redelivered = sum(row.deliveries > 1 for row in rows)
    moved = False
    keys = _Keys(tx.db, queue) if queue.by_key else None
    for partition in partitions:
        room = count - len(taken.again) - sum(len(places) for _, _, places in taken.fresh)
        if room <= 0:
            break
        state = _state(tx, queue, partition)
        cursor = cursor_of(tx.db, queue.id, partition)
        if not state.earliest <= cursor < state.next:
            continue
        window = windows.get(partition)
        if window is None or not window.fits(cursor, state):
            taken.missing = True
            continue
        begin = window.first(cursor)
        if keys is None:
            stop = min(begin + room, len(window.offsets))
            places = list(range(begin, stop))
            rows += [
                DeliveryRow(queue.id, partition, offset, 1, until, taken.lease, None)
                for offset in window.offsets[begin:stop].tolist()
            ]
        else:
            found, stop = keys.sorted_out(window, begin, room)
            places = [place for place, waits in found if not waits]
            for place, waits in found:
                offset, key = int(window.offsets[place]), (window.hashes or [])[place]
                delivery = (0, WAITING, 0) if waits else (1, until, taken.lease)
                rows.append(DeliveryRow(queue.id, partition, offset, *delivery, key))
        reached = window.stop if stop == len(window.offsets) else int(window.offsets[stop])
        if reached > cursor:
            CURSORS.put(tx.db, CursorRow(queue.id, partition, reached))
            moved = True
        if places:
            taken.fresh.append((partition, window, places))
        elif reached == window.stop < state.next:
            taken.missing = True
    if not rows and not moved:
        raise NothingTaken(taken)
    DELIVERIES.put_all(tx.db, rows)
    delivered = len(taken.again) + sum(len(places) for _, _, places in taken.fresh)
    QUEUES.change(
        tx.db,
        queue._replace(delivered=queue.delivered + delivered, redelivered=queue.redelivered + redelivered),
    )
    return taken


class _Keys:
    """Which keys have a message that is not done: another one of theirs has to wait."""

    def __init__(self, db: sqlite3.Connection, queue: QueueRow) -> None:
        self._db, self._queue = db, queue.id
        self._busy: set[int] = set()
        (waiting,) = db.execute(
            "SELECT count(*) FROM deliveries WHERE queue = ? AND due = ?", (queue.id, WAITING)
        ).fetchone()
        self._room = WAITING_MAX - waiting

    def sorted_out(self, window: Window, begin: int, room: int) -> tuple[list[tuple[int, bool]], int]:
        """Places in the window with whether they wait, until `room` of them do not; and where to go on."""
        assert window.hashes is not None
        out: list[tuple[int, bool]] = []
        for place in range(begin, len(window.hashes)):
            if room <= 0:
                return out, place
            key = window.hashes[place]
            waits = key in self._busy or self._has_rows(key)
            if waits:
                if self._room <= 0:
                    return out, place
                self._room -= 1
            else:
                room -= 1
            self._busy.add(key)
            out.append((place, waits))
        return out, len(window.hashes)

    def _has_rows(self, key: int) -> bool:
        found = self._db.execute("SELECT 1 FROM deliveries WHERE queue = ? AND key = ? LIMIT 1", (self._queue, key))
        return found.fetchone() is not None


def _state(tx: Tx, queue: QueueRow, partition: int) -> PartitionRow:
    state = PARTITIONS.get(tx.db, queue.topic, partition)
    if state is None:
        raise TopicReplaced(topic=f"of queue {queue.name!r}", topic_id="")
    return state


# -- answers -----------------------------------------------------------------------------------------


def stale(db: sqlite3.Connection, queue: int, claims: Iterable[Claim]) -> Claim | None:
    """The first claim whose delivery counts no more."""
    for claim in claims:
        row = DELIVERIES.get(db, queue, claim.partition, claim.offset)
        if row is None or row.lease != claim.lease:
            return claim
    return None


def finish(tx: Tx, queue: QueueRow, claims: Sequence[Claim], now_us: int) -> bool:
    """Removes the rows, and lets the next ones of their keys go. False: some were not there; then nothing may stay.
    The caller counts, and writes the queue's row."""
    runs: list[list[int]] = []
    for partition, offset, lease, _ in sorted(claims):
        last = runs[-1] if runs else None
        if last is not None and (last[0], last[2] + 1, last[3]) == (partition, offset, lease):
            last[2] = offset
        else:
            runs.append([partition, offset, offset, lease])
    # A run is of neighbours, so that the count tells whether all of them were there.
    where = "WHERE queue = ? AND partition = ? AND offset BETWEEN ? AND ? AND lease = ?"
    if DELIVERIES.delete_all(tx.db, where, [(queue.id, *run) for run in runs]) != len(claims):
        return False
    release(tx, queue, {claim.key for claim in claims if claim.key is not None}, now_us)
    return True


def release(tx: Tx, queue: QueueRow, keys: Iterable[int], now_us: int) -> None:
    """After rows of these keys went: where none is left that does not wait, the first one is due now."""
    for key in keys:
        rows = DELIVERIES.select(
            tx.db, "WHERE queue = ? AND key = ? AND due < ? LIMIT 1", queue.id, key, WAITING
        ) or DELIVERIES.select(tx.db, "WHERE queue = ? AND key = ? ORDER BY partition, offset LIMIT 1", queue.id, key)
        if rows and rows[0].due == WAITING:
            DELIVERIES.put(tx.db, rows[0]._replace(due=now_us))
            touch(tx, queue)


def move(tx: Tx, queue: QueueRow, claims: Sequence[Claim], due_us: int, *, keep: bool, count: int = 0) -> None:
    """Other times for deliveries, which must not be stale. `keep`: they stay with their consumer; else the answer was
    the last. `count` is added to how often they were delivered."""
    rows = [row for claim in claims if (row := DELIVERIES.get(tx.db, queue.id, claim.partition, claim.offset))]
    assert len(rows) == len(claims)
    DELIVERIES.put_all(
        tx.db,
        [
            row._replace(due=due_us, lease=row.lease if keep else 0, deliveries=max(0, row.deliveries + count))
            for row in rows
        ],
    )
    if not keep:
        touch(tx, queue)


def touch(tx: Tx, queue: QueueRow) -> None:
    """Whoever waits for a message looks again."""
    row = tx.topic(queue.topic)
    if row is not None:
        tx.touched.add(row.uid)


# -- beginning, putting back, setting anew -------------------------------------------------------------------


def begin(tx: Tx, queue: QueueRow, offsets: Mapping[int, int]) -> QueueRow:
    """A new queue; the row with its id."""
    made = QUEUES.add(tx.db, queue)
    CURSORS.put_all(tx.db, [CursorRow(made, partition, offset) for partition, offset in offsets.items()])
    return queue._replace(id=made)


def put_back(tx: Tx, queue: QueueRow, partition: int, offset: int, key: int | None, now_us: int) -> None:
    """A message that was done is to be delivered again, as if for the first time. One that has a row, or that the
    cursor has yet to reach, comes anyway."""
    assert queue.id is not None
    if offset >= cursor_of(tx.db, queue.id, partition):
        return
    if DELIVERIES.get(tx.db, queue.id, partition, offset) is not None:
        return
    waits = key is not None and DELIVERIES.select(tx.db, "WHERE queue = ? AND key = ? LIMIT 1", queue.id, key)
    DELIVERIES.put(tx.db, DeliveryRow(queue.id, partition, offset, 0, WAITING if waits else now_us, 0, key))
    touch(tx, queue)


def rewind(tx: Tx, queue: QueueRow, offsets: Mapping[int, int], now_us: int) -> None:
    """Sets cursors and forgets deliveries of these partitions. What retention took meanwhile is counted now."""
    assert queue.id is not None
    lost = 0
    for partition, offset in offsets.items():
        state = _state(tx, queue, partition)
        lost += max(0, state.earliest - cursor_of(tx.db, queue.id, partition))
        held = DELIVERIES.select(tx.db, "WHERE queue = ? AND partition = ?", queue.id, partition)
        DELIVERIES.delete(tx.db, "WHERE queue = ? AND partition = ?", queue.id, partition)
        CURSORS.put(tx.db, CursorRow(queue.id, partition, offset))
        release(tx, queue, {row.key for row in held if row.key is not None}, now_us)
    QUEUES.change(tx.db, queue._replace(lost=queue.lost + lost))
    touch(tx, queue)


def lose(tx: Tx, topic: int, partition: int, earliest: int) -> None:
    """Retention has deleted the records below: messages that were not done are lost, and counted."""
    for queue in QUEUES.select(tx.db, "WHERE topic = ?", topic):
        below = (queue.id, partition, earliest)
        held = DELIVERIES.select(tx.db, "WHERE queue = ? AND partition = ? AND offset < ?", *below)
        if held:
            DELIVERIES.delete(tx.db, "WHERE queue = ? AND partition = ? AND offset < ?", *below)
            QUEUES.change(tx.db, queue._replace(lost=queue.lost + len(held)))
            release(tx, queue, {row.key for row in held if row.key is not None}, 0)


def forget(tx: Tx, queue: QueueRow) -> None:
    """The queue is no more. Its dead letters stay, to be read and dropped."""
    for table in (CURSORS, DELIVERIES):
        table.delete(tx.db, "WHERE queue = ?", queue.id)
    QUEUES.delete(tx.db, "WHERE id = ?", queue.id)
    touch(tx, queue)


def open_letters(db: sqlite3.Connection, queue: int) -> int:
    (count,) = db.execute(f"SELECT count(*) FROM {DEAD.name} WHERE queue = ?", (queue,)).fetchone()
    return int(count)
