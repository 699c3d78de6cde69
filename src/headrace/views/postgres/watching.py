"""Watching a view in Postgres: `views.sql.watching` over transactions, woken by NOTIFY where that comes through. A
pooler that lends connections for one transaction swallows it: then it looks again after a short while."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pyarrow as pa

from headrace.views.contract import FlowSpec
from headrace.views.postgres.address import Address
from headrace.views.postgres.connections import Connection, pool_of, quoted
from headrace.views.postgres.moments import moment_of
from headrace.views.postgres.store import PostgresViews
from headrace.views.postgres.tables import tables_of
from headrace.views.postgres.values import table_of
from headrace.views.postgres.waking import channel
from headrace.views.reading import schema_of
from headrace.views.sql import watchers

__all__ = ["WatchedPostgres"]

LOOK_SECONDS = 0.1


class WatchedPostgres:
    """What a watch of a view asks of the store at an address."""

    def __init__(self, address: str, view: str) -> None:
        self._text, self._view = address, view
        self._address = Address.parse(address)
        self._listening: psycopg.Connection[Any] | None = None

    def open(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._listening = pool_of(self._address).connect()
            self._listening.execute(f"LISTEN {channel(self._address, self._view)}")

    def leases(self) -> PostgresViews:
        return PostgresViews(self._text)

    def moment(self) -> AbstractContextManager[Connection]:
        return moment_of(pool_of(self._address), self._view)

    def rows(self, db: Connection, flow: FlowSpec) -> Iterator[pa.RecordBatch]:
        assert flow.view is not None
        names = ", ".join(quoted(column.name) for column in flow.view.columns)
        order = ", ".join(f"{quoted(name)} NULLS FIRST" for name in flow.view.key) or "1"
        select = f"SELECT {names} FROM {tables_of(flow).stored()} AS v ORDER BY {order}"
        found = table_of(db.copy_out(select), schema_of(flow.view.columns))
        yield from found.combine_chunks().to_batches(max_chunksize=watchers.CHUNK_ROWS)

    def version(self) -> object:
        with pool_of(self._address).reading() as db:
            return db.run("SELECT epoch, sequence FROM _flows WHERE flow = $1", [self._view]).fetchone()

    def pause(self) -> None:
        if self._listening is not None:
            try:
                for _ in self._listening.notifies(timeout=LOOK_SECONDS, stop_after=1):
                    pass
                return
            except psycopg.Error:
                self._listening = None
        time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
