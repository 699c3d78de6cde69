"""Expressions as functions: of one row, and over the rows of a match. Owns the types of what they give, and what null,
not-a-number and division by zero come to: as in Spark's SQL, where what Spark refuses (a quotient by zero, a number
that does not fit) is null. Pure.

What an expression needs of earlier rows is summed up while rows are taken, one slot for each `Over`: so a condition
costs the same however long the match is."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from headrace.cep.expressions import (
    Arithmetic,
    Between,
    Classifier,
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
    Over,
    walk,
)
from headrace.errors import InvalidArgument

__all__ = ["CLASSIFIER", "Compiler", "Summary", "computed_name", "is_of_one_row", "type_of"]

Summed = tuple[Any, ...]
Value = Callable[[int, Summed], Any]
"""Of a row, and of what is summed up with it."""
BIGGEST, DIGITS_MAX = 2**63 - 1, 38
WIDE = Context(prec=2 * DIGITS_MAX)
CLASSIFIER = "/classifier"
"""Of each row that was taken, its symbol."""
INT, DOUBLE, TEXT, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()


def is_of_one_row(node: Expression) -> bool:
    """Whether it looks at one row only, in the condition of a symbol."""
    return not any(
        isinstance(each, Over | Classifier) or (isinstance(each, Column | Computed) and each.symbol is not None)
        for each in walk(node)
    )


# -- types -----------------------------------------------------------------------------------------------


def type_of(node: Expression, schema: Mapping[str, pa.DataType], argument: str, text: str) -> pa.DataType:
    """The type of what it gives; InvalidArgument where types do not fit. `schema`: of columns, and of what Spark
    computes, by its text."""

    def refuse(why: str) -> None:
        raise InvalidArgument(argument, text, why)

    def of(each: Expression) -> pa.DataType:
        match each:
            case Literal(value):
                return _literal_type(value)
            case Column(name):
                if name not in schema:
                    refuse(f"there is no column {name!r}. There are: {', '.join(k for k in schema if k[0] != '/')}")
                return schema[name]
            case Computed(of_text):
                return schema[computed_name(of_text)]
            case Over(function, None):
                return INT
            case Over(function, inner):
                assert inner is not None
                return _over_type(function, of(inner), refuse)
            case Classifier():
                return TEXT
            case Comparison(sign, left, right):
                _comparable(of(left), of(right), refuse, ordered=sign not in ("=", "<>"))
                return BOOL
            case Between(middle, low, high):
                _comparable(of(middle), of(low), refuse, ordered=True)
                _comparable(of(middle), of(high), refuse, ordered=True)
                return BOOL
            case In(one, among):
                for other in among:
                    _comparable(of(one), of(other), refuse)
                return BOOL
            case Logic(_, left, right):
                for side in (left, right):
                    if not (types.is_boolean(of(side)) or types.is_null(of(side))):
                        refuse("AND, OR and NOT are of conditions")
                return BOOL
            case Not(one):
                if not (types.is_boolean(of(one)) or types.is_null(of(one))):
                    refuse("AND, OR and NOT are of conditions")
                return BOOL
            case IsNull(one):
                of(one)
                return BOOL
            case Negative(one):
                return _number_type(of(one), INT, refuse)
            case Arithmetic(sign, left, right):
                made = _number_type(of(left), of(right), refuse)
                return DOUBLE if sign == "/" else made
        raise AssertionError(each)

    return of(node)


def computed_name(text: str) -> str:
    """The column in which Spark leaves what it computes."""
    return f"/computed_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _literal_type(value: Any) -> pa.DataType:
    match value:
        case None:
            return pa.null()
        case bool():
            return BOOL
        case int() if abs(value) <= BIGGEST:
            return INT
        case int() | float() | Decimal():
            return DOUBLE
    return TEXT


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind))


def _number_type(one: pa.DataType, other: pa.DataType, refuse: Callable[[str], None]) -> pa.DataType:
    if types.is_decimal(one) or types.is_decimal(other):
        refuse("has arithmetic with decimals: cast them to double, in .transform(…)")
    if not (_is_number(one) and _is_number(other)):
        refuse("has arithmetic with what is no number")
    return DOUBLE if types.is_floating(one) or types.is_floating(other) else INT


def _over_type(function: str, kind: pa.DataType, refuse: Callable[[str], None]) -> pa.DataType:
    if function == "count":
        return INT
    if function in ("sum", "avg") and not _is_number(kind):
        refuse(f"{function}() is of numbers")
    if function == "avg":
        return DOUBLE
    if function == "sum":
        if types.is_decimal(kind):
            return pa.decimal128(min(38, kind.precision + 10), kind.scale)
        return DOUBLE if types.is_floating(kind) else INT
    if function in ("min", "max") and types.is_nested(kind):
        refuse(f"{function}() is of what has an order, and {kind} has none")
    return kind


def _comparable(one: pa.DataType, other: pa.DataType, refuse: Callable[[str], None], *, ordered: bool = False) -> None:
    for kind in (one, other):
        if ordered and types.is_nested(kind):
            refuse(f"asks which is more, and {kind} has no order here: compare its parts, made in .transform(…)")
    if types.is_null(one) or types.is_null(other) or (_is_number(one) and _is_number(other)) or one.equals(other):
        return
    if types.is_timestamp(one) and types.is_timestamp(other) and (one.tz is None) == (other.tz is None):
        return
    refuse(f"compares {one} with {other}: cast one of them, in .transform(…), or with CAST(… AS …)")


# -- values ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    over: Over
    function: str
    bits: int


class Summary:
    """What is summed up of the rows that an attempt takes. `cells`: the columns' values, by name."""

    def __init__(self, slots: Sequence[Slot], cells: Mapping[str, Sequence[Any]]) -> None:
        self.nothing: Summed = tuple(NOTHING.get(each.function) for each in slots)
        self._adders = tuple(
            (each.bits, ADDERS[each.function], None if each.over.of is None else cells[_cell(each.over.of)], each)
            for each in slots
        )

    def add(self, summed: Summed, symbol: int, row: int) -> Summed:
        bit = 1 << symbol
        return tuple(
            adder(known, None if values is None else values[row], row, slot) if bits & bit else known
            for known, (bits, adder, values, slot) in zip(summed, self._adders, strict=True)
        )


def _cell(of: Column | Computed) -> str:
    return of.name if isinstance(of, Column) else computed_name(of.text)


def _add_first(known: Any, _: Any, row: int, slot: Slot) -> Any:
    return known if len(known) > slot.over.offset else (*known, row)


def _add_last(known: Any, _: Any, row: int, slot: Slot) -> Any:
    return (row, *known[: slot.over.offset])


def _add_sum(known: Any, value: Any, _: int, __: Slot) -> Any:
    if value is None or known is None:
        return known if value is None else value
    return WIDE.add(known, value) if isinstance(value, Decimal) else known + value


def _add_count(known: Any, value: Any, _: int, slot: Slot) -> Any:
    return known + (slot.over.of is None or value is not None)


def _add_min(known: Any, value: Any, _: int, __: Slot) -> Any:
    return value if known is None or (value is not None and _below(value, known)) else known


def _add_max(known: Any, value: Any, _: int, __: Slot) -> Any:
    return value if known is None or (value is not None and _below(known, value)) else known


ADDERS: dict[str, Callable[[Any, Any, int, Slot], Any]] = {
    "first": _add_first,
    "last": _add_last,
    "sum": _add_sum,
    "count": _add_count,
    "min": _add_min,
    "max": _add_max,
}
NOTHING: dict[str, Any] = {"count": 0, "first": (), "last": ()}


class Compiler:
    """Expressions over rows of these symbols as functions. It collects what they need summed up: so compile all of them
    first, and make the `Summary` then."""

    def __init__(self, symbols: Sequence[str], schema: Mapping[str, pa.DataType]) -> None:
        self._number = {name: at for at, name in enumerate(symbols)}
        self._schema = schema
        self.slots: list[Slot] = []
        self.columns: list[str] = []

    def _slot(self, over: Over, function: str) -> int:
        bits = (1 << len(self._number)) - 1 if over.symbol is None else 1 << self._number[over.symbol]
        slot = Slot(over, function, bits)
        if slot not in self.slots:
            self.slots.append(slot)
        if over.of is not None:
            self._column(_cell(over.of))
        return self.slots.index(slot)

    def _column(self, name: str) -> None:
        if name not in self.columns:
            self.columns.append(name)

    def value(self, node: Expression, cells: Mapping[str, Sequence[Any]]) -> Value:
        """`cells`: filled later; they are looked up when a row is."""
        match node:
            case Literal(value):
                return lambda _row, _summed: value
            case Classifier():
                return lambda row, _summed: cells[CLASSIFIER][row]
            case Column(symbol=None) | Computed(symbol=None):
                name = _cell(node)
                self._column(name)
                return lambda row, _summed: cells[name][row]
            case Column() | Computed():
                return self.value(Over("last", node, node.symbol), cells)
            case Over():
                return self._over(node, cells)
            case Comparison(sign, left, right):
                return self._compared(sign, left, right, cells)
            case Between(of, low, high):
                both = Logic("and", Comparison(">=", of, low), Comparison("<=", of, high))
                return self.value(both, cells)
            case In(of, among):
                return _any([self._compared("=", of, each, cells) for each in among])
            case Logic(sign, left, right):
                return _logic(sign, self.value(left, cells), self.value(right, cells))
            case Not(of):
                inner = self.value(of, cells)
                return lambda row, summed: None if (v := inner(row, summed)) is None else not v
            case IsNull(of):
                inner = self.value(of, cells)
                return lambda row, summed: inner(row, summed) is None
            case Negative(of):
                inner = self.value(of, cells)
                return lambda row, summed: None if (v := inner(row, summed)) is None else _fits(-v)
            case Arithmetic(sign, left, right):
                return self._computed(sign, left, right, cells)
        raise AssertionError(f"{node} is told elsewhere")

    def _over(self, node: Over, cells: Mapping[str, Sequence[Any]]) -> Value:
        function, offset = node.function, node.offset
        if function == "avg":
            total, count = self._slot(node, "sum"), self._slot(node, "count")
            return lambda _row, summed: float(summed[total]) / summed[count] if summed[count] else None
        at = self._slot(node, function)
        if function in ("first", "last"):
            assert node.of is not None
            name = _cell(node.of)
            return lambda _row, summed: cells[name][summed[at][offset]] if len(summed[at]) > offset else None
        if function == "sum":
            return lambda _row, summed: None if (v := summed[at]) is None else _fits(v)
        return lambda _row, summed: summed[at]

    def _kind(self, node: Expression) -> pa.DataType:
        return type_of(node, self._schema, "pattern", "")

    def _compared(self, sign: str, left: Expression, right: Expression, cells: Mapping[str, Sequence[Any]]) -> Value:
        one, other = self.value(left, cells), self.value(right, cells)
        compare = COMPARE[sign]
        kinds = [self._kind(each) for each in (left, right) if not isinstance(each, Literal)]
        if any(map(types.is_floating, kinds)):
            return lambda row, summed: (
                None
                if (a := one(row, summed)) is None or (b := other(row, summed)) is None
                else compare(float(a), float(b))
            )
        return lambda row, summed: (
            None if (a := one(row, summed)) is None or (b := other(row, summed)) is None else compare(a, b)
        )

    def _computed(self, sign: str, left: Expression, right: Expression, cells: Mapping[str, Sequence[Any]]) -> Value:
        one, other = self.value(left, cells), self.value(right, cells)
        floats = sign == "/" or any(types.is_floating(self._kind(each)) for each in (left, right))
        compute = COMPUTE[sign]

        def computed(row: int, summed: Summed) -> Any:
            a, b = one(row, summed), other(row, summed)
            if a is None or b is None:
                return None
            return compute(float(a), float(b)) if floats else _fits(compute(a, b))

        return computed


def _any(values: Sequence[Value]) -> Value:
    """Of three values, like OR of all."""

    def either(row: int, summed: Summed) -> Any:
        unknown = False
        for value in values:
            found = value(row, summed)
            if found:
                return True
            unknown |= found is None
        return None if unknown else False

    return either


def _logic(sign: str, one: Value, other: Value) -> Value:
    """Of three values: what decides alone decides."""
    decides = sign == "or"

    def both(row: int, summed: Summed) -> Any:
        a = one(row, summed)
        if a is decides:
            return decides
        b = other(row, summed)
        if b is decides:
            return decides
        return None if a is None or b is None else not decides

    return both


def _fits(value: Any) -> Any:
    """A number that does not fit is null."""
    if isinstance(value, Decimal):
        return value if len(value.as_tuple().digits) <= DIGITS_MAX else None
    return value if not isinstance(value, int) or -BIGGEST - 1 <= value <= BIGGEST else None


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _below(a: Any, b: Any) -> bool:
    """What is not a number is the largest, as in Spark."""
    if _nan(a):
        return False
    return True if _nan(b) else bool(a < b)


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or (_nan(a) and _nan(b))


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": _same,
    "<>": lambda a, b: not _same(a, b),
    "<": _below,
    ">": lambda a, b: _below(b, a),
    "<=": lambda a, b: not _below(b, a),
    ">=": lambda a, b: not _below(a, b),
}


def _remainder(a: Any, b: Any) -> Any:
    """With the sign of the dividend."""
    if b == 0 or math.isinf(a) or _nan(a) or _nan(b):
        return None if b == 0 else math.nan
    return math.fmod(a, b) if isinstance(a, float) else int(math.copysign(1, a)) * (abs(a) % abs(b))


COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else None,
    "%": _remainder,
}
