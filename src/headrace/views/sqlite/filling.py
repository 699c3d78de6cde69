"""Rows for windows in which a group has no records: `fill=`. Owns the SQL that makes them when a view is read, and the
functions that it calls. Nothing of them is stored: they follow from the rows that are, and from how far windows are
closed, so a straggler simply takes the place of one. Whoever watches a view, compares versions or audits sees the
stored rows alone."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache

from headrace.views.contract import Fill
from headrace.views.sql.database import text_of_us, us_of
from headrace.windows import Aligned, parse

__all__ = ["ROWS_MAX", "made_rows", "refusal", "register"]

ROWS_MAX = 1_000_000
"""So many rows are made for a view at most: one record of long ago would otherwise make rows for every second since."""

_refused = threading.local()


def made_rows(
    view: str,
    fill: Fill,
    state: str,
    groups: Mapping[str, str],
    results: Mapping[str, str],
    closed: str,
    only: Sequence[str] = (),
) -> str:
    """A SELECT of the rows that are made, with all columns that readers see. From the first window of a group to its
    last, or to the newest one that is closed, window after window; each knows the start of the stored row that it is,
    or follows.

    `state`: a table, or a subquery, of rows as readers see them; `groups`: quoted name -> what readers see of it, of a
    row `s`; `results`: quoted name -> its value in a made row, of the stored row before it as `s`; `closed`: an
    expression, up to when windows are closed;
    `only`: conditions on groups."""
    window = "'" + fill.window.replace("'", "''") + "'"
    of_grid = "".join(f" AND s.{name} = g.{name}" for name in groups)
    there = f"EXISTS (SELECT 1 FROM {state} s WHERE s.window_start = g.window_end{of_grid})"  # quicker than a left join
    names = "".join(f"{name}, " for name in groups)
    mine = "".join(f"g.{name}, " for name in groups)
    values = "".join(f"{value} AS {name}, " for name, value in [*groups.items(), *results.items()])
    return (
        f'WITH RECURSIVE "/span" AS (SELECT {names}min(window_start) AS "/first", '
        f"max(max(window_start), coalesce(hr_closed_start({window}, {closed}), '')) AS \"/last\" "
        f"FROM {state} s WHERE {' AND '.join(only) or '1'} GROUP BY {', '.join(groups) or chr(39) * 2}), "
        f'"/grid" ({names}window_start, window_end, "/last", "/from", "/made") AS ('
        f'SELECT {names}"/first", hr_window_end({window}, "/first"), "/last", "/first", 0 FROM "/span" '
        f'WHERE hr_may_fill(\'{view}\', (SELECT sum(hr_windows({window}, "/first", "/last")) FROM "/span") '
        f"- (SELECT count(*) FROM {state})) "
        f'UNION ALL SELECT {mine}g.window_end, hr_window_end({window}, g.window_end), g."/last", '
        f'CASE WHEN {there} THEN g.window_end ELSE g."/from" END, NOT {there} FROM "/grid" g '
        f'WHERE g.window_end <= g."/last") '
        f"SELECT g.window_start AS window_start, g.window_end AS window_end, {values}"
        f"CASE WHEN g.window_end <= {closed} THEN 'final' ELSE 'open' END AS _status, 0 AS _corrections, "
        f'NULL AS _updated_at FROM "/grid" g JOIN {state} s ON s.window_start = g."/from"{of_grid} WHERE g."/made"'
    )


def register(db: sqlite3.Connection) -> None:
    """Every connection that reads or writes views needs this: SQLite looks at all views when a table is renamed."""
    db.create_function("hr_window_end", 2, _window_end, deterministic=True)
    db.create_function("hr_closed_start", 2, _closed_start, deterministic=True)
    db.create_function("hr_windows", 3, _windows, deterministic=True)
    db.create_function("hr_may_fill", 2, _may_fill)


def refusal() -> str:
    """Why the last query of this thread was refused, if it would have made too many rows; '' else. Asked once: SQLite
    says of an error in a function only that there was one."""
    said = getattr(_refused, "why", "")
    _refused.why = ""
    return said


@lru_cache(maxsize=64)
def _parsed(window: str) -> Aligned:
    found = parse(window)
    assert isinstance(found, Aligned) and found.disjoint
    return found


@lru_cache(maxsize=200_000)
def _window_end(window: str, start: str) -> str:
    return text_of_us(_parsed(window).end_of(_us(start)))


def _closed_start(window: str, closed: str | None) -> str | None:
    """The start of the newest window that ends by then."""
    if closed is None:
        return None
    starts = _parsed(window).start_of
    return text_of_us(starts(starts(_us(closed)) - 1))


def _windows(window: str, first: str, last: str) -> int:
    """About how many windows there are from the one to the other."""
    return (_us(last) - _us(first)) // _parsed(window).longest_us + 1


def _may_fill(view: str, rows: int | None) -> bool:
    if rows is not None and rows > ROWS_MAX:
        _refused.why = (
            f"view {view!r} has so many gaps that about {rows:,} rows would be made, and at most {ROWS_MAX:,} are. Use "
            "larger windows or keep=…, or leave fill= out and fill what you need in your query"
        )
        raise ValueError(_refused.why)
    return True


def _us(text: str) -> int:
    us = us_of(text)
    assert us is not None
    return us
