"""Keyed tables in memory: what `headrace.views.keyed` promises, in plain Python. For tests of operators, and to compare
stores with. Slow, and keeps nothing.

    tables = MemoryTables(TableSpec("sums", (Column("page", "string"),), (Column("n", "bigint"),)))
    tables.apply(Writes(puts={"sums": rows}))
    tables.state().get("sums", keys)"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from headrace.errors import DoesNotFit
from headrace.jsonrows import encoder
from headrace.rows import python_values
from headrace.views.contract import Column
from headrace.views.keyed import AddRule, TableSpec, Writes
from headrace.views.values import arrow_type, as_column

__all__ = ["MemoryTables"]

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Nested:
    """A list, or what has fields: known by its text, so that it can be part of a key."""

    text: str
    value: Any = field(compare=False)


_WIDE = Context(prec=80)


class MemoryTables:
    """Keyed tables of one flow, in memory; `state()` is a copy that later writes do not touch."""

    def __init__(self, *specs: TableSpec) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._rows: dict[str, dict[Row, Row]] = {spec.name: {} for spec in specs}

    def state(self) -> MemoryState:
        """The rows as they are now."""
        return MemoryState(self._specs, {name: dict(rows) for name, rows in self._rows.items()})

    def apply(self, writes: Writes) -> None:
        """All of it, or, where a sum does not fit its type, none."""
        after = {name: dict(rows) for name, rows in self._rows.items()}
        for name, prefixes in writes.deletes.items():
            gone = set(_rows(prefixes, self._specs[name].key[: prefixes.num_columns]))
            rows = after[name].items()
            after[name] = {key: row for key, row in rows if key[: prefixes.num_columns] not in gone}
        for name, upto_us in writes.drops.items():
            time = _time_at(self._specs[name])
            kept = [(key, row) for key, row in after[name].items() if row[time] is None or row[time] > upto_us]
            after[name] = dict(kept)
        for name, table in writes.puts.items():
            spec = self._specs[name]
            put = {row[: len(spec.key)]: row for row in _rows(table, _columns(spec))}
            assert len(put) == table.num_rows, f"{name}: a key is put twice"
            after[name].update(put)
        for name, table in writes.adds.items():
            spec = self._specs[name]
            assert spec.rules.keys() == {column.name for column in spec.columns}, f"{name} cannot be added to"
            for row in _rows(table, _columns(spec)):
                key = row[: len(spec.key)]
                old = after[name].get(key)
                after[name][key] = row if old is None else _merged(spec, old, row)
        self._rows = after


class MemoryState:
    """What `headrace.views.keyed.State` says."""

    def __init__(self, specs: dict[str, TableSpec], rows: dict[str, dict[Row, Row]]) -> None:
        self._specs, self._rows = specs, rows

    def get(self, table: str, keys: pa.Table) -> pa.Table:
        spec = self._specs[table]
        wanted = set(_rows(keys.select(spec.key_names), spec.key))
        return self._table(table, (row for key, row in self._rows[table].items() if key in wanted))

    def scan(
        self,
        table: str,
        prefixes: pa.Table,
        low: Sequence[int] | None = None,
        high: Sequence[int] | None = None,
        *,
        floor: bool = False,
        limit: int | None = None,
        descending: bool = False,
    ) -> pa.Table:
        assert limit is None or not floor, "what is the limit of rows below?"
        spec, width = self._specs[table], prefixes.num_columns
        found: dict[Row, Row] = {}
        for number, prefix in enumerate(_rows(prefixes, spec.key[:width])):
            rows = self._ordered(row for key, row in self._rows[table].items() if key[:width] == prefix)
            if high is not None:
                rows = [row for row in rows if row[width] is not None and row[width] <= high[number]]
            if low is not None:
                below = [row for row in rows if row[width] is not None and row[width] < low[number]]
                inside = [row for row in rows if row[width] is not None and row[width] >= low[number]]
                rows = [*(below[-1:] if floor else ()), *inside]
            if limit is not None:
                rows = rows[-limit:] if descending and limit else rows[:limit]
            found |= {row[: len(spec.key)]: row for row in rows}
        return self._table(table, found.values())

    def due(self, table: str, upto_us: int, limit: int | None = None, *, after_us: int | None = None) -> pa.Table:
        time = _time_at(self._specs[table])
        timed = (row for row in self._rows[table].values() if row[time] is not None and row[time] <= upto_us)
        rows = self._ordered(row for row in timed if after_us is None or row[time] > after_us)
        rows.sort(key=lambda row: row[time])
        return self._as_arrow(table, rows[:limit])

    def last_us(self, table: str) -> int | None:
        time = _time_at(self._specs[table])
        return max((row[time] for row in self._rows[table].values() if row[time] is not None), default=None)

    def _table(self, table: str, rows: Iterable[Row]) -> pa.Table:
        return self._as_arrow(table, self._ordered(rows))

    def _ordered(self, rows: Iterable[Row]) -> list[Row]:
        """By key: two rows have different ones. Nulls come first, what is not a number last."""
        return sorted(rows, key=lambda row: [*map(_rank, row)])

    def _as_arrow(self, table: str, rows: Sequence[Row]) -> pa.Table:
        columns = _columns(self._specs[table])
        values = zip(*rows, strict=True) if rows else ((),) * len(columns)
        return pa.table({column.name: _array(list(each), column) for column, each in zip(columns, values, strict=True)})


def _columns(spec: TableSpec) -> tuple[Column, ...]:
    return (*spec.key, *spec.columns)


def _time_at(spec: TableSpec) -> int:
    assert spec.time is not None, f"table {spec.name} has no time"
    return spec.names.index(spec.time)


def _rows(table: pa.Table, columns: Sequence[Column]) -> list[Row]:
    """Times as numbers. Columns are found by name, in any order."""
    if not columns:
        return [()] * table.num_rows
    return list(zip(*(_values(table[column.name], arrow_type(column.type)) for column in columns), strict=True))


def _values(column: pa.ChunkedArray, arrow: pa.DataType) -> list[Any]:
    whole = column.cast(arrow).combine_chunks()
    values = python_values(whole.cast(pa.int64()) if pa.types.is_timestamp(arrow) else whole)
    if pa.types.is_nested(arrow):
        write = encoder(arrow)
        return [None if value is None else _Nested(write(value), value) for value in values]
    return [_one(value) for value in values] if pa.types.is_floating(arrow) else values


def _one(value: float | None) -> float | None:
    """One zero, and one value that is not a number, so that keys can be compared."""
    return None if value is None else math.nan if math.isnan(value) else value + 0.0


def _array(values: list[Any], column: Column) -> pa.Array:
    arrow = arrow_type(column.type)
    values = [each.value if isinstance(each, _Nested) else each for each in values]
    return pa.array(values, pa.int64()).cast(arrow) if pa.types.is_timestamp(arrow) else as_column(values, arrow)


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return 0, 0
    if isinstance(value, float) and math.isnan(value):
        return 2, 0
    return 1, value.text if isinstance(value, _Nested) else value


def _merged(spec: TableSpec, old: Row, new: Row) -> Row:
    key = len(spec.key)
    columns = zip(spec.columns, old[key:], new[key:], strict=True)
    return (*old[:key], *(_added(spec.rules[column.name], column, a, b) for column, a, b in columns))


def _added(rule: AddRule, column: Column, old: Any, new: Any) -> Any:
    if old is None or new is None:
        return new if old is None else old
    if rule == "add":
        return _sum(old, new, column)
    return (min if rule == "least" else max)(old, new, key=_rank)


def _sum(old: Any, new: Any, column: Column) -> Any:
    if not isinstance(old, Decimal):
        return old + new
    total = _WIDE.add(old, new)
    if len(total.as_tuple().digits) > arrow_type(column.type).precision:
        raise DoesNotFit(sum=f"{old} + {new}", type=column.type)
    return total
