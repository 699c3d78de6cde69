"""A copy of the views' file while it is in use, with the large tables that flows are sending on. Owns that both are of
one commit, of the moment at which others copy too: the files are opened, and the transaction that is copied begins,
while no other commit can be made."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from headrace.errors import DamagedBackup
from headrace.storage import disk
from headrace.storage.copying import Copied, Told, copy_bytes, hashed
from headrace.views.sqlite import staged
from headrace.views.sqlite.file import FILE, ViewsFile, connected, translate

__all__ = ["back_up"]


def back_up(store: ViewsFile, target: Path, told: Told, at: Callable[[], None]) -> list[Copied]:
    home = store.path.parent
    with contextlib.ExitStack() as opened:
        reading = opened.enter_context(contextlib.closing(connected(store.path)))
        files: list[tuple[str, int]] = []
        with store.transaction() as db:
            for name in staged.names(db):
                with disk.typed(home / staged.FOLDER / name):
                    fd = disk.open_to_read(home / staged.FOLDER / name)
                opened.callback(os.close, fd)
                files.append((name, fd))
            reading.execute("BEGIN")
            reading.execute("SELECT 1 FROM _meta").fetchone()  # the transaction begins with its first read
            at()
        os.close(disk.create(target / FILE))
        try:
            with contextlib.closing(sqlite3.connect(target / FILE, isolation_level=None)) as copy:
                reading.backup(copy)
                reading.execute("ROLLBACK")
                copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                said = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            raise translate(error, target / FILE) from error
        if said != "ok":
            raise DamagedBackup(path=str(store.path), why=f"the views are damaged; SQLite says: {said}")
        if files:
            (target / staged.FOLDER).mkdir(mode=disk.DIRECTORY_MODE)
        outgoing = [
            copy_bytes(fd, target / staged.FOLDER / name, os.fstat(fd).st_size, f"{staged.FOLDER}/{name}", told)
            for name, fd in files
        ]
    return [hashed(target / FILE, FILE, told), *outgoing]
