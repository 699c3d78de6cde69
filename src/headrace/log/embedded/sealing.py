"""Sealing: many small batches become few large ones, so that reading and the index stay cheap however records came
in. Owns which batches are joined; nothing else about them changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from headrace.log.embedded import swapping
from headrace.log.embedded.catalog import Catalog, TopicState
from headrace.log.embedded.committer import SMALL_BYTES, SMALL_RECORDS
from headrace.log.embedded.engine import Engine
from headrace.log.embedded.frames import PER_ROW
from headrace.log.embedded.index import BATCHES, BatchRow

SWAP_RECORDS, SWAP_BYTES, SWAP_BATCHES = 50_000, 8 << 20, 2_000
"""At most this much is replaced in one transaction: others wait while it runs."""
SHARE = 10
"""Retention deletes whole batches: what is joined is at most this part of it, in time and in bytes."""


def seal(engine: Engine, catalog: Catalog, topic: TopicState, partition: int) -> int:
    """Joins neighbours that are small. Returns how many batches are fewer."""
    runs = _runs(topic, _small(engine, topic, partition))
    swaps = (
        swapping.Swap(
            topic, run, swapping.replacements(topic, run, list(swapping.contents(engine, catalog, topic, run)))
        )
        for run in runs
    )
    return sum(len(swap.old) - len(swap.new) for swap in swapping.swapped(engine, swaps))


def _small(engine: Engine, topic: TopicState, partition: int) -> Iterator[BatchRow]:
    """Small batches and emptied ranges, in order. What a power loss took stays visible as that."""
    offset = 0
    while True:
        with engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND base >= ? AND records < ? AND length < ? "
                "AND (file IS NOT NULL OR flags & ?) ORDER BY base LIMIT ?",
                *(topic.id, partition, offset, SMALL_RECORDS, SMALL_BYTES, PER_ROW, SWAP_BATCHES),
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
    """Neighbours, as many as one swap may replace."""
    run: list[BatchRow] = []
    records = size = 0
    for row in itertools.chain(rows, [None]):
        fits = (
            row is not None
            and run
            and row.base == run[-1].next
            and records + row.records <= SWAP_RECORDS
            and size + row.length <= SWAP_BYTES
            and together(topic, run[0], row, size + row.length)
            and len(run) < SWAP_BATCHES
        )
        if not fits:
            if len(run) > 1:
                yield run
            run, records, size = [], 0, 0
        if row is not None:
            run.append(row)
            records, size = records + row.records, size + row.length
