"""Postgres as the database of an outbox: an ordinary connection, with the rights to read the table and to delete (or
update) its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.string import TextLoader

from headrace.cdc.outbox.table import Connected
from headrace.cdc.postgres.catalog import quoted
from headrace.cdc.postgres.server import Server

__all__ = ["connect", "shown"]

_COLUMNS: Final = (
    "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute "
    "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


def shown(url: str) -> str:
    return Server("", url).shown


def connect(capture: str, url: str) -> Connected:
    server = Server(capture, url)
    db = server.connect()
    for kind in "json", "jsonb":
        db.adapters.register_loader(kind, TextLoader)

    def columns(table: Sequence[str]) -> dict[str, str]:
        return dict(db.execute(_COLUMNS, (".".join(map(quoted, table)),)).fetchall())

    return Connected(
        connection=db,
        mark=lambda at: f"${at}",
        quoted=quoted,
        failed=server.failed,
        translated=server.translated,
        writing=db.transaction,
        columns=columns,
        insert_new="INSERT INTO {} VALUES ({}) ON CONFLICT DO NOTHING",
        close=db.close,
    )
