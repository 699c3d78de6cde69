"""Aggregates that are made of values: each value is kept in a table of its own beside its row, with how often it is
there, and the result is made anew of those that are there. So any value can be taken back. What is kept of a record,
and what is made of all of it, each such aggregate says in its own file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates.algebra import Algebra, Columns, Found, Records, RowsOf, Slot, ddl, plain_in_arrow
from headrace.aggregates.packing import counted, unpacked, with_column

Quick = Literal["", "least", "greatest", "number"]
Held = Sequence[tuple[Any, int]]
"""Values as Python has them, and how often each is there."""


@dataclass(frozen=True)
class Kept(Algebra):
    packs: ClassVar[bool] = True
    quick: ClassVar[Quick] = ""
    """Where the result follows from the one before and from the values that changed: what it is of the values."""

    def held(self) -> pa.DataType:
        """The type of what is kept of a record."""
        return self.of()

    def held_sql(self, columns: Columns) -> str:
        """What is kept of a record; null: nothing."""
        return columns["value"]

    def held_array(self, records: Records) -> pa.Array:
        return records.part(self).combine_chunks()

    def result(self) -> str:
        """The type of what is made of the values."""
        return ddl(self.of())

    def made_of(self, held: Held) -> Any:
        """The result of values that are there; null of none."""
        raise NotImplementedError

    def slots(self, name: str) -> tuple[Slot, ...]:
        return (Slot(name, "kept", self.result(), of=ddl(self.held())),)

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        value = self.held_sql(columns)
        one = f"named_struct('value', {value}, 'count', {columns.once})"
        return {self.slots(name)[0].name: f"collect_list(CASE WHEN {value} IS NOT NULL THEN {one} END)"}

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        slot = self.slots(name)[0].name
        lists = rows[slot].combine_chunks()
        if types.is_nested(lists.type.value_type.field("value").type):
            return rows
        of, pairs = unpacked(lists)
        return with_column(rows, slot, counted(of, pairs.field("value"), pairs.field("count").to_numpy(), len(lists)))

    def possible(self) -> bool:
        return all(plain_in_arrow(arrow) for _, arrow in self.types)

    def complete(self, name: str, records: Records, found: Found, of: RowsOf, rows: int) -> None:
        values = self.held_array(records)
        found[self.slots(name)[0].name] = counted(of(), values, records.weights.to_numpy(), rows)


def order(value: Any) -> Any:
    """What orders values as Spark does: null is the least, NaN the greatest number; lists and structs part by part."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *map(order, value.values()))
    if isinstance(value, list):
        return (1, *map(order, value))
    if isinstance(value, float) and value != value:
        return (2,)
    return (1, value)
