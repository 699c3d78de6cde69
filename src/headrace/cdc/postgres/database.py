"""Postgres as a kind of database: what its addresses say, and what captures it. Opens no connection by itself."""

from __future__ import annotations

from pathlib import Path

from headrace import libpq
from headrace.cdc.choice import HOME_SCHEMA, Choice
from headrace.cdc.source import Finding, Source
from headrace.log.contract import Log

__all__ = ["Postgres"]


class Postgres:
    """See `Database`."""

    def check(self, url: str) -> None:
        libpq.split_address(url, argument="url")

    def may_be_stored(self, url: str) -> bool:
        return libpq.is_reference(url, argument="url")

    def home_schema(self, url: str) -> str:  # noqa: ARG002
        return HOME_SCHEMA

    def open(self, log: Log, name: str, url: str, choice: Choice, folder: Path) -> Source:
        from headrace.cdc.postgres.capture import PostgresCapture

        return PostgresCapture(log, name, url, choice, folder)

    def findings(self, name: str, url: str, choice: Choice) -> list[Finding]:
        from headrace.cdc.postgres.doctor import findings

        return findings(name, url, choice)
