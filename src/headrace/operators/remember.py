"""Answers that are asked for once: `stream.remember(fn, key=, column=, type=)`. An impure call (a service, a model) is
made once for each key; its answer is a row of the flow's state, in the same commit as the records that got it. Owns the
answers.

Records go on with their answer to the flow behind: a replay, a retraction or a rebuild of what is behind reads what was
recorded, and asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.aggregates.groups import row_numbers
from headrace.errors import InvalidArgument
from headrace.operators.contract import Input, InputTimes, Output, Step
from headrace.operators.records import INPUT, OP, PARTITION, TOPIC, OverRecords, columns_of
from headrace.operators.result_rows import aligned, column, in_order
from headrace.schema import type_ddl
from headrace.views.contract import Column
from headrace.views.keyed import State, TableSpec, Writes
from headrace.views.values import arrow_type

__all__ = ["Remember"]

ANSWERS = "answers"


@dataclass(frozen=True)
class Remember:
    """The step of a program. `function` gets a key's value, or its values, and returns the answer."""

    function: Callable[..., Any]
    key: tuple[str, ...]
    column: str
    type: str
    called: ClassVar[str] = "remember"
    timed: ClassVar[bool] = False
    hashed: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        return self.key

    def over(self, schema: pa.Schema, time: str | None) -> Remembering:
        if self.column in schema.names:
            raise InvalidArgument("column", self.column, "records have a column of this name: choose another")
        return Remembering(self, schema, time)

    def __str__(self) -> str:
        named = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"remember({named}, key={self.key!r}, column={self.column!r}, type={self.type!r})"


@dataclass(frozen=True)
class Remembering(OverRecords):
    """The step over records of known columns. Its rows are not divided: a key is asked for once, wherever its records
    are."""

    of: Remember
    schema: pa.Schema
    time: str | None

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]
        return columns_of(self.schema)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input(INPUT, self.columns, ()),)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        keys = tuple(Column(name, type_ddl(self.schema.field(name).type)) for name in self.of.key)
        return (TableSpec(ANSWERS, keys, (Column("/answer", self.of.type),)),)

    @property
    def output(self) -> Output:
        return Output(None, self.time, None, (*self.columns, Column(self.of.column, self.of.type)))

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
        records = in_order(records, (TOPIC, PARTITION, "_offset"))
        names = list(self.of.key)
        number = row_numbers([column(records, name) for name in names], records.num_rows)
        _, first, of = np.unique(number, return_index=True, return_inverse=True)
        keys = records.select(names).take(pa.array(first))
        known = state.get(ANSWERS, keys)
        at = aligned(keys, known, names)
        new = keys.filter(pa.array(at < 0))
        kind = arrow_type(self.of.type)
        asked = pa.array([self.of.function(*row.values()) for row in new.to_pylist()], kind)
        found = pa.chunked_array([*known["/answer"].chunks, asked], kind)
        at[at < 0] = known.num_rows + np.arange(new.num_rows)
        answers = found.take(pa.array(at[of.reshape(-1)]))
        made = records.append_column(self.of.column, answers)
        puts = {ANSWERS: new.append_column("/answer", asked)} if new.num_rows else {}
        return Step(Writes(puts=puts), made.add_column(0, OP, pa.repeat("+", made.num_rows)))
