"""A flow's own rows in the file of the views: what it is, how far it has read, what became of its records, what it has
to send. Owns those tables, whose names begin with `_`; a view's own tables are `tables`'."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any

import pyarrow as pa

from headrace.errors import UnknownView, ViewsDamaged
from headrace.horizon import dropped_us
from headrace.position import Position
from headrace.views.contract import Commit, FlowSpec, FlowState, LedgerRow, Outgoing, Place, is_version
from headrace.views.origins import STEPS_MAX, Reader, has, latest, thinned
from headrace.views.sqlite import staged
from headrace.views.sqlite.kept import KEPT
from headrace.views.sqlite.keyed import NULLS, TYPES
from headrace.views.sqlite.values import text_of_us, us_of

BEGINS = (
    "CREATE TABLE _begins (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "offset_first INTEGER NOT NULL, progress UTC_TIMESTAMP, PRIMARY KEY (flow, topic, partition)) WITHOUT ROWID"
)
"""Where flows began: apart from where they are, which is written with every commit."""
BURIED = (
    "CREATE TABLE _buried (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "offset INTEGER NOT NULL, PRIMARY KEY (flow, topic, partition, offset)) WITHOUT ROWID"
)
"""Records that flows gave up."""
MANY = 1_000
"""Rows on their way out that are worth compressing."""

LEDGER = (
    "CREATE TABLE _ledger (flow TEXT NOT NULL, window_start UTC_TIMESTAMP NOT NULL, window_end UTC_TIMESTAMP NOT NULL, "
    "on_time INTEGER NOT NULL, corrected INTEGER NOT NULL, dropped INTEGER NOT NULL, untimed INTEGER NOT NULL, "
    "PRIMARY KEY (flow, window_start, window_end)) WITHOUT ROWID"
)
"""'' as start and end: what belongs to no window."""

SCHEMA = (
    "CREATE TABLE _meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE _flows (flow TEXT PRIMARY KEY, app TEXT NOT NULL, spec TEXT NOT NULL, epoch INTEGER NOT NULL, "
    "sequence INTEGER NOT NULL, frontier UTC_TIMESTAMP, closed UTC_TIMESTAMP, unchanged UTC_TIMESTAMP, "
    "relayed INTEGER NOT NULL, pid INTEGER, host TEXT, started_at UTC_TIMESTAMP, committed_at UTC_TIMESTAMP) "
    "WITHOUT ROWID",
    "CREATE TABLE _positions (flow TEXT NOT NULL, topic TEXT NOT NULL, topic_id TEXT NOT NULL, "
    "partition INTEGER NOT NULL, offset_next INTEGER NOT NULL, progress UTC_TIMESTAMP, arrived UTC_TIMESTAMP, "
    "PRIMARY KEY (flow, topic, partition)) WITHOUT ROWID",
    LEDGER,
    BEGINS,
    BURIED,
    NULLS,
    KEPT,
    TYPES,
    # Rows on their way out, as an Arrow stream; base counts the rows that went to the target before.
    "CREATE TABLE _outbox (flow TEXT NOT NULL, sequence INTEGER NOT NULL, number INTEGER NOT NULL, "
    "target TEXT NOT NULL, base INTEGER NOT NULL, rows BLOB NOT NULL, PRIMARY KEY (flow, sequence, number)) "
    "WITHOUT ROWID",
    "CREATE TABLE _carried (flow TEXT NOT NULL, target TEXT NOT NULL, records INTEGER NOT NULL, "
    "PRIMARY KEY (flow, target)) WITHOUT ROWID",
    # Positions: what a flow had read when it had written no more than that; see `origins`.
    "CREATE TABLE _steps (flow TEXT NOT NULL, sequence INTEGER NOT NULL, read TEXT NOT NULL, written TEXT NOT NULL, "
    "PRIMARY KEY (flow, sequence)) WITHOUT ROWID",
)

_LEDGER = (
    "INSERT INTO _ledger VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (flow, window_start, window_end) DO UPDATE SET "
    "on_time = on_time + excluded.on_time, corrected = corrected + excluded.corrected, "
    "dropped = dropped + excluded.dropped, untimed = untimed + excluded.untimed"
)
_EMPTY = (
    "DELETE FROM _ledger WHERE flow = ? AND window_start = ? AND window_end = ? AND on_time = 0 AND corrected = 0 "
    "AND dropped = 0 AND untimed = 0"
)
_POSITION = (
    "INSERT INTO _positions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (flow, topic, partition) DO UPDATE SET "
    "topic_id = excluded.topic_id, offset_next = excluded.offset_next, progress = excluded.progress, "
    "arrived = excluded.arrived"
)
_LATER = ", ".join(
    f"{name} = CASE WHEN {name} IS NULL OR ?{at} > {name} THEN ?{at} ELSE {name} END"
    for at, name in ((2, "frontier"), (3, "closed"), (4, "unchanged"))
)


@contextlib.contextmanager
def whole(db: sqlite3.Connection) -> Iterator[None]:
    """For rows that SQLite finds in order, and that say nonsense."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        (_, _, path) = db.execute("PRAGMA database_list").fetchone()
        raise ViewsDamaged(path=path, why=f"what a flow is cannot be read: {error}") from error


def spec_of(db: sqlite3.Connection, flow: str) -> FlowSpec | None:
    found = db.execute("SELECT spec FROM _flows WHERE flow = ?", (flow,)).fetchone()
    with whole(db):
        return None if found is None else parse_spec(found[0])


@functools.lru_cache(maxsize=256)
def parse_spec(text: str) -> FlowSpec:
    """Parsed once: every commit and every read asks for it."""
    return FlowSpec.from_json(json.loads(text))


def state_of(db: sqlite3.Connection, flow: str) -> FlowState:
    facts = "epoch, sequence, frontier, closed, unchanged"
    found = db.execute(f"SELECT {facts} FROM _flows WHERE flow = ?", (flow,)).fetchone()
    if found is None:
        raise UnknownView(view=flow, known=names(db))
    with whole(db):
        places: dict[str, dict[int, Place]] = {}
        ids: dict[str, str] = {}
        rows = "SELECT topic, topic_id, partition, offset_next, progress, arrived FROM _positions WHERE flow = ?"
        for topic, topic_id, partition, offset, progress, arrived in db.execute(rows, (flow,)):
            places.setdefault(topic, {})[partition] = Place(offset, us_of(progress), us_of(arrived))
            ids[topic] = topic_id
        begins: dict[str, dict[int, Place]] = {}
        rows = "SELECT topic, partition, offset_first, progress FROM _begins WHERE flow = ?"
        for topic, partition, offset, progress in db.execute(rows, (flow,)):
            begins.setdefault(topic, {})[partition] = Place(offset, us_of(progress))
        (born,) = db.execute("SELECT value FROM _meta WHERE name = ?", (f"born/{flow}",)).fetchone() or ("",)
        (line,) = db.execute("SELECT value FROM _meta WHERE name = ?", (f"line/{flow}",)).fetchone() or (born,)
        epoch, sequence, *times = found
        frontier_us, closed_us, unchanged_us = map(us_of, times)
        known = (flow, epoch, sequence, places, ids, frontier_us, begins, born, line)
        return FlowState(*known, closed_us=closed_us, unchanged_us=unchanged_us)


def names(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT flow FROM _flows") if not is_version(name)]


def next_epoch(db: sqlite3.Connection) -> int:
    """Epochs only grow, for all flows together: one that was dropped and made again is never mistaken for itself."""
    (found,) = db.execute("SELECT value FROM _meta WHERE name = 'epoch'").fetchone() or ("0",)
    db.execute("INSERT OR REPLACE INTO _meta VALUES ('epoch', ?)", (str(int(found) + 1),))
    return int(found) + 1


def text(us: int | None) -> str | None:
    return None if us is None else text_of_us(us)


def now() -> str:
    return text_of_us(time.time_ns() // 1000)


def _ledger_values(row: LedgerRow) -> tuple[Any, ...]:
    start, end = ("" if us is None else text_of_us(us) for us in (row.window_start_us, row.window_end_us))
    return start, end, row.on_time, row.corrected, row.dropped, row.untimed


def note(db: sqlite3.Connection, flow: str, commit: Commit) -> None:
    """How far the flow has come. Neither frontier nor what is closed goes back."""
    db.executemany(
        _POSITION,
        [
            (
                flow,
                topic,
                commit.topic_ids[topic],
                partition,
                place.offset,
                text(place.progress_us),
                text(place.arrived_us),
            )
            for topic, places in commit.places.items()
            for partition, place in places.items()
        ],
    )
    db.executemany(
        "INSERT OR IGNORE INTO _begins VALUES (?, ?, ?, ?, ?)",
        [
            (flow, topic, partition, place.offset, text(place.progress_us))
            for topic, places in commit.begins.items()
            for partition, place in places.items()
        ],
    )
    db.executemany("INSERT OR IGNORE INTO _buried VALUES (?, ?, ?, ?)", [(flow, *each) for each in commit.buried])
    db.executemany(_LEDGER, [(flow, *_ledger_values(row)) for row in commit.ledger])
    fewer = [(flow, *_ledger_values(row)[:2]) for row in commit.ledger if row.on_time <= 0]
    db.executemany(_EMPTY, fewer)  # of windows all of whose rows have gone
    db.execute(
        f"UPDATE _flows SET sequence = sequence + 1, {_LATER}, committed_at = ?5 WHERE flow = ?1",
        (flow, *map(text, (commit.frontier_us, commit.closed_us, commit.unchanged_us)), now()),
    )


def settle(db: sqlite3.Connection, spec: FlowSpec, relayed: int, written: Position) -> None:
    """What has arrived leaves the outbox. If that is all of it, the flow has come a step further: what it has read is
    where it goes, below `written`. Before a commit changes what it has read."""
    flow = spec.name
    db.execute("UPDATE _flows SET relayed = max(relayed, ?) WHERE flow = ?", (relayed, flow))
    db.execute("DELETE FROM _outbox WHERE flow = ? AND sequence <= ?", (flow, relayed))
    waits = db.execute("SELECT EXISTS (SELECT 1 FROM _outbox WHERE flow = ?)", (flow,)).fetchone()[0]
    if spec.writes and not waits and not is_version(flow):
        _step(db, spec, read_of(db, flow), written)


def _step(db: sqlite3.Connection, spec: FlowSpec, read: Position, written: Position) -> None:
    flow = spec.name
    last = "SELECT sequence, written FROM _steps WHERE flow = ? ORDER BY sequence DESC LIMIT 1"
    known, before = db.execute(last, (flow,)).fetchone() or (None, "")
    after = str(latest(Position.parse(before), written))
    if known is not None and after == before:
        db.execute("UPDATE _steps SET read = ? WHERE flow = ? AND sequence = ?", (str(read), flow, known))
        return
    (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (flow,)).fetchone()
    db.execute("INSERT OR REPLACE INTO _steps VALUES (?, ?, ?, ?)", (flow, sequence, str(read), after))
    if db.execute("SELECT count(*) FROM _steps WHERE flow = ?", (flow,)).fetchone()[0] > STEPS_MAX:
        _thin(db, spec)


def _thin(db: sqlite3.Connection, spec: FlowSpec) -> None:
    steps = "SELECT sequence, written FROM _steps WHERE flow = ? ORDER BY sequence"
    found = db.execute(steps, (spec.name,)).fetchall()
    gone = thinned([sequence for sequence, _ in found], _held(db, spec, found))
    db.executemany("DELETE FROM _steps WHERE flow = ? AND sequence = ?", [(spec.name, each) for each in gone])


def _held(db: sqlite3.Connection, spec: FlowSpec, steps: Sequence[tuple[int, str]]) -> set[int]:
    """The steps at which those are who read what the flow writes."""
    held: set[int] = set()
    for topic in spec.writes:
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        rows = "SELECT flow, topic_id, partition, offset_next FROM _positions WHERE topic = ?"
        for flow, topic_id, partition, offset in db.execute(rows, (topic,)):
            offsets.setdefault((flow, topic_id), {})[partition] = offset
        for (_, topic_id), at in offsets.items():
            there = (known for known, written in reversed(steps) if has(written, topic, topic_id, at))
            held |= {*islice(there, 1)}
    return held


def read_of(db: sqlite3.Connection, flow: str) -> Position:
    """How far the flow has read the topics it reads."""
    nexts: dict[tuple[str, str], dict[int, int]] = {}
    rows = "SELECT topic, topic_id, partition, offset_next FROM _positions WHERE flow = ?"
    for topic, topic_id, partition, offset in db.execute(rows, (flow,)):
        nexts.setdefault((topic, topic_id), {})[partition] = offset
    return functools.reduce(Position.__or__, (Position.of(*topic, at) for topic, at in nexts.items()), Position())


def reader_of(db: sqlite3.Connection, spec: FlowSpec) -> Reader:
    """The flow, for following positions. While nothing waits in its outbox, it is a step further than its last one."""
    flow = spec.name
    ids = dict(db.execute("SELECT topic, topic_id FROM _positions WHERE flow = ?", (flow,)))
    read = read_of(db, flow)
    if not spec.writes:
        return Reader(flow, spec.sources, ids, read)
    found = db.execute("SELECT read, written FROM _steps WHERE flow = ? ORDER BY sequence DESC", (flow,)).fetchall()
    if not db.execute("SELECT EXISTS (SELECT 1 FROM _outbox WHERE flow = ?)", (flow,)).fetchone()[0]:
        found.insert(0, (str(read), found[0][1] if found else ""))
    return Reader(flow, spec.sources, ids, read, spec.writes, found)


def put_out(
    db: sqlite3.Connection, flow: str, sequence: int, outgoing: Sequence[Outgoing], files: Sequence[str | None] = ()
) -> None:
    """`files`: of the first of them, the names of files that have the rows already."""
    there = "SELECT coalesce(max(number) + 1, 0) FROM _outbox WHERE flow = ? AND sequence = ?"
    (first,) = db.execute(there, (flow, sequence)).fetchone()
    for (number, each), file in zip_longest(enumerate(outgoing, start=first), files):
        found = db.execute("SELECT records FROM _carried WHERE flow = ? AND target = ?", (flow, each.target))
        (base,) = found.fetchone() or (0,)
        body = _stream(each.rows) if file is None else staged.named(file)
        db.execute("INSERT INTO _outbox VALUES (?, ?, ?, ?, ?, ?)", (flow, sequence, number, each.target, base, body))
        carried = (flow, each.target, base + each.rows.num_rows)
        db.execute("INSERT OR REPLACE INTO _carried VALUES (?, ?, ?)", carried)


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    packed = pa.ipc.IpcWriteOptions(compression="zstd" if rows.num_rows >= MANY else None)
    with pa.ipc.new_stream(sink, rows.schema, options=packed) as writer:
        writer.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def not_kept(db: sqlite3.Connection, spec: FlowSpec) -> int | None:
    """Rows of windows that end by then have gone: they are older than the flow's view keeps them, and final, and no
    record changes them."""
    if spec.view is None or spec.view.window_us is None:
        return None
    stored = db.execute("SELECT frontier, closed, unchanged FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
    return dropped_us(spec.view.keep_us, *map(us_of, stored))
