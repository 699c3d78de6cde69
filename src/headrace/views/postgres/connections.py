"""Connections to Postgres, and the transactions on them. Owns the sockets of this process, and how Postgres' errors
become headrace's. Does not know what is in the tables.

A connection has no state between two transactions: each says its schema and its time zone itself, nothing is prepared
or locked beyond it. So a pooler that lends connections for one transaction (pgbouncer) may stand between. A process
keeps a few connections that nobody uses, for whoever is next; a forked child uses none of them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.adapt import Buffer, Loader

from headrace.errors import DiskFull, DoesNotFit, HeadraceError, StorageError
from headrace.libpq import KEEPALIVE
from headrace.views.postgres.address import Address

__all__ = ["CommitUnknown", "Connection", "Pool", "pool_of", "quoted", "translate"]

IDLE_MAX = 4
IDLE_SECONDS = 60.0
CONNECT_SECONDS = 10
READS = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITES = "BEGIN ISOLATION LEVEL READ COMMITTED"
ASKS = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
"""For one statement of somebody else. Postgres takes its snapshot after it has found and locked the tables, so that no
switch to another version of a view comes between."""
STALLED_SECONDS = 60
"""A transaction that writes, and whose client says nothing for so long, is ended by the server: a process that was
paused, or cut off, holds its flow's row no longer."""
_SETTINGS = (
    "SET LOCAL search_path TO {schema}; SET LOCAL timezone TO 'UTC'; SET LOCAL datestyle TO 'ISO, YMD'; "
    "SET LOCAL extra_float_digits TO 1; SET LOCAL bytea_output TO 'hex'; SET LOCAL client_min_messages TO warning"
)


class CommitUnknown(StorageError):
    """The connection was lost after COMMIT was sent: nobody knows whether it was made."""


class _TimeText(Loader):
    """A time as `views.sql` has it: text in UTC, without a zone. The session's zone is UTC."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode().removesuffix("+00")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@functools.lru_cache(maxsize=1024)
def _numbered(sql: str) -> str:
    """`?` and `?2` as Postgres has them. Only for statements of `views.sql`, which quote no text with a '?'."""
    numbers = iter(range(1, sql.count("?") + 1))
    return re.sub(r"\?(\d*)", lambda found: f"${found[1] or next(numbers)}", sql)


class Connection:
    """One connection inside a transaction: a `views.sql.database.Database`."""

    def __init__(self, raw: psycopg.Connection[Any], place: str) -> None:
        self.raw, self.place = raw, place

    @property
    def version(self) -> int:
        return self.raw.info.server_version

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        return self.raw.execute(_numbered(sql), values or None)

    def executemany(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        rows = list(values)
        if rows:
            with self.raw.cursor() as cursor:
                cursor.executemany(_numbered(sql), rows)

    def run(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """A statement with $1, $2, …"""
        return self.raw.execute(sql, values or None)

    def copy_in(self, table: str, names: str, body: bytes) -> None:
        with self.raw.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT csv)") as copy:
            copy.write(body)

    def copy_out(self, select: str) -> bytes:
        with self.raw.cursor() as cursor, cursor.copy(f"COPY ({select}) TO STDOUT (FORMAT csv)") as copy:
            return b"".join(bytes(piece) for piece in copy)

    def literal(self, text: str) -> str:
        """A text, as SQL has it: for statements that take no parameters."""
        found = psycopg.pq.Escaping(self.raw.pgconn).escape_literal(text.encode())
        return bytes(found).decode()


class Pool:
    """The transactions of this process at one address. Stores of one database share its connections."""

    def __init__(self, address: Address, sockets: Sockets) -> None:
        self.address, self.sockets = address, sockets

    @contextlib.contextmanager
    def reading(self, settings: str = "") -> Iterator[Connection]:
        """A transaction that cannot write; all that it reads is of one moment."""
        with self._transaction(READS, settings) as db:
            yield db

    @contextlib.contextmanager
    def asking(self, settings: str = "") -> Iterator[Connection]:
        """For one statement of somebody else, which cannot write. It leaves nothing behind: rolling back ends what
        `set_config` changed for the session, too, and large objects, which Postgres before 16 takes for no writing."""
        with self._transaction(ASKS, settings, end="ROLLBACK; SELECT pg_advisory_unlock_all()") as db:
            yield db

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        stalled = f"; SET LOCAL idle_in_transaction_session_timeout TO '{round(STALLED_SECONDS * 1000)}ms'"
        with self._transaction(WRITES, stalled) as db:
            yield db

    @contextlib.contextmanager
    def _transaction(self, begin: str, settings: str = "", end: str = "COMMIT") -> Iterator[Connection]:
        raw = self._begun(begin, settings)
        try:
            try:
                yield Connection(raw, self.address.shown)
                self._end(raw, end)
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    raw.execute("ROLLBACK" if end == "COMMIT" else end)
                raise
        except psycopg.Error as error:
            raise translate(error, self.address) from error
        finally:
            self.sockets.give_back(raw)

    def _end(self, raw: psycopg.Connection[Any], how: str) -> None:
        try:
            raw.execute(how)
        except psycopg.OperationalError as error:
            why = f"the connection was lost while a change was committed: look whether it was made ({_said(error)})"
            raise CommitUnknown(path=self.address.shown, why=why) from error

    def _begun(self, begin: str, settings: str) -> psycopg.Connection[Any]:
        """A connection in a transaction. One that lay idle may have been closed by the server meanwhile."""
        statement = f"{begin}; {_SETTINGS.format(schema=quoted(self.address.schema))}{settings}"
        while (raw := self.sockets.take()) is not None:
            try:
                raw.execute(statement)
                return raw
            except psycopg.OperationalError:
                self.sockets.forget(raw)
        raw = self.connect()
        try:
            raw.execute(statement)
        except psycopg.Error as error:
            self.sockets.forget(raw)
            raise translate(error, self.address) from error
        return raw

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection, which is not in the pool until it is given back."""
        try:
            return self.sockets.connect(self.address.parameters())
        except psycopg.Error as error:
            raise translate(error, self.address) from _without_parameters(error)


class Sockets:
    """The connections of this process to one database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.idle: list[tuple[float, psycopg.Connection[Any]]] = []
        self._all: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()

    def connect(self, parameters: dict[str, Any]) -> psycopg.Connection[Any]:
        given: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "application_name": "headrace", **KEEPALIVE}
        given |= {**parameters, "client_encoding": "utf8"}
        raw = psycopg.connect(**given, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor)
        raw.adapters.register_loader("timestamptz", _TimeText)
        with self._lock:
            self._all.add(raw)
        return raw

    def take(self) -> psycopg.Connection[Any] | None:
        """One that nobody uses."""
        with self._lock:
            while self.idle:
                since, raw = self.idle.pop()
                if time.monotonic() - since < IDLE_SECONDS and not raw.closed:
                    return raw
                self._all.discard(raw)
                raw.close()
        return None

    def give_back(self, raw: psycopg.Connection[Any]) -> None:
        usable = not raw.closed and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if usable and len(self.idle) < IDLE_MAX:
                self.idle.append((time.monotonic(), raw))
                return
        self.forget(raw)

    def forget(self, raw: psycopg.Connection[Any]) -> None:
        with self._lock:
            self._all.discard(raw)
        raw.close()

    def leave_to_parent(self) -> None:
        """In a forked child: neither uses nor closes what it inherited, for closing would end the parent's sessions."""
        for raw in self._all:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))


_sockets: dict[str, Sockets] = {}
_sockets_lock = threading.Lock()


def pool_of(address: Address) -> Pool:
    with _sockets_lock:
        return Pool(address, _sockets.setdefault(address.url, Sockets()))


def _forget_in_child() -> None:
    global _sockets_lock
    _sockets_lock = threading.Lock()
    for each in _sockets.values():
        each.leave_to_parent()
    _sockets.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _said(error: psycopg.Error) -> str:
    """The first line: the next ones quote the statement, and so values."""
    return str(error.diag.message_primary or error).strip().split("\n")[0]


def _without_parameters(error: psycopg.Error) -> psycopg.Error:
    """An error of connecting carries what it was connected with, the password included."""
    return type(error)(_said(error))


def translate(error: psycopg.Error, address: Address) -> HeadraceError:
    """Postgres' errors, as ours."""
    where, said = address.shown, _said(error)
    if isinstance(error, pg.NumericValueOutOfRange):
        return DoesNotFit(sum="of a column", type=_type_in(error) or said)
    if isinstance(error, pg.DiskFull):
        return DiskFull(path=where, why=f"Postgres says: {said}")
    if isinstance(error, pg.ProgramLimitExceeded) and "index row" in said:
        why = f"a key is too long for Postgres' index, which holds about 2,700 bytes: group by a shorter value ({said})"
        return StorageError(path=where, why=why)
    if isinstance(error, pg.DependentObjectsStillExist):
        return StorageError(path=where, why=f"{said}: {error.diag.message_detail}. Drop what depends on it first")
    if isinstance(error, pg.LockNotAvailable):
        why = "transactions that read the view, or wait for it, do not end: end them, and try again"
        return StorageError(path=where, why=f"{why} (pg_stat_activity says whose they are; Postgres says: {said})")
    if isinstance(error, pg.InsufficientPrivilege):
        return StorageError(path=where, why=f"{said}: GRANT it to the user of this address (docs: Views in Postgres)")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return StorageError(path=where, why=f"cannot be reached: {said}")
    return StorageError(path=where, why=f"Postgres says: {said} ({error.sqlstate})")


def _type_in(error: psycopg.Error) -> str:
    """`A field with precision 38, scale 0 must round to …` is of a decimal(38,0)."""
    found = re.search(r"precision (\d+), scale (\d+)", error.diag.message_detail or "")
    return f"decimal({found[1]},{found[2]})" if found else ""
