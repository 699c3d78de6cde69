"""A database of its own for each test, in the MariaDB that the run has."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cdc.choice import Choice
from headrace.cdc.mysql.capture import MySqlCapture
from headrace.cdc.running import TableStatus, status_of
from headrace.errors import UnknownCapture
from headrace.log.contract import Log
from headrace.log.open import open_log
from tests.cli.conftest import Shell
from tests.databases import MariaDbServer
from tests.faults.children import Children


class Source:
    """The database of a test: what is done there, and what is captured of it here."""

    def __init__(self, server: MariaDbServer, name: str, home: Path) -> None:
        self.server, self.name, self.home = server, name, home
        self.url = server.database(name)
        self._db: Any = None
        self.log: Log = open_log(home)
        self.choice = self.chosen()

    def chosen(self, *tables: str, **mask: str) -> Choice:
        return Choice.of(tables or None, {name.replace("__", "."): how for name, how in mask.items()}, self.name)

    @property
    def db(self) -> Any:
        if self._db is None or not self._db.open:
            self._db = self.server.connect(self.name)
        return self._db

    def sql(self, *statements: str) -> list[Any]:
        """Each is a transaction, unless one is BEGIN; the rows of the last."""
        with self.db.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def capture(self, **settings: Any) -> MySqlCapture:
        return MySqlCapture(self.log, "shop", self.url, self.choice, self.home / "captures" / "shop", **settings)

    def drain(self, **settings: Any) -> int:
        return self.capture().drain(**settings)

    def records(self, table: str = "users") -> list[dict[str, Any]]:
        """All that the table's topic has, in order."""
        return [record.value for record in self.log.topic(f"shop_{table}").records()]

    def ops(self, table: str = "users") -> list[str]:
        return [value["_op"] for value in self.records(table)]

    def rows(self, table: str = "users") -> dict[Any, dict[str, Any]]:
        """What is there, by key, as the topic says."""
        topic = self.log.topic(f"shop_{table}")
        found: dict[Any, dict[str, Any]] = {}
        for value in self.records(table):
            op, key = value.pop("_op"), tuple(value[name] for name in topic.settings.key)
            if op == "delete":
                found.pop(key, None)
            elif op == "upsert":
                found[key] = value
        return found

    def tables(self) -> tuple[TableStatus, ...]:
        """What is recorded of them; nothing before the capture has begun."""
        with contextlib.suppress(UnknownCapture):
            return status_of(self.log, "shop").tables
        return ()

    def state(self, table: str = "users") -> TableStatus:
        return next(each for each in self.tables() if each.table == f"{self.name}.{table}")

    def same(self, table: str = "users") -> None:
        """What is captured is what is there."""
        with self.db.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            wanted = sorted(repr({n: _plain(v) for n, v in zip(names, row, strict=True)}) for row in cursor)
        assert sorted(repr({n: _plain(row[n]) for n in names}) for row in self.rows(table).values()) == wanted

    def close(self) -> None:
        self.log.close()
        if self._db is not None and self._db.open:
            self._db.close()
        with self.server.connect() as admin, admin.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self.name}")


def _plain(value: Any) -> Any:
    return str(value) if value is not None else value


@pytest.fixture
def shell(source: Source) -> Shell:
    return Shell(source.home)


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.fixture
def source(mariadb: MariaDbServer, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    name = "t_" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    found = Source(mariadb, name, tmp_path / "home")
    yield found
    found.close()
