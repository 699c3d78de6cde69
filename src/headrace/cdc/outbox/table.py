"""A table of events in a database that Python's DB-API reaches. Owns the SQL: which rows wait, in which order, and that
rows which are taken are deleted or marked; and which capture reads it, in a table beside it. Knows no topic.

Rows that are committed late, with a lower number, are found: a row waits until it is taken, whatever its number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.cdc.choice import READERS
from headrace.cdc.outbox.address import Outbox
from headrace.errors import CaptureFailed

__all__ = ["Connected", "Event", "Events"]

logger = logging.getLogger("headrace.cdc")
BINARY: Final = {"bytea", "tinyblob", "blob", "mediumblob", "longblob", "binary", "varbinary"}
TOLD_ROWS: Final = 500
"""So many are named in one statement."""


def _never(table: Sequence[str], outbox: Outbox, there: dict[str, str]) -> str | None:  # noqa: ARG001
    return None


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Connected:
    """A connection, and what its database does in its own way. `mark`: the place of a parameter, counted from 1.
    `writing`: a transaction. `columns`: of a table, with
    their types in lower case; none if there is no table. `insert_new`: what inserts a row unless its key is there, with
    places for the table and the values. `refused`: why the table cannot be an outbox.
    `is_new`: whether there may be something that was not there before, where that is cheaper than to look."""

    connection: Any
    mark: Callable[[int], str]
    quoted: Callable[[str], str]
    failed: Callable[..., CaptureFailed]
    translated: Callable[[], AbstractContextManager[None]]
    writing: Callable[[], AbstractContextManager[Any]]
    columns: Callable[[Sequence[str]], dict[str, str]]
    insert_new: str
    close: Callable[[], None]
    refused: Callable[[Sequence[str], Outbox, dict[str, str]], str | None] = _never
    is_new: Callable[[], bool] = _always


class Event(NamedTuple):
    """A row, its values as the database's client gives them."""

    id: Any
    topic: Any
    key: Any
    type: Any
    headers: Any
    payload: Any


class Events:
    def __init__(self, db: Connected, outbox: Outbox) -> None:
        self._db, self._outbox = db, outbox
        self._more = False
        """Whether something was there at the last look: then more may be."""
        parts = outbox.table.split(".")
        self._table, self._own_name = self._name_of(parts), parts[-1]
        self._readers = [*parts[:-1], READERS]
        with db.translated():
            there = db.columns(parts)
            why = self._refused(there) or db.refused(parts, outbox, there)
        if why is not None:
            raise db.failed(why)
        self.is_binary = there[outbox.payload].split("(")[0] in BINARY
        names = (outbox.id, outbox.topic, outbox.key, outbox.type, outbox.headers, outbox.payload)
        self._columns = ", ".join(db.quoted(name) if name in there else "NULL" for name in names)
        self._waits = f" WHERE {db.quoted(outbox.keep)} IS NULL" if outbox.keep else ""

    def _refused(self, there: dict[str, str]) -> str | None:
        outbox = self._outbox
        if not there:
            return f"there is no table {outbox.table!r}"
        needed = [outbox.id, outbox.topic, outbox.payload, outbox.ordered_by, *([outbox.keep] if outbox.keep else [])]
        if missing := [name for name in needed if name not in there]:
            columns = ", ".join(there)
            return f"table {outbox.table!r} has no column {missing[0]!r}: there are {columns}. Name it in hr.outbox"
        if there[outbox.ordered_by] == "uuid":
            return f"column {outbox.ordered_by!r} is a uuid, which has no order: name one that grows with order="
        return None

    def _name_of(self, parts: Sequence[str]) -> str:
        return ".".join(map(self._db.quoted, parts))

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self._db.connection.cursor()
        try:
            cursor.execute(sql, values)
            return list(cursor.fetchall())
        finally:
            cursor.close()

    # -- who reads it ------------------------------------------------------------------------------

    def reader(self) -> tuple[str, str] | None:
        """The capture that reads it, and the state that this has; None if nobody has said so."""
        if not self._has_readers():
            return None
        with self._db.translated():
            sql = f"SELECT capture, state FROM {self._name_of(self._readers)} WHERE outbox = {self._db.mark(1)}"
            found = self._rows(sql, (self._own_name,))
        return (str(found[0][0]), str(found[0][1])) if found else None

    def claim(self, capture: str, state: str) -> None:
        """This capture reads it from now on, and no other one. CaptureFailed if another does: they would share its
        events between them. Where the table that says so may not be made, nobody is refused."""
        reader = self.reader()
        if reader is None:
            try:
                self._claim(capture, state)
            except CaptureFailed as error:
                if error.passing:
                    raise
                logger.warning("%s. A second capture of table %r is not noticed", error, self._outbox.table)
                return
            reader = self.reader()
        if reader != (capture, state):
            first = "nobody" if reader is None else reader[0]
            raise self._db.failed(
                f"capture {first!r} of another log, or of another name, reads table {self._outbox.table!r} already, "
                f"and two would share its events: make a table for each. If that one is no more, or lost its log: "
                f"DELETE FROM {self._name_of(self._readers)} WHERE outbox = '{self._own_name}'"
            )

    def _claim(self, capture: str, state: str) -> None:
        try:
            self._make_readers()
        except CaptureFailed:
            if not self._has_readers():  # else another capture has just made it
                raise
        marks = ", ".join(map(self._db.mark, (1, 2, 3)))
        with self._db.translated():
            sql = self._db.insert_new.format(self._name_of(self._readers), marks)
            self._told(sql, (self._own_name, capture, state))

    def _make_readers(self) -> None:
        if not self._has_readers():
            columns = "outbox varchar(200) PRIMARY KEY, capture varchar(200) NOT NULL, state varchar(200) NOT NULL"
            with self._db.translated():
                self._told(f"CREATE TABLE IF NOT EXISTS {self._name_of(self._readers)} ({columns})")

    def _has_readers(self) -> bool:
        with self._db.translated():
            return bool(self._db.columns(self._readers))

    def release(self, capture: str, state: str) -> bool:
        """It reads the table no more; False if it did not."""
        if self.reader() != (capture, state):
            return False
        sql = f"DELETE FROM {self._name_of(self._readers)} WHERE outbox = {self._db.mark(1)}"
        with self._db.translated():
            self._told(sql, (self._own_name,))
        return True

    def _told(self, sql: str, values: Sequence[Any] = ()) -> None:
        with self._db.writing():
            cursor = self._db.connection.cursor()
            cursor.execute(sql, values)
            cursor.close()

    # -- its events --------------------------------------------------------------------------------

    def waiting(self) -> int:
        with self._db.translated():
            return int(self._rows(f"SELECT count(*) FROM {self._table}{self._waits}")[0][0])

    def read(self, most: int) -> list[Event]:
        """The first that wait."""
        order = self._db.quoted(self._outbox.ordered_by)
        sql = f"SELECT {self._columns} FROM {self._table}{self._waits} ORDER BY {order} LIMIT {most}"
        if not self._more and not self._db.is_new():
            return []
        with self._db.translated():
            rows = [Event(*row) for row in self._rows(sql)]
        self._more = bool(rows)
        return rows

    def take(self, ids: Iterable[Any]) -> None:
        """They wait no more."""
        id_, keep, left = self._db.quoted(self._outbox.id), self._outbox.keep, list(ids)
        what = f"DELETE FROM {self._table}"
        if keep:
            what = f"UPDATE {self._table} SET {self._db.quoted(keep)} = CURRENT_TIMESTAMP"
        with self._db.translated(), self._db.writing():
            cursor = self._db.connection.cursor()
            for at in range(0, len(left), TOLD_ROWS):
                piece = left[at : at + TOLD_ROWS]
                marks = ", ".join(self._db.mark(each + 1) for each in range(len(piece)))
                cursor.execute(f"{what} WHERE {id_} IN ({marks})", piece)
            cursor.close()
