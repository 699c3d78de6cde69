"""What queues hand out: records read ahead of a cursor, and single ones read again. Owns the way from offsets to
messages' values. Knows neither cursors nor deliveries, takes no lock and writes nothing.

A window is read outside any transaction. A transaction that uses it compares `rewritten` with that of the partition: if
they differ, batches were replaced since, and records of the window may be compacted or erased."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace import keys
from headrace.errors import HeadraceError
from headrace.log.embedded.read.reading import Reader, partition_state
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import BATCHES, PartitionRow
from headrace.rows import python_values, to_rows
from headrace.schema import EXTRA_COLUMN

SPAN = 65_536
"""Offsets a window reaches ahead at most: the rows of the largest frame."""
BYTES = 16 << 20
"""What a window holds at most, and the frame that passes it: then fewer messages are handed out at a time."""


Entry = tuple[int, datetime, Any, dict[str, Any]]
"""A record, as a message needs it: offset, arrival, key, value."""
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Window:
    """The records of [start, stop) of one partition; offsets without one are holes."""

    start: int
    stop: int
    rewritten: int
    topic: TopicState
    offsets: npt.NDArray[np.int64]
    hashes: list[int] | None  # of the keys, where order matters
    batch: pa.RecordBatch | None

    def fits(self, cursor: int, state: PartitionRow) -> bool:
        return self.rewritten == state.rewritten and self.start <= cursor < self.stop

    def first(self, cursor: int) -> int:
        """Where the records at or behind the cursor begin."""
        return int(self.offsets.searchsorted(cursor))

    @property
    def nbytes(self) -> int:
        return 0 if self.batch is None else int(self.batch.nbytes)

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The offsets at the places [begin, end) as ranges without holes."""
        held = self.offsets[begin:end]
        if not len(held):
            return []
        if held[-1] - held[0] + 1 == len(held):
            return [(int(held[0]), int(held[-1]) + 1)]
        breaks = np.flatnonzero(np.diff(held) != 1)
        return list(zip(held[[0, *(breaks + 1)]].tolist(), (held[[*breaks, -1]] + 1).tolist(), strict=True))

    def entries(self, rows: Sequence[int]) -> Iterator[Entry]:
        """The records at these places, which ascend."""
        assert self.batch is not None and rows
        if rows[-1] - rows[0] + 1 == len(rows):
            return _entries(self.batch.slice(rows[0], len(rows)), self.topic)
        return _entries(self.batch.take(pa.array(rows)), self.topic)


def load(
    engine: Engine, catalog: Catalog, topic: TopicState, partition: int, start: int, count: int, *, hashed: bool
) -> Window:
    """A window from `start` on: `count` records or a few more, as they lie in frames; fewer when they are large."""
    state = partition_state(engine, topic, partition)  # before the records: a rewrite in between shows
    stop = min(state.next, start + SPAN)
    found: list[pa.RecordBatch] = []
    held = size = 0
    for batch in Reader(engine, catalog, topic, partition).batches(start, stop, _names(catalog, topic)):
        found.append(batch)
        held, size = held + batch.num_rows, size + batch.nbytes
        if held >= count or size >= BYTES:
            stop = batch.column("_offset")[-1].as_py() + 1
            break
    if not found:
        return Window(start, stop, state.rewritten, topic, np.empty(0, np.int64), [], None)
    batch = found[0] if len(found) == 1 else pa.Table.from_batches(found).combine_chunks().to_batches()[0]
    offsets = np.asarray(batch.column("_offset"))
    hashes = hashes_of(batch, topic) if hashed else None
    return Window(start, stop, state.rewritten, topic, offsets, hashes, batch)


def read(
    engine: Engine, catalog: Catalog, topic: TopicState, places: Iterable[Place]
) -> tuple[dict[Place, Entry], dict[Place, HeadraceError]]:
    """The records at these places, and why some cannot be read. What is in neither is gone from the topic."""
    found: dict[Place, Entry] = {}
    failed: dict[Place, HeadraceError] = {}
    names = _names(catalog, topic)
    left = deque(sorted(places))
    while left:
        partition, offset = left.popleft()
        with engine.index.reading() as db:
            rows = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND base <= ? ORDER BY base DESC LIMIT 1",
                topic.id,
                partition,
                offset,
            )
        inside = [offset]
        while rows and left and left[0][0] == partition and left[0][1] < rows[0].next:
            inside.append(left.popleft()[1])
        if not rows or rows[0].next <= offset:
            continue
        try:
            for batch in Reader(engine, catalog, topic, partition).batches(inside[0], inside[-1] + 1, names):
                held = np.flatnonzero(np.isin(np.asarray(batch.column("_offset")), inside))
                if len(held):
                    found |= {(partition, one[0]): one for one in _entries(batch.take(pa.array(held)), topic)}
        except HeadraceError as error:
            failed |= {(partition, one): error for one in inside if (partition, one) not in found}
    return found, failed


def hash_of(key: Any, catalog: Catalog, topic: TopicState) -> int:
    """63 bits that stand for the key in the index."""
    return _whole(keys.key_hash(keys.key_bytes(key, catalog.schema(topic), topic.settings.key)))


def hashes_of(batch: pa.RecordBatch, topic: TopicState) -> list[int]:
    return list(map(_whole, keys.key_hashes(batch, topic.settings.key)))


def _whole(key_hash: bytes) -> int:
    return int.from_bytes(key_hash[:8], "big") >> 1


def _names(catalog: Catalog, topic: TopicState) -> list[str]:
    return [*catalog.schema(topic).names, EXTRA_COLUMN, "_offset", "_arrived_at"]


def _entries(batch: pa.RecordBatch, topic: TopicState) -> Iterator[Entry]:
    width = batch.num_columns - 2
    offsets, arrived = batch.column(width).to_pylist(), python_values(batch.column(width + 1))
    values = to_rows(batch.select(range(width)))
    return zip(offsets, arrived, _keys(values, topic.settings.key), values, strict=True)


def _keys(values: list[dict[str, Any]], columns: tuple[str, ...]) -> Iterator[Any]:
    if len(columns) == 1:
        (only,) = columns
        return (value[only] for value in values)
    if not columns:
        return (None for _ in values)
    return (tuple(value[name] for name in columns) for value in values)
