"""What a test says: records come, time passes, a view is expected, the program starts again. Values only; `trial` does
what they say.

    run_steps(app, add("clicks", {"page": "/", "at": "2026-01-01T09:00:05Z"}), restart(), expect("views", []))"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.durations import Duration, duration_us, format_duration, instant_us
from headrace.errors import InvalidArgument, nearest

if TYPE_CHECKING:
    from headrace.app import App

Row = Mapping[str, Any]
LEDGER = ("on_time", "corrected", "dropped", "untimed")


@dataclass(frozen=True, slots=True)
class Add:
    topic: str
    rows: tuple[Row, ...]
    partition: int | None = None
    at_us: int | None = None

    def __str__(self) -> str:
        return f"add({self.topic!r}, {_rows(len(self.rows))})"


@dataclass(frozen=True, slots=True)
class Advance:
    by_us: int

    def __str__(self) -> str:
        return f"advance({format_duration(self.by_us)!r})"


@dataclass(frozen=True, slots=True)
class Expect:
    name: str
    rows: tuple[Row | tuple[Any, ...], ...] | None
    columns: tuple[str, ...] | None
    """Which are compared; None: of tuples, as many as they have, from the first on."""
    ledger: Mapping[str, int] | None

    def __str__(self) -> str:
        told = [] if self.rows is None else [_rows(len(self.rows))]
        return f"expect({', '.join([repr(self.name), *told, *(['ledger'] if self.ledger is not None else [])])})"


@dataclass(frozen=True, slots=True)
class Restart:
    def __str__(self) -> str:
        return "restart()"


Step = Add | Advance | Expect | Restart | Callable[["App"], object]


def add(topic: str, *rows: Row | Iterable[Row], partition: int | None = None, at: datetime | str | None = None) -> Add:
    """Records come, in one append, and the flows work them off. They arrive at what the clock shows; when one of them
    happened later than that, the clock moves there first. `at` says when they arrive, `partition` where (topics
    without a key)."""
    taken: list[Row] = []
    for given in rows:
        for row in (given,) if isinstance(given, Mapping) else given:
            if not isinstance(row, Mapping):
                raise InvalidArgument("rows", row, "must be mappings of columns to values, or lists of them")
            taken.append(dict(row))
    return Add(topic, tuple(taken), partition, None if at is None else instant_us(at, argument="at"))


def advance(by: Duration) -> Advance:
    """Time passes without a record: what is idle for long enough closes."""
    return Advance(duration_us(by, argument="by"))


def restart() -> Restart:
    """The program ends and starts again: what was not on disk is gone."""
    return Restart()


def expect(
    name: str,
    rows: Iterable[Row | tuple[Any, ...]] | None = None,
    *,
    columns: Sequence[str] | None = None,
    ledger: Mapping[str, int] | None = None,
) -> Expect:
    """The view (or topic) has exactly these rows, in any order. Rows as dicts are compared by the columns they name,
    rows as tuples by `columns`, or by the first of the view. `ledger`: how many records were `on_time`, `corrected`,
    `dropped` and `untimed`, over all windows."""
    taken = None if rows is None else tuple(dict(row) if isinstance(row, Mapping) else tuple(row) for row in rows)
    if taken is None and ledger is None:
        raise InvalidArgument("rows", None, "expect rows, a ledger, or both; no rows are []")
    for column in ledger or ():
        if column not in LEDGER:
            raise InvalidArgument("ledger", column, f"has no such column.{nearest(column, list(LEDGER))}")
    named = None if columns is None else tuple(columns)
    return Expect(name, taken, _compared(taken or (), named), None if ledger is None else dict(ledger))


def _compared(rows: Sequence[Row | tuple[Any, ...]], columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The columns that all the rows have."""
    for row in rows:
        if isinstance(row, Mapping):
            columns = tuple(row) if columns is None else columns
            if row.keys() != set(columns):
                raise InvalidArgument("rows", row, f"all rows must have the same columns: {', '.join(columns)}")
        elif len(row) != len(columns or rows[0]):
            raise InvalidArgument("rows", row, f"all rows must have {len(columns or rows[0])} columns")
    return columns


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
