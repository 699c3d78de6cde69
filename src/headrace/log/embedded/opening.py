"""Logs that this process has open: every handle on a directory shares one engine. Owns the opening of a directory, what
may not be one, and that a forked child uses nothing of its parent's."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ForkedProcess, InvalidArgument, LogMissing, NotALog, StorageError
from headrace.log.embedded.storage.catalog import Catalog
from headrace.log.embedded.storage.engine import Clock, Engine
from headrace.storage import disk

OURS = {"log.db", "log.db-wal", "log.db-shm", "log.making", "lock", "data", "wake", "reserve", "keys.db", "views.db"}
OURS |= {"snapshots.db", "spark.log"}

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
        return Engine(home, identity, upkeep=_upkeep, create=create, clock_us=clock_us)


def _upkeep(engine: Engine, stopped: Callable[[], bool]) -> bool:
    from headrace.log.embedded.upkeep import rounds  # Arrow comes with it: not for those who only list topics

    return rounds.in_background(engine, Catalog(engine), stopped)


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
