"""Whether a pattern fits the columns of its events: types of conditions and measures. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.types as types

from headrace.cep.definition import Pattern, parts_of
from headrace.cep.evaluate import type_of
from headrace.errors import InvalidArgument

__all__ = ["check_conditions", "measure_types"]


def check_conditions(pattern: Pattern, schema: Mapping[str, pa.DataType]) -> None:
    """InvalidArgument for a column that is not there, types that do not fit, and what is no condition. `schema`: of
    columns, and of what Spark computes."""
    parts = parts_of(pattern)
    said = [(each.symbol, each.of, each.text) for each in parts.row_conditions]
    said += [(each.symbol, each.history, each.text) for each in parts.conditions if each.history is not None]
    for symbol, tree, text in said:
        argument = f"define[{symbol!r}]"
        if not types.is_boolean(type_of(tree, schema, argument, text)):
            raise InvalidArgument(argument, text, "must be a condition: true or false")


def measure_types(pattern: Pattern, schema: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The type of each measure; InvalidArgument where types do not fit."""
    out = {}
    texts = dict(pattern.measures)
    for name, tree in parts_of(pattern).measure_trees:
        kind = type_of(tree, schema, f"measures[{name!r}]", texts[name])
        out[name] = pa.string() if types.is_null(kind) else kind
    return out
