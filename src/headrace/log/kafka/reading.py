"""Ranges of a partition, read and decoded. Owns chunks of decoded records, which are kept for the next reader of the
process, and marks: how far event time and arrival had come at an offset. Progress is made here, in the order of
offsets, from the nearest mark below: so it is the same from wherever one reads. Keeps nothing over a crash: what it
knows, it reads again."""

from __future__ import annotations

import bisect
import itertools
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.errors import KafkaFailed, OffsetOutOfRange, TopicReplaced
from headrace.log.kafka.catalog import Entry
from headrace.log.kafka.client import REQUEST_SECONDS, Client
from headrace.log.kafka.forms.chosen import form_of
from headrace.log.kafka.values import FIRST_US, Unreadable, decode, progress_of
from headrace.time import UNSET

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

__all__ = ["PROGRESS_HEADER", "Chunk", "Mark", "Reader"]

PROGRESS_HEADER = "headrace-progress"
"""The header with the progress of a record that a flow derived from others: microseconds since 1970."""
CHUNK_ROWS = 20_000
CACHE_BYTES = 64 << 20
CHUNKS_MAX = 512
"""So many chunks are kept, however small: each read of a quiet topic's end makes one."""
FIRSTS_MAX = 4096
MARKS_MAX = 4096
MARKS_SENT = 500
GUESSED_ROWS = 50_000
GUESSED_FROM = 16
"""How event time goes on is guessed from so many marks, in steps of so many records."""
_NUMBER = re.compile(rb"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """How far a partition had come below an offset. `raised`: by a flow, so that reading does not give it."""

    offset: int
    progress_us: int = UNSET
    arrived_us: int = 0
    raised: bool = False

    def over(self, other: Mark) -> Mark:
        """Both, where both are at this offset."""
        progress_us, arrived_us = max(self.progress_us, other.progress_us), max(self.arrived_us, other.arrived_us)
        return Mark(self.offset, progress_us, arrived_us, self.raised or other.raised)


@dataclass(frozen=True)
class Chunk:
    """The records of offsets [start, stop), decoded: rows, and of each its offset, Kafka's timestamp, arrival and
    progress. `before_us`: the partition's progress before each, which is another where records carry their own.
    `after`: the mark behind them."""

    start: int
    after: Mark
    rows: pa.RecordBatch
    offsets: Any
    times_us: Any
    arrived_us: Any
    progress_us: Any
    before_us: Any
    schema_version: int

    @property
    def stop(self) -> int:
        return self.after.offset

    def behind(self, offset: int) -> Chunk:
        """Its records from an offset on."""
        at = int(np.searchsorted(self.offsets, offset))
        return replace(
            self,
            start=max(self.start, offset),
            rows=self.rows.slice(at),
            offsets=self.offsets[at:],
            times_us=self.times_us[at:],
            arrived_us=self.arrived_us[at:],
            progress_us=self.progress_us[at:],
            before_us=self.before_us[at:],
        )


@dataclass
class _Known:
    """Of one partition."""

    marks: list[Mark] = field(default_factory=list)
    chunks: OrderedDict[int, Chunk] = field(default_factory=OrderedDict)


class Reader:
    """Reads a topic. `entry` says what it is now, `bury` takes records that are no rows."""

    def __init__(
        self,
        client: Client,
        physical: str,
        entry: Callable[[], Entry],
        bury: Callable[[int, list[tuple[int, Unreadable]]], None],
    ) -> None:
        self._client, self._physical, self._entry, self._bury = client, physical, entry, bury
        self._partitions: dict[int, _Known] = {}
        self._firsts: dict[tuple[int, int], tuple[int, int]] = {}
        self._held = 0
        self._lock = threading.RLock()

    # -- marks -------------------------------------------------------------------------------------

    def _known(self, partition: int) -> _Known:
        with self._lock:
            return self._partitions.setdefault(partition, _Known())

    def add_mark(self, partition: int, mark: Mark) -> None:
        with self._lock:
            known = self._known(partition)
            at = bisect.bisect_left(known.marks, mark.offset, key=lambda each: each.offset)
            there = known.marks[at] if at < len(known.marks) else None
            if there is None or there.offset != mark.offset:
                known.marks.insert(at, mark)
            elif mark.raised:
                known.marks[at] = mark.over(there)
            if mark.raised and known.marks[at] != there:
                self._forget_behind(known, at)
            if len(known.marks) > MARKS_MAX:  # every other one will do: what lies between is read again
                known.marks[1 : MARKS_MAX // 2] = [
                    each for i, each in enumerate(known.marks[1 : MARKS_MAX // 2]) if i % 2 or each.raised
                ]

    def _forget_behind(self, known: _Known, at: int) -> None:
        """What was read behind a mark that is raised now, and so judged by less."""
        raised = known.marks[at]
        known.marks[at + 1 :] = [each for each in known.marks[at + 1 :] if each.raised]
        for start in [start for start, chunk in known.chunks.items() if chunk.stop > raised.offset]:
            self._held -= known.chunks.pop(start).rows.nbytes

    def some_marks(self, partition: int) -> list[Mark]:
        """Marks for another process, at even distances: few enough to travel with every job."""
        with self._lock:
            marks = self._known(partition).marks
            return [*marks[:: -(-len(marks) // MARKS_SENT) or 1], *marks[-1:]]

    def marks_for(self, partition: int, offsets: Iterable[int]) -> list[Mark]:
        """For a process that reads from these offsets: the nearest mark of each, and those that were raised."""
        with self._lock:
            raised = {mark for mark in self._known(partition).marks if mark.raised}
        return sorted({*raised, *(self.mark_below(partition, offset) for offset in offsets)})

    def _next_raised(self, partition: int, offset: int) -> int | None:
        with self._lock:
            marks = self._known(partition).marks
            return next((mark.offset for mark in marks if mark.raised and mark.offset > offset), None)

    def marks_between(self, partition: int, start: int, stop: int) -> list[Mark]:
        """The marks that are known at offsets between two."""
        with self._lock:
            marks = self._known(partition).marks
            low = bisect.bisect_right(marks, start, key=lambda each: each.offset)
            return marks[low : bisect.bisect_left(marks, stop, key=lambda each: each.offset)]

    def guessed_marks(self, partition: int, start: int, end: int) -> Iterator[Mark]:
        """Marks up to the end, for planning: as if event time went on as it did between the marks below."""
        with self._lock:
            marks = self._known(partition).marks
            at = bisect.bisect_right(marks, start, key=lambda each: each.offset)
            below = [mark for mark in marks[max(0, at - GUESSED_FROM) : at] if mark.progress_us != UNSET]
        last, pace = below[-1] if below else Mark(start), 0.0
        if len(below) > 1:
            pace = (last.progress_us - below[0].progress_us) / (last.offset - below[0].offset)
        for offset in itertools.chain(range(start + GUESSED_ROWS, end, GUESSED_ROWS), [end]):
            guessed = last.progress_us + int(pace * (offset - last.offset)) if below else UNSET
            yield Mark(offset, guessed)

    def mark_below(self, partition: int, offset: int) -> Mark:
        """The nearest mark at or below an offset."""
        with self._lock:
            marks = self._known(partition).marks
            at = bisect.bisect_right(marks, offset, key=lambda each: each.offset)
            return marks[at - 1] if at else Mark(0)

    def mark_at(self, partition: int, offset: int, ends: tuple[int, int]) -> Mark:
        """The mark at an offset: what is between it and the nearest known one is read."""
        mark = self.mark_below(partition, offset)
        if mark.offset < offset and ends[0] < offset:
            for chunk in self.chunks(partition, max(mark.offset, ends[0]), offset, ends):
                mark = chunk.after if chunk.stop <= offset else _cut(chunk, offset)
        return mark

    # -- chunks ------------------------------------------------------------------------------------

    def chunks(self, partition: int, start: int, stop: int, ends: tuple[int, int]) -> Iterator[Chunk]:
        """The chunks that have offsets [start, stop), the first and the last perhaps with more. `ends`: the partition's
        earliest and next offset."""
        reading: _Range | None = None
        try:
            at = start
            while at < stop:
                chunk = self._cached(partition, at)
                if chunk is None:
                    mark = self.mark_below(partition, at)
                    begin = max(mark.offset, ends[0])
                    if reading is None or reading.at != begin or reading.at == reading.end:
                        if reading is not None:
                            reading.close()
                        end = min(self._next_raised(partition, begin) or ends[1], ends[1])
                        reading = _Range(self._client, self._physical, partition, begin, end, self._entry().name)
                    count = min(CHUNK_ROWS, max(1, stop - begin)) if stop - start >= CHUNK_ROWS else CHUNK_ROWS
                    chunk = self._decoded(partition, begin, mark, reading.take(count), reading.at)
                if chunk.stop > at:  # another thread may have read a chunk that has some of what was given already
                    yield chunk if at == start else chunk.behind(at)
                    at = chunk.stop
        finally:
            if reading is not None:
                reading.close()

    def time_us(self, partition: int, offset: int, ends: tuple[int, int]) -> int | None:
        """Kafka's timestamp of one record; None if there is none at the offset."""
        found, time_us = self.first_from(partition, offset, ends)
        return time_us if found == offset else None

    def first_from(self, partition: int, offset: int, ends: tuple[int, int]) -> tuple[int | None, int]:
        """The first record at an offset or behind it, and Kafka's timestamp of it; reads no other. (None, 0) if there
        is none."""
        chunk = self._cached(partition, offset)
        if chunk is not None and (at := int(np.searchsorted(chunk.offsets, offset))) < len(chunk.offsets):
            return int(chunk.offsets[at]), int(chunk.times_us[at])
        known = self._firsts.get((partition, offset))
        if known is None:
            name = self._entry().name
            reading = _Range(self._client, self._physical, partition, offset, ends[1], name, peek=True)
            try:
                found = reading.take(1)
            finally:
                reading.close()
            if not found:
                return None, 0
            known = found[0].offset() or 0, found[0].timestamp()[1] * 1000
            if len(self._firsts) >= FIRSTS_MAX:
                self._firsts.clear()
            self._firsts[partition, offset] = known
        return known

    def _cached(self, partition: int, offset: int) -> Chunk | None:
        version = self._entry().schema_version
        with self._lock:
            chunks = self._known(partition).chunks
            for start in reversed(chunks):
                chunk = chunks[start]
                if chunk.start <= offset < chunk.stop and chunk.schema_version == version:
                    return chunk
        return None

    def _decoded(self, partition: int, start: int, mark: Mark, messages: list[Message], stop: int) -> Chunk:
        from confluent_kafka import Message  # the type's own methods: a quarter of the time that a bound one takes

        entry = self._entry()
        form = form_of(entry, self._client.settings)
        values = list(map(Message.value, messages))
        times_us = np.fromiter((at for _, at in map(Message.timestamp, messages)), np.int64, len(messages)) * 1000
        offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
        rows, bad = decode(values, list(map(Message.key, messages)), times_us, entry, form)
        is_given, given_us = _given(messages)
        if bad:
            self._bury(partition, [(int(offsets[each.number]), each) for each in bad])
            kept = np.delete(np.arange(len(messages)), [each.number for each in bad])
            times_us, offsets, is_given, given_us = (each[kept] for each in (times_us, offsets, is_given, given_us))
        arrived = np.maximum(np.maximum.accumulate(times_us), mark.arrived_us) if len(times_us) else times_us
        column = entry.settings.event_time
        if column is None:
            events = np.full(len(offsets), UNSET)
        else:
            events = np.asarray(rows.column(column).view(pa.int64()).fill_null(UNSET))
        # Any client can write such a header: one that is no time of here and now is none.
        is_given &= (given_us == UNSET) | (given_us >= FIRST_US)
        is_given &= given_us <= arrived + entry.settings.max_ahead_us
        progress, before, after_us = progress_of(mark.progress_us, events, arrived, given_us, is_given)
        after = Mark(stop, after_us, int(arrived[-1]) if len(arrived) else mark.arrived_us)
        chunk = Chunk(start, after, rows, offsets, times_us, arrived, progress, before, entry.schema_version)
        self._keep(partition, chunk)
        return chunk

    def _keep(self, partition: int, chunk: Chunk) -> None:
        with self._lock:
            self.add_mark(partition, chunk.after)
            chunks = self._known(partition).chunks
            if chunk.start in chunks:  # as another thread has read it, or with an older schema
                self._held -= chunks.pop(chunk.start).rows.nbytes
            chunks[chunk.start] = chunk
            self._held += chunk.rows.nbytes
            while self._held > CACHE_BYTES or len(chunks) > CHUNKS_MAX:
                known = max(self._partitions.values(), key=lambda each: len(each.chunks))
                _, oldest = known.chunks.popitem(last=False)
                self._held -= oldest.rows.nbytes


def _cut(chunk: Chunk, offset: int) -> Mark:
    """The mark at an offset inside a chunk."""
    below = int(np.searchsorted(chunk.offsets, offset))
    if below < len(chunk.offsets):
        return Mark(offset, int(chunk.before_us[below]), int(chunk.arrived_us[max(below - 1, 0)]))
    return Mark(offset, chunk.after.progress_us, chunk.after.arrived_us)


def _given(messages: Sequence[Message]) -> tuple[Any, Any]:
    """Whether each record carries progress, and which: UNSET where the header is empty, as of a record that a flow read
    before its partition had any. Any client can write such a header: what is no number is none."""
    from confluent_kafka import Message

    headers = list(map(Message.headers, messages))
    if not any(headers):
        return np.zeros(len(messages), np.bool_), np.full(len(messages), UNSET)
    given = [_progress_in(each) for each in headers]
    is_given = np.array([each is not None for each in given], np.bool_)
    return is_given, np.array([UNSET if each is None else each for each in given], np.int64)


def _progress_in(headers: Any) -> int | None:
    for name, value in headers or ():
        if name == PROGRESS_HEADER and _NUMBER.fullmatch(value or b""):
            return int(value)
        if name == PROGRESS_HEADER and value == b"":
            return UNSET
    return None


class _Range:
    """Messages from an offset up to the partition's end, in order. `at`: behind those that were taken; offsets without
    a record (a transaction's end, what was compacted) are passed over."""

    def __init__(
        self, client: Client, physical: str, partition: int, start: int, end: int, name: str, *, peek: bool = False
    ) -> None:
        self._client, self._where, self._name = client, (physical, partition), name
        self.end = end
        self.at = start
        self._context = client.consumer(peek=peek)
        self._consumer: Consumer | None = None

    def take(self, count: int) -> list[Message]:
        """So many messages, or all there are before the end."""
        from confluent_kafka import TopicPartition

        if self._consumer is None:
            self._consumer = self._context.__enter__()
            self._consumer.assign([TopicPartition(*self._where, self.at)])
        out: list[Message] = []
        until = time.monotonic() + REQUEST_SECONDS
        while self.at < self.end and len(out) < count:
            found = self._consumer.consume(min(count - len(out), self.end - self.at), 0.01)
            if found:
                out += self._accepted(found)
                until = time.monotonic() + REQUEST_SECONDS
            elif time.monotonic() > until:
                servers = self._client.settings.servers
                raise KafkaFailed(servers, f"reading {self._name!r}", "timeout", "no records came", True)
        return out

    def _accepted(self, found: list[Message]) -> list[Message]:
        """Those before the end, without what is no record."""
        from confluent_kafka import KafkaError, Message

        if any(map(Message.error, found)):
            for message in found:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    self._raise(error)
            records = [message for message in found if message.error() is None]
            ends = [message.offset() or 0 for message in found if message.error() is not None]
        else:
            records, ends = found, []
        if records and not self.at <= records[0].offset() <= records[-1].offset() < self.end:
            ends += [self.end for message in records if message.offset() >= self.end]
            records = [message for message in records if self.at <= message.offset() < self.end]
        self.at = min(self.end, max([self.at, *ends, *(message.offset() + 1 for message in records[-1:])]))
        return records

    def _raise(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        unknown = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
        if error.code() in unknown:
            raise TopicReplaced(topic=self._name, topic_id="")
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            first, end = self._client.ends([self._where])[self._where]
            raise OffsetOutOfRange(self._name, self._where[1], self.at, first, end)
        raise self._client.failed(f"reading {self._name!r}", error)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer = None
            self._context.__exit__(None, None, None)
