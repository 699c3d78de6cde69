"""Whether a flow's partial rows can be made by Arrow, where the records are read. What can only be asked of Spark (an
SQL expression, a type it does not share with Arrow) is made by Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates import Algebra
from headrace.aggregates.algebra import same_in_arrow
from headrace.flows.compiler.records import judge_of
from headrace.flows.flow import Flow
from headrace.kernels.arrow_partials import ArrowPartials


def arrow_plan(
    flow: Flow, time: str | None, schema: Callable[[], pa.Schema], sources: Sequence[pa.Schema]
) -> ArrowPartials | None:
    """How to make the flow's partial rows of `schema` without Spark, of records that have these columns, by source;
    None if only Spark can. Spark is asked for the schema, so only if it is needed."""
    if flow.aggregates is None or flow.own_progress:
        return None
    wanted = [*flow.groups, *([time] if time and not flow.by_arrival else [])]
    algebras = [aggregate.algebra for aggregate in flow.aggregates.values()]
    for algebra in algebras:
        wanted += algebra.given()
        if not all(_is_a_name(given) for given in algebra.given()):
            return None
    known = _common(sources, wanted)
    if known is None or not all(same_in_arrow(known[name]) for name in flow.groups):
        return None
    if not all(_possible(algebra, known) for algebra in algebras):
        return None
    judge = None if flow.window is None or time is None else judge_of(flow, time)
    return ArrowPartials(schema(), judge, time, flow.groups, dict(flow.aggregates), flow.retracts)


def _is_a_name(given: Any) -> bool:
    """Whether Spark takes it for a column, if there is one of that name: `a-b` is a difference, `true` is true."""
    plain = isinstance(given, str) and given.isidentifier() and given.isascii()
    return given is None or (plain and given.lower() not in ("true", "false", "null"))


def _common(sources: Sequence[pa.Schema], wanted: Sequence[Any]) -> dict[str, pa.DataType] | None:
    """The columns' types; None when one is not a plain column, or not the same everywhere."""
    known: dict[str, pa.DataType] = {}
    for schema in sources:
        has = {field.name: field.type for field in schema}
        for name in wanted:
            if not isinstance(name, str) or name not in has or known.setdefault(name, has[name]) != has[name]:
                return None
    return known


def _possible(algebra: Algebra, known: Mapping[str, pa.DataType]) -> bool:
    chosen = algebra.where is None or types.is_boolean(known[algebra.where])
    return chosen and algebra.settled({part: known[name] for part, name in algebra.parts().items()}).possible()
