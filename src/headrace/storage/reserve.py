"""Disk space reserved for a full disk, because deleting needs some, too. Owns one file of the home, which is allocated
and never read. A process that meets a full disk removes it, frees space, and creates it again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.storage import disk

RESERVE_BYTES = 4 << 20
SHARE = 16
"""Of a disk below 64 MiB this part."""


@contextlib.contextmanager
def to_free_space(home: Path) -> Iterator[None]:
    """Releases the reserve on a full disk, for a deletion from a file of the home other than the log's."""
    reserve = Reserve(home)
    released = home.is_dir() and disk.free_bytes(home) < RESERVE_BYTES and reserve.release()
    try:
        yield
    finally:
        if released:
            reserve.make()


class Reserve:
    def __init__(self, home: Path) -> None:
        self._path = home / "reserve"

    def make(self) -> bool:
        """Creates the reserve if it does not exist. True if it exists now."""
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size:  # empty: whoever made it did not come to allocate it
                return True
            found = os.statvfs(self._path.parent)
            self._allocate(min(RESERVE_BYTES, found.f_blocks * found.f_frsize // SHARE))
            return True
        return False

    def _allocate(self, size: int) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, disk.FILE_MODE)
        try:
            disk.allocate(fd, size)
        except OSError:
            os.unlink(self._path)
            raise
        finally:
            os.close(fd)

    def release(self) -> bool:
        """Removes the reserve. True if it existed."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
