"""One log, opened once per process: every handle on the same directory shares it. Owns the directory's
layout, its opening and closing, and the refusal to work in a forked child. Knows the parts, not what they are
used for.

    log.db      the index (SQLite)            data/     frames
    lock        turnstile and commit mark     wake/     one file per topic, touched after its commits
    reserve     space for when there is none"""

from __future__ import annotations

import ctypes
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headrace.errors import (
    Closed,
    DiskFull,
    ForkedProcess,
    IndexDamaged,
    InvalidArgument,
    LogMissing,
    NotALog,
    StorageError,
)
from headrace.log.embedded import recovery
from headrace.log.embedded.background import Background
from headrace.log.embedded.clock import Reading, machine_reading
from headrace.log.embedded.committer import Committer, Job
from headrace.log.embedded.datafiles import DataFiles
from headrace.log.embedded.index import Index
from headrace.log.embedded.waiting import Wakes
from headrace.storage import disk
from headrace.storage.reserve import Reserve
from headrace.storage.turnstile import Turnstile

OURS = {"log.db", "log.db-wal", "log.db-shm", "log.making", "lock", "data", "wake", "reserve", "views.db"}


Clock = Callable[[], int]
"""Microseconds since the epoch: what records' arrival is stamped with."""


GIVEN = "given"
"""The boot of a log whose caller brings the clock: time is what that clock says, and no other clock contradicts it."""


def _open_index(path: Path, reserve: Reserve) -> Index:
    """SQLite makes two files beside the index when it is opened: on a full disk the reserve has room for them."""
    try:
        return Index(path)
    except DiskFull:
        if not reserve.release():
            raise
        return Index(path)


class Engine:
    def __init__(self, home: Path, identity: tuple[int, int], *, create: bool, clock_us: Clock | None = None) -> None:
        self.home, self.identity = home, identity
        self.given_clock_us = clock_us
        self.pid = os.getpid()
        self.users = 0
        self.boot = disk.boot_id()
        self.data = home / "data"
        turnstile = None
        try:
            turnstile = self.turnstile = Turnstile(home / "lock")
            if create and not (home / "log.db").exists():
                self._create()
            if not self.data.is_dir():
                raise LogMissing(path=str(self.data), why="the data files are gone. Restore them from a backup")
            reserve = Reserve(home)
            self.index = _open_index(home / "log.db", reserve)
        except BaseException:
            if turnstile is not None:
                turnstile.close()
            raise
        self.files = DataFiles(self.data, self.index)
        self.wakes = Wakes(home / "wake")
        self.committer = Committer(
            self.index,
            self.files,
            self.turnstile,
            reserve=reserve,
            boot=self.boot,
            wake=self.wakes.wake,
            clock=self.clock,
        )
        self.upkeep_lock = threading.Lock()
        self.background = Background(self)
        self.committer.after_commit = self.background.poke
        self.closed = False
        try:
            recovery.check_index_is_newest(self.index, self.data, self.turnstile, self.boot)
            self._settle()
        except BaseException:
            self.close()
            raise

    def clock(self) -> Reading:
        if self.given_clock_us is None:
            return machine_reading(self.boot)
        now_us = self.given_clock_us()
        return Reading(now_us, GIVEN, now_us)

    def clock_us(self) -> int:
        return self.clock().now_us

    def _settle(self) -> None:
        try:
            recovery.settle(self.index, self.data, self.turnstile, self.committer, self.boot)
        except DiskFull as error:  # reading goes on; the next opening settles
            recovery.logger.warning("%s", error)

    def _create(self) -> None:
        with self.turnstile.writing():
            if (self.home / "log.db").exists():
                return  # somebody else was first
            if self.data.is_dir() and any(self.data.iterdir()):
                raise IndexDamaged(path=str(self.home / "log.db"), why="the index is missing, but there are data files")
            disk.make_directory(self.data)
            disk.make_directory(self.home / "wake")
            Index.create(self.home / "log.db", uuid.uuid4().hex)

    def check(self) -> None:
        """Before anything is done through this engine."""
        if os.getpid() != self.pid:
            raise ForkedProcess(what=f"the log {self.home}")
        if self.closed:
            raise Closed(what=f"the log {self.home}")

    def submit(self, job: Job) -> Future[Any]:
        self.check()
        return self.committer.submit(job)

    def close(self) -> None:
        if self.closed or os.getpid() != self.pid:
            return
        self.background.stop()
        self.closed = True
        try:
            self.committer.close()
        finally:
            self.wakes.close()
            self.files.close()
            self.index.close()
            self.turnstile.close()


_engines: dict[tuple[int, int], Engine] = {}
_lock = threading.Lock()
_inherited: list[Engine] = []
"""Open in the parent when this process was forked. SQLite remembers its locks in memory, which a fork copies, and the
system's locks, which it does not: what a child wrote to such a log would be lost when its parent closes it."""


def acquire(home: Path, *, create: bool, clock_us: Clock | None = None) -> Engine:
    """The engine of this directory; the first caller opens it, with its clock. Pair with `release`."""
    with _lock:
        identity = _prepare(home, create=create)
        if any(engine.identity == identity for engine in _inherited):
            raise ForkedProcess(what=f"the log {home}")
        engine = _engines.get(identity)
        if engine is None or not _is_of(engine, home):
            engine = _engines[identity] = _open(home, identity, create=create, clock_us=clock_us)
        elif clock_us is not None and engine.given_clock_us is not clock_us:
            raise InvalidArgument("clock_us", clock_us, f"the log {home} is open in this process with another clock")
        engine.users += 1
        return engine


def _is_of(engine: Engine, home: Path) -> bool:
    """A directory that was removed and made anew may have the old one's inode number; its index is another file."""
    try:
        return os.stat(home / "log.db").st_ino == engine.index.inode
    except OSError:
        return False


def _open(home: Path, identity: tuple[int, int], *, create: bool, clock_us: Clock | None) -> Engine:
    with disk.typed(home):
        return Engine(home, identity, create=create, clock_us=clock_us)


def release(engine: Engine) -> None:
    with _lock:
        engine.users -= 1
        if engine.users == 0 and os.getpid() == engine.pid:
            if _engines.get(engine.identity) is engine:
                del _engines[engine.identity]
            engine.close()


def _prepare(home: Path, *, create: bool) -> tuple[int, int]:
    try:
        found = os.stat(home)
    except FileNotFoundError:
        if not create:
            raise LogMissing(path=str(home), why="there is no log here") from None
        disk.make_directory(home)
        found = os.stat(home)
    except OSError as error:
        raise disk.translate(error, home) from error
    if not os.path.isdir(home):
        raise NotALog(path=str(home), why="it is a file; a log is a directory")
    with disk.typed(home):
        names = set(os.listdir(home))
    if not (home / "log.db").exists():
        if names and not names & OURS:
            raise NotALog(path=str(home), why="the directory holds other things. Name one that is empty or new")
        if not create:
            raise LogMissing(path=str(home), why="there is no log here")
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise StorageError(path=str(home), why=f"it belongs to user {found.st_uid}, not to you: a log has one owner")
    disk.refuse_remote(home)
    return found.st_dev, found.st_ino


def _forget_in_child() -> None:
    """A child must neither use nor close what it inherited: closing a connection could reset the parent's files."""
    global _lock
    _lock = threading.Lock()
    for engine in _engines.values():
        for connection in engine.index.abandon():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _inherited.extend(_engines.values())
    _engines.clear()


os.register_at_fork(after_in_child=_forget_in_child)
