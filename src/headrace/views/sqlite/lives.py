"""Groups that go: a view without windows that keeps a group until no record of it has arrived for so long. Inside a
transaction of the store.

What came of a group at most that time apart, by arrival, is one *life* of it: a session. Lives are kept in a table
beside the view's, as sessions are, so that records of several partitions find theirs in whatever order they are read. A
group's row is its newest life; with that it goes, and a record that comes later begins a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.aggregates import Aggregate
from headrace.views.reading import quoted
from headrace.views.sqlite import merging
from headrace.views.sqlite.sessions import joining
from headrace.views.sqlite.tables import ViewTables
from headrace.views.values import numbered

__all__ = ["end", "fold"]


def fold(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table, aggregates: Mapping[str, Aggregate]) -> None:
    """Merges pieces of lives, each from its first arrival to its last, and shows the newest of each group."""
    lives = tables.lives
    assert lives is not None
    merging.merge(db, lives, joining(db, lives, partials).apply(db, lives), aggregates)
    group = numbered(partials, [column.name for column in tables.spec.groups])
    one_of = partials.take(pa.array(np.unique(group, return_index=True)[1]))
    merging.staged(db, "grouped", range(one_of.num_rows), merging.group_columns(tables, one_of))
    newest = (
        f"SELECT l.{lives.row} FROM {lives.state} l WHERE 1{merging.same_groups(lives, 'l')} "
        "ORDER BY l.window_start DESC LIMIT 1"
    )
    shown = f"SELECT s.{tables.row} FROM {tables.state} s WHERE 1{merging.same_groups(tables, 's')}"
    found = db.execute(f"SELECT ({newest}), ({shown}) FROM temp.grouped t ORDER BY t.number").fetchall()
    names = ", ".join(quoted(name) for name in tables.names)
    life = f"SELECT {names} FROM {lives.state} WHERE {lives.row} = ?"
    new = [(number,) for number, row in found if row is None]
    db.executemany(f"INSERT INTO {tables.state} ({names}) {life}", new)
    known = [(number, row) for number, row in found if row is not None]
    db.executemany(f"UPDATE {tables.state} SET ({names}) = ({life}) WHERE {tables.row} = ?", known)


def end(db: sqlite3.Connection, tables: ViewTables, over_us: int) -> None:
    """Drops lives whose last record arrived by then, and groups that have no other."""
    lives, groups = tables.lives, [quoted(column.name) for column in tables.spec.groups]
    assert lives is not None
    where, values = merging.ending(lives, None, over_us)
    names = ", ".join(groups)
    same_life, same_row = ("".join(f" AND {of}.{name} IS g.{name}" for name in groups) for of in ("l", "s"))
    gone = (
        f"SELECT s.{tables.row} FROM (SELECT DISTINCT {names or '1'} FROM {lives.state} WHERE {where}) g "
        f"CROSS JOIN {tables.state} s ON 1{same_row} "
        f"WHERE NOT EXISTS (SELECT 1 FROM {lives.state} l WHERE NOT (l.{where}){same_life})"
    )
    merging.staged(db, "ended", [row for (row,) in db.execute(gone, (*values, *values))], {})
    for table, number in tables.numbered():
        db.execute(f"DELETE FROM {table} WHERE {number} IN (SELECT number FROM temp.ended)")
    merging.expire(db, lives, over_us)
