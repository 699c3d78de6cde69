"""A large step of an operator, run in parts by Spark's workers. Rows that meet are in one part (`Input.by`), so the
steps of the parts are, together, the step of all rows: every operator promises that. A worker opens the state where the
store lies, and sends back what came of its part.

Exact, because nobody changes the state meanwhile: only the flow's own commit does, and that waits for this."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.aggregates.groups import row_numbers
from headrace.flows.folding.carrying import in_workers, ipc_bytes
from headrace.flows.spark import session
from headrace.operators.contract import Operator, Step
from headrace.operators.result_rows import column
from headrace.views.contract import LedgerRow, State, Writes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flows.spark.spark_use import SparkUse

__all__ = ["ROWS_MIN", "step_in_parts"]

ROWS_MIN = 50_000
"""Steps of fewer rows are not worth a Spark job."""
Piece = tuple[str, str, bytes]


def step_in_parts(
    operator: Operator, rows: pa.Table, open_state: Callable[[], State], spark: SparkSession, use: SparkUse
) -> Step | None:
    """The operator's step over the rows of its one input; None where there are no parts."""
    (read,) = operator.inputs
    parts = _parts(rows, read.by, session.cores(spark))
    if len(parts) < 2:
        return None

    def work(part: pa.Table) -> pa.Table:
        return _as_table(_pieces(operator.step({read.id: part}, open_state(), {}, changes=True)))

    made = pa.concat_tables(in_workers(parts, work, spark, use))
    return _joined([tuple(row.values()) for row in made.to_pylist()])


def _parts(rows: pa.Table, by: tuple[str, ...], count: int) -> list[pa.Table]:
    """At most so many tables, of about the same size; their rows keep their order."""
    number = np.unique(row_numbers([column(rows, name) for name in by], rows.num_rows), return_inverse=True)[1]
    sizes = np.bincount(number.reshape(-1))
    part_of, load = np.zeros(len(sizes), np.int64), np.zeros(count, np.int64)
    for each in np.argsort(-sizes, kind="stable").tolist():
        part_of[each] = least = int(load.argmin())
        load[least] += sizes[each]
    mine = part_of[number.reshape(-1)]
    return [rows.filter(pa.array(mine == part)) for part in range(count) if load[part]]


# -- a step, as rows ------------------------------------------------------------------------------------


def _pieces(step: Step) -> Iterator[Piece]:
    writes: dict[str, Mapping[str, pa.Table]] = {
        "puts": step.writes.puts,
        "adds": step.writes.adds,
        "deletes": step.writes.deletes,
    }
    for kind, tables in writes.items():
        for name, table in tables.items():
            yield kind, name, ipc_bytes(table)
    for kind, rows in (("changes", step.changes), ("dropped", step.dropped), ("letters", step.letters)):
        if rows is not None:
            yield kind, "", ipc_bytes(rows)
    yield "drops", "", json.dumps(dict(step.writes.drops)).encode()
    yield "ledger", "", json.dumps([asdict(row) for row in step.ledger]).encode()


def _joined(pieces: list[Piece]) -> Step:
    tables: dict[str, dict[str, list[pa.Table]]] = {}
    drops: dict[str, int] = {}
    ledger: list[LedgerRow] = []
    for kind, name, body in pieces:
        if kind == "drops":
            drops |= {table: max(us, drops.get(table, us)) for table, us in json.loads(body).items()}
        elif kind == "ledger":
            ledger += [LedgerRow(**row) for row in json.loads(body)]
        else:
            tables.setdefault(kind, {}).setdefault(name, []).append(pa.ipc.open_stream(body).read_all())
    made = {kind: {name: pa.concat_tables(some) for name, some in found.items()} for kind, found in tables.items()}
    writes = Writes(made.get("puts", {}), made.get("adds", {}), made.get("deletes", {}), drops)
    passed = {kind: made.get(kind, {}).get("") for kind in ("changes", "dropped", "letters")}
    return Step(writes, passed["changes"], tuple(ledger), passed["dropped"], passed["letters"])


def _as_table(pieces: Iterable[Piece]) -> pa.Table:
    columns = list(zip(*pieces, strict=True))
    kinds = (pa.string(), pa.string(), pa.binary())
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.Table.from_arrays(arrays, names=["kind", "name", "body"])
