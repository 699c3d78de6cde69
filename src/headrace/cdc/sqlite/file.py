"""The SQLite file of an application: opened beside it, read in short transactions, written to in shorter ones. Owns the
connection, the translation of SQLite's errors, and how names are written in SQL.

Waits its turn as any other writer does, for at most `BUSY_SECONDS`. Makes no file, and changes no setting of one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headrace.errors import CaptureFailed
from headrace.storage.sqlite import make_safe

__all__ = ["File", "quoted"]

BUSY_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.001
"""So often it is tried to get a lock. SQLite's own waiting grows to 100 ms, and one who writes all the time would leave
it no chance: locks are not queued for."""
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(data: bytes) -> str:
    """Bytes that are no UTF-8 are found when they are to be a value of a topic, not when they are read."""
    return data.decode("utf-8", "surrogateescape")


class File:
    def __init__(self, capture: str, path: Path) -> None:
        self.capture, self.path = capture, path
        with self.translated():
            if not path.is_file():
                raise self.failed("there is no such file (sqlite:////var/lib/shop.db is an absolute path)")
            address = f"file:{quote(str(path.absolute()))}?mode=rw"
            self.db = sqlite3.connect(address, uri=True, isolation_level=None, timeout=RETRY_SECONDS)
            self.db.text_factory = _text
            make_safe(self.db)
            self._identity = self._found()

    def failed(self, why: str, *, passing: bool = False) -> CaptureFailed:
        return CaptureFailed(self.capture, f"sqlite:///{self.path}", why, passing)

    def _found(self) -> tuple[int, int] | None:
        try:
            there = os.stat(self.path)
        except OSError:
            return None
        return there.st_dev, there.st_ino

    def check_in_place(self) -> None:
        """Another file may have taken the name, from a backup for example: what is open is not the database then."""
        if self._found() != self._identity:
            raise self.failed("another file has taken its place, or it is gone", passing=True)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            raise self.failed(f"SQLite says: {error}", passing=code in _PASSING) from None

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """All that is read is of one moment."""
        with self._transaction("BEGIN", "ROLLBACK") as db:
            self._patiently("SELECT 1 FROM main.sqlite_master")  # that is the moment
            yield db

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; nobody else writes meanwhile."""
        with self._transaction("BEGIN IMMEDIATE", "COMMIT") as db:
            yield db

    @contextlib.contextmanager
    def _transaction(self, begin: str, end: str) -> Iterator[sqlite3.Connection]:
        with self.translated():
            self._patiently(begin)
            try:
                yield self.db
                self._patiently(end)
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    def _patiently(self, sql: str, *values: Any) -> Any:
        limit = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return self.db.execute(sql, values).fetchone()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > limit:
                    raise

    def one(self, sql: str, *values: Any) -> Any:
        """The first value that is found, or None."""
        with self.translated():
            found = self._patiently(sql, *values)
        return None if found is None else found[0]

    def close(self) -> None:
        self.db.close()
