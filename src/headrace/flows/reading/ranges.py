"""Ranges of offsets: which a micro-batch reads next, and their records as a DataFrame. Owns planning and reading.

Spark's workers read the log's files themselves, as many tasks as there are cores. A plan is made once and serves every
batch (`read_assigned`): which task reads what travels with the job, as a local property of the thread that runs it.
Partitions that are behind are read first: a batch takes stored batches in the order of their event time, across
partitions."""

from __future__ import annotations

import base64
import functools
import heapq
import itertools
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from headrace.durations import instant_us
from headrace.errors import InvalidArgument, OffsetOutOfRange
from headrace.flows.reading.numbers import NUMBER, Numbering
from headrace.flows.reading.reached import gathering, remembering, report
from headrace.kernels.judge import JUDGED, Judge
from headrace.log.contract import META
from headrace.schema import parse_ddl, quoted_name
from headrace.time import UNSET
from headrace.views.contract import AT, CHANGE, CORRECTIONS, MARK, OP, ROW, UPDATED_AT, Place

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from headrace.log.contract import Offsets, Span, Start, Topic, TopicRef

PLANNED_WHOLE_ROWS = 5_000
"""Up to so many records are read without asking which of them are older."""
BATCH_BYTES = 512 << 20
SPANS_FIRST, SPANS = 16, 2_000
"""So many stored batches of a partition are looked at first, and at most, to plan what is read next."""
RECORDS_OF = "__records."
"""What the names of topics begin with that steps which keep state pass records on to."""
META_DDL = "_partition int, _offset bigint, _arrived_at timestamp, _progress timestamp"


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, stop) of one partition. `carry_us`: progress before them, for flows with their own time, UNSET
    for others."""

    partition: int
    start: int
    stop: int
    carry_us: int | None = UNSET

    @property
    def rows(self) -> int:
        """At most so many records: offsets need not be dense."""
        return self.stop - self.start

    def holds(self, part: Range) -> bool:
        return self.partition == part.partition and self.start <= part.start and part.stop <= self.stop


CHANGE_DDL = ", ".join(
    map(" ".join, zip(CHANGE, ("string", "timestamp", "bigint", "timestamp", "string"), strict=True))
)


def spark_schema(topic: Topic) -> StructType:
    """The topic's columns and the metadata, as Spark has them. Where the records are changes, what says so is called as
    in the changes of a view."""
    change = f", {CHANGE_DDL}" if topic.settings.changes else ""
    schema = struct(f"{topic.describe().schema}{change}, {META_DDL}")
    hidden = "op" if topic.settings.changes else UPDATED_AT if carries_arrival(topic) else None
    return StructType([StructField(field.name, field.dataType, True) for field in schema if field.name != hidden])


def carries_arrival(topic: Topic) -> bool:
    """Whether its records say when those arrived that they were made of: what a step passes on keeps its arrival."""
    return topic.name.startswith(RECORDS_OF)


def columns_of(topic: Topic) -> pa.Schema:
    """The topic's columns, without the metadata, as flows read them."""
    if carries_arrival(topic):
        return pa.schema([field for field in topic.schema if field.name != UPDATED_AT])
    if not topic.settings.changes:
        return topic.schema
    plain = [field for field in topic.schema if field.name != "op"]
    return pa.schema([*plain, *parse_ddl(CHANGE_DDL)])


def struct(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType), ddl
    return parsed


# -- planning ----------------------------------------------------------------------------------------


def begin(topic: Topic, start: Start) -> dict[int, int]:
    """The offsets a new flow begins at."""
    ends = topic.ends()
    if start == "earliest":
        return {partition: offsets.earliest for partition, offsets in ends.items()}
    if start == "latest":
        return {partition: offsets.next for partition, offsets in ends.items()}
    if isinstance(start, Mapping):
        for partition in start:
            if partition not in ends:
                raise InvalidArgument("start", start, f"topic {topic.name!r} has no partition {partition}")
        return {partition: start.get(partition, offsets.earliest) for partition, offsets in ends.items()}
    return {partition: offsets.next for partition, offsets in topic.offsets(at=start).items()}


@dataclass(frozen=True, slots=True)
class Behind:
    """A topic, where a flow is in it, and where it ends."""

    topic: Topic
    places: Mapping[int, int]
    ends: Mapping[int, Offsets]


def plan(sources: Sequence[Behind], rows_max: int, *, whole: bool = False) -> dict[str, list[Range]]:
    """What to read next of each topic: at most `rows_max` offsets and BATCH_BYTES in all, the oldest event times first,
    so that none is held up by another. `whole`: stored batches are not cut, though that may be more: they hold what was
    appended together, as the '-' and '+' of a commit."""
    starts: dict[tuple[str, int], int] = {}
    stops: dict[tuple[str, int], int] = {}
    for source in sources:
        for partition, start in sorted(source.places.items()):
            end = source.ends[partition]
            if not end.earliest <= start <= end.next:
                raise OffsetOutOfRange(source.topic.name, partition, start, end.earliest, end.next)
            if start < end.next:
                starts[source.topic.name, partition], stops[source.topic.name, partition] = start, end.next
    if sum(stops[each] - start for each, start in starts.items()) > min(rows_max, PLANNED_WHOLE_ROWS):
        stops = _oldest(sources, starts, stops, rows_max, whole=whole)
    out: dict[str, list[Range]] = {source.topic.name: [] for source in sources}
    for (name, partition), start in starts.items():
        if stops[name, partition] > start:
            out[name].append(Range(partition, start, stops[name, partition]))
    return out


def _oldest(
    sources: Sequence[Behind],
    starts: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    rows_max: int,
    *,
    whole: bool,
) -> dict[tuple[str, int], int]:
    """Up to where each partition is read, when not all can be."""
    taken = dict(starts)
    rows, size = 0, 0
    topics = {source.topic.name: source.topic for source in sources}
    spans = [_ordered(topics[name], partition, start) for (name, partition), start in starts.items()]
    for _, place, span in heapq.merge(*spans, key=lambda each: (each[0], each[2].start - starts[each[1]])):
        stop = min(span.stop, ends[place])
        stop = stop if whole else min(stop, span.start + rows_max - rows)
        if stop <= span.start:
            break
        taken[place] = stop
        rows += stop - span.start
        size += span.bytes
        if rows >= rows_max or size >= BATCH_BYTES:
            break
    return taken


def _ordered(topic: Topic, partition: int, start: int) -> Iterator[tuple[int, tuple[str, int], Span]]:
    """The partition's spans with the largest event time so far: offsets are read in order, whatever their times."""
    so_far, known, page = UNSET, 0, SPANS_FIRST
    while known < SPANS:
        found = topic.spans(partition, start, page)
        for span in found:
            so_far = max(so_far, UNSET if span.event_max_us is None else span.event_max_us)
            yield so_far, (topic.name, partition), span
        if len(found) < page:
            return
        start, known, page = found[-1].stop, known + page, min(8 * page, SPANS - known - page)


def without(chosen: Sequence[Range], offsets: Collection[tuple[int, int]]) -> list[Range]:
    """The ranges less some (partition, offset)."""
    out = []
    for each in chosen:
        start = each.start
        for offset in sorted(at for partition, at in offsets if partition == each.partition):
            if start <= offset < each.stop:
                out += [replace(each, start=start, stop=offset)] if offset > start else []
                start = offset + 1
        out += [replace(each, start=start)] if start < each.stop else []
    return out


def place_at(topic: Topic, partition: int, offset: int, end: Offsets, *, by_arrival: bool = False) -> Place:
    """The place behind a range: at the end the log says how far it has come, before it the next record does. By
    arrival it has come to where the next record arrived: none that follows can have arrived before."""
    known = remembering(topic)
    if known is not None:
        mark = known.reached(partition, offset)
        told = mark.arrived_us if by_arrival else mark.progress_us
        return Place(offset, None if told in (UNSET, 0) else told, mark.arrived_us or None)
    name = "_arrived_at" if by_arrival else "_progress"
    for stop in (offset + 1, end.next) if offset < end.next else ():  # a log reads many small batches at once
        for batch in topic.batches(partition, offset, stop, [name]):
            if batch.num_rows:
                value = batch.column(0)[0].cast(pa.int64()).as_py()
                return Place(offset, value)
    reached = end.arrived_at if by_arrival else end.progress
    return Place(offset, None if reached is None else instant_us(reached, argument="progress"))


# -- reading -----------------------------------------------------------------------------------------


Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class AfterRead:
    """What is made of the records where they are read, step by step, and how that looks."""

    schema: StructType
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """A topic's columns, metadata included, and which of them Spark reads: the others come as nulls. With `after_read`,
    not the records come but what it makes of them."""

    topic: Topic
    known: pa.Schema
    """The topic's columns when the flow was compiled: they may have become more, or wider, since."""
    schema: StructType
    needed: frozenset[str]
    after_read: AfterRead | None = None
    judge: Judge | None = None
    """Says how late records are, where they are read: `schema` has its three columns. What it reads besides what is
    `needed` does not leave the worker."""
    numbering: Numbering | None = None
    """Puts one number, `NUMBER`, in place of what the judge says and of groups."""
    changes: bool = False
    """Whether its records are changes, with marks between them, which are nobody's."""
    placeless: bool = False
    """Whether changes come without the place of their own, which a row that goes has not from when it came."""
    carried: bool = False
    """Whether the arrival of records is that of those that they were made of (`carries_arrival`)."""


def whole(columns: Columns) -> Columns:
    """The same for records with all their columns."""
    return replace(columns, needed=frozenset(columns.schema.names) - {*JUDGED}, after_read=None)


def only(columns: Columns, needed: frozenset[str]) -> Columns:
    """The same for these columns of records, and no others."""
    kept = StructType([field for field in columns.schema if field.name in needed])
    return replace(columns, schema=kept, needed=needed, after_read=None)


Task = list[Range]
"""What one task reads, in this order."""


def tasks_of(chosen: Sequence[Range], count: int, *, uncut: bool = False) -> list[Task]:
    """The ranges, shared out evenly among at most `count` tasks. `uncut`: one task sees all of a partition, in the
    order of offsets; where records are left out, a partition has several ranges."""
    if uncut:
        parts: dict[int, Task] = {}
        for each in sorted(chosen, key=lambda each: (each.partition, each.start)):
            parts.setdefault(each.partition, []).append(each)
        bins: list[Task] = [[] for _ in range(min(count, len(parts)))]
        for task in sorted(parts.values(), key=_rows, reverse=True):
            min(bins, key=_rows).extend(task)
        return bins
    size = max(1, -(-sum(each.rows for each in chosen) // count))
    out: list[Task] = [[]]
    room = size
    for each in chosen:
        start = each.start
        while start < each.stop:
            if not room:
                out.append([])
                room = size
            stop = min(each.stop, start + room)
            out[-1].append(replace(each, start=start, stop=stop))
            room -= stop - start
            start = stop
    return out


def _rows(task: Task) -> int:
    return sum(each.rows for each in task)


def read(spark: SparkSession, columns: Columns, tasks: Sequence[Task]) -> DataFrame:
    """The ranges, read by the workers, a partition for each task. For a plan that serves one batch."""
    reader, told = _reader(spark, columns), _assignment(columns.topic, tasks)
    return _frame(spark, columns, max(1, len(tasks)), lambda number: reader(*_assigned_to(number, told)))


ASSIGNED = "headrace.assigned"


def read_assigned(spark: SparkSession, columns: Columns, tasks: int) -> DataFrame:
    """What was assigned to the topic's tasks (`assigned`) when the job runs. For a plan that serves every batch, of any
    log; not for one with an exchange, of which Spark would not run the map side again."""
    reader, name = _reader(spark, columns), columns.topic.name

    def read_number(number: int) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        told = orjson.loads((context and context.getLocalProperty(ASSIGNED)) or "{}")
        return reader(*_assigned_to(number, told[name]))

    return _frame(spark, columns, tasks, read_number)


@contextmanager
def assigned(
    spark: SparkSession, tasks: Mapping[str, Sequence[Task]], columns: Mapping[str, Columns]
) -> Iterator[None]:
    """Jobs that this thread runs inside the block read these ranges."""
    topics = {each.topic.name: each.topic for each in columns.values()}
    told = {name: _assignment(topic, tasks.get(name, ())) for name, topic in topics.items()}
    context = spark.sparkContext
    context.setLocalProperty(ASSIGNED, orjson.dumps(told).decode())
    try:
        yield
    finally:
        context.setLocalProperty(ASSIGNED, None)  # type: ignore[arg-type]


def _assignment(topic: Topic, tasks: Sequence[Task]) -> list[Any]:
    """The topic and each task's ranges, as JSON can carry them: a job's local properties are texts."""
    known = remembering(topic)
    starts: dict[int, list[int]] = {}
    for each in itertools.chain.from_iterable(tasks):
        starts.setdefault(each.partition, []).append(each.start)
    ref = base64.b64encode(pickle.dumps(topic.ref() if known is None else known.ref_from(starts))).decode()
    return [ref, [[astuple(each) for each in task] for task in tasks]]


def _assigned_to(number: int, told: Sequence[Any]) -> tuple[TopicRef, list[Range]]:
    ref, tasks = told
    return pickle.loads(base64.b64decode(ref)), [Range(*each) for each in tasks[number]] if number < len(tasks) else []


def _frame(
    spark: SparkSession, columns: Columns, tasks: int, read_number: Callable[[int], Iterator[pa.RecordBatch]]
) -> DataFrame:
    def in_worker(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbered in numbers:
            for number in numbered.column(0).to_pylist():
                yield from read_number(number)

    numbers = spark.range(0, tasks, 1, tasks)
    if columns.after_read is not None:
        return numbers.mapInArrow(in_worker, columns.after_read.schema)
    names = _names(columns)
    read = numbers.mapInArrow(in_worker, StructType([field for field in columns.schema if field.name in names]))
    return read.select([_column(each, each.name in names) for each in columns.schema])


def _column(field: StructField, is_read: bool) -> Column:
    return F.col(quoted_name(field.name)) if is_read else F.lit(None).cast(field.dataType).alias(field.name)


FIRST_ATTEMPT = r"java_method('java.lang.Thread', 'currentThread') RLIKE 'task [0-9]+\\.0 in stage'"
"""Whether a task is run for the first time. Nothing in SQL asks for that, but Spark names the thread by it."""


def read_parts(spark: SparkSession, columns: Columns, parts: Sequence[Range]) -> DataFrame:
    """The records, each range in a task of its own, and read before these tasks begin: so that a task that fails ends
    no worker that reads, and Spark counts how many records it took. A task that is run again takes none: so a range
    that fails is a task that failed once, and no end of the job."""
    df = read(spark, replace(columns, after_read=None), [[part] for part in parts])
    return df.localCheckpoint().where(FIRST_ATTEMPT)


def offsets(columns: Columns, chosen: Range) -> npt.NDArray[np.int64]:
    """Of the records that there are in the range."""
    alone = replace(columns, needed=frozenset(["_offset"]), after_read=None, judge=None, placeless=False)
    found = [batch.column("_offset").to_numpy() for batch in read_on_driver(alone, [chosen])]
    return np.concatenate([np.empty(0, np.int64), *found])


@dataclass(frozen=True, slots=True)
class _Reading:
    """How ranges are read; goes to the workers."""

    wanted: list[str]
    names: list[str]
    """The columns that come, where no step makes something else."""
    steps: tuple[Step, ...] | None
    judge: Judge | None = None
    numbering: Numbering | None = None
    changes: bool = False
    placeless: bool = False
    plain_changes: bool = False
    """Whether the changes are in a topic of the user's, where `op` says what they are."""
    carried: bool = False

    def __call__(self, topic: Topic, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        records = self._records(topic, ranges)
        if self.steps is not None:
            return functools.reduce(lambda records, step: step(records), self.steps, records)
        if self.judge is None and self.numbering is None:
            return records
        records = records if self.judge is None else self.judge.of(records)
        records = records if self.numbering is None else self.numbering.of(records)
        return (batch.select(self.names) for batch in records)

    def _records(self, topic: Topic, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        for each in ranges:
            for batch in self._stored(topic, each):
                carries = each.carry_us != UNSET and "_progress" in self.wanted
                if self.changes:
                    batch = batch.filter(pc.not_equal(batch.column(OP), "."))
                    batch = _of_rows(batch, ("_partition", "_offset") if self.placeless else ())
                yield _carrying(batch, each.carry_us) if carries else batch

    def _stored(self, topic: Topic, each: Range) -> Iterator[pa.RecordBatch]:
        if self.carried and "_arrived_at" in self.wanted:
            batches = topic.batches(each.partition, each.start, each.stop, [*self.wanted, UPDATED_AT])
            return (_with_own_arrival(batch) for batch in batches)
        if not self.plain_changes:
            return topic.batches(each.partition, each.start, each.stop, self.wanted)
        stored = {OP: "op", UPDATED_AT: "_arrived_at"}
        names = dict.fromkeys(stored.get(name, name) for name in self.wanted if name not in (AT, CORRECTIONS, ROW))
        batches = topic.batches(each.partition, each.start, each.stop, list(names))
        return (_with_change(batch, self.wanted, stored) for batch in batches)


def _with_own_arrival(batch: pa.RecordBatch) -> pa.RecordBatch:
    at, own = batch.schema.get_field_index("_arrived_at"), batch.column(UPDATED_AT)
    batch = batch.set_column(at, batch.schema.field(at), pc.coalesce(own, batch.column(at)))
    return batch.select([name for name in batch.schema.names if name != UPDATED_AT])


def _with_change(batch: pa.RecordBatch, wanted: Sequence[str], stored: Mapping[str, str]) -> pa.RecordBatch:
    """Records of a topic of changes with the columns that the changes of a view have. One without `op` came."""
    made = {
        OP: lambda: pc.fill_null(batch.column("op"), "+"),
        AT: lambda: pa.nulls(batch.num_rows, pa.timestamp("us", tz="UTC")),
        CORRECTIONS: lambda: pa.array(np.zeros(batch.num_rows, np.int64)),
        ROW: lambda: pa.nulls(batch.num_rows, pa.string()),
    }
    return pa.RecordBatch.from_arrays(
        [made[name]() if name in made else batch.column(stored.get(name, name)) for name in wanted], names=list(wanted)
    )


def _reading(columns: Columns) -> _Reading:
    names = _names(columns)
    needed = {*names, *((OP, UPDATED_AT) if columns.changes else ()), *(columns.judge.reads if columns.judge else ())}
    needed |= set(columns.numbering.origins.values()) if columns.numbering else set()
    wanted = [name for name in columns.schema.names if name in needed and name not in (*JUDGED, NUMBER)]
    steps = None if columns.after_read is None else columns.after_read.steps
    plain_changes = columns.topic.settings.changes
    return _Reading(
        wanted,
        names,
        steps,
        columns.judge,
        columns.numbering,
        columns.changes,
        columns.placeless,
        plain_changes,
        columns.carried,
    )


def _names(columns: Columns) -> list[str]:
    """The columns that a worker hands to Spark, in order; one at least, so that records can be counted."""
    made = (NUMBER,) if columns.numbering is not None else JUDGED if columns.judge is not None else ()
    return [name for name in columns.schema.names if name in columns.needed or name in made] or ["_offset"]


def _of_rows(batch: pa.RecordBatch, without: Sequence[str]) -> pa.RecordBatch:
    """Changes with what is the row's own in place of where and when they were written: the '-' of a row must be made
    into the same as its '+' was."""
    for at, name in enumerate(batch.schema.names):
        if name == "_arrived_at":
            batch = batch.set_column(at, batch.schema.field(at), batch.column(UPDATED_AT))
        elif name in without:
            batch = batch.set_column(at, batch.schema.field(at), pa.array(np.zeros(len(batch)), batch.column(at).type))
    return batch


def marks(topic: Topic, chosen: Range) -> tuple[int | None, int | None]:
    """Of a view's changes: what is final, and what can no longer change, as the last mark in the range says."""
    last: tuple[int | None, int | None] = None, None
    for batch in topic.batches(chosen.partition, chosen.start, chosen.stop, [OP, *MARK]):
        told = batch.filter(pc.equal(batch.column(OP), "."))
        if told.num_rows:
            closed, reachable = (told.column(name).cast(pa.int64())[-1].as_py() for name in MARK)
            last = closed, reachable if reachable is not None else last[1]
    return last


def _reader(spark: SparkSession, columns: Columns) -> Callable[[TopicRef, Sequence[Range]], Iterator[pa.RecordBatch]]:
    """A function for a worker: it is given a reference to the topic. Where progress is made by reading, it says how far
    it has come."""
    reading = _reading(columns)
    reports = None if remembering(columns.topic) is None else gathering(spark)

    def read_ranges(ref: TopicRef, chosen: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        topic = ref.open()
        yield from reading(topic, chosen)
        if reports is not None:
            report(reports, topic, {each.partition: each.stop for each in chosen})

    return read_ranges


def read_on_driver(columns: Columns, chosen: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """The ranges, read by this process."""
    return _reading(columns)(columns.topic, chosen)


def _carrying(batch: pa.RecordBatch, carry_us: int | None) -> pa.RecordBatch:
    """The batch with what the partition had reached before it in place of the log's progress."""
    at = batch.schema.get_field_index("_progress")
    value = pa.scalar(carry_us, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return batch.set_column(at, batch.schema.field(at), pa.repeat(value, batch.num_rows))


def arrow_schema(known_columns: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    instant = pa.timestamp("us", tz="UTC")
    known = {field.name: field for field in known_columns}
    known |= {"_partition": pa.field("_partition", pa.int32()), "_offset": pa.field("_offset", pa.int64())}
    known |= {name: pa.field(name, instant) for name in META[2:]}
    known |= {name: pa.field(name, pa.int64()) for name in JUDGED}
    return pa.schema([known[name].with_nullable(True) for name in columns])
