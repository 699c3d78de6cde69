"""From the stream's transactions to the log. Owns what is read and not written yet, and when it is written: whole
transactions, several at once if they wait, together with the place behind the last. Knows no connection.

A transaction is taken apart when its commit has come. Until then its messages lie in memory, those of a large one in a
temporary file. So nothing of a transaction that is cut off is ever in the log."""

from __future__ import annotations

import logging
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

from headrace.cdc.change import Transaction
from headrace.cdc.current import deletes_of, live_keys
from headrace.cdc.journal import Journal, Name, Value
from headrace.cdc.parts import Parts
from headrace.cdc.postgres import messages as m
from headrace.cdc.postgres.tables import Chunk, Difference, Known, Tracked, changes_of, difference_of
from headrace.cdc.postgres.types import NotHeld
from headrace.cdc.rows import UPSERT, Key, Shape, TableRows, loaded_mark, newest_rows
from headrace.errors import InvalidArgument, InvalidSchema
from headrace.schema import OP_COLUMN
from headrace.storage import disk

__all__ = ["Applying", "Spool", "Stop", "private_folder", "with_chunk"]

logger = logging.getLogger("headrace.cdc")
SPILL_BYTES: Final = 16 << 20
PIECE_ROWS: Final = 20_000
_LENGTH: Final = struct.Struct(">I")


class Stop(Exception):
    """A table cannot go on: why."""


class Spool:
    """The messages of one transaction, in order. Those beyond `SPILL_BYTES` are in a file that has no name."""

    def __init__(self, folder: Path, spill_bytes: int = SPILL_BYTES) -> None:
        self._folder, self._spill_bytes = folder, spill_bytes
        self._held: list[bytes] = []
        self._size = 0
        self._file: IO[bytes] | None = None
        self.spilled = 0

    def add(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._size >= self._spill_bytes:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            disk.make_directory(self._folder)
            with disk.typed(self._folder):
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (until it is taken)
        with disk.typed(self._folder):
            for data in self._held:
                self._file.write(_LENGTH.pack(len(data)))
                self._file.write(data)
        self.spilled += self._size
        self._held, self._size = [], 0

    def take(self) -> Iterator[bytes]:
        """All of it, once."""
        file, held = self._file, self._held
        self._file, self._held, self._size, self.spilled = None, [], 0, 0
        if file is not None:
            with file, disk.typed(self._folder):
                file.seek(0)
                while head := file.read(4):
                    yield file.read(_LENGTH.unpack(head)[0])
        yield from held


class Applying:
    """`shape(known, columns)` makes a shape; `is_behind(known, key, bound)` asks Postgres for the order of keys;
    `grow(known, difference, shape)` gives a topic columns more, and says whether rows that were there have values in
    them."""

    def __init__(
        self,
        journal: Journal,
        folder: Path,
        *,
        shape: Callable[[Known, Sequence[m.Column]], Shape],
        is_behind: Callable[[Known, Sequence[str], Sequence[str]], bool],
        grow: Callable[[Known, Difference, Shape], bool],
    ) -> None:
        self.journal = journal
        self._shape, self._is_behind, self._grow = shape, is_behind, grow
        self.end: int = journal.states.get(("place", ""), {}).get("end", 0)
        """The end of the last transaction that is read whole."""
        self.tables: dict[int, Tracked] = {}
        self._folder = folder
        self._parts = Parts(folder)
        self._changed: dict[Name, Value] = {}
        self._begun: m.Begin | None = None
        self._skipped = False
        self._spool = Spool(folder)
        self.rows = 0
        """Changes that are read and not written."""
        self.last: Transaction | None = None
        self.signals: list[bytes] = []
        """What logical messages of headrace's own said, in transactions that are read whole."""
        self.changes = 0
        self.transactions = 0

    @property
    def in_transaction(self) -> bool:
        return self._begun is not None

    def track(self, known: Known) -> Tracked:
        """From now on, changes of the table are applied, unless it is stopped."""
        shape = self._shape(known, known.columns)
        table = Tracked(known, self._rows(known, shape))
        self.tables[known.oid] = table
        return table

    def _rows(self, known: Known, shape: Shape) -> TableRows:
        def filled(keys: set[Key], columns: Sequence[str]) -> Mapping[Key, Mapping[str, Any]]:
            return self._filled(known.topic, shape, keys, columns)

        return TableRows(shape, filled)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, data: bytes) -> bool:
        """Takes a message. True at the end of a transaction."""
        kind = data[0]
        if kind == ord("B"):
            begun = m.decode(data)
            assert isinstance(begun, m.Begin)
            self._begun, self._skipped = begun, begun.final < self.end
        elif kind == ord("C"):
            commit = m.decode(data)
            assert isinstance(commit, m.Commit)
            self._committed(commit)
            return True
        elif not self._skipped or kind == ord("R"):  # what a table looks like is said only once
            self._spool.add(data)
        return False

    def _committed(self, commit: m.Commit) -> None:
        begun, self._begun = self._begun, None
        assert begun is not None
        transaction = Transaction(begun.xid, commit.end, commit.at_us)
        number = 0
        for data in self._spool.take():
            message = m.decode(data)
            if isinstance(message, m.Insert | m.Update | m.Delete):
                self._row(message, number, transaction)
                number += 1
            elif isinstance(message, m.Relation):
                self._relation(message, transaction)
            elif isinstance(message, m.Truncate):
                self._truncated(message, transaction)
            elif isinstance(message, m.Logical) and message.prefix == "headrace":
                self.signals.append(message.content)
        if not self._skipped:
            self.end, self.last = commit.end, transaction
            self.transactions += 1

    def _row(self, message: m.Insert | m.Update | m.Delete, number: int, transaction: Transaction) -> None:
        table = self.tables.get(message.oid)
        if table is None or table.known.state == "stopped":
            return
        for change in changes_of(table, message, number, transaction):
            if table.known.chunks and table.left_out(
                change, lambda key, bound: self._is_behind(table.known, key, bound)
            ):
                continue
            table.rows.add(change)
            self.rows += 1
            self.changes += 1
        if len(table.rows) >= PIECE_ROWS:
            self._take(table)

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

    # -- what a table is -----------------------------------------------------------------------------

    def _relation(self, relation: m.Relation, transaction: Transaction) -> None:
        table = self.tables.get(relation.oid)
        if table is None or table.known.state == "stopped":
            return
        self._take(table)
        difference = difference_of(table.known, relation)
        if table.known.chunks and all(chunk.has(transaction) for chunk in table.known.chunks):
            difference = Difference((), (), (), None)  # the chunk was read later, and the table is as it was read
        try:
            if difference and not difference.is_growth:
                raise Stop(f"the table has changed: {difference}")
            shape = self._shape(table.known, relation.columns)
            if difference:
                filled = self._grow(table.known, difference, shape)
                columns = (*table.known.columns, *difference.added)
                state = "reading again" if filled else table.known.state
                self.note(table, replace(table.known, columns=columns, state=state))
                logger.info("capture %s: %s: %s", self.journal.capture, table.known.full_name, difference)
        except (Stop, InvalidSchema, InvalidArgument, ValueError) as error:
            self.stop(table, str(error))
            return
        table.rows = self._rows(table.known, shape)
        table.lay_out(shape)

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

    def _truncated(self, message: m.Truncate, transaction: Transaction) -> None:
        for oid in message.oids:
            table = self.tables.get(oid)
            if table is None or table.known.state == "stopped":
                continue
            if any(chunk.has(transaction) for chunk in table.known.chunks):
                if len({chunk.has(transaction) for chunk in table.known.chunks}) > 1:
                    self.note(table, replace(table.known, state="reading again"))
                continue
            self._take(table)
            shape, topic = table.rows.shape, self.journal.log.topic(table.known.topic)
            keys: dict[Key, bytes] = {}
            live_keys(topic.batches(columns=[*shape.key_names, OP_COLUMN]), shape.key_names, keys)
            live_keys([part for name, part in self._parts if name == table.known.topic], shape.key_names, keys)
            for deletes in deletes_of(keys, shape):
                self._parts.append((table.known.topic, deletes))
                self.rows += deletes.num_rows
                self.changes += deletes.num_rows

    # -- writing -----------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes all that is read, and the place behind it."""
        for table in self.tables.values():
            self._take(table)
            self._passed(table)
        place: Value = {"end": self.end}
        if self.last is not None:
            place |= {"xid": self.last.number, "at_us": self.last.at_us}
        self.journal.write(self._parts, {**self._changed, ("place", ""): place})
        self._parts, self._changed, self.rows = Parts(self._folder), {}, 0

    def _passed(self, table: Tracked) -> None:
        """The stream has passed all that the table's chunks have: they are no matter any more, and it is loaded."""
        known = table.known
        if known.state != "live" or (not known.chunks and known.loaded):
            return
        if all(chunk.seen is None or chunk.seen.until < self.end for chunk in known.chunks):
            if not known.loaded:
                self._parts.append((known.topic, loaded_mark(table.rows.shape)))
            self.note(table, replace(known, chunks=(), loaded=True))


def private_folder(path: Path) -> Path:
    """A folder that only its owner may look into."""
    disk.make_directory(path)
    with disk.typed(path):
        os.chmod(path, disk.DIRECTORY_MODE)
    return path


def with_chunk(known: Known, chunk: Chunk) -> Known:
    """The rest of the table is copied in another snapshot."""
    before = known.chunks or ((Chunk(),) if known.after is not None else ())
    ended = (
        [*before[:-1], *(replace(each, upto=known.after) for each in before[-1:])] if known.after is not None else []
    )
    return replace(known, chunks=(*ended, chunk))
