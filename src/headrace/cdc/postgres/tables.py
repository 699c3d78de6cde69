"""A captured table while it is captured: what it looks like, what of it is copied, and what its changes become. Owns
the comparison of what the stream says of a table with what is recorded, and which changes a chunk already contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headrace.cdc.change import UNCHANGED, Change, Place, Row, Transaction, parts_of
from headrace.cdc.choice import masked
from headrace.cdc.postgres.catalog import Kinds, SourceTable
from headrace.cdc.postgres.messages import Column, Delete, Insert, Relation, Update
from headrace.cdc.postgres.types import arrow_type, column_of, key_type
from headrace.cdc.postgres.visible import Seen
from headrace.cdc.rows import Shape

if TYPE_CHECKING:
    from headrace.cdc.rows import TableRows

__all__ = ["Chunk", "Difference", "Known", "State", "Tracked", "changes_of", "difference_of", "shape_of"]

State = Literal["copying", "reading again", "live", "stopped"]


@dataclass(frozen=True)
class Chunk:
    """Rows up to a key (None: to the end), copied in a snapshot. Without one the slot's own, in which nothing is that
    the stream has."""

    upto: tuple[str, ...] | None = None
    seen: Seen | None = None

    def has(self, transaction: Transaction) -> bool:
        return self.seen is not None and self.seen.has(transaction.number, transaction.end)


@dataclass(frozen=True)
class Known:
    """What is recorded of a table. `after`: the key up to which it is copied; `epoch`: how often it was read again."""

    oid: int
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
        from dataclasses import asdict

        return {**asdict(self), "columns": [list(column[:3]) for column in self.columns]}

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
                "columns": tuple(Column(*column) for column in value["columns"]),
                "after": None if value["after"] is None else tuple(value["after"]),
                "chunks": tuple(chunks),
            }
        )


def shape_of(
    columns: Sequence[Column], key: Sequence[str], kinds: Kinds, masks: Mapping[str, str], secret: bytes
) -> Shape:
    types: list[pa.DataType] = []
    readers: list[Callable[[Sequence[Any]], pa.Array]] = []
    for column in columns:
        if column.name in masks:
            types.append(pa.string())
            readers.append(partial(_read_masked, how=masks[column.name], secret=secret))
            continue
        kind = kinds.of(column.type, column.modifier)
        types.append(key_type(kind) if column.name in key else arrow_type(kind))
        readers.append(partial(column_of, wanted=types[-1]))
    names = tuple(column.name for column in columns)
    return Shape(names, tuple(types), tuple(readers), tuple(names.index(name) for name in key))


def _read_masked(texts: Sequence[bytes | None], how: str, secret: bytes) -> pa.Array:
    return masked(column_of(texts, pa.string()), how, secret)


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

    def left_out(self, change: Change, is_behind: Callable[[Sequence[str], Sequence[str]], bool]) -> bool:
        """Whether a chunk already has what the change does."""
        outcomes = {chunk.has(change.transaction) for chunk in self.known.chunks}
        if len(outcomes) <= 1:
            return outcomes == {True}
        assert change.key is not None
        texts = [bytes(value).decode() for value in change.key]
        for chunk in self.known.chunks:
            if chunk.upto is None or not is_behind(texts, chunk.upto):
                return chunk.has(change.transaction)
        return False


def changes_of(
    table: Tracked, message: Insert | Update | Delete, number: int, transaction: Transaction
) -> tuple[Change, ...]:
    """What a message says that happened to a row."""
    name, place = table.known.full_name, Place(transaction.end, number)
    if isinstance(message, Insert):
        return (Change("insert", name, table.key_of(message.new), None, message.new, place, transaction),)
    if isinstance(message, Delete):
        return (Change("delete", name, table.key_of(message.old), message.old, None, place, transaction),)
    new, old = message.new, message.old
    if old is None:
        return (Change("update", name, table.key_of(new), None, new, place, transaction),)
    if UNCHANGED in new:
        of_old = frozenset(range(len(new))) if message.whole else frozenset(table.rows.shape.key)
        new = tuple(
            [old[at] if value is UNCHANGED and at in of_old else value for at, value in enumerate(new)],
        )
    change = Change("update", name, table.key_of(new), old, new, place, transaction)
    return parts_of(change, table.key_of(old))


@dataclass(frozen=True)
class Difference:
    """How a table differs from what is recorded of it."""

    added: tuple[Column, ...]
    gone: tuple[Column, ...]
    retyped: tuple[str, ...]
    key: tuple[str, ...] | None

    def __bool__(self) -> bool:
        return bool(self.added or self.gone or self.retyped or self.key is not None)

    @property
    def is_growth(self) -> bool:
        """Only columns more."""
        return bool(self.added) and not (self.gone or self.retyped or self.key is not None)

    def __str__(self) -> str:
        parts = [
            *(f"column {each.name!r} is new" for each in self.added),
            *(f"column {each.name!r} is gone" for each in self.gone),
            *(f"column {name!r} has another type" for name in self.retyped),
            *([f"the key is ({', '.join(self.key)})"] if self.key is not None else []),
        ]
        return ", ".join(parts)


def difference_of(known: Known, found: Relation | SourceTable) -> Difference:
    """By names and types: the order of columns is no part of what a table is. That a column was renamed nobody says: it
    is one that is gone, and one that is new."""
    before = {column.name: column for column in known.columns}
    now = {column.name: column for column in found.columns}
    retyped = tuple(name for name in before if name in now and before[name][1:3] != now[name][1:3])
    if isinstance(found, SourceTable):
        key = None if set(found.key) == set(known.key) else found.key
    else:  # with REPLICA IDENTITY FULL all columns are said to be the key
        said = {column.name for column in found.columns if column.in_identity}
        key = None if found.identity == "f" or said == set(known.key) else tuple(sorted(said))
    return Difference(
        tuple(column for name, column in now.items() if name not in before),
        tuple(column for name, column in before.items() if name not in now),
        retyped,
        key,
    )
