"""Captures a Postgres: slot, snapshot, stream, in this order, so that there is no gap and no overlap. Owns what is told
to the database: a place is confirmed when all before it is durable in our log, and nothing else ever is."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa

from headrace.cdc import life
from headrace.cdc.change import Row
from headrace.cdc.choice import Choice
from headrace.cdc.envelopes.writing import Encoded, Envelopes
from headrace.cdc.journal import Journal, Name, Value, recorded
from headrace.cdc.postgres import slot as slots
from headrace.cdc.postgres.applying import Applying
from headrace.cdc.postgres.catalog import Kinds, PostgresTable, numbered, tables_of
from headrace.cdc.postgres.copying import chunks, count_rows, is_behind
from headrace.cdc.postgres.envelopes import encoded, facts_of
from headrace.cdc.postgres.server import Lsn, Server, Stream, lsn_of
from headrace.cdc.postgres.types import arrow_type, column_of, key_type
from headrace.cdc.rows import Read, Shape
from headrace.cdc.tables import Column, Known, Seen, shape_of
from headrace.failpoints import reach
from headrace.log.contract import Log
from headrace.schema import OP_COLUMN

__all__ = ["PREFIX", "PostgresCapture"]

logger = logging.getLogger("headrace.cdc")
PREFIX: Final = "headrace"
"""Of our own logical messages in the database's log."""
CONFIRM_SECONDS: Final = 0.1


class PostgresCapture(life.Capturing):
    def __init__(self, log: Log, name: str, url: str, choice: Choice, folder: Path, **settings: Any) -> None:
        super().__init__(log, name, choice, folder, **settings)
        self.server = Server(name, url)

    def ask_again(self, tables: Sequence[str]) -> None:
        """By a message in the database's log: whoever captures reads it there."""
        slot = recorded(self.log, self.name).get(("slot", ""), {}).get("name")
        if not slot:
            raise self.server.failed("it is being started, and has no slot yet: ask again in a moment")
        with contextlib.closing(self.server.connect()) as db, self.server.translated():
            asked = json.dumps({"capture": slot, "snapshot": list(tables)})
            db.execute("SELECT pg_logical_emit_message(true, $1, $2)", (PREFIX, asked))

    def uninstall(self) -> list[str]:
        """Drops slot and publication. The next start makes others, and reads all tables again."""
        found = recorded(self.log, self.name).get(("slot", ""), {})
        if not found.get("name"):
            return []
        slot = slots.slot_of(found)
        with contextlib.closing(self.server.connect()) as db, self.server.translated():
            slots.remove(db, slot)
        Journal(self.log, self.name).write([], {("slot", ""): asdict(slots.Slot("", ""))})
        return [slot.name]

    def describe(self, schema: str, table: str) -> tuple[pa.Schema, tuple[str, ...]]:
        """The columns that a table's topic will have, and its key: before it is captured."""
        with contextlib.closing(self.server.connect()) as db, self.server.translated():
            found = tables_of(db, Choice.of([f"{schema}.{table}"], None))
            if not found or found[0].refused is not None:
                why = f"there is no table {schema}.{table}" if not found else f"{schema}.{table}: {found[0].refused}"
                raise self.server.failed(why)
            shape = _shape(Kinds(db), found[0].columns, found[0].key, self.choice.masks(schema, table), b"")
        return pa.schema([each for each in shape.schema if each.name != OP_COLUMN]), shape.key_names

    @contextlib.contextmanager
    def connected(self) -> Iterator[Life]:
        with contextlib.ExitStack() as ending:
            db = ending.enter_context(contextlib.closing(self.server.connect()))
            stream = ending.enter_context(contextlib.closing(self.server.connect_to_stream()))
            with self.server.translated():
                made = Life(self, db, stream)
            yield made


def _shape(kinds: Kinds, columns: Sequence[Column], key: Sequence[str], masks: dict[str, str], secret: bytes) -> Shape:
    def plain(column: Column, in_key: bool) -> tuple[pa.DataType, Read]:
        kind = kinds.of(column.type, column.modifier)
        wanted = key_type(kind) if in_key else arrow_type(kind)
        return wanted, lambda texts: column_of(texts, wanted)

    return shape_of(columns, key, masks, secret, plain=plain, text=lambda texts: column_of(texts, pa.string()))


class Life(life.Life[Applying, PostgresTable]):
    """From connecting to the end of a connection."""

    kind = "postgres"

    def __init__(self, capture: PostgresCapture, db: psycopg.Connection[Any], stream: Stream) -> None:
        super().__init__(capture, capture.server, Applying)
        self._postgres, self._db, self._stream = capture.server, db, stream
        self._kinds = Kinds(db)
        self.applying.numbered = self._numbered
        found = self.journal.states.get(("slot", ""))
        self._slot = slots.Slot("", "") if found is None else slots.slot_of(found)
        self._confirmed: Lsn = 0
        self._confirmed_at = 0.0
        self._may_beat = True
        self.health: slots.Health | None = None
        if (prefix := capture.choice.debezium) != "":
            facts = facts_of(db.info.dbname)
            self.applying.echo = Envelopes(capture.log, prefix, facts, self._encoded, blocks=capture.choice.schemas)

    def _encoded(self, known: Known, columns: Sequence[Column]) -> Sequence[Encoded]:
        masks = self.capture.choice.masks(known.schema, known.name)
        return encoded(columns, lambda column: self._kinds.of(column.type, column.modifier), masks, self._secret)

    # -- what tables are ---------------------------------------------------------------------------

    def _numbered(self, oid: int, columns: Sequence[Column]) -> tuple[Column, ...]:
        with self.server.translated():
            return numbered(self._db, oid, columns)

    def _shape(self, known: Known, columns: Sequence[Column]) -> Shape:
        return _shape(
            self._kinds, columns, known.key, self.capture.choice.masks(known.schema, known.name), self._secret
        )

    def tables(self, choice: Choice) -> Sequence[PostgresTable]:
        return tables_of(self._db, choice)

    def source(self, known: Known) -> PostgresTable | None:
        found = tables_of(self._db, oid=known.id)
        return found[0] if found else None

    def _is_behind(self, known: Known, key: Row, bound: Sequence[str]) -> bool:
        source = self.source(known)
        texts = [bytes(value).decode() for value in key]
        return source is not None and is_behind(self._db, source, texts, bound)

    def facts_of_database(self) -> dict[Name, Value]:
        return {("slot", ""): asdict(self._slot)}

    # -- beginning ---------------------------------------------------------------------------------

    def is_set_up(self) -> bool:
        return bool(self._slot.system)

    def check(self) -> None:
        found = slots.check_slot(self._postgres, self._db, self._stream, self._slot, self.applying.end)
        if found != self._slot:
            self._slot = found
            self.journal.write([], self.facts_of_database())

    def start(self) -> None:
        self._stream.start(self._slot.name, self._slot.publication, self.applying.end)
        self._confirmed = self.applying.end

    def set_up(self, before: Sequence[Known]) -> None:
        """Slot and publication, and the tables as the slot's snapshot has them. What an earlier attempt left is made
        again: its names are recorded before anything is made."""
        if self._slot.name:
            slots.remove(self._db, self._slot)
        name = slots.name_for(self.capture.name, secrets.token_hex(4))
        self._slot = slots.Slot(name, name)
        self.journal.write([], {("slot", ""): asdict(self._slot), ("capture", ""): self._facts()})
        found = self._chosen(before)
        slots.make_publication(self._db, name, [source for source, known in found if known.state != "stopped"])
        made = slots.make_slot(self._stream, name, self._db.info.server_version)
        reach("capture.slot")
        self._slot = slots.known(self._db, replace(self._slot, system=made.system, timeline=made.timeline))
        with self._transaction(f"SET TRANSACTION SNAPSHOT '{made.snapshot}'"):
            self._first(made.at, self.facts_of_database(), found)

    def publish(self, tables: Sequence[PostgresTable]) -> None:
        """These tables are in the publication, and nobody writes to them who began before."""
        there = {oid for oid, _ in self._slot.published}
        missing = [source for source in tables if str(source.id) not in there]
        if missing:
            slots.publish(self._db, self._slot.publication, missing)
            self._slot = slots.known(self._db, self._slot)
            self._wait_for_writers()

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
    def _transaction(self, setting: str = "") -> Iterator[None]:
        self._db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if setting:
                self._db.execute(setting)
            yield
        finally:
            if not self._db.closed:
                self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Seen]:
        with self._transaction():
            found = self._db.execute("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text").fetchone()
            assert found is not None
            yield Seen(found[0], lsn_of(found[1]))

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        self._db.execute("SAVEPOINT headrace")
        try:
            yield
        except Exception:
            if not self._db.closed:
                self._db.execute("ROLLBACK TO SAVEPOINT headrace")
            raise

    def chunks(self, table: PostgresTable, after: Sequence[str] | None) -> Iterator[pa.Table]:
        return chunks(self._db, table, after)

    def count_rows(self, table: PostgresTable) -> int:
        return count_rows(self._db, table)

    def key_text(self, value: Any) -> str:
        return str(value)

    # -- the stream --------------------------------------------------------------------------------

    def target(self) -> Lsn:
        return (self.beat() or self._end_of_log() - 1) + 1

    def take(self, seconds: float) -> None:
        applying = self.applying
        data = self._stream.next(seconds)
        while data is not None:
            ended = applying.read(data, self._stream.at)
            if ended and (applying.rows >= life.BATCH_ROWS or applying.signals):
                break
            data = self._stream.next(0)
        if data is None and not applying.in_transaction and not applying.rows:
            applying.end = max(applying.end, self._stream.passed)

    def told(self) -> None:
        """Confirms what is in the log, not at every transaction."""
        now, end = time.monotonic(), self._written
        if self._stream.asked or (end > self._confirmed and now - self._confirmed_at > CONFIRM_SECONDS):
            self._stream.confirm(end)
            self._confirmed, self._confirmed_at = end, now

    def look_after(self) -> None:
        """Every few seconds: a heartbeat, so that an idle database keeps no log for us; what the slot costs; whether
        the publication is as it was."""
        with self.server.translated():
            slots.check_publication(self._postgres, self._db, self._slot)
            self.health = slots.measure(self._db, self._slot, self.health, time.time_ns() // 1000)
        if self.health is not None:
            if self.health.alarm:
                logger.warning("capture %s: %s", self.capture.name, self.health.alarm)
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
            logger.warning("capture %s: no heartbeats, which keep an idle slot moving: %s", self.capture.name, error)
            return None
        except psycopg.Error as error:
            raise self.server.failed(f"the connection was lost: {error}", passing=True) from None
        assert found is not None
        return lsn_of(found[0])

    def _end_of_log(self) -> Lsn:
        found = self._db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert found is not None
        return lsn_of(found[0])

    def _asked(self, content: bytes) -> Sequence[str]:
        """`headrace capture snapshot` in another process asks by a message in the database's log."""
        with contextlib.suppress(ValueError):
            asked = json.loads(content)
            if asked.get("capture") == self._slot.name and isinstance(asked.get("snapshot"), list):
                return [str(name) for name in asked["snapshot"]]
        return ()

    def finish(self) -> None:
        super().finish()
        self._stream.confirm(self._written)
