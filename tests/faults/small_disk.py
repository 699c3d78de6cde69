"""A real file system that is small, for one process: a tmpfs that only it sees, and that is gone with it. Owns how it
is mounted and filled. Needs Linux, and root or user namespaces."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

NEW_NAMES, NEW_USER = 0x00020000, 0x10000000
RECURSIVE, PRIVATE, DETACH = 1 << 14, 1 << 18, 2


class Unavailable(Exception):
    """This machine lets nobody mount one; the message says why."""


def become_alone() -> None:
    """In a process of one thread: from now on it mounts what only it sees."""
    if not sys.platform.startswith("linux"):
        raise Unavailable("needs Linux")
    uid, gid = os.getuid(), os.getgid()
    _done(_libc().unshare(NEW_NAMES if uid == 0 else NEW_NAMES | NEW_USER), "unshare")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _done(_libc().mount(b"none", b"/", None, RECURSIVE | PRIVATE, None), "mount")


def mount(path: Path, *, size_bytes: int, inodes: int) -> None:
    """From now on `path` is a disk of its own, with so many bytes and files."""
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},nr_inodes={inodes},mode=0700".encode()
    _done(_libc().mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options), "mount")


def unmount(path: Path) -> None:
    _done(_libc().umount2(os.fsencode(path), DETACH), "umount")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _done(result: int, what: str) -> None:
    if result != 0:
        raise Unavailable(f"{what}: {os.strerror(ctypes.get_errno())}")


def fill(path: Path) -> Path:
    """Takes all the space there is left, in one file."""
    filler = path / "filler"
    with open(filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def fill_inodes(path: Path) -> None:
    """Makes files, each empty, until there can be none more."""
    path.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (path / str(number)).touch()
