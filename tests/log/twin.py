"""A second log, in memory: what proves that nothing reaches around the contract. Owns records in lists; it shares the
checks of rows and settings with the embedded log, and nothing of how records are stored, read or waited for. `stride`:
offsets have holes, as Kafka's do. Has no groups and no queues."""

from __future__ import annotations

import functools
import heapq
import operator
import pickle
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import keys
from headrace import rows as rows_module
from headrace.durations import Duration, duration_us, from_us, instant_us
from headrace.errors import (
    Closed,
    InvalidArgument,
    OffsetOutOfRange,
    ProducerFenced,
    TopicExists,
    TopicReplaced,
    UnknownTopic,
    nearest,
)
from headrace.log.contract import DEAD_LETTERS, Appended, Offsets, Record, Span, TopicDescription, TopicSettings
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.write.append import prepare
from headrace.log.incoming import repeatable
from headrace.log.settings import check_columns, settings_of
from headrace.names import META, check_name
from headrace.position import Position
from headrace.schema import EXTRA_COLUMN, evolve, read_as, schema_from, to_ddl
from headrace.time import UNSET, progress_of_rows, with_floor

INSTANT = pa.timestamp("us", tz="UTC")


@dataclass
class Chunk:
    """What was appended together: rows, and of each its offset, arrival and progress."""

    rows: pa.RecordBatch
    offsets: Any
    arrived_us: Any
    progress_us: Any


@dataclass
class Partition:
    chunks: list[Chunk] = field(default_factory=list)
    next: int = 0
    progress_us: int = UNSET
    arrived_us: int = 0


@dataclass
class Content:
    """A topic: what a reference carries to another process."""

    name: str
    topic_id: str
    schema: pa.Schema
    settings: TopicSettings
    partitions: list[Partition]
    schema_version: int = 1


@dataclass(frozen=True)
class TwinRef:
    """Carries all records: a worker reaches no memory of the driver's."""

    pickled: bytes

    def open(self) -> TwinTopic:
        content: Content = pickle.loads(self.pickled)
        log = TwinLog()
        log.contents[content.name] = content
        return TwinTopic(log, content)


class TwinTopic:
    def __init__(self, log: TwinLog, content: Content) -> None:
        self._log, self._content = log, content
        self.name, self.topic_id = content.name, content.topic_id

    def __repr__(self) -> str:
        return f"<topic {self.name!r} in memory>"

    def _known(self) -> Content:
        self._log.check()
        if self._log.contents.get(self.name) is not self._content:
            raise TopicReplaced(topic=self.name, topic_id=self.topic_id)
        return self._content

    @property
    def settings(self) -> TopicSettings:
        return self._known().settings

    @property
    def schema(self) -> pa.Schema:
        return self._known().schema

    def describe(self) -> TopicDescription:
        held = [chunk.rows for partition in self._known().partitions for chunk in partition.chunks]
        records, size = sum(rows.num_rows for rows in held), sum(rows.nbytes for rows in held)
        return TopicDescription(
            self.name, self.topic_id, to_ddl(self.schema), self._content.schema_version, self.settings, records, size
        )

    def alter(self, **changes: Any) -> None:
        schema = changes.pop("schema", None)
        wanted = None if schema is None else schema_from(schema)
        with self._log.changed:
            content = self._known()
            old = content.settings
            settings = settings_of(changes, base=old, fixed=("key", "event_time", "versioned"))
            if settings.partitions < old.partitions:
                raise InvalidArgument("partitions", settings.partitions, f"there are {old.partitions}")
            if settings.partitions > old.partitions:
                if old.cleanup == "compact" or old.versioned:
                    raise InvalidArgument("partitions", settings.partitions, "keys must stay where they are")
                settings = replace(settings, partitions_added=True)
            if settings.cleanup == "compact" and old.cleanup != "compact" and settings.partitions_added:
                raise InvalidArgument("cleanup", settings.cleanup, "a key's records lie in several partitions")
            if wanted is not None:
                times = [settings.event_time] if settings.event_time else []
                evolved = evolve(content.schema, wanted, frozen=[*settings.key, *times])
                content.schema_version += evolved != content.schema
                content.schema = evolved
            content.settings = settings
            self._log.widen(self.name, settings.partitions)

    def ref(self) -> TwinRef:
        with self._log.changed:
            return TwinRef(pickle.dumps(self._known()))

    # -- writing -----------------------------------------------------------------------------------

    def append(self, rows: Any, *, partition: int | None = None, progress: Any = None) -> Appended:
        parts = self._parts(rows, partition=partition, progress=progress)
        with self._log.changed:
            self._known()
            return self._log.append_all([(self, parts)])[0]

    def append_batch(self, rows: Any, writer: str | None = None, number: int | None = None, **how: Any) -> None:
        with self._log.changed:
            if writer is None or (self.topic_id, writer, number) not in self._log.batches:
                self.append(rows, **how)
                self._log.batches.add((self.topic_id, writer, number))

    def check(self, rows: Any) -> None:
        self._parts(rows)

    def _parts(self, rows: Any, **how: Any) -> list[Any]:
        content, now_us = self._known(), self._log.clock_us()
        state = TopicState(0, content.topic_id, self.name, 1, 1, content.settings)
        return prepare(state, content.schema, repeatable(rows), now_us=now_us, **how).parts

    def take(self, part: Any, stride: int) -> range:
        """Appends a part: gives offsets, stamps arrival, makes progress."""
        settings, at = self._content.settings, self._content.partitions[part.partition]
        count, now_us = part.batch.num_rows, max(self._log.clock_us(), at.arrived_us)
        largest = max(each.progress_us for each in self._content.partitions)
        before = at.progress_us
        if now_us - at.arrived_us > settings.forget_us:
            before = with_floor(before, at.arrived_us, now_us, largest, settings.forget_us)
        arrived, given = np.full(count, now_us), np.full(count, before)
        if part.progress_max is not None:
            carried = part.batch.column("_progress").view(pa.int64()).fill_null(UNSET)
            progress = np.asarray(carried)
            at.progress_us = max(before, int(progress.max()))
        elif settings.event_time is not None:
            events = np.asarray(part.batch.column(settings.event_time).view(pa.int64()).fill_null(UNSET))
            progress = progress_of_rows(given, events, arrived)
            at.progress_us = max(int(progress[-1]), min(int(events[-1]), now_us))
        else:
            progress = given
        names = [name for name in part.batch.schema.names if name not in META]
        offsets = range(at.next, at.next + stride * count, stride)
        at.chunks.append(Chunk(part.batch.select(names), np.array(offsets, np.int64), arrived, progress))
        at.next, at.arrived_us = offsets.stop, now_us
        return offsets

    def bury(self, letters: Sequence[Mapping[str, Any]]) -> range:
        first = len(self._log.letters)
        self._log.letters += [{"topic": self.name, **letter} for letter in letters]
        return range(first, len(self._log.letters))

    # -- reading -----------------------------------------------------------------------------------

    def batches(
        self, partition: int | None = None, start: Any = "earliest", stop: Any = None, columns: Any = None
    ) -> Iterator[pa.RecordBatch]:
        if stop is not None and (isinstance(stop, bool) or not isinstance(stop, int)):
            raise InvalidArgument("stop", stop, "must be an offset")
        numbers = range(self.settings.partitions) if partition is None else [self._number(partition)]
        if len(numbers) > 1 and (isinstance(start, int) or stop is not None):
            raise InvalidArgument("partition", None, "offsets are of one partition: say which")
        names = list(self.schema.names) if columns is None else list(columns)
        if columns is None and self.settings.extra_kept:
            names.append(EXTRA_COLUMN)
        for name in names:
            if name not in (*self.schema.names, *META, EXTRA_COLUMN):
                known = [*self.schema.names, *META]
                raise InvalidArgument("columns", name, f"there is no such column.{nearest(name, known)}")
        ends = [(number, self._start(number, start), self._content.partitions[number].next) for number in numbers]
        wanted = [(n, first, end if stop is None else min(stop, end)) for n, first, end in ends]
        return (batch for number, first, end in wanted for batch in self._read(number, first, end, names))

    def _number(self, partition: Any) -> int:
        if (
            isinstance(partition, bool)
            or not isinstance(partition, int)
            or partition not in range(self.settings.partitions)
        ):
            raise InvalidArgument("partition", partition, f"topic {self.name!r} has 0..{self.settings.partitions - 1}")
        return partition

    def _start(self, number: int, start: Any) -> int:
        at = self._content.partitions[number]
        if isinstance(start, Mapping):
            if unknown := [each for each in start if each not in range(self.settings.partitions)]:
                raise InvalidArgument("start", dict(start), f"topic {self.name!r} has no partition {unknown[0]!r}")
            start = start.get(number, 0)
        if start in ("earliest", "latest") and isinstance(start, str):
            return 0 if start == "earliest" else at.next
        if isinstance(start, datetime | str):
            return self._offset_at(at, instant_us(start, argument="start"))
        if isinstance(start, bool) or not isinstance(start, int):
            raise InvalidArgument("start", start, "must be 'earliest', 'latest', a time with zone, or offsets")
        if not 0 <= start <= at.next:
            raise OffsetOutOfRange(self.name, number, start, 0, at.next)
        return start

    def _offset_at(self, at: Partition, when_us: int) -> int:
        later = (int(chunk.offsets[0]) for chunk in at.chunks if chunk.arrived_us[0] >= when_us)
        return next(later, at.next)

    def _read(self, number: int, start: int, stop: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for chunk in list(self._content.partitions[number].chunks):
            low, high = (int(i) for i in np.searchsorted(chunk.offsets, [start, stop]))
            if low < high:
                yield self._columns(number, chunk, names).slice(low, high - low)

    def _columns(self, number: int, chunk: Chunk, names: Sequence[str]) -> pa.RecordBatch:
        unset = chunk.progress_us == UNSET
        own = read_as(chunk.rows, self.schema)
        known = dict(zip(own.schema.names, own.columns, strict=True)) | {
            "_partition": pa.array(np.full(len(chunk.offsets), number, np.int32)),
            "_offset": pa.array(chunk.offsets),
            "_arrived_at": pa.array(chunk.arrived_us).view(INSTANT),
            "_progress": pa.array(chunk.progress_us, mask=unset).view(INSTANT),
        }
        extra = EXTRA_COLUMN in chunk.rows.schema.names
        known[EXTRA_COLUMN] = chunk.rows.column(EXTRA_COLUMN) if extra else pa.nulls(len(unset), pa.string())
        fields = [self.schema.field(n) if n in self.schema.names else pa.field(n, known[n].type) for n in names]
        if not names:
            return chunk.rows.select([])
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
        columns = self.settings.key
        if key is not None and not columns:
            raise InvalidArgument("key", key, f"topic {self.name!r} has no key")
        wanted = None if key is None else keys.key_bytes(key, self.schema, columns)
        limit = None if timeout is None else duration_us(timeout, argument="timeout", positive=False) / 1e6
        numbers = range(self.settings.partitions) if partition is None else [self._number(partition)]
        return self._follow({number: self._start(number, start) for number in numbers}, wanted, follow, limit)

    def _follow(self, at: dict[int, int], wanted: bytes | None, follow: bool, limit: float | None) -> Iterator[Record]:
        last_news = time.monotonic()
        while True:
            with self._log.changed:
                seen = self._log.news([self])
                parts = self._known().partitions
                if len(at) > 1:  # partitions that were added, too
                    at |= dict.fromkeys(range(len(at), len(parts)), 0)
                ends = {number: parts[number].next for number in at}
            merged = heapq.merge(
                *(self._records(number, at[number], ends[number]) for number in at),
                key=lambda record: (record.arrived_at, record.partition, record.offset),
            )
            for record in merged:
                last_news = time.monotonic()
                if wanted is None or keys.key_bytes(record.key, self.schema, self.settings.key) == wanted:
                    yield record
            at = ends
            left = None if limit is None else last_news + limit - time.monotonic()
            if not follow or (left is not None and left <= 0):
                return
            self._log.wait(seen, left)

    def _records(self, number: int, start: int, stop: int) -> Iterator[Record]:
        names = [*self.schema.names, EXTRA_COLUMN]
        for batch in self._read(number, start, stop, [*names, "_offset", "_arrived_at", "_progress"]):
            meta = [batch.column(name).cast(pa.int64()).to_pylist() for name in META[1:]]
            for value, offset, came, told in zip(rows_module.to_rows(batch.select(names)), *meta, strict=True):
                parts = tuple(value[name] for name in self.settings.key)
                key = None if not parts else parts[0] if len(parts) == 1 else parts
                progress = None if told is None else from_us(told)
                yield Record(self.name, number, offset, from_us(came), progress, key, value)

    def ends(self) -> dict[int, Offsets]:
        return self.offsets()

    def offsets(self, at: datetime | None = None) -> dict[int, Offsets]:
        out = {}
        for number, each in enumerate(self._known().partitions):
            offset = each.next if at is None else self._offset_at(each, instant_us(at, argument="at"))
            progress = None if each.progress_us == UNSET else from_us(each.progress_us)
            out[number] = Offsets(0, offset, progress, from_us(each.arrived_us))
        return out

    def arrived_us(self, partition: int, offset: int) -> int | None:
        found = self._read(partition, offset, offset + 1, ["_arrived_at"])
        return next((batch.column(0).cast(pa.int64())[0].as_py() for batch in found), None)

    def spans(self, partition: int, start: int, limit: int = 1000) -> list[Span]:  # noqa: ARG002
        end = self._known().partitions[partition].next
        return [Span(start, end, end - start, end - start, None)] if start < end else []

    def groups(self) -> list[Any]:
        return []

    def group(self, name: str) -> Any:
        raise NotImplementedError

    def producer(self, id: str | None = None) -> Any:
        raise NotImplementedError

    def load(self, data: Any) -> int:
        raise NotImplementedError


class TwinSender:
    """As the contract has it: numbers that came once do not come again."""

    def __init__(self, log: TwinLog, name: str) -> None:
        self._log, self._name = log, name
        self._epochs: dict[str, int] = {}

    def _next(self, topic: str, number: int, count: int) -> bool:
        """Whether these rows are new."""
        place = self._name, topic
        if topic not in self._epochs:
            self._epochs[topic] = self._log.epochs[place] = self._log.epochs.get(place, 0) + 1
        if self._log.epochs[place] != self._epochs[topic]:
            raise ProducerFenced(topic=topic, producer=self._name, epoch=self._epochs[topic])
        new = number >= self._log.sent.get(place, 0)
        self._log.sent[place] = max(self._log.sent.get(place, 0), number + count)
        return new

    def send(self, topic: str, rows: pa.Table, number: int, *, partition: Any = None, progress: Any = None) -> Position:
        with self._log.changed:
            handle = self._log.topic(topic)
            if partition is not None:
                self._log.widen(topic, partition + 1)
            if self._next(topic, number, rows.num_rows):
                return handle.append(rows, partition=partition, progress=progress).position
            return self._log.position(handle)

    def sent(self, topic: str) -> int:
        return self._log.sent.get((self._name, "" if topic == DEAD_LETTERS else topic), 0)

    def bury(self, topic: str, letters: Sequence[Mapping[str, Any]], number: int) -> range:
        with self._log.changed:
            new = self._next("", number, len(letters))
            return self._log.topic(topic).bury(letters) if new else range(number, number + len(letters))


class TwinTransaction:
    def __init__(self, log: TwinLog) -> None:
        self._log, self._asked, self._done = log, [], None
        self._open = True

    def append(self, topic: str | TwinTopic, rows: Any, *, progress: Any = None) -> None:
        self._check()
        handle = self._log.topic(topic) if isinstance(topic, str) else topic
        self._asked.append((handle, handle._parts(repeatable(rows), progress=progress)))

    def _check(self) -> None:
        if not self._open:
            raise Closed(what="the transaction")

    def finish(self) -> None:
        self._open = False
        with self._log.changed:
            for handle, _ in self._asked:
                if self._log.contents.get(handle.name) is not handle._content:
                    raise TopicReplaced(topic=handle.name, topic_id=handle.topic_id)
            self._done = self._log.append_all(self._asked)

    def commit(self, member: Any) -> None:
        self._check()
        raise InvalidArgument("member", member, "must be what group.join() returned")

    @property
    def position(self) -> Position:
        if self._done is None:
            raise Closed(what="the transaction")
        return functools.reduce(operator.or_, (done.position for done in self._done), Position())


class TwinLog:
    """`stride`: how far a partition's offsets are apart."""

    def __init__(self, *, stride: int = 1, clock_us: Any = None) -> None:
        self.contents: dict[str, Content] = {}
        self.letters: list[dict[str, Any]] = []
        self.sent: dict[tuple[str, str], int] = {}
        self.epochs: dict[tuple[str, str], int] = {}
        self.batches: set[Any] = set()
        self.reported: dict[str, dict[str, dict[int, int]]] = {}
        self.changed = threading.Condition(threading.RLock())
        self.closed = False
        self.log_id = self.address = f"memory-{uuid.uuid4().hex}"
        self.in_place = True
        self._counts: dict[str, int] = {}
        self._stride, self._clock_us = stride, clock_us

    def __repr__(self) -> str:
        return "<log in memory>"

    def clock_us(self) -> int:
        return int(self._clock_us()) if self._clock_us else time.time_ns() // 1000

    def check(self) -> None:
        if self.closed:
            raise Closed(what="the log in memory")

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(self, name: str, schema: Any, *, exist_ok: bool = False, **settings: Any) -> TwinTopic:
        return self._create(check_name(name, argument="name"), schema, settings_of(settings), exist_ok=exist_ok)

    def _create(self, name: str, schema: Any, settings: TopicSettings, *, exist_ok: bool) -> TwinTopic:
        self.check()
        arrow = schema_from(schema)
        check_columns(arrow, settings)
        with self.changed:
            clash = [known for known in self.contents if known.lower() == name.lower()]
            if clash and not (exist_ok and clash == [name]):
                raise TopicExists(topic=clash[0])
            if name not in self.contents:
                partitions = [Partition(arrived_us=self.clock_us()) for _ in range(settings.partitions)]
                self.contents[name] = Content(name, uuid.uuid4().hex, arrow, settings, partitions)
            return self.topic(name)

    def topic(self, name: str) -> TwinTopic:
        self.check()
        if name not in self.contents:
            raise UnknownTopic(topic=name, known=[topic.name for topic in self.topics()])
        return TwinTopic(self, self.contents[name])

    def topics(self) -> list[TwinTopic]:
        self.check()
        return [self.topic(name) for name in sorted(self.contents) if not name.startswith("__")]

    def delete_topic(self, name: str) -> None:
        check_name(name, argument="name")
        self.delete_own_topic(name)

    def delete_own_topic(self, name: str) -> None:
        with self.changed:
            self._counts[self.topic(name).topic_id] = -1
            del self.contents[name]
            self.changed.notify_all()

    def own_topic(self, name: str, schema: Any, **settings: Any) -> TwinTopic:
        return self._create(name, schema, settings_of(settings), exist_ok=True)

    def flow_topic(self, name: str, schema: Any, *, flow: str, **settings: Any) -> TwinTopic:
        return self._create(name, schema, replace(settings_of(settings), made_by=flow), exist_ok=True)

    def clone_topic(self, topic: Any) -> TwinTopic:
        return self._create(topic.name, topic.schema, topic.settings, exist_ok=True)

    def widen(self, name: str, partitions: int) -> None:
        content = self.contents[name]
        while len(content.partitions) < partitions:
            content.partitions.append(Partition(arrived_us=self.clock_us()))
        content.settings = replace(content.settings, partitions=len(content.partitions))

    # -- writing -----------------------------------------------------------------------------------

    def append_all(self, asked: Sequence[tuple[TwinTopic, Sequence[Any]]]) -> list[Appended]:
        done = []
        for topic, parts in asked:
            ranges: dict[int, range] = {}
            for part in parts:
                given = topic.take(part, self._stride)
                begun = ranges.get(part.partition, given)
                ranges[part.partition] = range(begun.start, given.stop, self._stride)
            nexts = {number: given.stop for number, given in ranges.items()}
            position = Position.of(topic.name, topic.topic_id, nexts) if nexts else self.position(topic)
            done.append(Appended(position, ranges))
            self._counts[topic.topic_id] = self._counts.get(topic.topic_id, 0) + 1
        self.changed.notify_all()
        return done

    def position(self, topic: TwinTopic) -> Position:
        return Position.of(topic.name, topic.topic_id, {n: each.next for n, each in topic.offsets().items()})

    @contextmanager
    def transaction(self) -> Iterator[TwinTransaction]:
        tx = TwinTransaction(self)
        try:
            yield tx
        except BaseException:
            tx._open = False
            raise
        tx.finish()

    def sync(self) -> None:
        self.check()

    def sender(self, name: str) -> TwinSender:
        return TwinSender(self, name)

    # -- readers -----------------------------------------------------------------------------------

    def news(self, topics: Iterable[Any]) -> dict[str, int]:
        self.check()
        return {topic.topic_id: self._counts.get(topic.topic_id, 0) for topic in topics}

    def wait(self, seen: Mapping[str, int], timeout: float | None = None) -> bool:
        def told() -> bool:
            return self.closed or any(self._counts.get(topic, 0) != count for topic, count in seen.items())

        with self.changed:
            found = self.changed.wait_for(told, timeout)
        self.check()
        return found

    def report(self, flow: str, places: Iterable[tuple[Any, Mapping[int, int]]]) -> Future[None]:
        self.reported.setdefault(flow, {}).update({topic.name: dict(offsets) for topic, offsets in places})
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def forget_flow(self, flow: str) -> None:
        self.reported.pop(flow, None)

    def dead_letters(self, *, newest: int | None = None) -> Iterator[Any]:
        raise NotImplementedError

    def dead_letter(self, id: int) -> Any:
        raise NotImplementedError

    def dead_letters_count(self) -> int:
        return len(self.letters)

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def __enter__(self) -> TwinLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
