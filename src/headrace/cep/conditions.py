"""Conditions over one row, for many rows at once: the bits of the symbols that each row can have. Owns what of a
condition is decided here and what Spark computes before. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.cep.evaluate import Compiler
from headrace.cep.expressions import (
    Arithmetic,
    Between,
    Column,
    Comparison,
    Computed,
    Expression,
    In,
    IsNull,
    Literal,
    Logic,
    Negative,
    Not,
    walk,
)

__all__ = ["RowCondition", "is_closed", "is_plain", "marks_of"]

Compare = Callable[[Any, Any], pa.Array]
COMPARE: dict[str, Compare] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class RowCondition:
    """What must hold of a row for a symbol. `text`: as its author wrote it."""

    symbol: str
    of: Expression
    text: str


def is_plain(node: Expression) -> bool:
    """Whether it only compares columns and literals. Spark is faster with all else of one row."""
    return is_closed(node) and not any(isinstance(each, Arithmetic | Negative) for each in walk(node))


def is_closed(node: Expression) -> bool:
    """Whether all of it is in the subset of SQL that needs no Spark."""
    return not any(isinstance(each, Computed) for each in walk(node))


class _Slow(Exception):
    """Arrow would say something else than Spark: of what is not a number, or of two kinds of numbers."""


def marks_of(conditions: Sequence[RowCondition], symbols: Sequence[str], rows: pa.Table) -> npt.NDArray[np.int64]:
    """The bits of the symbols whose conditions hold, for each row. A symbol without one always does."""
    marks = np.full(rows.num_rows, (1 << len(symbols)) - 1, np.int64)
    for each in conditions:
        bit = 1 << symbols.index(each.symbol)
        marks[~_holds(each, rows)] &= ~bit
    return marks


def _holds(condition: RowCondition, rows: pa.Table) -> npt.NDArray[np.bool_]:
    try:
        found = _at_once(condition.of, rows)
    except _Slow:
        found = _one_by_one(condition.of, rows)
    if isinstance(found, pa.Scalar):
        return np.full(rows.num_rows, bool(found.as_py()))
    whole = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    return np.asarray(whole.fill_null(fill_value=False))


def _one_by_one(of: Expression, rows: pa.Table) -> pa.Array:
    schema = {field.name: field.type for field in rows.schema}
    compiler, cells = Compiler((), schema), dict[str, list[Any]]()
    value = compiler.value(of, cells)
    cells |= {name: rows[name].to_pylist() for name in compiler.columns}
    return pa.array([value(row, ()) for row in range(rows.num_rows)], pa.bool_())


def _at_once(node: Expression, rows: pa.Table) -> Any:
    match node:
        case Comparison(sign, left, right):
            one, other = _comparable(left, right, rows)
            return COMPARE[sign](one, other)
        case Between(of, low, high):
            return pc.and_kleene(_at_once(Comparison(">=", of, low), rows), _at_once(Comparison("<=", of, high), rows))
        case In(of, among):
            found = _at_once(Comparison("=", of, among[0]), rows)
            for each in among[1:]:
                found = pc.or_kleene(found, _at_once(Comparison("=", of, each), rows))
            return found
        case Logic(sign, left, right):
            both = pc.and_kleene if sign == "and" else pc.or_kleene
            return both(_at_once(left, rows), _at_once(right, rows))
        case Not(of):
            return pc.invert(_at_once(of, rows))
        case IsNull(Column(name)):
            return pc.is_null(rows[name])
        case Column(name) if types.is_boolean(rows.schema.field(name).type):
            return rows[name]
    raise _Slow


def _comparable(left: Expression, right: Expression, rows: pa.Table) -> tuple[Any, Any]:
    sides: list[Any] = [left, right]
    kinds = [rows.schema.field(each.name).type for each in sides if isinstance(each, Column)]
    if not kinds or any(not kind.equals(kinds[0]) for kind in kinds):
        raise _Slow
    kind = kinds[0]
    if types.is_nested(kind):
        raise _Slow
    for at, each in enumerate(sides):
        if isinstance(each, Column):
            sides[at] = rows[each.name]
            if types.is_floating(kind) and pc.any(pc.is_nan(sides[at])).as_py():
                raise _Slow
        elif isinstance(each, Literal) and _fits(each.value, kind):
            value = (
                float(each.value) if isinstance(each.value, Decimal | int) and types.is_floating(kind) else each.value
            )
            sides[at] = pa.scalar(value, pa.int64() if types.is_integer(kind) else None)
        else:
            raise _Slow
    return sides[0], sides[1]


def _fits(value: Any, kind: pa.DataType) -> bool:
    if isinstance(value, bool):
        return bool(types.is_boolean(kind))
    if isinstance(value, int):
        return bool(types.is_floating(kind) or types.is_integer(kind)) and abs(value) < 2**53
    if isinstance(value, float | Decimal):
        return bool(types.is_floating(kind))
    return isinstance(value, str) and bool(types.is_string(kind))
