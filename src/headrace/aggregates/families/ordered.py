"""One of the values, by an order of the records: first and last by event time, min_by and max_by by a measure and then
by event time. Keep the value and what orders it. Where two records have one event time, the lower partition and then
the lower offset is first; where these are equal, too, because records come from several topics, the lesser value: so
there is one answer whatever the cut. Of records that can be taken back, measure, time and value decide: where their
changes lie in a topic depends on how work was cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import ORDER, Algebra, Columns, Found, Records, RowsOf, Rule, Slot, ddl, plain_in_arrow
from headrace.aggregates.grouping import Grouping
from headrace.aggregates.kept import Held, Kept, order
from headrace.aggregates.packing import with_column

PLACE_TYPES = ("timestamp", "int", "bigint")
"""Of `ORDER`."""


def first(column: Any, *, where: Any = None) -> Aggregate:
    """The value, other than null, with the earliest event time; among equals, of the lowest partition and offset.
    `first("struct(*)")` is the whole record: its columns are all of one record."""
    return Aggregate(First(given(column, "first"), where))


def last(column: Any, *, where: Any = None) -> Aggregate:
    """The value, other than null, with the latest event time; among equals, of the highest partition and offset.
    `last("struct(*)")` is the whole record: its columns are all of one record."""
    return Aggregate(Last(given(column, "last"), where))


def min_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """The value of the record in which `by` is least: `min_by("page", "ms")`. Of several, the earliest. Records in
    which one of both is null are passed over. `min_by("struct(*)", "ms")` is the whole record."""
    return Aggregate(MinBy(given(column, "min_by"), where, by=given(by, "min_by", argument="by")))


def max_by(column: Any, by: Any, *, where: Any = None) -> Aggregate:
    """The value of the record in which `by` is greatest: `max_by("page", "ms")`. Of several, the latest. Records in
    which one of both is null are passed over. `max_by("struct(*)", "ms")` is the whole record."""
    return Aggregate(MaxBy(given(column, "max_by"), where, by=given(by, "max_by", argument="by")))


@dataclass(frozen=True)
class Ordered(Algebra):
    """`before`: the arguments that order values before event time does."""

    ordered: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True
    rule: ClassVar[Rule]
    best: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()

    def slots(self, name: str) -> tuple[Slot, ...]:
        types = {**{part: ddl(self.of(part)) for part in self.before}, **dict(zip(ORDER, PLACE_TYPES, strict=True))}
        beside = (Slot(f"{name}__{part}", self.rule, kind, of=name) for part, kind in types.items())
        return Slot(name, self.rule, ddl(self.of()), of=name), *beside

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {name: f"{self.best}({columns.in_order(*self.before)})"}

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        best = rows[name].combine_chunks()
        for part in (*self.before, *ORDER):
            rows = rows.append_column(f"{name}__{part}", pc.struct_field(best, part))
        return with_column(rows, name, pc.struct_field(best, "value"))

    def possible(self) -> bool:
        return all(plain_in_arrow(arrow) for _, arrow in self.types)

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        known = records.in_order(self, *self.before).is_valid()
        _, place = records.ranked(*(self.parts()[part] for part in self.before))
        grouping.value(name, pa.array(place, mask=~np.asarray(known)), self.best)

    def complete(self, name: str, records: Records, found: Found, of: RowsOf, rows: int) -> None:
        order, _ = records.ranked(*(self.parts()[part] for part in self.before))
        places = found[name]
        numbers = pa.array(order[places.fill_null(0).to_numpy()], mask=np.asarray(places.is_null()))
        found[name] = records.in_order(self, *self.before).take(numbers)


@dataclass(frozen=True)
class First(Ordered):
    called: ClassVar[str] = "first"
    rule: ClassVar[Rule] = "earliest"
    best: ClassVar[str] = "min"
    instead: ClassVar[str] = "use hr.first(…)"

    def of_changes(self) -> Algebra:
        return FirstOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class Last(Ordered):
    called: ClassVar[str] = "last"
    rule: ClassVar[Rule] = "latest"
    best: ClassVar[str] = "max"
    instead: ClassVar[str] = "use hr.last(…)"

    def of_changes(self) -> Algebra:
        return LastOfChanges(self.argument, self.where)


@dataclass(frozen=True)
class OrderedOfChanges(Kept):
    """`pick`: which of those that are there, in their order, is the result."""

    ordered: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True
    pick: ClassVar[int]
    before: ClassVar[tuple[str, ...]] = ()

    def held(self) -> pa.DataType:
        own = [(part, self.of(part)) for part in self.before]
        return pa.struct([*own, ("at", pa.timestamp("us", tz="UTC")), ("value", self.of())])

    def held_sql(self, columns: Columns) -> str:
        parts = {**{part: columns[part] for part in self.before}, "at": columns.at, "value": columns["value"]}
        known = " AND ".join(f"{column} IS NOT NULL" for column in parts.values())
        fields = ", ".join(f"'{part}', {column}" for part, column in parts.items())
        return f"CASE WHEN {known} THEN named_struct({fields}) END"

    def held_array(self, records: Records) -> pa.Array:
        parts = {part: records.part(self, part).combine_chunks() for part in self.before}
        parts |= {"at": records.table[records.at].combine_chunks(), "value": records.part(self).combine_chunks()}
        unknown = np.logical_or.reduce([np.asarray(each.is_null()) for each in parts.values()])
        return pa.StructArray.from_arrays(list(parts.values()), names=list(parts), mask=pa.array(unknown))

    def made_of(self, held: Held) -> Any:
        return sorted((one for one, _ in held), key=order)[self.pick]["value"] if held else None


@dataclass(frozen=True)
class FirstOfChanges(OrderedOfChanges):
    called: ClassVar[str] = "first"
    instead: ClassVar[str] = First.instead
    pick: ClassVar[int] = 0


@dataclass(frozen=True)
class LastOfChanges(OrderedOfChanges):
    called: ClassVar[str] = "last"
    instead: ClassVar[str] = Last.instead
    pick: ClassVar[int] = -1


@dataclass(frozen=True)
class _By(Algebra):
    """A measure comes before event time."""

    by: Any = None

    before: ClassVar[tuple[str, ...]] = ("by",)

    def parts(self) -> dict[str, Any]:
        return {"value": self.argument, "by": self.by}


@dataclass(frozen=True)
class MinBy(_By, Ordered):
    called: ClassVar[str] = "min_by"
    rule: ClassVar[Rule] = "least_by"
    best: ClassVar[str] = "min"
    instead: ClassVar[str] = "use hr.min_by(…)"

    def of_changes(self) -> Algebra:
        return MinByOfChanges(self.argument, self.where, by=self.by)


@dataclass(frozen=True)
class MaxBy(_By, Ordered):
    called: ClassVar[str] = "max_by"
    rule: ClassVar[Rule] = "greatest_by"
    best: ClassVar[str] = "max"
    instead: ClassVar[str] = "use hr.max_by(…)"

    def of_changes(self) -> Algebra:
        return MaxByOfChanges(self.argument, self.where, by=self.by)


@dataclass(frozen=True)
class MinByOfChanges(_By, OrderedOfChanges):
    called: ClassVar[str] = "min_by"
    instead: ClassVar[str] = MinBy.instead
    pick: ClassVar[int] = 0


@dataclass(frozen=True)
class MaxByOfChanges(_By, OrderedOfChanges):
    called: ClassVar[str] = "max_by"
    instead: ClassVar[str] = MaxBy.instead
    pick: ClassVar[int] = -1
