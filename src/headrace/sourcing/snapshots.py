"""Snapshots of entities: where an entity's events were folded to. Owns the file `snapshots.db` of a home. Knows neither
events nor states, but for the bytes of one.

It is a cache, made of the log and checked against it: the file may be removed at any time, is not synced, and whatever
is wrong with it means that events are folded again. A snapshot counts only for the very topic, and for the fingerprint
of the functions that made it."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.storage.cache import CacheFile

__all__ = ["FILE", "Snapshot", "Snapshots", "forget_all"]

FILE = "snapshots.db"
_CREATE = (
    "CREATE TABLE IF NOT EXISTS folded (topic TEXT, entity TEXT, fingerprint TEXT, version INTEGER, partition INTEGER, "
    "next INTEGER, at TEXT, first INTEGER, state BLOB, crc INTEGER, PRIMARY KEY (topic, entity)) WITHOUT ROWID"
)
_COLUMNS = "entity, fingerprint, version, partition, next, at, first, state, crc"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state, the entity's version that it is of, where in the topic the events behind it begin, and the time of the
    last one before: a log that was restored may have another one there."""

    entity: str
    version: int
    partition: int
    next: int
    at: str
    first: int
    """The offset of its first event: a state of events that are erased is known by it."""
    state: bytes


def forget_all(directory: Path) -> bool:
    """Removes all snapshots of a home; whether there were any."""
    there = CacheFile(directory / FILE)
    found = there.exists()
    there.remove()
    return found


class Snapshots:
    """Those of one topic, made by functions of one fingerprint."""

    def __init__(self, directory: Path, topic_id: str, fingerprint: str) -> None:
        self._file, self._topic, self._fingerprint = CacheFile(directory / FILE), topic_id, fingerprint

    def get(self, entity: str) -> Snapshot | None:
        if not self._file.exists():
            return None

        def look(db: sqlite3.Connection) -> Snapshot | None:
            asked = f"SELECT {_COLUMNS} FROM folded WHERE topic = ? AND entity = ?"
            return next(self._whole(db.execute(asked, (self._topic, entity))), None)

        return self._file.use(look)

    def put(self, snapshot: Snapshot) -> None:
        """In place of an older one."""
        place = (snapshot.version, snapshot.partition, snapshot.next, snapshot.at, snapshot.first)
        row = (self._topic, snapshot.entity, self._fingerprint, *place)

        def write(db: sqlite3.Connection) -> None:
            db.execute(_CREATE)
            db.execute(
                "INSERT INTO folded VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "fingerprint = excluded.fingerprint, version = excluded.version, partition = excluded.partition, "
                "next = excluded.next, at = excluded.at, first = excluded.first, state = excluded.state, "
                "crc = excluded.crc "
                "WHERE excluded.version > version OR excluded.fingerprint <> fingerprint",
                (*row, snapshot.state, self._crc(snapshot)),
            )

        self._file.use(write)

    def all(self) -> list[Snapshot]:
        """All that count."""

        def look(db: sqlite3.Connection) -> list[Snapshot]:
            asked = f"SELECT {_COLUMNS} FROM folded WHERE topic = ? ORDER BY entity"
            return list(self._whole(db.execute(asked, (self._topic,))))

        return (self._file.use(look) if self._file.exists() else None) or []

    def forget(self, entity: str) -> None:
        """The bytes of the state are overwritten. If that cannot be done now, the file goes: it is a cache."""
        forgotten = "DELETE FROM folded WHERE topic = ? AND entity = ?"
        if self._file.exists() and not self._file.use(lambda db: [db.execute(forgotten, (self._topic, entity))]):
            self._file.remove()

    def _whole(self, rows: sqlite3.Cursor) -> Iterator[Snapshot]:
        for entity, fingerprint, version, partition, next_, at, first, state, crc in rows:
            found = Snapshot(entity, version, partition, next_, at, first, state)
            if fingerprint == self._fingerprint and crc == self._crc(found):
                yield found

    def _crc(self, snapshot: Snapshot) -> int:
        place = (snapshot.version, snapshot.partition, snapshot.next, snapshot.at, snapshot.first)
        where = "/".join(map(str, (self._topic, snapshot.entity, *place)))
        return zlib.crc32(snapshot.state, zlib.crc32(where.encode()))
