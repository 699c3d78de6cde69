"""Captures a MySQL or MariaDB: a snapshot that says where in the binlog it is, then the binlog from there, so that
there is no gap and no overlap. Owns how such a snapshot is made, and whether the binlog goes on where we are.

The database keeps nothing for a capture: how far it is only the log here says. A binlog that was deleted meanwhile is a
CaptureGap."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pymysql.err import MySQLError

from headrace.cdc import life
from headrace.cdc.change import Row, Transaction
from headrace.cdc.choice import Choice
from headrace.cdc.envelopes.writing import Encoded, Envelopes
from headrace.cdc.journal import Name, Value
from headrace.cdc.mysql.address import Address
from headrace.cdc.mysql.applying import Applying, file_of, place_of, position_of
from headrace.cdc.mysql.catalog import MySqlTable, cascades_of, tables_of
from headrace.cdc.mysql.charsets import encoding_of
from headrace.cdc.mysql.copying import chunks, count_rows, is_behind, key_text, ordered
from headrace.cdc.mysql.envelopes import encoded, facts_of
from headrace.cdc.mysql.server import Server, Session, Stream
from headrace.cdc.mysql.types import arrow_type, key_type, kind_of, reader_of
from headrace.cdc.rows import Read, Shape
from headrace.cdc.secret import private_folder
from headrace.cdc.tables import Column, Known, Seen, shape_of
from headrace.failpoints import reach
from headrace.log.contract import Log
from headrace.schema import OP_COLUMN
from headrace.storage import disk

__all__ = ["MySqlCapture"]

logger = logging.getLogger("headrace.cdc")
POSITION_MAX: Final = (1 << 32) - 1
ASKED: Final = "read-again"
"""A file in the capture's folder: tables that another process asks to read again, one in a line."""


class MySqlCapture(life.Capturing):
    def __init__(self, log: Log, name: str, url: str, choice: Choice, folder: Path, **settings: Any) -> None:
        super().__init__(log, name, choice, folder, **settings)
        self.server = Server(name, Address.of(url))

    def ask_again(self, tables: Sequence[str]) -> None:
        """By a file in the capture's folder: the binlog takes no messages."""
        path = private_folder(self.folder) / ASKED
        with disk.typed(path), open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in tables))

    def describe(self, schema: str, table: str) -> tuple[pa.Schema, tuple[str, ...]]:
        """The columns that a table's topic will have, and its key: before it is captured."""
        with self.server.translated(), contextlib.closing(self.server.connect()) as db:
            found = tables_of(db, only=f"{schema}.{table}")
        if not found or found[0].refused is not None:
            why = f"there is no table {schema}.{table}" if not found else f"{schema}.{table}: {found[0].refused}"
            raise self.server.failed(why)
        shape = _shape(found[0].columns, found[0].key, self.choice.masks(schema, table), b"")
        return pa.schema([each for each in shape.schema if each.name != OP_COLUMN]), shape.key_names

    @contextlib.contextmanager
    def connected(self) -> Iterator[Life]:
        with contextlib.ExitStack() as ending, self.server.translated():
            db = ending.enter_context(contextlib.closing(self.server.connect()))
            stream = ending.enter_context(contextlib.closing(self.server.connect_to_stream()))
            yield Life(self, db, stream)


def _shape(columns: Sequence[Column], key: Sequence[str], masks: dict[str, str], secret: bytes) -> Shape:
    def plain(column: Column, in_key: bool) -> tuple[pa.DataType, Read]:
        kind = kind_of(str(column.type))
        wanted = key_type(kind) if in_key else arrow_type(kind)
        if wanted is None:
            raise ValueError(f"column {column.name!r} is of the type {column.type}, which is not captured")
        return wanted, reader_of(kind, wanted)

    return shape_of(columns, key, masks, secret, plain=plain)


class Life(life.Life[Applying, MySqlTable]):
    """From connecting to the end of a connection."""

    kind = "mysql"

    def __init__(self, capture: MySqlCapture, db: Session, stream: Stream) -> None:
        super().__init__(capture, capture.server, Applying)
        self._mysql, self._db, self._stream = capture.server, db, stream
        self.applying.source = self.source
        self.applying.encoding = self._encoding
        self.applying.refused = capture.server.failed
        self.applying.gap = capture.server.gap
        self.applying.find_cascades = lambda: cascades_of(db)
        if (prefix := capture.choice.debezium) != "":
            connector = "mariadb" if db.is_mariadb else "mysql"
            facts = facts_of(connector, self._source_at, self.applying.group_at)
            self.applying.echo = Envelopes(capture.log, prefix, facts, self._encoded, blocks=capture.choice.schemas)

    def _encoded(self, known: Known, columns: Sequence[Column]) -> Sequence[Encoded]:
        return encoded(columns, self.capture.choice.masks(known.schema, known.name), self._secret)

    def _source_at(self, transaction: Transaction | None, at: int | None) -> dict[str, Any]:
        """What Debezium's events say of a change: rows of a snapshot are of no transaction."""
        applying = self.applying
        at = applying.end if at is None else at
        facts = {"file": file_of(applying.where["file"], at), "pos": position_of(at)}
        if transaction is None:
            return {**facts, "server_id": 0, "gtid": None, "row": 0}
        gtid = applying.where.get("gtid") or None
        return {**facts, "server_id": applying.server, "gtid": gtid, "row": applying.row}

    def _encoding(self, collation: int) -> str:
        return encoding_of(self._db.charsets.get(collation, "utf8mb4"))

    # -- what tables are ---------------------------------------------------------------------------

    def _shape(self, known: Known, columns: Sequence[Column]) -> Shape:
        return _shape(columns, known.key, self.capture.choice.masks(known.schema, known.name), self._secret)

    def tables(self, choice: Choice) -> Sequence[MySqlTable]:
        return tables_of(self._db, choice)

    def source(self, known: Known) -> MySqlTable | None:
        found = tables_of(self._db, only=known.full_name)
        return found[0] if found else None

    def _is_behind(self, known: Known, key: Row, bound: Sequence[str]) -> bool:
        source = self.source(known)
        return source is not None and is_behind(self._db, source, key, bound)

    def resumes(self, table: MySqlTable) -> bool:
        return ordered(table)

    # -- beginning ---------------------------------------------------------------------------------

    def is_set_up(self) -> bool:
        return "reader" in self.applying.where and ("place", "") in self.journal.states and bool(self.applying.end)

    def set_up(self, before: Sequence[Known]) -> None:
        """The tables as they are at one place of the binlog."""
        reader = self.applying.where.get("reader") or secrets.randbits(31) | 1 << 31
        with self._consistent() as (file, position):
            reach("capture.slot")
            found = self._chosen(before)
            self.applying.where = {"file": file, "reader": reader}
            recorded: dict[Name, Value] = {("log", ""): dict(self.applying.where), ("capture", ""): self._facts()}
            self._first(place_of(file, position), recorded, found)

    def check(self) -> None:
        file, position = file_of(self.applying.where["file"], self.applying.end), position_of(self.applying.end)
        logs = self._db.logs()
        if file not in logs:
            have = f"{next(iter(logs))} to {next(reversed(logs))}" if logs else "none"
            raise self._mysql.gap(f"the server does not have the binlog {file} any more (it has {have}): it was purged")
        if logs[file] < position:
            why = (
                f"the binlog {file} ends at {logs[file]}, before the last change here ({position}): it was made again, "
            )
            raise self._mysql.gap(why + "or the server lost its end in a crash (sync_binlog = 1 keeps it)")

    def start(self) -> None:
        self.applying.cascades = self.applying.find_cascades()
        for parent, children in self.applying.cascades.items():
            for name in sorted({each.child for each in children} & self.applying.tables.keys()):
                why = "its foreign key cascades"
                logger.info("capture %s: %s is read again when rows of %s go: %s", self.capture.name, name, parent, why)
        at = min(position_of(self.applying.end), POSITION_MAX)
        self._stream.start(file_of(self.applying.where["file"], self.applying.end), at, self.applying.where["reader"])
        while not self.applying.is_greeted:  # whether it is the same log is said at once
            data = self._stream.next(life.WAIT_SECONDS)
            if data is not None:
                self.applying.read(data)
        if self.applying.where != self.journal.states.get(("log", "")):
            self.journal.write([], {("log", ""): dict(self.applying.where)})

    # -- copying -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _consistent(self) -> Iterator[tuple[str, int]]:
        """A snapshot, and where in the binlog it is. MariaDB says that of a snapshot; for MySQL nobody may write while
        it begins."""
        if self._db.is_mariadb:
            self._db.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            said = dict(self._db.rows("SHOW STATUS LIKE 'Binlog_snapshot_%'"))
            file, position = said["Binlog_snapshot_file"], int(said["Binlog_snapshot_position"])
            if not file:
                raise self._mysql.failed("there is no binlog: start the server with log_bin")
        else:
            with contextlib.closing(self._mysql.connect()) as locking:
                locking.rows("FLUSH TABLES WITH READ LOCK")
                self._db.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                file, position = self._db.end_of_log()
        try:
            yield file, position
        finally:
            with contextlib.suppress(MySQLError, OSError):
                self._db.rows("ROLLBACK")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Seen]:
        with self._consistent() as (file, position):
            yield Seen("", place_of(file, position))

    def attempt(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_connected(self) -> bool:
        return bool(self._db.connection.open)

    def chunks(self, table: MySqlTable, after: Sequence[str] | None) -> Iterator[pa.Table]:
        return chunks(self._db, table, after)

    def count_rows(self, table: MySqlTable) -> int:
        return count_rows(self._db, table)

    def key_text(self, value: Any) -> str:
        return key_text(value)

    # -- the stream --------------------------------------------------------------------------------

    def target(self) -> int:
        return place_of(*self._db.end_of_log())

    def take(self, seconds: float) -> None:
        applying = self.applying
        data = self._stream.next(seconds)
        while data is not None or applying.in_transaction:
            if data is not None:
                applying.read(data)
                if applying.rows >= life.BATCH_ROWS and not applying.in_transaction:
                    break
            data = self._stream.next(life.WAIT_SECONDS if applying.in_transaction else 0)

    def told(self) -> None:
        path = self.capture.folder / ASKED
        if path.exists():
            with disk.typed(path):
                taken = path.replace(path.with_suffix(".taken"))  # what comes now is of the next file
                self.applying.signals.append(taken.read_bytes())
                taken.unlink()

    def _asked(self, content: bytes) -> Sequence[str]:
        return [name for name in content.decode("utf-8", "replace").split("\n") if name]

    def look_after(self) -> None:
        """The server says itself that it is there, and where its log ends."""
