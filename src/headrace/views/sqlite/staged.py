"""Large tables on their way out: each is an Arrow file beside the views' file, and the outbox has its name. Owns the
folder. A file is synced before the commit that names it, and removed after the commit that names it no more; what a
crash left is removed when its flow begins again.

As rows of the outbox, a million records would be compressed, written to SQLite's log and copied to its file while
everybody else waits for the commit."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa

from headrace.errors import ViewsDamaged
from headrace.storage import disk

__all__ = ["ROWS_MIN", "name_in", "named", "put", "read", "remove", "sweep"]

FOLDER = "outbox"
ROWS_MIN = 20_000
"""Tables of fewer rows are kept in the outbox itself."""
_PREFIX = b"file "  # no Arrow stream begins so


def put(home: Path, flow: str, rows: pa.Table) -> str:
    """Writes the rows, synced; their name."""
    folder = home / FOLDER
    if not folder.exists():
        disk.make_directory(folder)
        disk.sync_directory(home)
    path = folder / f"{_of(flow)}-{uuid.uuid4().hex}.arrow"
    try:
        with disk.typed(path), os.fdopen(disk.create(path), "wb") as file:
            with pa.ipc.new_stream(file, rows.schema) as writer:
                writer.write_table(rows)
            file.flush()
            disk.sync(file.fileno(), path)
        disk.sync_directory(folder)
    except BaseException:
        remove(home, [path.name])
        raise
    return path.name


def read(home: Path, name: str) -> pa.Table:
    path = home / FOLDER / name
    try:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise ViewsDamaged(path=str(path), why=f"rows that were to go out cannot be read ({error})") from error


def remove(home: Path, names: Iterable[str]) -> None:
    """Failing to is no failure: what is left goes when its flow begins again."""
    for name in names:
        with contextlib.suppress(OSError):
            (home / FOLDER / name).unlink()


def sweep(home: Path, flow: str, known: Collection[str]) -> None:
    """Removes what was written for the flow and is named nowhere."""
    remove(home, [path.name for path in (home / FOLDER).glob(f"{_of(flow)}-*.arrow") if path.name not in known])


def named(name: str) -> bytes:
    """What the outbox has in place of the rows."""
    return _PREFIX + name.encode()


def name_in(body: bytes) -> str | None:
    return body.removeprefix(_PREFIX).decode() if body.startswith(_PREFIX) else None


def names(db: sqlite3.Connection, where: str = "TRUE", *values: object) -> list[str]:
    """The names that the outbox has."""
    sql = f"SELECT CAST(rows AS BLOB) FROM _outbox WHERE substr(rows, 1, 5) = CAST('file ' AS BLOB) AND {where}"
    found = (name_in(body) for (body,) in db.execute(sql, values))
    return [name for name in found if name is not None]


def _of(flow: str) -> str:
    return hashlib.sha256(flow.encode()).hexdigest()[:16]
