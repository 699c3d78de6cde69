"""SQLite as a kind of database: what its addresses say, and what captures it. Opens no file by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headrace.cdc.choice import Choice
from headrace.cdc.source import Finding, Source
from headrace.cdc.sqlite.types import HOME_SCHEMA
from headrace.errors import InvalidArgument
from headrace.log.contract import Log
from headrace.places import without_secrets

__all__ = ["Sqlite", "path_of"]

_ADDRESS: Final = re.compile(r"sqlite:///(.+)", re.IGNORECASE | re.DOTALL)


def path_of(url: str) -> Path:
    """The file: `sqlite:///shop.db` lies in the working directory, `sqlite:////var/lib/shop.db` does not."""
    found = _ADDRESS.fullmatch(url)
    if found is None or found[1].startswith(":memory:") or "?" in found[1]:
        why = "must be the address of a file: sqlite:///shop.db, or sqlite:////var/lib/shop.db for an absolute path"
        raise InvalidArgument("url", without_secrets(url), why)
    return Path(found[1])


class Sqlite:
    """See `Database`."""

    def check(self, url: str) -> None:
        path_of(url)

    def may_be_stored(self, url: str) -> bool:  # noqa: ARG002
        return True

    def home_schema(self, url: str) -> str:  # noqa: ARG002
        return HOME_SCHEMA

    def open(self, log: Log, name: str, url: str, choice: Choice, folder: Path) -> Source:
        from headrace.cdc.sqlite.capture import SqliteCapture

        return SqliteCapture(log, name, path_of(url), choice, folder)

    def findings(self, name: str, url: str, choice: Choice) -> list[Finding]:
        from headrace.cdc.sqlite.doctor import findings

        return findings(name, path_of(url), choice)
