"""What stores in SQL databases ask of one: statements with `?` for bound values, in SQL that SQLite and Postgres both
know. Times go in and come out as text in UTC, without a zone, and sort as they should."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from headrace.durations import instant_us

__all__ = ["Database", "Db", "text_of_us", "us_of"]

_EPOCH, _MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)


class Database(Protocol):
    """A connection, inside a transaction."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Any:
        """Runs the statement. The result has `fetchone`, `fetchall` and `rowcount`, and is an iterable of rows."""

    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> Any:
        """Runs the statement once for each row of values."""


Db = TypeVar("Db", bound=Database)
"""The connections of one kind of store."""


def us_of(text: str | None) -> int | None:
    if text is None:
        return None
    try:  # as `text_of_us` writes it
        return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
    except (ValueError, TypeError):
        return instant_us(f"{text}Z", argument="text")


def text_of_us(us: int) -> str:
    """A time before the first year or after the last becomes the begin or the end of these: only bounds can be."""
    try:
        return (_EPOCH + timedelta(microseconds=us)).isoformat(sep=" ")
    except OverflowError:
        return (datetime.min if us < 0 else datetime.max).isoformat(sep=" ")
