"""Sums that do not round. A double is a whole number of 2**-1074: sums of such numbers are exact, in any order. Kept as
the hexadecimal text of that number; what is not finite is a text of its own. Also what SQLite lacks to
add decimals, so that a merge is one SQL statement all the same."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from decimal import Context, Decimal

from headrace.errors import DoesNotFit
from headrace.views.values import arrow_type

__all__ = ["exact_sum", "register", "rounded"]

_SCALE = 1074
_WIDE = Context(prec=80)
_NOT_FINITE = {"inf", "-inf", "nan"}


def exact_sum(values: Iterable[float | None]) -> str | None:
    """The exact sum of the values other than null; None without any."""
    total, other, seen = 0, set[str](), False
    for value in values:
        if value is None:
            continue
        seen = True
        if math.isfinite(value):
            above, below = value.as_integer_ratio()
            total += above * (1 << _SCALE) // below
        else:
            other.add(str(value))
    if not seen:
        return None
    return _text(total, other)


def _text(total: int, other: set[str]) -> str:
    if not other:
        return format(total, "x")
    return other.pop() if len(other) == 1 else "nan"


def add(old: str | None, new: str | None) -> str | None:
    if old is None or new is None:
        return new if old is None else old
    other = {old, new} & _NOT_FINITE
    return _text(0, other) if other else format(int(old, 16) + int(new, 16), "x")


def rounded(text: str | None) -> float | str | None:
    """The nearest double; 'NaN' as the tables have it; infinite when it is beyond all doubles."""
    if text is None:
        return None
    if text in _NOT_FINITE:
        return "NaN" if text == "nan" else float(text)
    total = int(text, 16)
    try:
        return total / (1 << _SCALE)  # the division of whole numbers rounds once, to the nearest
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def register(db: sqlite3.Connection, problems: list[DoesNotFit]) -> None:
    """Makes the functions known to a connection. An error cannot pass through SQLite: it is left in `problems`."""

    def add_decimals(old: str, new: str, ddl: str) -> str:
        total = _WIDE.add(Decimal(old), Decimal(new))
        if len(total.as_tuple().digits) > arrow_type(ddl).precision:
            problems.append(DoesNotFit(sum=f"{old} + {new}", type=ddl))
            raise OverflowError
        return format(total, "f")

    def no_fit(old: int, new: int) -> None:
        problems.append(DoesNotFit(sum=f"{old} + {new}", type="bigint"))
        raise OverflowError

    db.create_function("hr_add_decimal", 3, add_decimals, deterministic=True)
    db.create_function("hr_no_fit", 2, no_fit, deterministic=True)
    db.create_function("hr_add_exact", 2, add, deterministic=True)
    db.create_function("hr_round_exact", 1, rounded, deterministic=True)
