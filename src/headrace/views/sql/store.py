"""A view store in a SQL database, but for what the database does its own way. Owns what a commit is, who may make it,
and the versions of a view. Does not know Spark, topics or what a transform is.

One commit is one transaction, durable before it counts. It is refused when the flow's epoch is not the committer's
(somebody took over) or its sequence is another (the commit was made already, or one is missing): so nothing is applied
twice and nothing is skipped, whoever restarts whom."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
import uuid
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace as replace_spec
from typing import ClassVar, Generic

import pyarrow as pa

from headrace.errors import CommitConflict, FlowChanged, FlowFenced, InvalidName, UnknownView, ViewTaken
from headrace.failpoints import reach
from headrace.position import Position
from headrace.views import writers
from headrace.views.changes import snapshot
from headrace.views.contract import (
    DUE,
    RESULTS,
    WINDOW,
    Commit,
    Emit,
    FlowSpec,
    FlowState,
    Mark,
    Outgoing,
    ReadMark,
    Stager,
    State,
    ViewStore,
    Waiting,
    version_name,
    widened,
)
from headrace.views.keyed import Writes
from headrace.views.naming import check_names
from headrace.views.owner import Leases
from headrace.views.sql import versions, watchers
from headrace.views.sql.database import Db, us_of
from headrace.views.sql.flow_rows import (
    names,
    next_epoch,
    not_kept,
    note,
    now,
    parse_spec,
    put_out,
    read_marks,
    set_fact,
    settle,
    spec_of,
    state_of,
)

__all__ = ["SqlStore", "ending_of"]


def ending_of(spec: FlowSpec) -> tuple[str, int]:
    """By which column rows of the view are found that end at some time, and how long after it they end."""
    (time_column,) = (table.time for table in spec.tables if table.name == RESULTS)
    assert time_column is not None and spec.view is not None
    starts = spec.view.window_us is not None and time_column == WINDOW[0]
    return time_column, spec.view.window_us[0] if starts and spec.view.window_us else 0


class SqlStore(ViewStore, Generic[Db]):
    """What a database does its own way comes first."""

    NO_WINDOW: ClassVar[str]
    """Stands in the ledger for the time of a window where there is none."""
    FLOW_ROW: ClassVar[str] = ""
    """Behind the SELECT by which a write transaction reads a flow's epoch and sequence: how that row is locked."""

    @abstractmethod
    def _writing(self, flow: str | None = None) -> AbstractContextManager[Db]:
        """A write transaction, with the turn of its flow; without one, of the whole store."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Db]:
        """A transaction: what is read is of one commit."""

    @abstractmethod
    def _reading_beside(self) -> AbstractContextManager[Db]:
        """For reading while others of this process write. What two calls read may be of two commits."""

    @abstractmethod
    def _make(self, db: Db, spec: FlowSpec) -> None:
        """Makes the flow's tables."""

    @abstractmethod
    def _unmake(self, db: Db, spec: FlowSpec) -> None:
        """Drops the flow's tables, and what readers see of them."""

    @abstractmethod
    def _show(self, db: Db, spec: FlowSpec) -> None:
        """Makes what readers see of the flow's view, if that is not so already."""

    @abstractmethod
    def _rename(self, db: Db, spec: FlowSpec, name: str) -> None:
        """The flow, its tables and what readers see are called `name` from then on."""

    @abstractmethod
    def _differing(self, db: Db, served: FlowSpec, other: FlowSpec) -> Iterable[pa.RecordBatch]:
        """What a switch changes for readers, with `op`."""

    @abstractmethod
    def _state(self, db: Db, spec: FlowSpec) -> State:
        """As this transaction sees it."""

    @abstractmethod
    def _all_rows(self, db: Db, spec: FlowSpec) -> pa.Table:
        """All rows of the view as they are stored; of a shaped view, those that the transform made."""

    @abstractmethod
    def _write(self, db: Db, spec: FlowSpec, writes: Writes) -> Collection[str]:
        """Applies what a step writes. Returns the slots, of those that are sums of whole numbers, with a value that
        does not fit 64 bits."""

    def stager(self, flow: FlowState, table: str) -> Stager | None:  # noqa: ARG002
        return None

    @property
    def leases(self) -> Leases | None:
        return None

    def _is_news(self, flow: str) -> None:
        """Somebody watches the flow, of which a commit is being made."""

    # Large tables in the outbox may be files beside the database.

    def _staged(self, db: Db, flow: str, relayed: int | None = None) -> list[str]:  # noqa: ARG002
        """The flow's files that the outbox names; `relayed`: up to that sequence."""
        return []

    def _remove_staged(self, files: Sequence[str]) -> None:
        """The outbox names them no more."""

    def _sweep(self, db: Db, flow: str, kept: Sequence[str] = ()) -> None:
        """Removes what was written for the flow and is named nowhere."""

    def _rows_out(self, body: bytes) -> pa.Table:
        return pa.ipc.open_stream(body).read_all()

    # -- flows -------------------------------------------------------------------------------------

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState:
        """Takes the flow: makes its tables if there are none, and gives it a new epoch. A flow that is not what its
        state was made by is FlowChanged; with `replace` its state is dropped, to be made again from the log."""
        if spec.view is not None:
            check_names(spec.view, max(len(table.names) for table in spec.tables))
        with self._writing() as db:
            known = self._refused(db, spec, replace=replace)
            self._refuse_names_beside(db, spec)
            fed = () if known is None else known.feeds  # who has read changes goes on reading them, seen here or not
            taken_back = self._all_changes(db, known, fed, "-") if known is not None and replace else []
            spec = replace_spec(spec, feeds=(*fed, *(emit for emit in spec.feeds if emit not in fed)))
            if known is not None and known.view is not None and spec.view is not None and not replace:
                wide = [each.name for each in known.view.results if each.widened]
                spec = replace_spec(spec, view=widened(spec.view, wide))
            text = json.dumps(spec.as_json())
            gone = self._drop(db, known) if known is not None and replace else []
            if known is None or replace:
                insert = "INSERT INTO _flows (flow, app, spec, epoch, sequence, relayed) VALUES (?, ?, ?, 0, 0, -1)"
                db.execute(insert, (spec.name, spec.app, text))
                set_fact(db, f"born/{spec.name}", uuid.uuid4().hex[:12])
                self._make(db, spec)
            self._show(db, spec)
            if known is not None and not replace:
                self._feed_what_is(db, known, [emit for emit in spec.feeds if emit not in fed])
            put_out(db, spec.name, 0, taken_back)  # with the first commit, which comes before anything is sent
            db.execute("DELETE FROM _meta WHERE name = ?", (f"fenced/{spec.name}",))  # for a switch, not for this one
            db.execute(
                "UPDATE _flows SET epoch = ?, spec = ?, pid = ?, host = ?, started_at = ? WHERE flow = ?",
                (next_epoch(db), text, os.getpid(), socket.gethostname(), now(), spec.name),
            )
            state = state_of(db, spec.name)  # inside: a moment later it may be somebody else's
            self._sweep(db, spec.name, gone)
            reach("begin.taken")
        self._remove_staged(gone)
        return state

    def refuse_changed(self, spec: FlowSpec) -> None:
        """What `begin` would say of the flow, without beginning it."""
        with self._reading() as db:
            self._refused(db, spec, replace=False)

    def _refused(self, db: Db, spec: FlowSpec, *, replace: bool) -> FlowSpec | None:
        """The flow as it is known; ViewTaken or FlowChanged if it is another's, or another."""
        alike = "SELECT flow, app FROM _flows WHERE lower(flow) = lower(?)"  # SQLite would mix them up
        for other, app in db.execute(alike, (spec.name,)):
            if (other, app) != (spec.name, spec.app):
                raise ViewTaken(view=other, app=app)
        known = spec_of(db, spec.name)
        if known is not None and not replace and (changed := known.changes(spec)):
            raise FlowChanged(flow=spec.name, changes=changed, parent=spec.parent)
        return known

    def _feed_what_is(self, db: Db, spec: FlowSpec, emits: Sequence[Emit]) -> None:
        """For those who read a view's changes from now on: what it has, as a commit of its own."""
        if emits:
            (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
            put_out(db, spec.name, sequence, self._all_changes(db, spec, emits, "+"))
            last = "SELECT max(sequence) FROM _steps WHERE flow = ?1"
            db.execute(f"DELETE FROM _steps WHERE flow = ?1 AND sequence < ({last})", (spec.name,))
            # They know nothing of the new topic. The last one says how far other topics are written, and no more.
            db.execute("UPDATE _steps SET read = '' WHERE flow = ?", (spec.name,))
            db.execute("UPDATE _flows SET sequence = sequence + 1 WHERE flow = ?", (spec.name,))

    def _all_changes(
        self, db: Db, spec: FlowSpec, emits: Sequence[Emit], op: str, after_us: int | None = None
    ) -> list[Outgoing]:
        """All that the flow has, for who reads its changes: of windows that end later than `after_us`."""
        if spec.view is None or not emits:
            return []
        view, _, _ = spec.name.partition("/")
        (closed,) = db.execute("SELECT closed FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
        rows = self._all_rows(db, spec)
        return [each for emit in emits for each in snapshot(spec.view, view, rows, emit, op, us_of(closed), after_us)]

    def drop(self, flow: str) -> list[str]:
        """Forgets a flow with all its rows, and its helpers; the log has what they were made from. Returns the topics
        of headrace's own that are nobody's then."""
        with self._writing() as db, self._dropping(db):
            dropped = writers.with_helpers(self._known(db, flow), self._specs(db))
            names = (*(spec.name for spec in dropped), *versions.found_beside(db, flow))
            gone = [file for name in names for file in self._drop(db, self._known(db, name))]
            for name in names:  # now: a moment later somebody may write for a flow of that name
                self._sweep(db, name, gone)
        self._remove_staged(gone)
        return sorted(topic for spec in dropped for topic in spec.writes if topic.startswith("__"))

    def _dropping(self, db: Db) -> AbstractContextManager[None]:  # noqa: ARG002
        """Around what deletes much."""
        return nullcontext()

    def _drop(self, db: Db, spec: FlowSpec) -> list[str]:
        """Forgets the flow; the names of its files in the outbox, to be removed when that is committed."""
        gone = self._staged(db, spec.name)
        self._unmake(db, spec)
        for table in (*versions.FLOW_TABLES, "_steps"):
            db.execute(f"DELETE FROM {table} WHERE flow = ?", (spec.name,))
        facts = [f"{fact}/{spec.name}" for fact in ("born", "program", "fenced", "line")]
        db.execute("DELETE FROM _meta WHERE name IN (?, ?, ?, ?)", facts)
        watchers.forget(db, spec.name)
        return gone

    def _refuse_names_beside(self, db: Db, spec: FlowSpec) -> None:
        """InvalidName where a view has the name of what is read beside a view, in this program or in others."""
        flows = {each.name: each for each in self._specs(db)} | {spec.name: spec}
        taken = {name.lower(): each.name for each in flows.values() if each.view is not None for name in each.beside}
        for name in flows:
            of = taken.get(name.lower())
            if of is not None and spec.name in (name, of):
                why = f"what {of!r} keeps beside its rows is read under this name: give the view, or {of!r}, another"
                raise InvalidName("view", name, why)

    def _known(self, db: Db, flow: str) -> FlowSpec:
        spec = spec_of(db, flow)
        if spec is None:
            raise UnknownView(view=flow, known=names(db))
        return spec

    def _specs(self, db: Db) -> list[FlowSpec]:
        return [self._known(db, name) for (name,) in db.execute("SELECT flow FROM _flows").fetchall()]

    # -- versions ----------------------------------------------------------------------------------

    def begin_beside(self, spec: FlowSpec, program: str) -> None:
        """Room for `spec`, a version beside its view: one that was made before stays, to be gone on with, if it is of
        the same flow and `program`; anything else that is beside the view is dropped."""
        view, _, _ = spec.name.partition("/")
        gone: list[str] = []
        with self._writing() as db:
            for name in versions.found_beside(db, view):
                known = self._known(db, name)
                made_so = name == spec.name and versions.program(db, name) == program and not known.changes(spec)
                if not made_so:
                    gone += self._drop(db, known)
            set_fact(db, f"program/{spec.name}", program)
        self._remove_staged(gone)

    def fence(self, flow: str) -> FlowState:
        """Takes the flow from whoever runs it, for another version to take its place. The view is served as it is."""
        with self._writing() as db:
            self._known(db, flow)
            epoch = next_epoch(db)
            db.execute("UPDATE _flows SET epoch = ? WHERE flow = ?", (epoch, flow))
            set_fact(db, f"fenced/{flow}", str(epoch))
            return state_of(db, flow)

    def is_fenced(self, flow: str) -> bool:
        """Whether the flow was fenced, and neither switched nor let go since."""
        with self._reading() as db:
            same = "name = 'fenced/' || flow AND value = CAST(epoch AS TEXT)"
            sql = f"SELECT 1 FROM _flows JOIN _meta ON {same} WHERE flow = ?"
            return db.execute(sql, (flow,)).fetchone() is not None

    def unfence(self, fenced: FlowState) -> None:
        """Ends a fence without a switch: the flow's runner may begin again."""
        with self._writing() as db:
            sql = "UPDATE _flows SET epoch = ? WHERE flow = ? AND epoch = ?"
            db.execute(sql, (next_epoch(db), fenced.name, fenced.epoch))

    def program(self, flow: str) -> str | None:
        """What made the flow's version, as who made it wrote it; None of one that was never rebuilt."""
        with self._reading() as db:
            return versions.program(db, flow)

    def switch(self, served: FlowState, beside: FlowState) -> FlowState:
        """`beside`, a version of the view, takes its place with all it has, and `served` is kept in its stead: what was
        `next` makes the other `previous`, and the other way round. FlowFenced, and nothing is changed, if somebody has
        begun, or changed, one of them since."""
        view, _, which = beside.name.partition("/")
        goes = version_name(view, "previous" if which == "next" else "next")
        with self._writing() as db:
            for state in (served, beside):
                self._check(db, state, state.sequence)
            comes = self._known(db, beside.name)
            known = spec_of(db, goes)
            gone = [] if known is None else self._drop(db, known)
            line, was = state_of(db, view).line, self._known(db, view)

            def move() -> None:
                self._rename(db, was, goes)
                self._rename(db, comes, view)

            if versions.exchange(db, was, comes, lambda: self._differing(db, was, comes), move):
                set_fact(db, f"line/{view}", line)
            self._feed_switch(db, was, goes)
            for name in (view, goes):
                db.execute("UPDATE _flows SET epoch = ?, pid = NULL WHERE flow = ?", (next_epoch(db), name))
            state = state_of(db, view)
            reach("switch.applied")
        reach("switch.committed")
        self._remove_staged(gone)
        return state

    def _feed_switch(self, db: Db, was: FlowSpec, goes: str) -> None:
        """Flows over the view are told that all of the one version went, and all of the other came."""
        if not was.feeds:
            return
        view = was.name
        old, new = self._known(db, goes), self._known(db, view)
        (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (view,)).fetchone()
        gone = [us for us in (not_kept(db, old), not_kept(db, new)) if us is not None]
        after_us = max(gone, default=None)  # what one of them has no more stays as it is, behind it
        put_out(db, view, sequence, self._all_changes(db, old, was.feeds, "-", after_us))
        put_out(db, view, sequence, self._all_changes(db, new, was.feeds, "+", after_us))
        for spec in replace_spec(new, feeds=was.feeds), replace_spec(old, feeds=()):
            db.execute("UPDATE _flows SET spec = ? WHERE flow = ?", (json.dumps(spec.as_json()), spec.name))
        db.execute("UPDATE _flows SET sequence = sequence + 1 WHERE flow = ?", (view,))

    def discard(self, view: str) -> list[str]:
        """Drops what is beside the view; its names."""
        with self._writing() as db:
            self._known(db, view)
            names = versions.found_beside(db, view)
            gone = [file for name in names for file in self._drop(db, self._known(db, name))]
        self._remove_staged(gone)
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

    def read_marks(self, flow: str) -> list[ReadMark]:
        """How far the topics of the flow had come at some offsets, in their order, where only reading tells."""
        with self._reading() as db:
            return read_marks(db, flow)

    def feeds(self, flow: str) -> tuple[Emit, ...]:
        """Which of the flow's changes other flows read; none of one that was not run yet."""
        with self._reading() as db:
            known = spec_of(db, flow)
        return () if known is None else known.feeds

    def outbox(self, flow: str) -> list[Waiting]:
        """What has to go out yet, in order."""
        with self._reading() as db:
            found = db.execute(
                "SELECT sequence, target, base, rows FROM _outbox WHERE flow = ?1 AND sequence > "
                "(SELECT relayed FROM _flows WHERE flow = ?1) ORDER BY sequence, number",
                (flow,),
            ).fetchall()
        return [Waiting(row[0], row[1], row[2], self._rows_out(row[3])) for row in found]

    def carried(self, flow: str) -> dict[str, int]:
        with self._reading() as db:
            found = db.execute("SELECT target, records FROM _carried WHERE flow = ?", (flow,)).fetchall()
        return {str(target): int(records) for target, records in found}

    def note_relayed(self, flow: FlowState, relayed: int, written: Position) -> None:
        """As a commit does that says so: for a flow that has nothing to commit."""
        with self._writing(flow.name) as db:
            self._check(db, flow, flow.sequence, lock=True)
            gone = self._staged(db, flow.name, relayed)
            settle(db, self._known(db, flow.name), relayed, written)
        self._remove_staged(gone)

    def goes_back(self, topics: Sequence[str]) -> bool:
        count = "SELECT count(*) FROM _positions WHERE flow = ?"
        with self._reading() as db:
            return writers.goes_back(topics, self._specs(db), lambda flow: db.execute(count, (flow,)).fetchone()[0])

    def last_window_end(self, flow: str) -> int | None:
        """The end of the flow's last window that has a row."""
        with self._reading() as db:
            spec = self._known(db, flow)
            if spec.view is None or spec.view.ending is None:
                return None
            last_us = self._state(db, spec).last_us(RESULTS)
        return None if last_us is None else last_us + ending_of(spec)[1]

    def closes(self, flow: str, frontier_us: int) -> bool:
        with self._reading() as db:
            spec = self._known(db, flow)
            others = self._specs(db) if spec.feeds or spec.target else []
            return writers.closes(spec, frontier_us, others, functools.partial(self._has_open, db))

    def _has_open(self, db: Db, spec: FlowSpec, closed_us: int) -> bool:
        timers = [each.name for each in spec.tables if each.name.startswith(DUE)]
        if any(self._state(db, spec).due(name, closed_us - 1, 1).num_rows for name in timers):
            return True
        if spec.view is None or spec.view.ending is None:
            return False
        (closed,) = db.execute("SELECT closed FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
        more_us, after_us = ending_of(spec)[1], us_of(closed)
        after_us = None if after_us is None else after_us - more_us
        return bool(self._state(db, spec).due(RESULTS, closed_us - more_us, 1, after_us=after_us).num_rows)

    def marks(self, topics: Sequence[str]) -> dict[str, Mark | None]:
        writing = "SELECT spec, frontier, relayed FROM _flows"
        waiting = "SELECT 1 FROM _outbox WHERE flow = ? AND sequence > ? LIMIT 1"
        out: dict[str, Mark | None] = {}
        with self._reading() as db:
            flows = [(parse_spec(spec), us_of(at), relayed) for spec, at, relayed in db.execute(writing).fetchall()]
            for topic in topics:
                found = [
                    (spec, us, db.execute(waiting, (spec.name, relayed)).fetchone() is None)
                    for spec, us, relayed in flows
                    if spec.target == topic
                ]
                if found:
                    out[topic] = writers.mark_of(found)
        return out

    def is_watched(self, flow: str) -> bool:
        with self._reading_beside() as db:
            return watchers.are_there(db, flow)

    # -- committing --------------------------------------------------------------------------------

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        """Makes the change, all of it or nothing. Fenced, or in conflict, nothing is changed."""
        state, gone = self._apply(flow, commit)
        self._remove_staged(gone)
        return state

    def _apply(
        self, flow: FlowState, commit: Commit, bodies: Sequence[bytes | None] = ()
    ) -> tuple[FlowState, list[str]]:
        """In one transaction; the flow as it is then, and the names of files that the outbox has no more. `bodies`: see
        `put_out`."""
        with self._writing(flow.name) as db:
            began = time.monotonic()
            reach("view.begun")
            self._check(db, flow, commit.sequence, lock=True)
            spec = self._known(db, flow.name)
            gone = self._staged(db, flow.name, commit.relayed)
            settle(db, spec, commit.relayed, commit.written)
            if commit.changes is not None and watchers.are_alive(db, flow.name):
                watchers.keep(db, flow.name, commit.sequence + 1, commit.changes())
                self._is_news(flow.name)
            self._widen(db, spec, self._write(db, spec, commit.writes))
            reach("view.merged")
            note(db, flow.name, commit, no_window=self.NO_WINDOW)
            put_out(db, flow.name, commit.sequence, commit.outgoing, bodies)
            state = state_of(db, flow.name)  # inside: a moment later it may be somebody else's
            reach("view.applied")
        reach("view.committed")
        return replace_spec(state, held_seconds=time.monotonic() - began), gone

    def _widen(self, db: Db, spec: FlowSpec, wide: Collection[str]) -> None:
        """Notes which columns have a sum, for the first time, that does not fit their type."""
        if spec.view is None or not wide:
            return
        new = [each.name for each in spec.view.whole_sums if not each.widened and each.slots[0] in wide]
        if new:
            spec = replace_spec(spec, view=widened(spec.view, new))
            db.execute("UPDATE _flows SET spec = ? WHERE flow = ?", (json.dumps(spec.as_json()), spec.name))
            self._show(db, spec)

    def _check(self, db: Db, flow: FlowState, sequence: int | None, *, lock: bool = False) -> None:
        asked = f"SELECT epoch, sequence FROM _flows WHERE flow = ?{self.FLOW_ROW if lock else ''}"
        found = db.execute(asked, (flow.name,)).fetchone()
        if found is None or found[0] != flow.epoch:
            fenced = db.execute("SELECT value FROM _meta WHERE name = ?", (f"fenced/{flow.name}",)).fetchone()
            why = "another version of the view takes its place" if fenced and int(fenced[0]) > flow.epoch else ""
            raise FlowFenced(flow=flow.name, epoch=flow.epoch, current_epoch=found[0] if found else 0, why=why)
        if sequence is not None and found[1] != sequence:
            raise CommitConflict(flow=flow.name, sequence=sequence, current=found[1])
