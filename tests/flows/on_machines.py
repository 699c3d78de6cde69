"""A program for tests: flows whose log is on Kafka, whose views are in Postgres, and whose records are computed by a
Spark cluster that shares no directory with it. Records take so long that something can be killed meanwhile.
`python -m tests.flows.on_machines HOME MASTER LOG VIEWS MARKS POSITION`: says "started", and "done" when all views are
at the position. Each worker leaves its process id in MARKS, with the directory it runs in."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.flows.folding import staging
from headrace.flows.query import FlowQuery
from tests.flows.on_cluster import quick_java
from tests.flows.shop import app_of

NAMES = ("arrow_drop",)
MORE = (
    *NAMES,
    "tumbling_drop",
    "hopping_correct",
    "session_correct",
    "arrow_sliding",
    "arrow_all_time",
    "cumulative_correct",
)
"""For a soak."""


def slowly(marks: str) -> Any:
    from pyspark.sql import functions as F

    def look(n: int | None) -> int | None:
        import headrace

        Path(marks, str(os.getpid())).write_text(f"{os.getcwd()}\n{headrace.__file__}")
        time.sleep(0.02)
        return n

    return lambda df: df.withColumn("n", F.udf(look, "int")("n"))


def program(home: Path, spark: Any, log: str, views: str, marks: str, names: Sequence[str]) -> hr.App:
    app = app_of(home, spark, names=names, log=log, views=views)
    app.driver_rows = 0
    events, users = app.stream("events"), app.table("users", "word string, name string", key="word")
    slow = events.transform(slowly(marks))
    slow.group_by("word").agg(records=hr.count(), total=hr.sum("n")).to_view("slow")
    joined = events.enrich(users, on="word", late=hr.correct(within="1 hour"))
    joined.to_view("named")
    return app


def at(app: hr.App, position: hr.Position) -> bool:
    """A database that cannot be reached is no reason to end: flows begin again by themselves."""
    with contextlib.suppress(hr.StorageError):
        return app.views.are_at(position)
    return False


def main() -> None:
    home, master, log, views, marks, position = sys.argv[1:]
    settings = {"spark.master": master, "spark.executor.memory": "512m", "spark.executor.cores": "1"}
    settings |= {"spark.executor.extraJavaOptions": quick_java(), "spark.cores.max": os.environ.get("CORES", "2")}
    FlowQuery.one_task_rows = 0  # all is read by the executors
    staging.ROWS_MIN = 0  # and staged by them
    names = os.environ.get("NAMES", " ".join(NAMES)).split()
    with program(Path(home), settings, log, views, marks, names) as app:
        app.batch_rows = int(os.environ.get("BATCH_ROWS", "60"))
        app.start(standby=True)
        print("started", flush=True)
        while not at(app, hr.Position.parse(position)):
            app.wait("0.2 seconds")
        app.stop()
        print("done", flush=True)


if __name__ == "__main__":
    main()
