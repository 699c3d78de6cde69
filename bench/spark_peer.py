"""Spark's own stateful window, the peer of flows: the same events from Parquet files, its fastest source, into nowhere.
Its settings are the best we know for one machine, and each row of the table names them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "spark.sql.streaming"
_CLASSES = "org.apache.spark.sql.execution.streaming"
CONF = {
    f"{_STREAMING}.stateStore.providerClass": f"{_CLASSES}.state.RocksDBStateStoreProvider",
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STREAMING}.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    f"{_STREAMING}.checkpointFileManagerClass": f"{_CLASSES}.checkpointing."
    "FileSystemBasedCheckpointFileManager",  # the default forks twenty processes a batch
}
SETTINGS = (
    "Parquet in, noop sink, update mode, RocksDB, changelog, row counting off, 2 shuffle partitions, best batch size"
)
FILES_PER_BATCH = 1, 4
"""Spark is measured with each, and the better one counts: a million events a batch, and four."""


def write_files(tables: Sequence[pa.Table], folder: Path) -> None:
    """A file each; they are read in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number:05}.parquet")


def windowed(
    spark: SparkSession, files: Path, checkpoint: Path, seconds: int, where: str | None = None, per_batch: int = 1
) -> float:
    """Seconds that a windowed count and maximum of all files takes."""
    return timed(_query(spark, files, seconds, where, per_batch), checkpoint)


def timed(query: Any, checkpoint: Path, mode: str = "update") -> float:
    """Seconds that a streaming query over all files takes, into nowhere."""
    began = time.perf_counter()
    running = (
        query.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    return time.perf_counter() - began


def small_batches(spark: SparkSession, tables: Sequence[pa.Table], folder: Path, seconds: int) -> list[float]:
    """Milliseconds that each batch took, of those that had a file to read; the first ones are not counted."""
    files = folder / "files"
    write_files(tables, files)
    running = (
        _query(spark, files, seconds, None)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    took = [each["durationMs"]["triggerExecution"] for each in running.recentProgress if each["numInputRows"]]
    return [float(each) for each in took[len(took) // 5 :]]


def read(spark: SparkSession, files: Path, per_batch: int = 1) -> Any:
    """The files as a stream, so many a batch, two seconds of grace; the session is given the settings above."""
    for name, value in CONF.items():
        spark.conf.set(name, value)
    return (
        spark.readStream.schema("user string, ms int, at timestamp")
        .option("maxFilesPerTrigger", per_batch)
        .parquet(str(files))
        .withWatermark("at", "2 seconds")
    )


def _query(spark: SparkSession, files: Path, seconds: int, where: str | None, per_batch: int = 1) -> Any:
    from pyspark.sql import functions as F

    df = read(spark, files, per_batch)
    if where is not None:
        df = df.where(where)
    return df.groupBy(F.window("at", f"{seconds} seconds"), "user").agg(F.count("*").alias("n"), F.max("ms").alias("m"))
