"""A flow's own rows in a database: what it is, how far it has read, what became of its records, what it has to send.
Owns what is in those tables, whose names begin with `_`; each store makes them, with types of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any

import pyarrow as pa

from headrace.errors import UnknownView, ViewsDamaged
from headrace.horizon import dropped_us
from headrace.position import Position
from headrace.views.contract import Commit, FlowSpec, FlowState, LedgerRow, Outgoing, Place, ReadMark, is_version
from headrace.views.origins import STEPS_MAX, Reader, has, latest, thinned
from headrace.views.sql.database import Database, text_of_us, us_of

MANY = 1_000
"""Rows on their way out that are worth compressing."""

_LEDGER = (
    "INSERT INTO _ledger VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (flow, window_start, window_end) DO UPDATE SET "
    + ", ".join(f"{name} = _ledger.{name} + excluded.{name}" for name in ("on_time", "corrected", "dropped", "untimed"))
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
def whole(db: Database) -> Iterator[None]:
    """For rows that the database finds in order, and that say nonsense."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise ViewsDamaged(path=_place(db), why=f"what a flow is cannot be read: {error}") from error


def _place(db: Database) -> str:
    """Where the database is: a connection of Postgres says it itself."""
    said = getattr(db, "place", None)
    return str(said or db.execute("PRAGMA database_list").fetchone()[2])


def spec_of(db: Database, flow: str) -> FlowSpec | None:
    found = db.execute("SELECT spec FROM _flows WHERE flow = ?", (flow,)).fetchone()
    with whole(db):
        return None if found is None else parse_spec(found[0])


@functools.lru_cache(maxsize=256)
def parse_spec(text: str) -> FlowSpec:
    """Parsed once: every commit and every read asks for it."""
    return FlowSpec.from_json(json.loads(text))


def state_of(db: Database, flow: str) -> FlowState:
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


def names(db: Database) -> list[str]:
    return [name for (name,) in db.execute("SELECT flow FROM _flows") if not is_version(name)]


def next_epoch(db: Database) -> int:
    """Epochs only grow, for all flows together: one that was dropped and made again is never mistaken for itself."""
    (found,) = db.execute("SELECT value FROM _meta WHERE name = 'epoch'").fetchone() or ("0",)
    set_fact(db, "epoch", str(int(found) + 1))
    return int(found) + 1


def set_fact(db: Database, name: str, value: str) -> None:
    put = "INSERT INTO _meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    db.execute(put, (name, value))


def text(us: int | None) -> str | None:
    return None if us is None else text_of_us(us)


def now() -> str:
    return text_of_us(time.time_ns() // 1000)


def _ledger_values(row: LedgerRow, no_window: str) -> tuple[Any, ...]:
    start, end = (no_window if us is None else text_of_us(us) for us in (row.window_start_us, row.window_end_us))
    return start, end, row.on_time, row.corrected, row.dropped, row.untimed


def note(db: Database, flow: str, commit: Commit, *, no_window: str) -> None:
    """How far the flow has come. Neither frontier nor what is closed goes back. `no_window`: stands in the ledger for
    the time of a window where there is none."""
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
        "INSERT INTO _begins VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [
            (flow, topic, partition, place.offset, text(place.progress_us))
            for topic, places in commit.begins.items()
            for partition, place in places.items()
        ],
    )
    bury = "INSERT INTO _buried VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
    db.executemany(bury, [(flow, *each) for each in commit.buried])
    _put_marks(db, flow, commit.read_marks)
    counted = [(flow, *_ledger_values(row, no_window)) for row in commit.ledger]
    db.executemany(_LEDGER, counted)
    fewer = [values[:3] for values, row in zip(counted, commit.ledger, strict=True) if row.on_time <= 0]
    db.executemany(_EMPTY, fewer)  # of windows all of whose rows have gone
    db.execute(
        f"UPDATE _flows SET sequence = sequence + 1, {_LATER}, committed_at = ?5 WHERE flow = ?1",
        (flow, *map(text, (commit.frontier_us, commit.closed_us, commit.unchanged_us)), now()),
    )


MARK_OFFSETS = 100_000
"""Of so many offsets of a partition one mark is kept, and those that the flow has raised."""


def _put_marks(db: Database, flow: str, marks: Sequence[ReadMark]) -> None:
    same = (
        'DELETE FROM _marks WHERE flow = ? AND topic = ? AND partition = ? AND "offset" BETWEEN ? AND ? AND raised = 0'
    )
    begins = [mark.offset - mark.offset % MARK_OFFSETS for mark in marks]
    db.executemany(
        same,
        [(flow, at.topic, at.partition, begin, at.offset) for at, begin in zip(marks, begins, strict=True)],
    )
    put = "INSERT INTO _marks VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    rows = [(at.topic, at.partition, at.offset, text(at.progress_us), text(at.arrived_us)) for at in marks]
    db.executemany(put, [(flow, *row, int(at.raised)) for row, at in zip(rows, marks, strict=True)])


def read_marks(db: Database, flow: str) -> list[ReadMark]:
    select = 'SELECT topic, partition, "offset", progress, arrived, raised FROM _marks WHERE flow = ? '
    found = db.execute(f'{select}ORDER BY topic, partition, "offset"', (flow,))
    return [
        ReadMark(topic, partition, offset, us_of(progress), us_of(arrived), bool(raised))
        for topic, partition, offset, progress, arrived, raised in found
    ]


def settle(db: Database, spec: FlowSpec, relayed: int, written: Position) -> None:
    """What has arrived leaves the outbox. If that is all of it, the flow has come a step further: what it has read is
    where it goes, below `written`. Before a commit changes what it has read."""
    flow = spec.name
    db.execute("UPDATE _flows SET relayed = ?1 WHERE flow = ?2 AND relayed < ?1", (relayed, flow))
    db.execute("DELETE FROM _outbox WHERE flow = ? AND sequence <= ?", (flow, relayed))
    waits = db.execute("SELECT EXISTS (SELECT 1 FROM _outbox WHERE flow = ?)", (flow,)).fetchone()[0]
    if spec.writes and not waits and not is_version(flow):
        _step(db, spec, read_of(db, flow), written)


def _step(db: Database, spec: FlowSpec, read: Position, written: Position) -> None:
    flow = spec.name
    last = "SELECT sequence, written FROM _steps WHERE flow = ? ORDER BY sequence DESC LIMIT 1"
    known, before = db.execute(last, (flow,)).fetchone() or (None, "")
    after = str(latest(Position.parse(before), written))
    if known is not None and after == before:
        db.execute("UPDATE _steps SET read = ? WHERE flow = ? AND sequence = ?", (str(read), flow, known))
        return
    (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (flow,)).fetchone()
    put = "INSERT INTO _steps VALUES (?, ?, ?, ?) ON CONFLICT (flow, sequence) DO UPDATE SET "
    db.execute(f"{put}read = excluded.read, written = excluded.written", (flow, sequence, str(read), after))
    if db.execute("SELECT count(*) FROM _steps WHERE flow = ?", (flow,)).fetchone()[0] > STEPS_MAX:
        _thin(db, spec)


def _thin(db: Database, spec: FlowSpec) -> None:
    steps = "SELECT sequence, written FROM _steps WHERE flow = ? ORDER BY sequence"
    found = db.execute(steps, (spec.name,)).fetchall()
    gone = thinned([sequence for sequence, _ in found], _held(db, spec, found))
    db.executemany("DELETE FROM _steps WHERE flow = ? AND sequence = ?", [(spec.name, each) for each in gone])


def _held(db: Database, spec: FlowSpec, steps: Sequence[tuple[int, str]]) -> set[int]:
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


def read_of(db: Database, flow: str) -> Position:
    """How far the flow has read the topics it reads."""
    nexts: dict[tuple[str, str], dict[int, int]] = {}
    rows = "SELECT topic, topic_id, partition, offset_next FROM _positions WHERE flow = ?"
    for topic, topic_id, partition, offset in db.execute(rows, (flow,)):
        nexts.setdefault((topic, topic_id), {})[partition] = offset
    return functools.reduce(Position.__or__, (Position.of(*topic, at) for topic, at in nexts.items()), Position())


def reader_of(db: Database, spec: FlowSpec) -> Reader:
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
    db: Database, flow: str, sequence: int, outgoing: Sequence[Outgoing], bodies: Sequence[bytes | None] = ()
) -> None:
    """`bodies`: of the first of them, what the outbox has in place of the rows; None: the rows themselves."""
    there = "SELECT coalesce(max(number) + 1, 0) FROM _outbox WHERE flow = ? AND sequence = ?"
    (first,) = db.execute(there, (flow, sequence)).fetchone()
    for (number, each), given in zip_longest(enumerate(outgoing, start=first), bodies):
        found = db.execute("SELECT records FROM _carried WHERE flow = ? AND target = ?", (flow, each.target))
        (base,) = found.fetchone() or (0,)
        body = _stream(each.rows) if given is None else given
        _put_body(db, (flow, sequence, number, each.target, base, body))
        carried = (flow, each.target, base + each.rows.num_rows)
        put = "INSERT INTO _carried VALUES (?, ?, ?) ON CONFLICT (flow, target) DO UPDATE SET "
        db.execute(f"{put}records = excluded.records", carried)


def put_stream(db: Database, flow: str, sequence: int, number: int, target: str, base: int, rows: pa.Table) -> None:
    """Rows that are in the outbox of another store."""
    _put_body(db, (flow, sequence, number, target, base, _stream(rows)))


def _put_body(db: Database, row: tuple[str, int, int, str, int, bytes]) -> None:
    db.execute("INSERT INTO _outbox VALUES (?, ?, ?, ?, ?, ?)", row)


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    packed = pa.ipc.IpcWriteOptions(compression="zstd" if rows.num_rows >= MANY else None)
    with pa.ipc.new_stream(sink, rows.schema, options=packed) as writer:
        writer.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def not_kept(db: Database, spec: FlowSpec) -> int | None:
    """Rows of windows that end by then have gone: they are older than the flow's view keeps them, and final, and no
    record changes them."""
    if spec.view is None or spec.view.window_us is None:
        return None
    stored = db.execute("SELECT frontier, closed, unchanged FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
    return dropped_us(spec.view.keep_us, *map(us_of, stored))
