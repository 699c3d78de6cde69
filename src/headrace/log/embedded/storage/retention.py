"""Retention: old batches go, from the front of a partition. Owns what may go, whom it overtakes, and how long a
consumer has until it does. Whole batches only; by arrival, which no producer's clock can move.

Groups and queues that were ever used on a topic are known, and so are the flows that read it: with `unread="keep"`
nothing goes that one of them has not read; with `unread="delete"` it goes, and whoever is overtaken is told, here and
at its next read."""

from __future__ import annotations

import heapq
import itertools
import logging
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from headrace.errors import ClockAhead, TopicFull
from headrace.failpoints import reach
from headrace.log.contract import FLOW_GROUP, AtRisk, Consumer, Overtaken
from headrace.log.embedded.storage import deliveries
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.committer import Tx, is_small
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import ARCHIVED
from headrace.log.embedded.storage.index import (
    BATCHES,
    GROUPS,
    PARTITIONS,
    QUEUES,
    SHARES,
    BatchRow,
    PartitionRow,
    ShareRow,
    last_commit,
)

logger = logging.getLogger("headrace.log")

STEP_BATCHES = 2_000
"""At most this many go in one transaction: others wait while it runs."""
TELL_SECONDS = 60.0


def kind_of(group: str) -> tuple[str, str]:
    """Whether a group is one or stands for a flow, and the name of either."""
    return ("flow", group.removeprefix(FLOW_GROUP)) if group.startswith(FLOW_GROUP) else ("group", group)


def consumers(db: sqlite3.Connection, topic: int) -> list[Consumer]:
    """All of them. A group that has committed nothing in a partition needs it from its beginning."""
    states = PARTITIONS.select(db, "WHERE topic = ?", topic)
    out = []
    for group in GROUPS.select(db, "WHERE topic = ?", topic):
        shares = SHARES.select(db, "WHERE topic = ? AND group_name = ?", topic, group.name)
        committed = {share.partition: share.committed for share in shares if share.committed is not None}
        for state in states:
            at = committed.get(state.partition, state.earliest)
            out.append(Consumer(*kind_of(group.name), state.partition, at))
    for queue in QUEUES.select(db, "WHERE topic = ?", topic):
        cursors = dict(db.execute("SELECT partition, next FROM cursors WHERE queue = ?", (queue.id,)))
        undone = dict(
            db.execute("SELECT partition, min(offset) FROM deliveries WHERE queue = ? GROUP BY partition", (queue.id,))
        )
        for state in states:
            at = cursors.get(state.partition, state.earliest)
            out.append(Consumer("queue", queue.name, state.partition, min(at, undone.get(state.partition, at))))
    return out


@dataclass(slots=True)
class Retained:
    """What retention did, or would do."""

    batches: int
    records: int
    bytes: int
    overtaken: list[Overtaken]
    waits: ClockAhead | None = None
    """Why records that are old by the clock stay: it is not believed."""


def retain(engine: Engine, topic: TopicState) -> Retained:
    """Deletes what is due."""
    total = Retained(0, 0, 0, [])
    settings = topic.settings
    if settings.retention_us is None and settings.retention_bytes is None:
        return total
    while True:
        done: Retained = engine.committer.run(lambda tx: apply(tx, topic), synced=True)
        reach("retention.done")
        total.batches += done.batches
        total.records += done.records
        total.bytes += done.bytes
        total.overtaken += done.overtaken
        total.waits = done.waits
        if done.batches < STEP_BATCHES:
            return total


def age_at_us(engine: Engine, db: sqlite3.Connection) -> int:
    """As `Tx.age_at_us`, for those who only look."""
    return Tx(db, engine.clock(), last_commit(db, engine.index.path).newest).age_at_us


def due(db: sqlite3.Connection, topic: TopicState, now_us: int, room: int = 0) -> list[BatchRow]:
    """The batches to go, oldest first, at most a step's worth. `room`: bytes that are about to be added; then only what
    is in their way goes, and age is left to upkeep."""
    return list(itertools.islice(_going(db, topic, now_us, room), STEP_BATCHES))


def would_free(engine: Engine, topic: TopicState) -> Retained:
    """What `retain` would delete now: nothing of a topic with an archive, where records are moved."""
    out = Retained(0, 0, 0, [])
    if topic.settings.archive is not None:
        return out
    with engine.index.snapshot() as db:
        for row in _going(db, topic, age_at_us(engine, db)):
            out.batches += 1
            out.records += row.records
            out.bytes += row.length
    return out


def _going(db: sqlite3.Connection, topic: TopicState, now_us: int, room: int = 0) -> Iterator[BatchRow]:
    """Reads little more than what goes: an append to a full topic looks here every time."""
    settings = topic.settings
    states = PARTITIONS.select(db, "WHERE topic = ? ORDER BY partition", topic.id)
    stops = {state.partition: state.next for state in states}
    if settings.unread == "keep":
        for consumer in consumers(db, topic.id):
            stops[consumer.partition] = min(stops[consumer.partition], consumer.offset)
    over = -1
    if settings.retention_bytes is not None:
        over = sum(state.bytes for state in states) + room - settings.retention_bytes
    fronts = [_front(db, state, stops[state.partition]) for state in states]
    for oldest in heapq.merge(*fronts, key=lambda row: (row.arrived, row.partition)):
        expired = not room and settings.retention_us is not None and oldest.arrived < now_us - settings.retention_us
        if not expired and over <= 0:
            return
        yield oldest
        over -= oldest.length


def _front(db: sqlite3.Connection, state: PartitionRow, stop: int) -> Iterator[BatchRow]:
    """The batches of a partition that end at `stop` or before, in order; those that are archived have gone already."""
    offset, limit = state.earliest, 4
    while page := BATCHES.select(
        db,
        "WHERE topic = ? AND partition = ? AND base >= ? AND base < ? AND next <= ? AND NOT flags & ? "
        "ORDER BY base LIMIT ?",
        *(state.topic, state.partition, offset, stop, stop, ARCHIVED, limit),
    ):
        yield from page
        offset, limit = page[-1].next, min(4 * limit, STEP_BATCHES)


def apply(tx: Tx, topic: TopicState, room: int = 0) -> Retained:
    """In a write transaction."""
    done = Retained(0, 0, 0, [])
    if (row := tx.topic(topic.id)) is None or row.revision != topic.revision:
        return done  # deleted meanwhile, or altered: what may go now, the next run finds out
    rows = due(tx.db, topic, tx.age_at_us, room)
    if not room and tx.age_at_us < tx.now_us and len(due(tx.db, topic, tx.now_us)) > len(rows):
        done.waits = tx.clock_ahead()
    for partition in sorted({row.partition for row in rows}):
        gone = [row for row in rows if row.partition == partition]
        state = PARTITIONS.get(tx.db, topic.id, partition)
        assert state is not None
        earliest = gone[-1].next
        before = "WHERE topic = ? AND partition = ? AND base < ?"
        sums = f"SELECT coalesce(sum(records), 0) FROM batches {before} AND flags & ?"
        (archived,) = tx.db.execute(sums, (topic.id, partition, earliest, ARCHIVED)).fetchone()
        BATCHES.delete(tx.db, before, topic.id, partition, earliest)
        reach("retention.deleted")
        records, size = sum(row.records for row in gone) + archived, sum(row.length for row in gone)
        held = {
            "records": state.records - records,
            "bytes": state.bytes - size,
            "small": state.small - sum(map(is_small, gone)),
            "cleaned": max(state.cleaned, earliest),
        }
        done.overtaken += _overtaken(tx, topic, partition, earliest)
        PARTITIONS.put(tx.db, state._replace(earliest=earliest, **held))
        done.batches += len(gone)
        done.records += records
        done.bytes += size
    if rows:
        tx.touched.add(topic.uid)
    return done


def make_room(tx: Tx, topic: TopicState, size: int) -> None:
    """Before an append of `size` bytes, where the topic's bytes are bounded: what is oldest goes, as far as it may. An
    append to an empty topic always fits, and one of nothing (its rows were refused, or quarantined) needs no room."""
    limit = topic.settings.retention_bytes
    if limit is None or size == 0 or topic.settings.archive is not None:  # which takes upkeep: until then it is over
        return
    while (held := _held(tx, topic)) + size > limit:
        done = apply(tx, topic, size)
        _tell(done.overtaken)
        if not done.batches:
            break
    if topic.settings.unread == "keep" and held and held + size > limit:
        raise TopicFull(topic=topic.name, held_bytes=held, limit_bytes=limit)


_told: dict[tuple[str, str, str, int], float] = {}


def _tell(overtaken: list[Overtaken]) -> None:
    """Logs it; of one consumer once a minute, for on a full topic every append deletes something."""
    now = time.monotonic()
    for each in overtaken:
        who = (each.topic, each.kind, each.consumer, each.partition)
        if now - _told.get(who, -TELL_SECONDS) >= TELL_SECONDS:
            _told[who] = now
            logger.warning("%s", each)


def _held(tx: Tx, topic: TopicState) -> int:
    return sum(state.bytes for state in tx.partitions(topic.id))


def _overtaken(tx: Tx, topic: TopicState, partition: int, earliest: int) -> list[Overtaken]:
    """Who has not read what goes. A message that is not done is lost with its record, and counted."""
    out = [
        Overtaken(topic.name, partition, consumer.kind, consumer.name, consumer.offset, earliest)
        for consumer in consumers(tx.db, topic.id)
        if consumer.partition == partition and consumer.offset < earliest
    ]
    deliveries.lose(tx, topic.id, partition, earliest)
    return out


# -- how long until it overtakes somebody ------------------------------------------------------------

MARK_US = 30_000_000
"""A group's pace is taken over at least this long."""
RATE_US = 60_000_000
"""And its producers' over this long."""


def paced(share: ShareRow, offset: int, now_us: int) -> ShareRow:
    """With the commit of `offset`: now and then, a mark of how far the group is."""
    if share.marked and now_us - share.marked < MARK_US:
        return share
    at = offset if share.committed is None else share.committed
    return share._replace(before=share.marked, before_offset=share.marked_offset, marked=now_us, marked_offset=at)


def _pace(share: ShareRow, now_us: int) -> float:
    """Records a second, since the older mark; 0 while there is none."""
    since, offset = (share.before, share.before_offset) if share.before else (share.marked, share.marked_offset)
    if not since or share.committed is None or now_us - since < 1_000_000:
        return 0.0
    return max(0, share.committed - offset) / (now_us - since) * 1e6


def time_to_loss(
    engine: Engine, topic: TopicState, name: str, now_us: int | None = None, *, kind: str = "group"
) -> timedelta | None:
    """How long until the oldest record the group has not read is deleted, if it and its producers go on as they do. A
    queue is taken to stand still: its oldest message may be the one that never ends. None: not at this pace, or never
    (no retention, unread="keep", or an archive)."""
    settings, now = topic.settings, engine.clock_us() if now_us is None else now_us
    if settings.unread == "keep" or settings.archive is not None:
        return None
    with engine.index.snapshot() as db:
        states = PARTITIONS.select(db, "WHERE topic = ?", topic.id)
        known = [c for c in consumers(db, topic.id) if (c.kind, c.name) == (kind, name)]
        offsets = {consumer.partition: consumer.offset for consumer in known}
        group = FLOW_GROUP + name if kind == "flow" else name
        found = [] if kind == "queue" else SHARES.select(db, "WHERE topic = ? AND group_name = ?", topic.id, group)
        shares = {share.partition: share for share in found}
        left: list[float] = []
        behind = paces = news = 0.0  # bytes: unread, read a second, and added a second
        for state in states:
            share = shares.get(state.partition)
            at = offsets.get(state.partition, state.earliest)
            unread = state.next - max(at, state.earliest)
            pace = _pace(share, now) if share is not None else 0.0
            each = state.bytes / state.records if state.records else 0.0
            behind, paces = behind + unread * each, paces + pace * each
            news += (state.next - _offset_before(db, state, now - RATE_US)) * each / RATE_US * 1e6
            if at < state.earliest:
                left.append(0.0)
            elif unread and settings.retention_us is not None:
                oldest = _row_at(db, state, at)
                lag = (now - oldest.arrived) / 1e6 if oldest else 0.0
                slip = 1 - pace * lag / unread  # seconds it falls behind, a second
                if lag >= settings.retention_us / 1e6:
                    left.append(0.0)
                elif slip > 0 and unread > pace:  # what came in the last second says nothing
                    left.append((settings.retention_us / 1e6 - lag) / slip)
    if settings.retention_bytes is not None and news > paces and behind:
        left.append(max(0.0, settings.retention_bytes - behind) / (news - paces))
    return timedelta(seconds=min(min(left), 10**9)) if left else None


def _row_at(db: sqlite3.Connection, state: PartitionRow, offset: int) -> BatchRow | None:
    found = BATCHES.select(
        db,
        "WHERE topic = ? AND partition = ? AND base <= ? ORDER BY base DESC LIMIT 1",
        *(state.topic, state.partition, offset),
    )
    return found[0] if found else None


def _offset_before(db: sqlite3.Connection, state: PartitionRow, when_us: int) -> int:
    """About where the partition was then: the first batch that came later, found by halving."""
    low, high = state.earliest, state.next
    while low < high:
        row = _row_at(db, state, (low + high) // 2)
        if row is None:
            return low
        if row.arrived >= when_us:
            high = row.base
        else:
            low = row.next
    return low


def at_risk(engine: Engine, topic: TopicState) -> list[AtRisk]:
    """Who has less than a tenth of the retention left (an hour, where only bytes are bounded)."""
    settings = topic.settings
    if settings.retention_us is None and settings.retention_bytes is None:
        return []
    with engine.index.reading() as db:
        known = sorted({(consumer.kind, consumer.name) for consumer in consumers(db, topic.id)})
    limit = timedelta(hours=1) if settings.retention_us is None else timedelta(microseconds=settings.retention_us / 10)
    out = []
    for kind, name in known:
        left = time_to_loss(engine, topic, name, kind=kind)
        if left is not None and left < limit:
            out.append(AtRisk(topic.name, kind, name, left))
    return out
