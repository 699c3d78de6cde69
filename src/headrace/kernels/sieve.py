"""Transforms that only choose: which records go on, and which of their columns, under which names. Owns that choice,
made by Arrow where the records are read. `flows.compiler.sieve_plan` reads it from Spark's own plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

Condition = tuple[Any, ...]
"""What it is, and of what: `("And", left, right)`, `("GreaterThan", ("Column", "n"), ("Value", 5, pa.int32()))`."""

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": pc.equal,
    "EqualNullSafe": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}
_WITHIN = {"StartsWith": pc.starts_with, "EndsWith": pc.ends_with, "Contains": pc.match_substring}


@dataclass(frozen=True, slots=True)
class Sieve:
    """Goes to the workers. `columns`: what comes out, each the column that went in under the second name."""

    conditions: tuple[Condition, ...]
    columns: tuple[tuple[str, str], ...]

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records that go on. Columns that nobody reads are not there, and do not come out."""
        for batch in batches:
            there = self._present_columns(batch.schema)
            chosen = batch.select([of for _, of in there]).rename_columns([name for name, _ in there])
            if self.conditions:
                holds = functools.reduce(pc.and_kleene, (_holds(each, batch) for each in self.conditions))
                chosen = chosen.filter(holds)
            if chosen.num_rows:
                yield chosen

    def reads(self, wanted: Collection[str]) -> frozenset[str]:
        """What has to go in so that these come out: what conditions ask for has to in any case."""
        asked = {name for each in self.conditions for name in _asked(each)}
        return frozenset(asked | {of for name, of in self.columns if name in wanted})

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Of what comes out."""
        return pa.schema([schema.field(of).with_name(name) for name, of in self._present_columns(schema)])

    def _present_columns(self, schema: pa.Schema) -> list[tuple[str, str]]:
        there = set(schema.names)
        return [(name, of) for name, of in self.columns if of in there]


def _asked(condition: Condition) -> Iterator[str]:
    """The columns a condition is about."""
    match condition:
        case ("Column", name):
            yield name
        case ("In", of, _):
            yield from _asked(of)
        case (_, *parts):
            for part in parts:
                if isinstance(part, tuple):
                    yield from _asked(part)


def _holds(condition: Condition, batch: pa.RecordBatch) -> Any:
    """True, false or null for each record: null is passed over."""
    match condition:
        case ("Column", name):
            return batch.column(name)
        case ("Value", value, kind):
            return pa.scalar(value, kind)
        case ("And", left, right):
            return pc.and_kleene(_holds(left, batch), _holds(right, batch))
        case ("Or", left, right):
            return pc.or_kleene(_holds(left, batch), _holds(right, batch))
        case ("Not", of):
            return pc.invert(_holds(of, batch))
        case ("IsNull", of):
            return pc.is_null(_holds(of, batch))
        case ("IsNotNull", of):
            return pc.is_valid(_holds(of, batch))
        case ("In", of, values):
            column = _holds(of, batch)
            return pc.if_else(pc.is_null(column), None, pc.is_in(column, pa.array(values, column.type)))
        case (("StartsWith" | "EndsWith" | "Contains") as kind, of, text):
            return _WITHIN[kind](_holds(of, batch), text)
        case (kind, left, right):
            return _compared(kind, _holds(left, batch), _holds(right, batch))
    raise AssertionError(condition)


def _compared(kind: str, left: Any, right: Any) -> Any:
    found = COMPARE[kind](left, right)
    if kind == "EqualNullSafe":
        return pc.fill_null(found, False)
    larger = left if kind.startswith("GreaterThan") else right if kind.startswith("LessThan") else None
    if larger is not None and types.is_floating(larger.type) and not isinstance(larger, pa.Scalar):
        return pc.or_kleene(found, pc.is_nan(larger))  # in Spark NaN is larger than any number
    return found
