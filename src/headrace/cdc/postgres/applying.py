"""From the messages of Postgres' stream to what happened to tables. Owns the messages of a transaction until its commit
has come: in memory, those of a large one in a temporary file. So nothing of a transaction that is cut off is ever in
the log."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from headrace.cdc import applying
from headrace.cdc.change import UNCHANGED, Change, Place, Transaction, parts_of
from headrace.cdc.postgres import messages as m
from headrace.cdc.tables import Column, Difference, Known, Tracked, difference_of
from headrace.storage import disk

__all__ = ["Applying", "Spool"]

SPILL_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct(">I")


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


class Applying(applying.Applying):
    """What is read of Postgres' stream."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._begun: m.Begin | None = None
        self._skipped = False
        self._spool = Spool(self._folder)
        self.numbered: Callable[[int, Sequence[Column]], tuple[Column, ...]] = lambda _, columns: tuple(columns)
        """Columns with their numbers in the catalog."""

    @property
    def in_transaction(self) -> bool:
        return self._begun is not None

    def read(self, data: bytes, at: bytes = bytes(8)) -> bool:
        """Takes a message; `at`: where it is in the database's log. True at the end of a transaction."""
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
            self._spool.add(data if self.echo is None else at + data)
        return False

    def _committed(self, commit: m.Commit) -> None:
        begun, self._begun = self._begun, None
        assert begun is not None
        transaction = Transaction(begun.xid, commit.end, commit.at_us)
        number = at = 0
        for data in self._spool.take():
            if self.echo is None:
                message = m.decode(data)
            else:
                at, message = int.from_bytes(data[:8], "big"), m.decode(data[8:])
            if isinstance(message, m.Insert | m.Update | m.Delete):
                self._row(message, number, transaction, at)
                number += 1
            elif isinstance(message, m.Relation):
                if (table := self.live(message.oid)) is not None:
                    message = message._replace(columns=self.numbered(message.oid, message.columns))
                    self.lay_out(table, relation_difference(table.known, message), message.columns, transaction)
            elif isinstance(message, m.Truncate):
                for table in filter(None, map(self.live, message.oids)):
                    self.truncate(table, transaction, at)
            elif isinstance(message, m.Logical) and message.prefix == "headrace":
                self.signals.append(message.content)
        if not self._skipped:
            self.committed(transaction)

    def _row(self, message: m.Insert | m.Update | m.Delete, number: int, transaction: Transaction, at: int) -> None:
        table = self.live(message.oid)
        if table is not None:
            for change in changes_of(table, message, number, transaction):
                self.apply(table, change if self.echo is None else change._replace(at=at))


def changes_of(
    table: Tracked, message: m.Insert | m.Update | m.Delete, number: int, transaction: Transaction
) -> tuple[Change, ...]:
    """What a message says that happened to a row."""
    name, place = table.known.full_name, Place(transaction.end, number)
    if isinstance(message, m.Insert):
        return (Change("insert", name, table.key_of(message.new), None, message.new, place, transaction),)
    if isinstance(message, m.Delete):
        return (Change("delete", name, table.key_of(message.old), message.old, None, place, transaction),)
    new, old = message.new, message.old
    if old is None:
        return (Change("update", name, table.key_of(new), None, new, place, transaction),)
    if UNCHANGED in new:
        of_old = frozenset(range(len(new))) if message.whole else frozenset(table.rows.shape.key)
        new = tuple(
            [old[at] if value is UNCHANGED and at in of_old else value for at, value in enumerate(new)],
        )
    change = Change("update", name, table.key_of(new), old, new, place, transaction)
    return parts_of(change, table.key_of(old))


def relation_difference(known: Known, relation: m.Relation) -> Difference:
    """With REPLICA IDENTITY FULL all columns are said to be the key."""
    said = tuple(sorted(column.name for column in relation.columns if column.in_identity))
    return difference_of(known, relation.columns, None if relation.identity == "f" else said)
