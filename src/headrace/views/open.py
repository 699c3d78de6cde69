"""Opens the store of a home's views, for writing or for reading. The only module that imports an implementation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.places import directory

if TYPE_CHECKING:
    from headrace.views.contract import ViewStore
    from headrace.views.reading import Queries, SqlViews

__all__ = ["open_queries", "open_store", "open_views", "store_exists"]


def open_store(home: str | Path) -> ViewStore:
    """The store in a directory, for writing; made if there is none."""
    from headrace.views.sqlite.store import SqliteViews

    return SqliteViews(directory(home))


def store_exists(home: str | Path) -> bool:
    from headrace.views.sqlite.file import FILE

    return (directory(home) / FILE).exists()


def open_views(home: str | Path = ".headrace") -> SqlViews:
    """The views in a directory, for reading."""
    from headrace.views.sqlite.reading import SqliteReading

    return SqliteReading(directory(home))


def open_queries(home: str | Path) -> Queries:
    """SQL of others over the views in a directory: it runs in processes that can be killed."""
    from headrace.views.sqlite.query_process import QueryProcesses

    return QueryProcesses(directory(home))
