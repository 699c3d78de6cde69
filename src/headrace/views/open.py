"""Opens the store of a home's views, for writing or for reading. The only module that imports an implementation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import InvalidArgument
from headrace.places import ADDRESS, directory, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.storage.copying import Copied, Told
    from headrace.views.contract import FlowSpec, ViewStore
    from headrace.views.reading import Queries, Server, SqlViews
    from headrace.views.sql.copying import CopiedFlow

__all__ = [
    "back_up_views",
    "copy_views",
    "dumped_views",
    "examine_views",
    "open_queries",
    "open_store",
    "open_views",
    "store_exists",
]


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


def back_up_views(home: Path, target: Path, told: Told, at: Callable[[], None]) -> list[Copied]:
    """Copies the views in a directory into another, while they are in use; none, if there are none. `at`: called at the
    moment of the copy, when no flow can commit."""
    from headrace.views.sqlite.backup import back_up
    from headrace.views.sqlite.store import SqliteViews

    if not store_exists(home):
        at()
        return []
    with SqliteViews(home) as store:
        return back_up(store, target, told, at)


def copy_views(source: str | Path, target: str | Path, told: Callable[[int], object]) -> list[CopiedFlow]:
    """Copies all flows of a store, with all they have, into another. Both are of the same log. ViewInUse, while a
    process runs one of them."""
    from headrace.errors import UnknownView, ViewInUse
    from headrace.views.sql.copying import copy_flows
    from headrace.views.sql.store import SqlStore

    views = open_views(source)
    if not store_exists(source):
        raise UnknownView(view="", known=[])
    for spec in views.specs():
        status = views.status(spec.name, topics=True)
        if status.running:
            raise ViewInUse(spec.name, status.pid or 0, status.host or "")
    checks: list[Callable[[FlowSpec], object]] = []
    if _postgres(target):
        from headrace.views.postgres.tables import check_flow

        checks.append(check_flow)
    with open_store(source) as one, open_store(target) as other:
        assert isinstance(one, SqlStore) and isinstance(other, SqlStore)
        return copy_flows(one, other, lambda spec: [check(spec) for check in checks], told)


def dumped_views(address: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The tables of views at an address of Postgres, each with its rows as bytes."""
    found = _postgres(address)
    if found is None:
        why = "must be an address of Postgres: postgresql://…"
        raise InvalidArgument("views", without_secrets(address), why)
    from headrace.views.postgres.schema import dumped

    return dumped(found)


def examine_views(address: str) -> Server:
    """What the database at an address says of itself."""
    found = _postgres(address)
    if found is None:
        why = "must be a directory, or an address of Postgres: postgresql://…"
        raise InvalidArgument("views", without_secrets(address), why)
    from headrace.views.postgres.reading import PostgresReading

    return PostgresReading(found).examine()
