"""Which tables of a SQLite database are captured, and what has become of them since the last look. Owns what is
recorded of tables, and that the triggers are those that the tables need.

What is to be done is recorded first, then the triggers are made: after a crash between the two a table is read again
that need not be, and never the other way round."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.cdc.choice import Choice
from headrace.cdc.journal import Journal
from headrace.cdc.rows import Shape
from headrace.cdc.sqlite.catalog import SqliteTable, tables_of
from headrace.cdc.sqlite.file import File
from headrace.cdc.sqlite.triggers import installed, set_triggers, triggers_of
from headrace.cdc.sqlite.types import plain
from headrace.cdc.tables import Known, State, difference_of, shape_of
from headrace.cdc.topics import fit_topic
from headrace.errors import HeadraceError, UnknownTopic
from headrace.names import check_name

if TYPE_CHECKING:
    from headrace.log.contract import Topic

__all__ = ["Survey"]

logger = logging.getLogger("headrace.cdc")


class Survey:
    """`tables`: what is recorded of each, by its number. `sources`: what the database said of them at the last look."""

    def __init__(self, file: File, journal: Journal, choice: Choice, outbox: str, secret: bytes) -> None:
        self._file, self._journal, self._choice, self._secret = file, journal, choice, secret
        self.outbox = outbox
        self.tables = {known.id: known for known in map(Known.of, journal.of("table").values())}
        self.sources: dict[str, SqliteTable] = {}
        self.version = -1
        """Of the database's schema, when it was looked at."""

    def shape(self, known: Known) -> Shape:
        masks = self._choice.masks(known.schema, known.name)
        return shape_of(known.columns, known.key, masks, self._secret, plain=plain)

    # -- looking -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Until nothing is left to do: what is recorded of tables is what there is, and so are the triggers."""
        while True:
            with self._file.reading() as db:
                (version,) = db.execute("PRAGMA main.schema_version").fetchone()
                self.sources = {each.name: each for each in tables_of(db, self._choice)}
                there = installed(db, self.outbox)
            changed = {known.id: known for known in self._differing(there)}
            self.record(changed.values())
            if there == self._triggers() and not changed:
                self.version = version
                return
            with self._file.writing() as db:
                # what is recorded may be older than the table by now: the next look sees that, as this changes it
                set_triggers(db, self.outbox, self._triggers(), max(map(self._width, self.tables.values()), default=0))

    def record(self, changed: Collection[Known]) -> None:
        """Written at once."""
        found = {("table", known.full_name): known.value() for known in changed}
        if found:
            self._journal.write([], found)
            self.tables |= {known.id: known for known in changed}

    @staticmethod
    def _width(known: Known) -> int:
        return len(known.columns)

    def _triggers(self) -> dict[str, str]:
        """Those that the tables need."""
        found: dict[str, str] = {}
        for known in self.tables.values():
            source = self.sources.get(known.name)
            if known.state != "stopped" and source is not None:
                assert isinstance(known.id, int)
                found |= triggers_of(_in_order(source, known), known.id, self.outbox)
        return found

    def _differing(self, there: dict[str, str]) -> list[Known]:
        """What is to be recorded otherwise."""
        found, seen = [], set()
        for known in self.tables.values():
            seen.add(known.name)
            now = self._now(known, there)
            if now != known:
                found.append(now)
                if now.state == "stopped":
                    logger.warning("capture %s: table %s is stopped: %s", self._file.capture, known.name, now.why)
        number = max((int(each) for each in self.tables), default=0)
        taken = {each.topic for each in self.tables.values()}
        for name, source in self.sources.items():
            if name not in seen:
                number += 1
                made = self._new(source, number, taken)
                taken.add(made.topic)
                found.append(made)
        return found

    def _now(self, known: Known, there: dict[str, str]) -> Known:
        source = self.sources.get(known.name)
        if known.state == "stopped":
            return known
        if source is None:
            return replace(known, state="stopped", why="it is not there any more, or not chosen")
        if source.refused is not None:
            return replace(known, state="stopped", why=source.refused)
        if not self._has_topic(known):
            return self._new(source, int(known.id), set())
        difference = difference_of(known, source.columns, source.key)
        if difference and not difference.is_growth:
            return replace(known, state="stopped", why=f"the table has changed: {difference}")
        needed = triggers_of(_in_order(source, known), int(known.id), self.outbox)
        mine = {name: sql for name, sql in there.items() if name.startswith(f"{self.outbox}_{known.id}_")}
        if not difference and mine == needed:
            return known
        if known.state == "copying" and known.after is None and not difference:
            return known  # nothing is copied yet: the triggers come first
        return self.again(known, source)

    def again(self, known: Known, source: SqliteTable) -> Known:
        """The table is read again, with the columns that it has now; stopped, if that cannot be."""
        if not self._has_topic(known):
            return self._new(source, int(known.id), set())
        fresh = replace(known, columns=source.columns, after=None)
        try:
            if source.refused is not None:
                raise self._file.failed(source.refused)
            if set(source.key) != set(known.key):
                raise self._file.failed(f"the key is now ({', '.join(source.key)}): delete topic {known.topic!r}")
            self._topic(fresh)
        except HeadraceError as error:
            return replace(known, state="stopped", why=getattr(error, "why", "") or str(error))
        return replace(fresh, state="reading again", why="", epoch=known.epoch + 1)

    def _new(self, source: SqliteTable, number: int, taken: set[str]) -> Known:
        """A table that was not captured before. With a masked key it is read in one piece: how far it is copied would
        be a value that is not to be stored."""
        name = self._choice.topic(self._file.capture, source.schema, source.name)
        masks = self._choice.masks(source.schema, source.name)
        state: State = "reading again" if set(source.key) & set(masks) else "copying"
        known = Known(number, source.schema, source.name, name, source.key, source.columns, state=state)
        why = source.refused
        if why is None and name in taken:
            why = f"the topic {name!r} is another table's"
        if why is None:
            try:
                check_name(name, argument="table")
                self._topic(known)
            except HeadraceError as error:
                why = str(error)
        return known if why is None else replace(known, state="stopped", why=why)

    # -- topics ------------------------------------------------------------------------------------

    def _has_topic(self, known: Known) -> bool:
        try:
            self._journal.log.topic(known.topic)
        except UnknownTopic:
            return False
        return True

    def topic(self, known: Known) -> Topic:
        return self._journal.log.topic(known.topic)

    def _topic(self, known: Known) -> None:
        """The table's topic has these columns: made, or given those that it does not have."""
        if why := fit_topic(self._journal.log, known.topic, self.shape(known)):
            raise self._file.failed(why)


def _in_order(source: SqliteTable, known: Known) -> SqliteTable:
    """The table with its columns as they are recorded: that is how the outbox has them."""
    there = {column.name: column for column in source.columns}
    return replace(source, columns=tuple(there[each.name] for each in known.columns if each.name in there))
