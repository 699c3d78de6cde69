"""Repairs topics that are ahead of the clock. Owns how such a topic is copied, and how the copy replaces it.  A clock
that was ahead has stamped records with an arrival, and perhaps a progress, in the future. Times are fixed at append, so
a repaired topic is a new incarnation: the same name, offsets, groups, queues, producers and versions, another topic id.
Its readers get TopicReplaced, and its views must be rebuilt.

Records that arrived in the future get the present as their arrival. Those whose event time is in the future become dead
letters, as they would have with the right clock. The progress of the records behind them is computed again. The copy is
a hidden topic until one transaction puts it in place: after a crash the topic is unchanged, and the next repair begins
again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import TopicReplaced, WaitTimeout
from headrace.failpoints import reach
from headrace.log.contract import Mended
from headrace.log.embedded.storage import timekeeping
from headrace.log.embedded.storage.catalog import COPY, Catalog, TopicState, delete_rows
from headrace.log.embedded.storage.clock import AHEAD_US
from headrace.log.embedded.storage.committer import Job, Tx, is_small
from headrace.log.embedded.storage.datafiles import Draft
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import (
    BATCHES,
    DEAD,
    GROUPS,
    PARTITIONS,
    PRODUCERS,
    QUEUES,
    SEQUENCES,
    SHARES,
    TOPICS,
    VERSIONS,
    BatchRow,
    PartitionRow,
    Table,
)
from headrace.log.embedded.storage.stored import INSTANT
from headrace.log.embedded.upkeep import rounds, swapping
from headrace.log.embedded.write import dead_letters
from headrace.log.embedded.write.append import Append
from headrace.time import UNSET

ATTEMPTS = 100
PAGE_BATCHES = 1_000
CARRIED: tuple[Table[Any], ...] = (PRODUCERS, SEQUENCES, VERSIONS, GROUPS)


def mend(engine: Engine, catalog: Catalog) -> list[Mended]:
    """Mends every topic that is ahead, and takes the home's newest arrival back to now."""
    with rounds.alone(engine, wait=True):
        engine.committer.run(_take_arrival_back, synced=True)
        now_us, done = engine.clock_us(), []
        for topic in _topics_ahead(engine, catalog, now_us):
            with contextlib.suppress(TopicReplaced):  # deleted meanwhile
                done.append(_mend(engine, catalog, topic, now_us))
        catalog.delete_copy()
        return done


def _take_arrival_back(tx: Tx) -> None:
    """But not to before the records of partitions that are too little ahead to be mended."""
    if tx.newest is not None and tx.newest.arrived_us > tx.now_us:
        near = "SELECT coalesce(max(arrived), 0) FROM partitions WHERE arrived <= ?"
        tx.take_arrival_back(*tx.db.execute(near, (tx.now_us + AHEAD_US,)).fetchone())


def _topics_ahead(engine: Engine, catalog: Catalog, now_us: int) -> list[TopicState]:
    with engine.index.snapshot() as db:
        names = {found.topic for found in timekeeping.partitions_ahead(db, now_us)}
    return [topic for topic in catalog.all(system=True) if topic.name in names and topic.name != COPY]


def _mend(engine: Engine, catalog: Catalog, topic: TopicState, now_us: int) -> Mended:
    begun, copying = time.monotonic(), _begin(engine, catalog, topic, now_us)
    for _ in range(ATTEMPTS):
        _copy(engine, catalog, copying)
        reach("mend.copied")
        try:
            engine.submit(_Switch(copying, _letters(catalog, copying))).result()
        except _Grown:
            continue
        except swapping.Changed:
            topic = catalog.current(topic.id, topic.name, topic.uid)
            copying = _begin(engine, catalog, topic, now_us)
            continue
        dead = sum(batch.num_rows for batch in copying.ahead)
        return Mended(topic.name, copying.new.uid, copying.restamped - dead, dead)
    catalog.delete_copy()
    what = f"a moment without appends to topic {topic.name!r} (stop its producers)"
    raise WaitTimeout(what, round(time.monotonic() - begun, 1))


class _Grown(swapping.Changed):
    """Records have come since they were copied: copy those, too."""


@dataclass(slots=True)
class _Copying:
    old: TopicState
    new: TopicState
    now_us: int
    states: dict[int, PartitionRow]
    """The new partitions, as far as they are copied."""
    first: dict[int, int]
    """Where each old partition began."""
    ahead: list[pa.RecordBatch] = field(default_factory=list)
    """Records for the dead letters."""
    restamped: int = 0


def _begin(engine: Engine, catalog: Catalog, old: TopicState, now_us: int) -> _Copying:
    catalog.delete_copy()
    settings = replace(old.settings, mended_from=(*old.settings.mended_from, old.uid))
    new = catalog.create(COPY, catalog.schema(old), settings, exist_ok=False, system=True)
    with engine.index.snapshot() as db:
        states = PARTITIONS.select(db, "WHERE topic = ?", old.id)
    begun = {
        state.partition: PartitionRow(
            new.id, state.partition, state.earliest, state.earliest, 0, 0, None, 0, 0, state.earliest, None, 0
        )
        for state in states
    }
    return _Copying(old, new, now_us, begun, {state.partition: state.earliest for state in states})


# -- copying -------------------------------------------------------------------------------------------


def _copy(engine: Engine, catalog: Catalog, copying: _Copying) -> None:
    for partition in copying.states:
        for row in _rows(engine, copying, partition):
            engine.background.check()
            copying.states[partition] = engine.submit(_piece(engine, catalog, copying, row)).result()
            reach("mend.piece")


def _rows(engine: Engine, copying: _Copying, partition: int) -> Iterator[BatchRow]:
    """The batches that are not copied yet."""
    while True:
        with engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND base >= ? ORDER BY base LIMIT ?",
                *(copying.old.id, partition, copying.states[partition].next, PAGE_BATCHES),
            )
        yield from page
        if len(page) < PAGE_BATCHES:
            return


def _piece(engine: Engine, catalog: Catalog, copying: _Copying, old: BatchRow) -> _Piece:
    state, now_us, settings = copying.states[old.partition], copying.now_us, copying.old.settings
    before = _known(state.progress)
    if _known(old.progress) <= now_us:
        before = max(before, _known(old.progress))
    row = old._replace(topic=copying.new.id, progress=_stored(before), arrived=min(old.arrived, now_us))
    if old.file is None:
        new = [swapping.Replacement(row, None)]
    else:
        limit_us = now_us + settings.max_ahead_us
        kept = []
        for batch in swapping.contents(engine, catalog, copying.old, [old]):
            copying.restamped += int(np.count_nonzero(_instants(batch.column("_arrived_at")) > now_us))
            done = restamp(batch, before, settings.event_time, now_us, limit_us)
            before = done.progress_us
            kept.append(done.kept)
            if done.ahead.num_rows:
                copying.ahead.append(done.ahead)
        new = swapping.replacements(copying.new, [row], kept)
    return _Piece(copying, row, new, before)


@dataclass(slots=True)
class Restamped:
    kept: pa.RecordBatch
    ahead: pa.RecordBatch
    progress_us: int
    """Behind the batch."""


def restamp(batch: pa.RecordBatch, before_us: int, event_time: str | None, now_us: int, limit_us: int) -> Restamped:
    """Rows with the times they would have if nothing had arrived after `now_us`; apart, those that arrived later than
    that with an event time beyond the limit. `before_us`: the progress before the batch. A progress up to now is right,
    and stays."""
    arrived = _instants(batch.column("_arrived_at"))
    events = np.full(len(arrived), UNSET) if event_time is None else _instants(batch.column(event_time))
    beyond = (arrived > now_us) & (events > limit_us)
    kept = batch.filter(pa.array(~beyond))
    arrived, events = np.minimum(arrived[~beyond], now_us), events[~beyond]
    given = _instants(kept.column("_progress"))
    right = given <= now_us
    reached = np.maximum(np.where(right, given, UNSET), np.minimum(events, arrived))
    counted = np.maximum.accumulate(np.concatenate([[before_us], reached]))
    progress = np.where(right, given, counted[:-1])
    columns = {"_arrived_at": _column(arrived), "_progress": _column(progress)}
    for name, column in columns.items():
        kept = kept.set_column(kept.schema.get_field_index(name), name, column)
    return Restamped(kept, batch.filter(pa.array(beyond)), int(counted[-1]))


def _instants(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(column.cast(pa.int64()).fill_null(UNSET))


def _column(instants: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(instants, pa.int64(), mask=instants == UNSET).cast(INSTANT)


def _known(progress: int | None) -> int:
    return UNSET if progress is None else progress


def _stored(progress_us: int) -> int | None:
    return None if progress_us == UNSET else progress_us


@dataclass(slots=True)
class _Piece:
    """The job that adds the copy of one batch to the hidden topic. Its result is the partition with it; it changes
    nothing else, for a commit that meets a full disk is tried once more."""

    copying: _Copying
    row: BatchRow
    new: list[swapping.Replacement]
    progress_us: int
    synced: bool = True
    merge_key: None = None
    frees: bool = False

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        uid = bytes.fromhex(self.copying.new.uid)
        return swapping.drafts(uid, self.new)

    def apply(self, tx: Tx) -> PartitionRow:
        rows = [each.row if each.draft is None else swapping.placed(each.row, each.draft) for each in self.new]
        for row in rows:
            BATCHES.add(tx.db, row)
        state = self.copying.states[self.row.partition]
        state = state._replace(
            next=self.row.next,
            records=state.records + sum(row.records for row in rows),
            bytes=state.bytes + sum(row.length for row in rows),
            small=state.small + sum(map(is_small, rows)),
            progress=_stored(self.progress_us),
            arrived=self.row.arrived,
        )
        PARTITIONS.put(tx.db, state)
        return state


# -- taking its place ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Switch:
    """The job that puts the copy in the topic's place."""

    copying: _Copying
    letters: list[Append]
    synced: bool = True
    merge_key: None = None
    frees: bool = False

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        return [draft for letters in self.letters for draft in letters.drafts()]

    def apply(self, tx: Tx) -> None:
        old, new = self.copying.old, self.copying.new
        row = tx.topic(old.id)
        if row is None or row.revision != old.revision:
            raise swapping.Changed()
        for state in tx.partitions(old.id):
            self._settle(tx, state)
        _carry(tx, old.id, new.id)
        delete_rows(tx, old.id)
        TOPICS.put(tx.db, row._replace(name=None, revision=row.revision + 1))
        made = tx.topic(new.id)
        assert made is not None, "the upkeep lock is held: nobody deletes the copy"
        TOPICS.put(tx.db, made._replace(name=row.name, revision=made.revision + 1))
        for letters in self.letters:
            letters.apply(tx)
        tx.touched.add(row.uid)
        reach("mend.switched")

    def _settle(self, tx: Tx, state: PartitionRow) -> None:
        """What is left of a partition's row, once all its records are copied."""
        now_us, copied = self.copying.now_us, self.copying.states[state.partition]
        if state.earliest != self.copying.first[state.partition]:
            raise swapping.Changed()
        if state.next != copied.next:
            raise _Grown()
        right = state.progress is not None and state.progress <= now_us
        PARTITIONS.put(
            tx.db,
            copied._replace(
                arrived=min(state.arrived, now_us),
                progress=state.progress if right else copied.progress,
                cleaned=state.cleaned,
                revisit=state.revisit,
            ),
        )


def _letters(catalog: Catalog, copying: _Copying) -> list[Append]:
    named = replace(copying.new, name=copying.old.name)
    return [
        dead_letters.quarantined(catalog, named, batch.drop_columns(list(swapping.PER_ROW_NAMES)))
        for batch in copying.ahead
    ]


def _carry(tx: Tx, old: int, new: int) -> None:
    """Who reads and writes the topic goes on where they were. Members do not: their handles are of the old topic."""
    for table in CARRIED:
        table.add_all(tx.db, [row._replace(topic=new) for row in table.select(tx.db, "WHERE topic = ?", old)])
    for share in SHARES.select(tx.db, "WHERE topic = ?", old):
        SHARES.add(tx.db, share._replace(topic=new, epoch=share.epoch + 1, member=None, wanted_by=None))
    for queue in QUEUES.select(tx.db, "WHERE topic = ?", old):
        QUEUES.put(tx.db, queue._replace(topic=new))
    for letter in DEAD.select(tx.db, "WHERE topic = ?", old):
        DEAD.put(tx.db, letter._replace(topic=new))
