"""Captures a SQLite: triggers first, then the tables chunk by chunk, and all the while what the outbox tells. Owns one
life of the connection, and what is removed from the outbox: rows that are durable in our log, and nothing else ever.

What is read in one moment is written as one: all that the outbox tells up to it, of the tables that are copied already
and of the rows before the next chunk, and that chunk as it is then. So at every step the log has what the database had
at that moment, as far as it is copied; no change is missed, and none comes twice. A chunk is a short read, as long ones
keep writers waiting in a database without write-ahead log."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.cdc.choice import Choice
from headrace.cdc.journal import Journal, Name, Value, recorded
from headrace.cdc.parts import Parts
from headrace.cdc.secret import private_folder, stored_secret
from headrace.cdc.sqlite.catalog import tables_of
from headrace.cdc.sqlite.file import File, quoted
from headrace.cdc.sqlite.survey import Survey
from headrace.cdc.sqlite.taking import Taking
from headrace.cdc.sqlite.triggers import NOW_MS, make_outbox, remove
from headrace.cdc.sqlite.types import plain
from headrace.cdc.tables import shape_of
from headrace.errors import CaptureFailed, CaptureGap, RecordTooLarge
from headrace.failpoints import reach
from headrace.log.contract import Log
from headrace.schema import OP_COLUMN

__all__ = ["SqliteCapture"]

logger = logging.getLogger("headrace.cdc")

POLL_SECONDS: Final = 0.01
LOOK_SECONDS: Final = 1.0
CONFIRM_SECONDS, CONFIRM_ROWS = 1.0, 20_000
REMOVED_ROWS: Final = 5_000
"""So many rows are removed from the outbox in one transaction: other writers wait for it."""


class SqliteCapture:
    """One capture. `folder`: in the home, for large transactions and the secret of masks."""

    def __init__(self, log: Log, name: str, path: Path, choice: Choice, folder: Path) -> None:
        self.log, self.name, self.path, self.choice, self.folder = log, name, path, choice, folder

    @contextlib.contextmanager
    def _opened(self) -> Iterator[File]:
        with contextlib.closing(File(self.name, self.path)) as file:
            yield file

    def _outbox(self) -> str:
        return str(recorded(self.log, self.name).get(("slot", ""), {}).get("name", ""))

    def ask_again(self, tables: Sequence[str]) -> None:
        """By a row of the outbox: whoever captures reads it there."""
        with self._opened() as file, file.writing() as db:
            sql = f"INSERT INTO {quoted(self._outbox())} (op, at_ms, v0) VALUES ('a', {NOW_MS}, ?)"
            db.execute(sql, (json.dumps([*tables]),))

    def describe(self, schema: str, table: str) -> tuple[pa.Schema, tuple[str, ...]]:
        with self._opened() as file, file.reading() as db:
            wanted = replace(self.choice, tables=("*",))
            found = next((each for each in tables_of(db, wanted) if (each.schema, each.name) == (schema, table)), None)
            if found is None or found.refused is not None:
                why = f"there is no table {schema}.{table}" if found is None else f"{schema}.{table}: {found.refused}"
                raise file.failed(why)
        shape = shape_of(found.columns, found.key, self.choice.masks(schema, table), b"", plain=plain)
        return pa.schema([each for each in shape.schema if each.name != OP_COLUMN]), shape.key_names

    def run(self, stopping: Callable[[], bool]) -> None:
        with self._opened() as file:
            life = Life(self, file)
            life.begin(None)
            while not stopping():
                if not life.step():
                    time.sleep(POLL_SECONDS)
            life.confirm(all_of_it=True)

    def drain(self, *, again: Sequence[str] | None = None) -> int:
        with self._opened() as file:
            life = Life(self, file)
            life.begin(again)
            target = life.end_of_outbox()
            while life.step() and (life.end < target or life.copying):
                pass
            life.confirm(all_of_it=True)
            return life.changes

    def uninstall(self) -> list[str]:
        """Removes the outbox and its triggers. The next start makes others, and reads all tables again."""
        outbox = self._outbox()
        with self._opened() as file, file.writing() as db:
            gone = remove(db, [outbox] if outbox else [])
        Journal(self.log, self.name).write([], {("slot", ""): {}})
        return gone


class Life:
    """From opening the file to closing it."""

    def __init__(self, capture: SqliteCapture, file: File) -> None:
        self._capture, self._file = capture, file
        self.journal = Journal(capture.log, capture.name)
        private_folder(capture.folder)
        self._secret = stored_secret(capture.folder) if capture.choice.mask else b""
        self._survey = self._made(str(self.journal.states.get(("slot", ""), {}).get("name", "")))
        self.end: int = self.journal.states.get(("place", ""), {}).get("end", 0)
        """The number of the last row of the outbox that is in the log."""
        self._confirmed = 0
        self._confirmed_at = self._looked_at = 0.0
        self._data_version = -1
        self.changes = 0

    def _made(self, outbox: str) -> Survey:
        return Survey(self._file, self.journal, self._capture.choice, outbox, self._secret)

    # -- beginning ---------------------------------------------------------------------------------

    def begin(self, again: Sequence[str] | None) -> None:
        slot = self.journal.states.get(("slot", ""), {})
        if not slot.get("made") or again == ():
            self._set_up(slot)
        else:
            self._check_outbox()
        self._survey.look()
        if again:
            self._mark_again(again)
        facts = json.loads(json.dumps(self._facts()))
        if self.journal.states.get(("capture", "")) != facts:
            self.journal.write([], {("capture", ""): facts})

    def _facts(self) -> Value:
        choice = self._capture.choice
        shown = f"sqlite:///{self._capture.path}"
        return {"database": shown, "tables": choice.tables, "mask": dict(choice.mask), "source": "sqlite"}

    def _set_up(self, slot: Value) -> None:
        """An outbox of our own. Its name is recorded before it is made, so what was begun is removed at last. Tables
        that were captured before are read again."""
        name = f"headrace_{self._capture.name}_{secrets.token_hex(4)}"
        earlier = [*slot.get("before", []), *([slot["name"]] if "name" in slot else [])]
        self.journal.write([], {("slot", ""): {"name": name, "before": earlier}})
        with self._file.writing() as db:
            remove(db, earlier)
            make_outbox(db, name)
        reach("capture.slot")
        at_ms = self._file.one(f"SELECT at_ms FROM {quoted(name)}")
        self._survey = self._made(name)
        with self._file.reading() as db:
            sources = {each.name: each for each in tables_of(db, self._capture.choice)}
        again = [
            self._survey.again(known, sources[known.name])
            for known in self._survey.tables.values()
            if known.name in sources
        ]
        place = {("slot", ""): {"name": name, "made": True}, ("place", ""): {"end": 1, "at_us": at_ms * 1000}}
        self.journal.write([], {("table", each.full_name): each.value() for each in again} | place)
        self._survey, self.end = self._made(name), 1

    def _check_outbox(self) -> None:
        """The last row that is in the log is in the outbox still, and it is that row."""
        outbox, place = self._survey.outbox, self.journal.states["place", ""]
        if not self._file.one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", outbox):
            why = f"its outbox {outbox!r} is gone"
        else:
            found = self._file.one(f"SELECT at_ms FROM {quoted(outbox)} WHERE number = ?", self.end)
            if found is not None and found * 1000 == place["at_us"]:
                return
            why = "its outbox does not go on where the log ends: the file, or the log, is an older copy"
        raise CaptureGap(self._capture.name, f"sqlite:///{self._capture.path}", why, slot=outbox)

    def _mark_again(self, names: Sequence[str]) -> None:
        by_name = {known.full_name: known for known in self._survey.tables.values()}
        changed = []
        for name in names:
            full = ".".join(self._capture.choice.full(name))
            if full not in by_name:
                why = f"table {full!r} is not captured. There are: {', '.join(by_name) or 'none'}"
                raise self._file.failed(why)
            source = self._survey.sources.get(by_name[full].name)
            if source is None:
                raise self._file.failed(f"table {full!r} is not in the database any more")
            marked = self._survey.again(by_name[full], source)
            if marked.state == "stopped":
                raise self._file.failed(f"table {full!r} cannot be captured: {marked.why}")
            changed.append(marked)
        self._survey.record(changed)
        self._survey.look()

    @property
    def copying(self) -> bool:
        return any(each.state in ("copying", "reading again") for each in self._survey.tables.values())

    def end_of_outbox(self) -> int:
        return int(self._file.one(f"SELECT max(number) FROM {quoted(self._survey.outbox)}"))

    # -- going on ----------------------------------------------------------------------------------

    def step(self) -> bool:
        """Takes what is there, and the next chunk of a table. False if there was nothing to take."""
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._file.check_in_place()
            self._looked_at = time.monotonic()
        version = self._file.one("PRAGMA main.data_version")
        if version == self._data_version and not self.copying:
            self.confirm()
            return False
        self._data_version = version
        taken = Taking(self._file, self._survey, self.end, Parts(self._capture.folder))
        if not taken.all_there_is():  # the schema is another
            self._survey.look()
            self._data_version = -1
            return True
        if not taken.changed and taken.end <= self.end:
            return False
        written = False
        while not written:
            try:
                self._write(taken)
                written = True
            except RecordTooLarge as error:
                taken.leave_out(error)
        self._survey.tables |= taken.changed
        self.end, self.changes = taken.end, self.changes + taken.changes
        self._asked(taken.asked)
        if any(each.state == "stopped" for each in taken.changed.values()):
            self._survey.look()  # its triggers go
        self.confirm()
        return True

    def _write(self, taken: Taking) -> None:
        changed: dict[Name, Value] = {("table", each.full_name): each.value() for each in taken.changed.values()}
        if taken.end > self.end:
            changed["place", ""] = {"end": taken.end, "at_us": taken.at_ms * 1000}
        self.journal.write(taken.parts, changed)

    def _asked(self, asked: Sequence[str]) -> None:
        for text in asked:
            try:
                self._mark_again([str(name) for name in json.loads(text)])
            except (ValueError, TypeError, CaptureFailed) as error:
                if isinstance(error, CaptureFailed) and error.passing:
                    raise
                logger.warning("asked to read tables again: %s", error)

    def confirm(self, *, all_of_it: bool = False) -> None:
        """Removes rows that are in the log, all but the last one; not at every step, and later if somebody writes."""
        rows, now = self.end - 1 - self._confirmed, time.monotonic()
        if rows <= 0 or not (all_of_it or rows > CONFIRM_ROWS or now - self._confirmed_at > CONFIRM_SECONDS):
            return
        self._confirmed_at, outbox = now, quoted(self._survey.outbox)
        at = self._file.one(f"SELECT min(number) FROM {outbox}") or self.end
        while at < self.end:
            at = min(at + REMOVED_ROWS, self.end)
            with self._file.writing() as db:
                db.execute(f"DELETE FROM {outbox} WHERE number < ?", (at,))
        self._confirmed = self.end - 1
