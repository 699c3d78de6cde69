"""What an aggregate is, and what every aggregate has to say: of which arguments it is, what it keeps of them, how Spark
and how Arrow make that of some records, how two of it become one, whether it can be taken back, and what readers see.
One file per family of aggregates (`families`) says all of it; nobody else asks which aggregate it is.

An aggregate keeps one or more *slots*, columns of the state. A slot's rule says how an old and a new value merge; every
rule is associative and commutative, and null is its neutral value, so that any cut of the stream gives the same state.

Arguments are *prepared*: where `where=` does not hold, they are null, which every aggregate passes over. So none has to
know of it. Knows Arrow; no Spark, whose part is SQL text, and no store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.errors import InvalidArgument
from headrace.schema import quoted_name, type_ddl

if TYPE_CHECKING:
    from headrace.aggregates.aggregate import Aggregate
    from headrace.aggregates.grouping import Grouping

I64 = npt.NDArray[np.int64]

Rule = Literal[
    "add",  # the sum; a decimal that does not fit its type is an error, never a wrong number
    "whole",  # the sum of whole numbers, of any size
    "least",
    "greatest",
    "earliest",  # the value whose (event time, partition, offset) is least …
    "latest",  # … or greatest; the slots `orders` names are kept with it
    "least_by",  # the value whose (slot `__by`, event time, partition, offset) is least …
    "greatest_by",  # … or greatest
    "exact",  # a sum of doubles without rounding, as the text of a whole number of 2**-1074
    "rounded",  # the double nearest to the exact sum in the slot `of`
    "distinct",  # the number of values in a table of their own
    "counted",  # the most frequent values; how often each came is in a table of their own
    "merged",  # what the aggregate's `merge` makes of old and new
    "finished",  # what its `finish` makes of the slot `of`
    "kept",  # what is made of values, each with how often it is there: in a table of their own, `of` is their type
]

ORDER = ("at", "partition", "offset")
"""What orders first and last, as suffixes of their slots' names."""
ORDER_BY = ("by", *ORDER)
"""What orders where a measure does."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A column of the state. `type`: as in DDL text."""

    name: str
    rule: Rule
    type: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What readers see: a slot, or the ratio of two; null when the slot `unless` is 0."""

    type: str
    slots: tuple[str, ...]
    unless: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """What Spark has prepared for one aggregate, as SQL text. `where`: the condition, "" without one. `once`: 1, or -1
    of a change that takes a record back."""

    parts: Mapping[str, str]
    where: str
    at: str
    once: str
    partition: str = "_partition"
    offset: str = "_offset"

    def __getitem__(self, part: str) -> str:
        return self.parts[part]

    def signed(self, sql: str) -> str:
        """What a change adds, or takes away."""
        return f"CASE WHEN {self.once} < 0 THEN -({sql}) ELSE {sql} END"

    def in_order(self, *before: str) -> str:
        """The value with what orders it, and `before` ahead of that; null if the value, its time or one of those is."""
        known = " AND ".join(f"{self[part]} IS NOT NULL" for part in (*before, "value"))
        own = "".join(f"'{part}', {self[part]}, " for part in before)
        places = f"'at', {self.at}, 'partition', {self.partition}, 'offset', {self.offset}"
        # Arrow holds Spark to it that what is never null is not, even in a null.
        value = f"CASE WHEN {self['value']} IS NOT NULL THEN {self['value']} END"
        return f"CASE WHEN {known} AND {self.at} IS NOT NULL THEN named_struct({own}{places}, 'value', {value}) END"


class Records:
    """What Arrow has prepared: records, and of changes `once`, 1 or -1 for each. `at`: the column with their time."""

    def __init__(self, table: pa.Table, at: str, once: pa.Array | None = None) -> None:
        self.table, self.at, self.once = table, at, once
        self._ranked: dict[tuple[str, ...], tuple[I64, I64]] = {}

    def chosen(self, algebra: Algebra) -> pa.ChunkedArray | None:
        """Where the condition holds; None without one."""
        return None if algebra.where is None else self.table[algebra.where].fill_null(False)

    def part(self, algebra: Algebra, part: str = "value") -> pa.ChunkedArray:
        column, chosen = self.table[algebra.parts()[part]], self.chosen(algebra)
        return column if chosen is None else pc.if_else(chosen, column, None)

    @property
    def weights(self) -> pa.Array:
        return pa.array(np.ones(self.table.num_rows, np.int64)) if self.once is None else self.once

    def signed(self, column: pa.Array) -> pa.Array:
        """What changes add, or take away."""
        if column.type == pa.int64() and pc.min(column).as_py() == -(2**63):
            column = column.cast(pa.decimal128(19, 0))  # there is no such number above zero
        return pc.if_else(pc.less(self.weights, 0), pc.negate_checked(column), column)

    def places(self) -> list[pa.Array]:
        """What orders records."""
        return [self.table[name].combine_chunks() for name in (self.at, "_partition", "_offset")]

    def ranked(self, *before: str) -> tuple[I64, I64]:
        """The numbers of the records in their order, by these columns before all else; and the place of each in it."""
        if before not in self._ranked:
            columns = [*(self.table[name].combine_chunks() for name in before), *self.places()]
            table = pa.table({str(number): column for number, column in enumerate(columns)})
            order: I64 = pc.sort_indices(table, [(name, "ascending") for name in table.column_names]).to_numpy()
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            self._ranked[before] = order, place
        return self._ranked[before]

    def in_order(self, algebra: Algebra, *before: str) -> pa.Array:
        """As `Columns.in_order`."""
        columns = [self.part(algebra, part).combine_chunks() for part in (*before, "value")]
        places = self.places()
        unknown = np.logical_or.reduce([np.asarray(each.is_null()) for each in (*columns, places[0])])
        names = [*before, *ORDER, "value"]
        return pa.StructArray.from_arrays([*columns[:-1], *places, columns[-1]], names=names, mask=pa.array(unknown))


Found = dict[str, pa.Array]
"""Column of the partial rows -> its values."""
RowsOf = Callable[[], I64]
"""The number of the partial row that each record is part of."""


@dataclass(frozen=True)
class Algebra:
    """Behind each aggregate. `argument` and `where` are a column's name, an SQL expression or a `Column`; `types` those
    of the prepared arguments, once they are known."""

    argument: Any = None
    where: Any = None
    types: tuple[tuple[str, pa.DataType], ...] = ()

    called: ClassVar[str] = ""
    """The function of headrace that makes it."""
    ordered: ClassVar[bool] = False
    """Whether the result depends on event time."""
    of_numbers: ClassVar[bool] = False
    """Whether texts are refused: Spark would read one as a double, and fail on the first that is none."""
    only_numbers: ClassVar[bool] = False
    """Whether all else is."""
    of_rows: ClassVar[bool] = False
    """Whether a value may have fields: `struct(*)` is a whole record."""
    zero: ClassVar[bool] = False
    """Whether it is 0 of no records, where windows without any are filled."""
    packs: ClassVar[bool] = False
    """Whether Arrow makes it of the values of each partial row, after grouping."""
    instead: ClassVar[str] = ""
    """Where it cannot be rolled up: what can be."""

    # -- what it is of ---------------------------------------------------------------------------------

    def parts(self) -> dict[str, Any]:
        """Its arguments, by what they are for."""
        return {} if self.argument is None else {"value": self.argument}

    def given(self) -> list[Any]:
        """All expressions over a record that it asks for."""
        return [each for each in (*self.parts().values(), self.where) if each is not None]

    def settled(self, of: Mapping[str, pa.DataType]) -> Self:
        """For arguments of these types."""
        return replace(self, types=tuple(of.items()))

    def reading(self, columns: Collection[str]) -> Self:
        """For records of these columns: where there is something better than the argument, with that."""
        return self

    def of(self, part: str = "value") -> pa.DataType:
        """The type of an argument; null's as long as it is not known."""
        return dict(self.types).get(part, pa.null())

    def said(self) -> list[str]:
        """Its arguments, as they were written."""
        said = [str(each) for each in self.parts().values()]
        return [*said, *self.options(), *([] if self.where is None else [f"where={self.where}"])]

    def options(self) -> list[str]:
        """What is written behind the columns."""
        return []

    def __str__(self) -> str:
        return f"{self.called}({', '.join(self.said())})"

    def check(self) -> str:
        """Why arguments of these types are refused; "" if they are not."""
        for _, arrow in self.types:
            if (self.of_numbers or self.only_numbers) and types.is_string(arrow):
                return "texts. Make numbers of them first, in .transform(…)"
            if self.only_numbers and not is_number(arrow):
                return f"{ddl(arrow)}, not of numbers"
        return ""

    # -- what it keeps, and shows ----------------------------------------------------------------------

    def slots(self, name: str) -> tuple[Slot, ...]:
        raise NotImplementedError

    def shown(self, name: str) -> Shown:
        (own,) = [slot for slot in self.slots(name) if slot.name == name]
        return Shown("bigint" if own.rule in ("distinct", "whole") else own.type, (name,))

    # -- its partial, by Spark and by Arrow ------------------------------------------------------------

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        """Column of a partial row -> the SQL that makes it of a group's records."""
        raise NotImplementedError

    def packed(self, name: str, rows: pa.Table) -> pa.Table:
        """Partial rows, whoever made them, with its columns as slots come."""
        return rows

    def packed_type(self, arrow: pa.DataType) -> pa.DataType:
        """The type of its first column where Arrow makes it; `arrow`: where Spark does."""
        return arrow

    def possible(self) -> bool:
        """Whether Arrow makes of these types what Spark makes."""
        return False

    def ask(self, name: str, records: Records, grouping: Grouping) -> None:
        """Before grouping."""

    def complete(self, name: str, records: Records, found: Found, of: RowsOf, rows: int) -> None:
        """After it: what grouping could not make, into `found`."""

    # -- merging, and taking back ----------------------------------------------------------------------

    def arrow_merges(self, name: str) -> dict[str, str] | None:
        """Column -> how Arrow merges it as the store does; None if it does not."""
        return None

    def of_changes(self) -> Algebra | None:
        """The same of records that can be taken back; None if it cannot be."""
        return None

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate | None:
        """What becomes of a view's results, in `column`, when they are rolled up; None if the view keeps too little."""
        return None


# -- what they share -----------------------------------------------------------------------------------


def positive(number: int, argument: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidArgument(argument, number, "must be a whole number, 1 or more")
    return number


def share(q: float) -> float:
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 1:
        raise InvalidArgument("q", q, "must be a number from 0 to 1, such as 0.95")
    return float(q)


def written(name: str) -> str:
    """A column's name as an argument, which is SQL: a result may be called anything."""
    plain = name.isidentifier() and name.isascii() and name.lower() not in ("true", "false", "null")
    return name if plain else quoted_name(name)


def ddl(arrow: pa.DataType) -> str:
    """A type as Spark writes it, in which states are compared."""
    return f"decimal({arrow.precision},{arrow.scale})" if types.is_decimal(arrow) else type_ddl(arrow)


def is_number(arrow: pa.DataType) -> bool:
    return bool(types.is_integer(arrow) or types.is_floating(arrow) or types.is_decimal(arrow))


def same_in_arrow(arrow: pa.DataType) -> bool:
    """Whether values are equal, and ordered, as in Spark: doubles have NaN and two zeros, nested ones more."""
    return bool(
        types.is_integer(arrow)
        or types.is_string(arrow)
        or types.is_boolean(arrow)
        or types.is_date32(arrow)
        or types.is_timestamp(arrow)
        or types.is_decimal128(arrow)
        or types.is_binary(arrow)
    )


def plain_in_arrow(arrow: pa.DataType) -> bool:
    """Whether Arrow compares values as Spark does, doubles with the help of `grouping`."""
    return same_in_arrow(arrow) or bool(types.is_floating(arrow))
