"""Tables on their way to Spark's workers and back, in a job of one task for each. Owns how: as files, where workers
share this machine's disk; else within Spark, by a broadcast and as the rows of the job."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.flows.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flows.spark.spark_use import SparkUse

__all__ = ["in_workers", "ipc_bytes"]

SCHEMA = "number bigint, body binary"
Work = Callable[[pa.Table], pa.Table]


def in_workers(parts: Sequence[pa.Table], work: Work, spark: SparkSession, use: SparkUse) -> list[pa.Table]:
    """What becomes of each part, in their order."""
    return (_by_files if session.workers_are_here(spark) else _within_spark)(parts, work, spark, use)


def _by_files(parts: Sequence[pa.Table], work: Work, spark: SparkSession, use: SparkUse) -> list[pa.Table]:
    with tempfile.TemporaryDirectory(prefix="headrace-parts-") as folder:
        given, made = ([str(Path(folder) / f"{kind}-{at}.arrow") for at in range(len(parts))] for kind in ("in", "out"))
        for path, part in zip(given, parts, strict=True):
            _write(part, path)

        def in_worker(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    _write(work(_read(given[number])), made[number])
                yield batch

        use.run(spark, spark.range(0, len(parts), 1, len(parts)).mapInArrow(in_worker, "id bigint").toArrow)
        return [_read(path) for path in made]


def _within_spark(parts: Sequence[pa.Table], work: Work, spark: SparkSession, use: SparkUse) -> list[pa.Table]:
    given = spark.sparkContext.broadcast([ipc_bytes(part) for part in parts])

    def in_worker(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                made = work(pa.ipc.open_stream(given.value[number]).read_all())
                columns = {"number": pa.array([number]), "body": pa.array([ipc_bytes(made)], pa.binary())}
                yield pa.record_batch(columns)

    try:
        found = use.run(spark, spark.range(0, len(parts), 1, len(parts)).mapInArrow(in_worker, SCHEMA).toArrow)
    finally:
        given.destroy()  # its file on the driver, too
    bodies = dict(zip(found["number"].to_pylist(), found["body"], strict=True))
    return [pa.ipc.open_stream(bodies[number].as_buffer()).read_all() for number in range(len(parts))]


def ipc_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _write(rows: pa.Table, path: str) -> None:
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)


def _read(path: str) -> pa.Table:
    """Mapped, so it can be read after the file was removed."""
    return pa.ipc.open_stream(pa.memory_map(path)).read_all()
