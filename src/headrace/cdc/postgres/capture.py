"""Captures a Postgres: slot, snapshot, stream, in this order, so that there is no gap and no overlap. Owns one life of
the connections, from finding out where the log is to their end, and what is told to the database: a place is confirmed
when all before it is durable in our log, and nothing else ever is.

After a crash at any point the next life goes on from the journal: with the slot that was to be made, with the tables
whose copying was cut off (in a new snapshot, which knows what it has seen of the stream), or with the stream."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa

from headrace.cdc.choice import Choice
from headrace.cdc.current import difference
from headrace.cdc.journal import Journal, recorded
from headrace.cdc.parts import Parts
from headrace.cdc.postgres import slot as slots
from headrace.cdc.postgres.applying import Applying, private_folder, with_chunk
from headrace.cdc.postgres.catalog import Kinds, SourceTable, tables_of
from headrace.cdc.postgres.copying import chunks, count_rows, is_behind
from headrace.cdc.postgres.messages import Column
from headrace.cdc.postgres.server import Lsn, Server, Stream, lsn_of
from headrace.cdc.postgres.tables import Chunk, Difference, Known, difference_of, shape_of
from headrace.cdc.postgres.types import NotHeld
from headrace.cdc.postgres.visible import Seen
from headrace.cdc.rows import UPSERT, Shape, loaded_mark
from headrace.errors import CaptureFailed, HeadraceError, InvalidArgument, UnknownTopic
from headrace.failpoints import reach
from headrace.log.contract import Log
from headrace.names import check_name
from headrace.schema import OP_COLUMN
from headrace.storage import disk

__all__ = ["PREFIX", "PostgresCapture", "stored_secret"]

logger = logging.getLogger("headrace.cdc")
PREFIX: Final = "headrace"
"""Of our own logical messages in the database's log."""
BATCH_ROWS: Final = 20_000
HEARTBEAT_SECONDS: Final = 10.0
CONFIRM_SECONDS: Final = 0.1
WAIT_SECONDS: Final = 0.1
SECRET_BYTES: Final = 32
EMPTY_SECONDS: Final = 1.0
"""So seldom is it noted that transactions have passed in which nothing was ours."""


class Again(Exception):
    """This life of the connections ends, and another one begins: tables are to be read again, or it was stopped."""


def stored_secret(folder: Path) -> bytes:
    """What hashes are made with: of this home alone, readable by its owner alone."""
    path = private_folder(folder) / "mask.key"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            why = "is no secret of 32 bytes: writing it was cut off. Delete it if nothing was hashed with it yet"
            raise InvalidArgument("mask", str(path), why) from None
        return secret
    with os.fdopen(fd, "wb") as file:
        secret = secrets.token_bytes(SECRET_BYTES)
        file.write(secret)
        file.flush()
        os.fsync(fd)
    disk.sync_directory(path.parent)
    return secret


class PostgresCapture:
    """One capture. `folder`: in the home, for large transactions and the secret of masks."""

    def __init__(
        self,
        log: Log,
        name: str,
        url: str,
        choice: Choice,
        folder: Path,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.log, self.name, self.choice, self.folder = log, name, choice, folder
        self.server = Server(name, url)
        self.heartbeat_seconds = heartbeat_seconds
        self.stopping: Callable[[], bool] = lambda: False
        self.life: Life | None = None

    def ask_again(self, tables: Sequence[str]) -> None:
        """By a message in the database's log: whoever captures reads it there."""
        slot = recorded(self.log, self.name).get(("slot", ""), {}).get("name")
        with contextlib.closing(self.server.connect()) as db, self.server.translated():
            asked = json.dumps({"capture": slot, "snapshot": list(tables)})
            db.execute("SELECT pg_logical_emit_message(true, $1, $2)", (PREFIX, asked))

    def describe(self, schema: str, table: str) -> tuple[pa.Schema, tuple[str, ...]]:
        """The columns that a table's topic will have, and its key: before it is captured."""
        with contextlib.closing(self.server.connect()) as db, self.server.translated():
            found = tables_of(db, Choice.of([f"{schema}.{table}"], None))
            if not found or found[0].refused is not None:
                why = f"there is no table {schema}.{table}" if not found else f"{schema}.{table}: {found[0].refused}"
                raise self.server.failed(why)
            masks = self.choice.masks(schema, table)
            shape = shape_of(found[0].columns, found[0].key, Kinds(db), masks, b"")
        return pa.schema([each for each in shape.schema if each.name != OP_COLUMN]), shape.key_names

    @contextlib.contextmanager
    def living(self, *, again: Sequence[str] | None = None) -> Iterator[Life]:
        """Connected and set up; copies what is to be copied. `again`: tables that are read again, () for all: the way
        on after a CaptureGap."""
        with contextlib.ExitStack() as ending:
            db = ending.enter_context(contextlib.closing(self.server.connect()))
            stream = ending.enter_context(contextlib.closing(self.server.connect_to_stream()))
            with self.server.translated():
                life = self.life = Life(self, db, stream)
                life.begin(again)
            yield life

    def run(self, stopping: Callable[[], bool]) -> None:
        """Until `stopping()`, which is not asked before there is a connection."""
        self.stopping, again = stopping, True
        while again:
            try:
                with self.living() as life:
                    while not stopping():
                        life.step(WAIT_SECONDS)
                    life.finish()
                again = False
            except Again:
                again = not stopping()

    def drain(self, *, again: Sequence[str] | None = None) -> int:
        """All that is committed in the database now; how many changes."""
        self.stopping, done = lambda: False, 0
        while True:
            try:
                with self.living(again=again) as life:
                    again = None
                    target = life.beat() or life.end_of_log() - 1
                    while life.applying.end <= target:
                        life.step(WAIT_SECONDS)
                    life.finish()
                    return done + life.applying.changes
            except Again:
                done += 0 if self.life is None else self.life.applying.changes


class Life:
    """From connecting to the end of a connection."""

    def __init__(self, capture: PostgresCapture, db: psycopg.Connection[Any], stream: Stream) -> None:
        self._capture, self._server, self._db, self._stream = capture, capture.server, db, stream
        self.journal = Journal(capture.log, capture.name)
        self._kinds = Kinds(db)
        self._secret = stored_secret(capture.folder) if capture.choice.mask else b""
        self.applying = Applying(
            self.journal,
            capture.folder,
            shape=self._shape,
            is_behind=self._is_behind,
            grow=self._grow,
        )
        self._slot = slots.Slot("", "")
        self._written: Lsn = 0
        self._confirmed: Lsn = 0
        self._confirmed_at = self._written_at = self._beaten_at = 0.0
        self._may_beat = True
        self.health: slots.Health | None = None

    # -- what tables are ---------------------------------------------------------------------------

    def _shape(self, known: Known, columns: Sequence[Column]) -> Shape:
        masks = self._capture.choice.masks(known.schema, known.name)
        return shape_of(columns, known.key, self._kinds, masks, self._secret)

    def _source(self, known: Known) -> SourceTable | None:
        found = tables_of(self._db, oid=known.oid)
        return found[0] if found else None

    def _is_behind(self, known: Known, key: Sequence[str], bound: Sequence[str]) -> bool:
        source = self._source(known)
        return source is not None and is_behind(self._db, source, key, bound)

    def _grow(self, known: Known, found: Difference, shape: Shape) -> bool:
        self._topic(known, shape)
        source = self._source(known)
        names = {column.name for column in found.added}
        return source is not None and bool(names & source.filled)

    def _topic(self, known: Known, shape: Shape) -> None:
        """The table's topic has these columns: made, or given those that it does not have."""
        log = self._capture.log
        topic = log.create_topic(known.topic, shape.schema, key=shape.key_names, exist_ok=True)
        if topic.settings.key != shape.key_names:
            why = (
                f"topic {known.topic!r} has the key {topic.settings.key}, the table {shape.key_names}: delete the topic"
            )
            raise self._server.failed(why)
        missing = [column for column in shape.schema if column.name not in topic.schema.names]
        wider = [
            column
            for column in shape.schema
            if column.name in topic.schema.names and topic.schema.field(column.name).type != column.type
        ]
        if missing or wider:
            by_name = {column.name: column for column in wider}
            topic.alter(schema=pa.schema([*(by_name.get(each.name, each) for each in topic.schema), *missing]))

    def _new(self, source: SourceTable, taken: set[str]) -> Known:
        """A table that was not captured before."""
        name = self._capture.choice.topic(self._capture.name, source.schema, source.name)
        known = Known(source.oid, source.schema, source.name, name, source.key, source.columns)
        why = source.refused
        if why is None and name in taken:
            why = f"the topic {name!r} is another table's"
        if why is None:
            try:
                check_name(name, argument="table")
                self._topic(known, self._shape(known, source.columns))
            except HeadraceError as error:
                why = str(error)
        return known if why is None else replace(known, state="stopped", why=why)

    # -- beginning ---------------------------------------------------------------------------------

    def begin(self, again: Sequence[str] | None) -> None:
        found = self.journal.states.get(("slot", ""))
        if found is not None:
            self._slot = slots.slot_of(found)
        if not self._slot.system or again == ():
            self._set_up(self._known())
        else:
            slots.check_slot(self._server, self._db, self._stream, self._slot, self.applying.end)
            self._add_new_tables()
            if again is not None:
                self.mark_again(again)
            self._copy_rest()
        for known in self._known():
            if known.state != "stopped":
                self.applying.track(known)
        self._start()

    def _start(self) -> None:
        self._stream.start(self._slot.name, self._slot.publication, self.applying.end)
        self._written = self._confirmed = self.applying.end

    def _known(self) -> list[Known]:
        return [Known.of(value) for value in self.journal.of("table").values()]

    def _facts(self) -> dict[str, Any]:
        choice = self._capture.choice
        return {
            "database": self._server.shown,
            "tables": choice.tables,
            "mask": dict(choice.mask),
            "source": "postgres",
        }

    def _set_up(self, before: Sequence[Known]) -> None:
        """Slot and publication, and the tables as the slot's snapshot has them. What an earlier attempt left is made
        again: its names are recorded before anything is made."""
        if self._slot.name:
            slots.remove(self._db, self._slot)
        name = slots.name_for(self._capture.name, secrets.token_hex(4))
        self._slot = slots.Slot(name, name)
        self.journal.write([], {("slot", ""): asdict(self._slot), ("capture", ""): self._facts()})
        found = self._chosen(before)
        gone = [each for each in before if each.full_name not in {known.full_name for _, known in found}]
        slots.make_publication(self._db, name, [source for source, known in found if known.state != "stopped"])
        made = slots.make_slot(self._stream, name, self._db.info.server_version)
        reach("capture.slot")
        self._slot = slots.known(self._db, replace(self._slot, system=made.system, timeline=made.timeline))
        self.applying.end = made.at
        with self._snapshot(f"SET TRANSACTION SNAPSHOT '{made.snapshot}'"):
            tables = [
                *(known for _, known in found),
                *(replace(each, state="stopped", why="it is not there any more, or not chosen") for each in gone),
            ]
            place = {("slot", ""): asdict(self._slot), ("place", ""): {"end": made.at}}
            self.journal.write([], {("table", each.full_name): each.value() for each in tables} | place)
            self._copy(None)

    def _chosen(
        self, before: Sequence[Known], *, captured: frozenset[int] = frozenset()
    ) -> list[tuple[SourceTable, Known]]:
        """The tables that are chosen, and are not `captured`. One that was captured before is read again, also if it
        was made anew."""
        by_oid = {each.oid: each for each in before}
        by_name = {each.full_name: each for each in before}
        taken = {each.topic for each in before}
        found = []
        for source in tables_of(self._db, self._capture.choice):
            if source.oid in captured:
                continue
            earlier = by_oid.get(source.oid) or by_name.get(source.full_name)
            made = self._new(source, taken) if earlier is None else self._as_it_is(earlier, source)
            taken.add(made.topic)
            found.append((source, made))
        return found

    def _as_it_is(self, known: Known, source: SourceTable) -> Known:
        """The table is read again, with the columns that it has now; from the beginning, if it has no topic."""
        try:
            self._capture.log.topic(known.topic)
        except UnknownTopic:
            return self._new(source, set())
        fresh = replace(
            known,
            oid=source.oid,
            schema=source.schema,
            name=source.name,
            columns=source.columns,
            chunks=(),
            after=None,
        )
        try:
            if source.refused is not None:
                raise self._server.failed(source.refused)
            if set(source.key) != set(known.key):
                raise self._server.failed(f"the key is now ({', '.join(source.key)}): delete topic {known.topic!r}")
            self._topic(fresh, self._shape(fresh, source.columns))
        except HeadraceError as error:
            return replace(known, state="stopped", why=str(error))
        return replace(fresh, state="reading again", why="", epoch=known.epoch + 1)

    def mark_again(self, names: Sequence[str]) -> None:
        """These tables are to be read again."""
        by_name = {each.full_name: each for each in self._known()}
        changed = {}
        for name in names:
            full = ".".join(self._capture.choice.full(name))
            if full not in by_name:
                raise self._server.failed(f"table {full!r} is not captured. There are: {', '.join(by_name) or 'none'}")
            source = self._source(by_name[full])
            if source is None:
                raise self._server.failed(f"table {full!r} is not in the database any more")
            marked = self._as_it_is(by_name[full], source)
            if marked.state == "stopped":
                raise self._server.failed(f"table {full!r} cannot be captured: {marked.why}")
            changed["table", full] = marked.value()
            self._publish([source])
        self.journal.write([], {**changed, ("slot", ""): asdict(self._slot)})

    def _publish(self, tables: Sequence[SourceTable]) -> None:
        """These tables are in the publication, and nobody writes to them who began before."""
        there = {oid for oid, _ in self._slot.published}
        missing = [source for source in tables if str(source.oid) not in there]
        if missing:
            slots.publish(self._db, self._slot.publication, missing)
            self._slot = slots.known(self._db, self._slot)
            self._wait_for_writers()

    def _add_new_tables(self) -> None:
        """Tables that are chosen, and were made since."""
        known = self._known()
        added = self._chosen(known, captured=frozenset(each.oid for each in known))
        facts = json.loads(json.dumps(self._facts()))
        if not added and self.journal.states.get(("capture", "")) == facts:
            return
        self._publish([source for source, each in added if each.state != "stopped"])
        recorded = {("table", each.full_name): each.value() for _, each in added}
        self.journal.write([], {**recorded, ("slot", ""): asdict(self._slot), ("capture", ""): facts})

    def _wait_for_writers(self) -> None:
        """Transactions that wrote to a table before it was published are not in the stream: the copy must have them."""
        found = self._db.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        assert found is not None
        while not self._db.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8", (found[0],)
        ).fetchone()[0]:  # type: ignore[index]
            time.sleep(0.02)

    # -- copying -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _snapshot(self, setting: str = "") -> Iterator[None]:
        self._db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if setting:
                self._db.execute(setting)
            yield
        finally:
            if not self._db.closed:
                self._db.execute("ROLLBACK")

    def _copy_rest(self) -> None:
        """Tables whose copying was cut off, that are new, or that are to be read again: in a snapshot of their own."""
        if not any(each.state in ("copying", "reading again") for each in self._known()):
            return
        with self._snapshot():
            found = self._db.execute("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text").fetchone()
            assert found is not None
            self._copy(Seen(found[0], lsn_of(found[1])))

    def _copy(self, seen: Seen | None) -> None:
        for known in self._known():
            if known.state not in ("copying", "reading again"):
                continue
            source = self._source(known)
            masks = self._capture.choice.masks(known.schema, known.name)
            if (
                source is not None
                and known.state == "copying"
                and known.after is not None
                and set(known.key) & {*masks}
            ):
                known = self._as_it_is(known, source)  # where it was cut off is a key that is not to be stored
            self._db.execute("SAVEPOINT headrace")
            try:
                if source is None:
                    raise self._server.failed("it is gone")
                if found := difference_of(known, source):
                    if not found.is_growth:
                        raise self._server.failed(f"it changed before it was read: {found}")
                    if seen is None:  # the stream will say so
                        source = source.only(known.columns)
                    else:
                        known = self._as_it_is(known, source)
                with self._server.translated():
                    self._read(known, source, seen)
            except (NotHeld, CaptureFailed) as error:
                if isinstance(error, CaptureFailed) and error.passing:
                    raise
                why = error.why if isinstance(error, CaptureFailed) else str(error)
                logger.warning("capture %s: table %s is stopped: %s", self._capture.name, known.full_name, why)
                self._db.execute("ROLLBACK TO SAVEPOINT headrace")
                self.journal.write([], {("table", known.full_name): replace(known, state="stopped", why=why).value()})

    def _read(self, known: Known, source: SourceTable, seen: Seen | None) -> None:
        shape = self._shape(known, source.columns)
        if known.state == "reading again":
            topic = self._capture.log.topic(known.topic)
            told = (self._rows(shape, texts) for texts in chunks(self._db, source, None))
            live = replace(known, state="live", chunks=(Chunk(None, seen),), after=None)
            parts = Parts(self._capture.folder, ((known.topic, part) for part in difference(topic, shape, told)))
            self.journal.write(parts, {("table", known.full_name): live.value()})
            return
        begun_now = known.after is None
        counted = count_rows(self._db, source) if begun_now else None
        known = with_chunk(known, Chunk(None, seen))
        hides_key = set(known.key) & {*self._capture.choice.masks(known.schema, known.name)}
        for texts in chunks(self._db, source, known.after):
            last = tuple(texts[name][-1].as_py() for name in known.key)
            after = tuple("" for _ in last) if hides_key else last
            known = replace(known, after=after, copied=known.copied + texts.num_rows)
            rows = self._rows(shape, texts)
            self.journal.write([(known.topic, rows)], {("table", known.full_name): known.value()})
            if self._capture.stopping():  # the next start goes on behind this chunk
                raise Again
        if counted is not None and counted != known.copied:
            raise self._server.failed(
                f"{known.copied} rows were copied, and count(*) in the same snapshot says {counted}"
            )
        done = replace(known, state="live", after=None, loaded=seen is None and len(known.chunks) == 1)
        if done.loaded:
            done = replace(done, chunks=())
        mark = [(known.topic, loaded_mark(shape))] if done.loaded else []
        self.journal.write(mark, {("table", known.full_name): done.value()})

    @staticmethod
    def _rows(shape: Shape, texts: pa.Table) -> pa.Table:
        columns = [read(texts[name].combine_chunks()) for name, read in zip(shape.names, shape.readers, strict=True)]
        return pa.Table.from_arrays([*columns, pa.array([UPSERT] * texts.num_rows)], schema=shape.schema)

    # -- the stream --------------------------------------------------------------------------------

    def step(self, seconds: float) -> None:
        """Takes what has come, at most a batch, or waits for so long, and writes what is whole."""
        applying = self.applying
        data = self._stream.next(seconds)
        while data is not None:
            ended = applying.read(data)
            if ended and (applying.rows >= BATCH_ROWS or applying.signals):
                break
            data = self._stream.next(0)
        if data is None and not applying.in_transaction and not applying.rows:
            applying.end = max(applying.end, self._stream.passed)
        passed = applying.end > self._written and time.monotonic() - self._written_at > EMPTY_SECONDS
        if applying.rows or passed:
            self._write()
        self._tell()
        if time.monotonic() - self._beaten_at >= self._capture.heartbeat_seconds:
            self._look_after()
        if applying.signals:
            self._signalled()

    def _write(self) -> None:
        with self._server.translated():
            self.applying.write()
        self._written, self._written_at = self.applying.end, time.monotonic()
        if any(table.known.state == "reading again" for table in self.applying.tables.values()):
            raise Again

    def _tell(self) -> None:
        """Confirms what is in the log, not at every transaction."""
        now, end = time.monotonic(), self._written
        if self._stream.asked or (end > self._confirmed and now - self._confirmed_at > CONFIRM_SECONDS):
            self._stream.confirm(end)
            self._confirmed, self._confirmed_at = end, now

    def _look_after(self) -> None:
        """Every few seconds: a heartbeat, so that an idle database keeps no log for us; what the slot costs; whether
        the publication is as it was."""
        self._beaten_at = time.monotonic()
        with self._server.translated():
            slots.check_publication(self._server, self._db, self._slot)
            self.health = slots.measure(self._db, self._slot, self.health, time.time_ns() // 1000)
        if self.health is not None:
            if self.health.alarm:
                logger.warning("capture %s: %s", self._capture.name, self.health.alarm)
            self.applying.record("health", asdict(self.health))
        self.beat()

    def beat(self) -> Lsn | None:
        """A transaction of its own with nothing in it but a message; where it is, or None if that is not allowed."""
        if not self._may_beat:
            return None
        try:
            found = self._db.execute("SELECT pg_logical_emit_message(true, $1, $2)::text", (PREFIX, "{}")).fetchone()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
            self._may_beat = False
            logger.warning("capture %s: no heartbeats, which keep an idle slot moving: %s", self._capture.name, error)
            return None
        except psycopg.Error as error:
            raise self._server.failed(f"the connection was lost: {error}", passing=True) from None
        assert found is not None
        return lsn_of(found[0])

    def end_of_log(self) -> Lsn:
        found = self._db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert found is not None
        return lsn_of(found[0])

    def _signalled(self) -> None:
        """`headrace capture snapshot` in another process asks by a message in the database's log."""
        said, self.applying.signals = self.applying.signals, []
        for content in said:
            with contextlib.suppress(ValueError):
                asked = json.loads(content)
                if asked.get("capture") == self._slot.name and isinstance(asked.get("snapshot"), list):
                    self.mark_again([str(name) for name in asked["snapshot"]])
                    raise Again

    def finish(self) -> None:
        """What is read is written, and told."""
        if self.applying.end > self._written or self.applying.rows:
            self._write()
        self._stream.confirm(self._written)
