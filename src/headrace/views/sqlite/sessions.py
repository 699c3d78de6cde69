"""Sessions in a view's tables: rows that grow, and rows that become one. Inside a transaction of the store.

Partial rows of sessions touch rows that are there: at most the gap lies between them. Which belong together is `joined`
of `windows.sessions`. The first row of those takes the others' place and the new bounds; the others are taken out as
partial rows and merged into it like any other, so that each aggregate is merged by its own rule."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.views.contract import WINDOW
from headrace.views.sqlite import merging
from headrace.views.sqlite.tables import ViewTables
from headrace.views.sqlite.values import decode, encode
from headrace.views.values import I64, INSTANT, numbered, time_column, us_column
from headrace.windows.sessions import joined

__all__ = ["Joining", "joining"]


@dataclass(frozen=True, slots=True)
class Joining:
    """What partial rows do to the sessions that are there. `partials`: these rows, with the bounds of the sessions they
    become part of. `became`: the number of each row they touch -> of the row that it is part of afterwards."""

    partials: pa.Table
    became: dict[int, int]
    bounds: dict[int, tuple[str, str]]
    """Number -> start and end that the row gets."""
    earlier: list[int]
    """The numbers of rows that get another start."""

    def apply(self, db: sqlite3.Connection, tables: ViewTables) -> pa.Table:
        """Moves rows and takes those out that become part of others; what has to be merged then. An end that is later
        comes with the merge."""
        gone = sorted(number for number, into in self.became.items() if number != into)
        taken = merging.take_out(db, tables, gone)
        db.executemany(
            f"UPDATE {tables.state} SET window_start = ? WHERE {tables.row} = ?",
            [(self.bounds[number][0], number) for number in self.earlier],
        )
        if not gone:
            return merging.in_order(tables.spec, self.partials)
        bounds = [self.bounds[self.became[number]] for number in gone]
        for at, name in enumerate(WINDOW):
            times = decode([each[at] for each in bounds], INSTANT)
            taken = taken.set_column(taken.column_names.index(name), name, times)
        rows = pa.concat_tables([self.partials, taken.select(self.partials.column_names).cast(self.partials.schema)])
        return merging.in_order(tables.spec, rows)


def joining(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table) -> Joining:
    """Reads only. The rows in `partials` are stretches [window_start, window_end] of sessions, in any pieces."""
    spec = tables.spec
    assert spec.window_us is not None
    gap_us = spec.window_us[0]
    key = numbered(partials, [each.name for each in spec.groups])
    start, end = (us_column(partials[name]) for name in WINDOW)
    span, first, last = joined(key, start, end, gap_us)
    one_of = np.unique(span, return_index=True)[1]
    found = _touched(db, tables, partials.take(pa.array(one_of)), first, last, gap_us)
    numbers = [number for _, number, _, _ in found]
    spans = np.array([at for at, _, _, _ in found], np.int64)
    starts, ends = (us_column(decode([row[column] for row in found], INSTANT)) for column in (2, 3))
    keys = key[one_of]
    session, first, last = joined(
        np.concatenate((keys, keys[spans])), np.concatenate((first, starts)), np.concatenate((last, ends)), gap_us
    )
    into: dict[int, int] = {}
    became = {}
    for at in np.argsort(starts, kind="stable").tolist():
        number = numbers[at]
        became[number] = into.setdefault(int(session[len(keys) + at]), number)
    moved = np.array(list(into), np.int64)
    texts = zip(encode(time_column(first[moved])), encode(time_column(last[moved])), strict=True)
    bounds = dict(zip(into.values(), texts, strict=True))
    for name, times in zip(WINDOW, (first, last), strict=True):
        partials = partials.set_column(partials.column_names.index(name), name, time_column(times[session[span]]))
    earlier = [number for _, number, was, _ in found if number in bounds and bounds[number][0] != was]
    return Joining(partials, became, bounds, earlier)


def _touched(
    db: sqlite3.Connection, tables: ViewTables, spans: pa.Table, first: I64, last: I64, gap_us: int
) -> list[tuple[int, int, str, str]]:
    """(number of the span, number of the row, window_start, window_end) of all rows at most the gap away from a span of
    their key, each row once. Sessions of a key lie apart, so all but one of the rows that are looked at are such."""
    times = zip(("first", "before", "after"), (first, first - gap_us, last + gap_us), strict=True)
    columns = {name: encode(time_column(each)) for name, each in times} | merging.group_columns(tables, spans)
    merging.staged(db, "spans", range(len(first)), columns)
    before = (
        f"SELECT p.window_start FROM {tables.state} p WHERE p.window_start <= t.first"
        f"{merging.same_groups(tables, 'p')} ORDER BY p.window_start DESC LIMIT 1"
    )
    found = db.execute(
        f"SELECT t.number, s.{tables.row}, s.window_start, s.window_end FROM temp.spans t CROSS JOIN {tables.state} s "
        f"ON s.window_start >= coalesce(({before}), t.first) AND s.window_start <= t.after"
        f"{merging.same_groups(tables, 's')} WHERE s.window_end >= t.before"
    )
    return list({row[1]: row for row in found}.values())
