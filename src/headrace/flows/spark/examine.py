"""What the executors of a Spark are, for `headrace doctor`: on which host and Python each runs, its clock, and what it
reaches. Owns one small job; starts a session, and ends the one it has started."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.flows.spark import session

__all__ = ["Executor", "Spark", "examine"]

TASKS_MIN = 4
SCHEMA = "host string, python string, headrace string, pyarrow string, clock_us bigint, unreached array<string>"


@dataclass(frozen=True, slots=True)
class Executor:
    """A worker of Spark. `skew_us`: its clock is at least so far from ours; negative if it is behind. `unreached`: why
    it cannot reach one of the addresses, or does not see the directory."""

    host: str
    python: str
    headrace: str
    pyarrow: str
    skew_us: int
    unreached: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spark:
    """`here`: this process as an executor would describe itself."""

    version: str
    master: str
    here: Executor
    executors: tuple[Executor, ...]


def examine(spark: Any, addresses: Sequence[str], directory: Path | None) -> Spark:
    """`addresses`: HOST:PORT of what executors have to reach; `directory`: of the log, if it is in one."""
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
        return _examined(spark, Path(folder), addresses, directory)


def _examined(spark: Any, home: Path, addresses: Sequence[str], directory: Path | None) -> Spark:
    made, ours = session.make("doctor", spark, home)
    look = looking(tuple(addresses), None if directory is None else str(directory))
    try:
        context = session.context_of(made)
        tasks = TASKS_MIN if context is None else max(TASKS_MIN, context.defaultParallelism)
        began_us = time.time_ns() // 1000
        rows = made.range(tasks, numPartitions=tasks).mapInArrow(look, SCHEMA).toArrow().to_pylist()
        ended_us = time.time_ns() // 1000
        found = {_executor(row, began_us, ended_us) for row in rows}
        (here,) = (_executor(batch.to_pylist()[0], began_us, time.time_ns() // 1000) for batch in look(iter([None])))
        master = "" if context is None else str(context.master)
        return Spark(str(made.version), master, here, tuple(sorted(found, key=lambda each: each.host)))
    finally:
        if ours:
            made.stop()


def _executor(row: dict[str, Any], began_us: int, ended_us: int) -> Executor:
    clock_us = row["clock_us"]
    skew_us = clock_us - ended_us if clock_us > ended_us else min(0, clock_us - began_us)
    versions = row["python"], row["headrace"], row["pyarrow"]
    return Executor(row["host"], *versions, skew_us, tuple(row["unreached"]))


def looking(addresses: tuple[str, ...], directory: str | None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What runs in an executor: it goes there by value, so that it can say that headrace is missing."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib
        import os
        import platform
        import socket
        import time

        import pyarrow as pa

        for _ in batches:
            pass
        try:
            version = importlib.import_module("headrace").__version__
        except ImportError as error:
            version = f"missing ({error})"
        unreached = []
        for address in addresses:
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            except OSError as error:
                unreached.append(f"{address}: {error}")
        if directory is not None and not os.path.isdir(directory):
            unreached.append(f"{directory}: no such directory there")
        facts = {
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "headrace": version,
            "pyarrow": pa.__version__,
            "clock_us": time.time_ns() // 1000,
            "unreached": unreached,
        }
        schema = pa.schema(
            [(name, pa.string()) for name in ("host", "python", "headrace", "pyarrow")]
            + [("clock_us", pa.int64()), ("unreached", pa.list_(pa.string()))]
        )
        yield pa.RecordBatch.from_pylist([facts], schema=schema)

    return look
