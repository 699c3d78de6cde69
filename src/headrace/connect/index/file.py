"""The SQLite file of a full-text index: its tables, and its errors. Owns the file; does not know topics.

The file has generations: each is a whole index with a place of its own. One is served; another may be built beside it,
and is served from one transaction on. A place changes in the transaction of the rows, and only from what it was: so of
two processes that write one generation, each record is applied by one of them."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.connect.contract import Place
from headrace.errors import SearchIndexDamaged, StorageError
from headrace.storage import disk
from headrace.storage.sqlite import BUSY_SECONDS, error_name, full_disk, make_safe

__all__ = [
    "Generation",
    "arrivals_of",
    "create",
    "file_bytes",
    "generation",
    "generations",
    "is_there",
    "open_to_read",
    "open_to_write",
    "place_of",
    "remove",
    "typed",
]

APPLICATION: Final = 0x68725349  # "hrSI"
FORMAT: Final = 1
_TOKENIZERS: Final = {
    "unicode61": "unicode61 remove_diacritics 2",
    "porter": "porter unicode61 remove_diacritics 2",
    "trigram": "trigram",
}
_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS generations (
        number INTEGER PRIMARY KEY, state TEXT NOT NULL, spec TEXT NOT NULL, rows INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS places (
        generation INTEGER NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, arrived_us INTEGER,
        PRIMARY KEY (generation, partition)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Generation:
    """`spec`: the topic, the columns of text, the key and the tokenizer that it is made by. `state`: "building" or
    "serving"."""

    number: int
    state: str
    spec: dict[str, Any]
    rows: int

    @property
    def rows_table(self) -> str:
        return f"rows_{self.number}"

    @property
    def text_table(self) -> str:
        return f"text_{self.number}"

    @property
    def text(self) -> list[str]:
        return list(self.spec["text"])

    @property
    def text_columns(self) -> list[str]:
        """As they are called in the file: names of columns may be words of FTS5."""
        return [f"c{number}" for number in range(len(self.spec["text"]))]


def open_to_write(path: Path) -> sqlite3.Connection:
    """Makes the file if there is none; only its owner may read it."""
    disk.make_directory(path.parent)
    if not path.exists():
        with contextlib.suppress(FileExistsError, StorageError):
            os.close(disk.create(path))
    with typed(path):
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            if _is_known(db, path):
                return _settled(db)
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _settled(db)
            db.executescript(f"BEGIN IMMEDIATE; {_TABLES}; PRAGMA application_id = {APPLICATION}; COMMIT;")
            db.execute(f"PRAGMA user_version = {FORMAT}")
            return db
        except BaseException:
            db.close()
            raise


def _settled(db: sqlite3.Connection) -> sqlite3.Connection:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    make_safe(db)
    return db


def open_to_read(path: Path) -> sqlite3.Connection:
    """SearchIndexDamaged if the file is no index; StorageError if there is none."""
    if not path.exists():
        why = f"there is no index there yet: run the program, or headrace index run {path.stem}"
        raise StorageError(str(path), why)
    with typed(path):
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            db.execute("PRAGMA query_only = ON")
            make_safe(db)
            if not _is_known(db, path):
                raise SearchIndexDamaged(str(path), "it is empty")
            return db
        except BaseException:
            db.close()
            raise


def remove(path: Path) -> None:
    """The file, if it is an index."""
    if path.exists():
        with contextlib.suppress(SearchIndexDamaged), contextlib.closing(open_to_read(path)):
            for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                with typed(path), contextlib.suppress(FileNotFoundError):
                    each.unlink()


def _is_known(db: sqlite3.Connection, path: Path) -> bool:
    """Whether it is an index; an empty file is none yet."""
    if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        return False
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise SearchIndexDamaged(str(path), "it is a SQLite file, but no index of headrace")
    return True


def generations(db: sqlite3.Connection) -> list[Generation]:
    found = db.execute("SELECT number, state, spec, rows FROM generations ORDER BY number").fetchall()
    return [Generation(number, state, json.loads(spec), rows) for number, state, spec, rows in found]


def generation(db: sqlite3.Connection, state: str) -> Generation | None:
    return next((each for each in generations(db) if each.state == state), None)


def is_there(db: sqlite3.Connection, number: int) -> bool:
    return bool(db.execute("SELECT count(*) FROM generations WHERE number = ?", (number,)).fetchone()[0])


def place_of(db: sqlite3.Connection, number: int) -> Place:
    return dict(db.execute("SELECT partition, next FROM places WHERE generation = ?", (number,)).fetchall())


def arrivals_of(db: sqlite3.Connection, number: int) -> dict[int, int | None]:
    """When the last record of each partition that is in it had arrived, where that was known."""
    return dict(db.execute("SELECT partition, arrived_us FROM places WHERE generation = ?", (number,)).fetchall())


def file_bytes(db: sqlite3.Connection) -> int:
    """With what is in its write-ahead log."""
    (pages,), (size,) = (db.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
    return int(pages) * int(size)


def create(db: sqlite3.Connection, spec: dict[str, Any], place: Place) -> Generation:
    """A new generation, which is empty. Within a transaction."""
    made = db.execute("INSERT INTO generations (state, spec) VALUES ('building', ?)", (json.dumps(spec),)).lastrowid
    assert made is not None
    new = Generation(made, "building", spec, 0)
    db.execute(
        f"CREATE TABLE {new.rows_table} (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, row TEXT NOT NULL, "
        "partition INTEGER NOT NULL, at INTEGER NOT NULL)"
    )
    shortest = "" if spec["tokenizer"] == "trigram" else ", prefix='2 3'"
    db.execute(
        f"CREATE VIRTUAL TABLE {new.text_table} USING fts5({', '.join(new.text_columns)}, "
        f"tokenize='{_TOKENIZERS[spec['tokenizer']]}'{shortest})"
    )
    db.executemany("INSERT INTO places VALUES (?, ?, ?, NULL)", [(made, *each) for each in place.items()])
    return new


@contextlib.contextmanager
def typed(path: Path) -> Iterator[None]:
    """SQLite's errors, as ours."""
    try:
        yield
    except sqlite3.Error as error:
        code = error_name(error)
        if (full := full_disk(error, path)) is not None:
            raise full from error
        if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise SearchIndexDamaged(str(path), f"SQLite says: {error}") from error
        raise StorageError(str(path), f"{error} ({code or type(error).__name__})") from error
