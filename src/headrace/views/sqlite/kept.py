"""How many rows the tables of joins have, and about how many bytes. Owns the numbers, which are changed in the
transaction that changes the rows: so nobody counts rows to know them.

SQLite says how many rows a statement has changed, and not how many of them replaced others: `REPLACED`, a condition of
an upsert, counts those. The bytes of rows that come are those of their Arrow columns. Rows that go take the average
with them, since nobody reads them first."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KEPT", "REPLACED", "counting", "kept_in", "register"]

KEPT = (
    "CREATE TABLE _kept (flow TEXT NOT NULL, name TEXT NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, "
    "PRIMARY KEY (flow, name)) WITHOUT ROWID"
)
REPLACED = "hr_replaced()"


def register(db: sqlite3.Connection) -> None:
    """`hr_replaced()` is always true; `hr_replaced_so_far()` says how often it was called."""
    calls = 0

    def replaced() -> bool:
        nonlocal calls
        calls += 1
        return True

    db.create_function("hr_replaced", 0, replaced)
    db.create_function("hr_replaced_so_far", 0, lambda: calls)


@contextlib.contextmanager
def counting(db: sqlite3.Connection, flow: str, name: str, rows: pa.Table | None = None) -> Iterator[None]:
    """Notes what the block changes in one table, and nothing else: with `rows`, which it puts; without, it deletes."""
    changed, (before,) = db.total_changes, db.execute("SELECT hr_replaced_so_far()").fetchone()
    yield
    changed, (after,) = db.total_changes - changed, db.execute("SELECT hr_replaced_so_far()").fetchone()
    if not changed:
        return
    had, size = kept_in(db, flow).get(name, (0, 0))
    gone, came = (changed, 0) if rows is None else (after - before, changed)
    stay = max(0, had - gone)
    size = size * stay // had if had else 0
    size += 0 if rows is None else rows.nbytes
    db.execute("INSERT OR REPLACE INTO _kept VALUES (?, ?, ?, ?)", (flow, name, had - gone + came, size))


def kept_in(db: sqlite3.Connection, flow: str) -> dict[str, tuple[int, int]]:
    """Rows and bytes, by table."""
    found = db.execute("SELECT name, rows, bytes FROM _kept WHERE flow = ?", (flow,))
    return {name: (rows, size) for name, rows, size in found}
