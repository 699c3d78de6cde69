"""A user's own aggregate: an aggregate expression of Spark's, and functions that merge and finish its values. Only
Spark computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from headrace.aggregates.algebra import ddl
from headrace.aggregates.merged import Merged


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
