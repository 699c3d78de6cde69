"""Files copied for keeping: bytes and their checksum in one pass, synced, for their owner alone. Owns the names that a
copy may have, and that neither a link nor a name leads out of its directory. Does not know what is in the files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import DamagedBackup, StorageError
from headrace.storage import disk

__all__ = ["Copied", "Told", "copy_bytes", "folder_in_place", "hashed", "open_inside"]

CHUNK_BYTES = 4 << 20
_NAME = re.compile(r"(?:(?:data|outbox)/)?[A-Za-z0-9][A-Za-z0-9._-]{0,200}")

Told = Callable[[int], object]
"""Called with the number of bytes that were done since the last call."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A file of a copy: its name below the directory, its length and its SHA-256."""

    name: str
    bytes: int
    sha256: str


def open_inside(folder: Path, name: str) -> int:
    """A regular file of the directory, for reading. No part of the name may be a link, or lead elsewhere."""
    path = folder / name
    if not _NAME.fullmatch(name):
        raise DamagedBackup(path=str(path), why="this is no name of a file that a backup has")
    parent, _, last = name.rpartition("/")
    try:
        at = os.open(folder / parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise DamagedBackup(path=str(path), why="it is not a regular file")
    except OSError as error:
        raise DamagedBackup(path=str(path), why=f"it cannot be read: {os.strerror(error.errno or 0)}") from error
    return fd


def copy_bytes(source: int, target: Path, length: int, name: str, told: Told) -> Copied:
    """The first `length` bytes of an open file, as a new file. What is zeros takes no space, as in the source."""
    found = hashlib.sha256()
    fd = disk.create(target)
    try:
        for at, chunk in _chunks(source, length, name):
            found.update(chunk)
            if chunk.count(0) != len(chunk):
                with disk.typed(target):
                    disk.write_at(fd, [chunk], at)
            told(len(chunk))
        with disk.typed(target):
            os.ftruncate(fd, length)
        disk.sync(fd, target)
    finally:
        os.close(fd)
    return Copied(name, length, found.hexdigest())


def hashed(path: Path, name: str, told: Told = lambda _: None) -> Copied:
    """A file that is there."""
    found = hashlib.sha256()
    with disk.typed(path):
        fd = disk.open_to_read(path)
    try:
        length = os.fstat(fd).st_size
        for _, chunk in _chunks(fd, length, name):
            found.update(chunk)
            told(len(chunk))
    finally:
        os.close(fd)
    return Copied(name, length, found.hexdigest())


def _chunks(fd: int, length: int, name: str) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < length:
        chunk = os.pread(fd, min(CHUNK_BYTES, length - at), at)
        if not chunk:
            raise StorageError(path=name, why=f"it ends at byte {at} of {length}")
        yield at, chunk
        at += len(chunk)


@contextlib.contextmanager
def folder_in_place(target: Path, ours: Collection[str]) -> Iterator[Path]:
    """A directory that is filled under another name, and has its own when the block ends: `target` is whole, or not
    there. What an earlier run left is removed first; `ours`: the names that it can have."""
    target = target.absolute()
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        raise StorageError(path=str(target), why="it is there already, and is not overwritten. Name a new directory")
    making = target.with_name(f".{target.name}.making")
    disk.make_directory(target.parent) if not target.parent.exists() else None
    with disk.typed(making):
        with contextlib.suppress(FileExistsError):
            making.mkdir(mode=disk.DIRECTORY_MODE)
        held = os.open(making, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(path=str(making), why="another process is making it. Wait until it has ended") from None
        _empty(making, ours)
        try:
            yield making
            with disk.typed(target):
                for folder in (*(path for path in making.iterdir() if path.is_dir()), making):
                    disk.sync_directory(folder)
                os.rename(making, target)
            disk.sync_directory(target.parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    finally:
        os.close(held)


def _empty(making: Path, ours: Collection[str]) -> None:
    with disk.typed(making):
        found = list(making.iterdir())
        if others := sorted(path.name for path in found if path.name not in ours):
            raise StorageError(path=str(making), why=f"it holds {others[0]}, which is not of a copy. Remove it")
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
