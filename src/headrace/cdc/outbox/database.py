"""An outbox as a kind of database: the address of the database it is in, with what the outbox is. Opens no connection
by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from headrace.cdc.choice import Choice
from headrace.cdc.outbox.address import outbox_at
from headrace.cdc.outbox.capture import OutboxCapture
from headrace.cdc.outbox.table import Connected, Events
from headrace.cdc.source import Database, Finding, Source
from headrace.log.contract import Log

__all__ = ["OutboxOf"]


class OutboxOf:
    """See `Database`. `connect(capture, url)`: to a database of that kind; `shown(url)`: its address, for messages."""

    def __init__(
        self, database: Database, connect: Callable[[str, str], Connected], shown: Callable[[str], str]
    ) -> None:
        self._database, self._connect, self._shown = database, connect, shown

    def check(self, url: str) -> None:
        self._database.check(outbox_at(url)[0])

    def may_be_stored(self, url: str) -> bool:
        return self._database.may_be_stored(outbox_at(url)[0])

    def home_schema(self, url: str) -> str:
        return self._database.home_schema(outbox_at(url)[0])

    def open(self, log: Log, name: str, url: str, choice: Choice, folder: Path) -> Source:  # noqa: ARG002
        inner, outbox = outbox_at(url)
        return OutboxCapture(log, name, choice, outbox, self._shown(inner), lambda: self._connect(name, inner))

    def findings(self, name: str, url: str, choice: Choice) -> list[Finding]:  # noqa: ARG002
        inner, outbox = outbox_at(url)
        db = self._connect(name, inner)
        with contextlib.closing(db):
            events = Events(db, outbox)
            waiting, reader = events.waiting(), events.reader()
        return [
            Finding(f"table {outbox.table}", True, f"in the order of {outbox.ordered_by}"),
            Finding("reader", None, "nobody yet" if reader is None else f"capture {reader[0]!r} reads it"),
            Finding("waiting", None, f"{waiting:,} events wait"),
        ]
