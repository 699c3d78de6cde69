"""Results that are made of values, and results of which something is taken back: what is kept of values so that they
can go, and results that go with their last row. Inside a transaction of the store, after `merging` has added what can
be added, and subtracted.

A value lies in a table of its own beside its row, with how often it is there; when it is there no more, it goes. A
result is made anew of the values that are there, as its aggregate says: the least and the greatest with a look at one
end, the others from all of the row's."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.aggregates import Aggregate, Kept
from headrace.rows import python_values
from headrace.views.contract import ROWS, SlotColumn
from headrace.views.reading import quoted
from headrace.views.sqlite import merging
from headrace.views.sqlite.tables import ViewTables, value_type
from headrace.views.sqlite.values import decode, encode
from headrace.views.values import arrow_type

__all__ = ["keep", "retract"]


def keep(
    db: sqlite3.Connection,
    tables: ViewTables,
    partials: pa.Table,
    aggregates: Mapping[str, Aggregate],
    *,
    results: bool = True,
) -> None:
    """What partial rows, which are merged already, do to values; and, if asked for, to what is made of those."""
    merging.stage(db, tables, partials)
    found = db.execute(f"SELECT s.{tables.row} FROM {merging.staged_rows(tables)} ORDER BY t.number").fetchall()
    numbers = np.array([number for (number,) in found], np.int64)
    for slot in tables.kept:
        lists = partials[slot.name].combine_chunks()
        rows = np.repeat(numbers, lists.value_lengths().fill_null(0).to_numpy()).tolist()
        counted = merging.count_values(db, tables, slot, rows, lists.flatten())
        gone = [(row, value) for row, value, count in counted if count == 0]
        db.executemany(f"DELETE FROM {tables.values_of(slot)} WHERE row = ? AND value = ? AND count = 0", gone)
        if results:
            _make(db, tables, slot, sorted(set(numbers.tolist())), aggregates)


def retract(
    db: sqlite3.Connection, tables: ViewTables, partials: pa.Table, aggregates: Mapping[str, Aggregate]
) -> None:
    """The same where values can go again: and results that have no row any more."""
    keep(db, tables, partials, aggregates)
    merging.stage(db, tables, partials)
    wanted = f"SELECT s.{tables.row} FROM {merging.staged_rows(tables)} WHERE s.{quoted(ROWS)} = 0"
    merging.staged(db, "emptied", sorted({number for (number,) in db.execute(wanted).fetchall()}), {})
    for table, number in tables.numbered():
        db.execute(f"DELETE FROM {table} WHERE {number} IN (SELECT number FROM temp.emptied)")


def _make(
    db: sqlite3.Connection, tables: ViewTables, slot: SlotColumn, rows: list[int], aggregates: Mapping[str, Aggregate]
) -> None:
    """The results of rows, of all values that are there."""
    result = tables.finished.get(slot.name, slot.name)
    aggregate, values = aggregates[result], tables.values_of(slot)
    merging.staged(db, "counted", rows, {})
    algebra = aggregate.algebra
    assert isinstance(algebra, Kept), "who keeps values says what is made of them"
    if algebra.by_sql:
        sql = algebra.by_sql.format(values=values, row="t.number")
        made = [each for (each,) in db.execute(f"SELECT (SELECT {sql}) FROM temp.counted t")]
    else:
        held: dict[int, list[tuple[Any, int]]] = {row: [] for row in rows}
        there = f"temp.counted t CROSS JOIN {values} v ON v.row = t.number"
        for row, value, count in db.execute(f"SELECT t.number, v.value, v.count FROM {there}"):
            held[row].append((value, count))
        made = _made(tables.spec.name, result, aggregate, slot, list(held.values()))
    columns = {slot.name: made}
    if result != slot.name:
        own = merging.Functions(tables.spec.name, result, aggregate)
        state = python_values(decode(made, arrow_type(slot.type)))
        kind = arrow_type(next(each.type for each in tables.spec.slots if each.name == result))
        columns[result] = encode(own.typed([own.finished(one) for one in state], kind, "finish"))
    sets = ", ".join(f"{quoted(name)} = ?" for name in columns)
    db.executemany(
        f"UPDATE {tables.state} SET {sets} WHERE {tables.row} = ?", zip(*columns.values(), rows, strict=True)
    )


def _made(flow: str, name: str, aggregate: Aggregate, slot: SlotColumn, held: list[list[tuple[Any, int]]]) -> list[Any]:
    """What the aggregate makes of each row's values, as a column has it."""
    known = iter(python_values(decode([each for some in held for each, _ in some], value_type(slot))))
    own = merging.Functions(flow, name, aggregate)
    made = [own.made_of([(next(known), count) for _, count in some]) for some in held]
    return encode(own.typed(made, arrow_type(slot.type), "merge"))
