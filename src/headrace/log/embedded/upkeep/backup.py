"""A copy of a log while it is in use. Owns the order: the index as it is at one moment, which others may choose, then
the bytes of the data files that this index knows. Upkeep waits meanwhile, in all processes, so that no byte of them is
moved, erased or given back; appends go on. Bytes behind what the index knows are left out: they would tell of commits
that the copy does not have.

The copy is opened once, alone: what its writers had open is closed, and every row and frame is read and checked."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from headrace.errors import DamagedBackup
from headrace.log.contract import Verified
from headrace.log.embedded.storage.catalog import Catalog
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import FILES, last_commit, translate
from headrace.log.embedded.upkeep import rounds
from headrace.log.embedded.upkeep import verify as verifying
from headrace.storage import disk
from headrace.storage.copying import Copied, Told, copy_bytes, hashed

__all__ = ["back_up"]

INDEX, DATA = "log.db", "data"
LEFT = ("lock", "reserve", "keys.db", "keys.db-wal", "keys.db-shm", "snapshots.db", "log.db-wal", "log.db-shm")
"""What opening the copy has made in it, besides `wake/`."""


def back_up(
    engine: Engine, target: Path, told: Told, together: Callable[[Callable[[], None]], None]
) -> tuple[list[Copied], Verified, int]:
    """The files of the copy, what checking it found, and the number of its last commit."""
    (target / DATA).mkdir(mode=disk.DIRECTORY_MODE)
    with rounds.alone(engine, wait=True):
        os.close(disk.create(target / INDEX))
        try:
            with contextlib.closing(sqlite3.connect(target / INDEX, isolation_level=None)) as copy:
                with engine.index.snapshot() as db:
                    together(lambda: _begin(db))
                    db.backup(copy)
                files = FILES.select(copy)
                commit = last_commit(copy, target / INDEX).number
        except sqlite3.Error as error:
            raise translate(error, target / INDEX) from error
        copied = []
        for row in files:
            assert row.id is not None
            if not row.committed:  # nothing is in it; or it is an archive, which is elsewhere
                continue
            try:
                fd = disk.open_to_read(engine.files.path(row.id))
            except FileNotFoundError as error:
                raise DamagedBackup(
                    path=row.name, why="the log's data file is gone: headrace verify says more"
                ) from error
            try:
                copied.append(copy_bytes(fd, target / DATA / row.name, row.committed, f"{DATA}/{row.name}", told))
            finally:
                os.close(fd)
    found = _checked(target)
    return [hashed(target / INDEX, INDEX, told), *copied], found, commit


def _begin(db: sqlite3.Connection) -> None:
    """A transaction begins with its first read."""
    db.execute("SELECT 1 FROM meta").fetchone()


def _checked(target: Path) -> Verified:
    """With an engine of its own, whose upkeep does nothing."""
    there = os.stat(target)
    engine = Engine(target, (there.st_dev, there.st_ino), upkeep=lambda *_: False, create=False)
    try:
        found = verifying.verify(engine, Catalog(engine))
        engine.index.checkpoint()
    finally:
        engine.close()
    for name in LEFT:
        (target / name).unlink(missing_ok=True)
    for path in (target / "wake").glob("*"):
        path.unlink()
    with contextlib.suppress(FileNotFoundError):
        (target / "wake").rmdir()
    return found
