"""Connections to the database that is captured: for SQL, and for the stream of its changes. Owns how values are written
(dates, bytes, floats) on both, so that a snapshot and the stream say the same, and how Postgres' errors become
CaptureFailed. Does not know what is captured.

An error says what Postgres says in its first line: the next ones quote statements, and so values."""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import pq

from headrace import libpq
from headrace.cdc.postgres.messages import EPOCH_US
from headrace.errors import CaptureFailed

__all__ = ["Lsn", "Server", "Stream", "lsn_of", "lsn_text"]

Lsn = int
CONNECT_SECONDS: Final = 10
TEXTS: Final = {
    "datestyle": "ISO,YMD",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "row_security": "off",
}
"""How values are written; that no wait of ours is ended, since a snapshot's transaction waits for our log; and that row
level security is an error, and does not leave rows out."""
NO_ENCODING: Final = "SQL_ASCII"
SENDER_TIMEOUT: Final = "5min"
"""An append of a large transaction may take that long before the server takes us for gone."""
_PASSING: Final = ("08", "53", "55006", "57", "58", "40")
"""SQLSTATEs after which the same may succeed: connection, resources, a slot in use, shutdown, the system, conflicts."""
_REFUSALS: Final = ("does not exist", "authentication failed", "pg_hba.conf", "not permitted", "permission denied")
"""Why a server refuses a connection: without a code, in English. In other languages it is tried again."""
_DATA, _KEEPALIVE = ord("w"), ord("k")
_ALIVE = struct.Struct(">QqB")
_STATUS = struct.Struct(">cQQQqB")


def lsn_of(text: str) -> Lsn:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: Lsn) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True)
class Server:
    """An address of Postgres, and for which capture it is used."""

    capture: str
    url: str = field(repr=False)

    @property
    def shown(self) -> str:
        return libpq.shown(self.url)

    def failed(self, why: str, *, passing: bool = False) -> CaptureFailed:
        return CaptureFailed(capture=self.capture, database=self.shown, why=why, passing=passing)

    def _parameters(self, settings: dict[str, str]) -> dict[str, Any]:
        given = libpq.connection_parameters(self.url, self.shown, argument="url")
        options = " ".join([str(given.pop("options", "")), *(f"-c {name}={value}" for name, value in settings.items())])
        name = f"headrace capture {self.capture}"[:63]
        usual = {"connect_timeout": CONNECT_SECONDS, "application_name": name, **libpq.KEEPALIVE}
        return {**usual, **given, "options": options, "client_encoding": "utf8"}

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Postgres' errors as CaptureFailed."""
        try:
            yield
        except psycopg.Error as error:
            said = (error.diag.message_primary or str(error)).strip().split("\n")[0]
            code = error.sqlstate
            refused = isinstance(error, psycopg.OperationalError) and any(each in said for each in _REFUSALS)
            lost = isinstance(error, psycopg.OperationalError) and not refused
            passing = lost if code is None else code.startswith(_PASSING)
            told = f"cannot be reached: {said}" if code is None else f"Postgres says: {said} ({code})"
            failed = self.failed(told, passing=passing)
        else:
            return
        raise failed from None  # the cause carries what was connected with, the password included

    def connect(self) -> psycopg.Connection[Any]:
        """For SQL; each statement is a transaction of its own."""
        with self.translated():
            given = self._parameters(TEXTS)
            db = psycopg.connect(**given, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor)
        if db.info.parameter_status("server_encoding") == NO_ENCODING:
            db.close()
            raise self.failed(
                f"its encoding is {NO_ENCODING}: nobody says which characters its bytes are. Copy it into a database "
                "that has one, and capture that: createdb --template=template0 --encoding=UTF8 …, then pg_dump with "
                "--encoding= of what its programs write"
            )
        return db

    def connect_to_stream(self) -> Stream:
        """For commands of replication, and then the stream of changes."""
        with self.translated():
            given = self._parameters({**TEXTS, "wal_sender_timeout": SENDER_TIMEOUT})
            return Stream(self, psycopg.connect(**given, replication="database", autocommit=True))


class Stream:
    """A connection that replicates. `passed`: all that was committed before it has been sent, as the server says when
    it has nothing to send."""

    def __init__(self, server: Server, connection: psycopg.Connection[Any]) -> None:
        self._server, self._connection, self._raw = server, connection, connection.pgconn
        self.passed: Lsn = 0
        self._poll = select.poll()
        self._poll.register(self._raw.socket, select.POLLIN)
        self.asked = False
        """The server wants to be told at once how far we are."""
        self.at = b""
        """Where the last message is in the database's log, as eight bytes."""

    def command(self, text: str) -> dict[str, str | None]:
        """A command of replication; the row that it returns."""
        with self._server.translated():
            result = self._raw.exec_(text.encode())
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise psycopg.errors.error_from_result(result)
            names = [(result.fname(at) or b"").decode() for at in range(result.nfields)]
            values = [result.get_value(0, at) if result.ntuples else None for at in range(result.nfields)]
            return {name: None if value is None else value.decode() for name, value in zip(names, values, strict=True)}

    def start(self, slot: str, publication: str, at: Lsn) -> None:
        named = publication.replace('"', '""')
        text = f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(at)} '
        text += f"(proto_version '1', publication_names '\"{named}\"', messages 'true')"
        with self._server.translated():
            result = self._raw.exec_(text.encode())
            if result.status != pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result)
        self.passed = at

    def next(self, seconds: float) -> bytes | None:
        """The next message of pgoutput; None if there is none for so long, or the server only says that it is there.
        With 0 it takes what has arrived, and waits for nothing."""
        try:
            count, data = self._raw.get_copy_data(1)
            if count == 0:
                if not self._poll.poll(seconds * 1000):
                    return None
                self._raw.consume_input()
                count, data = self._raw.get_copy_data(1)
            if count == 0:
                return None
            if count < 0:
                result = self._raw.get_result()
                said = "" if result is None else result.error_message.decode(errors="replace").strip().split("\n")[0]
                raise self._server.failed(f"the stream has ended{said and ': '}{said}", passing=True)
        except psycopg.Error as error:
            said = str(error).strip().split("\n")[0]
            raise self._server.failed(f"the connection was lost: {said}", passing=True) from None
        if data[0] == _DATA:
            self.at = bytes(data[1:9])
            return bytes(data[25:])
        if data[0] == _KEEPALIVE:
            end, _, asked = _ALIVE.unpack_from(data, 1)
            self.passed = max(self.passed, end)
            self.asked = self.asked or bool(asked)
        return None

    def confirm(self, at: Lsn) -> None:
        """Tells the server that changes before `at` are kept here, so that it need not keep them."""
        now = time.time_ns() // 1000 - EPOCH_US
        try:
            self._raw.put_copy_data(_STATUS.pack(b"r", at, at, at, now, 0))
            self._raw.flush()
        except psycopg.Error:
            raise self._server.failed("the connection was lost", passing=True) from None
        self.asked = False

    def close(self) -> None:
        self._connection.close()
