"""Sealing: many small batches become few large ones, so that reading and the index stay cheap however records came
in, and plain ones are compressed where the topic says so. Owns which batches are rewritten; nothing about their records
changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import SMALL_BYTES, SMALL_RECORDS, is_small
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import ARCHIVED, COMPRESSED, PER_ROW
from headrace.log.embedded.storage.index import BATCHES, BatchRow
from headrace.log.embedded.upkeep import swapping

SWAP_RECORDS, SWAP_BYTES, SWAP_BATCHES = 50_000, 8 << 20, 2_000
"""At most this much is replaced in one transaction: others wait while it runs."""
SHARE = 10
"""Retention deletes whole batches: what is joined is at most this part of it, in time and in bytes."""
COMPRESS_BYTES = 8 << 20
"""In the background a partition's large batches are compressed when so many bytes of them are plain."""


def seal(engine: Engine, catalog: Catalog, topic: TopicState, partition: int) -> int:
    """Joins neighbours that are small, and compresses what is plain. Returns how many batches are fewer."""
    for file, size in plain_bytes(engine, topic, partition).items():
        if size >= COMPRESS_BYTES:  # what takes their place goes to another file, so that this one can be removed
            engine.files.close_early(file)
    runs = _runs(topic, _unsealed(engine, topic, partition))
    swaps = (
        swapping.Swap(
            topic, run, swapping.replacements(topic, run, list(swapping.contents(engine, catalog, topic, run)))
        )
        for run in runs
    )
    return sum(max(0, len(swap.old) - len(swap.new)) for swap in swapping.swapped(engine, swaps))


def plain_bytes(engine: Engine, topic: TopicState, partition: int) -> dict[int, int]:
    """How many bytes of large batches sealing would compress, by the data file they lie in."""
    if topic.settings.compression == "none":
        return {}
    with engine.index.reading() as db:
        found = db.execute(
            "SELECT file, sum(length) FROM batches WHERE topic = ? AND partition = ? AND file IS NOT NULL "
            "AND NOT flags & ? AND (records >= ? OR plain_bytes >= ?) GROUP BY file",
            (topic.id, partition, COMPRESSED | ARCHIVED, SMALL_RECORDS, SMALL_BYTES),
        )
        return dict(found)


def _unsealed(engine: Engine, topic: TopicState, partition: int) -> Iterator[BatchRow]:
    """Small batches, emptied ranges and batches to be compressed, in order. What a power loss took stays visible as
    that."""
    compressing = topic.settings.compression != "none"
    offset = 0
    while True:
        with engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND base >= ? AND (file IS NOT NULL OR flags & ?) AND NOT flags & ? "
                "AND (records < ? AND plain_bytes < ? OR ? AND NOT flags & ?) ORDER BY base LIMIT ?",
                *(topic.id, partition, offset, PER_ROW, ARCHIVED),
                *(SMALL_RECORDS, SMALL_BYTES, compressing, COMPRESSED, SWAP_BATCHES),
            )
        yield from page
        if len(page) < SWAP_BATCHES:
            return
        offset = page[-1].next


def together(topic: TopicState, first: BatchRow, row: BatchRow, size: int) -> bool:
    """Whether retention lets both be in one batch of that size. Times are cut into fixed stretches: a batch that could
    be joined with whatever comes next, again and again, would never be old."""
    settings = topic.settings
    if settings.retention_bytes is not None and size > settings.retention_bytes // SHARE:
        return False
    stretch_us = max(1, settings.retention_us // SHARE) if settings.retention_us is not None else None
    return stretch_us is None or first.arrived // stretch_us == row.arrived // stretch_us


def _runs(topic: TopicState, rows: Iterator[BatchRow]) -> Iterator[list[BatchRow]]:
    """Neighbours, as many as one swap may replace. One alone is worth it only to compress it, and if it is large."""
    compressing = topic.settings.compression != "none"
    run: list[BatchRow] = []
    records = size = stored = 0
    for row in itertools.chain(rows, [None]):
        fits = (
            row is not None
            and run
            and row.base == run[-1].next
            and records + row.records <= SWAP_RECORDS
            and size + row.plain_bytes <= SWAP_BYTES
            and together(topic, run[0], row, stored + row.length)
            and len(run) < SWAP_BATCHES
        )
        if not fits:
            if len(run) > 1 or (compressing and run and _to_compress(run[0])):
                yield run
            run, records, size, stored = [], 0, 0, 0
        if row is not None:
            run.append(row)
            records, size, stored = records + row.records, size + row.plain_bytes, stored + row.length


def _to_compress(row: BatchRow) -> bool:
    return row.file is not None and not row.flags & COMPRESSED and not is_small(row)
