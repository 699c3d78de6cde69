"""Who watches a view, and what changed since they looked: rows in a transaction of a store. Owns what is in the tables
`_watchers` (who, how far they have read, until when they are believed alive) and `_changes` (what each commit changed),
not the transactions. `watching` is the other side.

While a view is watched, each commit also keeps what it changed, row by row, as readers see it: the difference that the
operator's step says. What all watchers have read, or nobody alive wants, goes. An unwatched view costs a commit one
lookup. A watcher's row is there if and only
if every change after what it has read is there: one that is left behind loses the row, never a change in silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from headrace.views.contract import Column, ViewSpec
from headrace.views.sql.database import Database, text_of_us

__all__ = ["are_alive", "are_there", "forget", "join", "keep", "leave", "renew", "switched", "watched_columns"]

BACKLOG_BYTES_MAX = 256 << 20
"""What is kept for the slowest watcher. It is left behind, not the disk filled, nor the flow held up."""

CHUNK_ROWS = 10_000


def watched_columns(view: ViewSpec) -> list[Column]:
    """What a kept change has: whether the row came or went, and the row as readers see it."""
    return [Column("op", "string"), *view.columns]


# -- watchers ----------------------------------------------------------------------------------------


def join(db: Database, flow: str, watcher: str, lease_us: int, *, oldest: bool = False) -> int:
    """From the next commit on, changes are kept for the watcher; with `oldest`, those that are kept for others too.
    Returns the sequence it begins after."""
    (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (flow,)).fetchone()
    if oldest:
        (read,) = db.execute("SELECT min(read) FROM _watchers WHERE flow = ?", (flow,)).fetchone()
        sequence = sequence if read is None else read
    db.execute("INSERT INTO _watchers VALUES (?, ?, ?, ?)", (flow, watcher, sequence, _in(lease_us)))
    return int(sequence)


def renew(db: Database, flow: str, watcher: str, read: int, lease_us: int) -> bool:
    """The watcher lives, and has read up to `read`. False: it was left behind."""
    sql = "UPDATE _watchers SET read = CASE WHEN read < ?1 THEN ?1 ELSE read END, ends_at = ?2 "
    alive: bool = (
        db.execute(f"{sql}WHERE flow = ?3 AND watcher = ?4", (read, _in(lease_us), flow, watcher)).rowcount == 1
    )
    _prune(db, flow)
    return alive


def leave(db: Database, flow: str, watcher: str) -> None:
    db.execute("DELETE FROM _watchers WHERE flow = ? AND watcher = ?", (flow, watcher))
    _prune(db, flow)


def forget(db: Database, flow: str) -> None:
    """The flow is dropped: so are its watchers."""
    db.execute("DELETE FROM _watchers WHERE flow = ?", (flow,))
    _prune(db, flow)


def _prune(db: Database, flow: str) -> None:
    """Drops the changes that no watcher has to read yet."""
    (read,) = db.execute("SELECT min(read) FROM _watchers WHERE flow = ?", (flow,)).fetchone()
    if read is None:
        db.execute("DELETE FROM _changes WHERE flow = ?", (flow,))
    else:
        db.execute("DELETE FROM _changes WHERE flow = ? AND sequence <= ?", (flow, read))


def are_there(db: Database, flow: str) -> bool:
    """Whether anybody watches, alive or not."""
    return db.execute("SELECT 1 FROM _watchers WHERE flow = ? LIMIT 1", (flow,)).fetchone() is not None


def are_alive(db: Database, flow: str) -> bool:
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


def _waiting(db: Database, flow: str, read: int) -> int:
    """Bytes that are kept for one who has read up to there."""
    ends = "SELECT bytes_upto FROM _changes WHERE flow = ? AND sequence > ? ORDER BY sequence"
    first = db.execute(f"{ends} LIMIT 1", (flow, read)).fetchone()
    last = db.execute(f"{ends} DESC LIMIT 1", (flow, read)).fetchone()
    return int(last[0] - first[0]) if first and last else 0


def _in(us: int) -> str:
    """So long from now."""
    return text_of_us(time.time_ns() // 1000 + us)


# -- changes -----------------------------------------------------------------------------------------


def keep(db: Database, flow: str, sequence: int, changed: pa.Table) -> None:
    """Keeps what a commit changed, under the sequence after it."""
    if not changed.num_rows:
        return
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


def switched(
    db: Database, flow: str, sequence: int, columns: list[Column], changed: Callable[[], Iterable[pa.RecordBatch]]
) -> None:
    """Another version takes the view's place: what changes by that, with `op`, as one commit's. Too much of it, or
    columns that are others (`columns` is empty): who watches is put out, and begins again with the rows as they are."""
    if not columns:
        forget(db, flow)
        return
    if not are_alive(db, flow):
        return
    pieces: list[pa.RecordBatch] = []
    for piece in changed():
        pieces.append(piece)
        if sum(each.nbytes for each in pieces) > BACKLOG_BYTES_MAX:
            forget(db, flow)
            return
    if pieces:
        keep(db, flow, sequence, pa.Table.from_batches(pieces))
