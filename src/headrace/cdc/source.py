"""What a database is to those who capture it, whichever it is: a contract. Owns no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.cdc.choice import Choice
    from headrace.log.contract import Log

__all__ = ["Database", "Finding", "Source"]


class Source(Protocol):
    """A database that is captured into a log."""

    name: str

    def run(self, stopping: Callable[[], bool]) -> None:
        """Captures until `stopping()`. A CaptureFailed that is `passing` may be tried again."""

    def drain(self, *, again: Sequence[str] | None = None) -> int:
        """Captures all that is committed now; how many changes. `again`: tables to read again first, () for all of
        them, from a new beginning."""

    def ask_again(self, tables: Sequence[str]) -> None:
        """Asks the process that captures to read these tables again."""

    def describe(self, schema: str, table: str) -> tuple[pa.Schema, tuple[str, ...]]:
        """The columns that a table's topic will have, and its key: before it is captured."""

    def uninstall(self) -> list[str]:
        """Removes what the capture has made in the database; what that was."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a doctor has looked at. `ok`: None where it is only to be known."""

    check: str
    ok: bool | None
    says: str


class Database(Protocol):
    """A kind of database: what `open.py` needs to know of one. All but `check` may need the client's package."""

    def check(self, url: str) -> None:
        """InvalidArgument, if this is no address of such a database. Opens no connection."""

    def may_be_stored(self, url: str) -> bool:
        """True if the address has no password itself: none, or a reference to one."""

    def home_schema(self, url: str) -> str:
        """The schema that is meant where none is said."""

    def open(self, log: Log, name: str, url: str, choice: Choice, folder: Path) -> Source:
        """The database as a source. Connects when it runs."""

    def findings(self, name: str, url: str, choice: Choice) -> list[Finding]:
        """What a doctor finds in the database."""
