"""The view store in a SQLite file beside the log. Owns what a commit is, who may make it, and the versions of a view.
Does not know Spark, topics or what a transform is.

One commit is one transaction, synced before it counts. It is refused when the flow's epoch is not the committer's
(somebody took over) or its sequence is another (the commit was made already, or one is missing): so nothing is applied
twice and nothing is skipped, whoever restarts whom."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_spec
from pathlib import Path

import pyarrow as pa

from headrace.errors import CommitConflict, FlowChanged, FlowFenced, HeadraceError, InvalidName, UnknownView, ViewTaken
from headrace.failpoints import reach
from headrace.position import Position
from headrace.views import writers
from headrace.views.changes import snapshot
from headrace.views.contract import (
    DUE,
    RESULTS,
    Commit,
    Emit,
    FlowSpec,
    FlowState,
    Mark,
    Outgoing,
    State,
    ViewStore,
    Waiting,
    version_name,
    widened,
)
from headrace.views.naming import check_names
from headrace.views.reading import quoted, schema_of
from headrace.views.sqlite import keyed, staged, versions, watchers
from headrace.views.sqlite.file import TIME_SHARE, ViewsFile, connected
from headrace.views.sqlite.flow_rows import (
    names,
    next_epoch,
    not_kept,
    note,
    now,
    put_out,
    settle,
    spec_of,
    state_of,
)
from headrace.views.sqlite.tables import tables_of
from headrace.views.sqlite.values import batch_of, us_of


class SqliteViews(ViewsFile, ViewStore):
    """`SqliteViews(home)`: the store of the views in that directory; made if there is none."""

    # -- flows -------------------------------------------------------------------------------------

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState:
        """Takes the flow: makes its tables if there are none, and gives it a new epoch. A flow that is not what its
        state was made by is FlowChanged; with `replace` its state is dropped, to be made again from the log."""
        if spec.view is not None:
            check_names(spec.view, max(len(table.names) for table in spec.tables))
        with self._writing() as db:
            known = self._refused(db, spec, replace=replace)
            self._refuse_history_names(db, spec)
            fed = () if known is None else known.feeds  # who has read changes goes on reading them, seen here or not
            taken_back = self._told(db, known, fed, "-") if known is not None and replace else []
            spec = replace_spec(spec, feeds=(*fed, *(emit for emit in spec.feeds if emit not in fed)))
            if known is not None and known.view is not None and spec.view is not None and not replace:
                wide = [each.name for each in known.view.results if each.widened]
                spec = replace_spec(spec, view=widened(spec.view, wide))
            text = json.dumps(spec.as_json())
            gone = self._drop(db, known) if known is not None and replace else []
            if known is None or replace:
                insert = "INSERT INTO _flows (flow, app, spec, epoch, sequence, relayed) VALUES (?, ?, ?, 0, 0, -1)"
                db.execute(insert, (spec.name, spec.app, text))
                db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"born/{spec.name}", uuid.uuid4().hex[:12]))
                for statement in (each for table in keyed.tables_of(spec).values() for each in table.create()):
                    db.execute(statement)
            show(db, spec)
            if known is not None and not replace:
                self._feed_what_is(db, known, [emit for emit in spec.feeds if emit not in fed])
            put_out(db, spec.name, 0, taken_back)  # with the first commit, which comes before anything is sent
            db.execute("DELETE FROM _meta WHERE name = ?", (f"fenced/{spec.name}",))  # for a switch, not for this one
            db.execute(
                "UPDATE _flows SET epoch = ?, spec = ?, pid = ?, host = ?, started_at = ? WHERE flow = ?",
                (next_epoch(db), text, os.getpid(), socket.gethostname(), now(), spec.name),
            )
            state = state_of(db, spec.name)  # inside: a moment later it may be somebody else's
            staged.sweep(self.path.parent, spec.name, {*staged.names(db), *gone})
            reach("begin.taken")
        staged.remove(self.path.parent, gone)
        return state

    def refuse_changed(self, spec: FlowSpec) -> None:
        """What `begin` would say of the flow, without beginning it."""
        with self._reading() as db:
            self._refused(db, spec, replace=False)

    def _refused(self, db: sqlite3.Connection, spec: FlowSpec, *, replace: bool) -> FlowSpec | None:
        """The flow as it is known; ViewTaken or FlowChanged if it is another's, or another."""
        alike = "SELECT flow, app FROM _flows WHERE lower(flow) = lower(?)"  # SQLite would mix them up
        for other, app in db.execute(alike, (spec.name,)):
            if (other, app) != (spec.name, spec.app):
                raise ViewTaken(view=other, app=app)
        known = spec_of(db, spec.name)
        if known is not None and not replace and (changed := known.changes(spec)):
            raise FlowChanged(flow=spec.name, changes=changed, parent=spec.parent)
        return known

    def _feed_what_is(self, db: sqlite3.Connection, spec: FlowSpec, emits: Sequence[Emit]) -> None:
        """For those who read a view's changes from now on: what it has, as a commit of its own."""
        if emits:
            (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
            put_out(db, spec.name, sequence, self._told(db, spec, emits, "+"))
            last = "SELECT max(sequence) FROM _steps WHERE flow = ?1"
            db.execute(f"DELETE FROM _steps WHERE flow = ?1 AND sequence < ({last})", (spec.name,))
            # They know nothing of the new topic. The last one says how far other topics are written, and no more.
            db.execute("UPDATE _steps SET read = '' WHERE flow = ?", (spec.name,))
            db.execute("UPDATE _flows SET sequence = sequence + 1 WHERE flow = ?", (spec.name,))

    def _told(
        self, db: sqlite3.Connection, spec: FlowSpec, emits: Sequence[Emit], op: str, after_us: int | None = None
    ) -> list[Outgoing]:
        """All that the flow has, for who reads its changes: of windows that end later than `after_us`."""
        if spec.view is None or not emits:
            return []
        view, _, _ = spec.name.partition("/")
        (closed,) = db.execute("SELECT closed FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
        rows = self._all_rows(db, spec)
        return [each for emit in emits for each in snapshot(spec.view, view, rows, emit, op, us_of(closed), after_us)]

    def _all_rows(self, db: sqlite3.Connection, spec: FlowSpec) -> pa.Table:
        """All rows of the view as they are stored; of a shaped view, those that the transform made."""
        view = spec.view
        assert view is not None
        if view.shaped is None:
            return self._state(db, spec).scan(RESULTS, pa.table({"all": [None]}).select([]))
        tables, nulls = tables_of(spec), keyed.nulls_in(db, spec.name).get(RESULTS, frozenset())
        columns = [column for column in view.columns if column.name != "_status"]
        names = ", ".join(quoted(column.name) for column in columns)
        rows = db.execute(f"SELECT {names} FROM {tables.stored(nulls)}").fetchall()
        return pa.Table.from_batches([batch_of(rows, schema_of(columns))])

    def drop(self, flow: str) -> list[str]:
        """Forgets a flow with all its rows, and its helpers; the log has what they were made from. Returns the topics
        of headrace's own that are nobody's then."""
        with self._writing() as db, self._sparing_space(db):
            dropped = writers.with_helpers(self._known(db, flow), self._specs(db))
            names = (*(spec.name for spec in dropped), *versions.found_beside(db, flow))
            gone = [file for name in names for file in self._drop(db, self._known(db, name))]
            for name in names:  # now: a moment later somebody may write for a flow of that name
                staged.sweep(self.path.parent, name, {*staged.names(db), *gone})
        staged.remove(self.path.parent, gone)
        return sorted(topic for spec in dropped for topic in spec.writes if topic.startswith("__"))

    def _drop(self, db: sqlite3.Connection, spec: FlowSpec) -> list[str]:
        """Forgets the flow; the names of its files in the outbox, to be removed when that is committed."""
        gone = staged.names(db, "flow = ?", spec.name)
        if spec.view is not None and spec.view.public:
            for statement in tables_of(spec).hide():
                db.execute(statement)
        for statement in (each for table in keyed.tables_of(spec).values() for each in table.drop()):
            db.execute(statement)
        for table in (*versions.FLOW_TABLES, "_steps"):
            db.execute(f"DELETE FROM {table} WHERE flow = ?", (spec.name,))
        facts = [f"{fact}/{spec.name}" for fact in ("born", "program", "fenced", "line")]
        db.execute("DELETE FROM _meta WHERE name IN (?, ?, ?, ?)", facts)
        watchers.forget(db, spec.name)
        return gone

    def _refuse_history_names(self, db: sqlite3.Connection, spec: FlowSpec) -> None:
        """InvalidName where a view has the name of a table's history, in this program or in others."""
        flows = {each.name: each for each in self._specs(db)} | {spec.name: spec}
        taken = {f"{each.name}_history".lower() for each in flows.values() if each.history != "latest"}
        for name in flows:
            if name.lower() in taken and spec.name in (name, name[: -len("_history")]):
                why = "a table's history is read under this name: give the view, or the table, another"
                raise InvalidName("view", name, why)

    def _known(self, db: sqlite3.Connection, flow: str) -> FlowSpec:
        spec = spec_of(db, flow)
        if spec is None:
            raise UnknownView(view=flow, known=names(db))
        return spec

    def _specs(self, db: sqlite3.Connection) -> list[FlowSpec]:
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
            db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"program/{spec.name}", program))
        staged.remove(self.path.parent, gone)

    def fence(self, flow: str) -> FlowState:
        """Takes the flow from whoever runs it, for another version to take its place. The view is served as it is."""
        with self._writing() as db:
            self._known(db, flow)
            epoch = next_epoch(db)
            db.execute("UPDATE _flows SET epoch = ? WHERE flow = ?", (epoch, flow))
            db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"fenced/{flow}", str(epoch)))
            return state_of(db, flow)

    def is_fenced(self, flow: str) -> bool:
        """Whether the flow was fenced, and neither switched nor let go since."""
        with self._reading() as db:
            sql = "SELECT 1 FROM _flows JOIN _meta ON name = 'fenced/' || flow AND value = epoch WHERE flow = ?"
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
            if versions.exchange(db, was, comes, goes):
                db.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (f"line/{view}", line))
            self._feed_switch(db, was, goes)
            for name in (view, goes):
                db.execute("UPDATE _flows SET epoch = ?, pid = NULL WHERE flow = ?", (next_epoch(db), name))
            state = state_of(db, view)
            reach("switch.applied")
        reach("switch.committed")
        staged.remove(self.path.parent, gone)
        return state

    def _feed_switch(self, db: sqlite3.Connection, was: FlowSpec, goes: str) -> None:
        """Flows over the view are told that all of the one version went, and all of the other came."""
        if not was.feeds:
            return
        view = was.name
        old, new = self._known(db, goes), self._known(db, view)
        (sequence,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (view,)).fetchone()
        gone = [us for us in (not_kept(db, old), not_kept(db, new)) if us is not None]
        after_us = max(gone, default=None)  # what one of them has no more stays as it is, behind it
        put_out(db, view, sequence, self._told(db, old, was.feeds, "-", after_us))
        put_out(db, view, sequence, self._told(db, new, was.feeds, "+", after_us))
        for spec in replace_spec(new, feeds=was.feeds), replace_spec(old, feeds=()):
            db.execute("UPDATE _flows SET spec = ? WHERE flow = ?", (json.dumps(spec.as_json()), spec.name))
        db.execute("UPDATE _flows SET sequence = sequence + 1 WHERE flow = ?", (view,))

    def discard(self, view: str) -> list[str]:
        """Drops what is beside the view; its names."""
        with self._writing() as db:
            self._known(db, view)
            names = versions.found_beside(db, view)
            gone = [file for name in names for file in self._drop(db, self._known(db, name))]
        staged.remove(self.path.parent, gone)
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

    def _rows_out(self, body: bytes) -> pa.Table:
        name = staged.name_in(body)
        return pa.ipc.open_stream(body).read_all() if name is None else staged.read(self.path.parent, name)

    def note_relayed(self, flow: FlowState, relayed: int, written: Position) -> None:
        """As a commit does that says so: for a flow that has nothing to commit."""
        with self._writing() as db:
            self._check(db, flow, flow.sequence)
            gone = staged.names(db, "flow = ? AND sequence <= ?", flow.name, relayed)
            settle(db, self._known(db, flow.name), relayed, written)
        staged.remove(self.path.parent, gone)

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
        return None if last_us is None else last_us + tables_of(spec).ending[1]

    def _state(self, db: sqlite3.Connection, spec: FlowSpec) -> State:
        """As this transaction sees it."""
        return keyed.SqliteState(
            keyed.tables_of(spec), keyed.nulls_in(db, spec.name), lambda: contextlib.nullcontext(db)
        )

    def closes(self, flow: str, frontier_us: int) -> bool:
        with self._reading() as db:
            spec = self._known(db, flow)
            others = self._specs(db) if spec.feeds or spec.target else []
            return writers.closes(spec, frontier_us, others, functools.partial(self._has_open, db))

    def _has_open(self, db: sqlite3.Connection, spec: FlowSpec, closed_us: int) -> bool:
        timers = [each.name for each in spec.tables if each.name.startswith(DUE)]
        if any(self._state(db, spec).due(name, closed_us - 1, 1).num_rows for name in timers):
            return True
        if spec.view is None or spec.view.ending is None:
            return False
        (closed,) = db.execute("SELECT closed FROM _flows WHERE flow = ?", (spec.name,)).fetchone()
        more_us, after_us = tables_of(spec).ending[1], us_of(closed)
        after_us = None if after_us is None else after_us - more_us
        return bool(self._state(db, spec).due(RESULTS, closed_us - more_us, 1, after_us=after_us).num_rows)

    def marks(self, topics: Sequence[str]) -> dict[str, Mark | None]:
        writing = "SELECT flow, frontier, relayed FROM _flows WHERE json_extract(spec, '$.target') = ?"
        waiting = "SELECT 1 FROM _outbox WHERE flow = ? AND sequence > ? LIMIT 1"
        out: dict[str, Mark | None] = {}
        with self._reading() as db:
            for topic in topics:
                found = [
                    (self._known(db, flow), us_of(frontier), db.execute(waiting, (flow, relayed)).fetchone() is None)
                    for flow, frontier, relayed in db.execute(writing, (topic,)).fetchall()
                ]
                if found:
                    out[topic] = writers.mark_of(found)
        return out

    def read_state(self, flow: FlowState) -> State:
        with self._reading_beside() as db:
            self._check(db, flow, flow.sequence)
            spec = self._known(db, flow.name)
            return keyed.SqliteState(keyed.tables_of(spec), keyed.nulls_in(db, flow.name), self._reading_beside)

    def state_opener(self, flow: FlowState) -> Callable[[], State]:
        with self._reading_beside() as db:
            self._check(db, flow, flow.sequence)
            return StateOpener(self.path, self._known(db, flow.name), keyed.nulls_in(db, flow.name))

    def is_watched(self, flow: str) -> bool:
        with self._reading_beside() as db:
            return watchers.are_there(db, flow)

    # -- committing --------------------------------------------------------------------------------

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        """Makes the change, all of it or nothing. Fenced, or in conflict, nothing is changed."""
        home = self.path.parent
        large = [each.rows.num_rows >= staged.ROWS_MIN for each in commit.outgoing]
        files = [
            staged.put(home, flow.name, each.rows) if is_large else None
            for each, is_large in zip(commit.outgoing, large, strict=True)
        ]
        try:
            state, gone = self._apply(flow, commit, files)
        except BaseException:
            self._remove_unnamed([file for file in files if file is not None])
            raise
        staged.remove(home, gone)
        self._give_back_for(TIME_SHARE * state.held_seconds)
        self._checkpoint_if_due()
        return state

    def _remove_unnamed(self, files: Sequence[str]) -> None:
        """After an error, which may have come when all was committed. What nobody can tell of stays."""
        with contextlib.suppress(HeadraceError):
            if files:
                with self._reading() as db:
                    known = staged.names(db)
                staged.remove(self.path.parent, [file for file in files if file not in known])

    def _apply(self, flow: FlowState, commit: Commit, files: Sequence[str | None]) -> tuple[FlowState, list[str]]:
        """In one transaction; the flow as it is then, and the names of files that the outbox has no more."""
        with self._writing() as db:
            began = time.monotonic()
            reach("view.begun")
            self._check(db, flow, commit.sequence)
            spec = self._known(db, flow.name)
            gone = staged.names(db, "flow = ? AND sequence <= ?", flow.name, commit.relayed)
            settle(db, spec, commit.relayed, commit.written)
            if commit.changes is not None and watchers.are_alive(db, flow.name):
                watchers.keep(db, flow.name, commit.sequence + 1, commit.changes())
            nulls = keyed.nulls_in(db, flow.name)
            keyed.apply(db, keyed.tables_of(spec), commit.writes)
            spec = self._widen(db, spec)
            if keyed.nulls_in(db, flow.name) != nulls:
                show(db, spec)
            reach("view.merged")
            note(db, flow.name, commit)
            put_out(db, flow.name, commit.sequence, commit.outgoing, files)
            state = state_of(db, flow.name)  # inside: a moment later it may be somebody else's
            reach("view.applied")
        reach("view.committed")
        return replace_spec(state, held_seconds=time.monotonic() - began), gone

    def _widen(self, db: sqlite3.Connection, spec: FlowSpec) -> FlowSpec:
        """Notes which columns have a sum, for the first time, that does not fit their type."""
        if spec.view is None or not spec.view.whole_sums:
            return spec
        wide = set(json.loads(*db.execute("SELECT hr_widened()").fetchone()))
        new = [each.name for each in spec.view.whole_sums if not each.widened and each.slots[0] in wide]
        if new:
            spec = replace_spec(spec, view=widened(spec.view, new))
            db.execute("UPDATE _flows SET spec = ? WHERE flow = ?", (json.dumps(spec.as_json()), spec.name))
        return spec

    def _check(self, db: sqlite3.Connection, flow: FlowState, sequence: int | None) -> None:
        found = db.execute("SELECT epoch, sequence FROM _flows WHERE flow = ?", (flow.name,)).fetchone()
        if found is None or found[0] != flow.epoch:
            fenced = db.execute("SELECT value FROM _meta WHERE name = ?", (f"fenced/{flow.name}",)).fetchone()
            why = "another version of the view takes its place" if fenced and int(fenced[0]) > flow.epoch else ""
            raise FlowFenced(flow=flow.name, epoch=flow.epoch, current_epoch=found[0] if found else 0, why=why)
        if sequence is not None and found[1] != sequence:
            raise CommitConflict(flow=flow.name, sequence=sequence, current=found[1])


@dataclass(frozen=True)
class StateOpener:
    """Opens a flow's state in another process."""

    path: Path
    spec: FlowSpec
    nulls: Mapping[str, frozenset[str]]

    def __call__(self) -> State:
        db = connected(self.path)
        return keyed.SqliteState(keyed.tables_of(self.spec), self.nulls, lambda: contextlib.nullcontext(db))


def show(db: sqlite3.Connection, spec: FlowSpec) -> None:
    """Makes what readers see of the flow's view."""
    if spec.view is not None:
        for statement in tables_of(spec).show(keyed.nulls_in(db, spec.name).get(RESULTS, frozenset())):
            db.execute(statement)
