"""Aggregates as algebra: what one keeps, how two of it become one, and what a reader sees. Owns the description only:
Spark computes the partial rows (`flows.partials`), a store merges them into what it has.

An aggregate keeps one or more *slots*, columns of the state. A slot's rule says how an old and a new value merge; every
rule is associative and commutative, and null is its neutral value, so that any cut of the stream gives the same state.
The slot with the aggregate's own name is its result; an average has none, its result is the ratio of its two slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import InvalidArgument

__all__ = ["Aggregate", "Slot", "avg", "count", "count_distinct", "first", "last", "max", "min", "sum"]

Kind = Literal["count", "sum", "avg", "min", "max", "first", "last", "count_distinct"]

Rule = Literal[
    "add",  # the sum; an integer that does not fit 64 bits is an error, never a wrong number
    "least",
    "greatest",
    "earliest",  # the value whose (event time, partition, offset) is least …
    "latest",  # … or greatest; the slots `orders` names are kept with it
    "exact",  # a sum of doubles without rounding, as the text of a whole number of 2**-1074
    "rounded",  # the double nearest to the exact sum in the slot `of`
    "distinct",  # the number of values in a table of their own
]


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    rule: Rule
    of: str = ""


ORDER = ("at", "partition", "offset")
"""What orders first and last, as suffixes of their slots' names."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What `count()`, `sum("ms")` … return. `argument` and `where` are a column's name, an SQL expression or a
    `Column`."""

    kind: Kind
    argument: Any = None
    where: Any = None
    exact: bool = False

    def slots(self, name: str) -> tuple[Slot, ...]:
        match self.kind:
            case "count":
                return (Slot(name, "add"),)
            case "sum" if self.exact:
                return Slot(f"{name}__exact", "exact"), Slot(name, "rounded", of=f"{name}__exact")
            case "sum":
                return (Slot(name, "add"),)
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

    def __str__(self) -> str:
        said = [] if self.argument is None else [str(self.argument)]
        said += [] if self.where is None else [f"where={self.where}"]
        return f"{self.kind}({', '.join(said + ['exact=True'] * self.exact)})"


def count(where: Any = None) -> Aggregate:
    """How many records; with `where`, how many of which it is true: `count(where="status >= 500")`."""
    return Aggregate("count", where=where)


def sum(column: Any, exact: bool = False) -> Aggregate:
    """Integers and decimals are summed exactly. Doubles up to rounding, or with `exact=True` as if with infinite
    precision, rounded once. Without a value other than null it is null, as in SQL."""
    return Aggregate("sum", _given(column, "sum"), exact=exact)


def avg(column: Any) -> Aggregate:
    """The sum divided by the number of values, a double."""
    return Aggregate("avg", _given(column, "avg"))


def min(column: Any) -> Aggregate:
    """The least value."""
    return Aggregate("min", _given(column, "min"))


def max(column: Any) -> Aggregate:
    """The greatest value; of doubles, NaN is the greatest, as in Spark."""
    return Aggregate("max", _given(column, "max"))


def first(column: Any) -> Aggregate:
    """The value, other than null, with the earliest event time; among equals, of the lowest partition and offset."""
    return Aggregate("first", _given(column, "first"))


def last(column: Any) -> Aggregate:
    """The value, other than null, with the latest event time; among equals, of the highest partition and offset."""
    return Aggregate("last", _given(column, "last"))


def count_distinct(column: Any) -> Aggregate:
    """How many different values other than null, exactly: each is kept while its window can change."""
    return Aggregate("count_distinct", _given(column, "count_distinct"))


def _given(column: Any, function: str) -> Any:
    if column is None or isinstance(column, (bool, int, float, Aggregate)) or (isinstance(column, str) and not column):
        raise InvalidArgument(
            "column", column, f"{function}() takes a column: its name, an SQL expression, or a Column of PySpark"
        )
    return column
