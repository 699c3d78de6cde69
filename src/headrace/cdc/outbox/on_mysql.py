"""MySQL and MariaDB as the database of an outbox: an ordinary connection, without a binlog, with the rights to read the
table and to delete (or update) its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.cdc.mysql.address import Address
from headrace.cdc.mysql.catalog import quoted_beside_marks
from headrace.cdc.mysql.server import Server
from headrace.cdc.outbox.table import Connected

__all__ = ["connect", "shown"]

_COLUMNS: Final = (
    "SELECT column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)


def shown(url: str) -> str:
    return Address.of(url).shown


def connect(capture: str, url: str) -> Connected:
    server = Server(capture, Address.of(url))
    session = server.connect()
    db = session.connection

    def columns(table: Sequence[str]) -> dict[str, str]:
        schema = table[0] if len(table) > 1 else server.address.database
        return {str(name): str(kind).lower() for name, kind in session.rows(_COLUMNS, (schema, table[-1]))}

    @contextlib.contextmanager
    def writing() -> Iterator[None]:
        db.begin()
        yield
        db.commit()

    return Connected(
        connection=db,
        mark=lambda at: "%s",  # noqa: ARG005
        quoted=quoted_beside_marks,
        failed=server.failed,
        translated=server.translated,
        writing=writing,
        columns=columns,
        insert_new="INSERT IGNORE INTO {} VALUES ({})",
        close=db.close,
    )
