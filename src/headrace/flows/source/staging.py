"""Writing a DataFrame to a topic: tasks stage their rows as Arrow files below the log's directory, the driver appends
all of them in one transaction. Owns the staging files.

After a crash nothing of a write is in the log, or all of it. A task that failed, ran twice or was left behind has
written files that no commit names. A micro-batch that is written again is recognised by its query and number, in the
transaction that would append it; with other rows than the first time it is refused. What is left of staged files goes
with the next commit of the same query, or of anybody after a day."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import InvalidArgument, StorageError, TopicReplaced, nearest
from headrace.flows.source.source_options import WriteOptions
from headrace.log.contract import META
from headrace.log.open import open_log

if TYPE_CHECKING:
    import pyarrow as pa

STAGING = "staging"
LEFT_SECONDS = 86_400
"""Staged files nobody has touched for so long are of a program that is gone."""
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""How Spark names the query and the micro-batch to its tasks."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task wrote. Empty tasks have no file."""

    path: Path | None
    topic_id: str
    query: str | None


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one transaction."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._topic_id = _check(options, schema)
        self._folder = options.home / STAGING / uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return Staged(_stage(self._folder, iterator), self._topic_id, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options = self._options
        try:
            _append(options, _of(messages), options.writer, options.batch)
        finally:
            _clear(self._folder)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        _clear(self._folder)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: one transaction per micro-batch, recognised when it is repeated."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._topic_id = _check(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = context and context.getLocalProperty(QUERY_ID)
        batch = context and context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise InvalidArgument("writeStream", None, "Spark does not tell its tasks which query they are of")
        folder = self._options.home / STAGING / query / batch
        return Staged(_stage(folder, iterator), self._topic_id, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = _of(messages)
        if staged:  # else there was no task, so there are no rows
            _append(self._options, staged, f"spark-{staged[0].query}", batchId)
            self._clear(staged, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._clear(_of(messages), batchId)

    def _clear(self, staged: Sequence[Staged], batch: int) -> None:
        """Nothing that was staged for this batch or an earlier one is needed any more."""
        for query in {one.query for one in staged if one.query}:
            folder = self._options.home / STAGING / query
            for old in folder.glob("*"):
                if int(old.name) <= batch:
                    _clear(old)


# -- tasks -------------------------------------------------------------------------------------------


def _check(options: WriteOptions, schema: StructType) -> str:
    """Before any task runs: is there such a topic, and does it have these columns? Its id."""
    with open_log(options.home, create=False) as log:
        topic = log.topic(options.topic)
        known = list(topic.schema.names)
        unknown = [name for name in schema.names if name not in known and name not in META]
        if unknown and topic.settings.extra == "forbid":
            why = f"topic {topic.name!r} has no such column.{nearest(unknown[0], known)} Drop it before writing"
            raise InvalidArgument("columns", unknown[0], why)
        if options.carry_progress and "_progress" not in schema.names:
            raise InvalidArgument("carryProgress", True, "there is no column _progress to carry: select it")
        return topic.topic_id


def _stage(folder: Path, batches: Iterator[pa.RecordBatch]) -> Path | None:
    """The rows as an Arrow file of a new name. Not synced: after a power loss the batch is written again."""
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}.arrow"
    try:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


# -- the driver --------------------------------------------------------------------------------------


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _append(options: WriteOptions, staged: Sequence[Staged], writer: str | None, batch: int | None) -> None:
    """All that was staged, in the order of the tasks, in one transaction."""
    import pyarrow as pa

    tables = [_table(one.path) for one in staged if one.path is not None]
    if not tables:
        return
    with open_log(options.home, create=False) as log:
        topic = log.topic(options.topic)
        if any(one.topic_id != topic.topic_id for one in staged):
            raise TopicReplaced(topic=options.topic, topic_id=staged[0].topic_id)
        table = pa.concat_tables(tables)
        progress = table.column("_progress") if options.carry_progress else None
        rows = table.drop_columns([name for name in META if name in table.column_names])
        topic.append_batch(rows, writer, batch, progress=progress)


def _table(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except FileNotFoundError:
        raise StorageError(
            str(path), "staged rows are gone before they were committed; write the batch again"
        ) from None


def _clear(folder: Path) -> None:
    """Removes what was staged there, and what programs that are gone have left. Failing to is no failure."""
    shutil.rmtree(folder, ignore_errors=True)
    staging = folder.parent if folder.parent.name == STAGING else folder.parent.parent
    for left in staging.glob("*"):
        try:
            newest = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
        except OSError:  # somebody else was faster
            continue
        if newest < time.time() - LEFT_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
