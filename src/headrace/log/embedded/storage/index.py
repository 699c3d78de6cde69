"""The index of the embedded log: which batches exist. Owns the SQLite file, its tables and connections.
Does not know Arrow, data files or who writes. A batch is visible if and only if its row is committed.

Every row carries a crc32 of its columns, checked whenever it is read: a bit flipped inside a SQLite page is
not noticed by SQLite itself. Only SQLite ever opens the file: closing another descriptor of it in this
process would drop SQLite's locks."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from headrace.errors import (
    HeadraceError,
    IndexDamaged,
    LogMissing,
    StorageError,
    SyncFailed,
    UnsupportedFormat,
)
from headrace.log.embedded.storage.clock import Newest
from headrace.storage import disk, sqlite

FORMAT = 2
CHECKPOINT_BYTES = 16 << 20


class TopicRow(NamedTuple):
    id: int | None
    uid: str
    name: str | None  # null once deleted: the name is free again, the id never is
    revision: int
    schema: int  # the newest schema's version
    settings: str  # JSON


class SchemaRow(NamedTuple):
    topic: int
    version: int
    ddl: str
    arrow: bytes


class PartitionRow(NamedTuple):
    topic: int
    partition: int
    earliest: int
    next: int
    records: int  # held now
    bytes: int
    progress: int | None
    arrived: int  # of the last append; creation counts as one
    small: int  # batches so small that sealing would join them
    cleaned: int  # compaction has seen the records below
    revisit: int | None  # when a tombstone that it kept may be over
    rewritten: int  # how often batches were replaced: what was read of them before may be erased since


class FileRow(NamedTuple):
    id: int | None
    name: str
    state: str  # 'ingest' while a process appends to it, then 'closed'; 'suspect' after a failed sync
    committed: int  # bytes that committed batches reach to
    synced: int  # bytes known to be on the platter


class BatchRow(NamedTuple):
    topic: int
    partition: int
    base: int
    next: int
    records: int
    file: int | None  # null: the records of this range are gone (cut after a power loss)
    position: int
    length: int
    body_crc: int
    plain_bytes: int  # of the body, before it was compressed
    schema: int
    event_min: int | None
    event_max: int | None
    progress: int | None  # before the batch
    arrived: int
    flags: int


class ProducerRow(NamedTuple):
    topic: int
    name: str
    epoch: int
    sequence: int  # the next one


class SequenceRow(NamedTuple):
    topic: int
    producer: str
    sequence: int
    records: int
    ranges: str  # "partition:start-stop,…"


class VersionRow(NamedTuple):
    topic: int
    key: bytes  # 128-bit hash
    version: int


class GroupRow(NamedTuple):
    topic: int
    name: str
    generation: int


class ShareRow(NamedTuple):
    """One partition of one group: how far it is, and whose it is."""

    topic: int
    group_name: str
    partition: int
    committed: int | None  # the next offset to read
    epoch: int  # goes up when the owner or the offset is changed by somebody else
    member: str | None
    wanted_by: str | None  # a live owner is asked to hand over to this member …
    wanted_until: int  # … before this moment (monotonic)
    marked: int  # the pace: the committed offset was …
    marked_offset: int  # … this, at that time, and …
    before: int  # … this, a while earlier
    before_offset: int


class MemberRow(NamedTuple):
    topic: int
    group_name: str
    member: str
    host: str
    pid: int
    boot: str
    lease: int
    deadline: int  # monotonic, of `boot`
    joined: int


class QueueRow(NamedTuple):
    id: int | None
    topic: int
    name: str
    visibility: int  # µs
    max_deliveries: int
    by_key: int  # 1: one message of a key at a time, in their order
    boot: str  # whose clock the deliveries' times are of
    delivered: int  # counters, for ever growing
    redelivered: int
    acked: int
    dead: int
    lost: int  # messages that retention deleted before they were acknowledged


class CursorRow(NamedTuple):
    """How far a queue is in one partition: what lies below was delivered, and is done or in `deliveries`."""

    queue: int
    partition: int
    next: int


class DeliveryRow(NamedTuple):
    """Neighbouring messages that are not done: with a consumer, to be delivered again, or (then one alone) waiting for
    another of its key."""

    queue: int
    partition: int
    offset: int
    stop: int
    deliveries: int
    due: int  # when it may be delivered (again), on the monotonic clock; WAITING: when another one is done
    lease: int  # names the delivery: an answer to an older one is refused
    key: int | None  # 63 bits of the key's hash, where order matters


class DeadRow(NamedTuple):
    """A dead letter that is still open; its text lies in the log, only its place is here."""

    offset: int
    topic: int | None
    queue: int | None


class MetaRow(NamedTuple):
    name: str
    value: str


Row = TypeVar("Row", bound=tuple[Any, ...])


def row_crc(table: str, values: Sequence[Any]) -> int:
    """crc32 of the table's name and the columns as a compact JSON array, bytes as hex. The name, because a bit flipped
    in SQLite's own catalogue can make one table show the rows of another."""
    return zlib.crc32(orjson.dumps((table, *values), default=bytes.hex))


class Table(Generic[Row]):
    """One kind of row. SQL is made here and nowhere else; a row that fails its checksum never leaves."""

    def __init__(self, name: str, row: type[Row], key: str, *, rowid: bool = False, also: Sequence[str] = ()) -> None:
        self.name, self.row, self.key = name, row, key.split(", ")
        self.columns: tuple[str, ...] = row._fields  # type: ignore[attr-defined]
        listed = ", ".join(self.columns)
        marks = ", ".join("?" * (len(self.columns) + 1))
        primary = f"{key} INTEGER PRIMARY KEY AUTOINCREMENT" if rowid else ""
        rest = [c for c in self.columns if not (rowid and c == key)]
        tail = "" if rowid else f", PRIMARY KEY ({key})"
        columns = ", ".join(filter(None, [primary, *rest]))
        self.create = [f"CREATE TABLE {name} ({columns}, crc{tail}){'' if rowid else ' WITHOUT ROWID'}"]
        self.create += also
        self._rowid = rowid
        self._insert = f"INSERT INTO {name} ({listed}, crc) VALUES ({marks})"
        self._put = f"INSERT OR REPLACE INTO {name} ({listed}, crc) VALUES ({marks})"
        where = " AND ".join(f"{c} = ?" for c in self.key)
        changed = ", ".join(f"{c} = ?" for c in (*self.columns[len(self.key) :], "crc"))
        self._change = f"UPDATE {name} SET {changed} WHERE {where}"
        self._select = f"SELECT {listed}, crc FROM {name}"
        self._by_key = f"{self._select} WHERE {where}"

    def add(self, db: sqlite3.Connection, row: Row) -> int:
        """Inserts; an existing key is an error. Returns the new id of a table that hands out ids."""
        cursor = db.execute(self._insert, (*row, row_crc(self.name, row)))
        made = cursor.lastrowid or 0
        if self._rowid and row[0] is None:  # the id is part of the checksum
            self.put(db, self.row._make((made, *row[1:])))  # type: ignore[attr-defined]
        return made

    def put(self, db: sqlite3.Connection, row: Row) -> None:
        db.execute(self._put, (*row, row_crc(self.name, row)))

    def add_all(self, db: sqlite3.Connection, rows: Sequence[Row]) -> None:
        db.executemany(self._insert, [(*row, row_crc(self.name, row)) for row in rows])

    def change(self, db: sqlite3.Connection, row: Row) -> None:
        """Puts a row that is there: half the work."""
        width = len(self.key)
        done = db.execute(self._change, (*row[width:], row_crc(self.name, row), *row[:width]))
        if done.rowcount != 1:
            raise IndexDamaged(path=self.name, why=f"row {row[:width]!r} of {self.name} cannot be found by its key")

    def get(self, db: sqlite3.Connection, *key: Any) -> Row | None:
        found = db.execute(self._by_key, key).fetchone()
        return None if found is None else self.checked(found)

    def select(self, db: sqlite3.Connection, where: str = "", *values: Any) -> list[Row]:
        return list(self.each(db, where, *values))

    def each(self, db: sqlite3.Connection, where: str = "", *values: Any) -> Iterator[Row]:
        """One after the other, for those who need not hold all of them."""
        return map(self.checked, db.execute(f"{self._select} {where}", values))

    def delete(self, db: sqlite3.Connection, where: str, *values: Any) -> int:
        return db.execute(f"DELETE FROM {self.name} {where}", values).rowcount

    def checked(self, found: tuple[Any, ...]) -> Row:
        try:
            whole = row_crc(self.name, found[:-1]) == found[-1]
        except (TypeError, ValueError):  # a value no row of ours has
            whole = False
        if not whole:
            raise IndexDamaged(path=self.name, why=f"row {found[: len(self.key)]!r} of {self.name} fails its checksum")
        return self.row._make(found[:-1])  # type: ignore[attr-defined,no-any-return]


META = Table("meta", MetaRow, "name")
TOPICS = Table("topics", TopicRow, "id", rowid=True, also=["CREATE UNIQUE INDEX topics_by_name ON topics (name)"])
SCHEMAS = Table("schemas", SchemaRow, "topic, version")
PARTITIONS = Table("partitions", PartitionRow, "topic, partition")
FILES = Table(
    "files",
    FileRow,
    "id",
    rowid=True,
    also=["CREATE INDEX files_unsettled ON files (id) WHERE synced < committed OR state <> 'closed'"],
)
BATCHES = Table("batches", BatchRow, "topic, partition, base")
PRODUCERS = Table("producers", ProducerRow, "topic, name")
SEQUENCES = Table("sequences", SequenceRow, "topic, producer, sequence")
VERSIONS = Table("versions", VersionRow, "topic, key")
GROUPS = Table("groups", GroupRow, "topic, name")
SHARES = Table("shares", ShareRow, "topic, group_name, partition")
MEMBERS = Table("members", MemberRow, "topic, group_name, member")
QUEUES = Table(
    "queues", QueueRow, "id", rowid=True, also=["CREATE UNIQUE INDEX queues_by_name ON queues (topic, name)"]
)
CURSORS = Table("cursors", CursorRow, "queue, partition")
DELIVERIES = Table(
    "deliveries",
    DeliveryRow,
    "queue, partition, offset",
    also=[
        "CREATE INDEX deliveries_due ON deliveries (queue, due)",
        "CREATE INDEX deliveries_by_key ON deliveries (queue, key, due) WHERE key IS NOT NULL",
    ],
)
DEAD = Table("dead", DeadRow, "offset", also=["CREATE INDEX dead_by_queue ON dead (queue) WHERE queue IS NOT NULL"])
TABLES: tuple[Table[Any], ...] = (
    META,
    TOPICS,
    SCHEMAS,
    PARTITIONS,
    FILES,
    BATCHES,
    PRODUCERS,
    SEQUENCES,
    VERSIONS,
    GROUPS,
    SHARES,
    MEMBERS,
    QUEUES,
    CURSORS,
    DELIVERIES,
    DEAD,
)


class LastCommit(NamedTuple):
    """One row, changed by every commit: its number, the highest synced one, and the home's newest arrival."""

    number: int = 0
    synced: int = 0
    newest: Newest | None = None

    @property
    def text(self) -> str:
        return orjson.dumps([self.number, self.synced, self.newest and tuple(self.newest)]).decode()


def last_commit(db: sqlite3.Connection, path: Path) -> LastCommit:
    row = META.get(db, "commit")
    if row is None:
        raise IndexDamaged(path=str(path), why="its last commit's number is missing")
    number, synced, newest = orjson.loads(row.value)
    return LastCommit(number, synced, newest and Newest(*newest))


def put_last_commit(db: sqlite3.Connection, last: LastCommit) -> None:
    META.change(db, MetaRow("commit", last.text))


def translate(error: sqlite3.Error, path: Path) -> HeadraceError:
    """The one place where SQLite's errors become headrace's."""
    if (full := sqlite.full_disk(error, path)) is not None:
        return full
    code = sqlite.error_name(error)
    if code.startswith("SQLITE_IOERR") and "FSYNC" in code:
        return SyncFailed(path=str(path), why=f"sync failed ({code})")
    if code.startswith("SQLITE_CANTOPEN"):
        return LogMissing(path=str(path), why="the index cannot be opened: removed, or no permission")
    if isinstance(error, sqlite3.OperationalError) and not code.startswith(("SQLITE_ERROR", "SQLITE_CORRUPT")):
        return StorageError(path=str(path), why=f"{error} ({code or 'no code'})")
    return IndexDamaged(path=str(path), why=f"SQLite says: {error}")


class Index:
    """The SQLite file: any number of short readers, and one writer (the process's committer)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._synchronous = ""
        self._checkpoint_at = CHECKPOINT_BYTES
        self._wal_named = False
        self._wal_fd = -1
        with self._typed():
            if not path.exists():
                raise LogMissing(path=str(path), why="there is no log here")
            self.writer = self._connect()
            mode = self.writer.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                raise IndexDamaged(path=str(path), why=f"journal mode is {mode!r}, not 'wal'")
            self.writer.execute("PRAGMA secure_delete=ON")
            self.writer.execute("PRAGMA wal_autocheckpoint=0")
            self.inode = os.stat(path).st_ino
            found = {row.name: row.value for row in META.select(self.writer)}
        if "format" not in found or "log_id" not in found or "commit" not in found:
            raise IndexDamaged(path=str(path), why="its head is missing")
        if int(found["format"]) != FORMAT:
            do = "upgrade headrace"
            if int(found["format"]) < FORMAT:
                do = "with the older headrace, copy it (headrace consume TOPIC | headrace --home NEW produce TOPIC)"
            why = f"written in format {found['format']}, this headrace reads {FORMAT}: {do}"
            raise UnsupportedFormat(path=str(path), why=why)
        self.log_id = found["log_id"]

    @staticmethod
    def create(path: Path, log_id: str) -> None:
        """A new, empty index, whole or not there at all. The caller holds the turnstile."""
        making = path.with_suffix(".making")
        for leftover in (making, Path(f"{making}-wal"), Path(f"{making}-shm"), Path(f"{making}-journal")):
            leftover.unlink(missing_ok=True)
        try:
            os.close(disk.create(making))
            db = sqlite3.connect(making, isolation_level=None)
            try:
                db.execute("PRAGMA page_size=4096")
                db.execute("PRAGMA synchronous=FULL")
                db.execute("BEGIN")
                for table in TABLES:
                    for statement in table.create:
                        db.execute(statement)
                for name, value in (("format", str(FORMAT)), ("log_id", log_id), ("commit", LastCommit().text)):
                    META.put(db, MetaRow(name, value))
                db.execute("COMMIT")
                db.execute("PRAGMA journal_mode=WAL")
            finally:
                db.close()
        except sqlite3.Error as error:
            raise translate(error, path) from error
        with disk.typed(path):
            os.rename(making, path)
        disk.sync_directory(path.parent)

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a missing file is an error, never a new empty one.
        db = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=sqlite.BUSY_SECONDS,
        )
        db.execute("PRAGMA cell_size_check=ON")
        sqlite.make_safe(db)
        return db

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        except (UnicodeError, ValueError) as error:  # what damage looks like once it is a Python value
            raise IndexDamaged(path=str(self.path), why=f"unreadable value: {error}") from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for a few short reads, without any lock a writer could meet."""
        try:
            db = self._idle.pop()
        except IndexError:
            with self._typed():
                db = self._connect()
                db.execute("PRAGMA query_only=ON")
        try:
            with self._typed():
                yield db
        except BaseException:
            db.close()
            raise
        with self._lock:
            if not self._closed:
                self._idle.append(db)
                return
        db.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several reads that must agree with each other. Keep it short: it holds checkpoints up."""
        with self.reading() as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("ROLLBACK")

    def begin(self, *, synced: bool) -> sqlite3.Connection:
        """Starts the write transaction. The caller is the committer and holds the turnstile."""
        with self._typed():
            wanted = "FULL" if synced else "NORMAL"
            if wanted != self._synchronous:
                self.writer.execute(f"PRAGMA synchronous={wanted}")
                self._synchronous = wanted
            self.writer.execute("BEGIN IMMEDIATE")
        return self.writer

    def name_wal(self) -> None:
        """SQLite syncs the name of its write-ahead log in the process that made the file, and only when that process
        syncs: before we rely on the file, we see to its name ourselves."""
        if not self._wal_named:
            disk.sync_directory(self.path.parent)
            self._wal_named = True

    def sync_wal(self) -> None:
        """Makes what is committed durable, without any lock. SQLite keeps no locks on this file, so that opening it
        here does no harm, and does not replace it while a connection is open."""
        self.name_wal()
        path = Path(f"{self.path}-wal")
        if self._wal_fd < 0:
            with disk.typed(path):
                self._wal_fd = disk.open_to_read(path)
        disk.sync(self._wal_fd, path)

    def commit(self) -> None:
        try:
            self.writer.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            raise translate(error, self.path) from error

    def rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")

    def wal_bytes(self) -> int:
        return sqlite.wal_bytes(self.path)

    def checkpoint_due(self) -> bool:
        return self.wal_bytes() >= self._checkpoint_at

    def postpone_checkpoint(self) -> None:
        """One failed: the next is due when as much again was written."""
        self._checkpoint_at = CHECKPOINT_BYTES + self.wal_bytes()

    def checkpoint(self) -> bool:
        """Moves the write-ahead log into the file and empties it. The caller is the committer and holds the turnstile.
        A reader in the way is not waited for: the next checkpoint, as much later again, does it."""
        with self._typed():
            emptied = sqlite.empty_wal(self.writer)
            self._checkpoint_at = CHECKPOINT_BYTES + (0 if emptied else self.wal_bytes())
            return emptied

    def in_place(self) -> bool:
        """Whether the path still leads to the file that is open."""
        try:
            return os.stat(self.path).st_ino == self.inode
        except OSError:
            return False

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: the connections, never to be closed there."""
        return [self.writer, *self._idle]

    def close(self) -> None:
        with self._lock:
            self._closed = True
        while self._idle:
            self._idle.pop().close()
        self.writer.close()
        if self._wal_fd >= 0:
            os.close(self._wal_fd)
            self._wal_fd = -1
