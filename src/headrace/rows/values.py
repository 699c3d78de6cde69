"""What a column takes: the rules for single Python values, and the errors that say why one is refused. `pa.array` alone
would turn 1.5 into 1, an integer into an instant and bytes into text; here each type says what it holds exactly.
Knows no rows and no batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US, epoch_us, from_us, parse_iso
from headrace.errors import nearest
from headrace.schema import type_ddl

NONE: Final = type(None)
FLOATS: Final = frozenset({float, NONE})
DAY_MIN: Final = (date.min - date(1970, 1, 1)).days
DAY_MAX: Final = (date.max - date(1970, 1, 1)).days
_FLOAT32_MAX: Final = 3.4028235677973366e38  # from here on rounding to float gives infinity
ARROW_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)


class Bad(Exception):
    """A value the column cannot hold: where below the column, and why."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.path = path


class Suspect(Exception):
    """Something is wrong in these columns; the rows must be looked at to say what."""


@dataclass(frozen=True)
class Node:
    """One column, field, element, key or value: its type and how Python values become it."""

    name: str
    arrow: pa.DataType
    nullable: bool
    exact: frozenset[type]  # types pa.array takes without changing them
    plain: Callable[[Any], Any]  # any other value, as one of those; raises Bad
    children: tuple[Node, ...] = ()
    names: frozenset[str] = frozenset()  # of a struct's fields
    unknown: str = "forbid"
    temporal: bool = False
    instant: bool = False  # a timestamp, with its zone
    inspect: bool = False  # an array of the right type may still be wrong inside: times, NOT NULL fields, keys


def node_of(name: str, arrow: pa.DataType, nullable: bool, unknown: str) -> Node:
    t = pa.types
    children: tuple[Node, ...] = ()
    if t.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        children = tuple(node_of(f.name, f.type, f.nullable, unknown) for f in fields)
    elif t.is_map(arrow):
        children = (node_of("key", arrow.key_type, False, unknown), node_of("value", arrow.item_type, True, unknown))
    elif t.is_list(arrow):
        children = (node_of("", arrow.value_type, True, unknown),)
    exact, plain = _rules(arrow, children, unknown)
    return Node(
        name,
        arrow,
        nullable,
        frozenset({*exact, NONE}),
        plain,
        children,
        frozenset(child.name for child in children),
        unknown,
        t.is_temporal(arrow),
        t.is_timestamp(arrow) and arrow.tz is not None,
        t.is_temporal(arrow) or t.is_map(arrow) or any(not child.nullable or child.inspect for child in children),
    )


def _rules(
    arrow: pa.DataType, children: tuple[Node, ...], unknown: str
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


def _wrong(value: Any, expected: str, do: str = "") -> Bad:
    do = f" {do}" if do else ""
    if _is_nan(value):
        do += " A missing value is None, not NaN."
    return Bad(f"got {_shown(value)}, expected {expected}.{do}")


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
                raise _wrong(value, "int" if name == "int" else f"int ({name})", do)
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
            raise Bad(f"got {_shown(value)}, which {error}.") from None
    if not isinstance(value, datetime) or _is_nan(value):  # NaT is a datetime
        do = (
            "An epoch number does not say its unit: datetime.fromtimestamp(seconds, timezone.utc)."
            if isinstance(value, int | float)
            else ""
        )
        raise _wrong(_from_numpy_time(value), expected, do)
    if getattr(value, "nanosecond", 0):
        raise Bad(f"got {_shown(value)}, which is finer than a microsecond. Round it first: value.floor('us').")
    return value


def _plain_timestamp(value: Any) -> datetime:
    when = _checked_datetime(value, "an aware datetime, or ISO text with a zone (timestamp)")
    try:
        return from_us(epoch_us(when, text=isinstance(value, str)))
    except ValueError as error:
        raise Bad(f"got {_shown(value)}, which {error}.") from None


def _plain_timestamp_ntz(value: Any) -> datetime:
    when = _checked_datetime(value, "a naive datetime, or ISO text without a zone (timestamp_ntz)")
    if when.tzinfo is not None:
        raise Bad(
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


def _plain_struct(children: tuple[Node, ...], unknown: str) -> Callable[[Any], dict[str, Any]]:
    names = {child.name for child in children}

    def plain(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong(value, f"a mapping with {', '.join(sorted(names))}")
        if unknown != "ignore":
            for name in value:
                if name not in names:
                    raise unknown_field(name, sorted(names), nested=True)
        return {child.name: checked(value.get(child.name), child) for child in children}

    return plain


def _plain_list(element: Node) -> Callable[[Any], list[Any]]:
    def plain(value: Any) -> list[Any]:
        if isinstance(value, np.ndarray):
            value = list(value)
        if not isinstance(value, list | tuple):
            raise _wrong(value, "a list or tuple", "Wrap it: [value]." if isinstance(value, str | int | float) else "")
        return [checked(item, element, f"[{i}]") for i, item in enumerate(value)]

    return plain


def _plain_map(key: Node, item: Node) -> Callable[[Any], list[tuple[Any, Any]]]:
    def plain(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, Mapping):
            pairs = list(value.items())
        elif isinstance(value, list | tuple) and all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
            pairs = [(k, v) for k, v in value]
        else:
            raise _wrong(value, "a mapping, or a list of (key, value) pairs")
        out = [(checked(k, key, ".key"), checked(v, item, f"[{_short_key(k)}]")) for k, v in pairs]
        if len({k for k, _ in out}) != len(out):
            raise Bad(f"got {_shown(value)}, which has a key twice.")
        return out

    return plain


def _short_key(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else text[:39] + "…"


def unknown_field(name: Any, known: list[str], *, nested: bool) -> Bad:
    if not isinstance(name, str):
        return Bad(f"a field's name is text, not {_shown(name)}")
    do = "" if nested else ", or create the topic with extra='keep' or 'ignore'"
    return Bad(
        f"unknown field.{nearest(name, known)} Add it to the schema, leave it out{do}", f".{name}" if nested else name
    )


def checked(value: Any, node: Node, step: str | None = None) -> Any:
    """The value as the node's own, looked at closely; Bad with the path below the column."""
    step = f".{node.name}" if step is None else step
    if value is None:
        if not node.nullable:
            raise Bad("is null or missing, but the column is NOT NULL. Give it a value.", step)
        return None
    try:
        return node.plain(value)
    except Bad as bad:
        bad.path = step + bad.path
        raise


EXPECTED: Final = "append a mapping ({'user': 'u1'}), an iterable of mappings, or Arrow data (pyarrow, polars, pandas)"


def cut(value: Any) -> Any:
    text = repr(value)
    return value if len(text) <= 80 else text[:79] + "…"


def cast_text(array: pa.Array, node: Node) -> pa.Array:
    """ISO text as dates and times: Arrow's reader first, ours for what it does not take (and for the reason)."""
    try:
        out = array.cast(node.arrow)
        check_range(out, node)
        return out
    except (pa.ArrowException, Bad):
        return pa.array([None if v is None else node.plain(v) for v in array.to_pylist()], node.arrow)


def check_range(array: pa.Array, node: Node) -> None:
    """Times that Python's readers can hold: the years 1 to 9999."""
    days = pa.types.is_date(node.arrow)
    low, high = (DAY_MIN, DAY_MAX) if days else (INSTANT_MIN_US, INSTANT_MAX_US)
    found = pc.min_max(array.view(pa.int32() if days else pa.int64())).as_py()
    if found["min"] is not None and not (low <= found["min"] and found["max"] <= high):
        raise Bad(f"got a {type_ddl(node.arrow)} outside the years 1 to 9999.")
