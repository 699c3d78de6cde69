"""Windows that overlap, and sessions: the panes of a batch become partial rows of windows, merged before they go to the
store. Owns a short cut, not a meaning: the store would merge them in the same way, a row at a time; a window of an hour
every minute has sixty rows for each pane, and a session one for each stretch of its gap. For aggregates that Arrow
merges as the store does; others take the long way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates import Aggregate
from headrace.aggregates.grouping import Grouping, as_kept, summable
from headrace.views.contract import WINDOW
from headrace.views.values import numbered, us_column
from headrace.windows.sessions import joined

KEY = "/key"
ROWS_MAX = 2_000_000
"""So many rows, of whole groups where one has no more, are spread over their windows together."""


def merging(rows: pa.Table, groups: tuple[str, ...], aggregates: Mapping[str, Aggregate]) -> dict[str, str] | None:
    """Column -> how Arrow merges it; None when it does not know all of them, or groups as Spark does."""
    if any(types.is_floating(rows.schema.field(name).type) for name in groups):
        return None
    out = {WINDOW[1]: "max", "_corrections": "sum", "_updated_at": "max"}
    for name, aggregate in aggregates.items():
        functions = aggregate.algebra.arrow_merges(name)
        if functions is None:
            return None
        out |= functions
    return out


def merged(
    rows: pa.Table,
    groups: tuple[str, ...],
    functions: Mapping[str, str],
    spread: Callable[[pa.Table], pa.Table],
    times: int,
) -> pa.Table:
    """What `spread` makes of the rows, `times` as many, with one row for each window and group. A group is a number
    meanwhile: those are grouped faster than names."""
    key = numbered(rows, groups)
    one_of, ends = np.unique(key, return_index=True)[1], np.cumsum(np.bincount(key))
    names = {name: rows[name].take(pa.array(one_of)) for name in groups}
    rows = rows.drop_columns(list(groups)).append_column(KEY, pa.array(key)).take(pa.array(np.argsort(key)))
    pieces = _pieces(rows, ends, ROWS_MAX // times)
    functions = {WINDOW[0]: "min", **{name: each for name, each in functions.items() if name != WINDOW[1]}}
    return _named(pa.concat_tables([_merged(spread(piece), (KEY, WINDOW[1]), functions) for piece in pieces]), names)


def together(rows: pa.Table, groups: tuple[str, ...], functions: Mapping[str, str], gap_us: int) -> pa.Table:
    """Pieces of sessions, those that are of one session as one: the store joins that with what it has."""
    start, end = (us_column(rows[name]) for name in WINDOW)
    session, *_ = joined(numbered(rows, groups), start, end, gap_us)
    one_of = pa.array(np.unique(session, return_index=True)[1])
    names = {name: rows[name].take(one_of) for name in groups}
    rows = rows.drop_columns(list(groups)).append_column(KEY, pa.array(session))
    return _named(_merged(rows, (KEY,), {WINDOW[0]: "min", **functions}), names)


def _named(rows: pa.Table, names: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    """The rows with their groups in place of the groups' numbers."""
    for name, values in names.items():
        rows = rows.append_column(name, values.take(rows[KEY]))
    return rows.drop_columns([KEY])


def _merged(rows: pa.Table, keys: tuple[str, ...], functions: Mapping[str, str]) -> pa.Table:
    grouping = Grouping()
    for name in keys:
        grouping.key(name, rows[name])
    for name, function in functions.items():
        grouping.value(name, summable(rows[name]) if function == "sum" else rows[name], function)
    found = grouping.done()
    return pa.table([as_kept(found[field.name], field.type) for field in rows.schema], schema=rows.schema)


def _pieces(rows: pa.Table, ends: npt.NDArray[np.int64], size: int) -> Iterator[pa.Table]:
    """The rows, as many groups at a time as fit, and at least one; `ends`: behind which rows groups end."""
    start = 0
    while start < rows.num_rows:
        whole, first = (np.searchsorted(ends, at, side="right") for at in (start + size, start))
        stop = int(ends[max(whole - 1, first)])
        yield rows.slice(start, stop - start)
        start = stop
    if not rows.num_rows:
        yield rows
