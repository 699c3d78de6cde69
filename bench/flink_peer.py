"""A peer: Flink SQL through PyFlink, in an environment of its own (scripts/peers makes it), on a local cluster of two
slots in one JVM. It reads CSV files, the format it comes with, and writes into nowhere, or CSV files.

What is measured is the job, as Flink's job manager has it, from its creation to its end: starting Python, the JVM and
the local cluster, and planning the query, are not counted (`start_seconds`). Nothing is checkpointed, which is fastest
for Flink, while ours commits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from bench import peers

SLOTS = 2
CONF = {
    "parallelism.default": str(SLOTS),
    "pipeline.object-reuse": "true",
    "state.backend.type": "hashmap",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.local-time-zone": "UTC",
    "taskmanager.memory.managed.size": "512m",
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
}
SETTINGS = (
    f"CSV in, blackhole sink, parallelism {SLOTS}, state on the heap, no checkpoints, object reuse, "
    "mini-batches of 50,000 or 1 s, distinct split, JVM warm"
)


@dataclass(frozen=True)
class Job:
    """What a query took; medians but for the best. `rows`: changes that came out, where they were written."""

    seconds: float
    best_seconds: float
    cpu_seconds: float
    start_seconds: float  # of Python, the JVM, the first cluster and its plan: in none of the others
    rows: int | None


def run_sql(ddl: str, query: str, out: Path | None = None, *, repeat: int = 3) -> Job:
    """Runs `query`, a SELECT over what `ddl` creates (statements with semicolons between), into nowhere, `repeat` times
    after a first that is not counted. `out`: a folder to be made, for the changes that first time gives: see `answer`.
    Unavailable when there is no PyFlink, or it fails."""
    times = 1 + repeat
    asked = {"ddl": ddl, "query": query, "out": str(out.absolute()) if out else "", "times": times, "settings": CONF}
    found = peers.job("flink", asked)
    first, *counted = found["times"]
    counted.sort(key=lambda each: each["seconds"])
    return Job(
        seconds=statistics.median(each["seconds"] for each in counted),
        best_seconds=counted[0]["seconds"],
        cpu_seconds=statistics.median(each["cpu_seconds"] for each in counted),
        start_seconds=found["start_seconds"] + first["wall_seconds"] - first["seconds"],
        rows=sum(1 for file in _written(out) for _ in file.open("rb")) if out else None,
    )


def answer(out: Path, columns: Mapping[str, pa.DataType]) -> pa.Table:
    """What is left of the changes in `out`, as rows of these columns, in no order."""
    kinds = {"op": pa.string(), **columns}
    reading, options = pa.csv.ReadOptions(column_names=list(kinds)), pa.csv.ConvertOptions(column_types=kinds)
    files = [pa.csv.read_csv(file, reading, convert_options=options) for file in _written(out)]
    changes = pa.concat_tables([pa.schema(kinds).empty_table(), *files])
    added = pc.is_in(changes["op"], pa.array(["INSERT", "UPDATE_AFTER"]))
    signed = changes.set_column(0, "op", pc.if_else(added, 1, -1))
    left = signed.group_by(list(columns)).aggregate([("op", "sum")])
    times = left["op_sum"].to_numpy()
    return left.select(list(columns)).take(np.repeat(np.arange(len(left)), times))


def _written(out: Path) -> list[Path]:
    return sorted(file for file in out.rglob("part-*") if file.stat().st_size)


def write_files(tables: Sequence[pa.Table], folder: Path) -> None:
    """A CSV file for each slot, without a header, every other row each: so all slots read in the order of time.
    Instants become milliseconds since 1970, which Flink parses faster than text."""
    folder.mkdir(parents=True)
    for slot in range(SLOTS):
        options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
        with pa.csv.CSVWriter(folder / f"{slot}.csv", plain(tables[0]).schema, write_options=options) as file:
            for table in tables:
                file.write(plain(table).take(pa.array(range(slot, len(table), SLOTS))))


def plain(table: pa.Table) -> pa.Table:
    """Instants as milliseconds since 1970."""
    columns = [
        pc.divide(column.cast(pa.int64()), 1000) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)
