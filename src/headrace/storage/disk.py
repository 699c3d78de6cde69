"""Files as log and views need them: whole writes, named syncs, typed errors. Owns how bytes reach the disk.
Does not know frames, SQLite or topics. Every OSError leaves here as one of headrace's own errors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import (
    DiskFull,
    LogMissing,
    StorageError,
    SyncFailed,
    TooManyFiles,
    UnsupportedFilesystem,
)

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
IOV_MAX = 512

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FILES = {errno.EMFILE, errno.ENFILE}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def translate(error: OSError, path: str | Path) -> StorageError:
    """The one place where the operating system's errors become headrace's."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return DiskFull(path=str(path), why=why if (missing := shortage(path)) is None else missing)
    if error.errno in _FILES:
        return TooManyFiles(path=str(path), why=f"{why}: raise the limit ('ulimit -n') or close logs you do not need")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return LogMissing(path=str(path), why=f"{why}: it was removed, or never existed. It is not created again")
    if error.errno in _DENIED:
        why += ". headrace writes here even to read (locks): run it as the owner of these files"
    return StorageError(path=str(path), why=why)


def shortage(path: str | Path) -> str | None:
    """What the disk at `path` has no more of, in words; None when it has both space and inodes."""
    try:
        found = os.statvfs(os.path.dirname(path))
    except OSError:
        return None
    if found.f_files and not found.f_favail:
        free = found.f_bavail * found.f_frsize
        return f"no inodes left, so no file can be created ({free} bytes are free; see df -i): remove files"
    return None if found.f_bavail else "no space left on device"


@contextlib.contextmanager
def typed(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(error, path) from error


def create(path: Path) -> int:
    """A new file for reading and writing; its directory entry is not synced yet."""
    with typed(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def open_to_read(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def allocate(fd: int, size: int) -> None:
    """Takes `size` bytes of the disk for the file: really, not as a hole."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        write_at(fd, [bytes(size)], 0)


PUNCH_HOLE = 0x02 | 0x01  # keep the file's size
LOW_BYTES = 64 << 20


def is_low(path: Path) -> bool:
    """Whether so little space is left that it is worth work to get some back."""
    return free_bytes(path) < LOW_BYTES


def free_bytes(path: Path) -> int:
    with typed(path):
        found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def held_bytes(found: os.stat_result) -> int:
    """What a file takes, without its holes."""
    return min(found.st_size, 512 * found.st_blocks)


def punch(fd: int, begin: int, end: int) -> None:
    """Gives the disk back what lies there, without moving anything: it is zeros afterwards. Where the system cannot,
    it stays."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).fallocate(fd, PUNCH_HOLE, ctypes.c_long(begin), ctypes.c_long(end - begin))


def write_at(fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
    """Writes all parts at `position`, however the kernel cuts them; returns the position behind them."""
    pending = [memoryview(part).cast("B") for part in parts if len(part)]
    while pending:
        written = os.pwritev(fd, pending[:IOV_MAX], position)
        position += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
    return position


def read_into(fd: int, view: memoryview, position: int) -> int:
    """Fills `view` from `position`; returns how much there was."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], position + done)
        if count == 0:
            break
        done += count
    return done


def sync(fd: int, path: str | Path) -> None:
    """Data and size are on the platter afterwards, or SyncFailed; a failed sync is never tried again."""
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)
    except OSError as error:
        raise SyncFailed(path=str(path), why=f"sync failed: {os.strerror(error.errno or 0)}") from error


def sync_directory(path: Path) -> None:
    with typed(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        raise SyncFailed(path=str(path), why=f"sync failed: {os.strerror(error.errno or 0)}") from error
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Creates it for its owner only, and syncs the parent so that it stays."""
    with typed(path):
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        sync_directory(path.parent)


def boot_id() -> str:
    """Names this run of the operating system: page cache and monotonic clock live as long as it does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    try:  # macOS and the BSDs: the boot time is the name
        import subprocess

        return subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"


_REMOTE = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "beegfs",
    "gpfs",
    "webdav",
}


def refuse_remote(path: Path) -> None:
    """Locks and syncs mean too little on network and FUSE file systems: say so before anything is lost there."""
    kind = filesystem_of(path)
    if kind in _REMOTE or kind.startswith("fuse"):
        raise UnsupportedFilesystem(
            path=str(path),
            why=f"it is on a {kind} file system, whose locks and syncs cannot be relied on. "
            f"Put the log on a local disk (--home DIR)",
        )


def filesystem_of(path: Path) -> str:
    """The type of the file system `path` is on, '' where the system does not tell."""
    try:
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                left, _, right = line.partition(" - ")
                if left.split()[2] == wanted:
                    return right.split()[0]
    except (OSError, IndexError):
        pass
    return ""
