"""The first and the last value by event time: first, last. Keep the value and what orders it. Where two records have
one event time, the lower partition and then the lower offset is first; where these are equal, too, because records come
from several topics, the lesser value. Of records that can be taken back, time and value decide: where their changes lie
in a topic depends on how work was cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.algebra import (
    ORDER,
    Aggregate,
    Algebra,
    Columns,
    Found,
    Records,
    RowsOf,
    Rule,
    Slot,
    ddl,
    given,
    plain_in_arrow,
)
from headrace.aggregates.grouping import Grouping
from headrace.aggregates.kept import Held, Kept, order
from headrace.aggregates.packing import with_column

PLACE_TYPES = ("timestamp", "int", "bigint")
"""Of `ORDER`."""


def first(column: Any, *, where: Any = None) -> Aggregate:
    """The value, other than null, with the earliest event time; among equals, of the lowest partition and offset."""
    return Aggregate(First(given(column, "first"), where))


def last(column: Any, *, where: Any = None) -> Aggregate:
    """The value, other than null, with the latest event time; among equals, of the highest partition and offset."""
    return Aggregate(Last(given(column, "last"), where))


@dataclass(frozen=True)
class _Ordered(Algebra):
    ordered: ClassVar[bool] = True
    rule: ClassVar[Rule]
    best: ClassVar[str]

    def slots(self, name: str) -> tuple[Slot, ...]:
        places = zip(ORDER, PLACE_TYPES, strict=True)
        beside = (Slot(f"{name}__{part}", self.rule, kind, of=name) for part, kind in places)
        return Slot(name, self.rule, ddl(self.of()), of=name), *beside

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {name: f"{self.best}({columns.in_order()})"}

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        best = rows[name].combine_chunks()
        for part in ORDER:
            rows = rows.append_column(f"{name}__{part}", pc.struct_field(best, part))
        return with_column(rows, name, pc.struct_field(best, "value"))

    def possible(self) -> bool:
        return plain_in_arrow(self.of())

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        known = np.asarray(records.part(self).is_valid()) & np.asarray(records.table[records.at].is_valid())
        grouping.value(name, pa.array(records.rank, mask=~known), self.best)

    def made(self, name: str, records: Records, found: Found, of: RowsOf, rows: int) -> None:
        ranks = found[name]
        numbers = pa.array(records.order[ranks.fill_null(0).to_numpy()], mask=np.asarray(ranks.is_null()))
        arrays = [each.take(numbers) for each in (*records.places(), records.part(self).combine_chunks())]
        found[name] = pa.StructArray.from_arrays(arrays, names=[*ORDER, "value"], mask=numbers.is_null())


@dataclass(frozen=True)
class First(_Ordered):
    called: ClassVar[str] = "first"
    rule: ClassVar[Rule] = "earliest"
    best: ClassVar[str] = "min"
    instead: ClassVar[str] = "use hr.first(…)"

    def of_changes(self) -> Algebra:
        return FirstOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class Last(_Ordered):
    called: ClassVar[str] = "last"
    rule: ClassVar[Rule] = "latest"
    best: ClassVar[str] = "max"
    instead: ClassVar[str] = "use hr.last(…)"

    def of_changes(self) -> Algebra:
        return LastOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class FirstOfChanges(Kept):
    called: ClassVar[str] = "first"
    instead: ClassVar[str] = First.instead
    ordered: ClassVar[bool] = True

    def held(self) -> pa.DataType:
        return pa.struct([("at", pa.timestamp("us", tz="UTC")), ("value", self.of())])

    def held_sql(self, columns: Columns) -> str:
        known = f"{columns['value']} IS NOT NULL AND {columns.at} IS NOT NULL"
        return f"CASE WHEN {known} THEN named_struct('at', {columns.at}, 'value', {columns['value']}) END"

    def held_array(self, records: Records) -> pa.Array:
        at, value = records.table[records.at].combine_chunks(), records.part(self).combine_chunks()
        unknown = pc.or_(at.is_null(), value.is_null())
        return pa.StructArray.from_arrays([at, value], names=["at", "value"], mask=unknown)

    def made_of(self, held: Held) -> Any:
        return self._best([one for one, _ in held])["value"] if held else None

    def _best(self, some: list[dict[str, Any]]) -> dict[str, Any]:
        return min(some, key=order)


@dataclass(frozen=True)
class LastOfChanges(FirstOfChanges):
    called: ClassVar[str] = "last"
    instead: ClassVar[str] = Last.instead

    def _best(self, some: list[dict[str, Any]]) -> dict[str, Any]:
        return max(some, key=order)
