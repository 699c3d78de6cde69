"""What SQLite lacks to add decimals and whole numbers of any size: so that adding to a row is one SQL statement."""

from __future__ import annotations

import json
import sqlite3
from decimal import Context, Decimal

from headrace.errors import DoesNotFit
from headrace.views.sqlite.values import as_whole
from headrace.views.values import arrow_type

__all__ = ["register"]

_WIDE = Context(prec=80)


def register(db: sqlite3.Connection, problems: list[DoesNotFit]) -> None:
    """Makes the functions known to a connection. An error cannot pass through SQLite: it is left in `problems`.
    `hr_widened()`: the slots with a sum that did not fit 64 bits, since it was last asked, as JSON."""

    def add_decimals(old: str, new: str, ddl: str) -> str:
        total = _WIDE.add(Decimal(old), Decimal(new))
        if len(total.as_tuple().digits) > arrow_type(ddl).precision:
            problems.append(DoesNotFit(sum=f"{old} + {new}", type=ddl))
            raise OverflowError
        return format(total, "f")

    wide: set[str] = set()

    def add_whole(old: int | str, new: int | str, slot: str) -> int | str:
        total = as_whole(int(old) + int(new))
        if isinstance(total, str):
            wide.add(slot)
        return total

    def widened() -> str:
        found = json.dumps(sorted(wide))
        wide.clear()
        return found

    db.create_function("hr_add_decimal", 3, add_decimals, deterministic=True)
    db.create_function("hr_add_whole", 3, add_whole)
    db.create_function("hr_widened", 0, widened)
