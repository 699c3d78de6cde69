"""Reading: from offsets to Arrow batches and records. Owns the way from index rows to bytes to columns, and the
checks on it. Writes nothing and takes no lock a writer could meet.

Index rows are fetched a thousand at a time and their transaction ends before a batch is handed out. The rows of a
partition touch: a hole between them is damage, never skipped. A frame is used only after its length and checksum
were checked; damage is reported with its range, and what lies behind it can be read. A frame that upkeep has replaced
meanwhile is not damage: the row is looked up again, and its records are found where they are now."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace import keys
from headrace import rows as rows_module
from headrace.durations import from_us
from headrace.errors import (
    DamagedData,
    IndexDamaged,
    InvalidArgument,
    OffsetOutOfRange,
    StorageError,
    TooManyFiles,
    TopicReplaced,
    nearest,
)
from headrace.log.contract import META, Record
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import (
    ARCHIVED,
    COMPRESSED,
    EXTRA,
    HEADER_BYTES,
    PER_ROW,
    BadFrame,
    Header,
    plain_body,
)
from headrace.log.embedded.storage.index import BATCHES, PARTITIONS, BatchRow, PartitionRow
from headrace.log.embedded.storage.key_filters import RECORDS_MIN
from headrace.log.embedded.storage.stored import INSTANT, stored_schema
from headrace.log.starting import start_us
from headrace.schema import EXTRA_COLUMN, read_as
from headrace.time import UNSET, progress_of_rows

Frame = tuple[BatchRow, memoryview]
INDEX_ROWS = 1000
READ_BYTES = 1 << 20
"""Small neighbours in a file are read together up to this much."""


def partition_state(engine: Engine, topic: TopicState, partition: int) -> PartitionRow:
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidArgument("partition", partition, "must be a whole number")
    with engine.index.reading() as db:
        row = PARTITIONS.get(db, topic.id, partition)
    if row is None:
        if 0 <= partition < topic.settings.partitions:
            raise TopicReplaced(topic=topic.name, topic_id=topic.uid)
        raise InvalidArgument("partition", partition, f"topic {topic.name!r} has 0..{topic.settings.partitions - 1}")
    return row


def partition_states(engine: Engine, topic: TopicState) -> dict[int, PartitionRow]:
    with engine.index.reading() as db:
        rows = PARTITIONS.select(db, "WHERE topic = ? ORDER BY partition", topic.id)
    return {row.partition: row for row in rows}


def check_range(topic: TopicState, state: PartitionRow, offset: int) -> None:
    if not state.earliest <= offset <= state.next:
        raise OffsetOutOfRange(topic.name, state.partition, offset, state.earliest, state.next)


class Reader:
    """Reads one partition of one topic."""

    def __init__(self, engine: Engine, catalog: Catalog, topic: TopicState, partition: int) -> None:
        self._engine, self._catalog, self._topic, self._partition = engine, catalog, topic, partition

    def batches(self, start: int, stop: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Arrow batches of [start, stop), which must lie inside the log. `columns` may name metadata, too."""
        schema = self._catalog.schema(self._topic)
        names = list(schema.names) if columns is None else list(columns)
        if columns is None and self._topic.settings.extra_kept:
            names.append(EXTRA_COLUMN)
        self._refuse_unknown(names, schema)
        for frames, first in self._frames(start, stop):
            found = self._decoded(frames, first, stop, names, schema)
            if found.num_rows:
                yield found

    def records(self, start: int, stop: int, limit: int | None = None) -> Iterator[Record]:
        """The records of [start, stop), at most `limit` of them."""
        schema = self._catalog.schema(self._topic)
        for batch in self.batches(start, stop, [*schema.names, EXTRA_COLUMN, *META[1:]]):
            if limit is not None:
                batch = batch.slice(0, limit)
                limit -= batch.num_rows
            yield from self._records(batch)
            if limit == 0:
                return

    def records_of_key(self, start: int, stop: int, key: bytes) -> Iterator[Record]:
        """The records of [start, stop) that have the key of these bytes. Batches whose filter says that they do not
        hold it are not read; large ones without a filter get one."""
        schema, columns, uid = self._catalog.schema(self._topic), self._topic.settings.key, self._topic.uid
        filters, crc = self._engine.key_filters, zlib.crc32(key)
        offset = start
        while offset < stop:
            page = self._page(offset, stop)
            absent, known = filters.absent(uid, page, crc)
            for rows in _stretches(page, absent):
                first, last = max(rows[0].base, start), min(rows[-1].next, stop)
                crcs: list[npt.NDArray[np.uint32]] = []
                for batch in self.batches(first, last, [*schema.names, EXTRA_COLUMN, *META[1:]]):
                    crcs.append(keys.key_crcs(batch, columns))
                    found = keys.rows_of_key(batch, columns, key, crcs[-1])
                    if len(found):
                        yield from self._records(batch.take(pa.array(found)))
                whole = (rows[0].base, rows[0].next) == (first, last)
                if whole and rows[0].base not in known and rows[0].records >= RECORDS_MIN and crcs:
                    filters.put(uid, rows[0], np.concatenate(crcs))
            offset = page[-1].next

    def _records(self, batch: pa.RecordBatch) -> Iterator[Record]:
        width = batch.num_columns - 3
        offsets = batch.column(width).to_pylist()
        arrived = batch.column(width + 1).view(pa.int64()).to_pylist()
        progress = batch.column(width + 2).view(pa.int64()).to_pylist()
        values = rows_module.to_rows(batch.select(range(width)))
        for offset, came, p, value in zip(offsets, arrived, progress, values, strict=True):
            yield Record(
                self._topic.name,
                self._partition,
                offset,
                from_us(came),
                None if p is None else from_us(p),
                _key(value, self._topic.settings.key),
                value,
            )

    def offset_at(self, when_us: int, state: PartitionRow) -> tuple[int, int | None]:
        """The first offset whose record arrived at `when_us` or later, and progress there. Arrival never goes back
        within a partition, so halving finds it."""
        low, high = state.earliest, state.next
        found: BatchRow | None = None
        with self._engine.index.reading() as db:
            while low < high:
                middle = (low + high) // 2
                rows = BATCHES.select(
                    db,
                    "WHERE topic = ? AND partition = ? AND base <= ? ORDER BY base DESC LIMIT 1",
                    self._topic.id,
                    self._partition,
                    middle,
                )
                if not rows:
                    raise TopicReplaced(topic=self._topic.name, topic_id=self._topic.uid)
                row = rows[0]
                if row.arrived >= when_us:
                    high, found = row.base, row
                else:
                    low = row.next
        if found is None:
            return state.next, state.progress
        if found.flags & PER_ROW and found.file is not None:
            names = ["_offset", "_arrived_at", "_progress"]
            for batch in self.batches(found.base, found.next, names):
                for offset, came, progress in zip(
                    *(batch.column(i).view(pa.int64()).to_pylist() for i in range(3)), strict=True
                ):
                    if came >= when_us:
                        return offset, progress
            return self._begin_of(found.next, state)  # what came then was compacted away, or erased
        return found.base, found.progress

    def first_arrival(self, start: int, stop: int) -> int | None:
        """When the first record of [start, stop) arrived; None when there is none."""
        offset = start
        while offset < stop:
            for row in self._page(offset, stop):
                if row.file is not None:
                    if not row.flags & PER_ROW:
                        return row.arrived
                    try:
                        for batch in self.batches(offset, row.next, ["_arrived_at"]):
                            return int(batch.column(0)[0].value)
                    except DamagedData:
                        return row.arrived
                offset = row.next
        return None

    def arrival(self, offset: int) -> int | None:
        """When the record at the offset arrived; None when it is not there any more, or is damaged."""
        (row,) = self._page(offset, offset + 1)
        if row.file is None or not row.flags & PER_ROW:
            return None if row.file is None else row.arrived
        with contextlib.suppress(DamagedData):
            for batch in self.batches(offset, offset + 1, ["_arrived_at"]):
                if batch.num_rows:
                    return int(batch.column(0)[0].value)
        return None

    def _begin_of(self, offset: int, state: PartitionRow) -> tuple[int, int | None]:
        with self._engine.index.reading() as db:
            row = BATCHES.get(db, self._topic.id, self._partition, offset)
        return (state.next, state.progress) if row is None else (row.base, row.progress)

    def bodies(self, rows: list[BatchRow]) -> Iterator[Frame]:
        """The checked bodies of these batches, as they are."""
        for run in _runs(rows):
            yield from self._load(run)

    # -- index rows to frames ----------------------------------------------------------------------

    def _frames(self, start: int, stop: int) -> Iterator[tuple[list[Frame], int]]:
        """The checked frames of [start, stop), in order, small ones of a kind together, each time with the first offset
        that is wanted of them."""
        offset = start
        while offset < stop:
            page = self._page(offset, stop)
            damaged: DamagedData | None = None
            for rows in _portions(page):
                loaded: list[Frame] = []
                try:
                    loaded.extend(self.bodies(rows))
                except DamagedData as error:  # what lies before it is whole
                    damaged = error
                for frames in _alike(loaded):
                    yield frames, offset
                    offset = frames[-1][0].next
                if damaged is not None:
                    break
                offset = rows[-1].next
            if damaged is not None and not self._replaced(damaged.start, page):
                raise damaged

    def _replaced(self, base: int, page: list[BatchRow]) -> bool:
        """Whether upkeep has put something else in the place of the batch since its row was read."""
        with self._engine.index.reading() as db:
            now = BATCHES.get(db, self._topic.id, self._partition, base)
        return now not in page

    def _page(self, offset: int, stop: int) -> list[BatchRow]:
        with self._engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ?1 AND partition = ?2 AND base >= (SELECT max(base) FROM batches WHERE topic = ?1 "
                "AND partition = ?2 AND base <= ?3) AND base < ?4 ORDER BY base LIMIT ?5",
                self._topic.id,
                self._partition,
                offset,
                stop,
                INDEX_ROWS,
            )
            state = PARTITIONS.get(db, self._topic.id, self._partition)
        if state is None:
            raise TopicReplaced(topic=self._topic.name, topic_id=self._topic.uid)
        expected = offset
        for position, row in enumerate(page):
            fits = row.base <= expected < row.next if position == 0 else row.base == expected < row.next
            if not fits or row.records > row.next - row.base:
                break
            expected = row.next
        else:
            if page:
                return page
        check_range(self._topic, state, expected)  # retention may have passed us meanwhile: then say that
        raise IndexDamaged(
            path=str(self._engine.index.path),
            why=f"{self._topic.name}/{self._partition}: no batch at offset {expected}, but offsets up to {state.next}",
        )

    def _load(self, run: list[BatchRow]) -> Iterator[Frame]:
        """Frames that lie behind each other in one file, read at once, each checked on its own."""
        first = run[0]
        if first.file is None:
            return
        if first.flags & ARCHIVED:
            from headrace.log.embedded.read import archived  # Parquet comes with it: for those who read there

            stored = stored_schema(self._catalog.schema(self._topic, first.schema), first.flags)
            yield from archived.bodies(self._engine, self._topic, run, stored)  # a file has one schema
            return
        length = run[-1].position + run[-1].length - first.position
        try:
            buffer = pa.allocate_buffer(length)
            view = memoryview(buffer).cast("B")
            got = self._engine.files.read_into(first.file, view, first.position)
        except FileNotFoundError:
            raise self._damaged(first, "the data file is gone") from None
        except TooManyFiles:  # says nothing about the data
            raise
        except StorageError as error:
            if len(run) > 1:  # find out which one it is
                for row in run:
                    yield from self._load([row])
                return
            raise self._damaged(first, error.why) from error
        for row in run:
            begin = row.position - first.position
            if begin + row.length > got:
                raise self._damaged(row, "the file ends before the frame does")
            frame = view[begin : begin + row.length]
            try:
                header = Header.unpack(frame[:HEADER_BYTES])
            except BadFrame as error:
                raise self._damaged(row, str(error)) from error
            body = frame[HEADER_BYTES:]
            if header.length != len(body) or header.body_crc != row.body_crc or zlib.crc32(body) != row.body_crc:
                raise self._damaged(row, "checksum differs")
            if (
                header.topic_id.hex() != self._topic.uid
                or header.partition != row.partition
                or header.count != row.records
                or (header.flags & COMPRESSED, header.plain_bytes) != (row.flags & COMPRESSED, row.plain_bytes)
            ):
                raise self._damaged(row, "the frame is of another batch")
            yield row, body

    def _damaged(self, row: BatchRow, why: str) -> DamagedData:
        try:
            path = str(self._engine.files.path(row.file if row.file is not None else -1))
        except OSError:
            path = f"data file {row.file}"
        return DamagedData(
            path=path,
            why=why,
            topic=self._topic.name,
            partition=row.partition,
            start=row.base,
            stop=row.next,
            position=row.position,
        )

    # -- frames to columns -------------------------------------------------------------------------

    def _decoded(
        self, frames: list[Frame], start: int, stop: int, names: Sequence[str], newest: pa.Schema
    ) -> pa.RecordBatch:
        """The named columns of the rows inside [start, stop), as the newest schema has them."""
        rows = [row for row, _ in frames]
        written = self._catalog.schema(self._topic, rows[0].schema)
        stored = stored_schema(written, rows[0].flags)
        parsed = [self._parsed(row, body, stored) for row, body in frames]
        batch = parsed[0] if len(parsed) == 1 else pa.concat_batches(parsed)
        low, high = 0, batch.num_rows
        offsets = _offsets(rows, batch)
        if start > rows[0].base or stop < rows[-1].next:
            low, high = (int(i) for i in np.searchsorted(offsets, [start, stop]))
        columns = [self._column(name, rows, batch, written, newest, offsets) for name in names]
        fields = [
            newest.field(name) if name in newest.names else pa.field(name, column.type)
            for name, column in zip(names, columns, strict=True)
        ]
        out = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)) if names else batch.select([])
        return out if (low, high) == (0, batch.num_rows) else out.slice(low, high - low)

    def _parsed(self, row: BatchRow, body: memoryview, stored: pa.Schema) -> pa.RecordBatch:
        try:
            batch = pa.ipc.read_record_batch(plain_body(body, row.flags, row.plain_bytes), stored)
            batch.validate()
        except BadFrame as error:
            raise self._damaged(row, str(error)) from error
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(row, f"not an Arrow batch of this schema: {error}") from error
        if batch.num_rows != row.records:
            raise self._damaged(row, f"{batch.num_rows} records where {row.records} should be")
        return batch

    def _column(
        self,
        name: str,
        rows: list[BatchRow],
        batch: pa.RecordBatch,
        written: pa.Schema,
        newest: pa.Schema,
        offsets: npt.NDArray[np.int64],
    ) -> pa.Array:
        count = batch.num_rows
        if name in written.names:
            column = batch.column(name)
            if column.type == newest.field(name).type:
                return column
            return read_as(batch.select([name]), pa.schema([newest.field(name)])).column(0)
        if name == EXTRA_COLUMN:
            return batch.column(EXTRA_COLUMN) if rows[0].flags & EXTRA else pa.nulls(count, pa.string())
        if name == "_partition":
            return pa.array(np.full(count, self._partition, dtype=np.int32))
        if name == "_offset":
            return pa.array(offsets)
        if name == "_arrived_at":
            if rows[0].flags & PER_ROW and batch.column(name).null_count == 0:
                return batch.column(name)
            return pa.array(_each([row.arrived for row in rows], rows)).view(INSTANT)
        if name == "_progress":
            return self._progress(rows, batch)
        return pa.nulls(count, newest.field(name).type)  # added to the schema since

    def _progress(self, rows: list[BatchRow], batch: pa.RecordBatch) -> pa.Array:
        if rows[0].flags & PER_ROW:
            return batch.column("_progress")
        values = _each([UNSET if row.progress is None else row.progress for row in rows], rows)
        event_time = self._topic.settings.event_time
        if event_time is not None:
            events = batch.column(event_time).view(pa.int64())
            timed = events.fill_null(UNSET) if events.null_count else events
            values = progress_of_rows(values, np.asarray(timed), _each([row.arrived for row in rows], rows))
        unset = values == UNSET
        return pa.array(values, mask=unset if unset.any() else None).view(INSTANT)

    def _refuse_unknown(self, names: Sequence[str], schema: pa.Schema) -> None:
        for name in names:
            if name not in schema.names and name not in META and name != EXTRA_COLUMN:
                known = [*schema.names, *META]
                raise InvalidArgument(
                    "columns", name, f"topic {self._topic.name!r} has no such column.{nearest(name, known)}"
                )


def _stretches(page: list[BatchRow], absent: set[int]) -> Iterator[list[BatchRow]]:
    """What is read together: neighbours that are small, or one large batch."""
    stretch: list[BatchRow] = []
    for row in page:
        large = row.records >= RECORDS_MIN
        if stretch and large:
            yield stretch
            stretch = []
        if large and row.base not in absent:
            yield [row]
        elif not large:
            stretch.append(row)
    if stretch:
        yield stretch


def _each(values: list[int], rows: list[BatchRow]) -> npt.NDArray[np.int64]:
    """Each batch's value, for each of its records."""
    return np.repeat(np.array(values, np.int64), [row.records for row in rows])


def _offsets(rows: list[BatchRow], batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    if rows[0].flags & PER_ROW:
        column = batch.column("_offset")
        if column.null_count == 0:
            return np.asarray(column)
    return np.arange(rows[0].base, rows[0].base + batch.num_rows, dtype=np.int64)


def _portions(page: list[BatchRow]) -> Iterator[list[BatchRow]]:
    """What is read before it is handed out: one batch, or several small ones."""
    portion: list[BatchRow] = []
    length = 0
    for row in page:
        size = row.plain_bytes if row.flags & ARCHIVED else row.length
        if portion and length + size > READ_BYTES:
            yield portion
            portion, length = [], 0
        portion.append(row)
        length += size
    if portion:
        yield portion


def _alike(frames: list[Frame]) -> Iterator[list[Frame]]:
    """Neighbours whose bodies can be joined: of one schema, dense, with no metadata of their own."""
    alike: list[Frame] = []
    for row, body in frames:
        if alike:
            last = alike[-1][0]
            same = (last.schema, last.flags & EXTRA, last.next) == (row.schema, row.flags & EXTRA, row.base)
            if not same or (last.flags | row.flags) & PER_ROW:
                yield alike
                alike = []
        alike.append((row, body))
    if alike:
        yield alike


def _runs(page: list[BatchRow]) -> Iterator[list[BatchRow]]:
    """Neighbours in a file, together while they are small."""
    run: list[BatchRow] = []
    length = 0
    for row in page:
        if run:
            last = run[-1]
            end = last.position + last.length
            near = row.file == last.file and 0 <= row.position - end < HEADER_BYTES and row.file is not None
            if not near or length + row.length > READ_BYTES:
                yield run
                run, length = [], 0
        run.append(row)
        length += row.length
    if run:
        yield run


def _key(value: dict[str, Any], columns: tuple[str, ...]) -> Any:
    if not columns:
        return None
    return value[columns[0]] if len(columns) == 1 else tuple(value[name] for name in columns)


def start_offset(engine: Engine, catalog: Catalog, topic: TopicState, state: PartitionRow, start: Any) -> int:
    """The offset a `Start` means in one partition; outside the log it is OffsetOutOfRange."""
    if isinstance(start, str) and start in ("earliest", "latest"):
        return state.earliest if start == "earliest" else state.next
    if isinstance(start, (datetime, str)):
        return Reader(engine, catalog, topic, state.partition).offset_at(start_us(start), state)[0]
    if isinstance(start, Mapping):
        if unknown := [number for number in start if number not in range(topic.settings.partitions)]:
            raise InvalidArgument("start", dict(start), f"topic {topic.name!r} has no partition {unknown[0]!r}")
        start = start.get(state.partition, state.earliest)
    if isinstance(start, bool) or not isinstance(start, int):
        raise InvalidArgument("start", start, "must be 'earliest', 'latest', a time with zone, or {partition: offset}")
    offset = start
    check_range(topic, state, offset)
    return offset
