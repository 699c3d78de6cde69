"""A program for tests: flows on a Spark cluster, whose records take so long that an executor can be killed meanwhile.
`python -m tests.flows.on_cluster HOME MASTER MARKS`: says "ready", drains, audits, says "done". Each worker leaves its
process id in MARKS."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.flows.query import FlowQuery
from headrace.flows.spark import class_archive
from tests.flows.shop import app_of

NAMES = ("tumbling_drop", "arrow_drop")
ROWS = 200


def quick_java() -> str:
    """For a JVM that lives for a minute."""
    archive = class_archive.java_options()
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {archive if 'SharedArchiveFile' in archive else ''}"


def slowly(marks: str) -> Any:
    from pyspark.sql import functions as F

    def look(n: int | None) -> int | None:
        Path(marks, str(os.getpid())).touch()
        time.sleep(0.02)
        return n

    return lambda df: df.withColumn("n", F.udf(look, "int")("n"))


def main() -> None:
    home, master, marks = sys.argv[1:]
    settings = {"spark.master": master, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
    settings["spark.executor.extraJavaOptions"] = quick_java()
    with app_of(Path(home), settings, names=NAMES) as app:
        app.driver_rows = 0
        topic = app.log.topic("events")
        app.stream(topic).transform(slowly(marks)).group_by("word").agg(records=hr.count(), total=hr.sum("n")).to_view(
            "slow"
        )
        FlowQuery.one_task_rows = 0  # all is read by the executors
        app.running.check()
        for mark in Path(marks).iterdir():  # of made-up rows
            mark.unlink()
        print("ready", flush=True)
        assert app.drain() > 0
        assert app.audit().ok
        print("done", flush=True)


if __name__ == "__main__":
    main()
