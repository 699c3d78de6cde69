"""Appending: from what a user hands over to frames and offsets. Owns which partition a record goes to, what is
quarantined, and how small appends share a frame. Does not know files or locks.

`prepare` does everything that can be done before the lock (checking, hashing, splitting, encoding); `Append.apply`
gives offsets inside the transaction. Records are all appended or none is. Small appends are not prepared one by one:
those that wait together are checked and encoded together, which costs little more than one of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import keys, rows
from headrace.errors import (
    ForgottenSequence,
    HeadraceError,
    InvalidArgument,
    OutOfOrderSequence,
    ProducerFenced,
    RecordRejected,
    TopicReplaced,
    VersionConflict,
)
from headrace.log.contract import Appended, Progress, Rows
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.committer import Job, Tx
from headrace.log.embedded.storage.datafiles import Draft
from headrace.log.embedded.storage.frames import EXTRA, PER_ROW, Body
from headrace.log.embedded.storage.index import (
    PRODUCERS,
    SEQUENCES,
    VERSIONS,
    ProducerRow,
    SequenceRow,
    TopicRow,
    VersionRow,
)
from headrace.log.embedded.storage.retention import make_room
from headrace.log.embedded.storage.stored import INSTANT, PER_ROW_FIELDS
from headrace.log.incoming import (
    RECORD_BYTES_MAX,
    assign_partitions,
    beyond,
    bounds,
    given_progress,
    refuse_too_large,
    split_ahead,
    split_partitions,
)
from headrace.position import Position
from headrace.schema import EXTRA_COLUMN
from headrace.time import UNSET

FRAME_BYTES_MAX, FRAME_ROWS_MAX = 2 << 20, 65_536
"""Of several records; one alone may have more. Erasure writes a batch again with three columns more, 24 bytes a row,
which on a full disk must fit into the reserve of 4 MiB. A batch of one record is never written again: it goes whole."""
SMALL_ROWS_MAX = 64
"""Appends up to this many rows share a frame with others; larger ones are checked and encoded by their caller."""
SEQUENCES_KEPT = 128

ATTEMPTS = 100
"""How often an append is prepared anew when the topic is altered under it."""


class Stale(HeadraceError):
    """The topic was altered since the append was prepared: prepare again."""


class NotSmall(HeadraceError):
    """The rows need more than a place in a shared frame (quarantine): append them on their own."""


@dataclass(slots=True)
class Part:
    """Rows for one partition, at most a frame's worth."""

    partition: int
    batch: pa.RecordBatch
    event_min: int | None
    event_max: int | None
    progress_max: int | None = None  # when rows carry their own progress
    flags: int = 0
    draft: Draft | None = None

    def encoded(self, topic: TopicState) -> Draft:
        if self.draft is None:
            self.draft = Draft(
                bytes.fromhex(topic.uid),
                self.partition,
                Body.of(self.batch),
                topic.schema_version,
                self.event_min,
                self.event_max,
                self.flags,
            )
        return self.draft


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who appends, for idempotence: the producer's name, its epoch, and its number of the first record. `rejected`
    records of the same batch that the topic could not hold are counted, too: they were dealt with."""

    producer: str
    epoch: int
    sequence: int
    rejected: int = 0


@dataclass(slots=True)
class Append:
    """One append to one topic: a job of its own, or a part of a transaction."""

    topic: TopicState
    parts: list[Part]
    count: int
    sent: int = 0  # with those that were quarantined: what a producer's sequence counts
    versions: dict[bytes, int] = field(default_factory=dict)
    expect: list[tuple[bytes, Any, int]] = field(default_factory=list)
    stamp: Stamp | None = None
    quarantine: Append | None = None  # the same records' way into the dead letters
    register: Callable[[Tx, range], None] | None = None  # what else a dead letter leaves behind
    merge_key: None = None
    frees: bool = False

    @property
    def synced(self) -> bool:
        return self.topic.synced

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        own = [part.encoded(self.topic) for part in self.parts]
        return own + (self.quarantine.drafts() if self.quarantine else [])

    def apply(self, tx: Tx) -> Appended:
        row = current(tx, self.topic)
        if self.stamp is not None:
            known = _deduplicate(tx, self.topic, self.stamp, self.sent)
            if known is not None:
                return _appended(self.topic, known, duplicate=True)
        held = {each: _version(tx, self.topic.id, each) for each in {*self.versions, *(of for of, _, _ in self.expect)}}
        for key_hash, key, expected in self.expect:
            if held[key_hash] != expected:
                raise VersionConflict(topic=self.topic.name, key=key, expected=expected, actual=held[key_hash])
        make_room(tx, self.topic, sum(part.draft.length for part in self.parts if part.draft))
        ranges: dict[int, range] = {}
        for part in self.parts:
            assert part.draft is not None
            batch = tx.append(row, part.draft, self.topic.settings.forget_us, part.progress_max)
            begun = ranges.get(part.partition)
            ranges[part.partition] = range(begun.start if begun else batch.base, batch.next)
        for key_hash, count in self.versions.items():
            VERSIONS.put(tx.db, VersionRow(self.topic.id, key_hash, held[key_hash] + count))
        if self.stamp is not None:
            _remember(tx, self.topic.id, self.stamp, self.sent, ranges)
        if self.register is not None:
            for given in ranges.values():
                self.register(tx, given)
        quarantined = 0
        if self.quarantine is not None:
            self.quarantine.apply(tx)
            quarantined = self.quarantine.count
        return _appended(self.topic, ranges, quarantined=quarantined)


@dataclass(slots=True)
class Small:
    """A few rows without conditions, unchecked: they wait to be checked, encoded and written with others'."""

    topic: TopicState
    schema: pa.Schema
    rows: Sequence[Mapping[str, Any]]
    clock_us: Callable[[], int]
    frees: bool = False

    @property
    def synced(self) -> bool:
        return self.topic.synced

    @property
    def merge_key(self) -> Hashable:
        return self.topic.id, self.topic.revision

    def combine(self, jobs: Sequence[Small]) -> Job:
        return Shared(jobs)

    def drafts(self) -> list[Draft]:
        raise NotImplementedError

    def apply(self, tx: Tx) -> Any:
        raise NotImplementedError


class Shared:
    """Small appends to one topic, one frame per partition unless they are too large for one. Each is told its own
    offsets, or what is wrong with it."""

    merge_key = None
    frees = False

    def __init__(self, jobs: Sequence[Small]) -> None:
        self.topic = jobs[0].topic
        self.synced = self.topic.synced
        self._jobs = jobs
        self._refused: dict[int, HeadraceError] = {}
        self._parts: list[Part] = []
        self._owners: list[list[tuple[int, int]]] = []  # for each part, [(job, rows)] in order

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        batch, owners = self._checked()
        settings = self.topic.settings
        if settings.event_time is not None and batch.num_rows:
            limit_us = self._jobs[0].clock_us() + settings.max_ahead_us
            if (bounds(batch.column(settings.event_time))[1] or limit_us) > limit_us:
                ahead = beyond(batch, settings.event_time, limit_us)
                for number in {owners[row] for row in np.flatnonzero(ahead)}:
                    self._refused[number] = NotSmall()
                batch, owners = self._checked()
        assigned = assign_partitions(batch, self.topic.name, self.topic.uid, self.topic.settings)
        for partition, chunk in split_partitions(batch, assigned, self.topic.settings.partitions):
            given = owners if assigned is None else [owners[row] for row in np.flatnonzero(assigned == partition)]
            of_rows = iter(given)
            for piece in frames_of(chunk):
                self._parts.append(_part(partition, piece, settings.event_time, False))
                runs = itertools.groupby(itertools.islice(of_rows, piece.num_rows))
                self._owners.append([(number, len(list(run))) for number, run in runs])
        return [part.encoded(self.topic) for part in self._parts]

    def _checked(self) -> tuple[pa.RecordBatch, list[int]]:
        """The rows that can be appended together, and whose each is. A row that is refused takes its job with it."""
        while True:
            numbers = [n for n in range(len(self._jobs)) if n not in self._refused]
            data = [row for number in numbers for row in self._jobs[number].rows]
            owners = [number for number in numbers for _ in self._jobs[number].rows]
            try:
                batch = rows.to_batch(
                    data, self._jobs[0].schema, extra=self.topic.settings.extra, topic=self.topic.name
                )
                refuse_too_large(batch, self.topic.name)
                return batch, owners
            except RecordRejected as error:
                number = owners[error.row]
                self._refused[number] = replace(error, row=error.row - owners.index(number))
            except Exception:  # not about one row that is known: let each find out on its own
                self._refused = {number: NotSmall() for number in range(len(self._jobs))}

    def apply(self, tx: Tx) -> list[Appended | HeadraceError]:
        row = current(tx, self.topic)
        make_room(tx, self.topic, sum(part.draft.length for part in self._parts if part.draft))
        ranges: list[dict[int, range]] = [{} for _ in self._jobs]
        for part, owners in zip(self._parts, self._owners, strict=True):
            assert part.draft is not None
            offset = tx.append(row, part.draft, self.topic.settings.forget_us).base
            for number, count in owners:
                begun = ranges[number].get(part.partition)
                ranges[number][part.partition] = range(begun.start if begun else offset, offset + count)
                offset += count
        out: list[Appended | HeadraceError] = [_appended(self.topic, given) for given in ranges]
        for number, error in self._refused.items():
            out[number] = error
        return out


def current(tx: Tx, topic: TopicState) -> TopicRow:
    row = tx.topic(topic.id)
    if row is None or row.name is None or row.uid != topic.uid:
        raise TopicReplaced(topic=topic.name, topic_id=topic.uid)
    if row.revision != topic.revision:
        raise Stale()
    return row


def _appended(
    topic: TopicState, ranges: dict[int, range], *, quarantined: int = 0, duplicate: bool = False
) -> Appended:
    nexts = {partition: given.stop for partition, given in ranges.items()}
    return Appended(Position.of(topic.name, topic.uid, nexts), ranges, quarantined, duplicate)


# -- before the lock ---------------------------------------------------------------------------------


def prepare(
    topic: TopicState,
    schema: pa.Schema,
    data: Rows,
    *,
    now_us: int,
    partition: int | None = None,
    expect: Mapping[Any, int] | None = None,
    progress: Progress = None,
    stamp: Stamp | None = None,
    quarantine: Callable[[TopicState, pa.RecordBatch], Append] | None = None,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Append:
    """Checks, partitions and encodes. Raises what is wrong with the records before anything is written."""
    settings = topic.settings
    batch = rows.to_batch(data, schema, extra=settings.extra, topic=topic.name)
    refuse_too_large(batch, topic.name, limit=record_bytes_max)
    sent = batch.num_rows
    carried = given_progress(progress, sent)
    ahead: pa.RecordBatch | None = None
    if settings.event_time is not None and batch.num_rows and quarantine is not None:
        batch, ahead, carried = split_ahead(batch, settings.event_time, now_us + settings.max_ahead_us, carried)
    append = Append(topic, [], batch.num_rows, sent + (stamp.rejected if stamp else 0), stamp=stamp)
    if settings.versioned:
        append.versions = keys.key_counts(batch, settings.key)
    if expect is not None:
        if not settings.versioned:
            raise InvalidArgument(
                "expect", expect, f"topic {topic.name!r} keeps no versions: create it with versioned=True"
            )
        if not isinstance(expect, Mapping):
            raise InvalidArgument("expect", expect, "must be a mapping of keys to versions")
        for key, version in expect.items():
            if isinstance(version, bool) or not isinstance(version, int):
                raise InvalidArgument("expect", expect, f"the version of {key!r} must be a whole number")
            append.expect.append((keys.key_hash(keys.key_bytes(key, schema, settings.key)), key, version))
    if carried is not None:
        batch = _with_progress(batch, carried)
    assigned = assign_partitions(batch, topic.name, topic.uid, settings, partition)
    for number, chunk in split_partitions(batch, assigned, settings.partitions):
        for piece in frames_of(chunk):
            append.parts.append(_part(number, piece, settings.event_time, carried is not None))
    if ahead is not None and quarantine is not None:
        append.quarantine = quarantine(topic, ahead)
    append.drafts()
    return append


def frames_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch in pieces that fit a frame, in order: each takes as many rows as it can, and at least one. (Halves
    would not do: sealing joins two small neighbours, and could get two small ones again.)"""
    out: list[pa.RecordBatch] = []
    while batch.num_rows > 1 and (batch.num_rows > FRAME_ROWS_MAX or batch.nbytes > FRAME_BYTES_MAX):
        rows = range(1, min(batch.num_rows, FRAME_ROWS_MAX) + 1)
        fitting = max(1, bisect.bisect_right(rows, FRAME_BYTES_MAX, key=lambda count: batch.slice(0, count).nbytes))
        out.append(batch.slice(0, fitting))
        batch = batch.slice(fitting)
    return [*out, batch]


def _part(partition: int, batch: pa.RecordBatch, event_time: str | None, carries: bool) -> Part:
    part = Part(partition, batch, None, None, flags=EXTRA if EXTRA_COLUMN in batch.schema.names else 0)
    if event_time is not None:
        part.event_min, part.event_max = bounds(batch.column(event_time))
    if carries:
        part.flags |= PER_ROW
        largest = bounds(batch.column("_progress"))[1]
        part.progress_max = UNSET if largest is None else largest
    return part


def _with_progress(batch: pa.RecordBatch, carried: pa.Array) -> pa.RecordBatch:
    """Per-row metadata columns: progress is given; offset and arrival are null until a rewrite fixes them."""
    columns = [*batch.columns, pa.nulls(len(carried), pa.int64()), pa.nulls(len(carried), INSTANT), carried]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *PER_ROW_FIELDS]))


def _version(tx: Tx, topic: int, key_hash: bytes) -> int:
    row = VERSIONS.get(tx.db, topic, key_hash)
    return row.version if row else 0


def _deduplicate(tx: Tx, topic: TopicState, stamp: Stamp, count: int) -> dict[int, range] | None:
    """The original offsets when the append is a repetition; None when it is the next one; else an error."""
    row = PRODUCERS.get(tx.db, topic.id, stamp.producer) or ProducerRow(topic.id, stamp.producer, 0, 0)
    if row.epoch != stamp.epoch:
        raise ProducerFenced(topic=topic.name, producer=stamp.producer, epoch=stamp.epoch, current_epoch=row.epoch)
    if stamp.sequence == row.sequence:
        return None
    if stamp.sequence > row.sequence:
        raise OutOfOrderSequence(
            topic=topic.name, producer=stamp.producer, expected=row.sequence, sequence=stamp.sequence
        )
    known = SEQUENCES.get(tx.db, topic.id, stamp.producer, stamp.sequence)
    if known is not None and known.records == count:
        return parse_ranges(known.ranges)
    oldest = SEQUENCES.select(
        tx.db, "WHERE topic = ? AND producer = ? ORDER BY sequence LIMIT 1", topic.id, stamp.producer
    )
    remembered = oldest[0].sequence if oldest else row.sequence
    if stamp.sequence < remembered:
        raise ForgottenSequence(
            topic=topic.name, producer=stamp.producer, sequence=stamp.sequence, remembered_from=remembered
        )
    raise OutOfOrderSequence(topic=topic.name, producer=stamp.producer, expected=row.sequence, sequence=stamp.sequence)


def _remember(tx: Tx, topic: int, stamp: Stamp, count: int, ranges: Mapping[int, range]) -> None:
    PRODUCERS.put(tx.db, ProducerRow(topic, stamp.producer, stamp.epoch, stamp.sequence + count))
    if count == 0:
        return
    SEQUENCES.put(tx.db, SequenceRow(topic, stamp.producer, stamp.sequence, count, ranges_text(ranges)))
    SEQUENCES.delete(
        tx.db,
        "WHERE topic = ?1 AND producer = ?2 AND sequence <= (SELECT sequence FROM sequences WHERE topic = ?1 "
        "AND producer = ?2 ORDER BY sequence DESC LIMIT 1 OFFSET ?3)",
        topic,
        stamp.producer,
        SEQUENCES_KEPT,
    )


def ranges_text(ranges: Mapping[int, range]) -> str:
    return ",".join(f"{partition}:{given.start}-{given.stop}" for partition, given in sorted(ranges.items()))


def parse_ranges(text: str) -> dict[int, range]:
    out = {}
    for item in text.split(",") if text else []:
        partition, _, given = item.partition(":")
        start, _, stop = given.partition("-")
        out[int(partition)] = range(int(start), int(stop))
    return out
