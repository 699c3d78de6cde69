"""Rows in and out: mappings and Arrow data to one typed batch, and back.

Owns the rules of what a column takes. The promise is that nothing is changed in silence: a value is stored as
exactly what it is, or the whole append is refused with its row, its column and what to do. `pa.array` alone would
turn 1.5 into 1, an integer into an instant and bytes into text, so it only ever sees values whose Python types
were checked first. Columns are built whole, at C speed; rows are looked at one by one only to find the first bad
one. Knows no topics (but for the name in the error) and no files."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timezone
from decimal import Decimal
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US, epoch_us, from_us, parse_iso
from headrace.errors import InvalidArgument, RecordRejected, nearest
from headrace.jsonrows import encode_row, parse_object
from headrace.schema import EXTRA_COLUMN, RESERVED_COLUMNS, is_list_like, storage_schema, type_ddl

__all__ = ["to_batch", "to_rows"]

_NONE: Final = type(None)
_FLOATS: Final = frozenset({float, _NONE})
_DAY_MIN: Final = (date.min - date(1970, 1, 1)).days
_DAY_MAX: Final = (date.max - date(1970, 1, 1)).days
_FLOAT32_MAX: Final = 3.4028235677973366e38  # from here on rounding to float gives infinity
_ARROW_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)


class _Bad(Exception):
    """A value the column cannot hold: where below the column, and why."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.path = path


class _Suspect(Exception):
    """Something is wrong in these columns; the rows must be looked at to say what."""


# -- what a column takes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Node:
    """One column, field, element, key or value: its type and how Python values become it."""

    name: str
    arrow: pa.DataType
    nullable: bool
    exact: frozenset[type]  # types pa.array takes without changing them
    plain: Callable[[Any], Any]  # any other value, as one of those; raises _Bad
    children: tuple[_Node, ...] = ()
    names: frozenset[str] = frozenset()  # of a struct's fields
    unknown: str = "forbid"
    temporal: bool = False
    instant: bool = False  # a timestamp, with its zone
    inspect: bool = False  # an array of the right type may still be wrong inside: times, NOT NULL fields, keys


def _node(name: str, arrow: pa.DataType, nullable: bool, unknown: str) -> _Node:
    t = pa.types
    children: tuple[_Node, ...] = ()
    if t.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        children = tuple(_node(f.name, f.type, f.nullable, unknown) for f in fields)
    elif t.is_map(arrow):
        children = (_node("key", arrow.key_type, False, unknown), _node("value", arrow.item_type, True, unknown))
    elif t.is_list(arrow):
        children = (_node("", arrow.value_type, True, unknown),)
    exact, plain = _rules(arrow, children, unknown)
    return _Node(
        name,
        arrow,
        nullable,
        frozenset({*exact, _NONE}),
        plain,
        children,
        frozenset(child.name for child in children),
        unknown,
        t.is_temporal(arrow),
        t.is_timestamp(arrow) and arrow.tz is not None,
        t.is_temporal(arrow) or t.is_map(arrow) or any(not child.nullable or child.inspect for child in children),
    )


def _rules(
    arrow: pa.DataType, children: tuple[_Node, ...], unknown: str
) -> tuple[tuple[type, ...], Callable[[Any], Any]]:
    t = pa.types
    if t.is_string(arrow):
        return (str,), _plain_string
    if t.is_integer(arrow):
        return (int,), _plain_integer(arrow)
    if t.is_float64(arrow):
        return (float, int), _plain_double
    if t.is_floating(arrow):
        return (int,), _plain_float
    if t.is_boolean(arrow):
        return (bool,), _plain_boolean
    if t.is_timestamp(arrow):
        return (), _plain_timestamp if arrow.tz else _plain_timestamp_ntz
    if t.is_date(arrow):
        return (date,), _plain_date
    if t.is_binary(arrow):
        return (bytes, bytearray), _plain_binary
    if t.is_decimal(arrow):
        return (int, Decimal), _plain_decimal(arrow)
    if t.is_struct(arrow):
        return (dict,), _plain_struct(children, unknown)
    if t.is_map(arrow):
        return (dict, list, tuple), _plain_map(*children)
    assert t.is_list(arrow), arrow
    return (list, tuple), _plain_list(*children)


def _shown(value: Any) -> str:
    """`int 5`, `str 'abc…'`: the value as an error shows it."""
    try:
        text = repr(value)
    except Exception:
        text = "…"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:59] + '…'}"


def _wrong(value: Any, expected: str, do: str = "") -> _Bad:
    do = f" {do}" if do else ""
    if _is_nan(value):
        do += " A missing value is None, not NaN."
    return _Bad(f"got {_shown(value)}, expected {expected}.{do}")


def _is_nan(value: Any) -> bool:
    """NaN of any kind: a float's, a decimal's, pandas' NaT and NA."""
    if isinstance(value, Decimal):
        return value.is_nan()
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value))


def _unwrap(value: Any) -> Any:
    """numpy scalars as Python's own; everything else as it is."""
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64 | np.void):
        return value.item()
    return value


def _plain_string(value: Any) -> str:
    if not isinstance(value, str):
        do = (
            "Decode it: value.decode()."
            if isinstance(value, bytes | bytearray)
            else "Convert it with str() if text is meant."
        )
        raise _wrong(value, "str", do)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(value, f"Unicode text; there is a lone surrogate at character {error.start}") from None
    return str.__str__(value)  # not str(value): an Enum that is a str would say its name


def _plain_integer(arrow: pa.DataType) -> Callable[[Any], int]:
    limit = 1 << (arrow.bit_width - 1)
    name = type_ddl(arrow)

    def plain(value: Any) -> int:
        whole = _unwrap(value)
        if type(whole) is not int:
            if isinstance(whole, bool) or not isinstance(whole, int):
                do = "Round it and convert it with int()." if isinstance(whole, float) else ""
                raise _wrong(value, f"int ({name})", do)
            whole = int(whole)
        if not -limit <= whole < limit:
            raise _wrong(
                value, f"{name}, {-limit}..{limit - 1}", "Use a wider type for the column." if limit < 2**63 else ""
            )
        return whole

    return plain


def _plain_double(value: Any) -> float:
    number = _unwrap(value)
    if isinstance(number, float):
        return float(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise _wrong(value, "float or int (double)")
    try:
        out = float(number)
    except OverflowError:
        out = math.inf
    if out != number:
        raise _wrong(value, "an int a double holds exactly", "Convert it with float() if rounding is meant.")
    return out


def _plain_float(value: Any) -> float:
    number = _plain_double(value)
    if isinstance(_unwrap(value), int):
        if float(np.float32(number)) != number:
            raise _wrong(value, "an int a float holds exactly", "Convert it with float() if rounding is meant.")
    elif math.isfinite(number) and abs(number) >= _FLOAT32_MAX:
        raise _wrong(value, "a number in the range of float (3.4e38)", "Use double for the column.")
    return number


def _plain_boolean(value: Any) -> bool:
    flag = _unwrap(value)
    if type(flag) is not bool:
        raise _wrong(value, "bool", "Say which: value == 1, or value != 0." if isinstance(flag, int) else "")
    return flag


def _from_numpy_time(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        raise _wrong(
            value, "a datetime", "Convert it: value.astype('datetime64[us]').item().replace(tzinfo=timezone.utc)."
        )
    return value


def _checked_datetime(value: Any, expected: str) -> datetime:
    if isinstance(value, str):
        try:
            return parse_iso(value)
        except ValueError as error:
            raise _Bad(f"got {_shown(value)}, which {error}.") from None
    if not isinstance(value, datetime) or _is_nan(value):  # NaT is a datetime
        do = (
            "An epoch number does not say its unit: datetime.fromtimestamp(seconds, timezone.utc)."
            if isinstance(value, int | float)
            else ""
        )
        raise _wrong(_from_numpy_time(value), expected, do)
    if getattr(value, "nanosecond", 0):
        raise _Bad(f"got {_shown(value)}, which is finer than a microsecond. Round it first: value.floor('us').")
    return value


def _plain_timestamp(value: Any) -> datetime:
    when = _checked_datetime(value, "an aware datetime, or ISO text with a zone (timestamp)")
    try:
        return from_us(epoch_us(when))
    except ValueError as error:
        raise _Bad(f"got {_shown(value)}, which {error}.") from None


def _plain_timestamp_ntz(value: Any) -> datetime:
    when = _checked_datetime(value, "a naive datetime, or ISO text without a zone (timestamp_ntz)")
    if when.tzinfo is not None:
        raise _Bad(
            f"got {_shown(value)}, which has a time zone; the column has none (timestamp_ntz). "
            f"Make the column a timestamp, or drop the zone: value.replace(tzinfo=None)."
        )
    return datetime(when.year, when.month, when.day, when.hour, when.minute, when.second, when.microsecond)


def _plain_date(value: Any) -> date:
    if isinstance(value, str):
        try:
            if len(value) != 10:
                raise ValueError("length")
            return parse_iso(value).date()
        except ValueError:
            raise _wrong(value, "a date, or ISO text as in '2026-01-31'") from None
    if isinstance(value, datetime) or not isinstance(value, date):
        do = "Say which day is meant: value.date()." if isinstance(value, datetime) else ""
        raise _wrong(value, "a date, or ISO text as in '2026-01-31'", do)
    return date(value.year, value.month, value.day)


def _plain_binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _wrong(value, "bytes", "Encode it: value.encode()." if isinstance(value, str) else "")


def _plain_decimal(arrow: pa.DataType) -> Callable[[Any], Decimal]:
    name, scale, whole_max = type_ddl(arrow), arrow.scale, arrow.precision - arrow.scale

    def plain(value: Any) -> Decimal:
        number = _unwrap(value)
        if isinstance(number, str):
            try:
                if len(number) > 200 or "_" in number or number != number.strip():
                    raise ValueError("not plain")
                number = Decimal(number)
            except (ArithmeticError, ValueError):
                raise _wrong(value, f"a number as text ({name})") from None
        elif isinstance(number, bool) or not isinstance(number, int | Decimal):
            do = "A float is not exact: pass Decimal('1.10') or the text '1.10'." if isinstance(number, float) else ""
            raise _wrong(value, f"Decimal, int or text ({name})", do)
        if isinstance(number, int):
            if abs(number) >= 10**whole_max:
                raise _wrong(value, f"at most {whole_max} digits before the point ({name})")
            return Decimal(number)
        if not number.is_finite():
            raise _wrong(value, f"a finite number ({name})")
        if number and number.adjusted() >= whole_max:
            raise _wrong(value, f"at most {whole_max} digits before the point ({name})")
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        if not number:
            return Decimal(0)
        cut = -exponent - scale  # digits behind the column's last one: all must be zeros
        if cut > 0:
            if cut >= len(digits) or any(digits[-cut:]):
                raise _wrong(
                    value, f"at most {scale} digits behind the point ({name})", "Round it first: value.quantize(…)."
                )
            return Decimal((sign, digits[:-cut], exponent + cut))
        return Decimal(number)

    return plain


def _plain_struct(children: tuple[_Node, ...], unknown: str) -> Callable[[Any], dict[str, Any]]:
    names = {child.name for child in children}

    def plain(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong(value, f"a mapping with {', '.join(sorted(names))}")
        if unknown != "ignore":
            for name in value:
                if name not in names:
                    raise _unknown(name, sorted(names), nested=True)
        return {child.name: _checked(value.get(child.name), child) for child in children}

    return plain


def _plain_list(element: _Node) -> Callable[[Any], list[Any]]:
    def plain(value: Any) -> list[Any]:
        if isinstance(value, np.ndarray):
            value = list(value)
        if not isinstance(value, list | tuple):
            raise _wrong(value, "a list or tuple", "Wrap it: [value]." if isinstance(value, str | int | float) else "")
        return [_checked(item, element, f"[{i}]") for i, item in enumerate(value)]

    return plain


def _plain_map(key: _Node, item: _Node) -> Callable[[Any], list[tuple[Any, Any]]]:
    def plain(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, Mapping):
            pairs = list(value.items())
        elif isinstance(value, list | tuple) and all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
            pairs = [(k, v) for k, v in value]
        else:
            raise _wrong(value, "a mapping, or a list of (key, value) pairs")
        out = [(_checked(k, key, ".key"), _checked(v, item, f"[{_short_key(k)}]")) for k, v in pairs]
        if len({k for k, _ in out}) != len(out):
            raise _Bad(f"got {_shown(value)}, which has a key twice.")
        return out

    return plain


def _short_key(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else text[:39] + "…"


def _unknown(name: Any, known: list[str], *, nested: bool) -> _Bad:
    if not isinstance(name, str):
        return _Bad(f"a field's name is text, not {_shown(name)}")
    do = "" if nested else ", or create the topic with extra='keep' or 'ignore'"
    return _Bad(
        f"unknown field.{nearest(name, known)} Add it to the schema, leave it out{do}", f".{name}" if nested else name
    )


def _checked(value: Any, node: _Node, step: str | None = None) -> Any:
    """The value as the node's own, looked at closely; _Bad with the path below the column."""
    step = f".{node.name}" if step is None else step
    if value is None:
        if not node.nullable:
            raise _Bad("is null or missing, but the column is NOT NULL. Give it a value.", step)
        return None
    try:
        return node.plain(value)
    except _Bad as bad:
        bad.path = step + bad.path
        raise


# -- mappings to columns ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """A schema compiled for `to_batch`; remembered, because a single row should cost microseconds."""

    schema: pa.Schema
    stored: pa.Schema
    extra: str
    struct: pa.DataType  # the stored columns as one struct
    nodes: tuple[_Node, ...]
    names: frozenset[str]


_plans: dict[tuple[int, str], _Plan] = {}


def _plan(schema: pa.Schema, extra: str) -> _Plan:
    plan = _plans.get((id(schema), extra))
    if plan is None or plan.schema is not schema:
        if extra not in ("forbid", "ignore", "keep"):
            raise InvalidArgument("extra", extra, "is one of 'forbid', 'ignore', 'keep'")
        nodes = tuple(_node(f.name, f.type, f.nullable, extra) for f in schema)
        stored = storage_schema(schema, extra)
        plan = _Plan(schema, stored, extra, pa.struct(list(stored)), nodes, frozenset(schema.names))
        if len(_plans) >= 256:
            _plans.clear()
        _plans[id(schema), extra] = plan
    return plan


def to_batch(data: object, schema: pa.Schema, *, extra: str, topic: str) -> pa.RecordBatch:
    """One batch of `storage_schema(schema, extra)` from a mapping, an iterable of mappings, or Arrow data.
    RecordRejected names the first bad row; then nothing of the data is used."""
    plan = _plan(schema, extra)
    if type(data) is dict:
        one = _from_one(data, plan)
        return _from_mappings([data], plan, topic) if one is None else one
    if isinstance(data, pa.RecordBatch):
        return _from_arrow(data, plan, topic)
    if isinstance(data, Mapping):
        return _from_mappings([dict(data)], plan, topic)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _from_pandas(data, plan, topic)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _from_arrow(_one_batch(data), plan, topic)
    if isinstance(data, str | bytes | bytearray) or not isinstance(data, Iterable):
        raise InvalidArgument("data", _cut(data), f"is {type(data).__name__}; {_EXPECTED}")
    rows = data if type(data) is list else list(data)
    if not set(map(type, rows)) <= {dict}:
        rows = [_as_dict(row, i) for i, row in enumerate(rows)]
    return _from_mappings(rows, plan, topic)


_EXPECTED: Final = "append a mapping ({'user': 'u1'}), an iterable of mappings, or Arrow data (pyarrow, polars, pandas)"


def _as_dict(row: Any, i: int) -> dict[Any, Any]:
    if type(row) is dict:
        return row
    if not isinstance(row, Mapping):
        raise InvalidArgument("data", _cut(row), f"row {i} is {type(row).__name__}, not a mapping; {_EXPECTED}")
    return dict(row)


def _cut(value: Any) -> Any:
    text = repr(value)
    return value if len(text) <= 80 else text[:79] + "…"


def _from_one(row: dict[Any, Any], plan: _Plan) -> pa.RecordBatch | None:
    """A single plain row in one conversion, at half the cost of one for each column; None if it is not plain."""
    given = 0
    for node in plan.nodes:
        value = row.get(node.name)
        kind = type(value)
        if value is None:
            if not node.nullable:
                return None
            given += node.name in row
            continue
        if kind is datetime:
            if not node.instant or value.tzinfo is not UTC:
                return None
        elif node.children or kind not in node.exact:
            return None
        given += 1
    if given != len(row):
        return None
    try:
        return pa.RecordBatch.from_struct_array(pa.array((row,), plan.struct))
    except _ARROW_ERRORS:
        return None


def _from_mappings(rows: list[dict[Any, Any]], plan: _Plan, topic: str) -> pa.RecordBatch:
    try:
        columns = [_column(_values(rows, node.name), node) for node in plan.nodes]
        if plan.extra != "ignore":
            unknown = set(chain.from_iterable(rows)) - plan.names
            if unknown and plan.extra == "forbid":
                raise _Suspect
            if plan.extra == "keep":
                columns.append(_extras(rows, plan) if unknown else pa.nulls(len(rows), pa.string()))
    except (_Suspect, _Bad) as error:
        _find_fault(rows, plan, topic)
        raise AssertionError(f"{topic}: a batch was refused ({error}) in which no row is bad") from None
    return pa.RecordBatch.from_arrays(columns, schema=plan.stored)


def _values(rows: list[dict[Any, Any]], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def _find_fault(rows: list[dict[Any, Any]], plan: _Plan, topic: str) -> None:
    """Raises for the first bad row: unknown fields first (a misspelt name explains a missing one)."""
    for i, row in enumerate(rows):
        try:
            _extra_of(row, plan)
            for node in plan.nodes:
                _checked(row.get(node.name), node, node.name)
        except _Bad as bad:
            raise RecordRejected(topic, i, bad.path, bad.why) from None


def _extras(rows: list[dict[Any, Any]], plan: _Plan) -> pa.Array:
    return pa.array([_extra_of(row, plan) for row in rows], pa.string())


def _extra_of(row: dict[Any, Any], plan: _Plan) -> str | None:
    """The unknown fields of a row as the text of a JSON object, None if there are none; _Bad by the topic's rule."""
    unknown = {name: value for name, value in row.items() if name not in plan.names}
    if not unknown or plan.extra == "ignore":
        return None
    for name in unknown:
        if plan.extra == "forbid" or not isinstance(name, str):
            raise _unknown(name, list(plan.schema.names), nested=False)
        if name in RESERVED_COLUMNS:
            raise _Bad("is a name reserved for headrace's own columns. Rename the field.", name)
    try:
        return encode_row(unknown).decode()
    except InvalidArgument as error:
        raise _Bad(f"cannot be kept as JSON: {error.why}", str(error.value)) from None


def _column(values: list[Any], node: _Node) -> pa.Array:
    """The column of these values, built whole. _Suspect or _Bad if one of them does not belong there."""
    types = set(map(type, values))
    if _NONE in types and not node.nullable:
        raise _Suspect
    column = None
    try:
        if types <= node.exact:
            column = _nested_column(values, node, types) if node.children else pa.array(values, node.arrow)
        elif node.temporal:
            column = _times(values, node, types)
        elif types <= _FLOATS and pa.types.is_float32(node.arrow):
            column = pa.array(values, node.arrow)  # rounded, as the type says; but not to infinity
            column = None if pc.any(pc.is_inf(column)).as_py() else column
    except _ARROW_ERRORS:
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


def _times(values: list[Any], node: _Node, types: set[type]) -> pa.Array | None:
    """Datetimes and ISO text in bulk; None if they are mixed or unusual."""
    if types <= {str, _NONE}:
        return _cast_text(pa.array(values, pa.string()), node)
    if types <= {datetime, _NONE} and pa.types.is_timestamp(node.arrow):
        zones = set(map(_tzinfo, values if _NONE not in types else [v for v in values if v is not None]))
        if node.arrow.tz is None:
            return pa.array(values, node.arrow) if zones <= {None} else None
        if zones <= {UTC}:
            return pa.array(values, node.arrow)
        # A tzinfo of somebody else's may answer None; the standard library's never do.
        if all(type(zone) in (timezone, ZoneInfo) for zone in zones):
            column = pa.array(values, node.arrow)
            _check_range(column, node)
            return column
    return None


def _nested_column(values: list[Any], node: _Node, types: set[type]) -> pa.Array | None:
    """Structs, lists and maps from their children's columns; None for what must be looked at one by one."""
    missing = np.fromiter((v is None for v in values), bool, len(values)) if _NONE in types else None
    given = [v for v in values if v is not None] if _NONE in types else values
    t = pa.types
    if t.is_struct(node.arrow):
        if node.unknown != "ignore" and not set(chain.from_iterable(given)) <= node.names:
            raise _Suspect
        return _struct_array([_column(_values(given, child.name), child) for child in node.children], node, missing)
    if t.is_list(node.arrow):
        child = _column(list(chain.from_iterable(given)), node.children[0])
        return _list_array(list(map(len, given)), missing, [child], node)
    if not types <= {dict, _NONE} or node.children[0].temporal or pa.types.is_decimal(node.children[0].arrow):
        return None  # pairs may repeat a key, and so may keys that are equal only once converted
    keys = _column(list(chain.from_iterable(given)), node.children[0])
    items = _column(list(chain.from_iterable(v.values() for v in given)), node.children[1])
    return _list_array(list(map(len, given)), missing, [keys, items], node)


def _struct_array(children: list[pa.Array], node: _Node, missing: np.ndarray[Any, Any] | None) -> pa.Array:
    """A struct array of dense children, spread out over the rows that are not missing."""
    fields = [node.arrow.field(i) for i in range(node.arrow.num_fields)]
    dense = pa.StructArray.from_arrays(children, fields=fields)
    if missing is None:
        return dense
    return dense.take(pa.array(np.cumsum(~missing) - 1, mask=missing))


def _list_array(lengths: Any, missing: np.ndarray[Any, Any] | None, children: list[pa.Array], node: _Node) -> pa.Array:
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


# -- Arrow data to columns -------------------------------------------------------------------------


def _one_batch(data: Any) -> pa.RecordBatch:
    try:
        if isinstance(data, pa.Table):
            table = data
        elif hasattr(data, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(data).read_all()
        else:
            return pa.record_batch(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        why = f"is {type(data).__name__}, which is no table ({error}); {_EXPECTED}"
        raise InvalidArgument("data", _cut(data), why) from None
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in table.schema], schema=table.schema)
    if len(batches) > 1:
        raise InvalidArgument("data", f"<{table.num_rows} rows>", "a column exceeds 2 GB; append in smaller pieces")
    return batches[0]


def _from_pandas(frame: Any, plan: _Plan, topic: str) -> pa.RecordBatch:
    """The index counts as columns where it has names; an unnamed one is only a row number. NaN is pandas' null."""
    named = [name for name in frame.index.names if name is not None]
    try:
        frame = frame.reset_index(level=named) if named else frame
    except ValueError as error:
        raise InvalidArgument("data", f"<{len(frame)} rows>", f"its index cannot become a column: {error}") from None
    arrays, names = [], []
    faults: dict[str, _Fault] = {}
    for name, series in frame.items():
        if not isinstance(name, str):
            raise InvalidArgument("data", name, "a column's name is text; rename the frame's columns")
        if name in plan.names and series.dtype == object:
            # pyarrow would guess one type for all the objects; they are Python values, so are their rules.
            values = series.where(series.notna(), None).tolist()
            node = next(node for node in plan.nodes if node.name == name)
            try:
                array = _column(values, node)
            except (_Suspect, _Bad):
                faults[name] = _first_bad_value(values, node)
                continue
        else:
            try:
                array = pa.Array.from_pandas(series)
            except _ARROW_ERRORS as error:
                raise InvalidArgument("data", f"<column {name}>", f"cannot be read as Arrow: {error}") from None
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
        names.append(name)
    if not names and not faults:
        return _from_arrow(pa.RecordBatch.from_arrays([pa.nulls(len(frame))], names=[plan.nodes[0].name]), plan, topic)
    return _from_arrow(pa.RecordBatch.from_arrays(arrays, names=names), plan, topic, faults)


def _first_bad_value(values: list[Any], node: _Node) -> _Fault:
    for row, value in enumerate(values):
        try:
            _checked(value, node, node.name)
        except _Bad as bad:
            return row, bad.path, bad.why
    raise AssertionError(f"column {node.name!r} was refused, in which no value is bad")


_Fault = tuple[int, str, str]  # row, column, why


def _from_arrow(
    batch: pa.RecordBatch, plan: _Plan, topic: str, found: Mapping[str, _Fault] = MappingProxyType({})
) -> pa.RecordBatch:
    """`found`: faults in columns that are therefore missing in the batch; the first of all rows is raised."""
    names = batch.schema.names
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidArgument("data", f"<{batch.num_rows} rows>", f"has the column {twice!r} twice; rename one")
    rows = batch.num_rows
    faults = list(found.values())
    unknown = [name for name in names if name not in plan.names]
    if rows and unknown and plan.extra == "forbid":
        bad = _unknown(unknown[0], list(plan.schema.names), nested=False)
        raise RecordRejected(topic, 0, bad.path, bad.why)
    columns = []
    for node in plan.nodes:
        at = batch.schema.get_field_index(node.name)
        if node.name in found:
            continue
        array = batch.column(at) if at >= 0 else pa.nulls(rows)
        try:
            columns.append(_cast(array, node, deep=True))
        except _Bad:
            faults.append(_first_fault(array, node))
    if faults:
        row, column, why = min(faults, key=itemgetter(0))
        raise RecordRejected(topic, row, column, why)
    if plan.extra == "keep":
        columns.append(_arrow_extras(batch, unknown, plan, topic) if unknown else pa.nulls(rows, pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=plan.stored)


def _first_fault(array: pa.Array, node: _Node) -> _Fault:
    """(row, column, why) of the first value that cannot be cast, by halving."""

    def fault(start: int, stop: int) -> _Bad | None:
        try:
            _cast(array.slice(start, stop - start), node, deep=True)
        except _Bad as bad:
            return bad
        return None

    low, high = 0, len(array)  # [0, low) is good; the first bad row is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fault(low, middle) else (middle, high)
    bad = fault(low, high)
    assert bad is not None, "a column was refused in which no row is bad"
    return low, node.name + bad.path, bad.why


def _cast(array: pa.Array, node: _Node, *, deep: bool = False) -> pa.Array:
    """The array as the node's type if no value changes by that, and its own buffers if the type is the same
    already; _Bad otherwise. `deep`: the buffers come from outside, so what is in them is checked, too."""
    t = pa.types
    if deep:
        try:
            array.validate(full=True)
        except (pa.ArrowException, UnicodeError) as error:
            raise _Bad(f"holds damaged Arrow data: {error}") from None
    if isinstance(array.type, pa.BaseExtensionType):
        raise _refused(array, node, f"Cast it to its storage type, {array.type.storage_type}, first.")
    if t.is_dictionary(array.type):
        array = array.dictionary.cast(_plain_layout(array.dictionary.type)).take(array.indices)
    elif t.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if array.null_count:
        if not node.nullable:
            raise _Bad("is null or missing, but the column is NOT NULL. Give it a value.")
        if array.null_count == len(array):
            return pa.nulls(len(array), node.arrow)
    if array.type.equals(node.arrow):
        if node.inspect:
            _inspect(array, node)
        return array
    if not len(array):
        return pa.nulls(0, node.arrow)
    try:
        return _cast_nested(array, node) if node.children else _cast_plain(array, node)
    except pa.ArrowNotImplementedError:  # an odd layout deep inside (a list of dictionaries of views, …)
        return pa.array([_checked(value, node, "") for value in array.to_pylist()], node.arrow)
    except pa.ArrowException as error:
        raise _refused(array, node, f"{_ALIKE} ({str(error)[:120]})") from None


_ALIKE: Final = "The types are alike, but this value does not fit without changing."


def _refused(array: pa.Array, node: _Node, do: str) -> _Bad:
    value = ""
    with suppress(Exception):  # what cannot be shown (another library's extension type, …) is not shown
        first = next(scalar for scalar in array if scalar.is_valid).as_py()
        value = f" {str(first)[:60]!r}"
    return _Bad(f"got {array.type}{value}, expected {type_ddl(node.arrow)}. {do}")


def _cast_plain(array: pa.Array, node: _Node) -> pa.Array:
    t, source, target = pa.types, array.type, node.arrow
    text = t.is_string(source) or t.is_large_string(source) or t.is_string_view(source)
    raw = t.is_binary(source) or t.is_large_binary(source) or t.is_binary_view(source) or t.is_fixed_size_binary(source)
    if t.is_string(target):
        if text:
            return array.cast(target)
        raise _refused(array, node, "Cast the column to string first, if text is meant.")
    if t.is_binary(target):
        if raw:
            return array.cast(target)
        raise _refused(array, node, "Cast the column to binary first, if its bytes are meant.")
    if t.is_integer(target):
        if t.is_integer(source):
            return array.cast(target)
        do = (
            "pandas makes floats of integers when some are missing: use .astype('Int64')."
            if t.is_floating(source)
            else ""
        )
        raise _refused(array, node, do or "Cast the column to an integer first.")
    if t.is_floating(target):
        if t.is_integer(source):
            return array.cast(target)
        if t.is_floating(source):
            return _cast_float(array, node)
        raise _refused(array, node, "Cast the column to a float first.")
    if t.is_decimal(target):
        if t.is_decimal(source):
            return array.cast(target)
        if t.is_integer(source):
            return array.cast(pa.decimal128(20, 0)).cast(target)
        if text:
            return pa.array([None if v is None else node.plain(v) for v in array.to_pylist()], target)
        raise _refused(array, node, "A float is not exact: round it and cast it to a decimal first.")
    if t.is_date(target):
        if t.is_date(source):
            out = array.cast(target)
            _check_range(out, node)
            return out
        if text:
            return _cast_text(array, node)
        raise _refused(array, node, "Cast the column to a date first, saying which day is meant.")
    if t.is_timestamp(target):
        if text:
            return _cast_text(array, node)
        if t.is_timestamp(source) and (source.tz is None) == (target.tz is None):
            out = array.cast(target)
            _check_range(out, node)
            return out
        if t.is_timestamp(source) and source.tz is None:
            do = (
                "It has no time zone: say which (polars: .dt.replace_time_zone('UTC'); pandas: .dt.tz_localize('UTC'))."
            )
        elif t.is_timestamp(source):
            do = "The column has no time zone (timestamp_ntz): make it a timestamp, or drop the zone first."
        else:
            do = "Cast the column to a timestamp first, saying its unit and time zone."
        raise _refused(array, node, do)
    raise _refused(array, node, "Cast the column first.")


def _cast_float(array: pa.Array, node: _Node) -> pa.Array:
    out = array.cast(node.arrow)
    if node.arrow.bit_width < array.type.bit_width:
        same = pc.or_(pc.equal(out.cast(array.type), array), pc.is_nan(array))
        if not pc.all(same).as_py() and pc.any(pc.invert(same)).as_py():
            raise _refused(array, node, "It is not exact as float: make the column a double, or cast to float32 first.")
    return out


def _cast_text(array: pa.Array, node: _Node) -> pa.Array:
    """ISO text as dates and times: Arrow's reader first, ours for what it does not take (and for the reason)."""
    try:
        out = array.cast(node.arrow)
        _check_range(out, node)
        return out
    except (pa.ArrowException, _Bad):
        return pa.array([None if v is None else node.plain(v) for v in array.to_pylist()], node.arrow)


def _check_range(array: pa.Array, node: _Node) -> None:
    """Times that Python's readers can hold: the years 1 to 9999."""
    days = pa.types.is_date(node.arrow)
    low, high = (_DAY_MIN, _DAY_MAX) if days else (INSTANT_MIN_US, INSTANT_MAX_US)
    found = pc.min_max(array.view(pa.int32() if days else pa.int64())).as_py()
    if found["min"] is not None and not (low <= found["min"] and found["max"] <= high):
        raise _Bad(f"got a {type_ddl(node.arrow)} outside the years 1 to 9999.")


def _inspect(array: pa.Array, node: _Node) -> None:
    """An array of the right type: are its times in range, its NOT NULL fields set, its maps' keys unique?"""
    if node.temporal:
        _check_range(array, node)
        return
    dense = array.drop_null() if array.null_count else array
    for child, part in zip(node.children, _parts(dense, node), strict=True):
        if part.null_count and not child.nullable:
            raise _Bad("is null, but the field is NOT NULL. Give it a value.", _step(child, node))
        if child.inspect:
            try:
                _inspect(part, child)
            except _Bad as bad:
                bad.path = _step(child, node) + bad.path
                raise
    if pa.types.is_map(node.arrow):
        _check_unique(dense, _parts(dense, node)[0])


def _step(child: _Node, node: _Node) -> str:
    if pa.types.is_struct(node.arrow):
        return f".{child.name}"
    return "[]" if pa.types.is_list(node.arrow) else f".{child.name}"


def _parts(dense: pa.Array, node: _Node) -> list[pa.Array]:
    """The children's values of an array without nulls, whatever it was sliced from."""
    if pa.types.is_struct(node.arrow):
        return [dense.field(i) for i in range(dense.type.num_fields)]
    if pa.types.is_list(node.arrow):
        return [dense.flatten()]
    first, last = (dense.offsets[0].as_py(), dense.offsets[-1].as_py()) if len(dense) else (0, 0)
    return [part.slice(first, last - first) for part in (dense.keys, dense.items)]


def _check_unique(dense: pa.Array, keys: pa.Array) -> None:
    if len(keys) < 2:
        return
    offsets = dense.offsets.to_numpy()
    owners = np.repeat(np.arange(len(dense)), np.diff(offsets))
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = owners * (int(codes.max()) + 1) + codes
    if len(np.unique(pairs)) != len(pairs):
        raise _Bad("got a map which has a key twice.")


def _cast_nested(array: pa.Array, node: _Node) -> pa.Array:
    t = pa.types
    array = array.cast(_plain_layout(array.type))
    source = array.type
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    dense = array.drop_null() if array.null_count else array

    def child_of(part: pa.Array, child: _Node) -> pa.Array:
        try:
            return _cast(part, child)
        except _Bad as bad:
            bad.path = _step(child, node) + bad.path
            raise

    if t.is_struct(node.arrow) and t.is_struct(source):
        have = [source.field(i).name for i in range(source.num_fields)]
        unknown = [name for name in have if name not in node.names]
        if unknown and node.unknown != "ignore":
            raise _unknown(unknown[0], sorted(node.names), nested=True)
        if len(set(have)) != len(have):
            raise _refused(array, node, "It has a field twice.")
        parts = [
            child_of(dense.field(have.index(child.name)) if child.name in have else pa.nulls(len(dense)), child)
            for child in node.children
        ]
        return _struct_array(parts, node, missing)
    if t.is_map(node.arrow) and t.is_map(source):
        keys, items = _parts(dense, node)
        parts = [child_of(keys, node.children[0]), child_of(items, node.children[1])]
        _check_unique(dense, parts[0])
        return _list_array(np.diff(dense.offsets.to_numpy()), missing, parts, node)
    if t.is_list(node.arrow) and t.is_list(source):
        return _list_array(
            np.diff(dense.offsets.to_numpy()), missing, [child_of(dense.flatten(), node.children[0])], node
        )
    raise _refused(array, node, "Cast the column first.")


def _plain_layout(arrow: pa.DataType) -> pa.DataType:
    """The type without views, large offsets and dictionaries: other layouts of the same values, for which Arrow
    lacks kernels."""
    t = pa.types
    if t.is_dictionary(arrow):
        return _plain_layout(arrow.value_type)
    if t.is_string_view(arrow) or t.is_large_string(arrow):
        return pa.string()
    if t.is_binary_view(arrow) or t.is_large_binary(arrow):
        return pa.binary()
    if t.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return pa.struct([field.with_type(_plain_layout(field.type)) for field in fields])
    if t.is_map(arrow):
        return pa.map_(_plain_layout(arrow.key_type), _plain_layout(arrow.item_type))
    if is_list_like(arrow):
        return pa.list_(_plain_layout(arrow.value_type))
    return arrow


def _arrow_extras(batch: pa.RecordBatch, unknown: list[str], plan: _Plan, topic: str) -> pa.Array:
    """Unknown columns, row by row, as JSON text; a null there is an absent field. An `_extra` column, as another
    topic's batches have it, is taken apart again."""
    columns = {name: batch.column(name) for name in unknown}
    kept = columns.pop(EXTRA_COLUMN, None)
    values = {name: python_values(array) for name, array in columns.items()}
    texts = [None] * batch.num_rows if kept is None else python_values(kept)
    out: list[str | None] = []
    for i, text in enumerate(texts):
        try:
            row = {name: column[i] for name, column in values.items() if column[i] is not None}
            if text is not None:
                if not isinstance(text, str):
                    raise _Bad("is not the JSON text of an object.", EXTRA_COLUMN)
                row |= {name: value for name, value in parse_object(text).items() if name not in row}
                for name in row:
                    if name in plan.names:
                        raise _Bad(f"has the field {name!r}, which is a column of the topic.", EXTRA_COLUMN)
            out.append(_extra_of(row, plan))
        except _Bad as bad:
            raise RecordRejected(topic, i, bad.path, bad.why) from None
        except InvalidArgument as error:
            raise RecordRejected(topic, i, EXTRA_COLUMN, f"is not the JSON text of an object: {error.why}") from None
    return pa.array(out, pa.string())


# -- batches to Python rows ------------------------------------------------------------------------


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts: instants as aware UTC datetimes, maps as dicts, the fields kept in `_extra` as fields
    again. A column that was added after a row kept the field of that name shows what the row kept."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*map(python_values, batch.columns), strict=True)]
    if EXTRA_COLUMN in names:
        for row in rows:
            text = row.pop(EXTRA_COLUMN)
            if text is not None:
                for name, value in parse_object(text).items():
                    if row.get(name) is None:
                        row[name] = value
    return rows


def python_values(array: pa.Array) -> list[Any]:
    """The values as Python's own, a few times faster than `to_pylist`."""
    t, arrow = pa.types, array.type
    if t.is_string(arrow) or t.is_binary(arrow) or t.is_boolean(arrow) or t.is_decimal(arrow):
        values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return values
    if (t.is_integer(arrow) or t.is_float64(arrow) or t.is_float32(arrow)) and not array.null_count:
        numbers: list[Any] = array.to_numpy().tolist()
        return numbers
    if t.is_date32(arrow):
        return _none_for_nat(array, "datetime64[D]")
    if t.is_timestamp(arrow) and arrow.unit == "us":
        times = _none_for_nat(array, "datetime64[us]")
        if arrow.tz is None:
            return times
        return [None if when is None else when.replace(tzinfo=UTC) for when in times]
    if t.is_struct(arrow) and arrow.num_fields:
        names = [arrow.field(i).name for i in range(arrow.num_fields)]
        columns = [python_values(array.field(i)) for i in range(arrow.num_fields)]
        structs = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return _with_nulls(structs, array)
    if t.is_map(arrow):
        keys, items, ends = python_values(array.keys), python_values(array.items), array.offsets.to_pylist()
        maps = [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in pairwise(ends)]
        return _with_nulls(maps, array)
    if t.is_list(arrow):
        elements, ends = python_values(array.values), array.offsets.to_pylist()
        return _with_nulls([elements[a:b] for a, b in pairwise(ends)], array)
    plain: list[Any] = array.to_pylist()
    return plain


def _none_for_nat(array: pa.Array, unit: str) -> list[Any]:
    values: list[Any] = array.to_numpy(zero_copy_only=False).astype(unit).tolist()
    return values


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for i in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            values[i] = None
    return values
