"""A view's changes for other flows: what is told of a row, and how far the view is. Inside a transaction of the store.

A flow over a view reads a topic, `contract.feed_topic`, in which each commit of the view has left what it changed, '-'
a row as it was, '+' as it is, and behind that a mark: what is final now, and what can no longer change. So the frontier
of the view travels with its changes, in order, and whoever reads up to a mark has read all that was before it."""

from __future__ import annotations

import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import from_us
from headrace.horizon import Horizon
from headrace.log.contract import META
from headrace.views.contract import (
    AT,
    CORRECTIONS,
    MARK,
    OP,
    RECORD,
    UPDATED_AT,
    WINDOW,
    Column,
    Emit,
    Outgoing,
    ViewSpec,
    feed_columns,
    feed_topic,
    whole_of,
)
from headrace.views.reading import quoted
from headrace.views.sqlite.merging import Changes, ending_after
from headrace.views.sqlite.tables import ViewTables
from headrace.views.sqlite.values import text_of_us
from headrace.views.values import INSTANT, time_column, us_column

__all__ = ["fed", "marked", "snapshot"]

CHUNK_ROWS = 100_000


def fed(tables: ViewTables) -> tuple[str, list[Column]]:
    """What flows over the view are told of a row: as SQL, and as columns."""
    spec = tables.spec
    if spec.records:
        kind = next(slot.type for slot in spec.slots if slot.name == RECORD)
        return f"s.{quoted(RECORD)}", [Column(OP, "string"), Column(RECORD, kind)]
    seen, columns = {column.name for column in spec.columns}, feed_columns(spec)
    sums = {whole_of(name): sql for name, sql in tables.whole_sums().items()}
    kept = [sums.get(column.name, f"s.{quoted(column.name)}") for column in columns if column.name not in seen]
    tail = [Column(CORRECTIONS, "bigint"), Column(UPDATED_AT, "timestamp")]
    told = tables.results() if spec.shaped is None else ", ".join(tables.made())
    sql = ", ".join([told, *kept, "s._corrections", "s._updated_at"])
    return sql, [Column(OP, "string"), *columns, *tail]


def marked(view: ViewSpec, rows: pa.Table, marks: tuple[int | None, int | None] | None) -> pa.Table:
    """Changes with their times, and behind them how far the view is: windows that end by then are final, or cannot
    change. Of records, which are judged again: the frontier they have come to."""
    if view.records:
        return _with_mark(_unpacked(rows), marks)
    if marks is not None:
        told_us = Horizon(view.ending).told_us
        final_us, unchanged_us = marks
        marks = told_us(final_us), told_us(unchanged_us)
    times = pa.nulls(rows.num_rows, INSTANT)
    if view.ending is not None:
        times = time_column(us_column(rows[WINDOW[1]]) - (0 if view.ending.included else 1))
    return _with_mark(rows.append_column(AT, times), marks)


def _unpacked(rows: pa.Table) -> pa.Table:
    """Records, with the progress they were judged by. They have a time of their own, and were corrected by nobody."""
    record = rows[RECORD].combine_chunks()
    names = [field.name for field in record.type if field.name not in META]
    columns = {OP: rows[OP]} | {name: pc.struct_field(record, name) for name in names}
    columns |= {AT: pa.nulls(len(record), INSTANT), CORRECTIONS: pa.array(np.zeros(len(record), np.int64))}
    columns[UPDATED_AT] = pc.struct_field(record, "_arrived_at")
    return pa.table(columns | {"_progress": pc.struct_field(record, "_progress")})


def _with_mark(rows: pa.Table, marks: tuple[int | None, int | None] | None) -> pa.Table:
    for name in MARK:
        rows = rows.append_column(name, pa.nulls(rows.num_rows, INSTANT))
    if marks is None:
        return rows
    told = {name: None if us is None else from_us(us) for name, us in zip(MARK, marks, strict=True)}
    return pa.concat_tables([rows, pa.Table.from_pylist([{OP: ".", **told}], schema=rows.schema)])


def snapshot(
    db: sqlite3.Connection,
    tables: ViewTables,
    view: str,
    emit: Emit,
    op: str,
    closed_us: int | None,
    after_us: int | None = None,
) -> list[Outgoing]:
    """All that the view has, as if it came, or went, just now: of windows that end later than `after_us`."""
    closed = None if closed_us is None else text_of_us(closed_us)
    rows = Changes(db, tables, emit, None, closed, wanted=fed(tables)).all(op)
    rows = rows if after_us is None else ending_after(rows, after_us)
    rows = marked(tables.spec, rows, None if closed_us is None or op == "-" else (closed_us, None))
    pieces = [rows.slice(at, CHUNK_ROWS) for at in range(0, rows.num_rows, CHUNK_ROWS)]
    return [Outgoing(feed_topic(view, emit), piece) for piece in pieces]
