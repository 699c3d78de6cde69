"""Sketches: a function of the values alone, however they come together; and as near to the truth as they say."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.aggregates import Aggregate, approx_count_distinct, approx_quantile, histogram, top_k
from headrace.aggregates.merged import Merged
from headrace.aggregates.packing import known
from headrace.sketches import HASHES_MAX, Earliest, Quantile, added, added_each, buckets, distinct, union

pa = pytest.importorskip("pyarrow")

SEED = 20261116
INPUTS = 1_000


def hashes_of(values: Any) -> bytes:
    return of(approx_count_distinct("x"), pa.array(values, pa.int64()))


def counts_of(values: Any) -> bytes:
    return of(approx_quantile("x", 0.5), pa.array(values, pa.float64()))


def of(aggregate: Aggregate, values: Any) -> bytes:
    (made,) = packed(aggregate, np.zeros(len(values), np.int64), values, 1)
    assert isinstance(made, bytes)
    return made


def packed(aggregate: Aggregate, rows: Any, values: Any, count: int) -> list[Any]:
    """What partial rows have of the values."""
    assert isinstance(aggregate.algebra, Merged)
    found: list[Any] = aggregate.algebra.pack(*known(rows, values), count).to_pylist()
    return found


# -- how many different values -------------------------------------------------------------------------


def test_distinct_is_exact_up_to_its_limit_and_near_above() -> None:
    """Over a thousand random inputs: the error is that of 4,096 hashes, and never beyond five times that."""
    rng = np.random.default_rng(SEED)
    errors = []
    for _ in range(INPUTS):
        true = int(10 ** rng.uniform(0, 5))
        found = distinct(hashes_of(rng.integers(-(2**63), 2**63 - 1, true)))
        if true < HASHES_MAX:
            assert found == true
        else:
            errors.append(found / true - 1)
    assert len(errors) > 200
    standard = 1 / math.sqrt(HASHES_MAX - 2)
    assert np.std(errors) < 1.15 * standard
    assert abs(np.mean(errors)) < 3 * standard / math.sqrt(len(errors))
    assert max(map(abs, errors)) < 5 * standard


def test_distinct_of_nothing_one_and_many_of_the_same() -> None:
    assert distinct(b"") == 0 == distinct(hashes_of([None]))
    assert distinct(hashes_of([7])) == distinct(hashes_of([7] * 1000)) == 1


few = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=20)


@given(few, few, few)
def test_hashes_come_together_in_any_order(a: list[int], b: list[int], c: list[int]) -> None:
    x, y, z = map(hashes_of, (a, b, c))
    assert union(x, y) == union(y, x)
    assert union(union(x, y), z) == union(x, union(y, z)) == hashes_of(a + b + c)
    assert union(x, b"") == x == union(x, x)


def test_many_hashes_come_together_in_any_order() -> None:
    values = np.random.default_rng(SEED).integers(-(2**63), 2**63 - 1, 100_000)
    parts = [hashes_of(part) for part in np.array_split(values, 7)]
    assert reduce(union, parts) == reduce(union, parts[::-1]) == hashes_of(values)
    assert len(hashes_of(values)) == 8 * HASHES_MAX


# -- quantiles -----------------------------------------------------------------------------------------


def test_quantiles_are_within_their_relative_error() -> None:
    rng = np.random.default_rng(SEED)
    worst = 0.0
    for number in range(INPUTS):
        size = int(10 ** rng.uniform(0, 4))
        shapes = (rng.lognormal(0, 8, size), rng.normal(0, 1e6, size), rng.integers(-50, 50, size) / 1.0)
        values, q = shapes[number % 3], round(rng.random(), 3)
        true = float(np.sort(values)[max(1, math.ceil(q * size - 1e-9)) - 1])
        found = Quantile(q)(counts_of(values))
        assert found is not None
        worst = max(worst, abs(found - true) / abs(true) if true else abs(found))
    assert 0.006 < worst < 0.0078


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([], 0.5, None),
        ([None], 0.5, None),
        ([0.0, -0.0], 0.5, 0.0),
        ([1e-308], 1.0, 0.0),
        ([5.0] * 9, 0.0, 5.0),
        ([5.0] * 9, 1.0, 5.0),
        ([-3.0, 3.0], 0.5, -3.0),
        ([-3.0, 3.0], 0.51, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.25, 1.0),
        ([1.0, math.inf], 1.0, math.inf),
        ([1.0, -math.inf], 0.1, -math.inf),
        ([1.0, math.nan, -math.nan], 0.5, math.nan),
        ([1.0, math.nan], 0.5, 1.0),
        ([1.7976931348623157e308], 0.5, 1.7976931348623157e308),
        ([-1.7976931348623157e308], 0.5, -1.7976931348623157e308),
        ([float(n) for n in range(1, 101)], 0.07, 7.0),
    ],
)
def test_quantiles_of_odd_values(values: list[float], q: float, expected: float | None) -> None:
    found = Quantile(q)(counts_of(values))
    assert found == (None if expected is None else pytest.approx(expected, rel=0.0078, nan_ok=True))


def test_buckets_are_in_the_order_of_values() -> None:
    values = [-math.inf, -1e300, -2.0, -1.0, -1e-300, 0.0, 1e-300, 1.0, 1.02, 2.0, 1e300, math.inf, math.nan]
    numbers = buckets(np.array(values)).tolist()
    assert numbers == sorted(set(numbers))


doubles = st.lists(st.floats() | st.sampled_from([1.0, 1.005, -1.0, 0.0]), max_size=20)


@given(doubles, doubles, doubles)
def test_counts_come_together_in_any_order(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = map(counts_of, (a, b, c))
    assert added(x, y) == added(y, x)
    assert added(added(x, y), z) == added(x, added(y, z)) == counts_of(a + b + c)


# -- lists ---------------------------------------------------------------------------------------------

records = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 3),
            "partition": st.integers(0, 1),
            "offset": st.integers(0, 3),
            "value": st.sampled_from([1.0, 2.0, math.nan, -math.inf]),
        }
    ),
    max_size=8,
)


@given(records, records, records)
def test_the_earliest_come_together_in_any_order(a: list[Any], b: list[Any], c: list[Any]) -> None:
    first = Earliest(3)
    x, y, z = (first(each, []) for each in (a, b, c))
    assert first(x, y) == first(y, x)
    assert first(first(x, y), z) == first(x, first(y, z)) == first(a + b, c)


def test_counts_are_added_each_to_its_own() -> None:
    assert added_each([1, 2, 3], [10, 0, 5]) == [11, 2, 8]


# -- rows of them --------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.none() | st.sampled_from("abc"), max_size=6), max_size=5))
def test_values_are_counted_row_by_row(lists: list[list[str | None]]) -> None:
    table = top_k("x", 2).algebra.packed("t", pa.table({"t": pa.array(lists, pa.list_(pa.string()))}))
    found = [{each["value"]: each["count"] for each in row} for row in table["t"].to_pylist()]
    assert found == [{value: row.count(value) for value in row if value is not None} for row in lists]


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(-10, 10) | st.just(math.nan)), max_size=30))
def test_each_row_gets_its_own_values(pairs: list[tuple[int, float | None]]) -> None:
    rows, values = np.array([row for row, _ in pairs], np.int64), pa.array([value for _, value in pairs], pa.float64())
    kept = packed(approx_quantile("x", 0.5), rows, values, 4)
    assert kept == [counts_of([value for row, value in pairs if row == number]) for number in range(4)]
    spread = packed(histogram("x", [-1.0, 2.5]), rows, values, 4)
    for number in range(4):
        mine = [value for row, value in pairs if row == number and value is not None]
        middle = sum(-1.0 <= value < 2.5 for value in mine)
        low = sum(value < -1.0 for value in mine)
        assert spread[number] == [low, middle, len(mine) - low - middle]
