"""Slots whose values are kept by themselves: each value under its row, where it counts once (`distinct`), with how
often it came (`counted`), or so that it can go again (`kept`). Owns what a result becomes when some of its values have
changed. Pure: who calls says which values were there before, and brings the others where they matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.algebra import Slot
from headrace.aggregates.families.lists import TopK
from headrace.aggregates.groups import codes, one_zero, ranks
from headrace.aggregates.kept import Kept
from headrace.aggregates.packing import as_lists, known, unpacked
from headrace.aggregates.rules import Functions, arrow_of
from headrace.rows import python_values

__all__ = ["Changed", "Counts", "Values", "value_rules"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Values with how often each is there: `of` is the number of its result. By result, and each value once; none is
    null."""

    of: I64
    values: pa.Array
    count: I64

    @classmethod
    def summed(cls, of: I64, values: pa.Array, count: I64) -> Counts:
        """Of values that may come several times; in the order of values, whatever order they come in."""
        rank = ranks(values)
        width = int(rank.max(initial=0)) + 1
        pairs, one_of, at = np.unique(of * width + rank, return_index=True, return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, at.reshape(-1), count)
        return cls(pairs // width, values.take(pa.array(one_of)), sums)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Counts:
        return Counts(self.of[chosen], self.values.filter(pa.array(chosen)), self.count[chosen])

    def and_(self, other: Counts) -> Counts:
        """Both, where no value is in both."""
        of = np.concatenate((self.of, other.of))
        order = np.argsort(of, kind="stable")
        values = pa.concat_arrays([self.values, other.values]).take(pa.array(order))
        return Counts(of[order], values, np.concatenate((self.count, other.count))[order])


@dataclass(frozen=True)
class Changed:
    """What changes a slot's values: `now`, the touched ones with their counts after it, `was`, these counts before.
    `others(results)`: all values of these results that were not touched; `others(results, "least")` or "greatest": as
    many of them, from that end on, as there have to be to have the first."""

    now: Counts
    was: I64
    others: Callable[..., Counts]

    def came(self, results: int) -> I64:
        """How many values more each result has."""
        there = (self.now.count != 0).astype(np.int64) - (self.was != 0)
        return np.bincount(self.now.of, there, results).astype(np.int64)

    @property
    def there(self) -> Counts:
        return self.now.where(self.now.count != 0)


class Values:
    """The rule of one slot. `stored`: the type it has in its row; `value`: of what is kept beside it."""

    counts: ClassVar[bool] = True
    """True when values are kept with how often they are there."""

    def __init__(self, slot: Slot, finished: Sequence[Slot], own: Callable[[str], Functions]) -> None:
        self.slot, self._finished, self._own = slot, finished, own

    @property
    def value(self) -> pa.DataType:
        return arrow_of(self.slot.type).value_type.field("value").type

    @property
    def stored(self) -> str:
        return self.slot.type

    @property
    def partial(self) -> pa.DataType:
        """The type of the slot in partial rows."""
        return pa.list_(pa.struct([("value", self.value), ("count", pa.int64())]))

    def given(self, column: pa.Array, of: I64) -> Counts:
        """The values of partial rows; `of`: the result of each row."""
        row, pairs = unpacked(column)
        return Counts.summed(of[row], one_zero(pairs.field("value")), pairs.field("count").to_numpy())

    def packed(self, counts: Counts, rows: int) -> pa.Array:
        """The other way round: a list for each result."""
        fields = [counts.values.cast(self.value), pa.array(counts.count)]
        pairs = pa.StructArray.from_arrays(fields, names=["value", "count"])
        return as_lists(counts.of, pairs, rows)

    def results(self, old: pa.Array, changed: Changed) -> dict[str, pa.Array]:
        """What the slot becomes, and what is finished of it; `old`: null where there was no row."""
        raise NotImplementedError


class Distinct(Values):
    """How many values: of those that come, each counts that was not there."""

    counts: ClassVar[bool] = False

    @property
    def value(self) -> pa.DataType:
        return arrow_of(self.slot.type)

    @property
    def stored(self) -> str:
        return "bigint"

    @property
    def partial(self) -> pa.DataType:
        return pa.list_(self.value)

    def given(self, column: pa.Array, of: I64) -> Counts:
        row, values = known(*unpacked(column))
        found = Counts.summed(of[row], one_zero(values), np.ones(len(row), np.int64))
        return Counts(found.of, found.values, np.ones(len(found.of), np.int64))

    def packed(self, counts: Counts, rows: int) -> pa.Array:
        return as_lists(counts.of, counts.values.cast(self.value), rows)

    def results(self, old: pa.Array, changed: Changed) -> dict[str, pa.Array]:
        return {self.slot.name: pc.add(old.fill_null(0), pa.array(changed.came(len(old))))}


class Counted(Values):
    """The most frequent values. Counts only grow: so these are among those that were, and those that just came."""

    def results(self, old: pa.Array, changed: Changed) -> dict[str, pa.Array]:
        algebra = self._own(self.slot.name).aggregate.algebra
        assert isinstance(algebra, TopK)
        row, pairs = unpacked(old)
        both = pa.concat_arrays([changed.now.values, pairs.field("value").cast(changed.now.values.type)])
        of = np.concatenate((changed.now.of, row))
        count = np.concatenate((changed.now.count, pairs.field("count").to_numpy()))
        code, few = codes(both)
        _, one_of = np.unique(of * max(1, len(few)) + code, return_index=True)  # the first: as it is now
        of, count, both = of[one_of], count[one_of], both.take(pa.array(one_of))
        best = np.lexsort((ranks(both), -count, of))
        place = np.arange(len(best)) - np.searchsorted(of[best], of[best])
        best = best[place < algebra.limit]
        top = Counts(of[best], both.take(pa.array(best)), count[best])
        return {self.slot.name: self.packed(top, len(old)).cast(arrow_of(self.slot.type))}


class KeptValues(Values):
    """What the aggregate makes of the values that are there."""

    @property
    def value(self) -> pa.DataType:
        return arrow_of(self.slot.of)

    @cached_property
    def _functions(self) -> Functions:
        return self._own((self._finished[0] if self._finished else self.slot).name)

    def results(self, old: pa.Array, changed: Changed) -> dict[str, pa.Array]:
        algebra, arrow = self._functions.aggregate.algebra, arrow_of(self.slot.type)
        assert isinstance(algebra, Kept), "who keeps values says what is made of them"
        if algebra.quick == "number":
            return {self.slot.name: pc.add(old.fill_null(0), pa.array(changed.came(len(old))))}
        if algebra.quick:
            return {self.slot.name: self._best(old, changed, algebra.quick == "greatest")}
        made = self._functions.typed(self._results_of(changed, len(old)), arrow, "merge")
        out = {self.slot.name: made}
        for slot in self._finished:
            done = [self._functions.finished(one) for one in python_values(made)]
            out[slot.name] = self._functions.typed(done, arrow_of(slot.type), "finish")
        return out

    def _results_of(self, changed: Changed, results: int) -> list[Any]:
        there = changed.there.and_(changed.others(np.arange(results)))
        held: list[list[tuple[Any, int]]] = [[] for _ in range(results)]
        for of, value, count in zip(there.of.tolist(), python_values(there.values), there.count.tolist(), strict=True):
            held[of].append((value, count))
        return [self._functions.made_of(each) for each in held]

    def _best(self, old: pa.Array, changed: Changed, greatest: bool) -> pa.Array:
        """The least or the greatest: of what was it, and of the values that are there. Where the one that was it has
        gone, of all others."""
        there, results = changed.there, len(old)
        gone = changed.now.where(changed.now.count == 0)
        was = Counts(np.flatnonzero(np.asarray(old.is_valid())), old.drop_null().cast(self.value), I64_NONE)
        code, few = codes(pa.concat_arrays([was.values, gone.values]))
        width, at = max(1, len(few)), len(was.of)
        lost = np.isin(was.of * width + code[:at], gone.of * width + code[at:])
        candidates = [(was.of[~lost], was.values.filter(pa.array(~lost))), (there.of, there.values)]
        if lost.any():
            others = changed.others(was.of[lost], "greatest" if greatest else "least")
            candidates.append((others.of, others.values))
        of = np.concatenate([each for each, _ in candidates])
        values = pa.concat_arrays([each for _, each in candidates])
        best = np.lexsort((-ranks(values) if greatest else ranks(values), of))
        best = best[np.diff(of[best], prepend=-1) != 0]
        row = np.full(results, -1, np.int64)
        row[of[best]] = best
        return values.take(pa.array(np.maximum(row, 0), mask=row < 0)).cast(arrow_of(self.slot.type))


I64_NONE: I64 = np.zeros(0, np.int64)


def value_rules(slots: Sequence[Slot], own: Callable[[str], Functions]) -> list[Values]:
    """The rules of those slots that keep values by themselves."""
    out = []
    for slot in slots:
        rule = _RULES.get(slot.rule)
        if rule is not None:
            out.append(rule(slot, [each for each in slots if each.of == slot.name and each is not slot], own))
    return out


_RULES: dict[str, type[Values]] = {"distinct": Distinct, "counted": Counted, "kept": KeptValues}
