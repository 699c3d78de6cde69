"""What the transforms behind an aggregation make of its results, between a batch and its commit. Owns their plan, made
once for all small batches. It also tells a program that fails from surroundings that do: no record is to blame for a
result, so nothing is divided and tried again in smaller batches; the program must be mended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException

from headrace.errors import HeadraceError, TransformFailed
from headrace.flows.compiler.plan_check import has_exchange
from headrace.flows.flow import through
from headrace.flows.query import FlowQuery
from headrace.flows.spark.scratch import scratch_file
from headrace.flows.spark.session import workers_are_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Shaping", "first_line"]

FILE_ROWS = 5_000
"""Up to so many rows go to Spark in a file."""
NAMELESS = {"UnknownException", "SparkConnectGrpcException", "RetriesExceeded"}


class Shaping:
    """The transforms, as a store calls them. Few rows go to Spark in a file that a plan made once reads."""

    def __init__(self, query: FlowQuery) -> None:
        self._flow, self._spark, self._spark_use = query.compiled.flow, query.spark, query.spark_use
        self._path = ""
        self._small: DataFrame | None = None
        self._slated = workers_are_here(query.spark)

    def __call__(self, rows: pa.Table) -> pa.Table:
        try:
            if self._slated and rows.num_rows <= FILE_ROWS:
                return self._from_file(rows)
            return self._planned(rows)
        except Exception as error:
            if _of_the_surroundings(error):
                raise
            raise TransformFailed(flow=self._flow.name, why=first_line(error)) from error

    def _planned(self, rows: pa.Table) -> pa.Table:
        return self._run(through(self._flow.after, self._spark.createDataFrame(rows).coalesce(1)))

    def _from_file(self, rows: pa.Table) -> pa.Table:
        if self._small is None:
            self._small = through(self._flow.after, self._reading(rows))
            self._slated = not has_exchange(self._spark, self._small)
            if not self._slated:  # Spark would serve what it moved between partitions the last time
                return self._planned(rows)
        with pa.OSFile(self._path, "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        return self._run(self._small)

    def _run(self, df: DataFrame) -> pa.Table:
        return self._spark_use.run(self._spark, df.toArrow)

    def _reading(self, rows: pa.Table) -> DataFrame:
        self._path = path = scratch_file(self)

        def in_worker(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in numbers:
                with pa.OSFile(path, "rb") as file:
                    yield from pa.ipc.open_stream(file)

        schema = self._spark.createDataFrame(rows.slice(0, 0)).schema
        return self._spark.range(0, 1, 1, 1).mapInArrow(in_worker, schema)


def _of_the_surroundings(error: Exception) -> bool:
    """A lost session, a job that was cancelled: Spark has no name for what happened."""
    if isinstance(error, PySparkException):
        return error.getCondition() is None and type(error).__name__ in NAMELESS
    return isinstance(error, OSError) or type(error).__module__.startswith("py4j.")


def first_line(error: BaseException) -> str:
    """What a person reads first. Of an error in a worker, what the user's function raised."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if not isinstance(error, HeadraceError) and "Traceback" in str(error):
        return lines[-1]
    return lines[0]
