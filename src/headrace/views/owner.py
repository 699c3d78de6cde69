"""Who runs a flow: one process at a time. Owns a lock file per flow below `flows/` in the home, which ends with its
holder's process. Where several homes share a store, a lease in the store comes with it. Who takes over without them is
safe all the same, because the old holder's epoch is refused by the store."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headrace.errors import AlreadyRunning
from headrace.storage import disk

FOLDER = "flows"
LOOK_AGAIN_SECONDS = 0.2


class Leases(Protocol):
    """Of a store that several homes share: by name, held until released, or until the holder gives no sign any more."""

    def take(self, name: str, *, wait: Callable[[], bool] | None = None, take_over: bool = False) -> None: ...

    def is_held(self, name: str) -> bool: ...

    def names(self, prefix: str) -> list[str]: ...

    def release(self, name: str) -> None: ...


class FlowLock:
    """Held from `take` to `release`. Not inherited by children, and not shared by two holders in one process."""

    def __init__(self, home: Path, flow: str, leases: Leases | None = None) -> None:
        self._flow, self._leases = flow, leases
        self._path = lock_file(home, flow)
        self._fd = -1

    def take(self, *, wait: Callable[[], bool] | None = None, take_over: bool = False) -> None:
        """AlreadyRunning when another holds it; or waits, as long as `wait()` says so; or goes on without it."""
        self._take_in_home(wait, take_over=take_over)
        if self._leases is not None:
            try:
                self._leases.take(self._flow, wait=wait, take_over=take_over)
            except BaseException:
                self._release_in_home()
                raise

    def _take_in_home(self, wait: Callable[[], bool] | None, *, take_over: bool) -> None:
        disk.make_directory(self._path.parent)
        with disk.typed(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, disk.FILE_MODE)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if take_over:
                    os.close(fd)
                    return
                if wait is None or not wait():
                    pid, host = _holder(fd)
                    os.close(fd)
                    raise AlreadyRunning(flow=self._flow, pid=pid, host=host) from None
                time.sleep(LOOK_AGAIN_SECONDS)
                continue
            self._fd = fd
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
            return

    def is_held(self) -> bool:
        """Whether another holds it."""
        try:
            self._take_in_home(None, take_over=False)
        except AlreadyRunning:
            return True
        self._release_in_home()
        return self._leases is not None and self._leases.is_held(self._flow)

    def release(self) -> None:
        if self._leases is not None:
            self._leases.release(self._flow)
        self._release_in_home()

    def _release_in_home(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_held(home: Path, name: str) -> bool | None:
    """Whether a process of this machine holds the lock, without taking it: whoever wants it is not disturbed. None if
    the system does not say."""
    try:
        found = os.stat(lock_file(home, name))
        held = Path("/proc/locks").read_text("ascii")
    except FileNotFoundError:
        return False if Path("/proc/locks").exists() else None
    except OSError:
        return None
    own = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any("FLOCK" in line and own in line.split() for line in held.splitlines())


def lock_file(home: Path, name: str) -> Path:
    return home / FOLDER / f"{name.replace('/', '~')}.lock"  # a version's: no name has either


def _holder(fd: int) -> tuple[int, str]:
    with contextlib.suppress(ValueError, OSError, TypeError, KeyError):
        found = json.loads(os.pread(fd, 1000, 0))
        return int(found["pid"]), str(found["host"])
    return 0, "an unknown host"
