"""What the SQLite files of a home have in common, which are written in turn and read by anybody: the log's index and
the views. Owns how a connection is made safe, how a write-ahead log is emptied, and which of SQLite's errors mean a
full disk. Knows no table, and no other error: what damage means is for whose file it is."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from headrace.errors import DiskFull
from headrace.storage import disk

__all__ = ["BUSY_SECONDS", "empty_wal", "error_name", "full_disk", "make_safe", "wal_bytes"]

BUSY_SECONDS = 60


def make_safe(db: sqlite3.Connection) -> None:
    """No function that a schema names runs, and a sync is one on macOS too, where fsync() leaves bytes in the drive."""
    db.execute("PRAGMA trusted_schema=OFF")
    if sys.platform == "darwin":
        db.execute("PRAGMA fullfsync=ON")
        db.execute("PRAGMA checkpoint_fullfsync=ON")


def wal_bytes(path: Path) -> int:
    """How large the file's write-ahead log is."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def empty_wal(db: sqlite3.Connection) -> bool:
    """Moves the write-ahead log into the file and empties it; whether it did. A reader in the way is not waited for.
    The caller has the turn."""
    db.execute("PRAGMA busy_timeout=0")
    try:
        return not db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        db.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")


def error_name(error: BaseException) -> str:
    """As SQLite calls it; nothing where Python's module has raised it by itself."""
    return getattr(error, "sqlite_errorname", "") or ""


def full_disk(error: BaseException, path: Path) -> DiskFull | None:
    """The error, if it says that there is no space or no inode left."""
    name = error_name(error)
    if name.startswith("SQLITE_FULL"):
        return DiskFull(path=str(path), why=disk.shortage(path) or "the disk is full")
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR_SHM")) and (missing := disk.shortage(path)) is not None:
        return DiskFull(path=str(path), why=missing)  # SQLite's own files beside it cannot be made
    return None
