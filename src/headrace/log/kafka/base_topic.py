"""Reading a topic on Kafka, and appending to it. Owns no state: what the topic is comes from the catalog, its records
from the process's reader of it. Reads what was committed, up to the first open transaction."""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import keys
from headrace import rows as rows_module
from headrace.durations import Duration, duration_us, from_us, instant_us
from headrace.errors import Closed, ForkedProcess, InvalidArgument, OffsetOutOfRange, nearest
from headrace.log.contract import Appended, Offsets, Progress, Record, Rows, Span
from headrace.log.kafka.catalog import Catalog, Entry, catalog_of
from headrace.log.kafka.client import Place, client_of, wait_until
from headrace.log.kafka.letters import Letters
from headrace.log.kafka.reading import Chunk, Mark, Reader
from headrace.log.kafka.settings import Kafka
from headrace.log.kafka.writing import Prepared, ahead_letters, prepare
from headrace.log.settings import TopicDescription, TopicSettings
from headrace.log.starting import start_us
from headrace.names import META, OWN_PREFIX
from headrace.position import Position
from headrace.schema import EXTRA_COLUMN, read_as, to_ddl
from headrace.time import UNSET

__all__ = ["BaseTopic", "Handle", "key_of"]

INSTANT = pa.timestamp("us", tz="UTC")
READERS_MAX = 64
_readers: OrderedDict[tuple[int, str, str], Reader] = OrderedDict()
_readers_lock = threading.Lock()


@dataclass
class Handle:
    """An open log, as its topics see it."""

    settings: Kafka
    catalog: Catalog
    letters: Letters
    closed: bool = False
    closing: list[Callable[[], None]] = field(default_factory=list)
    """Called when it is closed."""
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def opened(cls, settings: Kafka) -> Handle:
        catalog = catalog_of(client_of(settings), settings.prefix)
        return cls(settings, catalog, Letters(catalog))

    def check(self) -> None:
        if os.getpid() != self.pid:  # a client's threads are not in the child: it would wait for ever
            raise ForkedProcess(what=f"the log {self.settings.address}")
        if self.closed:
            raise Closed(what=f"the log {self.settings.address}")


class BaseTopic:
    """What a topic of a Kafka cluster is, its plain appends and its records."""

    def __init__(self, handle: Handle, entry: Entry) -> None:
        self._handle = handle
        self.name, self.topic_id = entry.name, entry.topic_id

    def __repr__(self) -> str:
        return f"<topic {self.name!r} of {self._handle.settings.address}>"

    def entry(self) -> Entry:
        """What the topic is now; TopicReplaced if it is no more."""
        self._handle.check()
        return self._handle.catalog.current(self.name, self.topic_id)

    @property
    def physical(self) -> str:
        """Its name in Kafka."""
        return self._handle.catalog.physical(self.name)

    @property
    def _client(self) -> Any:
        return self._handle.catalog.client

    @property
    def settings(self) -> TopicSettings:
        return self.entry().settings

    @property
    def schema(self) -> pa.Schema:
        return self.entry().columns

    def describe(self) -> TopicDescription:
        """`records`: the number of offsets, which may hold fewer records. `bytes` is not known."""
        entry = self.entry()
        count = sum(end - first for first, end in self._ends(entry).values())
        ddl = to_ddl(entry.columns)
        return TopicDescription(self.name, self.topic_id, ddl, entry.schema_version, entry.settings, count, 0)

    def alter(self, **changes: Any) -> None:
        self._refuse_own()
        self._handle.catalog.alter(self.entry(), changes)

    def _refuse_own(self) -> None:
        if self.name.startswith(OWN_PREFIX):
            raise InvalidArgument("topic", self.name, "is headrace's own: it can be read, not written or altered")

    # -- writing -----------------------------------------------------------------------------------

    def prepare(self, rows: Rows, *, partition: int | None = None, progress: Progress = None) -> Prepared:
        return prepare(self.entry(), rows, partition=partition, progress=progress)

    def append(self, rows: Rows, *, partition: int | None = None, progress: Progress = None) -> Appended:
        """Returns when the broker has the records. Should the broker fail in the middle of many, some may be there: use
        `log.transaction()` where that matters."""
        self._refuse_own()
        return self.send(self.prepare(rows, partition=partition, progress=progress))

    def send(self, prepared: Prepared) -> Appended:
        client = self._client
        letters = ahead_letters(prepared)
        if letters:
            self._handle.letters.bury(letters, prepared.entry)
        if not prepared.records:
            return Appended(self.position(), {}, len(letters))
        ranges = client.produce(client.producer, self.physical, prepared.records).wait()
        client.notify()
        return Appended(self.position_behind(ranges), ranges, len(letters))

    def position_behind(self, ranges: Mapping[int, range]) -> Position:
        return Position.of(self.name, self.topic_id, {number: given.stop for number, given in ranges.items()})

    def position(self) -> Position:
        """The end of the topic."""
        ends = self._ends(self.entry())
        return Position.of(self.name, self.topic_id, {number: end for number, (_, end) in ends.items()})

    def check(self, rows: Rows) -> None:
        self.prepare(rows)

    def bury(self, letters: Sequence[Mapping[str, Any]]) -> range:
        return self._handle.letters.bury(letters, self.entry())

    # -- reading -----------------------------------------------------------------------------------

    def _reader(self) -> Reader:
        known = id(self._handle.catalog), self.topic_id, self.name
        with _readers_lock:
            found = _readers.pop(known, None)
            if found is None:
                catalog, letters = self._handle.catalog, self._handle.letters
                name, topic_id = self.name, self.topic_id
                found = Reader(
                    catalog.client,
                    self.physical,
                    lambda: catalog.current(name, topic_id),
                    lambda number, bad: letters.bury_unreadable(catalog.current(name, topic_id), number, bad),
                )
            _readers[known] = found
            while len(_readers) > READERS_MAX:
                _readers.popitem(last=False)
        return found

    def _ends(self, entry: Entry, numbers: Sequence[int] | None = None) -> dict[int, tuple[int, int]]:
        """(earliest, next) by partition."""
        chosen = range(entry.settings.partitions) if numbers is None else numbers
        places: list[Place] = [(self.physical, number) for number in chosen]
        return {number: ends for (_, number), ends in self._client.ends(places).items()}

    def batches(
        self, partition: int | None = None, start: Any = "earliest", stop: Any = None, columns: Any = None
    ) -> Iterator[pa.RecordBatch]:
        if stop is not None and (isinstance(stop, bool) or not isinstance(stop, int)):
            raise InvalidArgument("stop", stop, "must be an offset")
        entry = self.entry()
        numbers = list(range(entry.settings.partitions)) if partition is None else [self._number(partition, entry)]
        if len(numbers) > 1 and (isinstance(start, int) or stop is not None):
            raise InvalidArgument("partition", None, "offsets are of one partition: say which")
        names = list(entry.columns.names) if columns is None else list(columns)
        if columns is None and entry.settings.extra_kept:
            names.append(EXTRA_COLUMN)
        for name in names:
            if name not in (*entry.columns.names, *META, EXTRA_COLUMN):
                known = [*entry.columns.names, *META]
                raise InvalidArgument("columns", name, f"there is no such column.{nearest(name, known)}")
        ends = self._ends(entry, numbers)
        begins = {number: self._start(entry, number, start, ends[number]) for number in numbers}
        return itertools.chain.from_iterable(
            self._read(number, begins[number], ends[number][1] if stop is None else stop, ends[number], names)
            for number in numbers
        )

    def _number(self, partition: Any, entry: Entry) -> int:
        known = range(entry.settings.partitions)
        if isinstance(partition, bool) or not isinstance(partition, int) or partition not in known:
            raise InvalidArgument("partition", partition, f"topic {self.name!r} has 0..{len(known) - 1}")
        return partition

    def _start(self, entry: Entry, number: int, start: Any, ends: tuple[int, int]) -> int:
        if isinstance(start, Mapping):
            if unknown := [each for each in start if each not in range(entry.settings.partitions)]:
                raise InvalidArgument("start", dict(start), f"topic {self.name!r} has no partition {unknown[0]!r}")
            start = start.get(number, ends[0])
        if isinstance(start, str) and start in ("earliest", "latest"):
            return ends[0] if start == "earliest" else ends[1]
        if isinstance(start, datetime | str):
            return self._offsets_at([number], start_us(start), {number: ends})[number]
        if isinstance(start, bool) or not isinstance(start, int):
            raise InvalidArgument("start", start, "must be 'earliest', 'latest', a time with zone, or offsets")
        if not ends[0] <= start <= ends[1]:
            raise OffsetOutOfRange(self.name, number, start, *ends)
        return start

    def start_offsets(self, start: Any) -> dict[int, int]:
        """Where a group begins, by partition."""
        entry = self.entry()
        ends = self._ends(entry)
        numbers = start if isinstance(start, Mapping) else ends
        return {number: self._start(entry, number, start, ends.get(number, (0, 0))) for number in numbers}

    def _offsets_at(self, numbers: Sequence[int], us: int, ends: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """The first record that arrived then or later; Kafka counts in milliseconds."""
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.for_timestamp(-(-us // 1000))
        found = self._client.offsets([(self.physical, number) for number in numbers], spec)
        return {
            number: ends[number][1] if each.offset < 0 else min(each.offset, ends[number][1])
            for (_, number), each in found.items()
        }

    def _read(
        self, number: int, start: int, stop: int, ends: tuple[int, int], names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for chunk in self._reader().chunks(number, start, min(stop, ends[1]), ends):
            low, high = (int(i) for i in np.searchsorted(chunk.offsets, [start, stop]))
            if low < high:
                yield self._columns(number, chunk, names).slice(low, high - low)

    def _columns(self, number: int, chunk: Chunk, names: Sequence[str]) -> pa.RecordBatch:
        if not names:
            return chunk.rows.select([])
        columns = self.schema
        own = read_as(chunk.rows, columns)
        known: dict[str, Any] = dict(zip(own.schema.names, own.columns, strict=True))
        if "_partition" in names:
            known["_partition"] = pa.array(np.full(len(chunk.offsets), number, np.int32))
        known |= {"_offset": pa.array(chunk.offsets), "_arrived_at": pa.array(chunk.arrived_us).view(INSTANT)}
        if "_progress" in names:
            known["_progress"] = pa.array(chunk.progress_us, mask=chunk.progress_us == UNSET).view(INSTANT)
        if EXTRA_COLUMN in names:
            kept = EXTRA_COLUMN in chunk.rows.schema.names
            nulls = pa.nulls(len(chunk.offsets), pa.string())
            known[EXTRA_COLUMN] = chunk.rows.column(EXTRA_COLUMN) if kept else nulls
        fields = [columns.field(name) if name in columns.names else pa.field(name, known[name].type) for name in names]
        return pa.RecordBatch.from_arrays([known[name] for name in names], schema=pa.schema(fields))

    def records(
        self,
        start: Any = "earliest",
        *,
        key: Any = None,
        partition: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> Iterator[Record]:
        entry = self.entry()
        columns = entry.settings.key
        if key is not None and not columns:
            raise InvalidArgument("key", key, f"topic {self.name!r} has no key")
        wanted = None if key is None else keys.key_bytes(key, entry.columns, columns)
        limit = None if timeout is None else duration_us(timeout, argument="timeout", positive=False) / 1e6
        numbers = range(entry.settings.partitions) if partition is None else [self._number(partition, entry)]
        ends = self._ends(entry, numbers)
        at = {number: self._start(entry, number, start, ends[number]) for number in numbers}
        return self._follow(at, wanted, follow, limit, all_partitions=partition is None)

    def _follow(
        self, at: dict[int, int], wanted: bytes | None, follow: bool, limit: float | None, *, all_partitions: bool
    ) -> Iterator[Record]:
        last_news = time.monotonic()
        while True:
            entry = self.entry()
            if all_partitions:  # those that were added, too
                at |= {number: 0 for number in range(entry.settings.partitions) if number not in at}
            ends = self._ends(entry, list(at))
            merged = heapq.merge(
                *(self._records(entry, number, at[number], ends[number], wanted) for number in at),
                key=lambda record: (record.arrived_at, record.partition, record.offset),
            )
            for record in merged:
                last_news = time.monotonic()
                yield record
            at = {number: end for number, (_, end) in ends.items()}
            left = None if limit is None else last_news + limit - time.monotonic()
            if not follow or (left is not None and left <= 0):
                return
            wait_until(self._client, functools.partial(self._moved, at), left, self._handle.check)

    def _moved(self, at: Mapping[int, int]) -> bool:
        entry = self.entry()
        return any(end > at.get(number, 0) for number, (_, end) in self._ends(entry).items())

    def _records(
        self, entry: Entry, number: int, start: int, ends: tuple[int, int], wanted: bytes | None
    ) -> Iterator[Record]:
        names = [*entry.columns.names, *([EXTRA_COLUMN] if entry.settings.extra_kept else []), *META[1:]]
        columns = entry.settings.key
        for batch in self._read(number, start, ends[1], ends, names):
            if wanted is not None:
                batch = batch.take(pa.array(keys.rows_of_key(batch, columns, wanted, keys.key_crcs(batch, columns))))
            meta = [batch.column(name).cast(pa.int64()).to_pylist() for name in META[1:]]
            plain = batch.select(names[: -len(META[1:])])
            for value, offset, came, told in zip(rows_module.to_rows(plain), *meta, strict=True):
                progress = None if told is None else from_us(told)
                yield Record(self.name, number, offset, from_us(came), progress, key_of(value, entry), value)

    def offsets(self, at: datetime | None = None) -> dict[int, Offsets]:
        """Progress is made by reading: what this process has not read of the topic, this reads."""
        entry, reader = self.entry(), self._reader()
        ends = self._ends(entry)
        stops = {number: end for number, (_, end) in ends.items()}
        if at is not None:
            stops = self._offsets_at(list(stops), instant_us(at, argument="at"), ends)
        out = {}
        for number, stop in stops.items():
            mark = reader.mark_at(number, stop, ends[number])
            progress = None if mark.progress_us == UNSET else from_us(mark.progress_us)
            arrived = mark.arrived_us or entry.created_us
            out[number] = Offsets(ends[number][0], stop, progress, from_us(arrived))
        return out

    def ends(self) -> dict[int, Offsets]:
        """As `offsets`, but reads no records: progress is told where this process has read up to the end."""
        entry, reader = self.entry(), self._reader()
        ends = self._ends(entry)
        marks = {number: reader.mark_below(number, end) for number, (_, end) in ends.items()}
        unread = [number for number, (_, end) in ends.items() if marks[number].offset < end]
        newest = self._newest_us(unread) if unread else {}
        out = {}
        for number, (first, end) in ends.items():
            mark = marks[number]
            known = mark.offset == end and mark.progress_us != UNSET
            arrived = max(mark.arrived_us, newest.get(number, 0)) or entry.created_us
            out[number] = Offsets(first, end, from_us(mark.progress_us) if known else None, from_us(arrived))
        return out

    def _newest_us(self, numbers: Sequence[int]) -> dict[int, int]:
        """The newest of Kafka's timestamps in partitions; 0 where there is no record."""
        from confluent_kafka.admin import OffsetSpec

        found = self._client.offsets([(self.physical, number) for number in numbers], OffsetSpec.max_timestamp())
        return {number: max(0, each.timestamp) * 1000 for (_, number), each in found.items()}

    def arrived_us(self, partition: int, offset: int) -> int | None:
        entry = self.entry()
        ends = self._ends(entry, [partition])[partition]
        if not ends[0] <= offset < ends[1]:
            return None
        return self._reader().time_us(partition, offset, ends)

    def spans(self, partition: int, start: int, limit: int = 1000) -> list[Span]:
        """Cut where this process knows how far event time had come, so that what is behind is read first; behind the
        last known mark it is taken to move on as it did before. Changes stay together: nobody knows where a commit of
        theirs ends."""
        entry, reader = self.entry(), self._reader()
        first, end = self._ends(entry, [partition])[partition]
        start, out = max(first, start), list[Span]()
        marks = [Mark(end)]
        if not entry.settings.changes:
            known = reader.marks_between(partition, start, end)
            guessed = reader.guessed_marks(partition, known[-1].offset if known else start, end)
            marks = [*itertools.islice(itertools.chain(known, guessed), limit)]
        for mark in marks:
            if start < mark.offset:
                reached = None if mark.progress_us == UNSET else mark.progress_us
                out.append(Span(start, mark.offset, mark.offset - start, (mark.offset - start) * 100, reached))
                start = mark.offset
        return out


def key_of(value: Mapping[str, Any], entry: Entry) -> Any:
    parts = tuple(value[name] for name in entry.settings.key)
    return None if not parts else parts[0] if len(parts) == 1 else parts
