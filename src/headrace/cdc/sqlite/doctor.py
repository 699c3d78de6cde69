"""Whether a SQLite can be captured, and what captures of it there are. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from headrace.cdc.choice import Choice
from headrace.cdc.source import Finding
from headrace.cdc.sqlite.catalog import OWN, tables_of
from headrace.cdc.sqlite.file import File, quoted

__all__ = ["findings"]


def findings(capture: str, path: Path, choice: Choice) -> list[Finding]:
    with contextlib.closing(File(capture, path)) as file, file.reading() as db:
        return [*_settings(db, path), *_outboxes(db), *_tables(db, choice)]


def _settings(db: sqlite3.Connection, path: Path) -> list[Finding]:
    (mode,) = db.execute("PRAGMA main.journal_mode").fetchone()
    writable = os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)
    says = "wal" if mode == "wal" else f"{mode}: reading and writing keep each other waiting; PRAGMA journal_mode = wal"
    return [
        Finding("writable", writable, "triggers and an outbox are made in the file, and a journal beside it"),
        Finding("journal_mode", True if mode == "wal" else None, says),
    ]


def _outboxes(db: sqlite3.Connection) -> list[Finding]:
    found = db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    outboxes = [name for (name,) in found if OWN.fullmatch(name)]
    told = []
    for name in outboxes:
        (count,) = db.execute(f"SELECT count(*) - 1 FROM main.{quoted(name)}").fetchone()
        says = f"{count:,} rows wait; headrace capture uninstall NAME removes what is not wanted any more"
        told.append(Finding(f"outbox {name}", None, says))
    return told


def _tables(db: sqlite3.Connection, choice: Choice) -> list[Finding]:
    found = tables_of(db, choice)
    if not found:
        return [Finding("tables", False, f"no table is chosen by {', '.join(choice.tables)}")]
    return [
        Finding(f"table {each.full_name}", each.refused is None, each.refused or f"key ({', '.join(each.key)})")
        for each in found
    ]
