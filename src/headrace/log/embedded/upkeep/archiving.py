"""Archiving: in place of deleting them, retention moves old records into Parquet files, in the directory that the topic
names. Owns when a file is written and counts: its name is noted, it is written and synced under another one, renamed,
and then in one transaction its row groups take the place of the batches. What a crash leaves is a file that no batch
needs, and the next run removes it: that file, and none of that name which another copy of the log has written. Offsets,
arrival and progress stay."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageError
from headrace.log.embedded.read.archived import crc_of
from headrace.log.embedded.storage import retention
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import ARCHIVED, EXTRA, PER_ROW
from headrace.log.embedded.storage.index import FILES, META, BatchRow, FileRow, MetaRow
from headrace.log.embedded.upkeep import swapping
from headrace.log.incoming import bounds
from headrace.storage import disk

__all__ = ["archive"]

GROUP_ROWS, GROUP_BYTES = 65_536, 8 << 20
"""A row group is read whole, whatever is wanted of it."""
ARCHIVING = "archiving"
"""In `meta`: `MARK:PATH` of the file that is being made, which the log does not need yet."""
MARK = b"headrace.made"
"""In a file: which attempt has made it. A copy of the log makes a file of the same name, with another mark."""
FILE_BYTES = 256 << 20
"""Of batches, so much goes into one file at most."""


def archive(engine: Engine, catalog: Catalog, topic: TopicState) -> int:
    """Moves what is due; how many records."""
    assert topic.settings.archive is not None
    folder = Path(topic.settings.archive)
    count = 0
    while True:
        with engine.index.snapshot() as db:
            due = retention.due(db, topic, retention.age_at_us(engine, db))
        if not due:
            return count
        if not count:
            _refuse_away(engine, topic, folder)
            disk.make_directory(folder)
        for partition in sorted({row.partition for row in due}):
            count += _archive(engine, catalog, topic, folder, [row for row in due if row.partition == partition])


def _archive(engine: Engine, catalog: Catalog, topic: TopicState, folder: Path, rows: list[BatchRow]) -> int:
    """Neighbours of one partition, from its first that is not archived on."""
    count = 0
    for run in _runs(rows):
        _remove_left(engine)
        name = f"{topic.name}-{topic.uid[:8]}-{run[0].partition}-{run[0].base:020d}-{run[-1].next:020d}.parquet"
        if (folder / name).exists():
            why = "exists, and this log did not write it: perhaps a copy of the log archives into the same directory"
            what = "Choose another for one of them (headrace topics alter TOPIC --archive DIR)"
            raise StorageError(path=str(folder / name), why=f"{why}. {what}")
        mark = uuid.uuid4().hex
        file = _begin(engine, mark, folder / name)
        groups = _write(engine, catalog, topic, mark, folder / name, run)
        crc = crc_of(folder / name) if groups else 0
        swapping.submit(engine, swapping.Swap(topic, run, _replacements(topic, run, groups, file, crc), also=_end))
        count += sum(group.rows for group in groups)
    return count


def _refuse_away(engine: Engine, topic: TopicState, folder: Path) -> None:
    """If the topic has files in its archive, and none is there: what was written now would be hidden by them."""
    with engine.index.reading() as db:
        known = db.execute(
            "SELECT DISTINCT f.name FROM batches b JOIN files f ON f.id = b.file "
            "WHERE b.topic = ? AND b.flags & ? AND b.records > 0",
            (topic.id, ARCHIVED),
        )
        names = [name for (name,) in known]
    if names and not any((folder / name).exists() for name in names):
        why = f"none of the {len(names)} files that {topic.name} has in its archive is there: is its disk mounted? "
        what = "Nothing is moved there until one is. If they are gone for good, alter(archive=None) lets retention "
        raise StorageError(path=str(folder), why=f"{why}{what}forget them")


def _begin(engine: Engine, mark: str, path: Path) -> int:
    """Notes the file that is about to be made, so that nobody else's is taken for what a crash has left. In `data/` it
    has no bytes; while no batch needs it, the index may forget it."""

    def apply(tx: Tx) -> int:
        META.put(tx.db, MetaRow(ARCHIVING, f"{mark}:{path}"))
        return FILES.add(tx.db, FileRow(None, path.name, "closed", 0, 0))

    file: int = engine.committer.run(apply, synced=True)
    return file


def _end(tx: Tx) -> None:
    META.delete(tx.db, "WHERE name = ?", ARCHIVING)


def _remove_left(engine: Engine) -> None:
    with engine.index.reading() as db:
        left = META.get(db, ARCHIVING)
    if left is None:
        return
    mark, _, text = left.value.partition(":")
    path = Path(text)
    with disk.typed(path):
        _making(mark, path).unlink(missing_ok=True)
        if path.exists() and _mark_in(path) == mark:
            path.unlink()


def _mark_in(path: Path) -> str:
    try:
        found: bytes = (pq.read_metadata(path).metadata or {}).get(MARK, b"")
    except pa.ArrowException:  # none that was written whole, as ours are
        return ""
    return found.decode("ascii", "replace")


def _making(mark: str, path: Path) -> Path:
    """What readers of Parquet take for no file of theirs."""
    return path.with_name(f".{path.name}.{mark}.making")


def _runs(rows: list[BatchRow]) -> Iterator[list[BatchRow]]:
    run: list[BatchRow] = []
    size = 0
    for row in rows:
        # What lies between two of them may be archived already: an erasure takes single files back.
        if run and (row.base != run[-1].next or size + row.plain_bytes > FILE_BYTES):
            yield run
            run, size = [], 0
        run.append(row)
        size += row.plain_bytes
    if run:
        yield run


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group that was written."""

    rows: int
    bytes: int
    first: int
    event_min: int | None
    event_max: int | None
    progress: int | None
    progress_max: int | None
    arrived: int


def _write(
    engine: Engine, catalog: Catalog, topic: TopicState, mark: str, path: Path, run: list[BatchRow]
) -> list[_Group]:
    """The groups of the file, which is whole and synced when this returns. Without any, there is no file."""
    groups: list[_Group] = []
    making = _making(mark, path)
    writer: pq.ParquetWriter | None = None
    fd = disk.create(making)
    try:
        with os.fdopen(os.dup(fd), "wb") as out, disk.typed(making):
            for table in _tables(swapping.contents(engine, catalog, topic, run)):
                if writer is None:
                    writer = pq.ParquetWriter(out, table.schema, compression="zstd", write_page_checksum=True)
                writer.write_table(table, row_group_size=table.num_rows)
                groups.append(_group(topic, table))
            if writer is not None:
                writer.add_key_value_metadata({MARK: mark.encode()})
                writer.close()
            out.flush()
        disk.sync(fd, making)
    except BaseException:
        making.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    if groups:
        with disk.typed(path):
            os.rename(making, path)
        disk.sync_directory(path.parent)
    else:
        making.unlink()
    return groups


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut into row groups."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        while batch.num_rows:
            room = GROUP_ROWS - sum(each.num_rows for each in held)
            held.append(batch.slice(0, room))
            batch = batch.slice(room)
            if batch.num_rows or sum(each.nbytes for each in held) >= GROUP_BYTES:
                yield pa.Table.from_batches(held)
                held = []
    if held:
        yield pa.Table.from_batches(held)


def _group(topic: TopicState, table: pa.Table) -> _Group:
    event_time = topic.settings.event_time
    low, high = (None, None) if event_time is None else bounds(table.column(event_time).combine_chunks())
    progress = table.column("_progress").combine_chunks()
    return _Group(
        table.num_rows,
        table.nbytes,
        table.column("_offset")[0].as_py(),
        low,
        high,
        progress[0].value,
        bounds(progress)[1],
        table.column("_arrived_at")[-1].value,
    )


def _replacements(
    topic: TopicState, run: list[BatchRow], groups: list[_Group], file: int, crc: int
) -> list[swapping.Replacement]:
    """The same offsets, by the row groups that have their records."""
    first, last = run[0], run[-1]
    if not groups:  # compacted, erased, or lost: this is what was due, and is no more
        (emptied,) = swapping.replacements(topic, run, [])
        return [swapping.Replacement(emptied.row._replace(flags=PER_ROW | ARCHIVED), None)]
    out = []
    reached: int | None = first.progress
    extra = EXTRA if topic.settings.extra_kept else 0
    for number, group in enumerate(groups):
        opens, closes = number == 0, number == len(groups) - 1
        known = [each for each in (reached, group.progress) if each is not None]
        row = first._replace(
            base=first.base if opens else group.first,
            next=last.next if closes else groups[number + 1].first,
            records=group.rows,
            file=file,
            position=number,
            length=0,
            body_crc=crc,
            plain_bytes=group.bytes,
            schema=topic.schema_version,
            event_min=group.event_min,
            event_max=group.event_max,
            progress=first.progress if opens else max(known, default=None),
            arrived=last.arrived if closes else group.arrived,
            flags=PER_ROW | extra | ARCHIVED,
        )
        out.append(swapping.Replacement(row, None))
        reached = max([each for each in (row.progress, group.progress_max) if each is not None], default=None)
    return out
