"""Keyed, typed tables: all the state that an operator has. Owns their description, how their rows are read at one
sequence of a flow, and what one step writes to them. Knows no operator and no database.

A row is known by its key; keys may have nulls. A store clusters rows by their key, in the order of its columns, so that
rows of one prefix lie together. `Writes` are applied in one transaction with the flow's commit: all, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AddRule", "Column", "Staged", "State", "TableSpec", "Writes"]

AddRule = Literal["add", "least", "greatest"]
"""How `Writes.adds` merges a column with the stored value. Null is the neutral value of each. `add` of whole numbers
never wraps: a column of type decimal(38,0) takes the sum. One that does not fit a decimal's type is DoesNotFit."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """As in a schema's DDL text."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of an operator. Types are DDL text. `key` begins with the columns in which rows that meet are equal."""

    name: str
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    time: str | None = None
    """A timestamp column, of the key or not, by which rows are found: `State.due` and `Writes.drops`."""
    rules: Mapping[str, AddRule] = field(default_factory=dict, hash=False)
    """Of the columns, those that `adds` can merge. A table is added to only if all its columns have a rule."""

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> TableSpec:
        key, columns = (tuple(Column(**each) for each in tree[of]) for of in ("key", "columns"))
        return cls(**{**tree, "key": key, "columns": columns})

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.key)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order in which tables of rows have them."""
        return (*self.key_names, *(column.name for column in self.columns))


class State(Protocol):
    """The rows of a flow's tables at one sequence. Set-based: one call answers for any number of keys, and costs what
    these cost. All answers are ordered by key, and each row comes once. Null is the least, NaN the greatest; lists and
    structs are in some order. Tables of keys may have columns in any order."""

    def get(self, table: str, keys: pa.Table) -> pa.Table:
        """The rows of these keys, as far as there are any."""

    def scan(
        self,
        table: str,
        prefixes: pa.Table,
        low: Sequence[int] | None = None,
        high: Sequence[int] | None = None,
        *,
        floor: bool = False,
        limit: int | None = None,
        descending: bool = False,
    ) -> pa.Table:
        """The rows whose key begins with one of the prefixes, the first columns of the key. `low`, `high`: for each
        prefix, between which the key's next column lies, both included: a time in microseconds, or a whole number.
        `floor`: also the last row below `low`. `limit`: so many rows of each prefix, from the end if `descending`; not
        together with `floor`. A prefix may have no column: then it is every row's."""

    def due(self, table: str, upto_us: int, limit: int | None = None, *, after_us: int | None = None) -> pa.Table:
        """The rows whose time is at most that, and later than `after_us`, ordered by time, then by key."""

    def last_us(self, table: str) -> int | None:
        """The largest time of the table's rows; None if it has none."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows to be added that lie in the store already, in a table of their own: workers copied them there. No key comes
    twice in it. Nobody reads them before the commit that adds them, and they go with it."""

    place: str
    rows: int
    nulls: tuple[str, ...] = ()
    """The columns of the key that are null in all of these rows; the others are null in none."""


@dataclass(frozen=True, slots=True)
class Writes:
    """What a step writes: deletes first, then drops, puts and adds. No key is both put and added."""

    puts: Mapping[str, pa.Table] = field(default_factory=dict)
    """Whole rows, each in place of the one with its key. A key comes once."""
    adds: Mapping[str, pa.Table] = field(default_factory=dict)
    """Rows to be merged with the stored ones by the table's rules. A key may come several times."""
    deletes: Mapping[str, pa.Table] = field(default_factory=dict)
    """Keys, or first columns of keys: every row that begins so goes."""
    drops: Mapping[str, int] = field(default_factory=dict)
    """Rows whose time is at most that go."""
    staged: Mapping[str, Sequence[Staged]] = field(default_factory=dict)
    """As `adds`, of a store that has a `Stager`."""
    staged_above: tuple[str, int] | None = None
    """Of staged rows, those whose time in this column is later; the others are left out."""
