"""Compaction: of each key, the newest record stays. Owns which records go; offsets, arrival and progress of those that
stay are untouched, so a new reader finds the full latest state, and an old one what it would have found.

A tombstone is a record that has nothing but its key (and event time). The newest of a key stays until its grace is over
and every registered group and queue has read it; then the key is gone.

Memory is bounded: when there are more than some millions of keys they are looked at in several passes, each a scan of
the key columns; what stays is kept as offsets. A last scan rewrites only batches that lose something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import keys
from headrace.log.embedded.read.reading import Reader
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Tx, is_small
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import BATCHES, PARTITIONS, BatchRow, PartitionRow
from headrace.log.embedded.storage.retention import consumers
from headrace.log.embedded.upkeep import swapping
from headrace.log.embedded.upkeep.sealing import SWAP_BATCHES, SWAP_BYTES, SWAP_RECORDS, together
from headrace.schema import EXTRA_COLUMN, OP_COLUMN

PASS_KEYS, PASSES_MAX = 4_000_000, 1024
MERGE_RECORDS = 3_000_000
UNREAD_US = 3_600_000_000
"""In the background, a tombstone that a group or queue has not read is looked at again after this long."""

Offsets = npt.NDArray[np.int64]


def compact(engine: Engine, catalog: Catalog, topic: TopicState, partition: int, now_us: int) -> int:
    """Returns how many records went."""
    with engine.index.snapshot() as db:
        state = PARTITIONS.get(db, topic.id, partition)
        seen = min((c.offset for c in consumers(db, topic.id) if c.partition == partition), default=None)
    if state is None or (state.cleaned >= state.next and state.revisit is None):
        return 0
    seen = state.next if seen is None else min(seen, state.next)
    newest, revisit = _newest(engine, catalog, topic, state, seen, now_us)
    swaps = (
        swapping.Swap(
            topic,
            run,
            swapping.replacements(
                topic, run, [_only(batch, newest) for batch in _read(engine, catalog, topic, run, stays)]
            ),
        )
        for run, stays in _runs(engine, topic, state, newest)
    )
    gone = 0
    for swap in swapping.swapped(engine, swaps):
        gone += sum(row.records for row in swap.old) - sum(new.body.count for new in swap.new if new.body)
    _note(engine, topic, partition, state.next, revisit)
    return gone


def _note(engine: Engine, topic: TopicState, partition: int, cleaned: int, revisit: int | None) -> None:
    def apply(tx: Tx) -> None:
        state = PARTITIONS.get(tx.db, topic.id, partition)
        if state is not None:
            PARTITIONS.change(tx.db, state._replace(cleaned=max(cleaned, state.earliest), revisit=revisit))

    engine.committer.run(apply, synced=False)


# -- what stays --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tombstones:
    """All that were met: their offsets, and when they came."""

    offsets: list[Offsets]
    arrived: list[Offsets]


def _newest(
    engine: Engine, catalog: Catalog, topic: TopicState, state: PartitionRow, seen: int, now_us: int
) -> tuple[Offsets, int | None]:
    """The offsets that stay, in order; and when to look at the tombstones among them again."""
    nothing = np.empty(0, np.int64)
    passes, stay = 1, None
    while stay is None:  # too many keys for so few passes
        tombstones = _Tombstones([nothing], [nothing])
        stay = _latest(engine, catalog, topic, state, passes, tombstones)
        passes *= 2
    newest = np.sort(stay)
    offsets, arrived = np.concatenate(tombstones.offsets), np.concatenate(tombstones.arrived)
    last = _among(offsets, newest)
    ends = arrived + topic.settings.tombstone_grace_us
    over = last & (ends < now_us) & (offsets < seen)
    waiting = ends[last & ~over]  # those that are unread wait for somebody who may take long
    revisit = int(np.where(waiting < now_us, now_us + UNREAD_US, waiting).min()) if len(waiting) else None
    return np.setdiff1d(newest, offsets[over], assume_unique=True), revisit


def _latest(
    engine: Engine, catalog: Catalog, topic: TopicState, state: PartitionRow, passes: int, tombstones: _Tombstones
) -> Offsets | None:
    """The newest offset of every key; None when a pass has more keys than it may."""
    stay = [np.empty(0, np.int64)]
    for number in range(passes):
        latest: pa.Table | None = None
        gathered: list[pa.Table] = []
        for part in _keys(engine, catalog, topic, state, number, passes, tombstones):
            gathered.append(part)
            if sum(table.num_rows for table in gathered) >= MERGE_RECORDS:
                latest, gathered = _merged(latest, gathered, topic.settings.key), []
                if latest.num_rows > PASS_KEYS and passes < PASSES_MAX:
                    return None
        if gathered:
            latest = _merged(latest, gathered, topic.settings.key)
        if latest is not None:
            stay.append(latest.column("_offset").to_numpy())
    return np.concatenate(stay)


def _keys(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    state: PartitionRow,
    number: int,
    passes: int,
    tombstones: _Tombstones,
) -> Iterator[pa.Table]:
    """Keys and offsets of one pass, those whose crc falls to it; tombstones are found on the way of the first."""
    key, of_topic = topic.settings.key, topic.settings.partitions
    values = _values(catalog, topic) if number == 0 else []
    reader = Reader(engine, catalog, topic, state.partition)
    for batch in reader.batches(state.earliest, state.next, [*key, "_offset", *values, "_arrived_at"]):
        engine.background.check()
        if values == [OP_COLUMN] or (values and all(batch.column(name).null_count for name in values)):
            _find_tombstones(batch, values, tombstones)
        batch = batch.select([*key, "_offset"])
        if passes > 1:
            spread = keys.partitions_of(batch, key, passes * of_topic) // of_topic
            batch = batch.filter(pa.array(spread == number))
        yield pa.Table.from_batches([batch])


def _values(catalog: Catalog, topic: TopicState) -> list[str]:
    """The columns a tombstone has nothing in; of a table's records the one that says whether they delete."""
    settings = topic.settings
    if OP_COLUMN in catalog.schema(topic).names:
        return [OP_COLUMN]
    names = [name for name in catalog.schema(topic).names if name not in settings.key and name != settings.event_time]
    return [*names, EXTRA_COLUMN] if settings.extra_kept and names else names


def _find_tombstones(batch: pa.RecordBatch, values: list[str], tombstones: _Tombstones) -> None:
    empty = pc.is_null(batch.column(values[0]))
    if values == [OP_COLUMN]:
        empty = pc.equal(batch.column(OP_COLUMN), "delete").fill_null(False)
    for name in values[1:]:
        empty = pc.and_(empty, pc.is_null(batch.column(name)))
    found = batch.filter(empty)
    tombstones.offsets.append(found.column("_offset").to_numpy())
    tombstones.arrived.append(found.column("_arrived_at").view(pa.int64()).to_numpy())


def _merged(latest: pa.Table | None, more: list[pa.Table], key: tuple[str, ...]) -> pa.Table:
    tables = [*([latest] if latest is not None else []), *more]
    grouped = pa.concat_tables(tables).group_by(list(key)).aggregate([("_offset", "max")])
    return grouped.rename_columns([*key, "_offset"])


def _among(offsets: Offsets, known: Offsets) -> npt.NDArray[np.bool_]:
    """Which of them are known; both in order."""
    if not len(known):
        return np.zeros(len(offsets), np.bool_)
    at = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[at] == offsets
    return found


# -- rewriting ---------------------------------------------------------------------------------------


def _runs(
    engine: Engine, topic: TopicState, state: PartitionRow, newest: Offsets
) -> Iterator[tuple[list[BatchRow], list[int]]]:
    """Neighbouring batches for one swap, at least one of which loses something, and how many records each keeps."""
    run: list[BatchRow] = []
    stays: list[int] = []
    records = size = stored = 0
    for row in _rows(engine, topic, state):
        low, high = np.searchsorted(newest, [row.base, row.next])
        kept = int(high - low)
        lost = row.file is None and not row.flags  # to a power loss: it stays visible as that
        changes = not lost and (kept < row.records or is_small(row) or row.file is None)
        if run and (
            not changes
            or records + kept > SWAP_RECORDS
            or size + row.plain_bytes > SWAP_BYTES * 4
            or not together(topic, run[0], row, stored + row.length)
            or len(run) == SWAP_BATCHES
        ):
            if sum(r.records for r in run) > records:
                yield run, stays
            run, stays, records, size, stored = [], [], 0, 0, 0
        if changes:
            run.append(row)
            stays.append(kept)
            records += kept
            size += row.plain_bytes if kept else 0
            stored += row.length if kept else 0
    if run and sum(r.records for r in run) > records:
        yield run, stays


def _rows(engine: Engine, topic: TopicState, state: PartitionRow) -> Iterator[BatchRow]:
    offset = state.earliest
    while offset < state.next:
        with engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND base >= ? AND next <= ? ORDER BY base LIMIT 1000",
                *(topic.id, state.partition, offset, state.next),
            )
        yield from page
        if not page:
            return
        offset = page[-1].next


def _read(
    engine: Engine, catalog: Catalog, topic: TopicState, run: list[BatchRow], stays: list[int]
) -> Iterator[pa.RecordBatch]:
    """What is in the batches that keep something; the others are not even read."""
    for row, kept in zip(run, stays, strict=True):
        if kept:
            yield from swapping.contents(engine, catalog, topic, [row])


def _only(batch: pa.RecordBatch, newest: Offsets) -> pa.RecordBatch:
    return batch.filter(pa.array(_among(batch.column("_offset").to_numpy(), newest)))
