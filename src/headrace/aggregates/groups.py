"""Rows that become one: which they are, and what numpy makes of their values. Owns how values become numbers that are
ordered as the values are, and back. Knows no aggregate, no operator and no store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.jsonrows import encoder
from headrace.rows import python_values

__all__ = ["Groups", "codes", "dense", "json_texts", "one_zero", "ordered", "ranks", "row_numbers", "whole_numbers"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_LARGEST = 2**63 - 1
FEW = 128
_SPREAD = 2**40
"""Whole numbers that lie closer together than this are their own numbers: several columns of them fit into one."""


class Groups:
    """`number`: of which group each row is, from 0 on; every group has a row."""

    def __init__(self, number: I64) -> None:
        self.number = number

    @cached_property
    def order(self) -> I64 | None:
        """The rows, group by group; rows of one group as they come. None: they lie so already."""
        if len(self.number) < 2 or bool((self.number[1:] >= self.number[:-1]).all()):
            return None
        return np.argsort(self.number, kind="stable")

    @cached_property
    def starts(self) -> I64:
        """Where each group begins in that order."""
        number = self.number if self.order is None else self.number[self.order]
        begins = np.ones(len(number), np.bool_)
        begins[1:] = number[1:] != number[:-1]
        return np.flatnonzero(begins)

    @cached_property
    def first(self) -> I64:
        """The first row of each group."""
        return self.starts if self.order is None else self.order[self.starts]

    @property
    def count(self) -> int:
        return len(self.starts)

    @cached_property
    def sizes(self) -> I64:
        ends = np.append(self.starts[1:], len(self.number))
        made: I64 = ends - self.starts
        return made

    @property
    def alone(self) -> bool:
        """True when no two rows meet."""
        return self.count == len(self.number)

    def sums(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        made: npt.NDArray[np.generic] = np.add.reduceat(self._sorted(values), self.starts)
        return made

    def least(self, values: I64) -> I64:
        made: I64 = np.minimum.reduceat(self._sorted(values), self.starts)
        return made

    def greatest(self, values: I64) -> I64:
        made: I64 = np.maximum.reduceat(self._sorted(values), self.starts)
        return made

    def any(self, flags: Flags) -> Flags:
        made: Flags = np.logical_or.reduceat(self._sorted(flags), self.starts)
        return made

    def rows(self) -> Iterable[I64]:
        """The rows of each group."""
        order = np.arange(len(self.number)) if self.order is None else self.order
        return np.split(order, self.starts[1:])

    def _sorted(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return values if self.order is None else values[self.order]


# -- values as numbers -----------------------------------------------------------------------------------


def ordered(column: pa.Array) -> tuple[I64, Callable[[I64, Flags], pa.Array]]:
    """Numbers that are ordered as the values other than null; and what makes values of such numbers again, with null
    where the flag says so. Of doubles both zeros are one, and NaN is the greatest."""
    arrow = column.type
    if types.is_floating(arrow):
        return _of_doubles(column), lambda numbers, none: _as_doubles(numbers, none).cast(arrow)
    if types.is_integer(arrow) or types.is_timestamp(arrow):
        return whole_numbers(column), lambda numbers, none: _as_whole(numbers, none, arrow)
    number, known = codes(column)
    place = np.argsort(pc.sort_indices(known).to_numpy()) if len(known) else np.zeros(1, np.int64)
    order = np.argsort(place)

    def back(numbers: I64, none: Flags) -> pa.Array:
        if not len(known):
            return pa.nulls(len(numbers), arrow)
        return known.take(pa.array(order[np.where(none, 0, numbers)], mask=none))

    return place[number], back


def ranks(column: pa.Array) -> I64:
    """A number for each value, in the order of values; -1 for null."""
    if types.is_nested(column.type):
        column = json_texts(column)
    if len(column) <= FEW and types.is_string(column.type):  # Python sorts few texts, in the same order, sooner
        texts = column.to_pylist()
        place = {text: number for number, text in enumerate(sorted({*texts} - {None}))}
        return np.array([place.get(text, -1) for text in texts], np.int64)
    few = one_zero(column).dictionary_encode()
    known = few.dictionary
    rank = np.arange(len(known) + 1)
    if not pc.all(pc.less(known[:-1], known[1:]), min_count=0).as_py():
        rank[pc.sort_indices(known).to_numpy()] = np.arange(len(known))
    rank[-1] = -1
    made: I64 = rank[(few.indices.fill_null(-1) if few.null_count else few.indices).to_numpy()]
    return made


def whole_numbers(column: pa.Array) -> I64:
    """Whole numbers and times as numbers; 0 for null."""
    if column.null_count:
        column = column.fill_null(pa.scalar(0, pa.int64()).cast(column.type))
    numbers = column.to_numpy(zero_copy_only=False)
    made: I64 = numbers.view(np.int64) if types.is_timestamp(column.type) else numbers.astype(np.int64, copy=False)
    return made


def codes(column: pa.Array) -> tuple[I64, pa.Array]:
    """A number for each value, the same for the same, 0 for null; and the values, by their numbers."""
    if types.is_nested(column.type):
        few = json_texts(column).dictionary_encode()
        number = few.indices.fill_null(0).to_numpy()
        valid = np.flatnonzero(np.asarray(column.is_valid()))
        one_of = np.empty(len(few.dictionary), np.int64)
        one_of[number[valid][::-1]] = valid[::-1]
        return number.astype(np.int64), column.take(pa.array(one_of))
    few = one_zero(column).dictionary_encode()
    return few.indices.fill_null(0).to_numpy().astype(np.int64), few.dictionary


def row_numbers(columns: Iterable[pa.Array], rows: int) -> I64:
    """A number for each row: the same for those with the same values, and ordered as these, nulls first."""
    number = np.zeros(rows, np.int64)
    most = 1
    for column in columns:
        rank, width = _spread(column)
        if most * width > _LARGEST:
            number = dense(number)
            most = int(number.max(initial=0)) + 1
        number, most = rank if most == 1 else number * width + rank, most * width
    return number


def _spread(column: pa.Array) -> tuple[I64, int]:
    """A number for each value, in the order of values, 0 for null; and one more than the largest number may be."""
    if len(column) and not column.null_count and (types.is_integer(column.type) or types.is_timestamp(column.type)):
        numbers = whole_numbers(column)
        low = int(numbers.min())
        width = int(numbers.max()) - low + 1
        if width <= _SPREAD:
            return numbers - low, width
    rank = ranks(column) + 1
    return rank, int(rank.max(initial=0)) + 1


def dense(number: I64) -> I64:
    """Numbers in the same order, without gaps."""
    if bool((number[1:] >= number[:-1]).all()):
        made = np.zeros(len(number), np.int64)
        np.cumsum(number[1:] != number[:-1], out=made[1:])
        return made
    return np.unique(number, return_inverse=True)[1].reshape(-1)


def one_zero(column: pa.Array) -> pa.Array:
    """Doubles with one zero and one NaN; all else as it is."""
    if not types.is_floating(column.type):
        return column
    values = column.fill_null(0.0).to_numpy() + column.type.to_pandas_dtype()(0)
    none = np.asarray(column.is_null())
    return pa.array(np.where(np.isnan(values), np.nan, values), column.type, mask=none if none.any() else None)


def json_texts(column: pa.Array) -> pa.Array:
    """Lists, and what has fields, as texts: by these they are compared."""
    write = encoder(column.type)
    return pa.array([None if value is None else write(value) for value in python_values(column)], pa.string())


def _of_doubles(column: pa.Array) -> I64:
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return bits ^ ((bits >> 63) & _LARGEST)


def _as_doubles(numbers: I64, none: Flags) -> pa.Array:
    bits = numbers ^ ((numbers >> 63) & _LARGEST)
    return _array(bits.view(np.float64), none)


def _as_whole(numbers: I64, none: Flags, arrow: pa.DataType) -> pa.Array:
    made = _array(numbers, none)
    return made.view(arrow) if types.is_timestamp(arrow) else made if types.is_int64(arrow) else made.cast(arrow)


def _array(values: npt.NDArray[np.generic], none: Flags) -> pa.Array:
    return pa.array(values, mask=none if none.any() else None)
