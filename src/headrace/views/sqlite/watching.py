"""Watching a view in SQLite: `views.sql.watching` over a connection of its own."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headrace.views.contract import RESULTS, FlowSpec
from headrace.views.reading import POLL_SECONDS, quoted, schema_of
from headrace.views.sql import watchers
from headrace.views.sqlite.file import FILE, connected, translate
from headrace.views.sqlite.keyed import nulls_in
from headrace.views.sqlite.store import SqliteViews
from headrace.views.sqlite.tables import tables_of
from headrace.views.sqlite.values import batch_of

__all__ = ["WatchedFile"]


class WatchedFile:
    """What a watch asks of the store in a directory."""

    def __init__(self, home: Path) -> None:
        self._home, self._path = home, home / FILE

    def open(self) -> None:
        self._db = connected(self._path)

    def leases(self) -> SqliteViews:
        return SqliteViews(self._home)

    @contextlib.contextmanager
    def moment(self) -> Iterator[sqlite3.Connection]:
        with self._typed():
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("COMMIT")

    def rows(self, db: sqlite3.Connection, flow: FlowSpec) -> Iterator[pa.RecordBatch]:
        assert flow.view is not None
        order = ", ".join(quoted(name) for name in flow.view.key) or "1"
        stored = tables_of(flow).stored(nulls_in(db, flow.name).get(RESULTS, frozenset()))
        cursor, schema = db.execute(f"SELECT * FROM {stored} ORDER BY {order}"), schema_of(flow.view.columns)
        while rows := cursor.fetchmany(watchers.CHUNK_ROWS):
            yield batch_of(rows, schema)

    def version(self) -> int:
        with self._typed():
            (version,) = self._db.execute("PRAGMA data_version").fetchone()
            return int(version)

    def pause(self) -> None:
        time.sleep(POLL_SECONDS)

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
