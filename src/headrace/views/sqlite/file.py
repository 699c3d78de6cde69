"""The SQLite file of the views: opened, written to in turn, checkpointed and closed. Owns the file, its locks and its
errors; does not know what is in it but that it is headrace's.

Write transactions of all processes take turns under a lock file, and so do checkpoints; readers never wait and see
whole commits only. Pages that rows have left are given back a few after each commit, so that nobody waits long."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import (
    Closed,
    DoesNotFit,
    ForkedProcess,
    HeadraceError,
    LogMissing,
    StorageError,
    UnsupportedFormat,
    ViewsDamaged,
)
from headrace.failpoints import reach
from headrace.storage import disk, sqlite
from headrace.storage.turnstile import Turnstile
from headrace.views.sqlite import exact, filling, kept
from headrace.views.sqlite.schema import MIGRATIONS, SCHEMA
from headrace.views.sqlite.values import order_decimals, register_converters

FILE = "views.db"
FORMAT = "6"
CHECKPOINT_BYTES = 256 << 20
CACHE_KIB = 256 << 10
BESIDE_CACHE_KIB = 32 << 10
FREE_SHARE, FREE_PAGES_MIN = 8, 1_024
"""An eighth of the file may be free, and 4 MB in any case: room for the rows of the next commits."""
PAGES_PER_STEP = 256
"""What is free beyond that is given back in steps, between which others may write: 1 MB, about 10 ms."""
TIME_SHARE = 0.25
"""After a commit there is one step, and more for this part of the time that the commit took."""
CLOSE_SECONDS = 2.0
"""So long a store that closes gives pages back."""


class _Gate:
    """One per file and process: threads exclude each other by a lock, processes by the turnstile. POSIX locks end when
    any descriptor of their file is closed: so all stores of a file share one, and the last of them closes it."""

    def __init__(self, home: Path) -> None:
        self.lock = threading.RLock()
        self.turnstile = Turnstile(home / "views.lock")
        self.stores = 0


_gates: dict[tuple[Path, int], _Gate] = {}
_gates_lock = threading.Lock()
_stores: weakref.WeakSet[ViewsFile] = weakref.WeakSet()
_inherited: set[Path] = set()
"""Files that were open in the parent when this process was forked."""


def _forget_in_child() -> None:
    """A child must neither use nor close what it inherited: closing a connection could reset the parent's files."""
    global _gates_lock
    _gates_lock = threading.Lock()
    for store in _stores:
        if not store._closed:
            for db in (store._db, *store._opened):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
            _inherited.add(store.path)


def refuse_inherited(path: Path) -> None:
    """SQLite would take the locks its copied memory speaks of for held, and they are not: once the parent closes the
    file, what the child commits is lost."""
    if path in _inherited:
        raise ForkedProcess(what=f"the views {path}")


os.register_at_fork(after_in_child=_forget_in_child)


class ViewsFile:
    """`views.db` of a directory, open for writing; made if there is none."""

    def __init__(self, home: Path) -> None:
        disk.make_directory(home)
        disk.refuse_remote(home)
        self.path = home.resolve() / FILE
        refuse_inherited(self.path)
        self._pid = os.getpid()
        self._closed = False
        self._problems: list[DoesNotFit] = []
        self._beside, self._opened = threading.local(), list[sqlite3.Connection]()
        with _gates_lock:
            gate = _gates.get((self.path, self._pid))
            if gate is None or not gate.turnstile.in_place():
                gate = _gates[self.path, self._pid] = _Gate(home)
            self._gate = gate
            gate.stores += 1
        try:
            self._open()
        except BaseException:
            self._leave_gate()
            raise
        _stores.add(self)
        disk.sync_directory(home)

    def _open(self) -> None:
        with self._gate.lock, self._typed(), self._gate.turnstile.writing():
            if not self.path.exists():
                os.close(disk.create(self.path))
            self._file = os.stat(self.path)
            self._db = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=sqlite.BUSY_SECONDS
            )
            try:
                self._prepare(self._db)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a file that has nothing in it yet
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        sqlite.make_safe(db)
        db.execute("PRAGMA temp_store=MEMORY")
        db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        exact.register(db, self._problems)
        kept.register(db)
        order_decimals(db)
        filling.register(db)
        db.execute("BEGIN IMMEDIATE")
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if not names:
            for statement in SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO _meta VALUES ('format', ?)", (FORMAT,))
        elif "_meta" not in names:
            raise UnsupportedFormat(path=str(self.path), why="it is a database, but not one of headrace's views")
        refuse_other_format(db, self.path)
        while (found := _format(db)) in MIGRATIONS:
            db.execute(MIGRATIONS[found])
            db.execute("UPDATE _meta SET value = ? WHERE name = 'format'", (str(int(found) + 1),))
        db.execute("COMMIT")

    def transaction(self, flow: str | None = None) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A write transaction, in turn, for what else belongs into this file: see `watching`."""
        return self._writing(flow)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """What is read is of one commit."""
        self._refuse_fork()  # whose lock may be held for ever
        with self._gate.lock, self._typed():
            self._usable()
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _reading_beside(self) -> Iterator[sqlite3.Connection]:
        """For reading while others of this process write: the store's own connection, whose cache is warm, if nobody
        uses it; else one of this thread's own. What two calls read may be of two commits."""
        self._refuse_fork()
        if self._gate.lock.acquire(blocking=False):
            try:
                if not self._db.in_transaction:  # of this thread: a commit that asks what it changes
                    with self._reading() as own:
                        yield own
                    return
            finally:
                self._gate.lock.release()
        self._usable()
        with self._typed():
            db = getattr(self._beside, "db", None)
            if db is None:
                db = self._beside.db = connected(self.path)
                db.execute(f"PRAGMA cache_size=-{BESIDE_CACHE_KIB}")
                self._opened.append(db)
            yield db

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The turn of this thread, and of this process. Asked before, too: of a store that is closed the lock is."""
        with self._gate.lock:
            self._usable()
            with self._gate.turnstile.writing():
                self._usable()
                yield

    @contextlib.contextmanager
    def _writing(self, flow: str | None = None) -> Iterator[sqlite3.Connection]:  # noqa: ARG002 (all take turns)
        with self._typed(), self._turn():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    self._db.execute("SELECT hr_widened()")  # forgets sums of rows that are not there
                if self._problems:
                    problem = self._problems[0]
                    self._problems.clear()
                    raise problem from error
                raise

    @contextlib.contextmanager
    def _sparing_space(self, db: sqlite3.Connection) -> Iterator[None]:
        """On a disk that is nearly full, deleted pages are not overwritten with zeros, as many a SQLite does by itself:
        the write-ahead log would need as much space as is deleted."""
        spare = disk.is_low(self.path.parent) and db.execute("PRAGMA secure_delete").fetchone() == (1,)
        if spare:
            db.execute("PRAGMA secure_delete=FAST")
        try:
            yield
        finally:
            if spare:
                db.execute("PRAGMA secure_delete=ON")

    def _give_back_for(self, seconds: float) -> None:
        """One step, and more until the time is over. What was committed is safe whatever becomes of this."""
        until = time.monotonic() + seconds
        with contextlib.suppress(sqlite3.Error, HeadraceError):  # closed by another thread meanwhile, or removed
            while self._gave_back() and time.monotonic() < until:
                pass

    def _gave_back(self) -> bool:
        """One step; False: there is no need."""
        with self._gate.lock:
            self._usable()
            if self._pages_beyond() <= 0:
                return False
            with self._turn():
                self._give_back()
            return True

    def _pages_beyond(self) -> int:
        """How many pages are free beyond what may be."""
        (free,), (pages,) = (self._db.execute(f"PRAGMA {of}_count").fetchone() for of in ("freelist", "page"))
        beyond: int = min(free - FREE_PAGES_MIN, free - pages // FREE_SHARE)
        return beyond

    def _give_back(self) -> None:
        """Moves pages from the end of the file to where it is free, and cuts it off there."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for _ in range(min(self._pages_beyond(), PAGES_PER_STEP)):
                self._db.execute("PRAGMA incremental_vacuum(1)")  # Python takes one step of it, whatever the number
            self._db.execute("COMMIT")
        finally:
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def wipe(self) -> list[str]:
        """The file is written anew, without what is free in it and in its pages."""
        with self._typed(), self._turn():
            self._db.execute("PRAGMA temp_store=DEFAULT")  # a copy of all that is in it, which memory may not hold
            try:
                self._db.execute("VACUUM")
            finally:
                self._db.execute("PRAGMA temp_store=MEMORY")
            reach("forget.vacuumed")
            emptied = sqlite.empty_wal(self._db)
        why = "a process is reading the views. Erase again in a moment"
        return [] if emptied else [f"the write-ahead log of {self.path.name}: {why}"]

    def _checkpoint_if_due(self) -> None:
        """Moves the write-ahead log into the file. A reader in the way is not waited for, and a disk in trouble is not
        the committer's: what it committed is safe where it is, and the next commit will try again."""
        if sqlite.wal_bytes(self.path) >= CHECKPOINT_BYTES:
            with contextlib.suppress(sqlite3.Error), self._turn():
                sqlite.empty_wal(self._db)

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.path) from error
        except OSError as error:
            raise disk.translate(error, error.filename or self.path) from error

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(what=f"the views {self.path}")

    def _usable(self) -> None:
        self._refuse_fork()
        if self._closed:
            raise Closed(what=f"the views {self.path}")
        if not self._in_place():
            why = "it was removed or replaced while open. Nothing was written: put it back, or open the views again"
            raise LogMissing(path=str(self.path), why=why)

    def _in_place(self) -> bool:
        """Whether the path still leads to the file that is open."""
        try:
            return os.path.samestat(os.stat(self.path), self._file)
        except OSError:
            return False

    def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._give_back_for(CLOSE_SECONDS)
        with self._gate.lock:
            if self._closed:  # by another thread meanwhile
                return
            self._closed = True
            with contextlib.suppress(sqlite3.Error), self._gate.turnstile.writing():
                sqlite.empty_wal(self._db)
            for db in (*self._opened, self._db):
                db.close()
        self._leave_gate()

    def _leave_gate(self) -> None:
        with _gates_lock:
            self._gate.stores -= 1
            if self._gate.stores == 0:
                self._gate.turnstile.close()
                if _gates.get((self.path, self._pid)) is self._gate:
                    del _gates[self.path, self._pid]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connected(path: Path, *, typed: bool = False) -> sqlite3.Connection:
    """A connection that cannot write. `typed`: a view's own columns come back as the types they have there."""
    refuse_inherited(path.resolve())
    register_converters()
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?{'immutable=1' if _at_rest(path) else 'mode=ro'}",
        uri=True,
        isolation_level=None,
        timeout=sqlite.BUSY_SECONDS,
        check_same_thread=False,
        detect_types=sqlite3.PARSE_DECLTYPES if typed else 0,
    )
    order_decimals(db)
    filling.register(db)
    return db


def _at_rest(path: Path) -> bool:
    """Whether nobody has the file open for writing, and we may not write beside it. SQLite would write: it makes the
    files of a write-ahead log even to read. While an app runs they are there, and it reads them as they are."""
    return not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()


def _format(db: sqlite3.Connection) -> str:
    (found,) = db.execute("SELECT value FROM _meta WHERE name = 'format'").fetchone() or ("none",)
    return str(found)


def refuse_other_format(db: sqlite3.Connection, path: Path) -> None:
    found = _format(db)
    if found != FORMAT and found not in MIGRATIONS:
        older = found.isdecimal() and int(found) < int(FORMAT)
        remove = f"rm {path} (and {path.name}-wal, {path.name}-shm, if there)"
        again = f"delete it, and run the apps: they make their views again from the log. {remove}, then headrace run"
        do = again if older else "upgrade headrace"
        raise UnsupportedFormat(path=str(path), why=f"written in format {found}, this headrace reads {FORMAT}: {do}")


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StorageError:
    """SQLite's errors, as ours. What is damaged can be made again from the log. A message of SQLite that quotes a
    damaged schema is none that Python can decode."""
    if isinstance(error, UnicodeDecodeError):
        return ViewsDamaged(path=str(path), why=f"SQLite quotes what is no text: {error.object!r}")
    if (full := sqlite.full_disk(error, path)) is not None:
        return full
    code = sqlite.error_name(error)
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return ViewsDamaged(path=str(path), why=f"SQLite says: {error}")
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        cannot = "written" if code.startswith("SQLITE_READONLY") else "opened"
        why = f"cannot be {cannot}: look at the permissions of it and its directory ({error})"
        return StorageError(path=str(path), why=why)
    return StorageError(path=str(path), why=f"{error} ({code or type(error).__name__})")
