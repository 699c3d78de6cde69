"""Where Spark groups records, what they are grouped by stays in Python: the JVM gets one number in place of the window,
how late a record is, and those groups that a transform only passes on, and the names are put back on the driver. Owns
the numbers, and the way of the names around the JVM: a Spark accumulator.

A number stands for its names within one job. It has the task's attempt in it, so that what an attempt numbered is never
taken for what another one did. When there are too many names to be worth the way, a reader stops, and the job counts
for nothing: the flow is then read without numbers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from headrace.kernels.judge import PANE, without_untimed
from headrace.kernels.numbering import in_chunks, numbered

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

__all__ = ["INPUTS_MAX", "NUMBER", "Names", "Numbering", "gathered", "names_of"]

NUMBER = "_number"
JOB = "headrace.names"
"""The property of a job under which its names are gathered."""
NAMES_BYTES_MAX = 16 << 20
_CODE_BITS, _INPUT_BITS, _ATTEMPT_BITS = 31, 8, 24
INPUTS_MAX = 1 << _INPUT_BITS

Gathered = dict[str, list[tuple[int, bytes | None]]]
"""Job -> the first number of a table of names, and the table; no table, where a reader stopped."""


class _Gathering(AccumulatorParam[Gathered]):
    def zero(self, value: Gathered) -> Gathered:
        return type(value)()

    def addInPlace(self, value1: Gathered, value2: Gathered) -> Gathered:
        for job, tables in value2.items():
            value1.setdefault(job, []).extend(tables)
        return value1


@dataclass(frozen=True, slots=True)
class Numbering:
    """For the records of one input; goes to the workers. `origins`: a group -> the topic's column that it is."""

    origins: Mapping[str, str]
    judged: tuple[str, ...]
    input: int
    gathered: Accumulator[Gathered]
    bytes_max: int
    """A reader that has more names than that stops."""

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records with their number."""
        context = TaskContext.get()
        assert context is not None
        job, attempt = str(context.getLocalProperty(JOB)), context.taskAttemptId() % (1 << _ATTEMPT_BITS)
        first = (attempt << _INPUT_BITS | self.input) << _CODE_BITS
        room = self.bytes_max
        for table in in_chunks(batches):
            by = {**self.origins, **{name: name for name in self.judged}}
            number, row = numbered([table[column] for column in by.values()])
            few = table.select(list(dict.fromkeys(by.values()))).take(pa.array(row))
            names = pa.table({name: few[column] for name, column in by.items()})
            room -= names.nbytes
            if room < 0:
                self.gathered.add({job: [(first, None)]})
                return
            self.gathered.add({job: [(first, _packed(names))]})
            yield from table.append_column(NUMBER, pa.array(number + first)).to_batches()
            first += len(row)


@dataclass(frozen=True, slots=True)
class Names:
    """`schema`: what a number stands for."""

    schema: pa.Schema
    gathered: Accumulator[Gathered]


def names_of(context: SparkContext, schema: pa.Schema) -> Names:
    return Names(schema, context.accumulator({}, _Gathering()))


@contextmanager
def gathered(context: SparkContext, names: Names) -> Iterator[_Found]:
    """Names of the jobs that are run inside the block, by this thread or by those that have its properties."""
    job = uuid.uuid4().hex
    context.setLocalProperty(JOB, job)
    try:
        yield _Found(names, job)
    finally:
        context.setLocalProperty(JOB, None)  # type: ignore[arg-type]
        names.gathered.value.pop(job, None)


@dataclass(frozen=True, slots=True)
class _Found:
    names: Names
    job: str

    def put_back(self, rows: pa.Table) -> pa.Table | None:
        """The rows with what their numbers stand for; None where there were too many names."""
        tables = sorted(self.names.gathered.value.get(self.job, []), key=lambda each: each[0])
        if any(table is None for _, table in tables):
            return None
        read = [self.names.schema.empty_table(), *(_read(table) for _, table in tables if table is not None)]
        firsts = np.array([-1, *(first for first, _ in tables)], np.int64)
        before = np.cumsum([0, *(table.num_rows for table in read[:-1])])
        number = rows[NUMBER].to_numpy()
        of = np.searchsorted(firsts, number, side="right") - 1
        found = pa.concat_tables(read).take(pa.array(before[of] + number - firsts[of]))
        rows = rows.drop_columns([NUMBER])
        for name in found.column_names:
            rows = rows.append_column(name, found[name])
        return rows


def _packed(names: pa.Table) -> bytes:
    """As one batch of an Arrow stream. Where a record has no time, its pane is null, as Spark would have it."""
    if PANE in names.column_names:
        names = names.set_column(names.column_names.index(PANE), PANE, without_untimed(names[PANE]))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, names.schema) as stream:
        stream.write_table(names.combine_chunks())
    return bytes(out.getvalue())


def _read(table: bytes) -> pa.Table:
    with pa.ipc.open_stream(table) as stream:
        return stream.read_all()
