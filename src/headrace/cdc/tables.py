"""A captured table: its columns, what of it is copied, what is recorded of it. Owns the comparison of what a database
says of a table with what is recorded, and which changes a chunk already contains. Knows no database; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import pyarrow as pa

from headrace.cdc.change import Change, Row, Transaction
from headrace.cdc.choice import masked
from headrace.cdc.rows import Read, Shape

if TYPE_CHECKING:
    from headrace.cdc.rows import TableRows

__all__ = [
    "Chunk",
    "Column",
    "Difference",
    "Known",
    "NotHeld",
    "Seen",
    "SourceTable",
    "State",
    "Tracked",
    "difference_of",
    "shape_of",
    "with_chunk",
]

State = Literal["copying", "reading again", "live", "stopped"]


class NotHeld(ValueError):
    """A value that a topic's column of that type cannot hold. The message quotes no value."""


class Column(NamedTuple):
    """`type`: as the database names or numbers it. `modifier`: of the type, as in numeric(10,2); -1 for none.
    `in_identity`: part of what identifies a row (with Postgres' REPLICA IDENTITY FULL, all are). `number`: which column
    it is, also when another one takes its name; 0 where nobody says."""

    name: str
    type: int | str
    modifier: int = -1
    in_identity: bool = False
    number: int = 0


@dataclass(frozen=True)
class SourceTable:
    """A table of the database. `id`: what it is known by there, also when it is renamed, if there is such a thing.
    `key`: the columns that identify a row. `filled`: columns that are not null in rows that were there before them.
    `refused`: why it cannot be captured."""

    id: int | str
    schema: str
    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    filled: frozenset[str] = frozenset()
    refused: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def only(self, columns: Sequence[Column]) -> Self:
        """The table without its other columns."""
        names = {column.name for column in columns}
        return replace(self, columns=tuple(each for each in self.columns if each.name in names))


_WRAP = 1 << 32


@dataclass(frozen=True)
class Seen:
    """What a snapshot has seen: which transactions of the stream a row that was copied already contains. `until`: the
    end of the log when it was taken; what commits later is not in it. `snapshot`: Postgres' `xmin:xmax:xip,…`, because
    there a transaction becomes visible after its commit was written, so that no LSN decides it; "" where all that was
    committed before `until` is in it."""

    snapshot: str
    until: int

    def has(self, xid: int, end: int) -> bool:
        """Whether the transaction, whose commit ends there, is in the snapshot. `xid` has 32 bits, as in the stream."""
        if end > self.until or not self.snapshot:
            return end <= self.until
        low, high, running = self._parsed()
        distance = (xid - high) % _WRAP
        if distance < _WRAP // 2:  # not begun when the snapshot was taken
            return False
        return (xid - low) % _WRAP >= _WRAP // 2 or xid not in running

    def is_passed(self, end: int) -> bool:
        """Whether a stream that is read to there has passed all that is in the snapshot."""
        return self.until < end or (not self.snapshot and self.until == end)

    def _parsed(self) -> tuple[int, int, frozenset[int]]:
        low, high, running = self.snapshot.split(":")
        return int(low) % _WRAP, int(high) % _WRAP, frozenset(int(x) % _WRAP for x in running.split(",") if x)


@dataclass(frozen=True)
class Chunk:
    """Rows up to a key (None: to the end), copied in a snapshot. Without one the first, in which nothing is that the
    stream has."""

    upto: tuple[str, ...] | None = None
    seen: Seen | None = None

    def has(self, transaction: Transaction) -> bool:
        return self.seen is not None and self.seen.has(transaction.number, transaction.end)


@dataclass(frozen=True)
class Known:
    """What is recorded of a table. `after`: the key up to which it is copied; `epoch`: how often it was read again."""

    id: int | str
    schema: str
    name: str
    topic: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    state: State = "copying"
    after: tuple[str, ...] | None = None
    chunks: tuple[Chunk, ...] = ()
    copied: int = 0
    epoch: int = 0
    loaded: bool = False
    why: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def value(self) -> dict[str, Any]:
        """For the journal."""
        return {**asdict(self), "columns": [[*column[:3], column.number] for column in self.columns]}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Known:
        chunks = [
            Chunk(
                None if each["upto"] is None else tuple(each["upto"]),
                None if each["seen"] is None else Seen(**each["seen"]),
            )
            for each in value["chunks"]
        ]
        return cls(
            **{
                **value,
                "key": tuple(value["key"]),
                "columns": tuple(Column(name, kind, more, False, at) for name, kind, more, at in value["columns"]),
                "after": None if value["after"] is None else tuple(value["after"]),
                "chunks": tuple(chunks),
            }
        )


def shape_of(
    columns: Sequence[Column],
    key: Sequence[str],
    masks: Mapping[str, str],
    secret: bytes,
    *,
    plain: Callable[[Column, bool], tuple[pa.DataType, Read]],
    text: Read | None = None,
) -> Shape:
    """`plain`: of a column (and whether it is of the key) its type here, and how its values are read. `text`: how those
    of a masked one are read, if in another way."""
    types: list[pa.DataType] = []
    readers: list[Read] = []
    for column in columns:
        kind, read = plain(column, column.name in key)
        if column.name in masks:
            kind, read = pa.string(), partial(_read_masked, text or read, masks[column.name], secret)
        types.append(kind)
        readers.append(read)
    names = tuple(column.name for column in columns)
    return Shape(names, tuple(types), tuple(readers), tuple(names.index(name) for name in key))


def _read_masked(read: Read, how: str, secret: bytes, values: Sequence[Any]) -> pa.Array:
    return masked(read(values), how, secret)


@dataclass
class Tracked:
    """A table with what its stream needs. `rows`: changes that are read and not in the log."""

    known: Known
    rows: TableRows
    key_of: Callable[[Row], Row] = field(init=False)

    def __post_init__(self) -> None:
        self.lay_out(self.rows.shape)

    def lay_out(self, shape: Shape) -> None:
        at = shape.key
        self.key_of = itemgetter(*at) if len(at) > 1 else lambda row, one=at[0]: (row[one],)  # type: ignore[misc]

    def left_out(self, change: Change, is_behind: Callable[[Row, Sequence[str]], bool]) -> bool:
        """Whether a chunk already has what the change does."""
        outcomes = {chunk.has(change.transaction) for chunk in self.known.chunks}
        if len(outcomes) <= 1:
            return outcomes == {True}
        assert change.key is not None
        for chunk in self.known.chunks:
            if chunk.upto is None or not is_behind(change.key, chunk.upto):
                return chunk.has(change.transaction)
        return False


@dataclass(frozen=True)
class Difference:
    """How a table differs from what is recorded of it."""

    added: tuple[Column, ...]
    gone: tuple[Column, ...]
    retyped: tuple[str, ...]
    key: tuple[str, ...] | None
    replaced: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self._more)

    @property
    def _more(self) -> bool:
        return bool(self.gone or self.retyped or self.replaced or self.key is not None)

    @property
    def is_growth(self) -> bool:
        """Only columns more."""
        return bool(self.added) and not self._more

    def __str__(self) -> str:
        parts = [
            *(f"column {each.name!r} is new" for each in self.added),
            *(f"column {each.name!r} is gone" for each in self.gone),
            *(f"column {name!r} has another type" for name in self.retyped),
            *(f"column {name!r} was dropped, and another one has its name" for name in self.replaced),
            *([f"the key is ({', '.join(self.key)})"] if self.key is not None else []),
        ]
        return ", ".join(parts)


def difference_of(known: Known, columns: Sequence[Column], key: Sequence[str] | None) -> Difference:
    """By names and types: the order of columns is no part of what a table is. That a column was renamed nobody says: it
    is one that is gone, and one that is new. `key`: None, where it is not said."""
    before = {column.name: column for column in known.columns}
    now = {column.name: column for column in columns}
    return Difference(
        tuple(column for name, column in now.items() if name not in before),
        tuple(column for name, column in before.items() if name not in now),
        tuple(name for name in before if name in now and before[name][1:3] != now[name][1:3]),
        None if key is None or set(key) == set(known.key) else tuple(key),
        tuple(name for name in before if name in now and _is_another(before[name], now[name])),
    )


def _is_another(before: Column, now: Column) -> bool:
    return bool(before.number and now.number) and before.number != now.number


def with_chunk(known: Known, chunk: Chunk) -> Known:
    """The rest of the table is copied in another snapshot."""
    before = known.chunks or ((Chunk(),) if known.after is not None else ())
    ended = (
        [*before[:-1], *(replace(each, upto=known.after) for each in before[-1:])] if known.after is not None else []
    )
    return replace(known, chunks=(*ended, chunk))
