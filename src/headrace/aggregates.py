"""Aggregates as algebra: what one keeps, how two of it become one, and what a reader sees. Owns the description only:
Spark or Arrow computes the partial rows (`flows.partials`), a store merges them into what it has.

An aggregate keeps one or more *slots*, columns of the state. A slot's rule says how an old and a new value merge; every
rule is associative and commutative, and null is its neutral value, so that any cut of the stream gives the same state.
The slot with the aggregate's own name is its result; an average has none, its result is the ratio of its two slots.

What SQL can merge, the store's SQL does. Sketches, and what a user makes, bring functions: `merge` of two, and
`finish`, which makes the result of what is kept in the slot NAME__state.

Over a view's changes what came can go again. Sums are taken back by subtraction; of everything else the values are
kept, with how often each is there, and the result is made of those: `over_changes` says which."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from headrace import sketches
from headrace.errors import InvalidArgument

__all__ = [
    "Aggregate",
    "Partial",
    "Slot",
    "approx_count_distinct",
    "approx_quantile",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "first",
    "histogram",
    "last",
    "max",
    "merge",
    "min",
    "over_changes",
    "sum",
    "top_k",
]

Kind = Literal[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "first",
    "last",
    "count_distinct",
    "approx_count_distinct",
    "approx_quantile",
    "top_k",
    "histogram",
    "collect",
    "merge",  # of what another view has kept
    "own",  # an aggregate expression of Spark's
]

Rule = Literal[
    "add",  # the sum; a decimal that does not fit its type is an error, never a wrong number
    "whole",  # the sum of whole numbers, of any size
    "least",
    "greatest",
    "earliest",  # the value whose (event time, partition, offset) is least …
    "latest",  # … or greatest; the slots `orders` names are kept with it
    "exact",  # a sum of doubles without rounding, as the text of a whole number of 2**-1074
    "rounded",  # the double nearest to the exact sum in the slot `of`
    "distinct",  # the number of values in a table of their own
    "counted",  # the most frequent values; how often each came is in a table of their own
    "merged",  # what the aggregate's `merge` makes of old and new
    "finished",  # what its `finish` makes of the slot `of`
    "kept",  # what is made of values that may go again; those are in a table of their own, `of` is their type
]


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    rule: Rule
    of: str = ""


ORDER = ("at", "partition", "offset")
"""What orders first and last, as suffixes of their slots' names."""
ORDERED = ("first", "last", "collect")
"""Kinds whose result depends on that order."""
BOUNDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Partial:
    """What is computed over some records. `argument` and `where` are a column's name, an SQL expression or a
    `Column`."""

    kind: Kind
    argument: Any = None
    where: Any = None
    exact: bool = False
    limit: int = 0
    bounds: tuple[float, ...] = ()
    retracts: bool = False
    """Whether records may take back others."""
    count: str = ""
    """Of an average of averages: the column that says of how many values each is; the argument has their sum."""
    merges: str = ""
    """Of a sum of a view's sums: the view's column. Those that do not fit it are there, too."""
    wide: str = ""
    """Of a sum of whole numbers: the type in which Spark adds them, so that no sum of a batch is too large for it."""

    @property
    def ordered(self) -> bool:
        return self.kind in ORDERED


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What `count()`, `sum("ms")` … return; or one's own, of three functions:

    - `partial`: an aggregate expression of PySpark, a `Column` or SQL text, over some of the records;
    - `merge(a, b)`: two partial values as one; it must not matter in which order and how they are grouped;
    - `finish(value)`: the result; without it, that is the value itself. `type` is the result's, "double" if not said.

    Values are as Arrow has them in Python: a struct is a dict. Null is never passed: it is what no record makes."""

    partial: Any
    merge: Callable[[Any, Any], Any] | None = None
    finish: Callable[[Any], Any] | None = None
    type: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.partial, Partial):
            return
        column = _given(self.partial, "Aggregate", argument="partial", needs="an aggregate: a Column, or SQL text")
        object.__setattr__(self, "partial", Partial("own", column))
        if not callable(self.merge):
            raise InvalidArgument("merge", self.merge, "must be a function of two partial values: merge(a, b)")
        if self.finish is not None and not callable(self.finish):
            raise InvalidArgument("finish", self.finish, "must be a function of what was merged: finish(value)")
        if self.finish is None and self.type is not None:
            raise InvalidArgument("type", self.type, "without finish= the result has the type of the partial")
        if self.finish is not None:
            object.__setattr__(self, "type", self.type or "double")

    @property
    def kind(self) -> Kind:
        found: Kind = self.partial.kind
        return found

    def slots(self, name: str) -> tuple[Slot, ...]:
        if self.partial.retracts:
            return self._slots_that_shrink(name)
        match self.kind:
            case "count" | "sum" if not self.partial.exact:
                return (Slot(name, "add"),)
            case "sum":
                return Slot(f"{name}__exact", "exact"), Slot(name, "rounded", of=f"{name}__exact")
            case "avg":
                return Slot(f"{name}__sum", "add"), Slot(f"{name}__count", "add")
            case "min":
                return (Slot(name, "least"),)
            case "max":
                return (Slot(name, "greatest"),)
            case "first" | "last":
                rule: Rule = "earliest" if self.kind == "first" else "latest"
                return Slot(name, rule, of=name), *(Slot(f"{name}__{part}", rule, of=name) for part in ORDER)
            case "count_distinct":
                return (Slot(name, "distinct"),)
            case "top_k":
                return (Slot(name, "counted"),)
        if self.finish is None:
            return (Slot(name, "merged"),)
        return Slot(f"{name}__state", "merged"), Slot(name, "finished", of=f"{name}__state")

    def _slots_that_shrink(self, name: str) -> tuple[Slot, ...]:
        match self.kind:
            case "count":
                return (Slot(name, "add"),)
            case "sum" | "avg" if self.partial.exact:
                exact = Slot(f"{name}__exact", "exact"), Slot(f"{name}__sum", "rounded", of=f"{name}__exact")
                return *exact, Slot(f"{name}__count", "add")
            case "sum" | "avg":
                return Slot(f"{name}__sum", "add"), Slot(f"{name}__count", "add")
        if self.finish is None:
            return (Slot(name, "kept"),)
        return Slot(f"{name}__state", "kept"), Slot(name, "finished", of=f"{name}__state")

    def __str__(self) -> str:
        partial = self.partial
        said = [] if partial.argument is None else [str(partial.argument)]
        said += [] if partial.where is None else [f"where={partial.where}"]
        match partial.kind:
            case "own":
                functions = {"merge": self.merge, "finish": self.finish}
                said = [f"partial={partial.argument}", *(f"{k}={_name(f)}" for k, f in functions.items() if f)]
                said += [] if self.finish is None else [f"type={self.type}"]
                return f"Aggregate({', '.join(said)})"
            case "approx_quantile":
                assert isinstance(self.finish, sketches.Quantile)
                said.append(str(self.finish.q))
            case "top_k":
                said.append(str(partial.limit))
            case "collect":
                said.append(f"limit={partial.limit}")
            case "histogram":
                said.append(str(list(partial.bounds)))
        return f"{partial.kind}({', '.join(said + ['exact=True'] * partial.exact)})"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def count(where: Any = None) -> Aggregate:
    """How many records; with `where`, how many of which it is true: `count(where="status >= 500")`."""
    return Aggregate(Partial("count", where=where))


def sum(column: Any, exact: bool = False) -> Aggregate:
    """Integers and decimals are summed exactly. Doubles up to rounding, or with `exact=True` as if with infinite
    precision, rounded once. Without a value other than null it is null, as in SQL."""
    return Aggregate(Partial("sum", _given(column, "sum"), exact=exact))


def avg(column: Any) -> Aggregate:
    """The sum divided by the number of values, a double."""
    return Aggregate(Partial("avg", _given(column, "avg")))


def min(column: Any) -> Aggregate:
    """The least value."""
    return Aggregate(Partial("min", _given(column, "min")))


def max(column: Any) -> Aggregate:
    """The greatest value; of doubles, NaN is the greatest, as in Spark."""
    return Aggregate(Partial("max", _given(column, "max")))


def first(column: Any) -> Aggregate:
    """The value, other than null, with the earliest event time; among equals, of the lowest partition and offset."""
    return Aggregate(Partial("first", _given(column, "first")))


def last(column: Any) -> Aggregate:
    """The value, other than null, with the latest event time; among equals, of the highest partition and offset."""
    return Aggregate(Partial("last", _given(column, "last")))


def count_distinct(column: Any) -> Aggregate:
    """How many different values other than null, exactly: each is kept while its window can change."""
    return Aggregate(Partial("count_distinct", _given(column, "count_distinct")))


def approx_count_distinct(column: Any) -> Aggregate:
    """About how many different values other than null: exact below 4,096, with a standard error of 1.6 % from there on.
    Keeps 32 KB at most for each row."""
    partial = Partial("approx_count_distinct", _given(column, "approx_count_distinct"))
    return Aggregate(partial, sketches.union, sketches.distinct, "bigint")


def approx_quantile(column: Any, q: float) -> Aggregate:
    """The number that a share `q` of the numbers does not exceed, to 1 %: `approx_quantile("ms", 0.95)`. Of doubles,
    NaN is the greatest; without a value other than null it is null."""
    share = not isinstance(q, bool) and isinstance(q, (int, float)) and 0 <= q <= 1
    if not share:
        raise InvalidArgument("q", q, "must be a number from 0 to 1, such as 0.95")
    partial = Partial("approx_quantile", _given(column, "approx_quantile"))
    return Aggregate(partial, sketches.added, sketches.Quantile(float(q)), "double")


def top_k(column: Any, k: int) -> Aggregate:
    """The `k` most frequent values other than null, each with its count, exactly: a list of (value, count), the most
    frequent first; of equally frequent ones the least. How often each value came is kept while its window can
    change."""
    return Aggregate(Partial("top_k", _given(column, "top_k"), limit=_positive(k, "k")))


def histogram(column: Any, bounds: Sequence[float]) -> Aggregate:
    """How many numbers are below the first bound, from each bound up to the next, and from the last one on: a list of
    one more than the bounds. A bound counts in what begins with it; NaN is the greatest number; nulls are not
    counted."""
    given = tuple(bounds) if isinstance(bounds, Sequence) and not isinstance(bounds, str) else ()
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in given)
    if not given or not numbers or not all(map(math.isfinite, given)) or any(a >= b for a, b in pairwise(given)):
        raise InvalidArgument("bounds", bounds, "must be numbers, each greater than the one before: [1, 10, 100]")
    if len(given) > BOUNDS_MAX:
        raise InvalidArgument("bounds", f"{len(given)} numbers", f"must be {BOUNDS_MAX} or fewer")
    return Aggregate(Partial("histogram", _given(column, "histogram"), bounds=given), sketches.added_each)


def collect(column: Any, limit: int) -> Aggregate:
    """The first `limit` values other than null, as a list, in the order of event time, and of partition and offset
    where that is equal."""
    partial = Partial("collect", _given(column, "collect"), limit=_positive(limit, "limit"))
    return Aggregate(partial, sketches.Earliest(limit), sketches.values_of)


def merge(column: Any) -> Aggregate:
    """Over a view's changes: what the view's aggregate of that name keeps, merged. Minutes become hours, and hours
    days, without the events: `merge("p95")` of `p95=approx_quantile("ms", 0.95)`."""
    if not isinstance(column, str) or not column:
        raise InvalidArgument("column", column, "merge() takes the name of an aggregate of the view that is streamed")
    return Aggregate(Partial("merge", column))


# -- over a view's changes -------------------------------------------------------------------------------

SHRINKS = ("count", "sum", "avg", "min", "max", "first", "last", "count_distinct", "top_k")
"""Kinds that can be taken back record by record."""


def over_changes(
    name: str, aggregate: Aggregate, upstream: Mapping[str, Aggregate] | None, *, transformed: bool = False
) -> Aggregate:
    """The aggregate as it is made of the changes of a view with the aggregates `upstream`; {}: of those in a topic;
    None: of records that an exact dedup lets through. `transformed`: a column may be something else than the view's of
    that name."""
    if aggregate.kind == "merge" and upstream is not None:
        return _merging(name, aggregate.partial.argument, upstream)
    if aggregate.kind not in SHRINKS:
        those = ", ".join(SHRINKS)
        why = (
            "cannot be made of a view's changes, because it cannot be taken back: make it where the records are, in "
            f"the view, and roll it up with hr.merge(…). Over changes there are {those} and merge"
        )
        if upstream is not None and not upstream:
            why = (
                f"cannot be made of changes in a topic, because it cannot be taken back. Over changes there are {those}"
            )
        if upstream is None:
            why = (
                "cannot follow dedup(…), which may take a record back when an earlier one of its key comes, and this "
                f"aggregate cannot take one out. Use one of {those}; or dedup(…, approx=…), which takes nothing back"
            )
        raise InvalidArgument(name, str(aggregate), why)
    partial = replace(aggregate.partial, retracts=True)
    if partial.kind == "sum" and isinstance(partial.argument, str) and not transformed:
        of = (upstream or {}).get(partial.argument)
        partial = replace(partial, merges=partial.argument if of is not None and of.kind == "sum" else "")
    return replace(aggregate, partial=partial)


def _merging(name: str, column: str, upstream: Mapping[str, Aggregate]) -> Aggregate:
    """What becomes of the results of one aggregate when they are rolled up."""
    if column not in upstream:
        known = ", ".join(sorted(upstream)) or "none"
        raise InvalidArgument(name, f"merge({column})", f"the view has no aggregate of that name; it has {known}")
    of = upstream[column]
    match of.kind:
        case "count":
            made = sum(written(column))
        case "sum":
            made = Aggregate(Partial("sum", written(column), exact=of.partial.exact, merges=column))
        case "min" | "max":
            made = Aggregate(Partial(of.kind, written(column)))
        case "avg":
            made = Aggregate(Partial("avg", written(f"{column}__sum"), count=written(f"{column}__count")))
        case "first" | "last" | "count_distinct" | "top_k":
            why = f"the view keeps too little of {of} to merge two of them"
            instead = {"count_distinct": "use approx_count_distinct(…) there", "top_k": "count by value there"}
            raise InvalidArgument(name, f"merge({column})", f"{why}: {instead.get(of.kind, f'use hr.{of.kind}(…)')}")
        case _:
            kept = column if of.finish is None else f"{column}__state"
            made = Aggregate(Partial("merge", written(kept)), of.merge, of.finish, of.type)
    return replace(made, partial=replace(made.partial, retracts=True))


def written(name: str) -> str:
    """A column's name as an argument, which is SQL: a result may be called anything."""
    from headrace.schema import quoted_name

    plain = name.isidentifier() and name.isascii() and name.lower() not in ("true", "false", "null")
    return name if plain else quoted_name(name)


def _positive(number: int, argument: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidArgument(argument, number, "must be a whole number, 1 or more")
    return number


def _given(column: Any, function: str, *, argument: str = "column", needs: str = "") -> Any:
    if column is None or isinstance(column, (bool, int, float, Aggregate)) or (isinstance(column, str) and not column):
        needs = needs or "a column: its name, an SQL expression, or a Column of PySpark"
        raise InvalidArgument(argument, column, f"{function}() takes {needs}")
    return column
