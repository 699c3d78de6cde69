"""The outbox of a capture, and the triggers that fill it. Owns their SQL, which any SQLite since 3.7.11 runs, and what
is told by a row of the outbox. They write in the transaction of whoever writes: what is rolled back leaves nothing.

A trigger writes what is in the table when it runs, not what it was called with: other triggers may have changed the
row meanwhile, before or after. So the last that is told of a key is always true.

A REPLACE removes rows that are in the way of what is unique, and tells no trigger. Rows that may go so are told before
("s"); whether they went is looked at when the outbox is read.

    i  a row was inserted             u  a row was updated
    d  a row was deleted, or its key  s  a row may have been replaced
    x  the beginning                  a  tables are to be read again"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace.cdc.sqlite.catalog import SqliteTable, Unique
from headrace.cdc.sqlite.file import quoted
from headrace.cdc.sqlite.types import kind_of

__all__ = ["NOW_MS", "installed", "make_outbox", "matching", "remove", "set_triggers", "triggers_of"]

NOW_MS: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
ROW: Final = "headrace_row"
"""What the table is called in the triggers' SQL: it may itself be called NEW."""


def make_outbox(db: sqlite3.Connection, outbox: str) -> None:
    """There is always at least one row, the last: numbers are not given twice, and it shows where the capture is."""
    db.execute(f"CREATE TABLE {quoted(outbox)} (number INTEGER PRIMARY KEY, tbl INTEGER, op TEXT, at_ms INTEGER, v0)")
    db.execute(f"INSERT INTO {quoted(outbox)} (op, at_ms) VALUES ('x', {NOW_MS})")


def matching(table: SqliteTable, values: Sequence[str]) -> str:
    """SQL for the row of that very key: 'a' is not 'A', and 1 not 1.0, whatever the collation says."""
    kinds = {column.name: kind_of(str(column.type)) for column in table.columns}
    parts = []
    for name, collation, value in zip(table.key, table.collations, values, strict=True):
        column = f"{ROW}.{quoted(name)}"
        parts.append(f"{column} IS {value}")
        if collation != "BINARY":
            parts.append(f"{column} COLLATE BINARY IS {value}")
        if kinds[name] == pa.null():
            parts.append(f"typeof({column}) = typeof({value})")
    return " AND ".join(parts)


def triggers_of(table: SqliteTable, number: int, outbox: str) -> dict[str, str]:
    """Their SQL, by name."""
    into = f"INSERT INTO {quoted(outbox)} (tbl, op, at_ms, {', '.join(f'v{at}' for at in range(len(table.columns)))})"
    there = f"FROM {quoted(table.name)} AS {ROW} WHERE"
    new, old = (matching(table, [f"{row}.{quoted(name)}" for name in table.key]) for row in ("NEW", "OLD"))
    now = ", ".join(f"{ROW}.{quoted(column.name)}" for column in table.columns)
    before = ", ".join(f"OLD.{quoted(column.name)}" for column in table.columns)

    def told(op: str, values: str) -> str:
        return f"{into} SELECT {number}, {op}, {NOW_MS}, {values}"

    gone = told("'d'", f"{before} WHERE NOT EXISTS (SELECT 1 {there} {old})")
    bodies = {
        ("insert", "AFTER INSERT"): [told("'i'", f"{now} {there} {new}")],
        ("update", "AFTER UPDATE"): [gone, told("'u'", f"{now} {there} {new}")],
        ("delete", "AFTER DELETE"): [gone],
    }
    in_the_way = [_equal(each) for each in table.uniques]
    if at_insert := [*in_the_way, *([f"{ROW}.{table.rowid} = NEW.{table.rowid}"] if table.rowid else [])]:
        bodies["before_insert", "BEFORE INSERT"] = [told("'s'", f"{now} {there} {each}") for each in at_insert]
    if in_the_way:
        names = dict.fromkeys(quoted(name) for each in table.uniques for name, _ in each.columns)
        bodies["before_update", f"BEFORE UPDATE OF {', '.join(names)}"] = [
            told("'s'", f"{now} {there} {each} AND NOT ({old})") for each in in_the_way
        ]
    return {
        (name := f"{outbox}_{number}_{kind}"): (
            f"CREATE TRIGGER {quoted(name)} {when} ON {quoted(table.name)} BEGIN {'; '.join(statements)}; END"
        )
        for (kind, when), statements in bodies.items()
    }


def _equal(unique: Unique) -> str:
    parts = [f"{ROW}.{quoted(name)} COLLATE {quoted(how)} = NEW.{quoted(name)}" for name, how in unique.columns]
    return " AND ".join([*parts, *([f"({unique.where})"] if unique.where else [])])


def installed(db: sqlite3.Connection, outbox: str) -> dict[str, str]:
    """The outbox's triggers as they are in the database: SQLite rewrites their SQL when a column is renamed."""
    found = db.execute("SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger'")
    return {name: sql for name, sql in found if name.startswith(f"{outbox}_")}


def set_triggers(db: sqlite3.Connection, outbox: str, wanted: Mapping[str, str], columns: int) -> None:
    """These triggers are there, no others, and the outbox has as many columns."""
    there = installed(db, outbox)
    for name in there:
        if there[name] != wanted.get(name):
            db.execute(f"DROP TRIGGER main.{quoted(name)}")
    held = len(db.execute(f"PRAGMA main.table_info({quoted(outbox)})").fetchall()) - 4
    for at in range(held, columns):
        db.execute(f"ALTER TABLE main.{quoted(outbox)} ADD COLUMN v{at}")
    for name, sql in wanted.items():
        if there.get(name) != sql:
            db.execute(sql)


def remove(db: sqlite3.Connection, outboxes: Iterable[str]) -> list[str]:
    """What was there of these outboxes is there no more; its names."""
    gone = []
    for outbox in outboxes:
        for name in installed(db, outbox):
            db.execute(f"DROP TRIGGER main.{quoted(name)}")
            gone.append(name)
        if db.execute("SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ?", (outbox,)).fetchone():
            db.execute(f"DROP TABLE main.{quoted(outbox)}")
            gone.append(outbox)
    return gone
