"""Reclaiming: frees disk space that no batch needs. Owns when a data file is removed, and when its live batches are
moved.

A closed file without live batches is forgotten by the index, then unlinked; one that is mostly dead has its last
batches moved, as they are, to this process's file. A reader that still looks for an unlinked file looks its row up
again. Files that a live process appends to are left alone."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.errors import DamagedData, IndexDamaged, TopicReplaced
from headrace.failpoints import reach
from headrace.log.embedded.read.reading import Reader
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import Body
from headrace.log.embedded.storage.index import BATCHES, FILES, PARTITIONS, TOPICS, BatchRow, FileRow
from headrace.log.embedded.upkeep import swapping, usage
from headrace.storage import disk

MOVE_BATCHES, MOVE_BYTES = 500, 8 << 20
ROLL_BYTES = 1 << 20
"""A process's own file, when it is mostly dead and at least this long, is closed early."""


@dataclass(slots=True)
class Reclaimed:
    files: int = 0
    bytes: int = 0
    moved_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """Damaged batches, which stay where they are."""


def needed(db: sqlite3.Connection) -> dict[int, list[tuple[int, int]]]:
    """Which bytes of each data file batches need, for those who destroy the others: every row is checked, and that none
    is missing. What a damaged index does not show must not be lost for good."""
    out: dict[int, list[tuple[int, int]]] = {}
    held = 0
    for row in BATCHES.each(db):
        held += row.length
        if row.file is not None:
            out.setdefault(row.file, []).append((row.position, row.position + row.length))
    expected = sum(state.bytes for state in PARTITIONS.each(db))
    if held != expected:
        raise IndexDamaged(path="batches", why=f"they hold {held} bytes, their partitions {expected}")
    return out


def gaps(live: list[tuple[int, int]], stop: int) -> Iterator[tuple[int, int]]:
    """What lies between the bytes that batches need, up to `stop`."""
    at = 0
    for begin, end in live:
        if begin > at:
            yield at, begin
        at = max(at, end)
    if at < stop:
        yield at, stop


def reclaim(engine: Engine, catalog: Catalog) -> Reclaimed:
    done = Reclaimed()
    if disk.is_low(engine.data):
        done.bytes += punch_gaps(engine)
    with engine.index.snapshot() as db:
        live = usage.live_bytes(db)
        files = FILES.select(db)
    for row in files:
        assert row.id is not None
        if not usage.mostly_dead(row, live.get(row.id, 0)):
            continue
        if row.state == "closed" and row.id in live:
            _move(engine, catalog, row.id, done)
        elif row.state == "ingest" and row.committed >= ROLL_BYTES:
            engine.files.close_early(row.id)
    with engine.index.snapshot() as db:
        live = usage.live_bytes(db)
        empty = [row for row in FILES.select(db, "WHERE state = 'closed'") if row.id not in live]
        if empty:
            live_for_sure = needed(db)
            empty = [row for row in empty if row.id not in live_for_sure]
    if empty:
        _forget(engine, empty, done)
    return done


def punch_gaps(engine: Engine) -> int:
    """Gives back what batches do not need any more, where it lies: moving the rest would need space first. Returns how
    many bytes."""
    with engine.index.snapshot() as db:
        files = FILES.select(db, "WHERE state <> 'suspect'")
        live = needed(db)
    engine.committer.run(lambda _: None, synced=True)  # or a power loss could bring back what we saw deleted
    return sum(_punch(engine, row, gaps(sorted(live.get(row.id or -1, [])), row.committed)) for row in files)


def punch_replaced(engine: Engine, old: BatchRow) -> None:
    """Gives back the bytes of a batch that was read whole, and whose replacement is committed and synced."""
    assert old.file is not None
    with engine.index.reading() as db:
        row = FILES.get(db, old.file)
    if row is not None and row.state != "suspect":
        _punch(engine, row, [(old.position, old.position + old.length)])


def _punch(engine: Engine, row: FileRow, ranges: Iterable[tuple[int, int]]) -> int:
    try:
        fd = os.open(engine.data / row.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        before = disk.held_bytes(os.fstat(fd))
        for begin, end in ranges:
            disk.punch(fd, begin, end)
        return before - disk.held_bytes(os.fstat(fd))
    finally:
        os.close(fd)


def _forget(engine: Engine, empty: list[FileRow], done: Reclaimed) -> None:
    """The row first: a file nobody knows is removed by the next opening, a row without its file would be damage."""

    def apply(tx: Tx) -> None:
        for row in empty:  # a closed file never gets another batch
            FILES.delete(tx.db, "WHERE id = ?", row.id)

    engine.committer.run(apply, synced=True)
    reach("reclaim.forgotten")
    for row in empty:
        path = engine.data / row.name
        with contextlib.suppress(OSError):
            size = disk.held_bytes(os.stat(path))
            os.unlink(path)
            done.files += 1
            done.bytes += size
        engine.files.forget(row.id)
        reach("reclaim.unlinked")


def _move(engine: Engine, catalog: Catalog, file: int, done: Reclaimed) -> None:
    """The frames of a file, byte for byte, to where this process writes. What is damaged stays, as does the file."""
    with engine.index.reading() as db:
        rows = BATCHES.select(db, "WHERE file = ? ORDER BY topic, partition, base", file)
    for run in _runs(rows):
        first = run[0]
        with engine.index.reading() as db:
            row = TOPICS.get(db, first.topic)
        if row is None or row.name is None:
            continue  # deleted meanwhile
        try:
            topic = catalog.current(first.topic, row.name, row.uid)
            moved = _as_they_are(engine, catalog, topic, run)
            swapping.submit(engine, swapping.Swap(topic, run, moved, frees=True))
            done.moved_bytes += sum(row.length for row in run)
        except (swapping.Changed, TopicReplaced):  # then it has left the file anyway
            continue
        except DamagedData as error:
            done.problems.append(f"{row.name}/{first.partition}: {error}")


def _runs(rows: list[BatchRow]) -> list[list[BatchRow]]:
    """Neighbours of a partition, as many as one swap moves."""
    out: list[list[BatchRow]] = []
    size = 0
    for row in rows:
        last = out[-1][-1] if out else None
        near = last is not None and (last.topic, last.partition, last.next) == (row.topic, row.partition, row.base)
        if not near or len(out[-1]) >= MOVE_BATCHES or size + row.length > MOVE_BYTES:
            out.append([])
            size = 0
        out[-1].append(row)
        size += row.length
    return out


def _as_they_are(
    engine: Engine, catalog: Catalog, topic: TopicState, run: list[BatchRow]
) -> list[swapping.Replacement]:
    reader = Reader(engine, catalog, topic, run[0].partition)
    found = [(row, Body(body, row.records, row.body_crc, row.plain_bytes)) for row, body in reader.bodies(run)]
    if [row for row, _ in found] != run:
        raise swapping.Changed()
    return [swapping.Replacement(row, body) for row, body in found]
