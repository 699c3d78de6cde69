"""Operators over records: records go in, records come out, and state lies in keyed tables between them. Owns what such
an operator is to a flow (`Through`), and the short form in which a user writes one (`RecordOperator`).

A record's partition is read in the order of its offsets, so what an operator decides may depend on the records before
in the same partition, and on no others: records of two partitions come in any order. State is therefore kept by
partition (`PLACE`), and a topic whose records meet by a key has that key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.result_rows import in_order
from headrace.schema import type_ddl
from headrace.views.keyed import Column, State, TableSpec, Writes

__all__ = [
    "HASH",
    "INPUT",
    "OP",
    "PARTITION",
    "PLACE",
    "TOPIC",
    "BoundRecords",
    "OverRecords",
    "RecordOperator",
    "Through",
]

INPUT, OP = "records", "op"
TOPIC, PARTITION, HASH = "/topic", "_partition", "/hash"
"""Of a record: its topic, its partition, and where asked for the hash of its key."""
PLACE = (Column(TOPIC, "string"), Column(PARTITION, "int"))
"""What the key of an operator's table begins with."""


class Through(Protocol):
    """A step of a program that keeps state. It is a value; `over` makes the operator when the columns are known."""

    @property
    def called(self) -> str:
        """What the helper flow is called behind its parent's name."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that records must have."""

    @property
    def timed(self) -> bool:
        """Whether records must have an event time."""

    @property
    def hashed(self) -> tuple[str, ...]:
        """Columns whose hash each record brings as `HASH`; none: no hash."""

    def over(self, schema: pa.Schema, time: str | None) -> Any:
        """The operator, an `Operator` over records of these columns, whose event time is `time`."""


@dataclass(frozen=True)
class RecordOperator:
    """The base of an operator that passes records on: `class Previous(hr.RecordOperator)`. A subclass is a frozen
    dataclass with its settings. It says what it keeps (`tables`) and what a batch comes to (`fold`).

    `fold` gets the records of a batch in the order of their partitions and offsets, and must not depend on how records
    are cut into batches: `headrace.testing.OperatorContract` tests that."""

    @property
    def called(self) -> str:
        """A short name: the flow that keeps its state is called so, behind the name of the view or topic."""
        return type(self).__name__.lower()

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that records must have."""
        return ()

    @property
    def timed(self) -> bool:
        """Whether records must have an event time."""
        return False

    @property
    def hashed(self) -> tuple[str, ...]:
        """Columns whose hash each record brings, as a column `/hash`; none: no hash."""
        return ()

    def tables(self, schema: pa.Schema) -> tuple[TableSpec, ...]:  # noqa: ARG002
        """What it keeps, for records of these columns. The key of a table begins with `PLACE`."""
        return ()

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """What the records have that come out; by default what they had."""
        return schema

    def fold(self, records: pa.Table, state: State) -> tuple[pa.Table, Writes]:
        """The records that come out, with headrace's own columns, and what is written to the tables."""
        raise NotImplementedError("return the records that come out, and what is written")

    def over(self, schema: pa.Schema, time: str | None) -> BoundRecords:
        """The operator over records of these columns."""
        return BoundRecords(self, schema, time)


class OverRecords:
    """What all operators have that pass records on: one input, in the order of its partitions, and no timers."""

    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input(INPUT, self.columns, (TOPIC, PARTITION)),)

    @property
    def timers(self) -> tuple[Timer, ...]:
        return ()

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        """Records go on as they came."""
        return times[INPUT]

    def reset(self) -> None:
        """It knows nothing between steps."""


@dataclass(frozen=True)
class BoundRecords(OverRecords):
    """A `RecordOperator` over records of known columns: an `Operator`."""

    of: RecordOperator
    schema: pa.Schema
    time: str | None

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]
        return columns_of(self.schema)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self.of.tables(self.schema)

    @property
    def output(self) -> Output:
        return Output(None, self.time, None, columns_of(self.of.columns(self.schema)))

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],  # noqa: ARG002
        *,
        changes: bool,  # noqa: ARG002
    ) -> Step:
        records = batch.get(INPUT)
        if records is None:
            return Step()
        rows, writes = self.of.fold(in_order(records, (TOPIC, PARTITION, "_offset")), state)
        return Step(writes, rows.add_column(0, OP, pa.repeat("+", rows.num_rows)))


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    return tuple(Column(field.name, type_ddl(field.type)) for field in schema)
