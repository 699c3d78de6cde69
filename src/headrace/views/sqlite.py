"""The view store in a SQLite file beside the log. Owns `views.db`: the flows' own rows, their views' tables, and the
order of a commit. Does not know Spark, topics or what a transform is.

One commit is one transaction, synced before it counts. It is refused when the flow's epoch is not the committer's
(somebody took over) or its sequence is another (the commit was made already, or one is missing): so nothing is applied
twice and nothing is skipped, whoever restarts whom. Write transactions of all processes take turns under a lock file,
and so do checkpoints; readers never wait and see whole commits only."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import socket
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace as replace_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from headrace.errors import (
    Closed,
    CommitConflict,
    DiskFull,
    DoesNotFit,
    FlowChanged,
    FlowFenced,
    ForkedProcess,
    StorageError,
    UnknownView,
    UnsupportedFormat,
    ViewsDamaged,
    ViewTaken,
)
from headrace.failpoints import reach
from headrace.log.embedded import disk
from headrace.log.embedded.turnstile import Turnstile
from headrace.views import exact, feeding, joining, merging, retracting, sliding, versions, watchers
from headrace.views.contract import (
    Commit,
    Emit,
    Filtered,
    FlowSpec,
    FlowState,
    LedgerRow,
    Outgoing,
    Place,
    Waiting,
    feed_topic,
)
from headrace.views.tables import tables_of
from headrace.views.values import order_decimals, text_of_us
from headrace.views.values import us_of as us_of

FILE = "views.db"
FORMAT = "1"
CHECKPOINT_BYTES = 64 << 20
CACHE_KIB = 128 << 10

BEGINS = (
    "CREATE TABLE IF NOT EXISTS _begins (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "offset_first INTEGER NOT NULL, progress UTC_TIMESTAMP, PRIMARY KEY (flow, topic, partition)) WITHOUT ROWID"
)
"""Where flows began: apart from where they are, which is written with every commit."""
BURIED = (
    "CREATE TABLE IF NOT EXISTS _buried (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "offset INTEGER NOT NULL, PRIMARY KEY (flow, topic, partition, offset)) WITHOUT ROWID"
)
"""Records that flows gave up."""
FILTERS = (
    "CREATE TABLE IF NOT EXISTS _filters (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "stretch INTEGER NOT NULL, page INTEGER NOT NULL, bits BLOB NOT NULL, "
    "PRIMARY KEY (flow, topic, partition, stretch, page))"
)
"""What flows have seen. Page -1, of no stretch, is how far the partition has come, a number."""

SCHEMA = (
    "CREATE TABLE _meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE _flows (flow TEXT PRIMARY KEY, app TEXT NOT NULL, spec TEXT NOT NULL, epoch INTEGER NOT NULL, "
    "sequence INTEGER NOT NULL, frontier UTC_TIMESTAMP, closed UTC_TIMESTAMP, reachable UTC_TIMESTAMP, "
    "relayed INTEGER NOT NULL, pid INTEGER, host TEXT, started_at UTC_TIMESTAMP, committed_at UTC_TIMESTAMP) "
    "WITHOUT ROWID",
    "CREATE TABLE _positions (flow TEXT NOT NULL, topic TEXT NOT NULL, topic_id TEXT NOT NULL, "
    "partition INTEGER NOT NULL, offset_next INTEGER NOT NULL, progress UTC_TIMESTAMP, "
    "PRIMARY KEY (flow, topic, partition)) WITHOUT ROWID",
    BEGINS,
    # '' as window_start: what belongs to no window.
    "CREATE TABLE _ledger (flow TEXT NOT NULL, window_start UTC_TIMESTAMP NOT NULL, window_end UTC_TIMESTAMP, "
    "on_time INTEGER NOT NULL, corrected INTEGER NOT NULL, dropped INTEGER NOT NULL, untimed INTEGER NOT NULL, "
    "PRIMARY KEY (flow, window_start)) WITHOUT ROWID",
    # Rows on their way out, as an Arrow stream; base counts the rows that went to the target before.
    "CREATE TABLE _outbox (flow TEXT NOT NULL, sequence INTEGER NOT NULL, number INTEGER NOT NULL, "
    "target TEXT NOT NULL, base INTEGER NOT NULL, rows BLOB NOT NULL, PRIMARY KEY (flow, sequence, number)) "
    "WITHOUT ROWID",
    "CREATE TABLE _carried (flow TEXT NOT NULL, target TEXT NOT NULL, records INTEGER NOT NULL, "
    "PRIMARY KEY (flow, target)) WITHOUT ROWID",
    *watchers.SCHEMA,
)

_LEDGER = (
    "INSERT INTO _ledger VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (flow, window_start) DO UPDATE SET "
    "on_time = on_time + excluded.on_time, corrected = corrected + excluded.corrected, "
    "dropped = dropped + excluded.dropped, untimed = untimed + excluded.untimed"
)
_EMPTY = (
    "DELETE FROM _ledger WHERE flow = ? AND window_start = ? AND on_time = 0 AND corrected = 0 AND dropped = 0 "
    "AND untimed = 0"
)
_POSITION = (
    "INSERT INTO _positions VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (flow, topic, partition) DO UPDATE SET "
    "topic_id = excluded.topic_id, offset_next = excluded.offset_next, progress = excluded.progress"
)


class _Gate:
    """One per file and process: threads exclude each other by a lock, processes by the turnstile. POSIX locks end when
    any descriptor of their file is closed: so this one never is."""

    def __init__(self, home: Path) -> None:
        self.lock = threading.RLock()
        self.turnstile = Turnstile(home / "views.lock")


_gates: dict[tuple[Path, int], _Gate] = {}
_gates_lock = threading.Lock()
_stores: weakref.WeakSet[SqliteViews] = weakref.WeakSet()
_inherited: set[Path] = set()
"""Files that were open in the parent when this process was forked."""


def _forget_in_child() -> None:
    """A child must neither use nor close what it inherited: closing a connection could reset the parent's files."""
    global _gates_lock
    _gates_lock = threading.Lock()
    for store in _stores:
        if not store._closed:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(store._db))
            _inherited.add(store.path)


def refuse_inherited(path: Path) -> None:
    """SQLite would take the locks its copied memory speaks of for held, and they are not: once the parent closes the
    file, what the child commits is lost."""
    if path in _inherited:
        raise ForkedProcess(what=f"the views {path}")


os.register_at_fork(after_in_child=_forget_in_child)


class SqliteViews:
    """`SqliteViews(home)`: the store of the views in that directory; made if there is none."""

    def __init__(self, home: Path) -> None:
        disk.make_directory(home)
        disk.refuse_remote(home)
        self.path = home.resolve() / FILE
        refuse_inherited(self.path)
        self._pid = os.getpid()
        self._closed = False
        self._problems: list[DoesNotFit] = []
        with _gates_lock:
            if (self.path, self._pid) not in _gates:
                _gates[self.path, self._pid] = _Gate(home)
            self._gate = _gates[self.path, self._pid]
        with self._gate.lock, self._typed(), self._gate.turnstile.writing():
            if not self.path.exists():
                os.close(disk.create(self.path))
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=60)
            try:
                self._prepare(self._db)
            except BaseException:
                self._db.close()
                raise
        _stores.add(self)
        disk.sync_directory(home)

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA temp_store=MEMORY")
        db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        exact.register(db, self._problems)
        order_decimals(db)
        db.execute("BEGIN IMMEDIATE")
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if not names:
            for statement in SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO _meta VALUES ('format', ?)", (FORMAT,))
        elif "_meta" not in names:
            raise UnsupportedFormat(path=str(self.path), why="it is a database, but not one of headrace's views")
        for statement in (BEGINS, BURIED, FILTERS):  # a file may be from before there was such a table
            db.execute(statement)
        db.execute("COMMIT")
        (found,) = db.execute("SELECT value FROM _meta WHERE name = 'format'").fetchone() or ("none",)
        if found != FORMAT:
            why = f"written in format {found}, this headrace reads {FORMAT}: upgrade headrace"
            raise UnsupportedFormat(path=str(self.path), why=why)

    # -- flows -------------------------------------------------------------------------------------

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState:
        """Takes the flow: makes its tables if there are none, and gives it a new epoch. A flow that is not what its
        state was made by is FlowChanged; with `replace` its state is dropped, to be made again from the log."""
        text = json.dumps(spec.as_json())
        tables = tables_of(spec.view) if spec.view else None
        if tables is not None:
            tables.check()
        with self._writing() as db:
            alike = "SELECT flow, app FROM _flows WHERE lower(flow) = lower(?)"  # SQLite would mix them up
            for other, app in db.execute(alike, (spec.name,)):
                if (other, app) != (spec.name, spec.app):
                    raise ViewTaken(view=other, app=app)
            known = spec_of(db, spec.name)
            if known is not None and not replace and (changed := known.changes(spec)):
                raise FlowChanged(flow=spec.name, changes=changed)
            fed = () if known is None else known.feeds  # who has read changes goes on reading them, seen here or not
            taken_back = self._told(db, known, fed, "-") if known is not None and replace else []
            spec = replace_spec(spec, feeds=(*fed, *(emit for emit in spec.feeds if emit not in fed)))
            text = json.dumps(spec.as_json())
            if known is not None and replace:
                self._drop(db, known)
            if known is None or replace:
                insert = "INSERT INTO _flows (flow, app, spec, epoch, sequence, relayed) VALUES (?, ?, ?, 0, 0, -1)"
                db.execute(insert, (spec.name, spec.app, text))
                db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"born/{spec.name}", uuid.uuid4().hex[:12]))
            statements = () if tables is None else tables.create() if known is None or replace else tables.show()
            for statement in statements:
                db.execute(statement)
            if known is not None and not replace:
                self._feed_what_is(db, known, [emit for emit in spec.feeds if emit not in fed])
            self._put_out(db, spec.name, 0, taken_back)  # with the first commit, which comes before anything is sent
            db.execute(
                "UPDATE _flows SET epoch = ?, spec = ?, pid = ?, host = ?, started_at = ? WHERE flow = ?",
                (_next_epoch(db), text, os.getpid(), socket.gethostname(), _now(), spec.name),
            )
            return state_of(db, spec.name)  # inside: a moment later it may be somebody else's

    def _feed_what_is(self, db: sqlite3.Connection, spec: FlowSpec, emits: Sequence[Emit]) -> None:
        """For those who read a view's changes from now on: what it has, as a commit of its own."""
        if emits:
            (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
            self._put_out(db, spec.name, sequence, self._told(db, spec, emits, "+"))
            db.execute("UPDATE _flows SET sequence = sequence + 1 WHERE flow = ?", (spec.name,))

    def _told(
        self, db: sqlite3.Connection, spec: FlowSpec, emits: Sequence[Emit], op: str, after_us: int | None = None
    ) -> list[Outgoing]:
        """All that the flow has, for who reads its changes: of windows that end later than `after_us`."""
        if spec.view is None:
            return []
        view, _, _ = spec.name.partition("/")
        (closed,) = db.execute("SELECT closed FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
        tables = tables_of(spec.view)
        return [
            each for emit in emits for each in feeding.snapshot(db, tables, view, emit, op, us_of(closed), after_us)
        ]

    def drop(self, flow: str) -> list[str]:
        """Forgets a flow with all its rows, and the one that takes out duplicates before it; the log has what they were
        made from. Returns the topics of headrace's own that are nobody's then."""
        with self._writing() as db:
            before = [name for name in (f"{flow}.dedup",) if spec_of(db, name) is not None]
            dropped = [self._known(db, name) for name in (flow, *before)]
            for name in (flow, *before, *versions.found_beside(db, flow)):
                self._drop(db, self._known(db, name))
        fed = [feed_topic(spec.name, emit) for spec in dropped for emit in spec.feeds]
        return [*fed, *(spec.target for spec in dropped if spec.target and spec.target.startswith("__records."))]

    def _drop(self, db: sqlite3.Connection, spec: FlowSpec) -> None:
        for statement in tables_of(spec.view).drop() if spec.view else ():
            db.execute(statement)
        for table in versions.FLOW_TABLES:
            db.execute(f"DELETE FROM {table} WHERE flow = ?", (spec.name,))
        facts = [f"{fact}/{spec.name}" for fact in ("born", "program", "fenced", "line")]
        db.execute("DELETE FROM _meta WHERE name IN (?, ?, ?, ?)", facts)
        watchers.forget(db, spec.name)

    def _known(self, db: sqlite3.Connection, flow: str) -> FlowSpec:
        spec = spec_of(db, flow)
        if spec is None:
            raise UnknownView(view=flow, known=_names(db))
        return spec

    def _specs(self, db: sqlite3.Connection) -> list[FlowSpec]:
        return [self._known(db, name) for (name,) in db.execute("SELECT flow FROM _flows").fetchall()]

    # -- versions ----------------------------------------------------------------------------------

    def begin_beside(self, spec: FlowSpec, program: str) -> None:
        """Room for `spec`, a version beside its view: one that was made before stays, to be gone on with, if it is of
        the same flow and `program`; anything else that is beside the view is dropped."""
        view, _, _ = spec.name.partition("/")
        with self._writing() as db:
            for name in versions.found_beside(db, view):
                known = self._known(db, name)
                made_so = name == spec.name and versions.program(db, name) == program and not known.changes(spec)
                if not made_so:
                    self._drop(db, known)
            db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"program/{spec.name}", program))

    def fence(self, flow: str) -> FlowState:
        """Takes the flow from whoever runs it, for another version to take its place. The view is served as it is."""
        with self._writing() as db:
            self._known(db, flow)
            epoch = _next_epoch(db)
            db.execute("UPDATE _flows SET epoch = ? WHERE flow = ?", (epoch, flow))
            db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"fenced/{flow}", str(epoch)))
            return state_of(db, flow)

    def switch(self, served: FlowState, beside: FlowState) -> FlowState:
        """`beside`, a version of the view, takes its place with all it has, and `served` is kept in its stead: what was
        `next` makes the other `previous`, and the other way round. FlowFenced, and nothing is changed, if somebody has
        begun, or changed, one of them since."""
        view, _, which = beside.name.partition("/")
        goes = versions.beside(view, "previous" if which == "next" else "next")
        with self._writing() as db:
            for state in (served, beside):
                self._check(db, state, state.sequence)
            comes = self._known(db, beside.name)
            if (known := spec_of(db, goes)) is not None:
                self._drop(db, known)
            line, was = state_of(db, view).line, self._known(db, view)
            if versions.exchange(db, was, comes, goes):
                db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"line/{view}", line))
            self._feed_switch(db, was, goes)
            for name in (view, goes):
                db.execute("UPDATE _flows SET epoch = ?, pid = NULL WHERE flow = ?", (_next_epoch(db), name))
            state = state_of(db, view)
            reach("switch.applied")
        reach("switch.committed")
        return state

    def _feed_switch(self, db: sqlite3.Connection, was: FlowSpec, goes: str) -> None:
        """Flows over the view are told that all of the one version went, and all of the other came."""
        if not was.feeds:
            return
        view = was.name
        old, new = self._known(db, goes), self._known(db, view)
        (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (view,)).fetchone()
        gone = [us for us in (self._not_kept(db, old), self._not_kept(db, new)) if us is not None]
        after_us = max(gone, default=None)  # what one of them has no more stays as it is, behind it
        self._put_out(db, view, sequence, self._told(db, old, was.feeds, "-", after_us))
        self._put_out(db, view, sequence, self._told(db, new, was.feeds, "+", after_us))
        for spec in replace_spec(new, feeds=was.feeds), replace_spec(old, feeds=()):
            db.execute("UPDATE _flows SET spec = ? WHERE flow = ?", (json.dumps(spec.as_json()), spec.name))
        db.execute("UPDATE _flows SET sequence = sequence + 1 WHERE flow = ?", (view,))

    def _not_kept(self, db: sqlite3.Connection, spec: FlowSpec) -> int | None:
        """Rows of windows that end by then are older than the flow's view keeps them."""
        keep_us = None if spec.view is None else spec.view.keep_us
        (frontier,) = db.execute("SELECT frontier FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
        reached = us_of(frontier)
        return None if keep_us is None or reached is None else reached - keep_us

    def discard(self, view: str) -> list[str]:
        """Drops what is beside the view; its names."""
        with self._writing() as db:
            self._known(db, view)
            names = versions.found_beside(db, view)
            for name in names:
                self._drop(db, self._known(db, name))
        return names

    def beside(self, view: str) -> str | None:
        """The name of the version beside the view, if there is one."""
        with self._reading() as db:
            self._known(db, view)
            return next(iter(versions.found_beside(db, view)), None)

    def refuse_fenced(self, flow: FlowState) -> None:
        """FlowFenced if the flow is not the caller's any more."""
        with self._reading() as db:
            self._check(db, flow, None)

    def state(self, flow: str) -> FlowState:
        """The flow as its last commit left it."""
        with self._reading() as db:
            return state_of(db, flow)

    def outbox(self, flow: str) -> list[Waiting]:
        """What has to go out yet, in order."""
        with self._reading() as db:
            found = db.execute(
                "SELECT sequence, target, base, rows FROM _outbox WHERE flow = ?1 AND sequence > "
                "(SELECT relayed FROM _flows WHERE flow = ?1) ORDER BY sequence, number",
                (flow,),
            ).fetchall()
        return [Waiting(row[0], row[1], row[2], pa.ipc.open_stream(row[3]).read_all()) for row in found]

    def filters(self, flow: str) -> list[Filtered]:
        """What the flow has seen."""
        with self._reading() as db:
            sql = "SELECT topic, partition, stretch, page, bits FROM _filters WHERE flow = ? ORDER BY 1, 2, 4"
            rows = db.execute(sql, (flow,)).fetchall()
        out: list[Filtered] = []
        for place, some in itertools.groupby(rows, key=lambda row: (row[0], row[1])):
            (*_, reached), *pages = some
            out.append(Filtered(*place, int.from_bytes(reached, "big", signed=True), 0, [row[2:] for row in pages]))
        return out

    def goes_back(self, topics: Sequence[str]) -> bool:
        """Whether some flow writes one of the topics so that progress can go back in it: results, whose windows come in
        any order, or records of several partitions. Headrace's own topics of records keep those apart."""
        with self._reading() as db:
            for spec in self._specs(db):
                if spec.target is None or spec.target not in topics:
                    continue
                (read,) = db.execute("SELECT count(*) FROM _positions WHERE flow = ?", (spec.name,)).fetchone()
                if spec.view is not None or (read > 1 and not spec.target.startswith("__")):
                    return True
        return False

    def last_window_end(self, flow: str) -> int | None:
        """The end of the flow's last window that has a row."""
        with self._reading() as db:
            view = self._known(db, flow).view
            if view is None or view.window_us is None:
                return None
            by, more_us = tables_of(view).ending
            (found,) = db.execute(f"SELECT max({by}) FROM {tables_of(view).state}").fetchone()
        last = us_of(found)
        return None if last is None else last + more_us

    def closes(self, flow: str, closed_us: int) -> bool:
        """Whether a window that has a row, and is open, ends by then: of the flow, or of one that reads its changes."""
        with self._reading() as db:
            return any(self._closes(db, spec, closed_us) for spec in self._with_readers(db, self._known(db, flow)))

    def _closes(self, db: sqlite3.Connection, spec: FlowSpec, closed_us: int) -> bool:
        view = spec.view
        if view is None or view.window_us is None:
            return False
        (closed,) = db.execute("SELECT closed FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
        where, values = merging.ending(tables_of(view), closed, closed_us)
        found = db.execute(f"SELECT 1 FROM {tables_of(view).state} WHERE {where} LIMIT 1", values).fetchone()
        return found is not None

    def _with_readers(self, db: sqlite3.Connection, spec: FlowSpec) -> list[FlowSpec]:
        """The flow, and those that read its changes, and theirs."""
        found = [spec]
        if spec.feeds:
            all_of_them = self._specs(db)
            for each in found:  # which grows
                topics = {feed_topic(each.name, emit) for emit in each.feeds}
                found += [other for other in all_of_them if topics & {*other.sources} and other not in found]
        return found

    # -- committing --------------------------------------------------------------------------------

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        """Makes the change, all of it or nothing. Fenced, or in conflict, nothing is changed."""
        with self._writing() as db:
            reach("view.begun")
            self._check(db, flow, commit.sequence)
            closed = _text(commit.closed_us)
            watched = watchers.record(db, flow.name, commit.closed_us)
            outgoing = [*commit.outgoing, *self._fold(db, flow.name, commit, closed)]
            if watched is not None:
                watched.merged()
            reach("view.merged")
            self._note(db, flow.name, commit, closed)
            self._put_out(db, flow.name, commit.sequence, outgoing)
            if watched is not None:
                watched.keep(commit.sequence + 1)
            state = state_of(db, flow.name)  # inside: a moment later it may be somebody else's
            reach("view.applied")
        reach("view.committed")
        self._checkpoint_if_due()
        return state

    def _check(self, db: sqlite3.Connection, flow: FlowState, sequence: int | None) -> None:
        found = db.execute("SELECT epoch, sequence FROM _flows WHERE flow = ?", (flow.name,)).fetchone()
        if found is None or found[0] != flow.epoch:
            fenced = db.execute("SELECT value FROM _meta WHERE name = ?", (f"fenced/{flow.name}",)).fetchone()
            why = "another version of the view takes its place" if fenced and int(fenced[0]) > flow.epoch else ""
            raise FlowFenced(flow=flow.name, epoch=flow.epoch, current_epoch=found[0] if found else 0, why=why)
        if sequence is not None and found[1] != sequence:
            raise CommitConflict(flow=flow.name, sequence=sequence, current=found[1])

    def _fold(self, db: sqlite3.Connection, flow: str, commit: Commit, closed: str | None) -> list[Outgoing]:
        """The rows into the view's tables; what changed, if it goes anywhere."""
        spec = self._known(db, flow)
        if spec.view is None:
            return []
        tables = tables_of(spec.view)
        was_closed, was_reachable = db.execute(
            "SELECT closed, reachable FROM _flows WHERE flow = ?", (flow,)
        ).fetchone()
        partials = None if commit.partials is None else merging.in_order(spec.view, commit.partials)
        if partials is not None and spec.view.retracts and (gone := self._not_kept(db, spec)) is not None:
            partials = merging.ending_after(partials, gone)  # such rows have gone, and would begin anew
        if partials is not None and partials.num_rows and spec.view.windows == "sliding":
            partials = sliding.spread(db, tables, partials, commit.aggregates, commit.reachable_us)
        joins = None
        if partials is not None and partials.num_rows and spec.view.windows == "session":
            joins = joining.joining(db, tables, partials)
            partials = joins.partials
        became = None if joins is None else joins.became
        changes = None
        if spec.emit is not None:
            changes = merging.Changes(db, tables, spec.emit, partials, was_closed, became)
        fed = feeding.fed(tables) if spec.feeds else None
        feeds = {emit: merging.Changes(db, tables, emit, partials, was_closed, became, fed) for emit in spec.feeds}
        if joins is not None:
            partials = joins.apply(db, tables)
        if partials is not None and partials.num_rows:
            merging.merge(db, tables, partials, commit.aggregates)
            if spec.view.retracts:
                retracting.retract(db, tables, partials, commit.aggregates)
            if spec.view.shaped is not None:
                assert commit.shape is not None, "a shaped view's commits say how"
                merging.reshape(db, tables, partials, commit.shape)
        if not spec.view.retracts:  # what is above may be made anew, and take back anything
            merging.forget(db, tables, was_reachable, commit.reachable_us)
        moved = commit.closed_us if closed is not None and closed > (was_closed or "") else None
        rows = None if changes is None else changes.rows(moved)
        out = []
        for emit, each in feeds.items():
            marks = None if moved is None else (moved, commit.reachable_us)
            if spec.view.records and commit.frontier_us is not None:  # records are judged again, by how far those are
                marks = commit.frontier_us, commit.reachable_us
            if (told := feeding.marked(spec.view, each.rows(moved), marks)).num_rows:
                out.append(Outgoing(feed_topic(flow, emit), told))
        unchanging = commit.closed_us if spec.view.retracts else commit.reachable_us
        if commit.closed_us is not None and unchanging is not None:
            merging.expire(db, tables, min(commit.closed_us, unchanging), commit.frontier_us)
        if rows is None:
            return out
        if spec.view.window_us:
            rows = rows.append_column("_progress", rows["window_start"])  # a change of a view is never late
        if commit.shape is not None and rows.num_rows:
            rows = commit.shape(rows)
        assert spec.target is not None, "what is emitted goes somewhere"
        return [*out, Outgoing(spec.target, rows)] if rows.num_rows else out

    def _note(self, db: sqlite3.Connection, flow: str, commit: Commit, closed: str | None) -> None:
        """How far the flow has come. Neither frontier nor what is closed goes back."""
        db.executemany(
            _POSITION,
            [
                (flow, topic, commit.topic_ids[topic], partition, place.offset, _text(place.progress_us))
                for topic, places in commit.places.items()
                for partition, place in places.items()
            ],
        )
        db.executemany(
            "INSERT OR IGNORE INTO _begins VALUES (?, ?, ?, ?, ?)",
            [
                (flow, topic, partition, place.offset, _text(place.progress_us))
                for topic, places in commit.begins.items()
                for partition, place in places.items()
            ],
        )
        db.executemany("INSERT OR IGNORE INTO _buried VALUES (?, ?, ?, ?)", [(flow, *each) for each in commit.buried])
        for each in commit.filters:
            place = (flow, each.topic, each.partition)
            gone = "DELETE FROM _filters WHERE flow = ? AND topic = ? AND partition = ? AND stretch < ? AND page >= 0"
            db.execute(gone, (*place, each.lowest))
            kept = [(0, -1, each.reached_us.to_bytes(8, "big", signed=True)), *each.pages]
            db.executemany(
                "INSERT OR REPLACE INTO _filters VALUES (?, ?, ?, ?, ?, ?)", [(*place, *row) for row in kept]
            )
        db.executemany(_LEDGER, [(flow, *_ledger_values(row)) for row in commit.ledger])
        fewer = [(flow, _ledger_values(row)[0]) for row in commit.ledger if row.on_time <= 0]
        db.executemany(_EMPTY, fewer)  # of windows all of whose rows have gone
        later = ", ".join(
            f"{name} = CASE WHEN {name} IS NULL OR ?{at} > {name} THEN ?{at} ELSE {name} END"
            for at, name in ((2, "frontier"), (3, "closed"), (4, "reachable"))
        )
        db.execute(
            f"UPDATE _flows SET sequence = sequence + 1, {later}, relayed = max(relayed, ?5), committed_at = ?6 "
            f"WHERE flow = ?1",
            (flow, _text(commit.frontier_us), closed, _text(commit.reachable_us), commit.relayed, _now()),
        )
        db.execute("DELETE FROM _outbox WHERE flow = ? AND sequence <= ?", (flow, commit.relayed))

    def _put_out(self, db: sqlite3.Connection, flow: str, sequence: int, outgoing: Sequence[Outgoing]) -> None:
        there = "SELECT coalesce(max(number) + 1, 0) FROM _outbox WHERE flow = ? AND sequence = ?"
        (first,) = db.execute(there, (flow, sequence)).fetchone()
        for number, each in enumerate(outgoing, start=first):
            found = db.execute("SELECT records FROM _carried WHERE flow = ? AND target = ?", (flow, each.target))
            (base,) = found.fetchone() or (0,)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, each.rows.schema) as writer:
                writer.write_table(each.rows)
            body = sink.getvalue().to_pybytes()
            db.execute(
                "INSERT INTO _outbox VALUES (?, ?, ?, ?, ?, ?)", (flow, sequence, number, each.target, base, body)
            )
            carried = (flow, each.target, base + each.rows.num_rows)
            db.execute("INSERT OR REPLACE INTO _carried VALUES (?, ?, ?)", carried)

    # -- the file ----------------------------------------------------------------------------------

    def transaction(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A write transaction, in turn, for what else belongs into this file: see `watching`."""
        return self._writing()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """What is read is of one commit."""
        self._usable()
        with self._gate.lock, self._typed():
            self._usable()
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._usable()
        with self._gate.lock, self._typed(), self._gate.turnstile.writing():
            self._usable()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                if self._problems:
                    problem = self._problems[0]
                    self._problems.clear()
                    raise problem from error
                raise

    def _checkpoint_if_due(self) -> None:
        """Moves the write-ahead log into the file. A reader in the way is not waited for, and a disk in trouble is not
        the committer's: what it committed is safe where it is, and the next commit will try again."""
        try:
            if os.stat(f"{self.path}-wal").st_size < CHECKPOINT_BYTES:
                return
        except OSError:
            return
        with contextlib.suppress(sqlite3.Error), self._gate.lock, self._gate.turnstile.writing():
            self._usable()
            self._db.execute("PRAGMA busy_timeout=0")
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._db.execute("PRAGMA busy_timeout=60000")

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        except OSError as error:
            raise disk.translate(error, error.filename or self.path) from error

    def _usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(what=f"the views {self.path}")
        if self._closed:
            raise Closed(what=f"the views {self.path}")

    def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        with self._gate.lock:
            self._closed = True
            with contextlib.suppress(sqlite3.Error), self._gate.turnstile.writing():
                self._db.execute("PRAGMA busy_timeout=0")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# -- what is in the file -----------------------------------------------------------------------------


def translate(error: sqlite3.Error, path: Path) -> StorageError:
    """SQLite's errors, as ours. What is damaged can be made again from the log."""
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith("SQLITE_FULL"):
        return DiskFull(path=str(path), why="the disk is full")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return ViewsDamaged(path=str(path), why=f"SQLite says: {error}")
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        why = f"cannot be written or not be opened: look at the permissions of it and its directory ({error})"
        return StorageError(path=str(path), why=why)
    return StorageError(path=str(path), why=f"{error} ({code or type(error).__name__})")


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
        return None if found is None else FlowSpec.from_json(json.loads(found[0]))


def state_of(db: sqlite3.Connection, flow: str) -> FlowState:
    found = db.execute("SELECT epoch, sequence, frontier FROM _flows WHERE flow = ?", (flow,)).fetchone()
    if found is None:
        raise UnknownView(view=flow, known=_names(db))
    with whole(db):
        places: dict[str, dict[int, Place]] = {}
        ids: dict[str, str] = {}
        rows = "SELECT topic, topic_id, partition, offset_next, progress FROM _positions WHERE flow = ?"
        for topic, topic_id, partition, offset, progress in db.execute(rows, (flow,)):
            places.setdefault(topic, {})[partition] = Place(offset, us_of(progress))
            ids[topic] = topic_id
        begins: dict[str, dict[int, Place]] = {}
        rows = "SELECT topic, partition, offset_first, progress FROM _begins WHERE flow = ?"
        for topic, partition, offset, progress in db.execute(rows, (flow,)):
            begins.setdefault(topic, {})[partition] = Place(offset, us_of(progress))
        (born,) = db.execute("SELECT value FROM _meta WHERE name = ?", (f"born/{flow}",)).fetchone() or ("",)
        (line,) = db.execute("SELECT value FROM _meta WHERE name = ?", (f"line/{flow}",)).fetchone() or (born,)
        return FlowState(flow, found[0], found[1], places, ids, us_of(found[2]), begins, born, line)


def _names(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT flow FROM _flows") if not versions.is_version(name)]


def _next_epoch(db: sqlite3.Connection) -> int:
    """Epochs only grow, for all flows together: one that was dropped and made again is never mistaken for itself."""
    (found,) = db.execute("SELECT value FROM _meta WHERE name = 'epoch'").fetchone() or ("0",)
    db.execute("INSERT OR REPLACE INTO _meta VALUES ('epoch', ?)", (str(int(found) + 1),))
    return int(found) + 1


def _text(us: int | None) -> str | None:
    return None if us is None else text_of_us(us)


def _now() -> str:
    return text_of_us(time.time_ns() // 1000)


def _ledger_values(row: LedgerRow) -> tuple[Any, ...]:
    start = "" if row.window_start_us is None else text_of_us(row.window_start_us)
    return start, _text(row.window_end_us), row.on_time, row.corrected, row.dropped, row.untimed
