"""SQL of others over views in Postgres: their parameters, the time they are asked as of, their results as Arrow, and
what went wrong, in words. Owns no connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors as pg

from headrace.errors import InvalidArgument, InvalidQuery, QueryTimeout
from headrace.jsonrows import encode_value
from headrace.views.contract import HISTORY
from headrace.views.past import NamesAt
from headrace.views.postgres.connections import Connection, quoted
from headrace.views.postgres.keyed import table_name
from headrace.views.postgres.values import plain_text, text_of
from headrace.views.sql.database import text_of_us

__all__ = ["Past", "column_of", "explained", "plain_value", "with_parameters"]

_TOKENS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?(?:\*/|\Z)|::|(\?\d*)|:([A-Za-z_]\w*)""",
    re.DOTALL,
)
"""Texts, names, comments and casts, which stay as they are, and parameters."""

_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int64(),
    "int4": pa.int64(),
    "int8": pa.int64(),
    "float4": pa.float64(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}


def with_parameters(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The statement with $1, $2, … and its values. It may have ?, ?1, :name, or $1 itself."""
    if not isinstance(sql, str):
        raise InvalidArgument("sql", sql, "must be text")
    if isinstance(params, str | bytes) or not isinstance(params, Mapping | Iterable):
        why = "must be a tuple of values, one for each ? or $1, $2, …, or a mapping of names"
        raise InvalidArgument("params", params, why)
    if isinstance(params, Mapping):
        names = list(params)

        def named(found: re.Match[str]) -> str:
            return f"${names.index(found[3]) + 1}" if found[3] in names else found[0]

        return _TOKENS.sub(named, sql), [_bound(params[name]) for name in names]
    values = [_bound(value) for value in params]
    if not values:
        return sql, []
    numbers = iter(range(1, len(sql) + 1))

    def numbered(found: re.Match[str]) -> str:
        return f"${found[2][1:] or next(numbers)}" if found[2] else found[0]

    return _TOKENS.sub(numbered, sql), values


def _bound(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidArgument("params", value, "has no time zone: use datetime(…, tzinfo=UTC)")
    return text_of(value) if isinstance(value, str) else value


def plain_value(value: Any) -> Any:
    """A value of a result, by itself: sums of whole numbers are such, of whatever type Postgres makes them."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == 0:
        return int(value)
    return value


def column_of(values: list[Any], kind: str, precision: int | None, scale: int | None) -> pa.Array:
    """A result's column, by the name of its type in Postgres."""
    if kind in _TYPES:
        plain = [plain_text(value) if isinstance(value, str) else value for value in values]
        return pa.array(plain, _TYPES[kind])
    if kind == "numeric":
        return _decimals(values, precision, scale)
    if kind == "json" or kind == "jsonb":
        try:
            return pa.array(values)
        except (pa.ArrowException, TypeError):
            return pa.array([None if value is None else encode_value(value) for value in values], pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _decimals(values: list[Any], precision: int | None, scale: int | None) -> pa.Array:
    """Of sums and ratios Postgres says no precision: whole numbers that fit are such, and others what they need."""
    if precision is not None and precision <= 38:
        return pa.array(values, pa.decimal128(precision, scale or 0))
    known = [value for value in values if value is not None]
    if all(isinstance(value, Decimal) and value.is_finite() for value in known):
        try:
            if all(value == value.to_integral_value() and abs(value) < 2**63 for value in known):
                return pa.array([None if value is None else int(value) for value in values], pa.int64())
            return pa.array(values)
        except pa.ArrowException:
            pass
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def explained(error: psycopg.Error, sql: str, seconds: float | None) -> Exception:
    """What went wrong with somebody's query."""
    said = str(error.diag.message_primary or error).strip().split("\n")[0]
    if isinstance(error, pg.QueryCanceled) and seconds is not None:
        return QueryTimeout(sql=sql, seconds=seconds)
    if isinstance(error, pg.ReadOnlySqlTransaction | pg.ActiveSqlTransaction):
        said = f"only reading is possible ({said})"
    elif isinstance(error, pg.SyntaxError) and "multiple commands" in said:
        said = "it has several statements, and only one is possible"
    elif isinstance(error, pg.InsufficientPrivilege):
        said = f"the user of the views' address may not do that ({said})"
    hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
    return InvalidQuery(sql=sql, why=f"{said}.{hint} (Views are in Postgres: write its SQL.)")


class Past:
    """A query as of a time: the names of tables and views with a history show the rows that they had then. All else of
    the store is refused, but the histories, which have all times."""

    def __init__(self, names: NamesAt, schema: str) -> None:
        self._names, self._schema = names, schema

    def over(self, statement: str) -> str:
        """The statement, for which each name stands for its rows of that time."""
        asked = statement.rstrip().removesuffix(";")
        selects = self._names.selects(f"{text_of_us(self._names.us)}+00", quoted(self._schema))
        names = ", ".join(f"{quoted(name)} AS ({select})" for name, select in selects.items())
        return f"WITH {names} SELECT * FROM (\n{asked}\n) AS asked" if names else asked

    def check(self, db: Connection, statement: str, values: Sequence[Any]) -> None:
        """Refuses what would be read as it is now: Postgres' plan says which tables that would be. `statement` is one,
        and reads."""
        (plan,) = db.run(f"EXPLAIN (VERBOSE, FORMAT JSON) {statement}", values).fetchone()
        own = {table_name(spec.name, each.name): spec.name for spec in self._names.specs for each in spec.tables}
        histories = {table_name(spec.name, HISTORY) for spec in self._names.histories}
        for table in _tables(plan, self._schema):
            if table not in histories and (table in own or "/" in table or table.startswith("_")):
                raise self._names.refusal(own.get(table, table))


def _tables(plan: Any, schema: str) -> Iterator[str]:
    """The tables of the schema that a plan, or a part of one, reads."""
    if isinstance(plan, dict):
        if plan.get("Schema") == schema and "Relation Name" in plan:
            yield plan["Relation Name"]
        for part in plan.values():
            yield from _tables(part, schema)
    elif isinstance(plan, list):
        for part in plan:
            yield from _tables(part, schema)
