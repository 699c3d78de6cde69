"""The door for plain PySpark: `spark.read / readStream / write / writeStream .format("headrace")`. Owns how Spark's
calls become ranges of offsets and Arrow batches, and the form of a streaming offset. Writing is `staging`.

A streaming offset is `{"topic_id": …, "next": {"0": 120}}`, so a query never goes on in a topic that was created anew.
A range is read as it was planned or not at all: what retention deleted is OffsetOutOfRange, as is an offset the log
never had (an older copy). Opened in each process that needs it, the log is closed with its task or query. Spark starts
a process for each step of planning: what a step does not need is not imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.durations import from_us, instant_us
from headrace.errors import InvalidArgument, OffsetOutOfRange, TopicReplaced, nearest
from headrace.flows.source.source_options import ReadOptions, offsets_by_partition, read_options, write_options
from headrace.kernels.spans import Span, admitted, backlog, spans
from headrace.log.contract import META, Log, Topic
from headrace.log.open import open_log
from headrace.schema import EXTRA_COLUMN, TIMESTAMP, type_ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["HeadraceSource", "register"]


def register(spark: SparkSession) -> None:
    """Makes `format("headrace")` known to the session, for where Spark does not find `pyspark_headrace` by itself."""
    spark.dataSource.register(HeadraceSource)


class HeadraceSource(DataSource):
    """A topic as Spark's data source. Made and asked on the driver; readers and writers travel to the tasks."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        options = read_options(self.options, "read", "readStream")
        with open_log(options.home, create=False) as log:
            columns = _columns(log.topic(options.topic))
        chosen = [_known(name, columns) for name in options.columns or columns]
        return from_arrow_schema(_arrow([columns[name] for name in chosen]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options, "read"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.options, "readStream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.flows.source.staging import BatchWriter

        _refuse_overwriting(overwrite, "mode('append')")
        return BatchWriter(write_options(self.options, "write"), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.flows.source.staging import StreamWriter

        _refuse_overwriting(overwrite, "outputMode('append') or outputMode('update')")
        return StreamWriter(write_options(self.options, "writeStream"), schema)


def _refuse_overwriting(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidArgument("mode", "overwrite", f"a log is only appended to: use {instead}")


# -- the columns -------------------------------------------------------------------------------------


def _columns(topic: Topic) -> dict[str, pa.Field]:
    """What can be read of a topic, by name: its columns, what it kept beside them, and the metadata."""
    import pyarrow as pa

    fields = list(topic.schema)
    if topic.settings.extra_kept:
        fields.append(pa.field(EXTRA_COLUMN, pa.string()))
    kinds = (pa.int32(), pa.int64(), TIMESTAMP, TIMESTAMP)
    fields += [pa.field(name, kind) for name, kind in zip(META, kinds, strict=True)]
    return {field.name: field for field in fields}


def _arrow(fields: Sequence[pa.Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(fields)


def _known(name: str, columns: Mapping[str, pa.Field]) -> str:
    if name not in columns:
        raise InvalidArgument("columns", name, f"the topic has no such column.{nearest(name, list(columns))}")
    return name


def _check_types(schema: StructType, topic: Topic) -> None:
    """A schema the user gave may leave columns out; it does not convert them."""
    columns = _columns(topic)
    for field in to_arrow_schema(schema, timezone="UTC"):
        have = columns[_known(field.name, columns)].type
        if not have.equals(field.type):
            wanted = schema[field.name].dataType.simpleString()
            raise InvalidArgument(
                "schema", f"{field.name} {wanted}", f"the topic has {type_ddl(have)}: read it as that, then cast"
            )


# -- where reading begins and ends -------------------------------------------------------------------


def _opened(log: Log, name: str, topic_id: str | None = None) -> Topic:
    topic = log.topic(name)
    if topic_id is not None and topic.topic_id != topic_id:
        raise TopicReplaced(topic=name, topic_id=topic_id)
    return topic


def _ends(topic: Topic, options: ReadOptions) -> dict[int, tuple[int, int]]:
    """(earliest, next) of the partitions that are read."""
    ends = {partition: (offsets.earliest, offsets.next) for partition, offsets in topic.offsets().items()}
    if options.partitions is None:
        return ends
    if unknown := sorted(options.partitions - set(ends)):
        raise InvalidArgument("partitions", unknown[0], f"topic {topic.name!r} has 0..{len(ends) - 1}")
    return {partition: ends[partition] for partition in sorted(options.partitions)}


def _place(topic: Topic, options: ReadOptions, option: str, text: str) -> dict[int, int]:
    """The offsets that `start` or `stop` mean. Partitions that offsets by partition leave out are read whole."""
    ends = _ends(topic, options)
    side = 0 if text == "earliest" else 1
    if text in ("earliest", "latest"):
        return {partition: both[side] for partition, both in ends.items()}
    if not text.startswith("{"):
        at = topic.offsets(at=from_us(instant_us(text, argument=option)))
        return {partition: at[partition].next for partition in ends}
    given = offsets_by_partition(text, option)
    if unknown := sorted(set(given) - set(ends)):
        raise InvalidArgument(option, text, f"partition {unknown[0]} is not read: there are {sorted(ends)}")
    places = {partition: given.get(partition, both[option == "stop"]) for partition, both in ends.items()}
    _check_inside(topic.name, places, ends)
    return places


def _check_inside(topic: str, offsets: Mapping[int, int], ends: Mapping[int, tuple[int, int]]) -> None:
    for partition, offset in offsets.items():
        earliest, last = ends[partition]
        if not earliest <= offset <= last:
            raise OffsetOutOfRange(topic, partition, offset, earliest, last)


def _partitions(
    start: Mapping[int, int], stop: Mapping[int, int], topic_id: str, options: ReadOptions
) -> list[InputPartition]:
    found = spans(
        start,
        stop,
        cores=os.cpu_count() or 1,
        count_min=options.partitions_min,
        rows_max=options.partition_rows_max,
    )
    return [InputPartition((topic_id, span)) for span in found]


def _read(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In a task: the batches of one span, in the layout Spark expects."""
    if partition.value is None:  # Spark's way to say that there are no partitions
        return
    topic_id: str
    span: Span
    topic_id, span = partition.value
    layout = to_arrow_schema(schema, timezone="UTC")
    with open_log(options.home, create=False) as log:
        topic = _opened(log, options.topic, topic_id)
        offsets = topic.offsets()[span.partition]
        for offset in (span.start, span.stop):
            _check_inside(topic.name, {span.partition: offset}, {span.partition: (offsets.earliest, offsets.next)})
        for batch in topic.batches(span.partition, span.start, span.stop, layout.names):
            yield batch if batch.schema.equals(layout) else batch.cast(layout)


# -- batch -------------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """Reads what there is between `start` and `stop` when the query is planned."""

    # Filters are not pushed down: a source that takes them fails in every session that has not set
    # spark.sql.python.filterPushdown.enabled. `start`, `stop`, `partitions` and `columns` do the same.

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with open_log(options.home, create=False) as log:
            topic = _opened(log, options.topic)
            _check_types(self._schema, topic)
            start = _place(topic, options, "start", options.start)
            stop = _place(topic, options, "stop", options.stop)
        for partition, offset in stop.items():
            if offset < start[partition]:
                why = f"in partition {partition} it is offset {offset}, before start ({start[partition]})"
                raise InvalidArgument("stop", options.stop, why)
        return _partitions(start, stop, topic.topic_id, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


# -- streaming ---------------------------------------------------------------------------------------


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, and reads their spans in the tasks. What it holds open is the driver's."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._log: Log | None = None
        self._target: dict[int, int] | None = None  # where a run with availableNow ends

    def _topic(self, topic_id: str | None = None) -> Topic:
        if self._log is None:
            self._log = open_log(self._options.home, create=False)
        return _opened(self._log, self._options.topic, topic_id)

    def initialOffset(self) -> dict[str, Any]:
        topic = self._topic()
        _check_types(self._schema, topic)
        start = _place(topic, self._options, "start", self._options.start)
        if self._options.group is not None:  # from now on, retention knows who has not read yet
            topic.group(self._options.group).rewind(start)
        return _offset(topic, start)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        topic = self._topic(_topic_id(start))
        ends = _ends(topic, self._options)
        known = _nexts(start)
        begin = {partition: known.get(partition, 0) for partition in ends}  # added since: from their first record
        _check_inside(topic.name, begin, ends)
        latest = {partition: last for partition, (_, last) in ends.items()}
        if self._target is not None:
            target = self._target
            latest = {p: max(begin[p], min(last, target.get(p, 0))) for p, last in latest.items()}
        elif isinstance(limit, ReadMinRows) and backlog(begin, latest) < limit.min_rows:
            return start
        end = admitted(begin, latest, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        return start if end == begin else _offset(topic, {**known, **end})

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.batch_rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {partition: last for partition, (_, last) in _ends(self._topic(), self._options).items()}

    def reportLatestOffset(self) -> dict[str, Any]:
        topic = self._topic()
        return _offset(topic, {partition: last for partition, (_, last) in _ends(topic, self._options).items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        topic = self._topic(_topic_id(end))
        known, stop = _nexts(start), _nexts(end)
        begin = {partition: known.get(partition, 0) for partition in stop}
        ends = {partition: (offsets.earliest, offsets.next) for partition, offsets in topic.offsets().items()}
        for offsets in (begin, stop):
            _check_inside(topic.name, offsets, ends)
        return _partitions(begin, stop, topic.topic_id, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.group is not None:
            self._topic(_topic_id(end)).group(self._options.group).rewind(_nexts(end))

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _offset(topic: Topic, nexts: Mapping[int, int]) -> dict[str, Any]:
    return {"topic_id": topic.topic_id, "next": {str(partition): nexts[partition] for partition in sorted(nexts)}}


def _topic_id(offset: Mapping[str, Any]) -> str:
    if not isinstance(offset.get("topic_id"), str) or not isinstance(offset.get("next"), dict):
        raise InvalidArgument("offset", offset, "the checkpoint is of another source: use a new checkpointLocation")
    return str(offset["topic_id"])


def _nexts(offset: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(after) for partition, after in offset["next"].items()}
