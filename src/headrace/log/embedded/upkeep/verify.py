"""Verification: everything the log holds, read and checked. Owns the list of what must be true; changes nothing.

SQLite's own integrity check          every row's checksum             rows of a partition touch, none is missing
every frame's header and checksum     every batch decodes, its count, its event times and its metadata agree
versions add up to the records ever appended; committed offsets lie inside the log; sequences match producers
queues' cursors lie inside the log, deliveries below them, none twice; one of a key at a time where order matters"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DamagedData, HeadraceError, TopicReplaced
from headrace.log.contract import Problem, Verified
from headrace.log.embedded.read.archived import crc_of, path_of
from headrace.log.embedded.read.reading import Reader
from headrace.log.embedded.storage import timekeeping
from headrace.log.embedded.storage.catalog import COPY, Catalog, TopicState, settings_from
from headrace.log.embedded.storage.deliveries import WAITING
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import ARCHIVED
from headrace.log.embedded.storage.index import (
    BATCHES,
    CURSORS,
    DEAD,
    DELIVERIES,
    FILES,
    PARTITIONS,
    PRODUCERS,
    QUEUES,
    SCHEMAS,
    SEQUENCES,
    SHARES,
    TABLES,
    TOPICS,
    BatchRow,
    PartitionRow,
    QueueRow,
    TopicRow,
)


def verify(engine: Engine, catalog: Catalog) -> Verified:
    problems: list[Problem] = []
    lost: list[Problem] = []
    topics: list[TopicRow] = []
    batches = records = size = 0
    try:
        problems += _index(engine)
        with engine.index.reading() as db:
            topics = TOPICS.select(db, "WHERE name IS NOT NULL ORDER BY id")
        for topic in topics:
            with contextlib.suppress(TopicReplaced):  # deleted meanwhile: nothing of it is left to check
                for counted in _topic(engine, catalog, topic, problems, lost):
                    batches, records, size = batches + 1, records + counted[0], size + counted[1]
    except HeadraceError as error:
        problems.append(Problem(str(error)))
    return Verified(len(topics), batches, records, size, problems, lost, _ahead(engine, problems))


def _ahead(engine: Engine, problems: list[Problem]) -> list[Problem]:
    try:
        found = timekeeping.standing(engine)
    except HeadraceError as error:
        problems.append(Problem(str(error)))
        return []
    return [
        Problem(f"ahead of the clock: arrival {each.arrived}, progress {each.progress}", each.topic, each.partition)
        for each in found.partitions
    ]


def _index(engine: Engine) -> Iterator[Problem]:
    with engine.index.snapshot() as db:
        for (text,) in db.execute("PRAGMA integrity_check(20)"):
            if text != "ok":
                yield Problem(f"SQLite: {text}", file="log.db")
        for table in TABLES:
            cursor = db.execute(f"SELECT {', '.join(table.columns)}, crc FROM {table.name}")
            while found := cursor.fetchmany(1000):
                for row in found:
                    try:
                        table.checked(row)
                    except HeadraceError as error:
                        yield Problem(str(error), file="log.db")
        yield from _files(engine, db)
        yield from _belongs_together(db)


def _files(engine: Engine, db: sqlite3.Connection) -> Iterator[Problem]:
    for row in FILES.select(db):
        path = engine.data / row.name
        try:
            size = os.stat(path).st_size
        except OSError as error:
            if row.committed:
                yield Problem(f"data file cannot be read: {error.strerror}", file=row.name)
            continue
        if size < row.committed:
            yield Problem(f"{size} bytes long, {row.committed} are committed", file=row.name, position=size)


def _belongs_together(db: sqlite3.Connection) -> Iterator[Problem]:
    """What one table says must agree with what another says: a row that vanished shows here."""
    for topic in TOPICS.select(db, "WHERE name IS NOT NULL"):
        assert topic.id is not None and topic.name is not None
        settings = settings_from(topic.settings)
        states = {row.partition: row for row in PARTITIONS.select(db, "WHERE topic = ?", topic.id)}
        if set(states) != set(range(settings.partitions)):
            yield Problem(f"has {settings.partitions} partitions, the index has {sorted(states)}", topic=topic.name)
        for state in states.values():
            held = db.execute(
                "SELECT coalesce(sum(records), 0), coalesce(sum(length), 0) FROM batches "
                "WHERE topic = ? AND partition = ?",
                (topic.id, state.partition),
            ).fetchone()
            if held != (state.records, state.bytes):
                what = f"batches hold {held[0]} records in {held[1]} bytes, expected {state.records} in {state.bytes}"
                yield Problem(what, topic.name, state.partition)
        versions = [row.version for row in SCHEMAS.select(db, "WHERE topic = ? ORDER BY version", topic.id)]
        if versions != list(range(1, topic.schema + 1)):
            yield Problem(f"schema versions {versions}, expected 1..{topic.schema}", topic=topic.name)
        if settings.versioned and topic.name != COPY:  # versions come with the switch
            (total,) = db.execute(
                "SELECT coalesce(sum(version), 0) FROM versions WHERE topic = ?", (topic.id,)
            ).fetchone()
            appended = sum(state.next for state in states.values())
            if total != appended:
                yield Problem(f"versions add up to {total}, {appended} records were appended", topic=topic.name)
        for share in SHARES.select(db, "WHERE topic = ?", topic.id):
            end = states[share.partition].next if share.partition in states else -1
            if share.committed is not None and share.committed > end:
                what = f"group {share.group_name!r} has committed {share.committed}, the log ends at {end}"
                yield Problem(what, topic.name, share.partition)
        for producer in PRODUCERS.select(db, "WHERE topic = ?", topic.id):
            rows = SEQUENCES.select(
                db, "WHERE topic = ? AND producer = ? ORDER BY sequence DESC LIMIT 1", topic.id, producer.name
            )
            if producer.sequence != (rows[0].sequence + rows[0].records if rows else 0):
                yield Problem(f"producer {producer.name!r}: its last sequences are missing", topic=topic.name)
        for queue in QUEUES.select(db, "WHERE topic = ?", topic.id):
            yield from _queue(db, topic.name, states, queue)
    for table in (CURSORS, DELIVERIES):
        (orphans,) = db.execute(
            f"SELECT count(*) FROM {table.name} WHERE queue NOT IN (SELECT id FROM queues)"
        ).fetchone()
        if orphans:
            yield Problem(f"{orphans} rows of {table.name} without their queue", file="log.db")
    dead = DEAD.select(db)
    if dead and not TOPICS.select(db, "WHERE name = '__dead_letters'"):
        yield Problem(f"{len(dead)} dead letters without their topic")


def _queue(db: sqlite3.Connection, topic: str, states: dict[int, PartitionRow], queue: QueueRow) -> Iterator[Problem]:
    cursors = {row.partition: row.next for row in CURSORS.select(db, "WHERE queue = ?", queue.id)}
    name = f"queue {queue.name!r}"
    for partition, cursor in cursors.items():
        end = states[partition].next if partition in states else -1
        if cursor > end:
            yield Problem(f"{name} is at {cursor}, the log ends at {end}", topic, partition)
    reached: dict[int, int] = {}
    going: dict[int, int] = {}
    for row in DELIVERIES.select(db, "WHERE queue = ? ORDER BY partition, offset", queue.id):
        where = (topic, row.partition, row.offset, row.stop)
        if not reached.get(row.partition, 0) <= row.offset < row.stop <= cursors.get(row.partition, 0):
            yield Problem(f"{name}: deliveries overlap, or lie behind its cursor", *where)
        reached[row.partition] = row.stop
        if (row.key is None) is bool(queue.by_key):
            yield Problem(f"{name}: a delivery with a key where none belongs, or without one", *where)
        if row.key is not None:
            going[row.key] = going.get(row.key, 0) + (row.due != WAITING)
    for count in going.values():
        if count != 1:
            yield Problem(f"{name}: {count} messages of one key are not waiting, one must be", topic)


def _topic(
    engine: Engine, catalog: Catalog, row: TopicRow, problems: list[Problem], lost: list[Problem]
) -> Iterator[tuple[int, int]]:
    assert row.id is not None and row.name is not None
    topic = catalog.current(row.id, row.name, row.uid)
    with engine.index.reading() as db:
        states = PARTITIONS.select(db, "WHERE topic = ?", row.id)
    for state in states:
        yield from _partition(engine, catalog, topic, state, problems, lost)


def _partition(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    state: PartitionRow,
    problems: list[Problem],
    lost: list[Problem],
) -> Iterator[tuple[int, int]]:
    reader = Reader(engine, catalog, topic, state.partition)
    expected, arrived, progress = state.earliest, None, None
    while expected < state.next:
        with engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ?1 AND partition = ?2 AND base >= coalesce((SELECT max(base) FROM batches "
                "WHERE topic = ?1 AND partition = ?2 AND base <= ?3), ?3) AND base < ?4 ORDER BY base LIMIT 1000",
                *(topic.id, state.partition, expected, state.next),
            )
            now = PARTITIONS.get(db, topic.id, state.partition)
        page = [row for row in page if row.next > expected]
        if now is not None and now.earliest > expected:  # retention was here meanwhile
            expected = now.earliest
            continue
        if not page:
            catalog.current(topic.id, topic.name, topic.uid)  # deleted meanwhile: TopicReplaced
            problems.append(Problem("no batch covers these offsets", topic.name, state.partition, expected, state.next))
            return
        for row in page:
            found = list(_batch(engine, reader, topic, catalog, row))
            if row.base > expected:
                found.append(Problem("no batch covers these offsets", topic.name, state.partition, expected, row.base))
            if row.base >= expected:
                if arrived is not None and row.arrived < arrived:
                    found.append(_problem("arrival goes back", topic, row))
                if progress is not None and (row.progress is None or row.progress < progress):
                    found.append(_problem("progress goes back", topic, row))
            if found:
                with engine.index.reading() as db:
                    if BATCHES.get(db, row.topic, row.partition, row.base) != row:
                        break  # upkeep has put something else in its place: look again
            problems += found
            expected, arrived, progress = row.next, row.arrived, row.progress
            if row.file is None and not row.flags:  # with flags, upkeep has emptied it: compacted, or erased
                lost.append(_problem("lost with the power", topic, row))
            yield row.records, row.length


def _problem(what: str, topic: TopicState, row: BatchRow, file: str = "", position: int = -1) -> Problem:
    return Problem(what, topic.name, row.partition, row.base, row.next, file, position)


def _batch(engine: Engine, reader: Reader, topic: TopicState, catalog: Catalog, row: BatchRow) -> Iterator[Problem]:
    """What is wrong with one batch."""
    if row.file is None:
        return
    event_time = topic.settings.event_time
    count = 0
    try:
        if row.flags & ARCHIVED and row.position == 0:
            path = path_of(engine, topic, row)
            if crc_of(path) != row.body_crc:
                yield _problem("checksum of the archive's file differs", topic, row, path.name)
        for batch in reader.batches(row.base, row.next, ["_offset", *catalog.schema(topic).names]):
            count += batch.num_rows
            batch.validate(full=True)
            if event_time is not None:
                bounds = pc.min_max(batch.column(event_time).cast(pa.int64()))
                if (bounds["min"].as_py(), bounds["max"].as_py()) != (row.event_min, row.event_max):
                    yield _problem("event times differ from what the index says", topic, row)
        if count != row.records:
            yield _problem(f"{count} records, the index says {row.records}", topic, row)
    except DamagedData as error:
        yield _problem(error.why, topic, row, os.path.basename(error.path), error.position)
    except TopicReplaced:
        raise
    except (HeadraceError, pa.ArrowException) as error:
        yield _problem(str(error), topic, row)
