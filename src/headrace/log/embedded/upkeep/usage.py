"""Disk use: what a topic and the log take, and what upkeep would free. Owns the counting; changes nothing, and needs no
Arrow."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from headrace.log.contract import LogUsage, TopicUsage
from headrace.log.embedded.storage import retention
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import FILES, META, PARTITIONS, FileRow
from headrace.storage import disk

WIPE = "wipe"
"""In `meta` while bytes may be left that an erasure promised to wipe."""


def live_bytes(db: sqlite3.Connection) -> dict[int, int]:
    """How much of each data file batches still need."""
    sums = "SELECT file, CAST(total(length) AS INTEGER) FROM batches WHERE file IS NOT NULL GROUP BY file"
    return dict(db.execute(sums))


def mostly_dead(row: FileRow, live: int) -> bool:
    """Then what is left of a closed file is worth moving."""
    return live * 2 < row.committed


def of_topic(engine: Engine, topic: TopicState) -> TopicUsage:
    with engine.index.snapshot() as db:
        states = PARTITIONS.select(db, "WHERE topic = ?", topic.id)
        (batches,) = db.execute("SELECT count(*) FROM batches WHERE topic = ?", (topic.id,)).fetchone()
        consumers = retention.consumers(db, topic.id)
    going = retention.would_free(engine, topic)
    return TopicUsage(
        sum(state.records for state in states),
        sum(state.bytes for state in states),
        batches,
        sum(state.small for state in states),
        going.records,
        going.bytes,
        consumers,
    )


def of_log(engine: Engine) -> LogUsage:
    with engine.index.snapshot() as db:
        live = live_bytes(db)
        files = FILES.select(db)
        wipe_due = META.get(db, WIPE) is not None
        # A batch without a file that upkeep has not emptied
        lost = "SELECT coalesce(sum(next - base), 0) FROM batches WHERE file IS NULL AND flags = 0"
        (lost_records,) = db.execute(lost).fetchone()
    dead = would_free = 0
    for row in files:
        needed = live.get(row.id or -1, 0)
        with contextlib.suppress(OSError):
            unneeded = max(0, disk.held_bytes(os.stat(engine.data / row.name)) - needed)
            dead += unneeded
            would_free += unneeded if row.state == "closed" and mostly_dead(row, needed) else 0
    return LogUsage(len(files), sum(live.values()), dead, would_free, wipe_due, lost_records)
