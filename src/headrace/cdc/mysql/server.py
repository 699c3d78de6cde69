"""Connections to a MySQL or MariaDB that is captured: for SQL, and for its binlog. Owns how values are written as text,
and how the server's errors become CaptureFailed; a binlog that the server does not have any more is a CaptureGap. Does
not know what is captured."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pymysql
import pymysql.connections
import pymysql.converters
from pymysql.constants import ER
from pymysql.err import MySQLError

from headrace.cdc.mysql.address import Address
from headrace.errors import CaptureFailed, CaptureGap

__all__ = ["Server", "Session", "Stream"]

CONNECT_SECONDS: Final = 10
HEARTBEAT_SECONDS: Final = 10
"""So often the server says that it is there, when it has nothing to send."""
_PASSING: Final = {
    *(0, 1040, 1053, 1077, 1079, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226, 1317, 1412, 1927),
    *(2006, 2013, 2014, 4031),
}
"""Codes after which the same may succeed: the connection, resources, a shutdown, a table that changed meanwhile."""
_UNREACHED: Final = {2002, 2003, 2005}
"""Codes of the client: nobody answers there."""
_GONE: Final = {1236, 1220}
"""The server does not have the binlog that we ask for, or not that place of it."""
_SETTINGS: Final = (
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00', sql_mode = '', net_write_timeout = 3600, net_read_timeout = 3600, "
    "wait_timeout = 86400",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
_UNLIMITED: Final = {True: "SET SESSION max_statement_time = 0", False: "SET SESSION max_execution_time = 0"}
_TEXTS: Final = {kind: made for kind, made in pymysql.converters.conversions.items() if not isinstance(kind, int)}
"""How parameters are written. Values that are read stay texts (bytes, if they are binary)."""
_DUMP, _LENGTH_MAX = 0x12, 0xFFFFFF
_ERROR, _END = 0xFF, 0xFE
SILENT_SECONDS: Final = 3 * HEARTBEAT_SECONDS + 5


@dataclass(frozen=True)
class Server:
    """An address, and for which capture it is used."""

    capture: str
    address: Address

    @property
    def shown(self) -> str:
        return self.address.shown

    def failed(self, why: str, *, passing: bool = False) -> CaptureFailed:
        return CaptureFailed(capture=self.capture, database=self.shown, why=why, passing=passing)

    def gap(self, why: str) -> CaptureGap:
        return CaptureGap(self.capture, self.shown, why, slot="")

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """PyMySQL's errors as CaptureFailed."""
        try:
            yield
        except MySQLError as error:
            failed = self._told(error)
        except OSError as error:
            failed = self.failed(f"the connection was lost: {error}", passing=True)
        else:
            return
        raise failed from None  # what was connected with is in the frames of the cause

    def _told(self, error: MySQLError) -> CaptureFailed:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        said = str(error.args[1] if len(error.args) > 1 else error).split("\n")[0]
        if code in _GONE and "same server" in said:
            return self.failed(f"another reader took our place in the server: {said}", passing=True)
        if code in _GONE:
            return self.gap(f"the server does not have the log that comes next: {said}")
        if code in _UNREACHED:
            return self.failed(f"cannot be reached: {said} ({code})", passing=True)
        told = f"the server says: {said} ({code})" if code else f"the connection was lost: {said or 'closed'}"
        return self.failed(told, passing=code in _PASSING)

    def connect(self) -> Session:
        """For SQL; each statement is a transaction of its own, unless one is begun."""
        return Session(self._connected())

    def _connected(self) -> pymysql.connections.Connection[Any]:
        with self.translated():
            given = self.address.connecting()
            usual = {"connect_timeout": CONNECT_SECONDS, "autocommit": True, "charset": "utf8mb4", "conv": _TEXTS}
            named = {"program_name": f"headrace capture {self.capture}"}
            try:
                return pymysql.connect(**usual, **named, **given)
            except RuntimeError:  # PyMySQL's, for MySQL's usual way to check passwords
                why = "the server checks passwords in a way that needs TLS (ssl_ca=…), or pip install cryptography"
                raise self.failed(why) from None

    def connect_to_stream(self) -> Stream:
        return Stream(self, self._connected())


class Session:
    """A connection for SQL."""

    def __init__(self, connection: pymysql.connections.Connection[Any]) -> None:
        self.connection = connection
        for each in (*_SETTINGS, _UNLIMITED[self.is_mariadb]):
            self.rows(each)

    @property
    def version(self) -> str:
        return str(self.connection.get_server_info())

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.version.lower()

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Values of the result are texts."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, tuple(values) or None)
            return list(cursor.fetchall())

    def variable(self, name: str) -> str | None:
        """A setting of the server; None if it has none of that name."""
        found = self.rows("SHOW GLOBAL VARIABLES LIKE %s", (name,))
        return str(found[0][1]) if found else None

    @cached_property
    def charsets(self) -> dict[int, str]:
        """The character set of each collation, by its number."""
        found = self.rows("SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL")
        return {int(number): str(name) for number, name in found}

    def end_of_log(self) -> tuple[str, int]:
        """File and position: all that is committed is before it."""
        try:
            found = self.rows("SHOW MASTER STATUS")
        except MySQLError as error:
            if error.args[0] != ER.PARSE_ERROR:
                raise
            found = self.rows("SHOW BINARY LOG STATUS")  # MySQL 8.4
        if not found:
            raise MySQLError(1381, "there is no binlog: start the server with log_bin")
        return str(found[0][0]), int(found[0][1])

    def logs(self) -> dict[str, int]:
        """The files that the server still has, and how long they are."""
        return {str(row[0]): int(row[1]) for row in self.rows("SHOW BINARY LOGS")}

    def close(self) -> None:
        with contextlib.suppress(MySQLError, OSError):
            self.connection.close()


class Stream:
    """A connection that gets the binlog, event after event."""

    def __init__(self, server: Server, connection: pymysql.connections.Connection[Any]) -> None:
        self._server, self._connection = server, connection
        self._buffer = bytearray()
        self._at = 0
        self._heard = time.monotonic()

    def start(self, file: str, position: int, reader: int) -> None:
        """`reader`: as which replica; the server ends another connection of the same."""
        with self._server.translated(), self._connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4")
            beats = HEARTBEAT_SECONDS * 10**9
            cursor.execute(f"SET @master_heartbeat_period = {beats}, @source_heartbeat_period = {beats}")
            asked = struct.pack("<IHI", position, 0, reader) + file.encode()
            self._connection._execute_command(_DUMP, asked)
        self._socket = self._connection._sock
        self._heard = time.monotonic()

    def next(self, seconds: float) -> bytes | None:
        """The next event, with its header; None if there is none for so long. With 0 it takes what has arrived."""
        with self._server.translated():
            while True:
                packet = self._packet()
                if packet is None and not self._receive(seconds):
                    return None
                if packet is None:
                    continue
                if packet[0] == _ERROR:
                    code, said = int.from_bytes(packet[1:3], "little"), packet[3:].decode("utf-8", "replace")
                    raise MySQLError(code, said[6:] if said.startswith("#") else said)
                if packet[0] == _END:
                    raise self._server.failed("the server has ended the stream", passing=True)
                return packet[1:]

    def _receive(self, seconds: float) -> bool:
        """Whether something has come."""
        self._socket.settimeout(max(seconds, 1e-4))
        try:
            data = self._socket.recv(1 << 18)
        except TimeoutError:
            if time.monotonic() - self._heard > SILENT_SECONDS:
                raise self._server.failed("nothing was heard of the server for long", passing=True) from None
            return False
        if not data:
            raise self._server.failed("the server has closed the connection", passing=True)
        self._heard = time.monotonic()
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data
        return True

    def _packet(self) -> bytes | None:
        """The next packet, if it is here: one of 16 MiB is gone on with in the next."""
        buffer, at, parts = self._buffer, self._at, []
        while True:
            if len(buffer) - at < 4:
                return None
            length = int.from_bytes(buffer[at : at + 3], "little")
            if len(buffer) - at - 4 < length:
                return None
            parts.append(bytes(buffer[at + 4 : at + 4 + length]))
            at += 4 + length
            if length < _LENGTH_MAX:
                self._at = at
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        with contextlib.suppress(MySQLError, OSError):
            self._connection._force_close()
