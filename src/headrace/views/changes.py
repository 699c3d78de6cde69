"""What others see of a view's stored rows: readers, topics, and flows over the view. Pure Arrow. Stores and operators
use the same functions, so that a snapshot of all rows and a change of one say the same.

A flow over a view reads a topic (`contract.feed_topic`). In it each commit of the view leaves what it changed, '-' a
row as it was, '+' as it is, and behind that a mark: which windows are final now, and which can no longer change. So the
view's frontier travels with its changes, and a reader that is at a mark has read all changes before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headrace.aggregates.groups import json_texts
from headrace.durations import from_us
from headrace.horizon import Horizon
from headrace.log.contract import META
from headrace.views.contract import (
    AT,
    CORRECTIONS,
    FINAL_AT,
    MARK,
    OP,
    RECORD,
    ROW,
    UPDATED_AT,
    WINDOW,
    Emit,
    Outgoing,
    ViewSpec,
    feed_columns,
    feed_topic,
    whole_of,
)
from headrace.views.results import results_of, whole_sum
from headrace.views.values import I64, INSTANT, time_column, us_column

__all__ = [
    "CHANGE_OP",
    "as_fed",
    "as_results",
    "as_seen",
    "marked",
    "row_texts",
    "snapshot",
    "with_mark",
    "with_status",
]

CHANGE_OP = "op"
STATUS = pa.array(["open", "final"])
CHUNK_ROWS = 100_000


def as_results(view: ViewSpec, changes: pa.Table) -> pa.Table:
    """Window, groups and results: what goes to a topic, and what a transform gets."""
    places = {column.name: changes[column.name] for column in view.places}
    return pa.table({CHANGE_OP: changes[CHANGE_OP], **places, **results_of(view, changes)})


def as_fed(view: ViewSpec, changes: pa.Table) -> pa.Table:
    """For flows over the view: results, and what other views can merge. Of a view of records: the record."""
    if view.records:
        return pa.table({OP: changes[CHANGE_OP], RECORD: changes[RECORD], ROW: _record_texts(view, changes)})
    made = {column.name: changes[column.name] for column in view.places}
    if view.shaped is None:
        made |= results_of(view, changes)
        made |= {whole_of(result.name): whole_sum(result, changes) for result in view.whole_sums}
    columns = {column.name: made.get(column.name, None) for column in feed_columns(view)}
    columns = {name: changes[name] if values is None else values for name, values in columns.items()}
    tail = {CORRECTIONS: changes["_corrections"], UPDATED_AT: changes["_updated_at"]}
    return pa.table({OP: changes[CHANGE_OP], **columns, **tail, ROW: row_texts(changes, view.key)})


def as_seen(view: ViewSpec, changes: pa.Table) -> pa.Table:
    """What readers see, without the status. A sum that does not fit its type widens the column."""
    columns = {column.name: changes[column.name] for column in view.places}
    if view.shaped is not None:
        columns |= {column.name: changes[column.name] for column in view.shaped}
    else:
        columns |= results_of(view, changes)
        for result in view.whole_sums:
            whole = whole_sum(result, changes)
            if result.widened or whole.null_count < columns[result.name].null_count:
                columns[result.name] = whole
    tail = {name: changes[name] for name in ("_corrections", "_updated_at")}
    final = {FINAL_AT: changes[FINAL_AT]} if view.final_by_row else {}
    return pa.table({CHANGE_OP: changes[CHANGE_OP], **columns, **tail, **final})


def with_status(view: ViewSpec, seen: pa.Table, final_us: int | I64 | None) -> pa.Table:
    """Rows as readers see them, when windows that end by `final_us` are final; that may be a time for each row."""
    final = np.zeros(seen.num_rows, np.int64)
    ends = FINAL_AT if view.final_by_row else WINDOW[1] if view.window_us is not None else None
    if ends is not None and final_us is not None:
        known = seen[ends].combine_chunks()
        final = (us_column(known.fill_null(from_us(0)) if known.null_count else known) <= final_us).astype(np.int64)
        final *= np.asarray(known.is_valid())
    status = STATUS.take(pa.array(final))
    return seen.append_column("_status", status).select([CHANGE_OP, *(column.name for column in view.columns)])


def marked(view: ViewSpec, fed: pa.Table, marks: tuple[int | None, int | None] | None) -> pa.Table:
    """Changes for flows over the view, with their times, and a mark behind them: windows that end by then are final, or
    can no longer change. Records are judged again where they are read, so their mark is the frontier."""
    if view.records:
        return with_mark(_unpacked(fed), marks)
    if marks is not None:
        told_us = Horizon(view.ending).told_us
        final_us, unchanged_us = marks
        marks = told_us(final_us), told_us(unchanged_us)
    times = pa.nulls(fed.num_rows, INSTANT)
    if view.window_us is not None and view.ending is not None:
        times = time_column(us_column(fed[WINDOW[1]]) - (0 if view.ending.included else 1))
    return with_mark(fed.append_column(AT, times), marks)


def _unpacked(fed: pa.Table) -> pa.Table:
    """Records, with the progress by which they were judged. They have their own time, and no corrections."""
    record = fed[RECORD].combine_chunks()
    names = [field.name for field in record.type if field.name not in META]
    columns = {OP: fed[OP]} | {name: pc.struct_field(record, name) for name in names}
    columns |= {AT: pa.nulls(len(record), INSTANT), CORRECTIONS: pa.array(np.zeros(len(record), np.int64))}
    columns[UPDATED_AT] = pc.struct_field(record, "_arrived_at")
    return pa.table(columns | {ROW: fed[ROW], "_progress": pc.struct_field(record, "_progress")})


def _record_texts(view: ViewSpec, changes: pa.Table) -> pa.Array:
    """Which record it is: its position, and the group that it is one of, since a transform may make several of one."""
    record = changes[RECORD].combine_chunks()
    place = {name: pc.struct_field(record, name) for name in ("_partition", "_offset")}
    groups = [each.name for each in view.groups]
    return row_texts(pa.table({**place, **{name: changes[name] for name in groups}}), (*place, *groups))


def row_texts(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """A text for each row, the same for those that are equal in these columns."""
    texts = [_texts(rows[name].combine_chunks()) for name in key]
    return pc.binary_join_element_wise(*texts, "/") if texts else pa.repeat("", rows.num_rows)


def _texts(values: pa.Array) -> pa.Array:
    if types.is_nested(values.type) or types.is_binary(values.type):
        texts = json_texts(values)
    elif types.is_timestamp(values.type):
        texts = values.cast(pa.int64()).cast(pa.string())
    else:
        texts = values.cast(pa.string())
    for mark, code in (("%", "%25"), ("/", "%2F"), ("|", "%7C")):
        texts = pc.replace_substring(texts, mark, code)
    return texts.fill_null("%")


def with_mark(rows: pa.Table, marks: tuple[int | None, int | None] | None) -> pa.Table:
    for name in MARK:
        rows = rows.append_column(name, pa.nulls(rows.num_rows, INSTANT))
    if marks is None:
        return rows
    told = {name: None if us is None else from_us(us) for name, us in zip(MARK, marks, strict=True)}
    return pa.concat_tables([rows, pa.Table.from_pylist([{OP: ".", **told}], schema=rows.schema)])


def snapshot(
    view: ViewSpec, name: str, rows: pa.Table, emit: Emit, op: str, final_us: int | None, after_us: int | None = None
) -> list[Outgoing]:
    """All rows of a view, as if they came, or went, just now, for flows over the view called `name`: of windows that
    end later than `after_us`."""
    if emit == "final":
        known_us = -(2**63) if final_us is None else final_us
        rows = rows.filter(pa.array(us_column(rows[WINDOW[1]]) <= known_us))
    if after_us is not None:
        rows = rows.filter(pa.array(us_column(rows[WINDOW[1]]) > after_us))
    fed = as_fed(view, rows.add_column(0, CHANGE_OP, pa.repeat(op, rows.num_rows)))
    told = marked(view, fed, None if final_us is None or op == "-" else (final_us, None))
    pieces = [told.slice(at, CHUNK_ROWS) for at in range(0, told.num_rows, CHUNK_ROWS)]
    return [Outgoing(feed_topic(name, emit), piece) for piece in pieces]
