"""Sums and averages: sum, avg. Whole numbers and decimals are summed exactly, and a sum of whole numbers has any size;
doubles up to rounding, or exactly. Of records that can be taken back always exactly, or something would stay of what is
gone: and with how many values there are, for a sum of none is null."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates.aggregate import Aggregate, given
from headrace.aggregates.algebra import Algebra, Columns, Found, Records, RowsOf, Shown, Slot, ddl, written
from headrace.aggregates.exact import exact_sum, rounded
from headrace.aggregates.grouping import Grouping, summable
from headrace.aggregates.packing import counted, with_column

WIDE = "decimal(38,0)"
"""What holds every sum of whole numbers."""


def sum(column: Any, exact: bool = False, *, where: Any = None) -> Aggregate:
    """Integers and decimals are summed exactly. Doubles up to rounding, or with `exact=True` as if with infinite
    precision, rounded once. Without a value other than null it is null, as in SQL."""
    return Aggregate(Sum(given(column, "sum"), where, exact=exact))


def avg(column: Any, *, where: Any = None) -> Aggregate:
    """The sum divided by the number of values, a double."""
    return Aggregate(Avg(given(column, "avg"), where))


def whole_of(result: str) -> str:
    """The column of a view's changes with a sum of whole numbers of any size."""
    return f"{result}__whole"


@dataclass(frozen=True)
class _Summed(Algebra):
    exact: bool = False

    of_numbers: ClassVar[bool] = True

    @property
    def wide(self) -> str:
        """Of whole numbers, the type in which Spark adds them, so that no sum of a batch is too large for it."""
        if not types.is_integer(self.of()):
            return ""
        return "decimal(20,0)" if types.is_int64(self.of()) else "bigint"

    def summed(self, columns: Columns) -> str:
        """The least whole number of 64 bits, for one, has no other that is as far above zero: so it is wider."""
        return f"cast({columns['value']} AS {self.wide})" if self.wide else columns["value"]

    def total(self, name: str) -> Slot:
        """The slot with the sum."""
        arrow = self.of()
        if self.wide:
            return Slot(name, "whole", WIDE)
        if types.is_decimal(arrow):  # as Spark has it
            return Slot(name, "add", f"decimal({min(38, arrow.precision + 10)},{arrow.scale})")
        return Slot(name, "add", "double" if types.is_floating(arrow) else ddl(arrow))

    def possible(self) -> bool:
        arrow = self.of()
        # Of wider decimals Spark keeps fewer digits.
        fits = types.is_decimal(arrow) and (arrow.precision <= 28 or arrow.scale == 0)
        return not self.exact and bool(types.is_integer(arrow) or types.is_floating(arrow) or fits)

    def options(self) -> list[str]:
        return ["exact=True"] if self.exact else []

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate:
        return aggregate.with_algebra(SumOfChanges(written(column), exact=self.exact, merges=column))


@dataclass(frozen=True)
class Sum(_Summed):
    called: ClassVar[str] = "sum"
    zero: ClassVar[bool] = True

    def slots(self, name: str) -> tuple[Slot, ...]:
        if self.exact:
            return Slot(f"{name}__exact", "exact", "string"), Slot(name, "rounded", "double", of=f"{name}__exact")
        return (self.total(name),)

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        if self.exact:
            return {f"{name}__exact": f"collect_list(cast({columns['value']} AS double))"}
        return {name: f"sum({self.summed(columns)})"}

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        if not self.exact:
            return rows
        return _exactly(rows, f"{name}__exact", name, [exact_sum(some) for some in rows[f"{name}__exact"].to_pylist()])

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        grouping.value(name, summable(records.part(self)), "sum")

    def arrow_merges(self, name: str) -> dict[str, str] | None:
        return None if self.exact else {name: "sum"}

    def of_changes(self) -> Algebra:
        return SumOfChanges(self.argument, self.where, exact=self.exact)


class _Average:
    """The ratio of two slots."""

    called: ClassVar[str] = "avg"

    def shown(self, name: str) -> Shown:
        return Shown("double", (f"{name}__sum", f"{name}__count"))

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate:
        return aggregate.with_algebra(AvgOfChanges(written(f"{column}__sum"), count=written(f"{column}__count")))


@dataclass(frozen=True)
class Avg(_Average, _Summed):
    def slots(self, name: str) -> tuple[Slot, ...]:
        return self.total(f"{name}__sum"), Slot(f"{name}__count", "add", "bigint")

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        return {f"{name}__sum": f"sum({self.summed(columns)})", f"{name}__count": f"count({columns['value']})"}

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        column = records.part(self)
        grouping.value(f"{name}__sum", summable(column), "sum")
        grouping.value(f"{name}__count", column, "count")

    def arrow_merges(self, name: str) -> dict[str, str]:
        return {f"{name}__sum": "sum", f"{name}__count": "sum"}

    def of_changes(self) -> Algebra:
        return AvgOfChanges(self.argument, self.where)


# -- of records that can be taken back -----------------------------------------------------------------


@dataclass(frozen=True)
class SumOfChanges(_Summed):
    """The sum, and how many values it is of."""

    merges: str = ""
    """Of a sum of a view's sums: the view's column. Those that do not fit it are in another one, too."""
    wider: str = ""
    """The type in which those are added."""
    count: str = ""
    """Of an average of averages: the column that says of how many values each is; the argument has their sum."""

    called: ClassVar[str] = "sum"
    zero: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def parts(self) -> dict[str, Any]:
        return {"value": self.argument, **({"count": self.count} if self.count else {})}

    def said(self) -> list[str]:
        return [str(self.argument), *self.options(), *([] if self.where is None else [f"where={self.where}"])]

    def reading(self, columns: Collection[str]) -> Self:
        if self.merges and whole_of(self.merges) in columns:
            return replace(self, argument=written(whole_of(self.merges)), wider=WIDE)
        return self

    @property
    def wide(self) -> str:
        return self.wider or super().wide

    @property
    def unrounded(self) -> bool:
        return not self.wider and (self.exact or bool(types.is_floating(self.of())))

    def slots(self, name: str) -> tuple[Slot, ...]:
        number = Slot(f"{name}__count", "add", "bigint")
        if not self.unrounded:
            return self.total(f"{name}__sum"), number
        exact = Slot(f"{name}__exact", "exact", "string")
        return exact, Slot(f"{name}__sum", "rounded", "double", of=exact.name), number

    def shown(self, name: str) -> Shown:
        total = next(slot for slot in self.slots(name) if slot.name == f"{name}__sum")
        return Shown("bigint" if total.rule == "whole" else total.type, (total.name,), unless=f"{name}__count")

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        value, once = columns["value"], columns.once
        number = columns.signed(columns["count"]) if self.count else f"if({value} IS NOT NULL, {once}, 0L)"
        out = {f"{name}__sum": f"sum({columns.signed(self.summed(columns))})"}
        if self.unrounded:
            one = f"named_struct('value', cast({value} AS double), 'count', {once})"
            out = {f"{name}__exact": f"collect_list(CASE WHEN {value} IS NOT NULL THEN {one} END)"}
        return {**out, f"{name}__count": f"sum({number})"}

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        if not self.unrounded:
            return rows
        some = rows[f"{name}__exact"].to_pylist()
        texts = [exact_sum([one["value"] for one in each], [one["count"] for one in each]) for each in some]
        return _exactly(rows, f"{name}__exact", f"{name}__sum", texts)

    def possible(self) -> bool:
        return self.unrounded or super().possible()

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        column = records.part(self).combine_chunks()
        if not self.unrounded:
            wide = column.cast(pa.int64()) if types.is_integer(column.type) else column
            grouping.value(f"{name}__sum", summable(pa.chunked_array([records.signed(wide)])), "sum")
        number = pc.if_else(column.is_valid(), records.weights, 0)
        if self.count:
            number = records.signed(records.part(self, "count").combine_chunks())
        grouping.value(f"{name}__count", number, "sum")

    def complete(self, name: str, records: Records, found: Found, of: RowsOf, rows: int) -> None:
        if self.unrounded:
            values = records.part(self).combine_chunks().cast(pa.float64())
            found[f"{name}__exact"] = counted(of(), values, records.weights.to_numpy(), rows)


@dataclass(frozen=True)
class AvgOfChanges(_Average, SumOfChanges):
    """The same, divided."""


def _exactly(rows: pa.Table, exact: str, sums: str, texts: list[str | None]) -> pa.Table:
    """Sums that do not round, and the nearest doubles."""
    rows = with_column(rows, exact, pa.array(texts, pa.string()))
    floats = [float(value) if isinstance(value, str) else value for value in map(rounded, texts)]
    return rows.append_column(sums, pa.array(floats, pa.float64()))
