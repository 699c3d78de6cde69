"""A SQLite file as an application has it: what is done there, and what is captured of it here."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from headrace.cdc.open import choice_for, open_source
from headrace.cdc.running import TableStatus, status_of
from headrace.cdc.source import Source
from headrace.log.contract import Log
from headrace.log.open import open_log


class SqliteSource:
    def __init__(self, folder: Path, *, mode: str = "wal") -> None:
        self.path, self.home = folder / "shop.db", folder / "home"
        self.url = f"sqlite:///{self.path}"
        self.db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        self.db.execute(f"PRAGMA journal_mode = {mode}")
        self.log: Log = open_log(self.home)
        self.tables: list[str] | None = None
        self.mask: dict[str, str] | None = None

    def sql(self, *statements: str) -> list[Any]:
        """Each is a transaction, unless one is BEGIN; the rows of the last."""
        found: list[Any] = []
        for statement in statements:
            found = self.db.execute(statement).fetchall()
        return found

    def capture(self) -> Source:
        return open_source(self.log, "shop", self.url, choice_for(self.url, self.tables, self.mask), self.home)

    def drain(self, **settings: Any) -> int:
        return self.capture().drain(**settings)

    def records(self, table: str = "users") -> list[dict[str, Any]]:
        return [record.value for record in self.log.topic(f"shop_{table}").records()]

    def ops(self, table: str = "users") -> list[str]:
        return [value["_op"] for value in self.records(table)]

    def rows(self, table: str = "users") -> dict[Any, dict[str, Any]]:
        """What is there, by key, as the topic says."""
        key = self.log.topic(f"shop_{table}").settings.key
        found: dict[Any, dict[str, Any]] = {}
        for value in self.records(table):
            op, at = value.pop("_op"), tuple(value[name] for name in key)
            if op == "delete":
                found.pop(at, None)
            elif op == "upsert":
                found[at] = value
        return found

    def state(self, table: str = "users") -> TableStatus:
        return next(each for each in status_of(self.log, "shop").tables if each.table == f"main.{table}")

    def same(self, table: str = "users") -> None:
        """What is captured is what is there."""
        cursor = self.db.execute(f'SELECT * FROM "{table}"')
        names = [column[0] for column in cursor.description]
        wanted = sorted(repr([(name, plain(value)) for name, value in zip(names, row, strict=True)]) for row in cursor)
        there = self.rows(table).values()
        assert sorted(repr([(name, plain(row[name])) for name in names]) for row in there) == wanted

    def outbox(self) -> list[Any]:
        found = self.sql("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'headrace_%'")
        return [row for (name,) in found for row in self.sql(f'SELECT * FROM "{name}"')]

    def own(self) -> list[str]:
        """What a capture has made in the file."""
        return [name for (name,) in self.sql("SELECT name FROM sqlite_master WHERE name LIKE 'headrace_%'")]

    def close(self) -> None:
        self.log.close()
        self.db.close()


def plain(value: Any) -> Any:
    """Numbers of columns without a type are texts here."""
    return str(value) if isinstance(value, int | float) else value
