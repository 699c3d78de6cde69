"""MySQL and MariaDB as a kind of database: what their addresses say, and what captures them. Opens no connection by
itself."""

from __future__ import annotations

from pathlib import Path

from headrace.cdc.choice import Choice
from headrace.cdc.mysql.address import Address
from headrace.cdc.source import Finding, Source
from headrace.log.contract import Log

__all__ = ["MySql"]


class MySql:
    """See `Database`. A schema is what MySQL calls a database: the one of the address is meant where none is said."""

    def check(self, url: str) -> None:
        Address.of(url)

    def may_be_stored(self, url: str) -> bool:
        return Address.of(url).may_be_stored

    def home_schema(self, url: str) -> str:
        return Address.of(url).database

    def open(self, log: Log, name: str, url: str, choice: Choice, folder: Path) -> Source:
        from headrace.cdc.mysql.capture import MySqlCapture

        return MySqlCapture(log, name, url, choice, folder)

    def findings(self, name: str, url: str, choice: Choice) -> list[Finding]:
        from headrace.cdc.mysql.doctor import findings

        return findings(name, url, choice)
