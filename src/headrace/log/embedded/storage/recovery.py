"""What is done when a log is opened after somebody's crash. Owns the checks that the index and the data
files belong together, and the closing of files whose process is gone. Changes nothing that was acknowledged
at its durability: only bytes never synced can be found missing, and then only after a power loss.

    the index is older than the data files know of      → IndexBehindLog, nothing is touched
    a file of a process that is gone                    → synced and closed
    unsynced frames after a reboot or a failed sync     → checked; from the first bad one on, the partition's tail is
                                                          cut, its offsets never used again, and the cut reported;
                                                          what was appended together is cut together"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import IndexBehindLog
from headrace.log.embedded.storage.committer import Committer, Tx, is_small
from headrace.log.embedded.storage.frames import HEADER_BYTES, JOINED, BadFrame, Header
from headrace.log.embedded.storage.index import (
    BATCHES,
    FILES,
    PARTITIONS,
    TOPICS,
    BatchRow,
    FileRow,
    Index,
    last_commit,
)
from headrace.storage import disk
from headrace.storage.turnstile import Mark, Turnstile

LEFTOVER_SECONDS = 60.0
"""A file the index does not know is removed after this long: its process died between creating and registering it."""

logger = logging.getLogger("headrace.log")


@dataclass(frozen=True, slots=True)
class Cut:
    """Records of an `os` topic that a power loss took."""

    topic: str
    partition: int
    start: int
    stop: int


def check_index_is_newest(index: Index, folder: Path, turnstile: Turnstile, boot: str) -> None:
    """Read the data files' knowledge first, then the index: whoever commits meanwhile only makes the index newer."""
    mark = turnstile.mark()
    with index.reading() as db:
        known_files = {row.name: row for row in FILES.select(db)}
    highest = _known_by_mark(mark, boot)
    for name in sorted(os.listdir(folder)):
        row = known_files.get(name)
        if row is None or row.state != "closed":
            for header in _frames_behind(folder / name, row.committed if row else 0):
                highest = max(highest, header.commit_known)
    with index.reading() as db:
        commit = last_commit(db, index.path).number
    if highest > commit:
        raise IndexBehindLog(
            path=str(index.path), why=f"it ends at commit {commit}, but the data files know of commit {highest}"
        )


def _known_by_mark(mark: Mark | None, boot: str) -> int:
    if mark is None:
        return 0
    return mark.commit if mark.boot == boot else mark.synced


def settle(index: Index, folder: Path, turnstile: Turnstile, committer: Committer, boot: str) -> list[Cut]:
    """Closes the files of processes that are gone. Returns what a power loss took, which is also logged."""
    with turnstile.settling():  # in turn: whoever opens meanwhile must not be first to leave a mark of this boot
        return _settled(index, folder, turnstile, committer, boot)


def _settled(index: Index, folder: Path, turnstile: Turnstile, committer: Committer, boot: str) -> list[Cut]:
    mark = turnstile.mark()
    rebooted = mark is None or mark.boot != boot  # the mark is never synced: a power loss may take it, too
    with index.reading() as db:
        unsettled = FILES.select(db, "WHERE synced < committed OR state <> 'closed'")
    dead: list[tuple[FileRow, int]] = []
    for row in unsettled:
        if row.state == "closed" and not rebooted:
            continue  # unsynced, but whole in the page cache: the next synced commit sees to it
        fd = _lock_of_dead(folder / row.name)
        if fd is not None:
            dead.append((row, fd))
    cuts: list[Cut] = []
    try:
        if dead:
            cuts = committer.run(lambda tx: _settle(tx, folder, dead, rebooted), synced=True)
        remove_leftovers(index, folder)
    finally:
        for _, fd in dead:
            if fd >= 0:
                os.close(fd)
    for cut in cuts:
        logger.warning(
            "%s/%d: offsets %d..%d were lost with the power (durability 'os'); the log goes on at %d",
            cut.topic,
            cut.partition,
            cut.start,
            cut.stop,
            cut.stop,
        )
    return cuts


def _settle(tx: Tx, folder: Path, dead: list[tuple[FileRow, int]], rebooted: bool) -> list[Cut]:
    bad: dict[Place, int] = {}
    alone: list[BatchRow] = []
    unsynced: dict[int, int] = {}  # the files some of whose frames may be bad, and where those begin
    for found, fd in dead:
        # As it is now: when we looked, its process may have been alive, and has closed it since; or it was reclaimed.
        row = FILES.get(tx.db, found.id)
        if row is None or row.id is None:
            continue
        unsynced[row.id] = row.synced
        doubted = rebooted or row.state == "suspect"
        if doubted and fd >= 0 and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # what the page cache shows may never have been written
        if doubted and row.synced < row.committed:
            for batch in BATCHES.select(tx.db, "WHERE file = ? AND position >= ?", row.id, row.synced):
                if _whole(fd, batch):
                    continue
                if row.state == "suspect":  # others may have gone on, and synced what they appended behind it
                    alone.append(batch)
                else:
                    place = (batch.topic, batch.partition)
                    bad[place] = min(bad.get(place, batch.base), batch.base)
            row = row._replace(committed=_held(fd, row))
        if fd >= 0:
            disk.sync(fd, folder / row.name)
        if fd < 0 and row.committed == 0:
            FILES.delete(tx.db, "WHERE id = ?", row.id)
        else:
            FILES.put(tx.db, row._replace(state="closed", synced=row.committed))
    _widen(tx, bad, unsynced)
    cuts = [_cut(tx, _tail(tx, place, base)) for place, base in sorted(bad.items())]
    gone = [batch for batch in alone if batch.base < bad.get((batch.topic, batch.partition), batch.next)]
    return cuts + [_cut(tx, [batch]) for batch in gone]


Place = tuple[int, int]  # topic, partition


def _tail(tx: Tx, place: Place, base: int) -> list[BatchRow]:
    return BATCHES.select(tx.db, "WHERE topic = ? AND partition = ? AND base >= ? ORDER BY base", *place, base)


def _widen(tx: Tx, bad: dict[Place, int], unsynced: dict[int, int]) -> None:
    """What was appended together goes together: a cut in one partition cuts the others a transaction wrote to. It was
    synced together, too: nothing that was can have to do with what was not."""
    files: dict[int, list[list[BatchRow]]] = {}
    todo = list(bad)
    while todo:
        place = todo.pop()
        for batch in _tail(tx, place, bad[place]):
            for other in _appended_with(tx, files, unsynced, batch):
                there = (other.topic, other.partition)
                if there not in bad or other.base < bad[there]:
                    bad[there] = other.base
                    todo.append(there)


def _appended_with(
    tx: Tx, files: dict[int, list[list[BatchRow]]], unsynced: dict[int, int], batch: BatchRow
) -> list[BatchRow]:
    """All batches of the append or transaction `batch` is of: they lie behind each other in one file. (Where retention
    has deleted the first of them, the others seem to belong to what lies before it: then that goes, too.)"""
    if batch.file is None or batch.file not in unsynced:
        return []
    if batch.file not in files:
        runs: list[list[BatchRow]] = []
        begin = unsynced[batch.file]
        for row in BATCHES.select(tx.db, "WHERE file = ? AND position >= ? ORDER BY position", batch.file, begin):
            if row.flags & JOINED and runs:
                runs[-1].append(row)
            else:
                runs.append([row])
        files[batch.file] = runs
    return next((run for run in files[batch.file] if batch in run), [])


def _cut(tx: Tx, rows: list[BatchRow]) -> Cut:
    """Replaces neighbouring batches of one partition by one row that says they are gone."""
    first, last = rows[0], rows[-1]
    topic, partition = first.topic, first.partition
    BATCHES.delete(
        tx.db, "WHERE topic = ? AND partition = ? AND base BETWEEN ? AND ?", topic, partition, first.base, last.base
    )
    gone = first._replace(next=last.next, records=0, file=None, position=0, length=0, body_crc=0, plain_bytes=0)
    BATCHES.add(tx.db, gone._replace(event_min=None, event_max=None, arrived=last.arrived, flags=0))
    state = PARTITIONS.get(tx.db, topic, partition)
    assert state is not None
    held = {
        "records": state.records - sum(b.records for b in rows),
        "bytes": state.bytes - sum(b.length for b in rows),
        "small": state.small - sum(is_small(b) for b in rows),
    }
    PARTITIONS.put(tx.db, state._replace(**held))
    row = TOPICS.get(tx.db, topic)
    name = row.name if row is not None and row.name is not None else f"topic {topic}"
    return Cut(name, partition, first.base, last.next)


def _held(fd: int, row: FileRow) -> int:
    """How far the file reaches after a power loss: never below what was synced, or that is damage."""
    return max(row.synced, min(row.committed, os.fstat(fd).st_size if fd >= 0 else 0))


def _whole(fd: int, batch: BatchRow) -> bool:
    if fd < 0:
        return False
    raw = os.pread(fd, batch.length, batch.position)
    with contextlib.suppress(BadFrame):
        Header.unpack(raw[:HEADER_BYTES])
        return len(raw) == batch.length and zlib.crc32(raw[HEADER_BYTES:]) == batch.body_crc
    return False


def _lock_of_dead(path: Path) -> int | None:
    """A descriptor holding the file's lock when the process that wrote it is gone; None when it lives; -1: no file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise disk.translate(error, path) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _frames_behind(path: Path, position: int) -> Iterator[Header]:
    """The whole frames from `position` on: written, and maybe never committed."""
    try:
        fd = disk.open_to_read(path)
    except FileNotFoundError:
        return
    try:
        while True:
            try:
                header = Header.unpack(os.pread(fd, HEADER_BYTES, position))
            except BadFrame:
                return
            length = HEADER_BYTES + header.length
            position += length + -length % 64
            yield header
    finally:
        os.close(fd)


def remove_leftovers(index: Index, folder: Path) -> list[str]:
    """Files the index does not know, once they are old enough not to be somebody's next one. Says which stay."""
    found = os.listdir(folder)  # before the index: a file it does not know then was not registered before
    with index.reading() as db:
        known = {name for (name,) in db.execute("SELECT name FROM files")}
    unknown = sorted(set(found) - known)
    if unknown:
        with index.reading() as db:  # damage: then one of them may be the file that batches need
            missed = "SELECT file FROM batches WHERE file NOT IN (SELECT id FROM files) LIMIT 1"
            if damaged := db.execute(missed).fetchone():
                return [f"{folder / name}: not known, but the index misses data file {damaged[0]}" for name in unknown]
    staying = []
    for name in unknown:
        path = folder / name
        with contextlib.suppress(OSError):
            fd = _lock_of_dead(path) if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS else None
            if fd is None:
                staying.append(f"{path}: not known, but too new to be removed. Try again in a minute")
            elif fd >= 0:
                path.unlink()
                os.close(fd)
    return staying
