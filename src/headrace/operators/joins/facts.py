"""What operators have in common that answer facts from another input: `enrich` over a table, and over a view. Owns the
names of their inputs, and what comes out: facts with their answers. Knows no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa

from headrace.operators.contract import InputTimes, Kernel, Output, Timer
from headrace.operators.joins.rows import FINAL_AT, ID
from headrace.schema import type_ddl
from headrace.views.keyed import Column

__all__ = ["FACTS", "TABLE", "Missing", "OverFacts"]

FACTS, TABLE = "facts", "table"
Missing = Literal["null", "drop", "dead_letter"]
"""What becomes of a fact without an answer."""


class OverFacts:
    """`out_schema`: a hidden first column, those that are shown, then `ID` and what else is hidden."""

    def out_schema(self) -> pa.Schema:
        raise NotImplementedError

    def out_time(self) -> str | None:
        """The column with the event time."""
        raise NotImplementedError

    @property
    def output(self) -> Output:
        schema = self.out_schema()
        shown = schema.names[1 : schema.names.index(ID)]
        columns = tuple(Column(name, type_ddl(schema.field(name).type)) for name in shown)
        return Output(None, self.out_time(), FINAL_AT, columns, (ID,))

    @property
    def timers(self) -> tuple[Timer, ...]:
        return (Timer(FACTS, TABLE),)

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:  # noqa: ARG002
        """Facts that are kept hold both back: a step says how far they are."""
        return InputTimes(None, None)
