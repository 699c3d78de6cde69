"""What approximate aggregates keep of many values, and what they say of them. Pure functions over bytes and numbers; no
Arrow, no Spark, no store.

Each is a function of the values alone, not of the order or the pieces they came in: that is what decides for these
and against others. So merging is associative and commutative, and any cut of a stream keeps the same bytes.

- *Distinct*: the 4,096 smallest of the values' 64-bit hashes. Up to so many values the number is exact; above, how far
  the last of them is from the first possible hash tells how dense they lie.
- *Quantiles*: how many values lie in each of buckets whose bounds grow by 1/64 at most; a quantile is then known to
  0.8 %. Counts can be added, and taken away again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "COUNT",
    "HASH",
    "HASHES_MAX",
    "Earliest",
    "Quantile",
    "added",
    "added_each",
    "buckets",
    "distinct",
    "union",
    "values_of",
]

I64 = npt.NDArray[np.int64]

# -- how many different values -------------------------------------------------------------------------

HASHES_MAX = 4_096
HASH = np.dtype("<i8")


def union(a: bytes, b: bytes) -> bytes:
    """The smallest hashes of both."""
    if len(a) < len(b):
        a, b = b, a
    many, few = np.frombuffer(a, HASH), np.frombuffer(b, HASH)
    if len(many) == HASHES_MAX:
        few = few[: np.searchsorted(few, many[-1])]  # the others are too large
    if not len(few):
        return a
    if len(many) < 64 * len(few):
        hashes = np.concatenate((many, few))
        hashes.sort(kind="stable")  # two runs that are in order
        first = np.ones(len(hashes), np.bool_)
        np.not_equal(hashes[1:], hashes[:-1], out=first[1:])
        return hashes[first][:HASHES_MAX].tobytes()
    at = np.searchsorted(many, few)  # few into many: quicker than to sort them
    fresh = many[np.minimum(at, len(many) - 1)] != few
    few, at = few[fresh], at[fresh] + np.arange(np.count_nonzero(fresh))
    both = np.empty(len(many) + len(few), HASH)
    is_old = np.ones(len(both), np.bool_)
    is_old[at] = False
    both[at], both[is_old] = few, many
    return both[:HASHES_MAX].tobytes()


def distinct(hashes: bytes) -> int:
    """About how many different values they are of: with a standard error of 1/√4094, 1.6 %."""
    count = len(hashes) // HASH.itemsize
    if count < HASHES_MAX:
        return count
    last = int(np.frombuffer(hashes, HASH)[-1]) + 2**63
    return round((HASHES_MAX - 1) * 2**64 / (last + 1))


# -- quantiles -----------------------------------------------------------------------------------------

COUNT = np.dtype("<i8")
"""A bucket's number, then how many values are in it; and so on, in the order of buckets, which is that of values."""
STEPS = 64
"""Buckets between a power of two and the next."""
_SHIFT = 52 - 6
_SMALLEST = 2.0**-1000
INFINITE, NOT_A_NUMBER = 0x7FF << 6, 0x800 << 6


def buckets(values: npt.NDArray[np.float64]) -> I64:
    """The number of each value's bucket: its exponent and the first six digits of its mantissa, as the double has them,
    so that no logarithm decides. Negative values have negative numbers; NaN has the greatest, as in Spark."""
    size = np.abs(values)
    numbers: I64 = np.where(size < _SMALLEST, 0.0, size).view(np.int64) >> _SHIFT
    numbers = np.where(values < 0, -numbers, numbers)
    return np.where(np.isnan(values), NOT_A_NUMBER, numbers)


def added(a: bytes, b: bytes) -> bytes:
    """The counts of both, bucket by bucket."""
    if len(a) < len(b):
        a, b = b, a
    if not b:
        return a
    many, few = _counts(a), _counts(b)
    at = np.searchsorted(many[:, 0], few[:, 0])
    known = many[np.minimum(at, len(many) - 1), 0] == few[:, 0]
    out = many.copy()
    out[at[known], 1] += few[known, 1]
    return (out if known.all() else np.insert(out, at[~known], few[~known], axis=0)).tobytes()


def _counts(kept: bytes) -> I64:
    return np.frombuffer(kept, COUNT).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Quantile:
    """The value that a share `q` of all values does not exceed, known to 0.8 %; None of no values."""

    q: float

    def __call__(self, counts: bytes) -> float | None:
        if not counts:
            return None
        kept = _counts(counts)
        upto = np.cumsum(kept[:, 1])
        rank = max(1, math.ceil(_exact(self.q) * int(upto[-1])))
        return _value(int(kept[np.searchsorted(upto, rank), 0]))


@cache
def _exact(q: float) -> Fraction:
    """The share as it was written."""
    return Fraction(repr(q))


def _value(bucket: int) -> float:
    """What is, relatively, least far from both ends of the bucket."""
    size = abs(bucket)
    if size == NOT_A_NUMBER:
        return math.nan
    if size == INFINITE:
        found = math.inf
    elif size == 0:
        return 0.0
    else:
        exponent, step = divmod(size, STEPS)
        found = math.ldexp((STEPS + step) / STEPS, exponent - 1023) * ((130 + 2 * step) / (129 + 2 * step))
    return found if bucket > 0 else -found


# -- lists ---------------------------------------------------------------------------------------------


def added_each(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True, slots=True)
class Earliest:
    """Of two lists of values with what orders them, those that come first."""

    limit: int

    def __call__(self, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted([*a, *b], key=_order)[: self.limit]


def _order(one: dict[str, Any]) -> tuple[Any, ...]:
    """Among equals the value decides: two topics have records of one partition number and offset."""
    value = one["value"]
    not_a_number = isinstance(value, float) and math.isnan(value)
    return one["at"], one["partition"], one["offset"], not_a_number, 0.0 if not_a_number else value


def values_of(kept: list[dict[str, Any]]) -> list[Any]:
    return [one["value"] for one in kept]
