"""Sums that do not round. A double is a whole number of 2**-1074: sums of such numbers are exact, in any order, and
what was added can be taken back. Kept as the hexadecimal text of that number, followed, if there were any, by how many
were not finite. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["add", "exact_sum", "rounded"]

_SCALE = 1074
_NOT_FINITE = ("nan", "inf", "-inf")


def exact_sum(values: Iterable[float | None], times: Iterable[int] | None = None) -> str | None:
    """The exact sum of the values other than null, each taken so many times; None without any."""
    total, seen = _Sum(0, (0, 0, 0)), False
    weighed = ((value, 1) for value in values) if times is None else zip(values, times, strict=True)
    for value, count in weighed:
        if value is not None:
            total, seen = total.plus(_Sum.of(value, count)), True
    return str(total) if seen else None


@dataclass(frozen=True, slots=True)
class _Sum:
    """`finite` of 2**-1074, and how many of each of `_NOT_FINITE`."""

    finite: int
    others: tuple[int, int, int]

    @classmethod
    def of(cls, value: float, count: int) -> _Sum:
        if math.isfinite(value):
            above, below = value.as_integer_ratio()
            return cls(count * above * (1 << _SCALE) // below, (0, 0, 0))
        nan, up, down = (count if str(value) == name else 0 for name in _NOT_FINITE)
        return cls(0, (nan, up, down))

    @classmethod
    def parse(cls, text: str) -> _Sum:
        if text in _NOT_FINITE:  # written when nothing was ever taken back
            return cls.of(float(text), 1)
        finite, *others = text.split(",")
        nan, up, down = map(int, others) if others else (0, 0, 0)
        return cls(int(finite, 16), (nan, up, down))

    def plus(self, other: _Sum) -> _Sum:
        nan, up, down = (a + b for a, b in zip(self.others, other.others, strict=True))
        return _Sum(self.finite + other.finite, (nan, up, down))

    def __str__(self) -> str:
        return ",".join([format(self.finite, "x"), *(map(str, self.others) if any(self.others) else ())])

    def rounded(self) -> float | str:
        nan, up, down = self.others
        if nan or (up and down):
            return "NaN"
        if up or down:
            return math.inf if up else -math.inf
        try:
            return self.finite / (1 << _SCALE)  # the division of whole numbers rounds once, to the nearest
        except OverflowError:
            return math.inf if self.finite > 0 else -math.inf


def add(old: str | None, new: str | None) -> str | None:
    if old is None or new is None:
        return new if old is None else old
    return str(_Sum.parse(old).plus(_Sum.parse(new)))


def rounded(text: str | None) -> float | str | None:
    """The nearest double; 'NaN' as the tables have it; infinite when it is beyond all doubles."""
    return None if text is None else _Sum.parse(text).rounded()
