"""What a program writes: `Aggregate`, made by a function of headrace; or a user's own, of an aggregate expression of
Spark's and functions that merge and finish its values. Only Spark computes one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.aggregates.algebra import Algebra, Slot, ddl
from headrace.aggregates.merged import Merged
from headrace.errors import InvalidArgument


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
        if isinstance(self.partial, Algebra):
            return
        column = given(self.partial, "Aggregate", argument="partial", needs="an aggregate: a Column, or SQL text")
        if not callable(self.merge):
            raise InvalidArgument("merge", self.merge, "must be a function of two partial values: merge(a, b)")
        if self.finish is not None and not callable(self.finish):
            raise InvalidArgument("finish", self.finish, "must be a function of what was merged: finish(value)")
        if self.finish is None and self.type is not None:
            raise InvalidArgument("type", self.type, "without finish= the result has the type of the partial")
        if self.finish is not None:
            object.__setattr__(self, "type", self.type or "double")
        object.__setattr__(self, "partial", Own(column, functions=(self.merge, self.finish), result=self.type))

    @property
    def algebra(self) -> Algebra:
        found: Algebra = self.partial
        return found

    @property
    def kind(self) -> str:
        return self.algebra.called

    def slots(self, name: str) -> tuple[Slot, ...]:
        return self.algebra.slots(name)

    def with_algebra(self, algebra: Algebra) -> Aggregate:
        return replace(self, partial=algebra)

    def __str__(self) -> str:
        return str(self.algebra)


def given(column: Any, function: str, *, argument: str = "column", needs: str = "") -> Any:
    """A column as it was written; or the error that says what one is."""
    if column is None or isinstance(column, (bool, int, float, Aggregate)) or (isinstance(column, str) and not column):
        needs = needs or "a column: its name, an SQL expression, or a Column of PySpark"
        raise InvalidArgument(argument, column, f"{function}() takes {needs}")
    return column


@dataclass(frozen=True)
class Own(Merged):
    """`argument` is the aggregate expression: of no record by itself."""

    functions: tuple[Callable[..., Any] | None, ...] = ()
    result: str | None = None

    called: ClassVar[str] = "own"

    def parts(self) -> dict[str, Any]:
        return {}

    def kept(self) -> str:
        return ddl(self.of())

    def finished(self, state: pa.DataType) -> str | None:
        return self.result

    def __str__(self) -> str:
        functions = dict(zip(("merge", "finish"), self.functions, strict=True))
        said = [f"partial={self.argument}", *(f"{name}={_name(each)}" for name, each in functions.items() if each)]
        return f"Aggregate({', '.join([*said, *([] if self.result is None else [f'type={self.result}'])])})"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
