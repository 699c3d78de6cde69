"""Records that say something new: `hr.changed("price", key="sku")` passes a record whose value differs from that of the
record before it with the same key. Owns the last values of each key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.aggregates.groups import row_numbers
from headrace.errors import InvalidArgument
from headrace.operators.records import PLACE, RecordOperator
from headrace.operators.result_rows import aligned, column, differ
from headrace.schema import type_ddl
from headrace.views.keyed import Column, State, TableSpec, Writes

__all__ = ["changed"]

LAST = "last"


def changed(*columns: str, key: str | tuple[str, ...]) -> Changed:
    """For `stream.through(…)`: passes the first record of each key, and each record in which one of the columns differs
    from the key's record before it, in the order of offsets in its partition. Null equals null. Give the topic the same
    key: records of a key in other partitions are not compared."""
    keys = (key,) if isinstance(key, str) else tuple(key)
    for argument, names in (("columns", columns), ("key", keys)):
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidArgument(argument, names, "must be names of columns: hr.changed('price', key='sku')")
    return Changed(columns, keys)


@dataclass(frozen=True)
class Changed(RecordOperator):
    values: tuple[str, ...]
    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"changed({', '.join(map(repr, self.values))}, key={self.key!r})"

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.key, *self.values)

    def tables(self, schema: pa.Schema) -> tuple[TableSpec, ...]:
        def named(names: tuple[str, ...], prefix: str) -> tuple[Column, ...]:
            return tuple(Column(prefix + name, type_ddl(schema.field(name).type)) for name in names)

        return (TableSpec(LAST, (*PLACE, *named(self.key, "")), named(self.values, "/")),)

    def fold(self, records: pa.Table, state: State) -> tuple[pa.Table, Writes]:
        place = [each.name for each in PLACE] + list(self.key)
        number = row_numbers([column(records, name) for name in place], records.num_rows)
        order = np.argsort(number, kind="stable")  # by key, and of each key by offset
        rows, number = records.take(pa.array(order)), number[order]
        first = np.ones(len(number), np.bool_)
        first[1:] = number[1:] != number[:-1]
        now = rows.select(place + list(self.values)).rename_columns(place + [f"/{name}" for name in self.values])
        known = state.get(LAST, now.filter(pa.array(first)).select(place))
        at = aligned(now.filter(pa.array(first)), known, place)
        before = np.arange(len(number)) - 1  # of `now`; of a key's first record, of what is known
        fresh = np.zeros(len(number), np.bool_)
        fresh[np.flatnonzero(first)[at < 0]] = True
        old = pa.concat_tables([now, known.select(now.column_names).cast(now.schema)])
        before[first] = np.where(at < 0, 0, len(number) + at)
        values = [f"/{name}" for name in self.values]
        passes = fresh | differ(now.select(values), old.take(pa.array(before)).select(values))
        last = np.append(first[1:], True) if len(first) else first
        goes_on = np.zeros(len(number), np.bool_)
        goes_on[order[passes]] = True
        return records.filter(pa.array(goes_on)), Writes(puts={LAST: now.filter(pa.array(last))})
