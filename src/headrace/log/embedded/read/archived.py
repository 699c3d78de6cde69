"""Batches that lie in an archive: each is a row group of a Parquet file, in the directory that the topic's settings
name. Owns where such a file is, and how a row group becomes what a frame holds. Changes nothing.

Any reader of Parquet can read the files: the topic's columns are followed by `_offset`, `_arrived_at`, `_progress`."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import DamagedData
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import Body
from headrace.log.embedded.storage.index import FILES, BatchRow
from headrace.storage import disk

__all__ = ["bodies", "crc_of", "path_of"]

CHUNK_BYTES = 1 << 20


def path_of(engine: Engine, topic: TopicState, row: BatchRow) -> Path:
    """The index has the file's name; the topic's settings have the directory."""
    assert row.file is not None
    with engine.index.reading() as db:
        found = FILES.get(db, row.file)
    name = "" if found is None else found.name
    if topic.settings.archive is None or not name or "/" in name or name.startswith("."):
        why = "the topic names no archive any more: alter(archive=DIRECTORY)"
        raise _damaged(Path(name or f"data file {row.file}"), topic, row, why)
    return Path(topic.settings.archive) / name


def bodies(
    engine: Engine, topic: TopicState, run: Sequence[BatchRow], stored: pa.Schema
) -> Iterator[tuple[BatchRow, memoryview]]:
    """Of neighbours in one file. `stored`: the columns that a frame of theirs would have."""
    first = run[0]
    path = path_of(engine, topic, first)
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(pq.ParquetFile(path, page_checksum_verification=True))
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, topic, first, str(error)) from error
        for row in run:
            try:
                table = file.read_row_group(row.position).select(stored.names).combine_chunks()
                table = table if table.schema.equals(stored) else table.cast(stored)
                found = table.to_batches()[0] if table.num_rows else None
            except (OSError, pa.ArrowException, IndexError, KeyError) as error:
                raise _damaged(path, topic, row, str(error)) from error
            if found is None or found.num_rows != row.records:
                raise _damaged(path, topic, row, f"{table.num_rows} records where {row.records} should be")
            yield row, Body.of(found).data


def crc_of(path: Path) -> int:
    """Of all bytes of a file: Parquet's own checksums leave some out. The rows of its row groups have it."""
    crc = 0
    with disk.typed(path), path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def _damaged(path: Path, topic: TopicState, row: BatchRow, why: str) -> DamagedData:
    return DamagedData(
        path=str(path),
        why=f"archived: {why}",
        topic=topic.name,
        partition=row.partition,
        start=row.base,
        stop=row.next,
        position=row.position,
    )
