"""From a database's transactions to the log. Owns what is read and not written yet, and when it is written: whole
transactions, several at once if they wait, together with the place behind the last. Knows no connection, and no
database: a database's own reader says what happened (`apply`, `lay_out`, `truncate`, `committed`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cdc.change import Change, Row, Transaction
from headrace.cdc.current import deletes_of, live_keys
from headrace.cdc.journal import Journal, Name, Value
from headrace.cdc.parts import Parts
from headrace.cdc.rows import UPSERT, Key, Shape, TableRows, loaded_mark, newest_rows, too_large
from headrace.cdc.tables import Column, Difference, Known, NotHeld, Tracked
from headrace.errors import InvalidArgument, InvalidSchema, RecordTooLarge
from headrace.schema import OP_COLUMN

if TYPE_CHECKING:
    from headrace.cdc.envelopes.writing import Envelopes

__all__ = ["Applying", "Stop"]

logger = logging.getLogger("headrace.cdc")
PIECE_ROWS: Final = 20_000


class Stop(Exception):
    """A table cannot go on: why."""


class Applying:
    """`shape(known, columns)` makes a shape; `is_behind(known, key, bound)` asks the database for the order of keys;
    `grow(known, difference, shape)` gives a topic columns more, and says whether rows that were there have values in
    them."""

    def __init__(
        self,
        journal: Journal,
        folder: Path,
        *,
        shape: Callable[[Known, Sequence[Column]], Shape],
        is_behind: Callable[[Known, Row, Sequence[str]], bool],
        grow: Callable[[Known, Difference, Shape], bool],
    ) -> None:
        self.journal = journal
        self._shape, self._is_behind, self._grow = shape, is_behind, grow
        self.end: int = journal.states.get(("place", ""), {}).get("end", 0)
        """The end of the last transaction that is read whole."""
        self.tables: dict[int | str, Tracked] = {}
        self._folder = folder
        self._parts = Parts(folder)
        self._changed: dict[Name, Value] = {}
        self.rows = 0
        """Changes that are read and not written."""
        self.last: Transaction | None = None
        self.signals: list[bytes] = []
        """What was asked of us through the database's log, in transactions that are read whole."""
        self.changes = 0
        self.transactions = 0
        self.echo: Envelopes | None = None
        """What is told of changes beside the tables' topics."""

    def track(self, known: Known) -> Tracked:
        """From now on, changes of the table are applied, unless it is stopped."""
        shape = self._shape(known, known.columns)
        table = Tracked(known, self._rows(known, shape))
        self.tables[known.id] = table
        return table

    def _rows(self, known: Known, shape: Shape) -> TableRows:
        def filled(keys: set[Key], columns: Sequence[str]) -> Mapping[Key, Mapping[str, Any]]:
            return self._filled(known.topic, shape, keys, columns)

        return TableRows(shape, filled)

    # -- what happened -----------------------------------------------------------------------------

    def live(self, number: int | str) -> Tracked | None:
        """The table, if its changes are applied."""
        table = self.tables.get(number)
        return None if table is None or table.known.state == "stopped" else table

    def apply(self, table: Tracked, change: Change) -> None:
        """A change of a row, or one of its parts, unless a chunk already has it."""
        if table.known.chunks and table.left_out(change, lambda key, bound: self._is_behind(table.known, key, bound)):
            return
        if self.echo is not None:
            try:
                self.echo.changed(table.known, change, self.end)
            except NotHeld as error:
                self.stop(table, str(error))
                return
        table.rows.add(change)
        self.rows += 1
        self.changes += 1
        if len(table.rows) >= PIECE_ROWS:
            self._take(table)

    def committed(self, transaction: Transaction) -> None:
        """All of the transaction is read."""
        self.end, self.last = transaction.end, transaction
        self.transactions += 1

    def lay_out(self, table: Tracked, found: Difference, columns: Sequence[Column], transaction: Transaction) -> None:
        """The table's changes have these columns from now on, which differ like this from what is recorded."""
        self._take(table)
        if table.known.chunks and all(chunk.has(transaction) for chunk in table.known.chunks):
            found = Difference((), (), (), None)  # the chunk was read later, and the table is as it was read
        try:
            if found and not found.is_growth:
                raise Stop(f"the table has changed: {found}")
            shape = self._shape(table.known, columns)
            if found:
                filled = self._grow(table.known, found, shape)
                state = "reading again" if filled else table.known.state
                self.note(table, replace(table.known, columns=(*table.known.columns, *found.added), state=state))
                logger.info("capture %s: %s: %s", self.journal.capture, table.known.full_name, found)
        except (Stop, InvalidSchema, InvalidArgument, ValueError) as error:
            self.stop(table, str(error))
            return
        table.rows = self._rows(table.known, shape)
        table.lay_out(shape)
        if self.echo is not None:
            self.echo.lay_out(table.known, columns)

    def truncate(self, table: Tracked, transaction: Transaction, at: int = 0) -> None:
        """All rows go."""
        has = {chunk.has(transaction) for chunk in table.known.chunks}
        if True in has:
            if len(has) > 1:
                self.note(table, replace(table.known, state="reading again"))
            return
        self._take(table)
        if self.echo is not None:
            self.echo.truncated(table.known, transaction, at, self.end)
        shape, topic = table.rows.shape, self.journal.log.topic(table.known.topic)
        keys: dict[Key, bytes] = {}
        live_keys(topic.batches(columns=[*shape.key_names, OP_COLUMN]), shape.key_names, keys)
        live_keys([part for name, part in self._parts if name == table.known.topic], shape.key_names, keys)
        for deletes in deletes_of(keys, shape):
            self._parts.append((table.known.topic, deletes))
            self.rows += deletes.num_rows
            self.changes += deletes.num_rows

    # -- what is recorded --------------------------------------------------------------------------

    def record(self, kind: str, value: Value) -> None:
        """Records it with what is written next."""
        self._changed[kind, ""] = value

    def note(self, table: Tracked, known: Known) -> None:
        """Records it with what is written next."""
        table.known = known
        self._changed["table", known.full_name] = known.value()

    def stop(self, table: Tracked, why: str) -> None:
        """The table's changes are not applied any more; the others' are."""
        logger.warning("capture %s: table %s is stopped: %s", self.journal.capture, table.known.full_name, why)
        table.rows = self._rows(table.known, table.rows.shape)
        self.note(table, replace(table.known, state="stopped", why=why))

    def _take(self, table: Tracked) -> None:
        """What the table has, as a part of what is written next."""
        if not len(table.rows):
            return
        try:
            rows = table.rows.take()
        except (NotHeld, Stop) as error:
            self.stop(table, str(error))
        else:
            self._parts.append((table.known.topic, rows))
            self._take_events()

    def _take_events(self) -> None:
        for part in () if self.echo is None else self.echo.take():
            self._parts.append(part)

    def _filled(
        self, topic: str, shape: Shape, keys: set[Key], columns: Sequence[str]
    ) -> Mapping[Key, Mapping[str, Any]]:
        """The newest row of each key: in what is not written yet, else in the topic."""
        left, found = set(keys), dict[Key, Mapping[str, Any]]()
        for name, part in reversed(self._parts):
            if name != topic or not left:
                continue
            there = zip(*(part[name].to_pylist() for name in shape.key_names), strict=True)
            places = {key: at for at, key in enumerate(there) if key in left}
            for key, at in places.items():
                if part[OP_COLUMN][at].as_py() == UPSERT:
                    found[key] = {column: part[column][at].as_py() for column in columns}
            left -= places.keys()
        found |= newest_rows(self.journal.log.topic(topic), left, shape.key_names, columns)
        if len(found) < len(keys):
            raise Stop("an update says that a large value is unchanged, and the table's topic does not have the row")
        return found

    # -- writing -----------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes all that is read, and the place behind it."""
        for table in self.tables.values():
            self._take(table)
            self._passed(table)
        self._take_events()
        place: Value = {"end": self.end}
        if self.last is not None:
            place |= {"xid": self.last.number, "at_us": self.last.at_us}
        written = False
        while not written:
            try:
                self.journal.write(self._parts, {**self._changed, ("place", ""): place})
                written = True
            except RecordTooLarge as error:
                self._leave_out(error)
        self._parts, self._changed, self.rows = Parts(self._folder), {}, 0

    def _leave_out(self, error: RecordTooLarge) -> None:
        """The table is stopped whose row no topic holds; the others are written."""
        table = next((each for each in self.tables.values() if error.topic in self._topics(each.known)), None)
        if table is None:
            raise error
        self.stop(table, too_large(error))
        self._parts = self._parts.without(self._topics(table.known))

    def _topics(self, known: Known) -> set[str]:
        return {known.topic, *([] if self.echo is None else [self.echo.topic_of(known)])}

    def _passed(self, table: Tracked) -> None:
        """The stream has passed all that the table's chunks have: they are no matter any more, and it is loaded."""
        known = table.known
        if known.state != "live" or (not known.chunks and known.loaded):
            return
        if all(chunk.seen is None or chunk.seen.is_passed(self.end) for chunk in known.chunks):
            if not known.loaded:
                self._parts.append((known.topic, loaded_mark(table.rows.shape)))
            self.note(table, replace(known, chunks=(), loaded=True))
