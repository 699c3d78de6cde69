"""A table of events in a database that Python's DB-API reaches. Owns the SQL: which rows wait, in which order, and that
rows which are taken are deleted or marked. Knows no topic.

Rows that are committed late, with a lower number, are found: a row waits until it is taken, whatever its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.cdc.outbox.address import Outbox
from headrace.errors import CaptureFailed

__all__ = ["Connected", "Event", "Events"]

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
    their types in lower case; none if there is no table. `refused`: why the table cannot be an outbox.
    `is_new`: whether there may be something that was not there before, where that is cheaper than to look."""

    connection: Any
    mark: Callable[[int], str]
    quoted: Callable[[str], str]
    failed: Callable[..., CaptureFailed]
    translated: Callable[[], AbstractContextManager[None]]
    writing: Callable[[], AbstractContextManager[Any]]
    columns: Callable[[Sequence[str]], dict[str, str]]
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
        self._table = ".".join(db.quoted(part) for part in parts)
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

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self._db.connection.cursor()
        try:
            cursor.execute(sql, values)
            return list(cursor.fetchall())
        finally:
            cursor.close()

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
