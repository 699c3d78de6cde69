"""A table's rows as they were: which rows of its history a question asks for. Owns the SQL; the command line and the
HTTP API use it. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.durations import from_us, instant_us
from headrace.errors import InvalidArgument, UnknownView
from headrace.rows.texts import field_value
from headrace.views.contract import FlowSpec
from headrace.views.reading import Views, quoted, schema_of

__all__ = ["Asked", "history_of", "rows_at", "table_of"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, and the values of its parameters."""

    sql: str
    values: tuple[Any, ...]


def table_of(views: Views, name: str) -> FlowSpec:
    """UnknownView if it is no table, and no view with a history."""
    spec = views.flow(name)
    if not spec.is_table and spec.history == "latest":
        known = [each.name for each in views.specs() if each.is_table]
        have = f" Tables are: {', '.join(sorted(known)[:10])}." if known else " There are no tables."
        raise UnknownView(view=name, known=known, why=f"{name!r} is a view, not a table.{have}")
    return spec


def rows_at(table: FlowSpec, as_of: datetime | str | None, as_known: datetime | str | None = None) -> Asked:
    """The rows that were valid at `as_of`, by what was known at `as_known`. Without `as_of`, the latest ones; without
    `as_known`, by what is known now."""
    _refuse_without_history(table)
    if as_known is not None and table.history != "bitemporal":
        why = f"table {table.name!r} does not keep what was known before: make it with history='bitemporal'"
        raise InvalidArgument("as_known", as_known, why)
    values: list[datetime] = []
    conditions = []
    if as_of is None:
        conditions.append("valid_to IS NULL")
    else:
        values.append(from_us(instant_us(as_of, argument="as_of")))
        conditions.append(f"valid_from <= ?{len(values)} AND (valid_to IS NULL OR valid_to > ?{len(values)})")
    if as_known is not None:
        values.append(from_us(instant_us(as_known, argument="as_known")))
        conditions.append(f"known_from <= ?{len(values)} AND (known_to IS NULL OR known_to > ?{len(values)})")
    elif table.history == "bitemporal":
        conditions.append("known_to IS NULL")
    return Asked(f"{_select(table)} WHERE {' AND '.join(conditions)} ORDER BY {_key(table)}", tuple(values))


def history_of(table: FlowSpec, key: Sequence[str]) -> Asked:
    """All that the history has of one key: a text for each of its columns."""
    _refuse_without_history(table)
    assert table.view is not None
    names = [column.name for column in table.view.groups]
    if len(key) != len(names):
        raise InvalidArgument("key", ", ".join(key), f"a row of table {table.name!r} is known by {', '.join(names)}")
    fields = schema_of(table.view.groups)
    values = tuple(field_value(fields.field(name), text, argument=name) for name, text in zip(names, key, strict=True))
    where = " AND ".join(f"{quoted(name)} = ?" for name in names)
    order = "valid_from, known_from" if table.history == "bitemporal" else "valid_from"
    return Asked(f"{_select(table)} WHERE {where} ORDER BY {order}", values)


def _refuse_without_history(table: FlowSpec) -> None:
    if table.history == "latest":
        what = "table" if table.is_table else "view"
        why = f"{what} {table.name!r} keeps its latest rows only: make it with history='versions'"
        raise InvalidArgument("history", table.history, why)


def _select(table: FlowSpec) -> str:
    return f"SELECT * FROM {quoted(f'{table.name}_history')}"


def _key(table: FlowSpec) -> str:
    assert table.view is not None
    return ", ".join(quoted(column.name) for column in table.view.groups)
