"""Arrow columns as SQLite has them, and back. Owns which declared type and which text or number stands for a value.
Times are texts in UTC, and sort as they should. Decimals are texts, compared by value through a collation that only our
connections have: another program that reads a view with decimals is told so by SQLite, and never shown 9 above 10. A
double that is not a number is the text 'NaN', which SQLite sorts above all numbers, as Spark does; -0.0 becomes 0.0.
Lists, and what has fields, are JSON, for SQLite's own functions."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import WIDE
from headrace.errors import InvalidArgument, ViewsDamaged
from headrace.jsonrows import decoder, encoder
from headrace.rows import python_values
from headrace.schema import type_ddl
from headrace.views.values import arrow_type, as_column

__all__ = [
    "as_whole",
    "batch_of",
    "bound",
    "declared",
    "declared_type",
    "decode",
    "decode_whole",
    "encode",
    "encode_whole",
    "nested",
    "order_decimals",
    "register_converters",
]

NAN = "NaN"
BY_VALUE = "hr_decimal"
WHOLE = "WHOLE_BLOB"
"""The declared type of sums of whole numbers: with `BLOB` in its name SQLite stores an integer, or a text of more
digits, as it is given."""
JSON = "JSON_VALUE"


def declared(arrow: pa.DataType, *, column: str = "") -> str:
    """The column type in CREATE TABLE. The names are ours alone, so that reading converts no foreign column."""
    if pa.types.is_boolean(arrow):
        return "BOOL"
    if pa.types.is_integer(arrow):
        return "INTEGER"
    if pa.types.is_floating(arrow):
        return "DOUBLE"
    if pa.types.is_string(arrow):
        return "TEXT"
    if pa.types.is_binary(arrow):
        return "BLOB"
    if pa.types.is_date(arrow):
        return "ISO_DATE"
    if pa.types.is_timestamp(arrow):
        return "UTC_TIMESTAMP" if arrow.tz else "LOCAL_TIMESTAMP"
    if pa.types.is_decimal(arrow):
        return f"DECIMAL_TEXT({arrow.precision},{arrow.scale}) COLLATE {BY_VALUE}"
    if pa.types.is_nested(arrow):  # a name of several words has quotes, and says what is in the JSON
        return '"' + f"{JSON} {type_ddl(arrow)}".replace('"', '""') + '"'
    raise InvalidArgument("column", column, f"is of type {arrow}, which a view cannot hold")


def declared_type(kind: str) -> pa.DataType | None:
    """The type a query's result has that is a column declared so; None: it is not one of ours."""
    if kind.startswith(f"{JSON} "):
        return arrow_type(kind.removeprefix(f"{JSON} "))
    name, _, rest = kind.partition("(")
    if name == "DECIMAL_TEXT":
        precision, scale = (int(part) for part in rest.rstrip(")").split(","))
        return pa.decimal128(precision, scale)
    return _RESULTS.get(name)


_RESULTS = {
    "BOOL": pa.bool_(),
    "INTEGER": pa.int64(),
    WHOLE: pa.int64(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "BLOB": pa.binary(),
    "ISO_DATE": pa.date32(),
    "UTC_TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "LOCAL_TIMESTAMP": pa.timestamp("us"),
}


def encode(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The column's values as SQLite takes them."""
    arrow = column.type
    if pa.types.is_timestamp(arrow):
        return _times_as_text(column)
    if pa.types.is_date(arrow):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_decimal(arrow):
        texts = column.cast(pa.string()).to_pylist()  # quicker than Python's decimals; Arrow writes small ones as 1E-7
        return [text if text is None or "E" not in text else format(Decimal(text), "f") for text in texts]
    if pa.types.is_boolean(arrow):
        return list(column.cast(pa.int8()).to_pylist())
    if pa.types.is_nested(arrow):
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        write = encoder(arrow)
        return [None if value is None else write(value) for value in python_values(whole)]
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(arrow) and pc.any(pc.is_nan(column)).as_py():
        return [NAN if value is not None and math.isnan(value) else value for value in values]
    return values


def encode_whole(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Whole numbers as SQLite takes them: what does not fit 64 bits as text."""
    try:
        return list(column.cast(pa.int64()).to_pylist())
    except pa.ArrowInvalid:
        values = column.to_pylist()
    return [None if value is None else as_whole(int(value)) for value in values]


def decode_whole(values: list[Any]) -> pa.Array:
    """A column of what `encode_whole` made."""
    wide = arrow_type(WIDE)
    try:
        if str not in set(map(type, values)):
            return pa.array(values, pa.int64()).cast(wide)
        return pa.array([None if value is None else Decimal(value) for value in values], wide)
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        raise ViewsDamaged(path="views.db", why=f"there is no whole number in a column: {error}") from error


def as_whole(value: int) -> int | str:
    return value if -(2**63) <= value < 2**63 else str(value)


def _times_as_text(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Many rows have few different windows: each text is made once. Without a fraction when that is zero: a text that
    is another's beginning sorts before it, so the order is right."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    few = whole.cast(pa.timestamp("us")).dictionary_encode()
    texts = [text.removesuffix(".000000") for text in few.dictionary.cast(pa.string()).to_pylist()]
    if not texts:
        return [None] * len(whole)
    return [None if at is None else texts[at] for at in few.indices.to_pylist()]


def order_decimals(db: sqlite3.Connection) -> None:
    """Every connection that reads or writes views needs this."""
    db.create_collation(BY_VALUE, _compare_decimals)


def _compare_decimals(left: str, right: str) -> int:
    a, b = _by_value(left), _by_value(right)
    return (a > b) - (a < b)


def _by_value(text: str) -> tuple[bool, Decimal | str]:
    """What is no decimal, in somebody's query, comes after all that are."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return True, text
    return (True, text) if value.is_nan() else (False, value)


def decode(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """A column of what `encode` made."""
    try:
        return _decoded(values, arrow)
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:  # Arrow's own are ValueErrors, too
        raise ViewsDamaged(path="views.db", why=f"there is something else than {arrow} in a column: {error}") from error


def _decoded(values: list[Any], arrow: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(arrow):
        naive = pa.array(values, pa.string()).cast(pa.timestamp("us"))
        return naive.cast(arrow) if arrow.tz is None else pc.assume_timezone(naive, arrow.tz)
    if pa.types.is_date(arrow):
        return pa.array(values, pa.string()).cast(arrow)
    if pa.types.is_decimal(arrow):
        return pa.array([None if value is None else Decimal(value) for value in values], arrow)
    if pa.types.is_boolean(arrow):
        return pa.array([None if value is None else bool(value) for value in values], arrow)
    if pa.types.is_floating(arrow):  # SQLite may return what has no fraction as a whole number
        plain = [float(value) if isinstance(value, int) else value for value in values]
        return pa.array([math.nan if value == NAN else value for value in plain], arrow)
    if pa.types.is_nested(arrow):
        return nested([None if value is None else orjson.loads(value) for value in values], arrow)
    return pa.array(values, arrow)


def batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as the tables have them, as Arrow."""
    columns = ([row[number] for row in rows] for number in range(len(schema)))  # quicker than to zip them
    arrays = [decode(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def nested(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """A column of lists, or what else is kept as JSON, parsed."""
    typed = decoder(arrow)
    return as_column([value if value is None or typed is None else typed(value) for value in values], arrow)


def bound(value: Any) -> Any:
    """A query's parameter, as the tables have it."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument("params", value, "has no time zone: use datetime(…, tzinfo=UTC)")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and math.isnan(value):
        return NAN
    return value


# -- reading any query's result ----------------------------------------------------------------------


@cache
def register_converters() -> None:
    """For connections with PARSE_DECLTYPES: a column that is a view's own comes back as the type it has there. The
    names are known to nobody else."""
    sqlite3.register_converter("UTC_TIMESTAMP", _utc)
    sqlite3.register_converter("LOCAL_TIMESTAMP", lambda raw: datetime.fromisoformat(raw.decode()))
    sqlite3.register_converter("ISO_DATE", lambda raw: date.fromisoformat(raw.decode()))
    sqlite3.register_converter("DECIMAL_TEXT", lambda raw: Decimal(raw.decode()))
    sqlite3.register_converter(WHOLE, int)
    sqlite3.register_converter("BOOL", lambda raw: raw != b"0")
    sqlite3.register_converter(JSON, orjson.loads)
    # None for DOUBLE: a converter is given 15 digits of it.


def _utc(raw: bytes) -> datetime | None:
    """The ledger's own table has '' where there is no window."""
    return datetime.fromisoformat(raw.decode()).replace(tzinfo=UTC) if raw else None
