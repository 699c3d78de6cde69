"""Data files: where frames lie. Owns the folder `data`, this process's one ingest file, and the descriptors
for reading. Does not know topics or Arrow. Bytes nobody's index row points to do not exist: a crash between
writing a frame and committing its row leaves a gap in the file that is never read.

A process appends to a file of its own and holds a lock on it for as long as it lives; a file whose lock can be
taken belongs to a process that is gone, and is closed by the next one that opens the log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import LogMissing, StorageError
from headrace.failpoints import reach
from headrace.log.embedded.storage.frames import HEADER_BYTES, Body, Header, padding
from headrace.log.embedded.storage.index import FILES, FileRow, Index
from headrace.storage import disk

FILE_BYTES_MAX = 128 << 20
OPEN_FILES_MAX = 64
UNSYNCED = "WHERE synced < committed AND state <> 'suspect'"
"""Files a sync makes safe. A sync of one that failed before says nothing: the kernel has dropped what it could not
write, and reports it once. Such a file is read back by whoever opens the log next."""


@dataclass(slots=True)
class Draft:
    """A frame on its way: its content, then (once written) its place."""

    topic_id: bytes
    partition: int
    body: Body
    schema_version: int
    event_min: int | None
    event_max: int | None
    flags: int = 0
    file: int = -1
    position: int = -1

    @property
    def length(self) -> int:
        return HEADER_BYTES + len(self.body.data)


@dataclass
class Ingest:
    """The file this process appends to."""

    id: int
    name: str
    path: Path
    fd: int
    end: int = 0
    synced: int = 0
    noted: tuple[int, int] = (0, 0)  # committed and synced, as the index has them


class _Descriptor:
    """A descriptor that closes with its last user, so that evicting it never pulls it from under a read."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


@dataclass
class DataFiles:
    folder: Path
    index: Index
    file_bytes_max: int = FILE_BYTES_MAX
    _ingest: Ingest | None = None
    _close_early: int = -1
    _open: OrderedDict[int, _Descriptor] = field(default_factory=OrderedDict)
    _names: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- writing: called by the committer only -----------------------------------------------------

    def write(self, drafts: list[Draft], commit_known: int) -> None:
        """Writes the frames behind each other and notes their places. On failure the file ends where it ended."""
        ingest = self._ingest
        assert ingest is not None
        parts: list[bytes | memoryview] = []
        position = ingest.end
        for draft in drafts:
            header = Header(
                draft.topic_id,
                draft.partition,
                draft.body.count,
                len(draft.body.data),
                draft.body.crc,
                draft.schema_version,
                commit_known,
                draft.flags,
                draft.body.plain_bytes,
            )
            parts += [header.pack(), draft.body.data, padding(draft.length)]
            draft.file, draft.position = ingest.id, position
            position += draft.length + -draft.length % 64
        try:
            disk.write_at(ingest.fd, parts, ingest.end)
        except OSError as error:
            try:
                os.ftruncate(ingest.fd, ingest.end)
            except OSError:
                self._ingest = None  # its tail is unknown: never write behind it again
            raise disk.translate(error, ingest.path) from error
        ingest.end = position

    def check_in_place(self) -> None:
        """What is written to a file without a name is lost with the process: better not written."""
        ingest = self._ingest
        if ingest is not None and os.fstat(ingest.fd).st_nlink == 0:
            self._ingest = None
            os.close(ingest.fd)
            raise LogMissing(path=str(ingest.path), why="the data file was removed while open. Nothing was written")

    def needs_roll(self) -> bool:
        ingest = self._ingest
        return ingest is None or ingest.end >= self.file_bytes_max or ingest.id == self._close_early

    def close_early(self, file: int) -> None:
        """If it is ours, the next frames go to a new file: most of this one is of no use any more."""
        if self._ingest is not None and self._ingest.id == file:
            self._close_early = file

    def create_ingest(self) -> Ingest:
        """A new file of our own: on disk and locked before the index hears of it."""
        name = f"{uuid.uuid4().hex}.frames"
        path = self.folder / name
        fd = disk.create(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            reach("roll.created")
            disk.sync_directory(self.folder)
        except BaseException:
            os.close(fd)
            raise
        return Ingest(-1, name, path, fd)

    def adopt_ingest(self, db: sqlite3.Connection, fresh: Ingest) -> None:
        """In a write transaction: the new file takes the old one's place."""
        if self._ingest is not None:
            old = self._ingest
            FILES.put(db, FileRow(old.id, old.name, "closed", *old.noted))
        fresh.id = FILES.add(db, FileRow(None, fresh.name, "ingest", 0, 0))

    def discard(self, fresh: Ingest) -> None:
        """When that transaction failed: the file was never used."""
        with contextlib.suppress(OSError):
            os.unlink(fresh.path)
        os.close(fresh.fd)

    def adopted(self, fresh: Ingest) -> None:
        """After that transaction."""
        if self._ingest is not None:
            os.close(self._ingest.fd)
        self._ingest = fresh

    def sync_ingest(self) -> None:
        ingest = self._ingest
        if ingest is not None and ingest.synced < ingest.end:
            disk.sync(ingest.fd, ingest.path)
            ingest.synced = ingest.end

    def sync_others(self, db: sqlite3.Connection) -> dict[int, int]:
        """Syncs what other files hold unsynced, and says how far each is safe. A commit that syncs the index makes
        earlier unsynced appends' rows durable too: their bytes must be there first."""
        own = self._ingest.id if self._ingest else -1
        done: dict[int, int] = {}
        for row in FILES.select(db, UNSYNCED):
            if row.id is not None and row.id != own:
                with disk.typed(self.folder / row.name):
                    try:
                        fd = disk.open_to_read(self.folder / row.name)
                    except FileNotFoundError:
                        if FILES.get(db, row.id) is None:
                            continue  # reclaimed since we looked
                        raise
                try:
                    disk.sync(fd, self.folder / row.name)
                finally:
                    os.close(fd)
                done[row.id] = row.committed
        return done

    def note(self, db: sqlite3.Connection, *, synced: bool, others: dict[int, int]) -> None:
        """In the write transaction, last: how far files are committed and synced."""
        ingest = self._ingest
        if ingest is not None and ingest.noted != (ingest.end, ingest.synced):
            FILES.change(db, FileRow(ingest.id, ingest.name, "ingest", ingest.end, ingest.synced))
        if synced:
            for row in FILES.select(db, UNSYNCED):
                if ingest is not None and row.id == ingest.id:
                    continue
                assert row.id is not None
                if others.get(row.id, -1) < row.committed:  # became unsynced since we looked: rare, so under the lock
                    others = others | self.sync_others(db)
                FILES.put(db, row._replace(synced=max(row.synced, others[row.id])))

    def noted(self) -> None:
        """After the commit."""
        if self._ingest is not None:
            self._ingest.noted = (self._ingest.end, self._ingest.synced)

    def take_back(self) -> None:
        """When everything written since the last commit was refused: it would only lie there."""
        ingest = self._ingest
        if ingest is not None and ingest.end > ingest.noted[0]:
            ingest.end, ingest.synced = ingest.noted[0], min(ingest.synced, ingest.noted[0])
            try:
                os.ftruncate(ingest.fd, ingest.end)
            except OSError:
                self._ingest = None  # its tail is unknown: never write behind it again

    def close_ingest(self, db: sqlite3.Connection) -> None:
        """In a last write transaction: our file is whole and synced."""
        ingest = self._ingest
        if ingest is not None:
            FILES.put(db, FileRow(ingest.id, ingest.name, "closed", ingest.noted[0], ingest.noted[0]))

    def suspect(self, db: sqlite3.Connection, path: str) -> None:
        """After a failed sync, of our own file or another's: what it covered must be read back from the disk before it
        is believed. Our own is closed in any case: nothing more is written to it."""
        ingest = self._ingest
        if ingest is not None:
            FILES.put(db, FileRow(ingest.id, ingest.name, "suspect", *ingest.noted))
        for row in FILES.select(db, "WHERE name = ?", os.path.basename(path)):
            FILES.put(db, row._replace(state="suspect"))

    # -- reading: any thread -----------------------------------------------------------------------

    def read_into(self, file: int, view: memoryview, position: int) -> int:
        """Reads what there is at `position`; a vanished file is FileNotFoundError, for the caller to look again."""
        descriptor = self._descriptor(file)
        try:
            return disk.read_into(descriptor.fd, view, position)
        except OSError as error:
            raise disk.translate(error, self.path(file)) from error

    def path(self, file: int) -> Path:
        name = self._names.get(file)
        if name is None:
            with self.index.reading() as db:
                row = FILES.get(db, file)
            if row is None:
                raise FileNotFoundError(f"no data file {file}")
            if "/" in row.name or row.name.startswith("."):
                raise StorageError(path=row.name, why="not a name of a data file")
            name = self._names[file] = row.name
        return self.folder / name

    def _descriptor(self, file: int) -> _Descriptor:
        with self._lock:
            found = self._open.get(file)
            if found is not None:
                self._open.move_to_end(file)
                return found
        path = self.path(file)
        try:
            made = _Descriptor(disk.open_to_read(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk.translate(error, path) from error
        with self._lock:
            for other, held in list(self._open.items()):  # another process has unlinked it: let the disk have it back
                if os.fstat(held.fd).st_nlink == 0:
                    del self._open[other]
            self._open[file] = made
            while len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)
        return made

    def forget(self, file: int | None) -> None:
        """The file is gone."""
        with self._lock:
            self._open.pop(file or -1, None)
            self._names.pop(file or -1, None)

    def close(self) -> None:
        with self._lock:
            self._open.clear()
        if self._ingest is not None:
            os.close(self._ingest.fd)
            self._ingest = None
