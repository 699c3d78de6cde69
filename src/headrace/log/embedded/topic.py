"""The topic handle that users call. Owns no state: it passes each call to the part that does the work. Arrow is
imported only when records are read or written, so describing a topic stays cheap."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.durations import Duration, from_us, instant_us
from headrace.errors import HeadraceError, InvalidArgument, TopicReplaced, WaitTimeout
from headrace.log.embedded.opening import acquire, release
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import BATCHES, GROUPS, PARTITIONS, QUEUES, VERSIONS
from headrace.log.settings import TopicDescription, TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import (
        Appended,
        AtRisk,
        Erased,
        Offsets,
        Overload,
        Progress,
        Record,
        Rows,
        Span,
        Start,
        TopicUsage,
    )
    from headrace.log.embedded.consume.groups import EmbeddedGroup
    from headrace.log.embedded.consume.queues import EmbeddedQueue, Order
    from headrace.log.embedded.write.append import Append, Stamp
    from headrace.log.embedded.write.producer import EmbeddedProducer
    from headrace.log.producer import AsyncProducer


class EmbeddedTopic:
    """A topic: append to it, read it, and consume it with groups and queues. `topic_id` changes when a topic is deleted
    and created again under the same `name`."""

    def __init__(self, engine: Engine, catalog: Catalog, state: TopicState) -> None:
        self._engine, self._catalog = engine, catalog
        self._id = state.id
        self.name = state.name
        self.topic_id = state.uid

    def __repr__(self) -> str:
        return f"<topic {self.name!r} of {self._engine.home}>"

    def _repr_html_(self) -> str:
        """For notebooks: the columns and the latest records."""
        from headrace.rendering import ROWS_MAX, html_table
        from headrace.schema import type_ddl

        try:
            settings, schema, ends = self.settings, self.schema, self.offsets()
            first = {number: max(end.earliest, end.next - ROWS_MAX) for number, end in ends.items()}
            latest = collections.deque(self.records(first), maxlen=ROWS_MAX)
            count = self.describe().records
        except HeadraceError as error:  # deleted, closed: a notebook shows that, not a traceback
            return html_table(f"topic {self.name}", (), (), str(error))
        parts = dict.fromkeys(settings.key, ", key")
        if settings.event_time is not None:
            parts[settings.event_time] = ", event time"
        columns = [f"{field.name}\n{type_ddl(field.type)}{parts.get(field.name, '')}" for field in schema]
        rows = [(each.partition, each.offset, *(each.value.get(name) for name in schema.names)) for each in latest]
        held = f"{settings.partitions} {'partition' if settings.partitions == 1 else 'partitions'}"
        caption = f"topic {self.name}: {count:,} {'record' if count == 1 else 'records'} in {held}"
        note = f"the latest {len(rows)} records" if count > len(rows) else ""
        return html_table(caption, ["_partition", "_offset", *columns], rows, note)

    def ref(self) -> EmbeddedRef:
        """A small, picklable reference. Another process on this machine opens the topic with `ref.open()`."""
        return EmbeddedRef(str(self._engine.home), self.name, self.topic_id)

    def _state(self) -> TopicState:
        self._catalog.check()
        return self._catalog.current(self._id, self.name, self.topic_id)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings: key, event time, partitions, retention and so on."""
        return self._state().settings

    @property
    def schema(self) -> pa.Schema:
        """The columns, as an Arrow schema."""
        return self._catalog.schema(self._state())

    def describe(self) -> TopicDescription:
        """Name, id, schema as DDL, settings, and the number of records and bytes."""
        state = self._state()
        with self._engine.index.reading() as db:
            rows = PARTITIONS.select(db, "WHERE topic = ?", state.id)
        records, size = sum(row.records for row in rows), sum(row.bytes for row in rows)
        ddl = self._catalog.ddl(state)
        return TopicDescription(state.name, state.uid, ddl, state.schema_version, state.settings, records, size)

    def usage(self) -> TopicUsage:
        """The topic's size on disk, what retention would delete now, and the registered readers."""
        from headrace.log.embedded.upkeep import usage

        return usage.of_topic(self._engine, self._state())

    def at_risk(self) -> list[AtRisk]:
        """The groups that retention will overtake soon, at their pace and that of their producers: in less than a tenth
        of the retention, or in an hour if only bytes are limited."""
        from headrace.log.embedded.storage import retention

        return retention.at_risk(self._engine, self._state())

    def alter(self, **changes: Any) -> None:
        """Changes settings (`retention="30 days"`, `partitions=8`) or evolves the schema (`schema="…, x string"`)."""
        self._refuse_own()
        self._catalog.alter(self._state(), changes)

    # -- writing -----------------------------------------------------------------------------------

    def append(
        self,
        rows: Rows,
        *,
        partition: int | None = None,
        expect: Mapping[Any, int] | None = None,
        progress: Progress = None,
        stamp: Stamp | None = None,
    ) -> Appended:
        """Appends a mapping, an iterable of mappings, or an Arrow table (anything with `__arrow_c_stream__`): all rows
        or none.

        Returns when the records are as durable as the topic's `durability` asks. `partition` chooses the partition of
        rows without a key. `expect={key: version}` makes the append conditional (versioned topics): VersionConflict if
        a key has another version. `progress` gives derived records the event-time progress of their source. `stamp`
        makes the append idempotent (see `producer(id=…)`)."""
        from headrace.log.embedded.write.append import ATTEMPTS, SMALL_ROWS_MAX, NotSmall, Small, Stale
        from headrace.log.incoming import repeatable

        rows = repeatable(rows)
        if stamp is None:
            self._refuse_own()
        plain = partition is None and expect is None and progress is None and stamp is None
        few = _small_rows(rows, SMALL_ROWS_MAX) if plain else None
        began = time.monotonic()
        for _ in range(ATTEMPTS):
            state = self.known_state()
            job: Small | Append
            if few and not state.settings.versioned:
                job = Small(state, self._catalog.schema(state), few, self._engine.clock_us)
            else:
                job = self.prepare(rows, partition=partition, expect=expect, progress=progress, stamp=stamp)
                if not job.sent and not job.expect:
                    return _nothing(self)
            try:
                done: Appended = self._engine.submit(job).result()
                return done
            except Stale:
                self.refresh()
            except NotSmall:
                few = None
        raise WaitTimeout(f"topic {self.name!r}, altered {ATTEMPTS} times during one append", time.monotonic() - began)

    def load(
        self,
        data: Any,
        *,
        id: str | None = None,
        batch_rows: int = 100_000,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Appends a large table in bounded memory: a pyarrow dataset (Parquet files), or anything with
        `__arrow_c_stream__`. Each batch of `batch_rows` is appended whole or not at all. Returns the number of rows
        appended. With an `id`, loading the same data again continues after the rows that the log already has.
        `progress` is called with the rows so far."""
        from headrace.log.loading import load

        stamp = None if id is None else self.stamps(id)

        def append(batch: pa.RecordBatch, done: int) -> None:
            self.append(batch, stamp=None if stamp is None else replace(stamp, sequence=done))

        return load(append, data, 0 if stamp is None else stamp.sequence, batch_rows, progress)

    def append_batch(
        self, rows: pa.Table, writer: str | None = None, number: int | None = None, *, progress: Progress = None
    ) -> None:
        """Appends a table of any size in one transaction. With a `writer` and a `number`, it appends nothing if the log
        already has that batch of the writer; BatchDiffers if that batch has another number of rows."""
        from headrace.log.embedded.batches import append_batch

        append_batch(self, rows, writer, number, progress)

    def check(self, rows: Rows) -> None:
        """Raises what `append` would raise for these rows, and appends nothing."""
        self.prepare(rows)

    def refresh(self) -> None:
        """Looks up the topic's state again, after an append found that the topic was altered."""
        self._state()

    def _refuse_own(self) -> None:
        if self.name.startswith("__"):
            raise InvalidArgument("topic", self.name, "is headrace's own: it can be read, not written or altered")

    def known_state(self) -> TopicState:
        """The state as last seen. An append checks under the lock whether it is still current."""
        self._catalog.check()
        return self._catalog.known(self._id) or self._state()

    def prepare(
        self,
        rows: Rows,
        *,
        partition: int | None = None,
        expect: Mapping[Any, int] | None = None,
        progress: Progress = None,
        stamp: Stamp | None = None,
    ) -> Append:
        """An append that is checked and encoded, but not submitted."""
        from headrace.log.embedded.write import append, dead_letters

        if stamp is None:  # flows write to such topics, with stamps
            self._refuse_own()
        state = self.known_state()
        return append.prepare(
            state,
            self._catalog.schema(state),
            rows,
            now_us=self._engine.clock_us(),
            partition=partition,
            expect=expect,
            progress=progress,
            stamp=stamp,
            quarantine=lambda topic, batch: dead_letters.quarantined(self._catalog, topic, batch),
        )

    def bury(self, letters: Sequence[Mapping[str, Any]], *, stamp: Stamp | None = None) -> range:
        """Stores dead letters for records that could not be appended or processed. Each has a `reason` (a word), an
        `error` (a sentence), a `source`, and either the `raw` bytes or the `row` as JSON. With a `stamp` (of the dead
        letters' own topic), a repeated call stores nothing. Returns the numbers of the letters."""
        from headrace.log.embedded.write import dead_letters

        prepared = dead_letters.letters(self._catalog, self._state(), [dict(one) for one in letters])
        prepared.stamp = stamp
        done: Appended = self._engine.submit(prepared).result()
        return done.ranges[0]

    def letter_stamps(self, producer: str) -> Stamp:
        """Like `stamps`, for dead letters."""
        from headrace.log.embedded.write import dead_letters
        from headrace.log.embedded.write.append import Stamp
        from headrace.log.embedded.write.producer import begin

        return Stamp(producer, *begin(self._engine, dead_letters.home(self._catalog), producer))

    def version(self, key: Any) -> int:
        """The number of records ever appended for the key (versioned topics)."""
        from headrace import keys

        state = self._state()
        if not state.settings.versioned:
            raise InvalidArgument("key", key, f"topic {self.name!r} keeps no versions: create it with versioned=True")
        key_hash = keys.key_hash(keys.key_bytes(key, self._catalog.schema(state), state.settings.key))
        with self._engine.index.reading() as db:
            row = VERSIONS.get(db, state.id, key_hash)
        return row.version if row else 0

    def producer(
        self,
        id: str | None = None,
        *,
        linger: Duration = "5 milliseconds",
        batch_rows: int = 10_000,
        buffer_bytes: int = 64 << 20,
        overload: Overload = "block",
    ) -> EmbeddedProducer:
        """A producer: takes rows one by one and appends them in batches. With an `id` it is idempotent across restarts.
        `linger`: how long a row may wait for others. `overload`: what `send` does when `buffer_bytes` are waiting:
        "block" waits, "buffer" raises Overloaded, "drop" drops the row and counts it."""
        from headrace.log.embedded.write.producer import EmbeddedProducer

        return EmbeddedProducer(
            self._engine, self, id, linger=linger, batch_rows=batch_rows, buffer_bytes=buffer_bytes, overload=overload
        )

    def stamps(self, producer: str) -> Stamp:
        """The stamp of this producer's next append. It has a new epoch, so an earlier producer of the same name is
        fenced. Each append with a stamp adds its number of rows to the sequence."""
        from headrace.log.embedded.write.append import Stamp
        from headrace.log.embedded.write.producer import begin
        from headrace.names import check_name

        check_name(producer, argument="producer")
        return Stamp(producer, *begin(self._engine, self._state(), producer))

    def sequence(self, producer: str) -> int:
        """The number of rows that this producer has appended."""
        from headrace.log.embedded.storage.index import PRODUCERS

        with self._engine.index.reading() as db:
            row = PRODUCERS.get(db, self._state().id, producer)
        return 0 if row is None else int(row.sequence)

    def async_producer(
        self,
        id: str | None = None,
        *,
        linger: Duration = "5 milliseconds",
        batch_rows: int = 10_000,
        buffer_bytes: int = 64 << 20,
        overload: Overload = "block",
    ) -> AsyncProducer:
        """Like `producer`, for an event loop: `position = await p.send(row)`. Never blocks the loop."""
        from headrace.log.producer import AsyncProducer

        return AsyncProducer(
            lambda: self.producer(
                id, linger=linger, batch_rows=batch_rows, buffer_bytes=buffer_bytes, overload=overload
            )
        )

    # -- reading -----------------------------------------------------------------------------------

    def batches(
        self,
        partition: int | None = None,
        start: int | Start = "earliest",
        stop: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Reads one partition's offsets [start, stop) as Arrow record batches, at most up to the end that the partition
        has now. Without `partition`, it reads all partitions, one after the other. `columns` may include metadata
        columns (`hr.META`). Raises OffsetOutOfRange for an offset that was deleted, or is beyond the end."""
        from headrace.log.embedded.read.reading import Reader, partition_state, start_offset

        state = self._state()
        if stop is not None and (isinstance(stop, bool) or not isinstance(stop, int)):
            raise InvalidArgument("stop", stop, "must be an offset")
        chosen = [partition] if partition is not None else list(range(state.settings.partitions))
        if len(chosen) > 1 and (isinstance(start, int) or stop is not None):
            raise InvalidArgument("partition", None, "offsets are of one partition: say which")
        ranges = []
        for number in chosen:
            row = partition_state(self._engine, state, number)
            first = start_offset(self._engine, self._catalog, state, row, start)
            ranges.append((number, first, row.next if stop is None else min(stop, row.next)))
        return itertools.chain.from_iterable(
            Reader(self._engine, self._catalog, state, number).batches(first, last, columns)
            for number, first, last in ranges
        )

    def records(
        self,
        start: Start = "earliest",
        *,
        key: Any = None,
        partition: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> Iterator[Record]:
        """Reads records as dicts, in order of arrival across partitions, and of offsets within one.

        `key` selects the records of one key. With `follow=True` it waits at the end for new records, without polling;
        with `timeout` it stops when none has come for that long."""
        from headrace.log.embedded.read import following

        return following.records(
            self._engine,
            self._catalog,
            self._state(),
            start,
            key=key,
            partition=partition,
            follow=follow,
            timeout=timeout,
        )

    def ends(self) -> dict[int, Offsets]:
        """As `offsets`: this log need not read records to know how far event time has come."""
        return self.offsets()

    def offsets(self, at: datetime | None = None) -> dict[int, Offsets]:
        """Earliest and next offset, and event-time progress, by partition. With `at`, as they were at that time: `next`
        is then the offset of the first record that arrived at `at` or later."""
        from headrace.log.contract import Offsets

        state = self._state()
        with self._engine.index.snapshot() as db:
            rows = PARTITIONS.select(db, "WHERE topic = ? ORDER BY partition", state.id)
        out = {}
        for row in rows:
            offset, progress = row.next, row.progress
            if at is not None:
                from headrace.log.embedded.read.reading import Reader

                reader = Reader(self._engine, self._catalog, state, row.partition)
                offset, progress = reader.offset_at(instant_us(at, argument="at"), row)
            stored = None if progress is None else from_us(progress)
            out[row.partition] = Offsets(row.earliest, offset, stored, from_us(row.arrived))
        return out

    def arrived_us(self, partition: int, offset: int) -> int | None:
        """The arrival of the record at the offset, in microseconds since 1970; None if there is no such record, or it
        can no longer be read."""
        from headrace.log.embedded.read.reading import Reader, partition_state

        state = self._state()
        row = partition_state(self._engine, state, partition)
        if not row.earliest <= offset < row.next:
            return None
        return Reader(self._engine, self._catalog, state, partition).arrival(offset)

    def spans(self, partition: int, start: int, limit: int = 1000) -> list[Span]:
        """The first `limit` stored batches with records at or after `start`, for planning reads."""
        from headrace.log.contract import Span
        from headrace.log.embedded.storage.frames import HEADER_BYTES

        with self._engine.index.reading() as db:
            rows = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND next > ? ORDER BY base LIMIT ?",
                self._state().id,
                partition,
                start,
                limit,
            )
        return [
            Span(
                max(row.base, start),
                row.next,
                row.records,
                HEADER_BYTES + row.plain_bytes,
                row.event_max,
                whole=row.records == row.next - row.base,
            )
            for row in rows
        ]

    def erase(self, *keys: Any, column: str | None = None) -> Erased:
        """Removes every record of these keys from the log's files, including dead letters, all in one pass; with
        `column` the records with these values there. The offsets stay, and are empty. Records that are appended
        meanwhile or later are not removed. If the result's `incomplete` has entries, bytes may be left there."""
        from headrace.log.embedded.upkeep import erasing, rounds

        self._refuse_own()
        state = self._state()
        with rounds.alone(self._engine, wait=True):
            return erasing.erase(self._engine, self._catalog, state, keys, column)

    def group(self, name: str) -> EmbeddedGroup:
        """A consumer group: its members share the partitions, and the log stores its offsets."""
        from headrace.log.embedded.consume.groups import EmbeddedGroup
        from headrace.log.embedded.storage.retention import kind_of
        from headrace.names import check_name

        check_name(name, argument="group", system=isinstance(name, str) and kind_of(name)[0] == "flow")
        return EmbeddedGroup(self._engine, self._catalog, self._state(), name)

    def groups(self) -> list[EmbeddedGroup]:
        """The registered groups of this topic, and `__flow.NAME` for each flow that reads it."""
        state = self._state()
        with self._engine.index.reading() as db:
            rows = GROUPS.select(db, "WHERE topic = ? ORDER BY name", state.id)
        return [self.group(row.name) for row in rows]

    def queue(
        self,
        name: str,
        *,
        visibility: Duration | None = None,
        max_deliveries: int | None = None,
        order: Order | None = None,
        start: Start = "earliest",
        create: bool = True,
    ) -> EmbeddedQueue:
        """A queue: it delivers each record, as a message, to one consumer. A new queue is created and begins at
        `start`; with `create=False`, a queue that does not exist is UnknownQueue.  `visibility` (30 seconds): how long
        a message stays with a consumer that does not acknowledge it. `max_deliveries` (5): after that many, a message
        becomes a dead letter. `order="key"`: one message of a key at a time, in order; this is fixed when the queue is
        created. A setting that is left out keeps its value."""
        from headrace.log.embedded.consume import queues
        from headrace.names import check_name

        check_name(name, argument="queue")
        self._refuse_own()
        return queues.opened(
            self._engine,
            self._catalog,
            self._state(),
            name,
            visibility=visibility,
            max_deliveries=max_deliveries,
            order=order,
            start=start,
            create=create,
        )

    def queues(self) -> list[EmbeddedQueue]:
        """The queues of this topic, by name."""
        state = self._state()
        with self._engine.index.reading() as db:
            rows = QUEUES.select(db, "WHERE topic = ? ORDER BY name", state.id)
        return [self.queue(row.name, create=False) for row in rows]


@dataclass(frozen=True, slots=True)
class EmbeddedRef:
    """A reference to a topic, for processes on the same machine."""

    home: str
    name: str
    topic_id: str

    def open(self) -> EmbeddedTopic:
        """The topic, opened once per process. TopicReplaced if another topic has its name now."""
        found = _open.pop(self, None)
        if found is None:
            engine = acquire(Path(self.home), create=False)
            try:
                catalog = Catalog(engine)
                found = EmbeddedTopic(engine, catalog, catalog.named(self.name))
                if found.topic_id != self.topic_id:
                    raise TopicReplaced(topic=self.name, topic_id=self.topic_id)
            except BaseException:
                release(engine)
                raise
        while len(_open) >= OPEN_MAX:
            oldest = _open.pop(next(iter(_open)))  # the one that was not used for longest
            oldest._catalog.closed = True
            release(oldest._engine)
        _open[self] = found
        return found


OPEN_MAX = 16
"""How many topics a process keeps open by reference. A worker may use many logs in its life."""
_open: dict[EmbeddedRef, EmbeddedTopic] = {}


def _small_rows(rows: Rows, limit: int) -> Sequence[Mapping[str, Any]] | None:
    """The rows if they are a few mappings, which may share a frame with other appends; else None."""
    if isinstance(rows, Mapping):
        return [rows]
    if isinstance(rows, (list, tuple)) and len(rows) <= limit and all(isinstance(row, Mapping) for row in rows):
        return rows
    return None


def _nothing(topic: EmbeddedTopic) -> Appended:
    """An append without rows: it writes nothing, and its position is the end of the topic."""
    from headrace.log.contract import Appended
    from headrace.position import Position

    nexts = {partition: offsets.next for partition, offsets in topic.offsets().items()}
    return Appended(Position.of(topic.name, topic.topic_id, nexts), {})
