"""A database of its own for each test, in the Postgres that the run has."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.cdc.choice import Choice
from headrace.cdc.postgres.capture import PostgresCapture
from headrace.cdc.running import TableStatus, status_of
from headrace.errors import UnknownCapture
from headrace.log.contract import Log
from headrace.log.open import open_log
from tests.cli.conftest import Shell
from tests.databases import PostgresServer
from tests.faults.children import Children


class Source:
    """The database of a test: what is done there, and what is captured of it here."""

    def __init__(self, server: PostgresServer, name: str, home: Path) -> None:
        self.server, self.name, self.home = server, name, home
        self.url = server.database(name)
        self._db: psycopg.Connection[Any] | None = None
        self.log: Log = open_log(home)
        self.address = str(home)
        self.choice = Choice.of(None, None)

    @property
    def db(self) -> psycopg.Connection[Any]:
        if self._db is None or self._db.closed:
            self._db = psycopg.connect(self.url, autocommit=True)
        return self._db

    def sql(self, *statements: str) -> list[Any]:
        """Each is a transaction, unless one is BEGIN; the rows of the last."""
        for statement in statements:
            found = self.db.execute(statement)
        return found.fetchall() if found.description else []

    def capture(self, **settings: Any) -> PostgresCapture:
        return PostgresCapture(self.log, "shop", self.url, self.choice, self.home / "captures" / "shop", **settings)

    def drain(self, **settings: Any) -> int:
        return self.capture().drain(**settings)

    def idle(self) -> None:
        """Until nobody reads the slot any more."""
        while self.sql("SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND active"):
            time.sleep(0.01)

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
        return next(each for each in self.tables() if each.table == f"public.{table}")

    def same(self, table: str = "users") -> None:
        """What is captured is what is there: compared as text, by the database itself."""
        there = self.db.execute(f"SELECT * FROM {table}")
        assert there.description is not None
        names = [column.name for column in there.description]
        wanted = sorted(repr({name: _plain(value) for name, value in zip(names, row, strict=True)}) for row in there)
        assert sorted(repr({name: _plain(row[name]) for name in names}) for row in self.rows(table).values()) == wanted

    def close(self) -> None:
        self.log.close()
        if self._db is not None:
            self._db.close()
        with psycopg.connect(self.server.url, autocommit=True) as admin:
            held = "SELECT pg_terminate_backend(active_pid, 30000) FROM pg_replication_slots "
            held += "WHERE database = %s AND active"
            admin.execute(held, (self.name,))
            while admin.execute("SELECT 1" + held.partition(")")[2], (self.name,)).fetchone():
                time.sleep(0.01)  # it takes a moment, more on a busy machine
            slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
            admin.execute(slots, (self.name,))
            admin.execute(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")


def _plain(value: Any) -> Any:
    return str(value) if value is not None and not isinstance(value, list) else value


@pytest.fixture
def shell(source: Source) -> Shell:
    return Shell(source.home)


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.fixture
def source(postgres: PostgresServer, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    name = "t_" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    found = Source(postgres, name, tmp_path / "home")
    yield found
    found.close()
