"""What readers see of a row's slots, as Arrow columns: a slot, or the ratio of two. Pure; the same that a store's SQL
says of its rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates.groups import one_zero
from headrace.views.contract import WIDE, Result, ViewSpec
from headrace.views.values import arrow_type, cast_to

__all__ = ["result_of", "results_of", "whole_sum"]


def results_of(view: ViewSpec, rows: pa.Table) -> dict[str, pa.Array]:
    """Result -> its values, of the type it has on its way to a topic: there a sum that does not fit is null."""
    sums = {result.name for result in view.whole_sums}
    return {
        each.name: cast_to(
            _fitting(result_of(each, rows)) if each.name in sums else result_of(each, rows), arrow_type(each.type)
        )
        for each in view.results
    }


def whole_sum(result: Result, rows: pa.Table) -> pa.Array:
    """A sum of whole numbers, of any size."""
    return result_of(result, rows).cast(arrow_type(WIDE))


def result_of(result: Result, rows: pa.Table) -> pa.Array:
    slots = [rows[name].combine_chunks() for name in result.slots]
    value = slots[0] if len(slots) == 1 else _ratio(*slots)
    if not result.unless:
        return value
    return pc.if_else(pc.equal(rows[result.unless].combine_chunks(), 0).fill_null(False), None, value)


def _ratio(above: pa.Array, below: pa.Array) -> pa.Array:
    """Null of nothing: the sum is null, or the number is 0."""
    none = np.asarray(above.is_null()) | np.asarray(pc.equal(below.fill_null(0), 0))
    with np.errstate(invalid="ignore", over="ignore"):
        found = _doubles(above) / np.where(none, 1, below.fill_null(0).to_numpy())
    return one_zero(pa.array(np.where(none, 0.0, found), mask=none))


def _doubles(column: pa.Array) -> np.typing.NDArray[np.float64]:
    """The nearest double of each; Arrow's own of a decimal may be the one beside it."""
    if types.is_decimal(column.type):
        if column.type.scale == 0:
            try:
                column = column.cast(pa.int64())
            except pa.ArrowInvalid:
                return np.array([float(value or 0) for value in column.to_pylist()])
        else:
            return np.array([float(value or 0) for value in column.to_pylist()])
    doubles: np.typing.NDArray[np.float64] = column.fill_null(0).to_numpy().astype(np.float64)
    return doubles


def _fitting(column: pa.Array) -> pa.Array:
    """Whole numbers of 64 bits; null in place of others."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        fits = [None if value is None or not -(2**63) <= value < 2**63 else int(value) for value in column.to_pylist()]
        return pa.array(fits, pa.int64())
