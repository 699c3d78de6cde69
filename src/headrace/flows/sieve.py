"""Transforms that only choose: which records go on, and which of their columns, under which names. Owns what they are
read from, Spark's own optimised plan, and the same choice made by Arrow where the records are read.

`df.where("page <> '/health'").select("user", "page", *hr.META)` asks Spark for nothing but comparisons. For those its
answer and Arrow's are the same, nulls and NaN included (a test asks both), and a record that is passed over never
becomes a row of the JVM. What is not known here for certain, any computing included, is left to Spark: `sieve_of` says
None."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.flows.plan_text import PROBE
from headrace.schema import TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Condition = tuple[Any, ...]
"""What it is, and of what: `("And", left, right)`, `("GreaterThan", ("Column", "n"), ("Value", 5, pa.int32()))`."""

_TYPES = {name: kind for name, kind in TYPES.items() if name != "binary"}
"""Equal, and ordered, in Arrow as in Spark; doubles but for NaN."""
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
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
            there = self._there(batch.schema)
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
        return pa.schema([schema.field(of).with_name(name) for name, of in self._there(schema)])

    def _there(self, schema: pa.Schema) -> list[tuple[str, str]]:
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
    found = _COMPARE[kind](left, right)
    if kind == "EqualNullSafe":
        return pc.fill_null(found, False)
    larger = left if kind.startswith("GreaterThan") else right if kind.startswith("LessThan") else None
    if larger is not None and types.is_floating(larger.type) and not isinstance(larger, pa.Scalar):
        return pc.or_kleene(found, pc.is_nan(larger))  # in Spark NaN is larger than any number
    return found


# -- from the plan -----------------------------------------------------------------------------------


class _OnlySpark(Exception):
    """There is something that only Spark computes."""


def sieve_of(df: DataFrame) -> Sieve | None:
    """What a transform of the probe chooses; None if it does more, or cannot be looked into (Spark Connect)."""
    if not hasattr(df, "_jdf"):
        return None
    node, above = df._jdf.queryExecution().optimizedPlan(), []
    while (kind := _kind(node)) in ("Filter", "Project"):
        above.append(node)
        node = node.child()
    if kind != "MapInArrow" or not node.functionExpr().toString().startswith(f"{PROBE}("):
        return None
    columns = {each.exprId().id(): each.name() for each in _each(node.output())}
    conditions: list[Condition] = []
    try:
        for each in reversed(above):
            if _kind(each) == "Filter":
                conditions.append(_condition(each.condition(), columns))
            else:
                columns = {made.exprId().id(): _origin(made, columns) for made in _each(each.projectList())}
    except _OnlySpark:
        return None
    out = [(each.name(), columns[each.exprId().id()]) for each in _each((above[0] if above else node).output())]
    return Sieve(tuple(conditions), tuple(out))


def _origin(made: Any, columns: Mapping[int, str]) -> str:
    of = made.child() if _kind(made) == "Alias" else made
    if _kind(of) != "AttributeReference":
        raise _OnlySpark
    return columns[of.exprId().id()]


def _condition(expression: Any, columns: Mapping[int, str]) -> Condition:
    kind, of = _kind(expression), _each(expression.children())
    match kind:
        case "And" | "Or" | "Not":
            return (kind, *(_condition(each, columns) for each in of))
        case "AttributeReference" if _type(expression) == "boolean":
            return _operand(expression, columns)
        case "IsNull" | "IsNotNull" if _kind(of[0]) == "AttributeReference":
            return kind, ("Column", columns[of[0].exprId().id()])
        case "In" | "InSet":
            return _among(expression, of[0], columns)
        case "StartsWith" | "EndsWith" | "Contains" if _is_text(of[1]) and _type(of[0]) == "string":
            return kind, _operand(of[0], columns), _value(of[1].value())
    if kind not in _COMPARE:
        raise _OnlySpark
    left, right = (_operand(each, columns) for each in of)
    both = {_kind(each) for each in of}
    if "AttributeReference" not in both or _type(of[0]) != _type(of[1]):
        raise _OnlySpark
    if "Literal" not in both and (kind == "EqualNullSafe" or _type(of[0]) in ("float", "double")):
        raise _OnlySpark  # two that are null, or not a number
    return kind, left, right


def _operand(expression: Any, columns: Mapping[int, str]) -> Condition:
    kind = _TYPES.get(_type(expression))
    if kind is None:
        raise _OnlySpark
    if _kind(expression) == "AttributeReference":
        return "Column", columns[expression.exprId().id()]
    if _kind(expression) != "Literal":
        raise _OnlySpark
    return "Value", _value(expression.value()), kind


def _among(expression: Any, of: Any, columns: Mapping[int, str]) -> Condition:
    column = _operand(of, columns)
    if column[0] != "Column" or _type(of) in ("float", "double"):
        raise _OnlySpark
    if _kind(expression) == "InSet":
        values = [_value(each) for each in _each(expression.hset().toSeq())]
    else:
        values = [_operand(each, columns)[1] for each in _each(expression.list()) if _kind(each) == "Literal"]
        if len(values) < expression.list().size():
            raise _OnlySpark
    return "In", column, tuple(values)


def _value(value: Any) -> Any:
    """A literal: numbers, days and microseconds come as numbers, texts as Spark's own."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise _OnlySpark
    if isinstance(value, (bool, int, float)):
        return value
    text = value.toString()
    if "\ufffd" in text:  # what Java makes of bytes that are no text, and Spark compares bytes
        raise _OnlySpark
    return text


def _is_text(expression: Any) -> bool:
    return _kind(expression) == "Literal" and _type(expression) == "string" and expression.value() is not None


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _type(expression: Any) -> str:
    return str(expression.dataType().catalogString())


def _each(some: Any) -> list[Any]:
    """Of a sequence of Scala's."""
    return [some.apply(at) for at in range(some.size())]
