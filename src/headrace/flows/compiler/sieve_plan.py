"""Which transforms only choose: read from Spark's own optimised plan.

`df.where("page <> '/health'").select("user", "page", *hr.META)` asks Spark for nothing but comparisons. For those its
answer and Arrow's are the same, nulls and NaN included (a test asks both), and a record that is passed over never
becomes a row of the JVM. What is not known here for certain, any computing included, is left to Spark: `sieve_of` says
None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.flows.compiler.plan_text import PROBE
from headrace.kernels.sieve import COMPARE, Condition, Sieve
from headrace.schema import TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TYPES = {name: kind for name, kind in TYPES.items() if name != "binary"}
"""Equal, and ordered, in Arrow as in Spark; doubles but for NaN."""


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
    if kind not in COMPARE:
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
