"""A step of a program: `stream.search(queries, text=[…])`. What a user writes, as a value; `search` is the operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.durations import from_us
from headrace.operators.contract import InputTimes
from headrace.schema import OP_COLUMN
from headrace.windows import Drop, Late

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FACTS", "QUERIES", "Searching"]

FACTS, QUERIES = "facts", "queries"


@dataclass(frozen=True)
class Searching:
    """`queries`: what they are called. `tenant`: the column of records and queries that says whose they are.
    `as_of_us`: queries that were stored by then count from the beginning."""

    queries: str
    text: tuple[str, ...]
    tenant: str | None = None
    as_of_us: int | None = None
    late: Late = field(default_factory=Drop)
    idle_us: int = 30_000_000
    absent_us: int = 3_600_000_000
    called: ClassVar[str] = "search"
    first: ClassVar[tuple[str, ...]] = (QUERIES,)

    def over(
        self,
        schemas: Mapping[str, pa.Schema],
        times: Mapping[str, str | None],
        *,
        retracts: bool,  # noqa: ARG002
    ) -> Any:
        from headrace.operators.stored.search import Search

        queries = schemas[QUERIES]
        queries = queries.remove(queries.get_field_index(OP_COLUMN))
        return Search(schemas[FACTS], queries, self.text, times[FACTS], self.queries, self.tenant, self.as_of_us)

    def time(self, times: Mapping[str, str | None]) -> str | None:
        return times[FACTS]

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        return times[QUERIES].frontier_us

    def __str__(self) -> str:
        said = f"search({json.dumps(self.queries)}, text={json.dumps(self.text)}"
        said += "" if self.tenant is None else f", tenant={self.tenant!r}"
        said += "" if self.as_of_us is None else f", as_of={from_us(self.as_of_us).isoformat()!r}"
        return f"{said})"
