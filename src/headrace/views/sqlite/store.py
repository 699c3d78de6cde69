"""The view store in a SQLite file beside the log: what `SqlStore` asks of a database, and large outgoing tables as
files beside it. Does not know Spark, topics or what a transform is."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.views.contract import RESULTS, VERSIONS, Commit, FlowSpec, FlowState, State, Writes
from headrace.views.reading import quoted, schema_of
from headrace.views.sql import versions, watchers
from headrace.views.sql.store import SqlStore
from headrace.views.sqlite import keyed, staged
from headrace.views.sqlite.compared import Compared
from headrace.views.sqlite.file import TIME_SHARE, ViewsFile, connected
from headrace.views.sqlite.tables import tables_of
from headrace.views.sqlite.values import batch_of

OWN_TABLES = ("_nulls", "_kept")
"""What this store keeps by flow, besides what every store does."""


class SqliteViews(ViewsFile, SqlStore[sqlite3.Connection]):
    """`SqliteViews(home)`: the store of the views in that directory; made if there is none."""

    NO_WINDOW = ""

    # -- tables ------------------------------------------------------------------------------------

    def _make(self, db: sqlite3.Connection, spec: FlowSpec) -> None:
        for statement in (each for table in keyed.tables_of(spec).values() for each in table.create()):
            db.execute(statement)

    def _unmake(self, db: sqlite3.Connection, spec: FlowSpec) -> None:
        hide = tables_of(spec).hide() if spec.view is not None and spec.view.public else []
        drop = (each for table in keyed.tables_of(spec).values() for each in table.drop())
        for statement in (*hide, *drop):
            db.execute(statement)
        for table in OWN_TABLES:
            db.execute(f"DELETE FROM {table} WHERE flow = ?", (spec.name,))

    def _show(self, db: sqlite3.Connection, spec: FlowSpec) -> None:
        if spec.view is not None:
            for statement in tables_of(spec).show(keyed.nulls_in(db, spec.name).get(RESULTS, frozenset())):
                db.execute(statement)

    def _rename(self, db: sqlite3.Connection, spec: FlowSpec, name: str) -> None:
        for statement in tables_of(spec).hide():
            db.execute(statement)
        for table in _tables(db, spec.name):
            db.execute(f"ALTER TABLE {quoted(table)} RENAME TO {quoted(name + table[len(spec.name) :])}")
        self._show(db, versions.rename(db, spec, name, OWN_TABLES))

    def _differing(self, db: sqlite3.Connection, served: FlowSpec, other: FlowSpec) -> Iterator[pa.RecordBatch]:
        compared = Compared(served, other, exactly=True)
        rows, schema = compared.rows(db), schema_of(compared.columns)
        while some := list(islice(rows, watchers.CHUNK_ROWS)):
            yield batch_of(some, schema)

    # -- rows --------------------------------------------------------------------------------------

    def _write(self, db: sqlite3.Connection, spec: FlowSpec, writes: Writes) -> Collection[str]:
        nulls = keyed.nulls_in(db, spec.name)
        keyed.apply(db, keyed.tables_of(spec), writes)
        if keyed.nulls_in(db, spec.name) != nulls:
            self._show(db, spec)
        wide: list[str] = json.loads(*db.execute("SELECT hr_widened()").fetchone())
        return wide

    def _state(self, db: sqlite3.Connection, spec: FlowSpec) -> State:
        return keyed.SqliteState(
            keyed.tables_of(spec), keyed.nulls_in(db, spec.name), lambda: contextlib.nullcontext(db)
        )

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

    def read_state(self, flow: FlowState) -> State:
        with self._reading_beside() as db:
            self._check(db, flow, flow.sequence)
            spec = self._known(db, flow.name)
            return keyed.SqliteState(keyed.tables_of(spec), keyed.nulls_in(db, flow.name), self._reading_beside)

    def state_opener(self, flow: FlowState) -> Callable[[], State]:
        with self._reading_beside() as db:
            self._check(db, flow, flow.sequence)
            return StateOpener(self.path, self._known(db, flow.name), keyed.nulls_in(db, flow.name))

    # -- the outbox --------------------------------------------------------------------------------

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        """Makes the change, all of it or nothing. Fenced, or in conflict, nothing is changed."""
        home = self.path.parent
        large = [each.rows.num_rows >= staged.ROWS_MIN for each in commit.outgoing]
        files = [
            staged.put(home, flow.name, each.rows) if is_large else None
            for each, is_large in zip(commit.outgoing, large, strict=True)
        ]
        try:
            bodies = [None if file is None else staged.named(file) for file in files]
            state, gone = self._apply(flow, commit, bodies)
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

    def _staged(self, db: sqlite3.Connection, flow: str, relayed: int | None = None) -> list[str]:
        if relayed is None:
            return staged.names(db, "flow = ?", flow)
        return staged.names(db, "flow = ? AND sequence <= ?", flow, relayed)

    def _remove_staged(self, files: Sequence[str]) -> None:
        staged.remove(self.path.parent, files)

    def _sweep(self, db: sqlite3.Connection, flow: str, kept: Sequence[str] = ()) -> None:
        staged.sweep(self.path.parent, flow, {*staged.names(db), *kept})

    def _rows_out(self, body: bytes) -> pa.Table:
        name = staged.name_in(body)
        return super()._rows_out(body) if name is None else staged.read(self.path.parent, name)

    def _dropping(self, db: sqlite3.Connection) -> AbstractContextManager[None]:
        return self._sparing_space(db)


def _tables(db: sqlite3.Connection, name: str) -> list[str]:
    """All tables of a view begin with its name and '/'; so do those of its versions."""
    prefix = f"{name}/"
    sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, ?) = ?"
    found = [table for (table,) in db.execute(sql, (len(prefix), prefix))]
    return [table for table in found if not table.startswith(tuple(f"{prefix}{version}/" for version in VERSIONS))]


@dataclass(frozen=True)
class StateOpener:
    """Opens a flow's state in another process."""

    path: Path
    spec: FlowSpec
    nulls: Mapping[str, frozenset[str]]

    def __call__(self) -> State:
        db = connected(self.path)
        return keyed.SqliteState(keyed.tables_of(self.spec), self.nulls, lambda: contextlib.nullcontext(db))
