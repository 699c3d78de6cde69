"""The view store in Postgres: what `SqlStore` asks of a database. Does not know Spark, topics or what a transform is.

A commit locks its flow's row first, so commits of one flow wait for each other, and those of several do not. What
changes flows themselves (begin, drop, switch) waits for all commits, and they for it. When the connection is lost after
COMMIT was sent, the flow's row says whether it was made: who locks it waits for the end of the lost transaction."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa

from headrace.errors import Closed, ForkedProcess, HeadraceError, StorageError
from headrace.views.contract import RESULTS, Commit, FlowSpec, FlowState, Stager, State, Writes
from headrace.views.postgres import keyed, leases, schema, staging, waking
from headrace.views.postgres.address import Address
from headrace.views.postgres.compared import Compared
from headrace.views.postgres.connections import CommitUnknown, Connection, pool_of, quoted
from headrace.views.postgres.tables import check_flow, tables_of
from headrace.views.postgres.values import table_of
from headrace.views.reading import schema_of
from headrace.views.sql import versions
from headrace.views.sql.flow_rows import set_fact, state_of
from headrace.views.sql.store import SqlStore

__all__ = ["PostgresViews"]

RETRY_SECONDS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""So long a commit waits before each attempt, after the connection was lost."""
READERS_SECONDS = 10
"""So long it is waited for transactions that read a view before its tables are dropped or change their names."""
EVERY_ROW = pa.table({"all": [None]}).select([])


class PostgresViews(SqlStore[Connection]):
    """`PostgresViews(address)`: the store in that database; made if there is none."""

    NO_WINDOW = "-infinity"
    FLOW_ROW = " FOR UPDATE"

    def __init__(self, address: str) -> None:
        self._address = Address.parse(address)
        self._text, self._pid, self._closed = address, os.getpid(), False
        self._waker, self._news = waking.Waker(self._address), set[str]()
        self._leases = leases.Leases(self._address)
        with pool_of(self._address).writing() as db:
            schema.make(db, self._address)

    @property
    def address(self) -> str:
        return self._address.shown

    def close(self) -> None:
        self._closed = True
        self._leases.close()
        self._waker.close()

    def __enter__(self) -> PostgresViews:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def leases(self) -> leases.Leases:
        return self._leases

    def _usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(what=f"the views {self.address}")
        if self._closed:
            raise Closed(what=f"the views {self.address}")

    # -- transactions ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self, flow: str | None = None) -> Iterator[Connection]:
        self._usable()
        with pool_of(self._address).writing() as db:
            mode = "SHARE ROW EXCLUSIVE" if flow is None else "ROW EXCLUSIVE"
            db.run(f"LOCK TABLE _flows IN {mode} MODE")  # before any row: so nobody waits for who waits
            if flow is None:  # for as long as this waits for somebody who reads a view, no flow can commit
                db.run(f"SET LOCAL lock_timeout TO '{round(READERS_SECONDS * 1000)}ms'")
            yield db

    def transaction(self, flow: str) -> contextlib.AbstractContextManager[Connection]:
        return self._between_commits(flow)

    @contextlib.contextmanager
    def _between_commits(self, flow: str) -> Iterator[Connection]:
        with self._writing(flow) as db:
            db.run("SELECT 1 FROM _flows WHERE flow = $1 FOR UPDATE", [flow])
            yield db

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        self._usable()
        with pool_of(self._address).reading() as db:
            yield db

    _reading_beside = _reading

    # -- tables ------------------------------------------------------------------------------------

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState:
        check_flow(spec)
        return super().begin(spec, replace=replace)

    def _make(self, db: Connection, spec: FlowSpec) -> None:
        for statement in (each for table in keyed.tables_of(spec).values() for each in table.create(db.version)):
            db.run(statement)

    def _unmake(self, db: Connection, spec: FlowSpec) -> None:
        if spec.view is not None:
            for name in tables_of(spec).show():
                db.run(f"DROP VIEW IF EXISTS {quoted(name)}")
            db.execute("DELETE FROM _meta WHERE name = ?", (f"shown/{spec.name}",))
        for table in keyed.tables_of(spec).values():
            db.run(f"DROP TABLE IF EXISTS {table.name}")

    def _show(self, db: Connection, spec: FlowSpec) -> None:
        """Others may read the view, and have made theirs of it: so it is replaced if it can be, and only if it must."""
        if spec.view is None or not (views := tables_of(spec).show()):
            return
        text = "\n".join(views.values())
        fact = f"shown/{spec.name}"
        if (text,) == db.execute("SELECT value FROM _meta WHERE name = ?", (fact,)).fetchone():
            return
        for name, select in views.items():
            db.run("SAVEPOINT shown")
            try:
                db.run(f"CREATE OR REPLACE VIEW {quoted(name)} AS {select}")
            except psycopg.errors.InvalidTableDefinition:
                db.run("ROLLBACK TO SAVEPOINT shown")
                db.run(f"DROP VIEW {quoted(name)}")
                db.run(f"CREATE VIEW {quoted(name)} AS {select}")
            db.run("RELEASE SAVEPOINT shown")
        set_fact(db, fact, text)

    def _rename(self, db: Connection, spec: FlowSpec, name: str) -> None:
        """The SQL view stays, over the tables it was made of, until the next version's takes its place."""
        for table in spec.tables:
            old, new = (quoted(keyed.table_name(flow, table.name)) for flow in (spec.name, name))
            db.run(f"ALTER TABLE {old} RENAME TO {new}")
        view, _, _ = spec.name.partition("/")
        db.execute("DELETE FROM _meta WHERE name = ?", (f"shown/{view}",))
        self._show(db, versions.rename(db, spec, name))

    def _differing(self, db: Connection, served: FlowSpec, other: FlowSpec) -> Iterable[pa.RecordBatch]:
        found: list[pa.RecordBatch] = Compared(served, other, exactly=True).rows(db).to_batches()
        return found

    # -- rows --------------------------------------------------------------------------------------

    def _write(self, db: Connection, spec: FlowSpec, writes: Writes) -> Collection[str]:
        sums = [] if spec.view is None else [each for each in spec.view.whole_sums if not each.widened]
        whole = {RESULTS: list(dict.fromkeys(each.slots[0] for each in sums))} if sums else {}
        return keyed.apply(db, keyed.tables_of(spec), writes, whole)

    def _state(self, db: Connection, spec: FlowSpec) -> State:
        return keyed.PostgresState(keyed.tables_of(spec), lambda: contextlib.nullcontext(db))

    def _all_rows(self, db: Connection, spec: FlowSpec) -> pa.Table:
        view = spec.view
        assert view is not None
        if view.shaped is None:
            return self._state(db, spec).scan(RESULTS, EVERY_ROW)
        columns = [column for column in view.columns if column.name != "_status"]
        names = ", ".join(quoted(column.name) for column in columns)
        return table_of(db.copy_out(f"SELECT {names} FROM {tables_of(spec).stored()} AS v"), schema_of(columns))

    def read_state(self, flow: FlowState) -> State:
        with self._reading() as db:
            self._check(db, flow, flow.sequence)
            return keyed.PostgresState(keyed.tables_of(self._known(db, flow.name)), self._reading)

    def state_opener(self, flow: FlowState) -> Callable[[], State]:
        with self._reading() as db:
            self._check(db, flow, flow.sequence)
            return StateOpener(self._text, self._known(db, flow.name))

    def stager(self, flow: FlowState, table: str) -> Stager | None:
        with self._reading() as db:
            self._check(db, flow, None)
            return staging.PostgresStager(self._text, self._known(db, flow.name), table)

    def _sweep(self, db: Connection, flow: str, kept: Sequence[str] = ()) -> None:  # noqa: ARG002
        staging.sweep(db, flow)

    def wipe(self) -> list[str]:
        """The tables that flows share and that hold rows are written anew. Those of a flow alone go with it."""
        with self._writing() as db:
            for table in ("_outbox", "_changes"):
                db.run(f"CLUSTER {table} USING {table}_pkey")  # as VACUUM FULL, in a transaction
        return []

    # -- committing --------------------------------------------------------------------------------

    def commit(self, flow: FlowState, commit: Commit) -> FlowState:
        """Makes the change, all of it or nothing. Fenced, or in conflict, nothing is changed. When the connection is
        lost, it is tried again; if that was after COMMIT, only when it was not made."""
        unknown = False
        for seconds in RETRY_SECONDS:
            time.sleep(seconds)
            try:
                state = self._outcome(flow, commit) if unknown else None
                state = super().commit(flow, commit) if state is None else state
            except CommitUnknown as error:
                unknown, lost = True, error.why
            except StorageError as error:
                if not _is_lost(error):
                    raise
                lost = error.why
            else:
                if flow.name in self._news:
                    self._news.discard(flow.name)
                    self._waker.wake(flow.name)
                return state
        why = f"the connection was lost in every attempt to commit ({lost})"
        raise StorageError(path=self.address, why=why)

    def _is_news(self, flow: str) -> None:
        self._news.add(flow)

    def _outcome(self, flow: FlowState, commit: Commit) -> FlowState | None:
        """The flow, if the commit was made; None if not. FlowFenced if it is somebody else's by now."""
        with self._writing(flow.name) as db:
            self._check(db, flow, None, lock=True)
            state = state_of(db, flow.name)
        return state if state.sequence == commit.sequence + 1 else None


def _is_lost(error: HeadraceError) -> bool:
    """Whether the connection was, and not the statement refused."""
    cause = error.__cause__
    if isinstance(cause, psycopg.errors.IdleInTransactionSessionTimeout):
        return True
    return isinstance(cause, psycopg.OperationalError) and (
        cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P"))
    )


@dataclass(frozen=True)
class StateOpener:
    """Opens a flow's state in another process."""

    address: str = field(repr=False)
    spec: FlowSpec

    def __call__(self) -> State:
        pool = pool_of(Address.parse(self.address))
        return keyed.PostgresState(keyed.tables_of(self.spec), pool.reading)
