"""What is taken from a SQLite in one step: what the outbox tells, and a chunk of a table that is being copied, all of
one moment. Owns what rows of the outbox become, and which of them a chunk makes superfluous. Writes nothing."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from headrace.cdc.change import Row
from headrace.cdc.current import difference
from headrace.cdc.parts import Parts
from headrace.cdc.rows import UPSERT, Shape, TableRows, loaded_mark, too_large
from headrace.cdc.sqlite.catalog import SqliteTable
from headrace.cdc.sqlite.file import File, quoted
from headrace.cdc.sqlite.survey import Survey
from headrace.cdc.sqlite.triggers import ROW, matching
from headrace.cdc.tables import Known, NotHeld
from headrace.errors import RecordTooLarge

__all__ = ["Taking"]

logger = logging.getLogger("headrace.cdc")
READ_ROWS: Final = 20_000
"""Of the outbox, in one read."""
CHUNK_ROWS, CHUNK_BYTES = 20_000, 8 << 20
FETCH_ROWS: Final = 500
SIZED: Final = (str, bytes)
HEAD: Final = 4
"""Columns of the outbox before those of the table."""


class Taking:
    """`changed`: tables of which something else is to be recorded, by number. `asked`: what other processes ask of the
    one that captures."""

    def __init__(self, file: File, survey: Survey, end: int, parts: Parts) -> None:
        self._file, self._survey, self.end, self.parts = file, survey, end, parts
        self.at_ms, self.changes = 0, 0
        self.changed: dict[int | str, Known] = {}
        self.asked: list[str] = []
        self._rows: dict[int | str, TableRows] = {}
        self._suspects: list[tuple[Known, Row]] = []

    def _known(self, number: Any) -> Known | None:
        return self.changed.get(number) or self._survey.tables.get(number)

    def all_there_is(self) -> bool:
        """False if the database's schema is not the one that was looked at: then nothing of it counts.

        A row of the outbox never changes, so all but the last read may be of earlier moments."""
        target, at_end = -1, False
        while not at_end:
            with self._file.reading() as db:
                if db.execute("PRAGMA main.schema_version").fetchone()[0] != self._survey.version:
                    return False
                rows = self._read(db)
                at_end = len(rows) < READ_ROWS
                outbox = quoted(self._survey.outbox)
                last, last_ms = db.execute(f"SELECT max(number), at_ms FROM {outbox}").fetchone()
                target = last if target < 0 else target
                if at_end:
                    self.end, self.at_ms = last, last_ms
                    self._apply(rows)
                    self._look_at_suspects(db)
                    self._copy(db)
            if not at_end:
                self.end, self.at_ms = rows[-1][0], rows[-1][3]
                self._apply(rows)
                if self.end >= target and not self._suspects and self._to_copy() is None:
                    break
        for number in [*self._rows]:
            self._take(number)
        return True

    # -- the outbox --------------------------------------------------------------------------------

    def _read(self, db: sqlite3.Connection) -> list[tuple[Any, ...]]:
        """Without rows of tables that are copied up to a key, if they are behind it: the copy will have them."""
        sql, values = "number > ?", [self.end]
        for known in self._survey.tables.values():
            if known.state == "copying":
                after = _values(known.after)
                names = [column.name for column in known.columns]
                columns = [f"v{names.index(name)}" for name in known.key]
                source = self._survey.sources[known.name]
                behind = "" if after is None else f" AND {_greater(columns, source.collations)}"
                sql += f" AND NOT (tbl IS {int(known.id)}{behind})"
                values += after or []
        width = max((len(each.columns) for each in self._survey.tables.values()), default=1)
        columns = ["number", "tbl", "op", "at_ms", *(f"v{at}" for at in range(width))]
        outbox = quoted(self._survey.outbox)
        found = f"SELECT {', '.join(columns)} FROM {outbox} WHERE {sql} ORDER BY number LIMIT {READ_ROWS}"
        return db.execute(found, values).fetchall()

    def _apply(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for told in rows:
            known, op = self._known(told[1]), told[2]
            if known is None:
                if op == "a":
                    self.asked.append(told[HEAD])
            elif known.state in ("copying", "live"):
                row = told[HEAD : HEAD + len(known.columns)]
                if op == "s":
                    self._suspects.append((known, row))
                else:
                    self._add(known, row, gone=op == "d")

    def _add(self, known: Known, row: Row, *, gone: bool) -> None:
        rows = self._of(known)
        if gone:
            rows.delete(row)
        else:
            rows.upsert(row)
        self.changes += 1
        if len(rows) >= READ_ROWS:
            self._take(known.id)

    def _of(self, known: Known) -> TableRows:
        rows = self._rows.get(known.id)
        if rows is None:
            rows = self._rows[known.id] = TableRows(self._survey.shape(known), _nothing)
        return rows

    def _key(self, known: Known, row: Row) -> Row:
        return tuple([row[at] for at in self._of(known).shape.key])

    def _take(self, number: int | str) -> None:
        rows, known = self._rows.pop(number), self._known(number)
        assert known is not None
        try:
            if len(rows):
                self.parts.append((known.topic, rows.take()))
        except NotHeld as error:
            self._stop(known, str(error))

    def _stop(self, known: Known, why: str) -> None:
        logger.warning("capture %s: table %s is stopped: %s", self._file.capture, known.full_name, why)
        self._rows.pop(known.id, None)
        self.changed[known.id] = replace(known, state="stopped", why=why)

    def leave_out(self, error: RecordTooLarge) -> None:
        """The table is stopped whose row no topic holds; the others go on."""
        tables = {**self._survey.tables, **self.changed}.values()
        known = next((each for each in tables if each.topic == error.topic), None)
        if known is None:
            raise error
        self._stop(known, too_large(error))
        self.parts = self.parts.without({known.topic})

    def _look_at_suspects(self, db: sqlite3.Connection) -> None:
        """Rows that a REPLACE may have removed: gone is what is not there at the end of all that was told."""
        for known, row in self._suspects:
            source = self._survey.sources[known.name]
            key = self._key(known, row)
            same = matching(source, [f"?{at}" for at in range(1, len(key) + 1)])
            if not db.execute(f"SELECT 1 FROM {quoted(known.name)} AS {ROW} WHERE {same}", key).fetchone():
                self._add(known, row, gone=True)

    # -- copying -----------------------------------------------------------------------------------

    def _to_copy(self) -> Known | None:
        tables = {**self._survey.tables, **self.changed}.values()
        return next((each for each in tables if each.state in ("copying", "reading again")), None)

    def _copy(self, db: sqlite3.Connection) -> None:
        """A chunk of the first table that is not copied yet, or all of one that is read again."""
        known = self._to_copy()
        if known is None:
            return
        source, shape = self._survey.sources[known.name], self._survey.shape(known)
        if known.id in self._rows:
            self._take(known.id)
        try:
            if known.state == "copying":
                known = self._chunk(db, known, source, shape)
            else:
                told = (_table(shape, rows) for rows, _ in _chunks(db, known, source, None))
                for part in difference(self._survey.topic(known), shape, told):
                    self.parts.append((known.topic, part))
                known = replace(known, state="live")
            if known.state == "live" and not known.loaded:
                self.parts.append((known.topic, loaded_mark(shape)))
                known = replace(known, loaded=True)
            self.changed[known.id] = known
        except NotHeld as error:
            self._stop(known, str(error))
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
                raise
            self._stop(known, f"it cannot be read: {error}")  # a function that only the application has, say

    def _chunk(self, db: sqlite3.Connection, known: Known, source: SqliteTable, shape: Shape) -> Known:
        rows, more = next(_chunks(db, known, source, _values(known.after)), ([], False))
        if rows:
            self.parts.append((known.topic, _table(shape, rows)))
            after = tuple(_stored(value) for value in self._key(known, rows[-1]))
            known = replace(known, after=after, copied=known.copied + len(rows))
        return known if more else replace(known, state="live", after=None)


def _nothing(keys: set[Row], columns: Sequence[str]) -> dict[Row, dict[str, Any]]:  # noqa: ARG001
    """The outbox has whole rows: nothing is to be filled in."""
    return {}


def _chunks(
    db: sqlite3.Connection, known: Known, source: SqliteTable, after: Sequence[Any] | None
) -> Iterator[tuple[list[Row], bool]]:
    """Rows in the order of the key, behind one, and whether there may be more."""
    names = [quoted(name) for name in known.key]
    columns = ", ".join(quoted(column.name) for column in known.columns)
    where = "" if after is None else f"WHERE {_greater(names, source.collations)}"
    order = ", ".join(_collated(name, how) for name, how in zip(names, source.collations, strict=True))
    cursor = db.execute(f"SELECT {columns} FROM {quoted(known.name)} {where} ORDER BY {order}", after or ())
    rows, size = list[Row](), 0
    while found := cursor.fetchmany(FETCH_ROWS):
        rows += found
        size += sum([len(value) for row in found for value in row if isinstance(value, SIZED)])
        if len(rows) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield rows, True
            rows, size = [], 0
    if rows:
        yield rows, False


def _collated(name: str, collation: str) -> str:
    return f"{name} COLLATE {collation}"


def _greater(names: Sequence[str], collations: Sequence[str]) -> str:
    said = ", ".join(_collated(name, how) for name, how in zip(names, collations, strict=True))
    return f"({said}) > ({', '.join('?' for _ in names)})"


def _table(shape: Shape, rows: Sequence[Row]) -> pa.Table:
    columns = [read([row[at] for row in rows]) for at, read in enumerate(shape.readers)]  # quicker than to zip them
    return pa.Table.from_arrays([*columns, pa.array([UPSERT] * len(rows))], schema=shape.schema)


def _stored(value: Any) -> str:
    """A value of a key, as the journal has it."""
    return json.dumps({"hex": value.hex()} if isinstance(value, bytes) else value)


def _values(stored: Sequence[str] | None) -> list[Any] | None:
    if stored is None:
        return None
    found = [json.loads(text) for text in stored]
    return [bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in found]
