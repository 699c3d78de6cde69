"""A change of a row in another database: one envelope, whatever the database. Owns the values; no I/O.

A change's place is (end of its transaction, index in it, part). The first alone is a place to go on from: databases
promise an order of transactions, and none of the changes in them. A change of the key is two parts: the row of the old
key goes, the row of the new key comes."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

__all__ = ["UNCHANGED", "Change", "Op", "Place", "Row", "Transaction", "parts_of"]

Op = Literal["insert", "update", "delete", "truncate", "snapshot"]
Row = tuple[Any, ...]
"""Values in the order of the table's columns: None is null, `UNCHANGED` is a value that the database did not say."""


class _Unchanged:
    """A value that is as it was, and that the database did not send: a third state beside a value and null."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()


class Place(NamedTuple):
    """Where a change is: compared as a tuple. `end`: of its transaction, in the database's log; `number`: of the
    change, in the transaction."""

    end: int
    number: int = 0
    part: int = 0


class Transaction(NamedTuple):
    """Of the database: its number there, where its commit ends, and when it was committed (microseconds)."""

    number: int
    end: int
    at_us: int


class Change(NamedTuple):
    """`before`: the row as it was, as far as the database says; `after`: as it is. `key`: of the row that the change
    leaves, or takes away. An insert that has a `before` is one that came from another key. A truncate has neither key
    nor rows. `at`: where the change itself is in the database's log, if somebody asked."""

    op: Op
    table: str
    key: Row | None
    before: Row | None
    after: Row | None
    place: Place
    transaction: Transaction
    at: int = 0

    @property
    def at_us(self) -> int:
        """When it was committed there."""
        return self.transaction.at_us


def parts_of(change: Change, key_before: Row) -> tuple[Change, ...]:
    """The change, or its two parts if it moves a row to another key."""
    if change.op != "update" or change.key == key_before:
        return (change,)
    end, number, _ = change.place
    return (
        change._replace(op="delete", key=key_before, after=None, place=Place(end, number, 0)),
        change._replace(op="insert", place=Place(end, number, 1)),
    )
