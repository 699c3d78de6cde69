"""Mappings to columns. A column is built whole, at C speed, from values whose Python types were checked first; rows are
looked at one by one only to find the first bad one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timezone
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidArgument, RecordRejected
from headrace.jsonrows import encode_row
from headrace.rows.values import (
    ARROW_ERRORS,
    EXPECTED,
    FLOATS,
    NONE,
    Bad,
    Node,
    Suspect,
    cast_text,
    check_range,
    checked,
    cut,
    node_of,
    unknown_field,
)
from headrace.schema import RESERVED_COLUMNS, storage_schema


@dataclass(frozen=True)
class Plan:
    """A schema compiled for `to_batch`; remembered, because a single row should cost microseconds."""

    schema: pa.Schema
    stored: pa.Schema
    extra: str
    struct: pa.DataType  # the stored columns as one struct
    nodes: tuple[Node, ...]
    names: frozenset[str]


_plans: dict[tuple[int, str], Plan] = {}


def plan_of(schema: pa.Schema, extra: str) -> Plan:
    plan = _plans.get((id(schema), extra))
    if plan is None or plan.schema is not schema:
        if extra not in ("forbid", "ignore", "keep"):
            raise InvalidArgument("extra", extra, "is one of 'forbid', 'ignore', 'keep'")
        nodes = tuple(node_of(f.name, f.type, f.nullable, extra) for f in schema)
        stored = storage_schema(schema, extra)
        plan = Plan(schema, stored, extra, pa.struct(list(stored)), nodes, frozenset(schema.names))
        if len(_plans) >= 256:
            _plans.clear()
        _plans[id(schema), extra] = plan
    return plan


def from_one(row: dict[Any, Any], plan: Plan) -> pa.RecordBatch | None:
    """A single plain row in one conversion, at half the cost of one for each column; None if it is not plain."""
    if not _is_plain(row, plan.names, plan.nodes):
        return None
    try:
        return pa.RecordBatch.from_struct_array(pa.array((row,), plan.struct))
    except ARROW_ERRORS:
        return None


def _is_plain(row: dict[Any, Any], names: frozenset[str], nodes: tuple[Node, ...]) -> bool:
    """Whether Arrow makes of these fields what they are, without looking at each."""
    if not row.keys() <= names:
        return False
    for node in nodes:
        value = row.get(node.name)
        kind = type(value)
        if value is None:
            if not node.nullable:
                return False
        elif kind is datetime:
            if not node.instant or value.tzinfo is not UTC:
                return False
        elif kind is dict and pa.types.is_struct(node.arrow):
            if not _is_plain(value, node.names, node.children):
                return False
        elif node.children or kind not in node.exact:
            return False
    return True


def from_mappings(rows: list[dict[Any, Any]], plan: Plan, topic: str) -> pa.RecordBatch:
    try:
        columns = [column_of(_values(rows, node.name), node) for node in plan.nodes]
        if plan.extra != "ignore":
            unknown = set(chain.from_iterable(rows)) - plan.names
            if unknown and plan.extra == "forbid":
                raise Suspect
            if plan.extra == "keep":
                columns.append(_extras(rows, plan) if unknown else pa.nulls(len(rows), pa.string()))
    except (Suspect, Bad) as error:
        _find_fault(rows, plan, topic)
        raise AssertionError(f"{topic}: a batch was refused ({error}) in which no row is bad") from None
    return pa.RecordBatch.from_arrays(columns, schema=plan.stored)


def _values(rows: list[dict[Any, Any]], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def _find_fault(rows: list[dict[Any, Any]], plan: Plan, topic: str) -> None:
    """Raises for the first bad row: unknown fields first (a misspelt name explains a missing one)."""
    for i, row in enumerate(rows):
        try:
            extra_of(row, plan)
            for node in plan.nodes:
                checked(row.get(node.name), node, node.name)
        except Bad as bad:
            raise RecordRejected(topic, i, bad.path, bad.why) from None


def _extras(rows: list[dict[Any, Any]], plan: Plan) -> pa.Array:
    return pa.array([extra_of(row, plan) for row in rows], pa.string())


def extra_of(row: dict[Any, Any], plan: Plan) -> str | None:
    """The unknown fields of a row as the text of a JSON object, None if there are none; Bad by the topic's rule."""
    unknown = {name: value for name, value in row.items() if name not in plan.names}
    if not unknown or plan.extra == "ignore":
        return None
    for name in unknown:
        if plan.extra == "forbid" or not isinstance(name, str):
            raise unknown_field(name, list(plan.schema.names), nested=False)
        if name in RESERVED_COLUMNS:
            raise Bad("is a name reserved for headrace's own columns. Rename the field.", name)
    try:
        return encode_row(unknown).decode()
    except InvalidArgument as error:
        raise Bad(f"cannot be kept as JSON: {error.why}", str(error.value)) from None
    except Exception as error:  # a value that cannot even be looked at: pd.NaT, a time zone that raises
        raise Bad(f"has unknown fields that cannot be kept as JSON: {error}", next(iter(unknown))) from None


def column_of(values: list[Any], node: Node) -> pa.Array:
    """The column of these values, built whole. Suspect or Bad if one of them does not belong there."""
    types = set(map(type, values))
    if NONE in types and not node.nullable:
        raise Suspect
    column = None
    try:
        if types <= node.exact:
            column = _nested_column(values, node, types) if node.children else pa.array(values, node.arrow)
        elif node.temporal:
            column = _times(values, node, types)
        elif types <= FLOATS and pa.types.is_float32(node.arrow):
            column = pa.array(values, node.arrow)  # rounded, as the type says; but not to infinity
            column = None if pc.any(pc.is_inf(column)).as_py() else column
    except ARROW_ERRORS:
        pass  # too large, not exact, …: looked at one by one below
    if column is None:
        plain = node.plain
        column = pa.array([None if value is None else plain(value) for value in values], node.arrow)
    if isinstance(column, pa.ChunkedArray):
        raise InvalidArgument(
            "data", f"<{len(values)} rows>", f"column {node.name!r} exceeds 2 GB; append in smaller pieces"
        )
    return column


_tzinfo: Final = attrgetter("tzinfo")


def _times(values: list[Any], node: Node, types: set[type]) -> pa.Array | None:
    """Datetimes and ISO text in bulk; None if they are mixed or unusual."""
    if types <= {str, NONE}:
        return cast_text(pa.array(values, pa.string()), node)
    if types <= {datetime, NONE} and pa.types.is_timestamp(node.arrow):
        zones = set(map(_tzinfo, values if NONE not in types else [v for v in values if v is not None]))
        if node.arrow.tz is None:
            return pa.array(values, node.arrow) if zones <= {None} else None
        if zones <= {UTC}:
            return pa.array(values, node.arrow)
        # A tzinfo of somebody else's may answer None; the standard library's never do.
        if all(type(zone) in (timezone, ZoneInfo) for zone in zones):
            column = pa.array(values, node.arrow)
            check_range(column, node)
            return column
    return None


def _nested_column(values: list[Any], node: Node, types: set[type]) -> pa.Array | None:
    """Structs, lists and maps from their children's columns; None for what must be looked at one by one."""
    missing = np.fromiter((v is None for v in values), bool, len(values)) if NONE in types else None
    given = [v for v in values if v is not None] if NONE in types else values
    t = pa.types
    if t.is_struct(node.arrow):
        if node.unknown != "ignore" and not set(chain.from_iterable(given)) <= node.names:
            raise Suspect
        return struct_array([column_of(_values(given, child.name), child) for child in node.children], node, missing)
    if t.is_list(node.arrow):
        child = column_of(list(chain.from_iterable(given)), node.children[0])
        return list_array(list(map(len, given)), missing, [child], node)
    if not types <= {dict, NONE} or node.children[0].temporal or pa.types.is_decimal(node.children[0].arrow):
        return None  # pairs may repeat a key, and so may keys that are equal only once converted
    keys = column_of(list(chain.from_iterable(given)), node.children[0])
    items = column_of(list(chain.from_iterable(v.values() for v in given)), node.children[1])
    return list_array(list(map(len, given)), missing, [keys, items], node)


def struct_array(children: list[pa.Array], node: Node, missing: np.ndarray[Any, Any] | None) -> pa.Array:
    """A struct array of dense children, spread out over the rows that are not missing."""
    fields = [node.arrow.field(i) for i in range(node.arrow.num_fields)]
    dense = pa.StructArray.from_arrays(children, fields=fields)
    if missing is None:
        return dense
    return dense.take(pa.array(np.cumsum(~missing) - 1, mask=missing))


def list_array(lengths: Any, missing: np.ndarray[Any, Any] | None, children: list[pa.Array], node: Node) -> pa.Array:
    """A list or map array of dense children; `lengths` are those of the rows that are not missing."""
    count = len(lengths) if missing is None else len(missing)
    steps = np.zeros(count + 1, np.int64)
    steps[1:][slice(None) if missing is None else ~missing] = lengths
    ends = np.cumsum(steps)
    if ends[-1] > 2**31 - 1:
        raise InvalidArgument("data", f"<{count} rows>", f"column {node.name!r} is too large; append in smaller pieces")
    mask = None if missing is None else np.append(missing, False)
    offsets = pa.array(ends.astype(np.int32), mask=mask)
    if len(children) == 2:
        return pa.MapArray.from_arrays(offsets, *children, type=node.arrow)
    return pa.ListArray.from_arrays(offsets, *children, type=node.arrow)


def as_dict(row: Any, i: int) -> dict[Any, Any]:
    if type(row) is dict:
        return row
    if not isinstance(row, Mapping):
        raise InvalidArgument("data", cut(row), f"row {i} is {type(row).__name__}, not a mapping; {EXPECTED}")
    return dict(row)
