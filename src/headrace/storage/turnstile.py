"""One writer at a time, in turn: the lock under which every write transaction and every checkpoint runs.
Owns the file `lock` (four byte ranges and a commit mark). Does not know SQLite.

A writer takes the turn, takes the writer's place, and gives up the turn. The one that waits for the place holds the
turn, so a busy neighbour cannot overtake it. POSIX record locks end with their process, and a forked child does not
inherit them. They do not exclude threads: only a process's one committer enters.

The mark is the last commit number, written while the place is held. It is not synced: after a crash of the
process it is exact, after a power loss only its synced number is to be believed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.storage import disk

_TURN, _PLACE, _SETTLING, _UPKEEP, _MARK_AT = 0, 1, 2, 3, 64
_MARK = struct.Struct("<QQ48s")
_FLOCK = struct.Struct("hhqqi0q")  # Linux's: kind, whence, start, length, process


@dataclass(frozen=True, slots=True)
class Mark:
    commit: int
    synced: int
    boot: str


class Turnstile:
    def __init__(self, path: Path) -> None:
        self._path = path
        with disk.typed(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, disk.FILE_MODE)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        self._take(_TURN)
        try:
            self._take(_PLACE)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _TURN)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _PLACE)

    @contextlib.contextmanager
    def settling(self) -> Iterator[None]:
        """One opening process at a time looks after what others left behind."""
        self._take(_SETTLING)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _SETTLING)

    @contextlib.contextmanager
    def upkeep(self, *, wait: bool) -> Iterator[bool]:
        """One process at a time rewrites; False: somebody else is at it, and `wait` is not wanted."""
        if wait:
            self._take(_UPKEEP)
        else:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _UPKEEP)
            except OSError:
                yield False
                return
        try:
            yield True
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _UPKEEP)

    def _take(self, byte: int) -> None:
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)
                return
            except OSError as error:
                # The kernel thinks of processes, not threads: two processes that write to the same two logs look
                # like a deadlock to it, while different threads wait and will go on.
                if error.errno != errno.EDEADLK:
                    raise
                time.sleep(0.001)

    def in_place(self) -> bool:
        """Whether the path still leads to this lock: processes that opened another would not take turns with us."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

    def holder(self) -> int | None:
        """The process whose turn it is, when it is another's and the system tells."""
        if sys.platform != "linux":
            return None
        for byte in (_PLACE, _TURN):
            asked = fcntl.fcntl(self._fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
            kind, _, _, _, pid = _FLOCK.unpack(asked)
            if kind != fcntl.F_UNLCK:
                return int(pid)
        return None

    def leave_mark(self, mark: Mark) -> None:
        raw = _MARK.pack(mark.commit, mark.synced, mark.boot.encode()[:48])
        os.pwrite(self._fd, raw + struct.pack("<I", zlib.crc32(raw)), _MARK_AT)

    def mark(self) -> Mark | None:
        """The last mark; None when there is none or it is damaged (the index then stands alone)."""
        raw = os.pread(self._fd, _MARK.size + 4, _MARK_AT)
        if len(raw) < _MARK.size + 4 or struct.unpack_from("<I", raw, _MARK.size)[0] != zlib.crc32(raw[: _MARK.size]):
            return None
        commit, synced, boot = _MARK.unpack_from(raw)
        return Mark(commit, synced, boot.rstrip(b"\0").decode("ascii", "replace"))

    def close(self) -> None:
        os.close(self._fd)
