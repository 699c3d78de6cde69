"""Erasure: a key's records leave the log, and every file of its directory. Owns what has to be rewritten and wiped.

Batches that hold the key are swapped for others without it: its offsets stay covered, with nothing at them. Then all
bytes of the data files that no batch needs are overwritten with zeros (old frames, and what refused or crashed appends
left), and the index's write-ahead log is emptied. Until that is done the index remembers that it is to be done: after
a crash the next erasure or `maintain` goes on. What could not be wiped yet is reported as incomplete, with the reason.

The index holds no keys and no values, so there is nothing to erase in it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import jsonrows, keys
from headrace.errors import HeadraceError, InvalidArgument, OffsetOutOfRange, SyncFailed, TopicReplaced, UnknownTopic
from headrace.failpoints import reach
from headrace.log.contract import Erased
from headrace.log.embedded import disk, reclaiming, recovery, swapping
from headrace.log.embedded.catalog import Catalog, TopicState
from headrace.log.embedded.committer import Tx
from headrace.log.embedded.dead_letters import NAME as DEAD_LETTERS
from headrace.log.embedded.engine import Engine
from headrace.log.embedded.following import partitions_of_key
from headrace.log.embedded.index import BATCHES, DEAD, FILES, META, PARTITIONS, BatchRow, FileRow, MetaRow

WIPE = "wipe"
"""In `meta` while bytes may be left that an erasure promised to wipe."""
WIPE_BYTES = 1 << 20


def erase(engine: Engine, catalog: Catalog, topic: TopicState, key: Any) -> Erased:
    """The caller holds the upkeep lock."""
    columns = topic.settings.key
    if not columns:
        raise InvalidArgument("key", key, f"topic {topic.name!r} has no key, so no record can be found by it")
    wanted = keys.key_bytes(key, catalog.schema(topic), columns)

    def holds(batch: pa.RecordBatch) -> list[bool]:
        return [found == wanted for found in keys.all_key_bytes(batch, columns)]

    done = Erased(topic.name)
    engine.committer.run(lambda tx: META.put(tx.db, MetaRow(WIPE, "due")), synced=True)
    for partition in sorted(partitions_of_key(topic, wanted)):
        _rewrite(engine, catalog, topic, partition, holds, done)
    _letters(engine, catalog, topic, wanted, done)
    done.incomplete += wipe(engine)  # also when nothing was found: compaction and retention leave bytes behind
    return done


def _rewrite(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    partition: int,
    holds: Callable[[pa.RecordBatch], list[bool]],
    done: Erased,
    also: Callable[..., Any] | None = None,
) -> None:
    for row in _rows(engine, topic, partition):
        if row.file is None:
            continue
        try:
            for batch in swapping.contents(engine, catalog, topic, [row]):
                found = np.array(holds(batch), np.bool_)
                if not found.any():
                    continue
                gone = batch.column("_offset").filter(pa.array(found)).to_pylist()
                kept = batch.filter(pa.array(~found))
                end = None if also is None else functools.partial(also, gone=gone)
                swapping.submit(
                    engine, swapping.Swap(topic, [row], swapping.replacements(topic, [row], [kept]), also=end)
                )
                done.records += len(gone)
                done.batches += 1
        except (swapping.Changed, OffsetOutOfRange, TopicReplaced):
            continue  # deleted meanwhile: nothing is left of it but bytes
        except HeadraceError as error:
            done.incomplete.append(f"offsets {row.base}..{row.next} of {topic.name}/{partition} were not read: {error}")


def _rows(engine: Engine, topic: TopicState, partition: int) -> Iterator[BatchRow]:
    """Every batch there is now; nobody replaces any while the upkeep lock is held, and new records come after."""
    with engine.index.reading() as db:
        state = PARTITIONS.get(db, topic.id, partition)
        offset, stop = (state.earliest, state.next) if state else (0, 0)
    while offset < stop:
        with engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND base >= ? AND base < ? ORDER BY base LIMIT 1000",
                *(topic.id, partition, offset, stop),
            )
        if not page:
            return
        yield from page
        offset = page[-1].next


def _letters(engine: Engine, catalog: Catalog, topic: TopicState, wanted: bytes, done: Erased) -> None:
    """Dead letters that hold the key. A letter whose bytes were never a row goes when they contain the key's."""
    try:
        home = catalog.named(DEAD_LETTERS)
    except UnknownTopic:
        return
    schema, columns = catalog.schema(topic), topic.settings.key

    def of_key(text: str | None, raw: bytes | None) -> bool:
        if text is not None:
            try:
                row = jsonrows.decode_row(text, schema)
                values = [row.get(name) for name in columns]
                found = keys.key_bytes(values[0] if len(columns) == 1 else tuple(values), schema, columns)
                return found == wanted
            except (HeadraceError, ValueError):
                raw = text.encode()
        return wanted in (raw or b"") if len(columns) == 1 else False

    def holds(batch: pa.RecordBatch) -> list[bool]:
        rows = zip(*(batch.column(name).to_pylist() for name in ("topic_id", "row", "raw")), strict=True)
        return [uid == topic.uid and of_key(text, raw) for uid, text, raw in rows]

    def end(tx: Tx, gone: list[int]) -> None:
        for offset in gone:
            DEAD.delete(tx.db, "WHERE offset = ?", offset)

    of_letters = Erased(topic.name)
    _rewrite(engine, catalog, home, 0, holds, of_letters, end)
    done.dead_letters = of_letters.records
    done.incomplete += of_letters.incomplete


# -- wiping ------------------------------------------------------------------------------------------


def wipe_if_due(engine: Engine) -> list[str]:
    """What an erasure that was interrupted, or hindered, has left to do."""
    with engine.index.reading() as db:
        due = META.get(db, WIPE) is not None
    return wipe(engine) if due else []


def wipe(engine: Engine) -> list[str]:
    """Overwrites what no batch needs. Returns what could not be wiped, and why; then it is still due."""
    try:
        return _wiped(engine)
    except SyncFailed as error:
        engine.committer.distrust(error)


def _wiped(engine: Engine) -> list[str]:
    incomplete: list[str] = []
    engine.committer.run(lambda _: None, synced=True)  # so that the index knows how far our own file reaches
    with engine.index.snapshot() as db:
        files = FILES.select(db)
        places = reclaiming.needed(db)
    engine.committer.run(lambda _: None, synced=True)  # or a power loss could bring back what we saw deleted
    for row in files:
        assert row.id is not None
        incomplete += _wipe_file(engine, row, sorted(places.get(row.id, [])))
    incomplete += recovery.remove_leftovers(engine.index, engine.data)
    disk.sync_directory(engine.data)  # files that were unlinked, now or by reclaiming, must not come back
    reach("erase.wiped")
    if not engine.committer.checkpoint():
        incomplete.append("the index's write-ahead log: a reader is in the way. Try again in a moment")
    if not incomplete:
        engine.committer.run(lambda tx: META.delete(tx.db, "WHERE name = ?", WIPE), synced=True)
    return incomplete


def _wipe_file(engine: Engine, row: FileRow, live: list[tuple[int, int]]) -> list[str]:
    path = engine.data / row.name
    if row.state == "suspect":  # it may look wiped, and not be
        return [f"{path}: a sync of it failed. It is wiped after the log is opened again"]
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {os.strerror(error.errno or 0)}"]
    try:
        size = os.fstat(fd).st_size
        beyond = row.state == "ingest" and size > row.committed + 63  # frames are padded
        stop = size if row.state != "ingest" else min(size, row.committed)
        for begin, end in _gaps(live, stop):
            _zero(fd, begin, end)
        disk.sync(fd, path)
    except OSError as error:
        return [f"{path}: {os.strerror(error.errno or 0)}"]
    finally:
        os.close(fd)
    return [f"{path}: its process is appending right now. Try again in a moment"] if beyond else []


def _gaps(live: list[tuple[int, int]], stop: int) -> Iterator[tuple[int, int]]:
    at = 0
    for begin, end in live:
        if begin > at:
            yield at, begin
        at = max(at, end)
    if at < stop:
        yield at, stop


def _zero(fd: int, begin: int, end: int) -> None:
    """Skips what is zero already: paddings, and what was wiped before."""
    while begin < end:
        length = min(end - begin, WIPE_BYTES)
        if os.pread(fd, length, begin).strip(b"\0"):
            disk.write_at(fd, [bytes(length)], begin)
        begin += length
