"""How values of a slot become one: an object for each rule, over Arrow columns, many rows at a time. Owns what merging
means; `algebra.Slot` names the rule. Numbers, texts, times and decimals are merged as arrays, sketches and a user's own
functions row by row. Pure: knows no store, and a step that is made again gives the same.

Values that are kept by themselves, so that they are counted once or can be taken back, are `value_rules`'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, reduce
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates.aggregate import Aggregate
from headrace.aggregates.algebra import ORDER, ORDER_BY, Slot, ddl
from headrace.aggregates.exact import add, rounded
from headrace.aggregates.groups import Groups, json_texts, one_zero, ordered, whole_numbers
from headrace.aggregates.kept import Held, Kept
from headrace.errors import AggregateFailed, DoesNotFit, HeadraceError
from headrace.rows import python_values, to_batch
from headrace.schema import parse_ddl, type_ddl

__all__ = ["AddRule", "Functions", "Merger", "arrow_of", "mergers", "typed"]

AddRule = Literal["add", "least", "greatest"]
Columns = dict[str, pa.Array]
_LARGEST = 2**63 - 1
TOGETHER = 2_000
"""Groups whose functions are asked at once: what is kept of each may be large."""


@cache
def arrow_of(text: str) -> pa.DataType:
    return parse_ddl(f"x {text}").field(0).type


def typed(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """Python's values as a column; RecordRejected or one of Arrow's errors if they are of another type."""
    if not types.is_nested(arrow):
        return pa.array(values, arrow)
    return to_batch([{"x": each} for each in values], pa.schema([("x", arrow)]), extra="forbid", topic="views").column(
        0
    )


class Functions:
    """An aggregate's own functions; what they raise says whose they are. Who only describes a table has none."""

    def __init__(self, flow: str, name: str, aggregate: Aggregate | None) -> None:
        self._flow, self._name, self._aggregate = flow, name, aggregate

    @property
    def aggregate(self) -> Aggregate:
        assert self._aggregate is not None, f"{self._name}: who merges it says how"
        return self._aggregate

    def merged(self, values: Iterable[Any]) -> Any:
        some = [value for value in values if value is not None]
        assert self.aggregate.merge is not None
        try:
            return reduce(self.aggregate.merge, some) if some else None
        except Exception as error:
            raise self._failed("merge", f"{type(error).__name__}: {error}") from error

    def finished(self, value: Any) -> Any:
        assert self.aggregate.finish is not None
        try:
            return None if value is None else self.aggregate.finish(value)
        except Exception as error:
            raise self._failed("finish", f"{type(error).__name__}: {error}") from error

    def made_of(self, held: Held) -> Any:
        """Of values, each with how often it is there."""
        assert isinstance(self.aggregate.algebra, Kept)
        try:
            return self.aggregate.algebra.made_of(held)
        except Exception as error:
            raise self._failed("merge", f"{type(error).__name__}: {error}") from error

    def typed(self, values: list[Any], arrow: pa.DataType, step: str) -> pa.Array:
        try:
            return typed(values, arrow)
        except (HeadraceError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._failed(step, f"it returned something else than {type_ddl(arrow)}: {error}") from error

    def _failed(self, step: str, why: str) -> AggregateFailed:
        return AggregateFailed(flow=self._flow, aggregate=self._name, step=step, why=why)


class Merger:
    """Merges the columns `takes` of rows that meet into the columns `gives`; both are slots of one aggregate."""

    adds: ClassVar[AddRule | None] = None
    """What a store can do in its place, where nobody asks for the old value."""

    def __init__(self, *slots: Slot) -> None:
        self.slots = slots
        self.takes: tuple[str, ...] = tuple(slot.name for slot in slots)

    def merged(self, rows: Mapping[str, pa.Array], groups: Groups) -> Columns:
        """A value for each group. Null is neutral."""
        raise NotImplementedError


class Sum(Merger):
    adds: ClassVar[AddRule] = "add"

    def merged(self, rows: Mapping[str, pa.Array], groups: Groups) -> Columns:
        (slot,) = self.slots
        return {slot.name: added(rows[slot.name], groups, arrow_of(slot.type))}


class Least(Merger):
    adds: ClassVar[AddRule] = "least"

    def merged(self, rows: Mapping[str, pa.Array], groups: Groups) -> Columns:
        (name,) = self.takes
        return {name: extreme(rows[name], groups, self.adds == "greatest")}


class Greatest(Least):
    adds: ClassVar[AddRule] = "greatest"


class Ordered(Merger):
    """The value that is first, or last, by what is kept beside it. Among equals the value decides: two topics have
    records of one partition number and offset."""

    order: ClassVar[tuple[str, ...]] = ORDER
    last: ClassVar[bool] = False

    def merged(self, rows: Mapping[str, pa.Array], groups: Groups) -> Columns:
        name = self.slots[0].of
        parts = [*(rows[f"{name}__{part}"] for part in self.order), rows[name]]
        best = self._best(parts, groups)
        return {each: rows[each].take(best) for each in self.takes}

    def _best(self, parts: Sequence[pa.Array], groups: Groups) -> pa.Array:
        """The row of each group; null where all are unknown."""
        alive = np.asarray(parts[0].is_valid())
        some = groups.any(alive)
        for part in parts:
            if int(alive.sum()) == int(some.sum()):
                break
            comparable = json_texts(part) if types.is_nested(part.type) else part
            number, _ = ordered(comparable)
            if self.last:
                best = groups.greatest(np.where(alive, number, -_LARGEST - 1))
            else:
                best = groups.least(np.where(alive, number, _LARGEST))
            alive &= number == best[groups.number]
        row = groups.least(np.where(alive, np.arange(len(alive)), len(alive)))
        return pa.array(np.where(some, row, 0), mask=None if some.all() else ~some)


class Latest(Ordered):
    last: ClassVar[bool] = True


class LeastBy(Ordered):
    order: ClassVar[tuple[str, ...]] = ORDER_BY


class GreatestBy(LeastBy):
    last: ClassVar[bool] = True


class Exact(Merger):
    """Sums that do not round, and the doubles nearest to them."""

    def __init__(self, exact: Slot, *rounded: Slot) -> None:
        super().__init__(exact)
        self._rounded = rounded

    def merged(self, rows: Mapping[str, pa.Array], groups: Groups) -> Columns:
        (name,) = self.takes
        given = rows[name].to_pylist()
        texts = given
        if not groups.alone:
            texts = [reduce(add, (given[row] for row in some.tolist())) for some in groups.rows()]
        elif groups.order is not None:
            texts = [given[row] for row in groups.order.tolist()]
        out = {name: pa.array(texts, pa.string())}
        for slot in self._rounded:
            found = [float(value) if isinstance(value, str) else value for value in map(rounded, texts)]
            out[slot.name] = one_zero(pa.array(found, pa.float64()))
        return out


class Own(Merger):
    """What the aggregate's functions make of old and new, and of that."""

    def __init__(self, functions: Functions, state: Slot, *finished: Slot) -> None:
        super().__init__(state)
        self._functions, self._finished = functions, finished

    def merged(self, rows: Mapping[str, pa.Array], groups: Groups) -> Columns:
        (state,) = self.slots
        column, members = rows[state.name], list(groups.rows())
        pieces: dict[str, list[pa.Array]] = {slot.name: [] for slot in (state, *self._finished)}
        for at in range(0, len(members), TOGETHER):
            some = members[at : at + TOGETHER]
            values = iter(python_values(column.take(pa.array(np.concatenate(some)))))
            kept = [self._functions.merged([next(values) for _ in range(len(each))]) for each in some]
            pieces[state.name].append(self._functions.typed(kept, arrow_of(state.type), "merge"))
            for slot in self._finished:
                made = [self._functions.finished(one) for one in kept]
                pieces[slot.name].append(self._functions.typed(made, arrow_of(slot.type), "finish"))
        return {name: some[0] if len(some) == 1 else pa.concat_arrays(some) for name, some in pieces.items()}


# -- which object a slot's rule names ----------------------------------------------------------------------


def mergers(slots: Sequence[Slot], own: Callable[[str], Functions]) -> list[Merger]:
    """What merges the slots, but for those whose values are kept by themselves. `own`: the functions of the aggregate
    that a result's name is of."""
    out = []
    for slot in slots:
        beside = [each for each in slots if each.of == slot.name and each is not slot]
        make = _MAKERS.get(slot.rule)
        if make is not None and slot.of in ("", slot.name):
            out.append(make(slot, beside, own))
    return out


Make = Callable[[Slot, Sequence[Slot], Callable[[str], Functions]], Merger]


def _plain(merger: type[Merger]) -> Make:
    return lambda slot, beside, own: merger(slot, *beside)  # noqa: ARG005


def _own(slot: Slot, beside: Sequence[Slot], own: Callable[[str], Functions]) -> Merger:
    return Own(own((beside[0] if beside else slot).name), slot, *beside)


_MAKERS: dict[str, Make] = {
    "add": _plain(Sum),
    "whole": _plain(Sum),
    "least": _plain(Least),
    "greatest": _plain(Greatest),
    "earliest": _plain(Ordered),
    "latest": _plain(Latest),
    "least_by": _plain(LeastBy),
    "greatest_by": _plain(GreatestBy),
    "exact": _plain(Exact),
    "merged": _own,
}
"""Rule -> what merges its slots. `rounded`, `finished` and the order of a value are made with the slot they are of."""


# -- the arithmetic ----------------------------------------------------------------------------------------


def extreme(column: pa.Array, groups: Groups, greatest: bool) -> pa.Array:
    if groups.alone:
        return one_zero(_in_order(column, groups))
    number, back = ordered(column)
    if not column.null_count:
        return back(groups.greatest(number) if greatest else groups.least(number), np.zeros(groups.count, np.bool_))
    known = np.asarray(column.is_valid())
    neutral = -_LARGEST - 1 if greatest else _LARGEST
    number = np.where(known, number, neutral)
    return back(groups.greatest(number) if greatest else groups.least(number), ~groups.any(known))


def added(column: pa.Array, groups: Groups, arrow: pa.DataType) -> pa.Array:
    """The sum of each group, as that type; DoesNotFit if one is beyond it."""
    if groups.alone:
        return _fitting(one_zero(_in_order(column, groups)), arrow)
    none = None
    if column.null_count:
        none = ~groups.any(np.asarray(column.is_valid()))
    if types.is_decimal(column.type):
        return _added_decimals(column, groups, arrow, none)
    if types.is_integer(column.type):
        numbers = whole_numbers(column)
        if _far(numbers, groups):
            return _added_decimals(column.cast(pa.decimal128(19, 0)), groups, arrow, none)
        return _fitting(pa.array(groups.sums(numbers), mask=none), arrow)
    with np.errstate(invalid="ignore", over="ignore"):
        total = groups.sums(column.fill_null(0.0).to_numpy())
    return one_zero(pa.array(total, mask=none)).cast(arrow)


def _added_decimals(
    column: pa.Array, groups: Groups, arrow: pa.DataType, none: npt.NDArray[np.bool_] | None
) -> pa.Array:
    if column.type.scale == 0:
        try:
            numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
        except pa.ArrowInvalid:
            numbers = None
        if numbers is not None and not _far(numbers, groups):
            return _fitting(pa.array(groups.sums(numbers), mask=none), arrow)
    wide = column.cast(pa.decimal256(76, column.type.scale))
    table = pa.table({"group": groups.number, "value": wide})
    found = table.group_by("group", use_threads=False).aggregate([("value", "sum")]).sort_by("group")
    return _fitting(found["value_sum"].combine_chunks(), arrow)


def _far(numbers: npt.NDArray[np.int64], groups: Groups) -> bool:
    """True when a sum might not fit 64 bits."""
    largest = max(abs(int(numbers.min(initial=0))), abs(int(numbers.max(initial=0))))
    return largest * int(groups.sizes.max(initial=1)) > _LARGEST


def _fitting(column: pa.Array, arrow: pa.DataType) -> pa.Array:
    if column.type == arrow:
        return column
    try:
        return column.cast(arrow)
    except pa.ArrowInvalid as error:
        largest = max(column.drop_null().to_pylist(), key=abs)
        raise DoesNotFit(sum=str(largest), type=ddl(arrow)) from error


def _in_order(column: pa.Array, groups: Groups) -> pa.Array:
    return column if groups.order is None else column.take(pa.array(groups.order))
