"""What aggregates keep comes together in any order, and what they make of it is right: against plain arithmetic."""

from __future__ import annotations

import math
import statistics
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.aggregates import Aggregate, Kept
from headrace.aggregates.families.deviation import merged
from headrace.aggregates.families.largest import LargestOf
from headrace.aggregates.merged import Merged
from headrace.aggregates.packing import counted

SEED = 20261118


def packed(aggregate: Aggregate, of: Any, values: Any, rows: int) -> list[Any]:
    assert isinstance(aggregate.algebra, Merged)
    found: list[Any] = aggregate.algebra.pack(np.array(of, np.int64), values, rows).to_pylist()
    return found


def state(values: Any) -> Any:
    return packed(hr.variance("x"), [0] * len(values), pa.array(values, pa.float64()), 1)[0]


def exact_variance(values: Any) -> float:
    some = [Fraction(float(value)) for value in values]
    mean = sum(some, Fraction(0)) / len(some)
    return float(sum(((each - mean) ** 2 for each in some), Fraction(0)) / (len(some) - 1))


# -- variance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [0.0, 1.0, 1e6, 1e9, 1e12, -1e15])
def test_the_variance_is_right_however_far_from_zero_and_however_cut(far: float) -> None:
    """Of 1,000 numbers around 1e12 with a deviation of 1, a sum of squares has no correct digit."""
    rng = np.random.default_rng(SEED)
    values = far + rng.normal(0, 1, 1_000)
    true = exact_variance(values)
    finish = hr.variance("x").finish
    assert finish is not None
    for parts in (1, 2, 7, 100, 1_000):
        cut = np.array_split(rng.permutation(values), parts)
        found = finish(reduce(merged, map(state, cut)))
        assert found == pytest.approx(true, rel=1e-9, abs=0)


numbers = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1e15, 1e15 + 2]), min_size=1, max_size=8)


@given(numbers, numbers, numbers)
def test_moments_come_together_in_any_order(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = map(state, (a, b, c))
    whole = state([*a, *b, *c])
    for found in (merged(x, y), z), (x, merged(y, z)), (merged(z, x), y):
        one = merged(*found)
        assert one["n"] == whole["n"]
        assert one["m2"] == pytest.approx(whole["m2"], rel=1e-9, abs=1e-12)
        assert one["mean"] + one["low"] == pytest.approx(whole["mean"] + whole["low"], rel=1e-14, abs=1e-9)


@given(st.permutations([0.0, -0.0, 1e300, -1e300, 1.7e308, -1.7e308, 5e-324, 7.0]), st.integers(1, 7), st.booleans())
def test_beyond_all_doubles_it_is_infinite_and_of_what_is_not_finite_not_a_number(
    values: list[float], at: int, odd: bool
) -> None:
    some = [math.inf, *values] if odd else values
    for found in state(some), merged(state(some[:at]), state(some[at:])):
        assert math.isnan(found["m2"]) if odd else found["m2"] == math.inf
        assert (found["n"], found["mean"]) == (len(some), 0.0)


def test_each_row_has_its_own_variance() -> None:
    kept = packed(hr.stddev("x"), [2, 0, 2, 2, 3], pa.array([1.0, 5.0, 2.0, 4.0, math.inf]), 4)
    finish = hr.stddev("x").finish
    assert finish is not None
    assert kept[1] is None and finish(kept[0]) is None
    assert finish(kept[2]) == pytest.approx(statistics.stdev([1, 2, 4]))
    assert math.isnan(kept[3]["m2"]) and finish(kept[3]) is None, "of one value there is none, as in Spark"


# -- of values that are kept ---------------------------------------------------------------------------


def made_of(aggregate: Aggregate, held: Any, arrow: pa.DataType) -> Any:
    algebra = aggregate.algebra.of_changes()
    assert isinstance(algebra, Kept)
    return algebra.settled({"value": arrow}).made_of(held)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 4)), min_size=1, unique_by=lambda one: one[0]))
def test_variance_and_percentile_of_values_with_counts(held: list[tuple[int, int]]) -> None:
    every = sorted(value for value, count in held for _ in range(count))
    assert made_of(hr.variance("x"), held, pa.int64()) == (exact_variance(every) if len(every) > 1 else None)
    for q in (0.0, 0.25, 0.5, 0.9, 1.0):
        assert made_of(hr.percentile("x", q), held, pa.int64()) == pytest.approx(np.quantile(every, q), abs=1e-9)
    assert made_of(hr.sum_distinct("x"), held, pa.int64()) == sum(set(every))


def test_odd_values_that_are_kept() -> None:
    nan, inf = math.nan, math.inf
    assert made_of(hr.variance("x"), [], pa.float64()) is None is made_of(hr.percentile("x", 0.5), [], pa.float64())
    assert math.isnan(made_of(hr.stddev("x"), [(nan, 1), (1.0, 2)], pa.float64()))
    assert made_of(hr.percentile("x", 0.5), [(nan, 1), (1.0, 2)], pa.float64()) == 1.0, "NaN is the greatest"
    assert math.isnan(made_of(hr.percentile("x", 1.0), [(nan, 1), (1.0, 2)], pa.float64()))
    assert made_of(hr.sum_distinct("x"), [(0.1, 3), (0.2, 1), (1e300, 1), (-1e300, 1)], pa.float64()) == 0.1 + 0.2
    assert math.isnan(made_of(hr.sum_distinct("x"), [(inf, 1), (-inf, 1)], pa.float64()))
    money = [(Decimal("0.10"), 5), (Decimal("-7.25"), 1)]
    assert made_of(hr.sum_distinct("x"), money, pa.decimal128(9, 2)) == Decimal("-7.15")
    assert made_of(hr.stddev("x"), money, pa.decimal128(9, 2)) == pytest.approx(statistics.stdev([0.1] * 5 + [-7.25]))
    assert made_of(hr.sum_distinct("x"), [], pa.int64()) is None


def test_values_are_counted_by_what_comes_and_goes() -> None:
    of, values = np.array([0, 1, 0, 0]), pa.array([5, 5, None, 5])
    found = counted(of, values, np.array([1, 1, 1, -1]), 3).to_pylist()
    assert found == [[{"value": 5, "count": 0}], [{"value": 5, "count": 1}], []]


# -- the largest ---------------------------------------------------------------------------------------

ones = st.lists(
    st.fixed_dictionaries(
        {
            "by": st.sampled_from([1.0, 2.0, math.nan, -math.inf]),
            "at": st.integers(0, 2),
            "partition": st.integers(0, 1),
            "offset": st.integers(0, 3),
            "value": st.sampled_from(["a", "b"]),
        }
    ),
    max_size=8,
)


@given(ones, ones, ones)
def test_the_largest_come_together_in_any_order(a: list[Any], b: list[Any], c: list[Any]) -> None:
    largest = LargestOf(3)
    x, y, z = (largest(each, []) for each in (a, b, c))
    assert largest(x, y) == largest(y, x)
    assert largest(largest(x, y), z) == largest(x, largest(y, z)) == largest(a + b, c)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.0, math.nan])), max_size=20))
def test_each_row_has_its_own_largest(pairs: list[tuple[int, float]]) -> None:
    """Of equal measures the one with the greater offset comes first."""
    of, count = [row for row, _ in pairs], len(pairs)
    columns = [pa.array([by for _, by in pairs], pa.float64()), pa.array([0] * count, pa.int64())]
    columns += [pa.array([0] * count, pa.int32()), pa.array(range(count), pa.int64()), pa.array(["v"] * count)]
    values = pa.StructArray.from_arrays(columns, names=["by", "at", "partition", "offset", "value"])
    found = packed(hr.top_k("x", 2, by="y"), of, values, 4)
    for row in range(4):
        mine = [(math.isnan(by), 0 if math.isnan(by) else by, at) for at, (r, by) in enumerate(pairs) if r == row]
        assert [one["offset"] for one in found[row]] == [at for _, _, at in sorted(mine, reverse=True)[:2]]
