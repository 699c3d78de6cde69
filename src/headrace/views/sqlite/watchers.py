"""Who watches a view, and what changed since they looked: rows in a transaction of the store. Owns the tables
`_watchers` (who, how far they have read, until when they are believed alive) and `_changes` (what each commit changed),
not the transactions. `watching` is the other side.

While a view is watched, each commit also keeps what it changed, row by row, as readers see it; what all watchers have
read, or nobody alive wants, goes. While it is not, that costs a commit one lookup. A watcher's row is there if and only
if every change after what it has read is there: one that is left behind loses the row, never a change in silence."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from headrace.views.contract import Column, FlowSpec, ViewSpec
from headrace.views.reading import quoted
from headrace.views.sqlite import merging
from headrace.views.sqlite.tables import ViewTables, tables_of
from headrace.views.sqlite.values import decode, text_of_us
from headrace.views.values import arrow_type

__all__ = ["SCHEMA", "Record", "forget", "join", "leave", "record", "renew", "switched", "watched_columns"]

SCHEMA = (
    "CREATE TABLE _watchers (flow TEXT NOT NULL, watcher TEXT NOT NULL, read INTEGER NOT NULL, "
    "ends_at UTC_TIMESTAMP NOT NULL, PRIMARY KEY (flow, watcher)) WITHOUT ROWID",
    # bytes_upto: those of this commit's changes and of all before that are still here
    "CREATE TABLE _changes (flow TEXT NOT NULL, sequence INTEGER NOT NULL, bytes_upto INTEGER NOT NULL, "
    "rows BLOB NOT NULL, PRIMARY KEY (flow, sequence)) WITHOUT ROWID",
)
BACKLOG_BYTES_MAX = 256 << 20
"""What is kept for the slowest watcher. It is left behind, not the disk filled, nor the flow held up."""

CHUNK_ROWS = 10_000

Row = tuple[Any, ...]


def watched_columns(view: ViewSpec) -> list[Column]:
    """What a kept change has: whether the row came or went, and the row as readers see it."""
    return [Column("op", "string"), *view.columns]


# -- watchers ----------------------------------------------------------------------------------------


def join(db: sqlite3.Connection, flow: str, watcher: str, lease_us: int, *, oldest: bool = False) -> int:
    """From the next commit on, changes are kept for the watcher; with `oldest`, those that are kept for others too.
    Returns the sequence it begins after."""
    (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (flow,)).fetchone()
    if oldest:
        (read,) = db.execute("SELECT min(read) FROM _watchers WHERE flow = ?", (flow,)).fetchone()
        sequence = sequence if read is None else read
    db.execute("INSERT INTO _watchers VALUES (?, ?, ?, ?)", (flow, watcher, sequence, _in(lease_us)))
    return int(sequence)


def renew(db: sqlite3.Connection, flow: str, watcher: str, read: int, lease_us: int) -> bool:
    """The watcher lives, and has read up to `read`. False: it was left behind."""
    sql = "UPDATE _watchers SET read = max(read, ?), ends_at = ? WHERE flow = ? AND watcher = ?"
    alive = db.execute(sql, (read, _in(lease_us), flow, watcher)).rowcount == 1
    _prune(db, flow)
    return alive


def leave(db: sqlite3.Connection, flow: str, watcher: str) -> None:
    db.execute("DELETE FROM _watchers WHERE flow = ? AND watcher = ?", (flow, watcher))
    _prune(db, flow)


def forget(db: sqlite3.Connection, flow: str) -> None:
    """The flow is dropped: so are its watchers."""
    db.execute("DELETE FROM _watchers WHERE flow = ?", (flow,))
    _prune(db, flow)


def _prune(db: sqlite3.Connection, flow: str) -> None:
    """Drops the changes that no watcher has to read yet."""
    (read,) = db.execute("SELECT min(read) FROM _watchers WHERE flow = ?", (flow,)).fetchone()
    if read is None:
        db.execute("DELETE FROM _changes WHERE flow = ?", (flow,))
    else:
        db.execute("DELETE FROM _changes WHERE flow = ? AND sequence <= ?", (flow, read))


def _watched(db: sqlite3.Connection, flow: str) -> bool:
    """Whether somebody alive watches. Those who are not, or are too far behind, are put out."""
    found = db.execute("SELECT watcher, read, ends_at FROM _watchers WHERE flow = ?", (flow,)).fetchall()
    if not found:
        return False
    now = _in(0)
    over = [(flow, who) for who, read, ends in found if ends < now or _waiting(db, flow, read) > BACKLOG_BYTES_MAX]
    if over:
        db.executemany("DELETE FROM _watchers WHERE flow = ? AND watcher = ?", over)
        _prune(db, flow)
    return len(over) < len(found)


def _waiting(db: sqlite3.Connection, flow: str, read: int) -> int:
    """Bytes that are kept for one who has read up to there."""
    ends = "SELECT bytes_upto FROM _changes WHERE flow = ? AND sequence > ? ORDER BY sequence"
    first = db.execute(f"{ends} LIMIT 1", (flow, read)).fetchone()
    last = db.execute(f"{ends} DESC LIMIT 1", (flow, read)).fetchone()
    return int(last[0] - first[0]) if first and last else 0


def _in(us: int) -> str:
    """So long from now."""
    return text_of_us(time.time_ns() // 1000 + us)


# -- changes -----------------------------------------------------------------------------------------


def record(db: sqlite3.Connection, flow: str, closed_us: int | None) -> Record | None:
    """Before a commit changes anything: what will have changed, if somebody watches. `closed_us` is the commit's."""
    if not _watched(db, flow):
        return None
    spec, closed = db.execute("SELECT spec, closed FROM _flows WHERE flow = ?", (flow,)).fetchone()
    view = FlowSpec.from_json(json.loads(spec)).view
    return None if view is None else Record(db, flow, tables_of(view), closed, closed_us)


def switched(
    db: sqlite3.Connection, flow: str, sequence: int, columns: list[Column], changed: Callable[[], Iterator[Row]]
) -> None:
    """Another version takes the view's place: what changes by that, with `op`, as one commit's. Too much of it, or
    columns that are others (`columns` is empty): who watches is put out, and begins again with the rows as they are."""
    if not columns:
        forget(db, flow)
        return
    if not _watched(db, flow):
        return
    pieces, rows = [], changed()
    while some := list(islice(rows, CHUNK_ROWS)):
        pieces.append(_table(some, columns))
        if sum(piece.nbytes for piece in pieces) > BACKLOG_BYTES_MAX:
            forget(db, flow)
            return
    if pieces:
        _keep(db, flow, sequence, pa.concat_tables(pieces))


class Record:
    """What a commit changes in a view's rows. SQLite's triggers write down each row as it was when it is first touched,
    whoever touches it and why; rows of windows that the commit closes change their status, and are added. Where
    a transform shapes the view, the rows it made before are written down in the same way when they go."""

    def __init__(
        self, db: sqlite3.Connection, flow: str, tables: ViewTables, was_closed: str | None, closed_us: int | None
    ) -> None:
        self._db, self._flow, self._tables = db, flow, tables
        self._old: dict[int, list[Row]] = {}
        self._end()  # of a commit that was rolled back
        state, number, names = tables.state, tables.row, [quoted(name) for name in tables.names]
        db.execute(f"CREATE TEMP TABLE watched (_hr_number INTEGER PRIMARY KEY, _hr_was INTEGER, {', '.join(names)})")
        # Not OR IGNORE: a trigger's own is overruled by the statement that fires it.
        new = f"NOT EXISTS (SELECT 1 FROM watched WHERE _hr_number = {{}}.{number})".format
        was = ", ".join(f"OLD.{name}" for name in names)
        for event in "UPDATE", "DELETE":
            db.execute(
                f"CREATE TEMP TRIGGER watched_{event} BEFORE {event} ON main.{state} WHEN {new('OLD')} BEGIN "
                f"INSERT INTO watched VALUES (OLD.{number}, 1, {was}); END"
            )
        db.execute(
            f"CREATE TEMP TRIGGER watched_INSERT AFTER INSERT ON main.{state} WHEN {new('NEW')} BEGIN "
            f"INSERT INTO watched (_hr_number) VALUES (NEW.{number}); END"
        )
        if tables.shaped is not None:
            self._watch_shaped(tables.shaped)
        if closed_us is not None and tables.spec.window_us:
            where, values = merging.ending(tables, was_closed, closed_us)
            rows = f"SELECT {number}, 1, {', '.join(names)} FROM {state} WHERE {where}"
            db.execute(f"INSERT INTO temp.watched {rows}", values)

    def _watch_shaped(self, shaped: str) -> None:
        """A result's rows all go before the new ones come: those that go after that were never seen."""
        number, names = self._tables.row, [quoted(name) for name in self._tables.shaped_names]
        fresh = f"EXISTS (SELECT 1 FROM watched_made WHERE _hr_number = {{}}.{number})".format
        self._db.execute("CREATE TEMP TABLE watched_made (_hr_number INTEGER PRIMARY KEY)")
        self._db.execute(f"CREATE TEMP TABLE watched_unmade ({', '.join(names)})")
        self._db.execute(
            f"CREATE TEMP TRIGGER watched_unmake BEFORE DELETE ON main.{shaped} WHEN NOT {fresh('OLD')} BEGIN "
            f"INSERT INTO watched_unmade VALUES ({', '.join(f'OLD.{name}' for name in names)}); END"
        )
        self._db.execute(
            f"CREATE TEMP TRIGGER watched_make AFTER INSERT ON main.{shaped} WHEN NOT {fresh('NEW')} BEGIN "
            f"INSERT INTO watched_made VALUES (NEW.{number}); END"
        )

    def merged(self) -> None:
        """After rows were changed, and before the frontier is: what readers saw until now."""
        seen, shaped, row = self._tables.seen(), self._tables.shaped, self._tables.row
        sources = ["temp.watched s WHERE s._hr_was"]
        if shaped is not None:
            sources = [
                f"temp.watched_unmade f CROSS JOIN temp.watched s ON s._hr_number = f.{row} WHERE s._hr_was",
                f"temp.watched s CROSS JOIN main.{shaped} f ON f.{row} = s._hr_number WHERE s._hr_was "
                f"AND NOT EXISTS (SELECT 1 FROM temp.watched_made m WHERE m._hr_number = s._hr_number)",
            ]
        for source in sources:
            for number, *values in self._db.execute(f"SELECT s._hr_number, {seen} FROM {source}"):
                self._old.setdefault(number, []).append(tuple(values))

    def keep(self, sequence: int, view: ViewSpec) -> None:
        """After all was changed, the frontier too: keeps what is different under the commit's sequence. `view`: as the
        commit has left it."""
        tables = self._tables
        order = ", ".join(f"s.{name}" for name in tables.key) or "1"
        now = f"SELECT s.{tables.row}, {tables.seen()} FROM {tables.seen_from} WHERE s.{tables.row} IN"
        found = self._db.execute(f"{now} (SELECT _hr_number FROM temp.watched) ORDER BY {order}").fetchall()
        self._end()
        new: dict[int, list[Row]] = {}
        for number, *values in found:
            new.setdefault(number, []).append(tuple(values))
        gone = [("-", *row) for number, rows in self._old.items() if number not in new for row in rows]
        changed = gone + [change for number, rows in new.items() for change in _diff(self._old.get(number, []), rows)]
        if changed:
            _keep(self._db, self._flow, sequence, _table(changed, watched_columns(view)))

    def _end(self) -> None:
        for trigger in "UPDATE", "DELETE", "INSERT", "make", "unmake":
            self._db.execute(f"DROP TRIGGER IF EXISTS temp.watched_{trigger}")
        for table in "watched", "watched_made", "watched_unmade":
            self._db.execute(f"DROP TABLE IF EXISTS temp.{table}")


def _table(changed: list[Row], columns: list[Column]) -> pa.Table:
    return pa.table(
        {
            column.name: decode(list(values), arrow_type(column.type))
            for column, values in zip(columns, zip(*changed, strict=True), strict=True)
        }
    )


def _keep(db: sqlite3.Connection, flow: str, sequence: int, changed: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changed.schema) as writer:
        writer.write_table(changed)
    body = sink.getvalue().to_pybytes()
    if len(body) > BACKLOG_BYTES_MAX:
        forget(db, flow)
        return
    last = "SELECT bytes_upto FROM _changes WHERE flow = ? ORDER BY sequence DESC LIMIT 1"
    (upto,) = db.execute(last, (flow,)).fetchone() or (0,)
    db.execute("INSERT INTO _changes VALUES (?, ?, ?, ?)", (flow, sequence, upto + len(body), body))


def _diff(old: list[Row], new: list[Row]) -> list[Row]:
    """What went and what came, of the rows of one result."""
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    return [("-", *row) for row in gone.elements()] + [("+", *row) for row in come.elements()]
