"""What a SQLite database says of its tables: columns, keys, and what else must be unique in them. Owns which tables
cannot be captured, and why."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from headrace.cdc.choice import Choice
from headrace.cdc.sqlite.file import quoted
from headrace.cdc.sqlite.types import HOME_SCHEMA, kind_of
from headrace.cdc.tables import Column, SourceTable

__all__ = ["OWN", "SqliteTable", "Unique", "tables_of"]

OWN: Final = re.compile(r"headrace_.+_[0-9a-f]{8}")
"""Outboxes, of any capture."""
COLUMNS_MAX: Final = 1_900
BUILT_IN: Final = {"BINARY", "NOCASE", "RTRIM"}
_TOKEN: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\w+|.""", re.DOTALL
)


@dataclass(frozen=True)
class Unique:
    """What no two rows have in common: these columns, each as its collation compares it, of rows with `where`."""

    columns: tuple[tuple[str, str], ...]
    where: str = ""


@dataclass(frozen=True)
class SqliteTable(SourceTable):
    """`collations`: of the key's columns. `uniques`: what a REPLACE may have removed other rows for, which tells no
    trigger of it. `rowid`: the name of the rowid, where it is one more thing that is unique."""

    collations: tuple[str, ...] = ()
    uniques: tuple[Unique, ...] = ()
    rowid: str = ""


def tables_of(db: sqlite3.Connection, choice: Choice) -> list[SqliteTable]:
    """The chosen tables, in the order of their names."""
    kinds = {name: kind for schema, name, kind, *_ in db.execute("PRAGMA main.table_list") if schema == "main"}
    found = db.execute("SELECT name, sql FROM main.sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    return [
        _table(db, name)
        for name, sql in found
        if not name.lower().startswith("sqlite_")
        and not OWN.fullmatch(name)
        and kinds.get(name, "table") == "table"
        and not sql.upper().startswith("CREATE VIRTUAL")
        and choice.takes(HOME_SCHEMA, name)
    ]


def _table(db: sqlite3.Connection, name: str) -> SqliteTable:
    columns, keys = [], []
    for _, column, declared, _, _, key, hidden in db.execute(f"PRAGMA main.table_xinfo({quoted(name)})").fetchall():
        if hidden >= 2:
            declared = re.sub(r"\s*GENERATED ALWAYS\s*$", "", declared, flags=re.IGNORECASE)
        columns.append(Column(column, declared))
        if key:
            keys.append((key, column))
    table = SqliteTable(name, HOME_SCHEMA, name, tuple(column for _, column in sorted(keys)), tuple(columns))
    if not keys:
        return replace(table, refused="it has no primary key")
    if len(columns) > COLUMNS_MAX:
        return replace(table, refused=f"it has {len(columns)} columns; at most {COLUMNS_MAX} can be captured")
    return _with_uniques(db, table)


def _with_uniques(db: sqlite3.Connection, table: SqliteTable) -> SqliteTable:
    kinds = {column.name: kind_of(str(column.type)) for column in table.columns}
    uniques, collations = [], tuple("BINARY" for _ in table.key)
    indexes = db.execute(f"PRAGMA main.index_list({quoted(table.name)})").fetchall()
    for _, index, unique, origin, partial in indexes:
        if not unique:
            continue
        parts = [
            (column, collation, cid)
            for _, cid, column, _, collation, in_key in db.execute(f"PRAGMA main.index_xinfo({quoted(index)})")
            if in_key
        ]
        if any(cid == -2 for *_, cid in parts):
            why = f"its index {index!r} is unique by an expression: no trigger tells what a REPLACE removes for it"
            return replace(table, refused=why)
        found = Unique(tuple((column, collation.upper()) for column, collation, _ in parts))
        if origin == "pk":
            by_name = dict(found.columns)
            collations = tuple(by_name[name] for name in table.key)
            if unknown := set(collations) - BUILT_IN:
                why = f"its key is compared by {unknown.pop()}, a collation of the application's own"
                return replace(table, refused=why)
            if set(collations) == {"BINARY"} and pa.null() not in (kinds[name] for name in table.key):
                continue  # equal there is equal here: who replaces such a row writes the same key
        uniques.append(replace(found, where=_where(db, index)) if partial else found)
    has_own_index = any(origin == "pk" for _, _, _, origin, _ in indexes)
    rowid = _rowid(db, table) if has_own_index else ""
    return replace(table, collations=collations, uniques=tuple(uniques), rowid=rowid)


def _where(db: sqlite3.Connection, index: str) -> str:
    """Of a partial index: the condition, from the text of the index, behind the last WHERE that is in no brackets."""
    (sql,) = db.execute("SELECT sql FROM main.sqlite_master WHERE type = 'index' AND name = ?", (index,)).fetchone()
    depth, found = 0, list[str]()
    for token in _TOKEN.finditer(sql):
        text = " " if token[0].startswith(("--", "/*")) else token[0]
        depth += {"(": 1, ")": -1}.get(text, 0)
        found = [] if depth == 0 and text.upper() == "WHERE" else [*found, text]
    return "".join(found).strip()


def _rowid(db: sqlite3.Connection, table: SqliteTable) -> str:
    """By which name the rowid is known; "" if the table has none."""
    taken = {column.name.lower() for column in table.columns}
    for name in ("rowid", "_rowid_", "oid"):
        if name not in taken:
            try:
                db.execute(f"SELECT {name} FROM main.{quoted(table.name)} LIMIT 0")
            except sqlite3.OperationalError:
                return ""
            return name
    return ""
