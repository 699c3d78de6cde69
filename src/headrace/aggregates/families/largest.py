"""The values of the records with the largest measure: top_k with `by=`. Keeps as many as are asked for, with what
orders them: the measure, and of equal ones event time, partition and offset, then the value; the last comes first, as
in max_by. Of records that can be taken back all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates.aggregate import Aggregate
from headrace.aggregates.algebra import ORDER_BY, Algebra, Columns, Records, ddl, plain_in_arrow
from headrace.aggregates.families.ordered import OrderedOfChanges
from headrace.aggregates.kept import Held, order
from headrace.aggregates.merged import Merged
from headrace.aggregates.packing import I64, as_lists


def largest(column: Any, k: int, by: Any, where: Any) -> Aggregate:
    return Aggregate(Largest(column, where, by=by, limit=k), LargestOf(k), values_with_measures)


@dataclass(frozen=True, slots=True)
class LargestOf:
    """Of two lists of values with what orders them, those that come last, the last first."""

    limit: int

    def __call__(self, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted([*a, *b], key=_place, reverse=True)[: self.limit]


def _place(one: dict[str, Any]) -> list[Any]:
    return [order(one[part]) for part in (*ORDER_BY, "value")]


def values_with_measures(kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"value": one["value"], "by": one["by"]} for one in kept]


@dataclass(frozen=True)
class Largest(Merged):
    by: Any = None
    limit: int = 1

    called: ClassVar[str] = "top_k"
    ordered: ClassVar[bool] = True

    def parts(self) -> dict[str, Any]:
        return {"value": self.argument, "by": self.by}

    def said(self) -> list[str]:
        where = [] if self.where is None else [f"where={self.where}"]
        return [str(self.argument), str(self.limit), f"by={self.by}", *where]

    def kept(self) -> str:
        places = "at:timestamp,partition:int,offset:bigint"
        return f"array<struct<by:{ddl(self.of('by'))},{places},value:{ddl(self.of())}>>"

    def finished(self, state: pa.DataType) -> str:
        if not types.is_list(state):
            return "array<null>"
        value, by = (ddl(state.value_type.field(part).type) for part in ("value", "by"))
        return f"array<struct<value:{value},by:{by}>>"

    def sql(self, name: str, columns: Columns) -> dict[str, str]:
        found = f"sort_array(collect_list({columns.in_order('by')}), false)"
        return {self.state(name): f"slice({found}, 1, {self.limit})"}

    def possible(self) -> bool:
        return all(plain_in_arrow(arrow) for _, arrow in self.types)

    def values(self, records: Records) -> pa.Array:
        return records.in_order(self, "by")

    def pack(self, of: I64, values: pa.Array, rows: int) -> pa.Array:
        """Sorted from the least on, where Arrow has NaN last, and read from behind."""
        keys = {part: values.field(part) for part in ORDER_BY}
        by = [(name, "ascending") for name in ("of", *ORDER_BY)]
        places = pc.sort_indices(pa.table({"of": of, **keys}), by).to_numpy()[::-1]
        behind = np.searchsorted(-of[places], -of[places])
        last = places[np.arange(len(of)) - behind < self.limit]
        last = last[np.argsort(of[last], kind="stable")]
        return as_lists(of[last], values.take(pa.array(last)), rows)

    def of_changes(self) -> Algebra:
        return LargestOfChanges(self.argument, self.where, by=self.by, limit=self.limit)


@dataclass(frozen=True)
class LargestOfChanges(OrderedOfChanges):
    by: Any = None
    limit: int = 1

    called: ClassVar[str] = "top_k"
    of_rows: ClassVar[bool] = False
    before: ClassVar[tuple[str, ...]] = ("by",)
    instead: ClassVar[str] = "make it where the records are, and merge that"

    def parts(self) -> dict[str, Any]:
        return {"value": self.argument, "by": self.by}

    def said(self) -> list[str]:
        where = [] if self.where is None else [f"where={self.where}"]
        return [str(self.argument), str(self.limit), f"by={self.by}", *where]

    def result(self) -> str:
        return f"array<struct<value:{ddl(self.of())},by:{ddl(self.of('by'))}>>"

    def made_of(self, held: Held) -> Any:
        best = sorted(held, key=lambda one: order(one[0]), reverse=True)
        each = [one for one, count in best[: self.limit] for _ in range(min(count, self.limit))]
        return values_with_measures(each[: self.limit])
