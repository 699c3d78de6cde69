"""Swapping batches: others take their place in one transaction, holding the same records or fewer of them. Sealing,
compaction, erasure and the moving of frames are all this one step. Owns how the replacements look; does not know why.

A replacement covers the same offsets. Its rows carry `_offset`, `_arrived_at` and `_progress`, so that rewriting never
changes an offset or a time. The new frames are synced before the commit that makes them count, whatever the topic's
durability; before it they do not exist, after it the old ones do not: a crash leaves exactly one of the two."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, IndexDamaged
from headrace.failpoints import reach
from headrace.log.embedded.read.reading import Reader
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Job, Tx, is_small
from headrace.log.embedded.storage.datafiles import Draft
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import CODECS, EXTRA, JOINED, PER_ROW, Body
from headrace.log.embedded.storage.index import BATCHES, PARTITIONS, BatchRow, row_crc
from headrace.log.embedded.write.append import frames_of
from headrace.log.incoming import bounds
from headrace.schema import EXTRA_COLUMN

PER_ROW_NAMES = ("_offset", "_arrived_at", "_progress")


class Changed(HeadraceError):
    """The batches were replaced or deleted meanwhile, or the topic altered: look again."""


@dataclass(slots=True)
class Replacement:
    """A batch to be: its row, whose place is not known yet, and its bytes (none for a range without records)."""

    row: BatchRow
    body: Body | None
    draft: Draft | None = None


@dataclass(slots=True)
class Swap:
    """The job. `also` does more in the same transaction."""

    topic: TopicState
    old: Sequence[BatchRow]
    new: list[Replacement]
    also: Callable[[Tx], Any] | None = None
    synced: bool = True
    merge_key: None = None
    frees: bool = False
    _drafts: list[Draft] | None = field(default=None)

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        return drafts(bytes.fromhex(self.topic.uid), self.new)

    def apply(self, tx: Tx) -> None:
        first, last = self.old[0], self.old[-1]
        topic = tx.topic(self.topic.id)
        if topic is None or topic.revision != self.topic.revision:  # its schema may have columns we did not read
            raise Changed()
        place = (first.topic, first.partition)
        span = ("WHERE topic = ? AND partition = ? AND base BETWEEN ? AND ?", *place, first.base, last.base)
        found = tx.db.execute(f"SELECT count(*), sum(crc) FROM batches {span[0]}", span[1:]).fetchone()
        if found != (len(self.old), sum(row_crc("batches", row) for row in self.old)):
            raise Changed()
        BATCHES.delete(tx.db, *span)
        reach("swap.deleted")
        rows = [each.row if each.draft is None else placed(each.row, each.draft) for each in self.new]
        for row in rows:
            BATCHES.add(tx.db, row)
        state = PARTITIONS.get(tx.db, *place)
        if state is None:
            raise IndexDamaged(path="partitions", why=f"there are batches of {place}, but no such partition")
        held = {
            "records": state.records + _total(rows, "records") - _total(self.old, "records"),
            "bytes": state.bytes + _total(rows, "length") - _total(self.old, "length"),
            "small": state.small + sum(map(is_small, rows)) - sum(map(is_small, self.old)),
        }
        PARTITIONS.put(tx.db, state._replace(rewritten=state.rewritten + 1, **held))
        if self.also is not None:
            self.also(tx)


def drafts(uid: bytes, replacements: list[Replacement]) -> list[Draft]:
    """Their frames, to be written for the topic of that id."""
    for each in replacements:
        if each.body is not None:
            row = each.row
            each.draft = Draft(
                uid, row.partition, each.body, row.schema, row.event_min, row.event_max, row.flags & ~JOINED
            )
    return [each.draft for each in replacements if each.draft is not None]


def placed(row: BatchRow, draft: Draft) -> BatchRow:
    return row._replace(
        file=draft.file,
        position=draft.position,
        length=draft.length,
        body_crc=draft.body.crc,
        plain_bytes=draft.body.plain_bytes,
        records=draft.body.count,
        flags=draft.flags,
    )


def _total(rows: Sequence[BatchRow], column: str) -> int:
    return sum(getattr(row, column) for row in rows)


def swapped(engine: Engine, swaps: Iterable[Swap]) -> Iterator[Swap]:
    """Writes and commits them in order; while one is written the next is prepared. Changed when its batches are not
    what they were."""
    waiting: tuple[Swap, Future[Any]] | None = None
    for swap in itertools.chain(swaps, [None]):
        engine.background.check()
        begun = None
        if swap is not None:
            reach("swap.prepared")
            begun = swap, engine.submit(swap)
        if waiting is not None:
            waiting[1].result()
            reach("swap.done")
            yield waiting[0]
        waiting = begun


def submit(engine: Engine, swap: Swap) -> None:
    for _ in swapped(engine, [swap]):
        pass


# -- what takes their place --------------------------------------------------------------------------


def stored_columns(catalog: Catalog, topic: TopicState) -> list[str]:
    """What a rewritten batch holds, in its order."""
    extra = [EXTRA_COLUMN] if topic.settings.extra_kept else []
    return [*catalog.schema(topic).names, *extra, *PER_ROW_NAMES]


def contents(engine: Engine, catalog: Catalog, topic: TopicState, old: Sequence[BatchRow]) -> Iterator[pa.RecordBatch]:
    """What the batches hold, as the newest schema has it, with every row's metadata."""
    reader = Reader(engine, catalog, topic, old[0].partition)
    return reader.batches(old[0].base, old[-1].next, stored_columns(catalog, topic))


def replacements(
    topic: TopicState, old: Sequence[BatchRow], kept: Sequence[pa.RecordBatch], compression: str | None = None
) -> list[Replacement]:
    """Batches as large as frames may be, which cover what `old` covers and hold `kept`. `compression`: the topic's
    unless it is given."""
    first, last = old[0], old[-1]
    rows = [batch for batch in kept if batch.num_rows]
    if not rows:
        emptied = first._replace(next=last.next, records=0, file=None, position=0, length=0, body_crc=0, plain_bytes=0)
        return [
            Replacement(emptied._replace(event_min=None, event_max=None, arrived=last.arrived, flags=PER_ROW), None)
        ]
    whole = pa.Table.from_batches(rows).combine_chunks().to_batches()
    frames = [frame for batch in whole for frame in frames_of(batch)]
    out: list[Replacement] = []
    event_time, compression = topic.settings.event_time, compression or topic.settings.compression
    reached: int | None = None  # rows that were given their progress need not be in its order
    for number, frame in enumerate(frames):
        opens, closes = number == 0, number == len(frames) - 1
        offset, progress = frame.column("_offset")[0].as_py(), frame.column("_progress")[0].value
        low, high = (None, None) if event_time is None else bounds(frame.column(event_time))
        row = first._replace(
            base=first.base if opens else offset,
            next=last.next if closes else frames[number + 1].column("_offset")[0].as_py(),
            schema=topic.schema_version,
            event_min=low,
            event_max=high,
            progress=first.progress if opens else _latest(reached, _covering(old, offset).progress, progress),
            arrived=last.arrived if closes else frame.column("_arrived_at")[-1].value,
            flags=PER_ROW | (EXTRA if EXTRA_COLUMN in frame.schema.names else 0) | CODECS[compression],
        )
        out.append(Replacement(row, Body.of(_computable_left_out(frame, row.base), compression)))
        reached = _latest(row.progress, bounds(frame.column("_progress"))[1])
    return out


def _computable_left_out(frame: pa.RecordBatch, base: int) -> pa.RecordBatch:
    """Offsets that follow each other from `base` on are null: readers count them."""
    offsets = frame.column("_offset")
    if (offsets[0].as_py(), offsets[-1].as_py()) != (base, base + frame.num_rows - 1):
        return frame
    return frame.set_column(frame.schema.names.index("_offset"), "_offset", pa.nulls(frame.num_rows, pa.int64()))


def _covering(old: Sequence[BatchRow], offset: int) -> BatchRow:
    return old[bisect.bisect_right(old, offset, key=lambda row: row.base) - 1]


def _latest(*progresses: int | None) -> int | None:
    return max((p for p in progresses if p is not None), default=None)
