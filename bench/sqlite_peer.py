"""A peer: rows in a plain SQLite table (standard library, WAL). Its settings are named in every row of the result.
It is given tuples made beforehand: turning records into them is not counted."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

INSERT = "INSERT INTO clicks VALUES (?, ?, ?, ?)"
Tuples = Sequence[tuple[Any, ...]]


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={synchronous}")
    return db


def create(path: Path, synchronous: str, *, index: bool = False) -> sqlite3.Connection:
    db = connect(path, synchronous)
    db.execute("CREATE TABLE clicks (user TEXT, page TEXT, ms INTEGER, at INTEGER)")
    if index:
        db.execute("CREATE INDEX clicks_by_user ON clicks (user)")
    return db


def append_batches(db: sqlite3.Connection, batches: Sequence[Tuples]) -> None:
    for batch in batches:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(INSERT, batch)
        db.execute("COMMIT")


def append_singles(path: Path, synchronous: str, rows: Tuples, threads: int) -> None:
    """Each thread commits `rows` one by one on its own connection."""

    def work() -> None:
        db = connect(path, synchronous)
        for row in rows:
            db.execute("BEGIN IMMEDIATE")
            db.execute(INSERT, row)
            db.execute("COMMIT")
        db.close()

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def scan(db: sqlite3.Connection, columns: str) -> int:
    cursor = db.execute(f"SELECT {columns} FROM clicks")
    count = 0
    while rows := cursor.fetchmany(10_000):
        count += len(rows)
    return count


def scan_dicts(db: sqlite3.Connection) -> int:
    cursor = db.execute("SELECT * FROM clicks")
    names = [column[0] for column in cursor.description]
    return sum(1 for _ in (dict(zip(names, row, strict=True)) for row in cursor))
