"""A SQLite file that is a cache: it may be removed at any time, is not synced, and what fails with it is left undone.
Owns how such a file is opened, and that a damaged one is made anew. Knows no table."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headrace.storage import disk

__all__ = ["CacheFile"]

BUSY_SECONDS = 0.1
_Found = TypeVar("_Found")


class CacheFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def exists(self) -> bool:
        return self._path.exists()

    def use(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found | None:
        """What `work` returns; None if it failed. Each call has a connection of its own, so a forked child inherits
        none. Bytes that are deleted are overwritten."""
        try:
            with contextlib.suppress(FileExistsError):  # closing one that is open elsewhere would drop SQLite's locks
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, disk.FILE_MODE))
            with contextlib.closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = OFF")
                db.execute("PRAGMA secure_delete = ON")
                return work(db)
        except (sqlite3.OperationalError, OSError):  # busy, full, or not made yet
            return None
        except sqlite3.DatabaseError:  # damaged: the next one makes it anew
            self.remove()
            return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
