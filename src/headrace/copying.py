"""Topics and groups' positions from one log to another. Owns how a copy goes on where it was interrupted, what makes
the progress of copied records what it was, and the comparison at the end.

Each partition has a sender of its own, whose rows are numbered. Before rows are sent, a topic of the target
(`__copies`) notes which offsets they have and which numbers they get. After a crash exactly these are sent again, and
the target knows the numbers that it has. So a copy may be killed anywhere, and run again for what has come since.

A copied record has the offset and the arrival that its new log gives it. Its event-time progress is the same: where the
records themselves make it, none is written; elsewhere each record carries its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import jsonrows, keys
from headrace.durations import epoch_us
from headrace.errors import BatchDiffers, InvalidArgument, OffsetOutOfRange, UnknownTopic, Unsupported
from headrace.log.contract import Log, Offsets, Sender, Topic
from headrace.rows import to_rows
from headrace.time import UNSET

__all__ = ["CopiedGroup", "CopiedPartition", "copy_topics", "not_of_flows"]

COPIES = "__copies"
CHUNK_ROWS, CHUNK_BYTES = 20_000, 16 << 20
NOTES = pa.schema(
    [
        pa.field("source", pa.string()),  # the id of the topic that is copied
        pa.field("partition", pa.int32()),
        pa.field("number", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("start", pa.int64()),
        pa.field("stop", pa.int64()),
        pa.field("plain", pa.bool_()),
        pa.field("after_us", pa.int64()),
    ]
)

Progress = Callable[[int], object]
"""Called with the number of records so far."""


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """`copied`: records of this run; `records`: those of all runs that the source still has, which were compared.
    `sha256`: of these records and their progress, in the source. `same`: the target has the same."""

    topic: str
    partition: int
    copied: int
    records: int
    same: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """A group's offsets, as they are in the target."""

    topic: str
    group: str
    offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Note:
    """Rows [number, after) of the copy have offsets [start, stop) of the source. `plain`: they carry no progress.
    `after_us`: progress in the target behind them."""

    number: int
    records: int
    start: int
    stop: int
    plain: bool
    after_us: int

    @property
    def after(self) -> int:
        return self.number + self.records


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Neighbouring records of a partition, and the progress before each."""

    rows: pa.Table
    start: int
    stop: int
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    progress_us: np.ndarray[Any, np.dtype[np.int64]]
    events_us: np.ndarray[Any, np.dtype[np.int64]]

    def part(self, low: int, high: int) -> _Chunk:
        start = self.start if low == 0 else int(self.offsets[low])
        stop = self.stop if high == len(self.offsets) else int(self.offsets[high])
        rows = self.rows.slice(low, high - low)
        return _Chunk(rows, start, stop, self.offsets[low:high], self.progress_us[low:high], self.events_us[low:high])

    def reached(self, carry_us: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Progress before each record and behind the last, as the records themselves make it."""
        return np.maximum.accumulate(np.concatenate([[carry_us], self.events_us]))

    def is_plain(self, carry_us: int, after_us: int) -> bool:
        """Whether that is what it was in the source, where it was `after_us` behind them."""
        made = self.reached(carry_us)
        return bool((made[:-1] == self.progress_us).all()) and int(made[-1]) == after_us


def copy_topics(
    source: Log, target: Log, names: Sequence[str] = (), *, progress: Progress | None = None
) -> tuple[list[CopiedPartition], list[CopiedGroup]]:
    """Copies topics: schema, settings, records and groups' positions. Then compares. If none is named, all of them but
    those that a flow has made: it writes them again at the new place, where it reads its own topics from the
    beginning. A topic of that name in the target must be empty, or be the copy that an earlier run made."""
    topics = [source.topic(name) for name in names] if names else not_of_flows(source)
    for topic in topics:
        if topic.settings.extra_kept:
            what = "copying of unknown fields that it keeps (extra='keep'): use headrace consume | headrace produce"
            raise Unsupported(f"topic {topic.name!r}", what)
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done)

    partitions: list[CopiedPartition] = []
    groups: list[CopiedGroup] = []
    for topic in topics:
        copy = _Copy(target, topic, told)
        copied = copy.records()
        positions = copy.positions()
        partitions += [copy.compared(number, count, positions) for number, count in copied.items()]
        groups += copy.groups(positions)
    return partitions, groups


def not_of_flows(log: Log) -> list[Topic]:
    """The topics that no flow has made."""
    return [topic for topic in log.topics() if not topic.settings.made_by]


class _Copy:
    """One topic."""

    def __init__(self, target: Log, topic: Topic, told: Callable[[int], object]) -> None:
        self._target, self._topic, self._told = target, topic, told
        self._offsets: dict[tuple[int, int], int] = {}
        """(partition, number of a row): its offset in the target; of the rows that groups read next."""
        self._notes_topic = target.own_topic(COPIES, NOTES)
        self._sender = target.sender(f"copy.{topic.topic_id}")
        self._notes, self._noted = self._known_notes()
        self._refuse_another()
        self._made = target.clone_topic(topic)
        if self._made.schema != topic.schema:
            self._made.alter(schema=topic.schema)
        if self._made.settings.partitions < topic.settings.partitions:
            self._made.alter(partitions=topic.settings.partitions)

    def _known_notes(self) -> tuple[dict[int, list[_Note]], int]:
        found: dict[int, list[_Note]] = {number: [] for number in range(self._topic.settings.partitions)}
        for batch in self._notes_topic.batches(columns=NOTES.names):
            for row in to_rows(batch):
                if row.pop("source") == self._topic.topic_id:
                    found[row.pop("partition")].append(_Note(**row))
        return found, sum(map(len, found.values()))

    def _refuse_another(self) -> None:
        try:
            there = self._target.topic(self._topic.name)
        except UnknownTopic:
            return
        if not self._noted and any(each.next > each.earliest for each in there.offsets().values()):
            why = (
                "has records in the target that no copy of this topic has made: delete it there, or choose another log"
            )
            raise InvalidArgument("topic", there.name, why)

    # -- records -----------------------------------------------------------------------------------

    def records(self) -> dict[int, int]:
        """How many records were sent, by partition."""
        return {number: self._copied(number, end) for number, end in sorted(self._topic.offsets().items())}

    def _copied(self, partition: int, end: Offsets) -> int:
        notes = self._notes[partition]
        sender = self._target.sender(f"copy.{self._topic.topic_id}.{partition}")
        if notes:
            self._send_again(sender, partition, notes[-1])
        at = notes[-1].stop if notes else end.earliest
        if at < end.earliest:
            raise OffsetOutOfRange(self._topic.name, partition, at, end.earliest, end.next)
        last_us = UNSET if end.progress is None else epoch_us(end.progress)
        count = 0
        waiting: _Chunk | None = None
        for chunk in self._chunks(partition, at, end.next):
            if waiting is not None:
                self._send(sender, partition, waiting, int(chunk.progress_us[0]))
            waiting = chunk
            count += chunk.rows.num_rows
        if waiting is not None:
            self._send(sender, partition, waiting, last_us)
        return count

    def _send_again(self, sender: Sender, partition: int, last: _Note) -> None:
        """The rows that were noted last: perhaps they were not sent."""
        found = list(self._chunks(partition, last.start, last.stop, rows_max=last.records))
        count = sum(chunk.rows.num_rows for chunk in found)
        if len(found) == 1 and count == last.records:
            self._sent(sender, partition, found[0], last)
        elif self._rows_there(partition) < last.after:
            raise BatchDiffers(self._topic.name, f"copy.{self._topic.topic_id}.{partition}", last.number, count)

    def _rows_there(self, partition: int) -> int:
        return sum(batch.num_rows for batch in self._made.batches(partition=partition, columns=["_offset"]))

    def _chunks(self, partition: int, start: int, stop: int, rows_max: int | None = None) -> Iterator[_Chunk]:
        """The records at offsets [start, stop), in pieces that one transaction takes."""
        names = [*self._topic.schema.names, "_offset", "_progress"]
        event_time = self._topic.settings.event_time
        held: list[pa.RecordBatch] = []
        begin = start

        def chunk(upto: int) -> _Chunk:
            table = pa.Table.from_batches(held).combine_chunks()
            offsets, progress = (_int64(table.column(name)) for name in ("_offset", "_progress"))
            events = np.full(len(offsets), UNSET) if event_time is None else _int64(table.column(event_time))
            rows = table.select(self._topic.schema.names)
            self._refuse_elsewhere(rows, partition)
            return _Chunk(rows, begin, upto, offsets, progress, events)

        for batch in self._topic.batches(partition=partition, start=start, stop=stop, columns=names):
            while batch.num_rows:
                size = sum(each.nbytes for each in held)
                room = (rows_max or CHUNK_ROWS) - sum(each.num_rows for each in held)
                each_bytes = max(1, batch.nbytes // batch.num_rows)
                fits = min(batch.num_rows, room, max(0 if held else 1, (CHUNK_BYTES - size) // each_bytes))
                if fits:
                    held.append(batch.slice(0, fits))
                    batch = batch.slice(fits)
                if batch.num_rows:
                    upto = batch.column("_offset")[0].as_py()
                    yield chunk(upto)
                    begin, held = upto, []
        if held:
            yield chunk(stop)

    def _refuse_elsewhere(self, rows: pa.Table, partition: int) -> None:
        """The target puts a record where its key belongs."""
        settings = self._topic.settings
        if settings.key and settings.partitions > 1:
            for batch in rows.to_batches():
                if (keys.partitions_of(batch, settings.key, settings.partitions) != partition).any():
                    what = "copying: records are not in the partition of their key, because partitions were added or "
                    what += "others write it. Use headrace consume | headrace produce"
                    raise Unsupported(f"topic {self._topic.name!r}", what)

    def _send(self, sender: Sender, partition: int, chunk: _Chunk, after_us: int) -> None:
        """`after_us`: progress in the source behind the chunk."""
        notes = self._notes[partition]
        carry_us = notes[-1].after_us if notes else UNSET
        count = len(chunk.offsets)
        pieces = [(0, count, chunk.is_plain(carry_us, after_us))]
        if not pieces[0][2] and (first := self._plain_from(chunk, carry_us, after_us)) is not None:
            pieces = [(0, first, False), (first, count, True)]
        for low, high, plain in pieces:
            part = chunk.part(low, high)
            number = notes[-1].after if notes else 0
            before_us = notes[-1].after_us if notes else UNSET
            reached = part.reached(before_us) if plain else np.maximum(before_us, part.progress_us)
            note = _Note(number, high - low, part.start, part.stop, plain, int(reached.max()))
            self._write(partition, note)
            self._sent(sender, partition, part, note)
            notes.append(note)
            self._told(high - low)

    def _plain_from(self, chunk: _Chunk, carry_us: int, after_us: int) -> int | None:
        """Behind which record progress is what the records make it again: so not all have to carry theirs."""
        same = np.flatnonzero(chunk.progress_us[1:] == np.maximum(carry_us, chunk.progress_us[:-1]))
        if not len(same):
            return None
        first = int(same[0]) + 1
        carry_us = max(carry_us, int(chunk.progress_us[first - 1]))
        return first if chunk.part(first, len(chunk.offsets)).is_plain(carry_us, after_us) else None

    def _write(self, partition: int, note: _Note) -> None:
        row = {"source": self._topic.topic_id, "partition": partition, **asdict(note)}
        self._sender.send(COPIES, pa.Table.from_pylist([row], schema=NOTES), self._noted)
        self._noted += 1

    def _sent(self, sender: Sender, partition: int, chunk: _Chunk, note: _Note) -> None:
        """Unless the target has them."""
        carried = None
        if not note.plain:
            unset = chunk.progress_us == UNSET
            carried = pa.chunked_array([pa.array(chunk.progress_us, mask=unset).view(pa.timestamp("us", tz="UTC"))])
        into = None if self._topic.settings.key else partition
        sender.send(self._topic.name, chunk.rows, note.number, partition=into, progress=carried)

    # -- positions ---------------------------------------------------------------------------------

    def positions(self) -> dict[str, dict[int, int]]:
        """Of each group, by partition: the number of the row that it reads next."""
        return {
            group.name: {number: self._number_of(number, at) for number, at in group.committed().items()}
            for group in self._topic.groups()
            if group.flow is None
        }

    def _number_of(self, partition: int, offset: int) -> int:
        """The number of the first copied row at or behind an offset."""
        for note in self._notes[partition]:
            if offset <= note.start:
                return note.number
            if offset < note.stop:
                before = self._topic.batches(partition=partition, start=note.start, stop=offset, columns=["_offset"])
                return note.number + int(sum(batch.num_rows for batch in before))
        return self._notes[partition][-1].after if self._notes[partition] else 0

    def groups(self, positions: dict[str, dict[int, int]]) -> list[CopiedGroup]:
        """Sets the groups' offsets in the target, unless they are further there."""
        out = []
        ends = self._made.offsets()
        for name, numbers in positions.items():
            group = self._made.group(name)
            known = group.committed()
            wanted = {part: self._offsets.get((part, number), ends[part].next) for part, number in numbers.items()}
            later = {part: offset for part, offset in wanted.items() if offset > known.get(part, -1)}
            if later:
                group.rewind(later)
            out.append(CopiedGroup(self._topic.name, name, known | later))
        return out

    # -- comparing ---------------------------------------------------------------------------------

    def compared(self, partition: int, copied: int, positions: dict[str, dict[int, int]]) -> CopiedPartition:
        """What the source still has of what was copied, and the same rows in the target."""
        notes = self._notes[partition]
        earliest = self._topic.offsets()[partition].earliest
        kept = [note for note in notes if note.start >= earliest]
        asked = {numbers[partition] for numbers in positions.values() if partition in numbers}
        source, target = _Sum(), _Sum()
        if kept:
            for chunk in self._chunks(partition, kept[0].start, kept[-1].stop):
                source.add(chunk.rows, chunk.progress_us)
        first, last = (kept[0].number, kept[-1].after) if kept else (0, 0)
        row = 0
        names = [*self._topic.schema.names, "_offset", "_progress"]
        for batch in self._made.batches(partition=partition, columns=names):
            offsets = _int64(batch.column("_offset"))
            for number in asked & set(range(row, row + len(offsets))):
                self._offsets[partition, number] = int(offsets[number - row])
            low, high = (min(max(edge - row, 0), len(offsets)) for edge in (first, last))
            if low < high:
                part = batch.slice(low, high - low)
                progress_us = _int64(part.column("_progress"))
                target.add(pa.Table.from_batches([part.select(self._topic.schema.names)]), progress_us)
            row += len(offsets)
        same = (source.records, source.digest) == (target.records, target.digest)
        return CopiedPartition(self._topic.name, partition, copied, source.records, same, source.digest)


class _Sum:
    """Counts records, and makes one checksum of them and their progress, however they are cut."""

    def __init__(self) -> None:
        self.records, self._hash = 0, hashlib.sha256()

    def add(self, rows: pa.Table, progress_us: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self.records += rows.num_rows
        values = (row for batch in rows.to_batches() for row in to_rows(batch))
        for row, us in zip(values, progress_us.tolist(), strict=True):
            self._hash.update(b"%d %b\n" % (us, jsonrows.encode_row(row)))

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def _int64(column: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(array.cast(pa.int64()).fill_null(UNSET))
