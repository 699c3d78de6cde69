"""Debezium's events as a kind of database: what their addresses say, and what captures them. Opens nothing by
itself."""

from __future__ import annotations

from pathlib import Path

from headrace.cdc.choice import Choice
from headrace.cdc.debezium.address import events_at
from headrace.cdc.source import Finding, Source
from headrace.log.contract import Log

__all__ = ["Debezium"]


class Debezium:
    """See `Database`."""

    def check(self, url: str) -> None:
        events_at(url)

    def may_be_stored(self, url: str) -> bool:
        events_at(url)  # which takes references to passwords only
        return True

    def home_schema(self, url: str) -> str:
        return events_at(url).home

    def open(self, log: Log, name: str, url: str, choice: Choice, folder: Path) -> Source:
        from headrace.cdc.debezium.capture import DebeziumCapture

        return DebeziumCapture(log, name, events_at(url), choice, folder)

    def findings(self, name: str, url: str, choice: Choice) -> list[Finding]:
        from headrace.cdc.debezium.doctor import findings

        return findings(name, events_at(url), choice)
