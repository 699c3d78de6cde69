"""The spread of numbers: variance, stddev, of a sample, as Spark has them. Kept are the number of values, their mean as
the sum of two doubles, and the sum of the squares of their distances from it. Two of these become one by Chan's
formula, in which nothing is subtracted that could cancel: results agree to 1e-9 however the records are cut, and
however far the numbers are from zero. Of records that can be taken back the values are kept, and results are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import Algebra, Columns
from headrace.aggregates.kept import Held, Kept
from headrace.aggregates.merged import Merged
from headrace.aggregates.packing import I64, known, unpacked, with_column

Moments = dict[str, Any]
"""`n` values, their mean `mean` + `low`, and `m2`, the sum of the squares of their distances from it: NaN if a value is
not finite, infinite if it is beyond all doubles; the mean is 0 then."""
STATE = pa.struct([("n", pa.int64()), ("mean", pa.float64()), ("low", pa.float64()), ("m2", pa.float64())])


def variance(column: Any, *, where: Any = None) -> Aggregate:
    """The variance of a sample, a double; null of fewer than two values other than null."""
    return Aggregate(Variance(given(column, "variance"), where), merged, variance_of, "double")


def stddev(column: Any, *, where: Any = None) -> Aggregate:
    """The standard deviation of a sample, a double; null of fewer than two values other than null."""
    return Aggregate(Stddev(given(column, "stddev"), where), merged, stddev_of, "double")


def merged(a: Moments, b: Moments) -> Moments:
    n = a["n"] + b["n"]
    apart = (b["mean"] - a["mean"]) + (b["low"] - a["low"])
    moved = apart * (b["n"] / n)
    m2 = a["m2"] + b["m2"] + apart * moved * a["n"]
    if not math.isfinite(m2):  # the mean does not matter any more
        return {"n": n, "mean": 0.0, "low": 0.0, "m2": m2 if math.isnan(a["m2"] + b["m2"]) else math.inf}
    mean, low = _sum(a["mean"], moved)
    mean, low = _sum(mean, low + a["low"])
    return {"n": n, "mean": mean, "low": low, "m2": m2}


def _sum(a: float, b: float) -> tuple[float, float]:
    """The sum, and what is lost by rounding it."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def variance_of(kept: Moments) -> float | None:
    return None if kept["n"] < 2 else kept["m2"] / (kept["n"] - 1)


def stddev_of(kept: Moments) -> float | None:
    found = variance_of(kept)
    return None if found is None else math.sqrt(found)


@dataclass(frozen=True)
class Variance(Merged):
    called: ClassVar[str] = "variance"
    only_numbers: ClassVar[bool] = True

    def kept(self) -> str:
        return "struct<n:bigint,mean:double,low:double,m2:double>"

    def finished(self, state: pa.DataType) -> str:
        return "double"

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        """The values themselves: Spark's own moments lose digits where the numbers are far from zero."""
        return {self.state(name): f"collect_list(cast({columns['value']} AS double))"}

    def packed_type(self, arrow: pa.DataType) -> pa.DataType:
        return STATE

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        slot = self.state(name)
        column = rows[slot].combine_chunks()
        if not types.is_list(column.type):
            return rows
        return with_column(rows, slot, self.pack(*known(*unpacked(column)), rows.num_rows))

    def possible(self) -> bool:
        return bool(types.is_integer(self.of()) or types.is_floating(self.of()))

    def pack(self, of: I64, values: pa.Array, rows: int) -> pa.Array:
        numbers = values.cast(pa.float64(), safe=False).to_numpy()
        finite = np.isfinite(numbers)
        odd = np.bincount(of[~finite], minlength=rows) > 0
        numbers = np.where(finite, numbers, 0)
        n = np.bincount(of, minlength=rows)
        some = np.maximum(n, 1)
        origin = np.zeros(rows)
        origin[of] = numbers  # one of its own: sums of distances from it cancel nothing
        with np.errstate(invalid="ignore", over="ignore"):
            mean = origin + np.bincount(of, numbers - origin[of], rows) / some
            apart = numbers - mean[of]
            rest = np.bincount(of, apart, rows)
            m2 = np.maximum(np.bincount(of, apart * apart, rows) - rest * (rest / some), 0)
            total = mean + rest / some
            low = (mean - total) + rest / some
        sound = np.isfinite(m2) & np.isfinite(total) & ~odd
        m2 = np.where(odd, np.nan, np.where(sound, m2, np.inf))
        columns = [pa.array(n.astype(np.int64)), *(pa.array(np.where(sound, each, 0)) for each in (total, low))]
        columns.append(pa.array(m2))
        return pa.StructArray.from_arrays(columns, fields=list(STATE), mask=pa.array(n == 0))

    def of_changes(self) -> Algebra:
        return VarianceOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class Stddev(Variance):
    called: ClassVar[str] = "stddev"

    def of_changes(self) -> Algebra:
        return StddevOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class VarianceOfChanges(Kept):
    called: ClassVar[str] = "variance"
    only_numbers: ClassVar[bool] = True
    instead: ClassVar[str] = "make it where the records are, and merge that"

    def result(self) -> str:
        return "double"

    def made_of(self, held: Held) -> float | None:
        values, counts = [value for value, _ in held], [count for _, count in held]
        n = sum(counts)
        if n < 2:
            return None
        return _exact_variance(values, counts, n) if all(map(math.isfinite, values)) else math.nan


@dataclass(frozen=True)
class StddevOfChanges(VarianceOfChanges):
    called: ClassVar[str] = "stddev"

    def made_of(self, held: Held) -> float | None:
        found = VarianceOfChanges.made_of(self, held)
        return None if found is None else math.sqrt(found)


def _exact_variance(values: Sequence[Any], counts: Sequence[int], n: int) -> float:
    """Of whole numbers, which all values are of a common fraction."""
    ratios = [value.as_integer_ratio() for value in values]
    below = math.lcm(*(each for _, each in ratios))
    whole = [above * (below // each) for above, each in ratios]
    total = sum(count * each for each, count in zip(whole, counts, strict=True))
    squares = sum(count * each * each for each, count in zip(whole, counts, strict=True))
    try:
        return float(Fraction(n * squares - total * total, n * (n - 1) * below * below))
    except OverflowError:
        return math.inf
