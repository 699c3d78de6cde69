"""Opens a database as a source of changes, by its address. The only module that imports one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cdc.choice import Choice
from headrace.errors import InvalidArgument
from headrace.libpq import split_address
from headrace.places import ADDRESS, without_secrets

if TYPE_CHECKING:
    from headrace.cdc.source import Finding, Source
    from headrace.log.contract import Log

__all__ = ["check_address", "folder_of", "open_source", "source_findings"]


def check_address(url: object) -> str:
    """The address, if it is one of a database that can be captured."""
    found = ADDRESS.match(url) if isinstance(url, str) else None
    if found is None or found[0].lower() not in ("postgres:", "postgresql:"):
        why = "must be the address of a Postgres: postgresql://user@host/database, with password=env:NAME or file:PATH"
        raise InvalidArgument("url", without_secrets(url), why)
    assert isinstance(url, str)
    split_address(url, argument="url")
    return url


def folder_of(home: Path, capture: str) -> Path:
    """Where a capture keeps what is no part of the log: large transactions, the secret of its masks."""
    return home / "captures" / capture


def open_source(log: Log, name: str, url: str, choice: Choice, home: Path) -> Source:
    _refuse_without_client(url)
    from headrace.cdc.postgres.capture import PostgresCapture

    return PostgresCapture(log, name, check_address(url), choice, folder_of(home, name))


def source_findings(name: str, url: str, choice: Choice) -> list[Finding]:
    """What a doctor finds in the database."""
    _refuse_without_client(url)
    from headrace.cdc.postgres.doctor import findings

    return findings(name, check_address(url), choice)


def _refuse_without_client(url: str) -> None:
    if importlib.util.find_spec("psycopg") is None:
        why = "capturing Postgres needs psycopg: pip install 'headrace[postgres]'"
        raise InvalidArgument("url", without_secrets(url), why)
