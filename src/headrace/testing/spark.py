"""The Spark session of tests: one for all of them, because starting one takes seconds. Owns its settings, for many
small runs; makes none where there is a session already, and starts nothing before it is asked."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.flows.spark import session

if TYPE_CHECKING:
    from headrace.flows.flow import SparkSession

SETTINGS = {
    "spark.master": "local[2,3]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.cache.maxEntries": "5000",  # tests run the same flows over and over; 100 by default
    # A JVM that lives for minutes compiles quickly, not thoroughly, and keeps what it compiled: by default a quick
    # compiler has room for 48 MB, which a few minutes of Spark fill.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    # Checkpoints of plain streams: the default forks twenty processes for each micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}


def shared_session() -> SparkSession:
    """The session that is there; or one of ours, which lasts until somebody stops it or the process ends."""
    found = session.active()
    if found is not None:
        return found
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need what the tests have
    folder = tempfile.mkdtemp(prefix="headrace-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made, _ = session.make("tests", SETTINGS, Path(folder))
    return made
