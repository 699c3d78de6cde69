"""Opens the store of a home's views, for writing or for reading. The only module that imports an implementation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import InvalidArgument
from headrace.places import ADDRESS, directory, without_secrets

if TYPE_CHECKING:
    from headrace.views.contract import ViewStore
    from headrace.views.reading import Queries, SqlViews

__all__ = ["open_queries", "open_store", "open_views", "store_exists"]


def _postgres(home: str | Path) -> str | None:
    """The address, if it is one of Postgres."""
    found = ADDRESS.match(home) if isinstance(home, str) else None
    if found is None or found[0].lower() not in ("postgres:", "postgresql:"):
        return None
    if importlib.util.find_spec("psycopg") is None:
        why = "views in Postgres need psycopg: pip install 'headrace[postgres]'"
        raise InvalidArgument("views", without_secrets(home), why)
    return str(home)


def open_store(home: str | Path) -> ViewStore:
    """The store in a directory, or at an address of Postgres, for writing; made if there is none."""
    if address := _postgres(home):
        from headrace.views.postgres.store import PostgresViews

        return PostgresViews(address)
    from headrace.views.sqlite.store import SqliteViews

    return SqliteViews(directory(home))


def store_exists(home: str | Path) -> bool:
    if address := _postgres(home):
        from headrace.views.postgres.reading import PostgresReading

        return PostgresReading(address).identity() is not None
    from headrace.views.sqlite.file import FILE

    return (directory(home) / FILE).exists()


def open_views(home: str | Path = ".headrace") -> SqlViews:
    """The views in a directory, or at an address (`postgresql://…`), for reading."""
    if address := _postgres(home):
        from headrace.views.postgres.reading import PostgresReading

        return PostgresReading(address)
    from headrace.views.sqlite.reading import SqliteReading

    return SqliteReading(directory(home))


def open_queries(home: str | Path) -> Queries:
    """SQL of others over the views. Over those in a directory it runs in processes that can be killed."""
    if address := _postgres(home):
        from headrace.views.postgres.reading import PostgresReading

        return PostgresReading(address)
    from headrace.views.sqlite.query_process import QueryProcesses

    return QueryProcesses(directory(home))
