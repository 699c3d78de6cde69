"""Flows in this process, together: one session, one store, one loop each. Owns their making and ending, the locks that
say who runs them, and the order in which they are drained."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.durations import from_us
from headrace.errors import (
    Closed,
    FlowChanged,
    FlowFenced,
    InvalidArgument,
    KafkaFailed,
    StorageError,
    UnknownTopic,
    UnknownView,
    ViewInUse,
)
from headrace.flows.flow import Flow
from headrace.flows.spark import session
from headrace.flows.status import AppStatus, FlowStatus
from headrace.flows.writing.topics import WrittenTopics
from headrace.storage import disk
from headrace.views.contract import version_name
from headrace.views.kept import Kept
from headrace.views.open import open_store, open_views, store_exists
from headrace.views.origins import Reader, branches
from headrace.views.owner import FlowLock
from headrace.views.standing import holds_up, lag_of, read_of, sources_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flows.loop import FlowLoop
    from headrace.flows.query import FlowQuery
    from headrace.flows.rebuild import Rebuild
    from headrace.flows.sharing import Sharing
    from headrace.flows.supervise import Supervisor
    from headrace.log.capabilities import OpenTransaction
    from headrace.log.contract import Log, Start
    from headrace.places import Home
    from headrace.views.contract import FlowState, ViewSpec, ViewStore

logger = logging.getLogger("headrace.flows")

LOOK_SECONDS = 0.1
"""So often is looked whether a switch to another version is over."""
STOP_SECONDS = 10.0
"""A batch that runs may finish for so long; then Spark is told to give it up."""


class Running:
    def __init__(
        self,
        app: str,
        flows: Mapping[str, Flow],
        log: Log,
        home: Home,
        spark: Any,
        batch_rows: int | None,
        checked: dict[str, FlowQuery],
        clock_us: Callable[[], int] | None = None,
        *,
        driver_rows: int | None = None,
        throwaway: bool = False,
        settled: Callable[[Flow], Flow] = lambda flow: flow,
    ) -> None:
        self._settled, self._settled_flows = settled, list[Flow]()
        self._settling = False
        self._throwaway = throwaway
        """The home goes with the app: a view whose flow was described anew is made anew."""
        self._app, self._flows, self._log, self._given, self._batch_rows = app, flows, log, spark, batch_rows
        self._home = home
        self._checked, self._clock_us, self._driver_rows = checked, clock_us, driver_rows
        self._session: SparkSession | None = None
        self._owned = self._starting = self._closed = False
        self._store: ViewStore | None = None
        self._loops: dict[str, FlowLoop] = {}
        self._locks: dict[str, FlowLock] = {}
        self._supervisors: dict[str, Supervisor] = {}
        self._queries: dict[str, FlowQuery] = {}
        self._sharing: Sharing | None = None
        self._begun: dict[str, FlowState] = {}
        """Each flow as it was when it was begun."""
        self._lock = threading.RLock()
        self.written = WrittenTopics(
            log,
            home.views,
            compiled=lambda flow: self.query(flow).compiled,
            store=lambda: self.store,
            runs_elsewhere=lambda flow: flow.name not in self._locks and self._lock_of(flow.name).is_held(),
        )

    @property
    def flows(self) -> list[Flow]:
        return list(self._flows.values())

    def settle(self) -> list[Flow]:
        """All flows, by what their topics are: those are opened, or created, and a flow that reads what turns out to be
        changes is planned again. A flow that is written before another is settled before it."""
        with self._lock:
            as_before = [*map(id, self._settled_flows)] == [*map(id, self.flows)]
            if not self._settling and not as_before:
                self._settling = True
                try:
                    for flow in self.flows:
                        self._settled(flow)
                        if flow.target is not None and flow.parent is None:
                            with contextlib.suppress(UnknownTopic):
                                self.written.marked_as_changes(flow, self._log.topic(flow.target))
                finally:
                    self._settling = False
                self._settled_flows = self.flows
            return self.flows

    def replaced(self, flow: Flow) -> None:
        """The flow was described anew: if it runs, the new one runs in its place, from the last commit on."""
        with self._lock:
            self._loops.pop(flow.name, None)
            if flow.name in self._supervisors:
                self._end([self._supervisors.pop(flow.name)])
                self.start()

    @property
    def spark(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._starting = True
                if self._home.log != str(self._home.directory):  # else the log has made it, and it is not made again
                    with disk.typed(self._home.directory):
                        self._home.directory.mkdir(mode=disk.DIRECTORY_MODE, parents=True, exist_ok=True)
                try:
                    if self._home.log_directory != self._home.directory:  # a log makes its own
                        disk.make_directory(self._home.directory)
                    self._session, self._owned = session.make(
                        self._app, self._given, self._home.directory, outlives_home=self._throwaway
                    )
                finally:
                    self._starting = False
                if self._closed:
                    self._let_go()
                    raise Closed(what=f"the app {self._app!r}")
                session.refuse_far_workers(self._session, self._home.log_directory)
            return self._session

    @property
    def store(self) -> ViewStore:
        with self._lock:
            if self._store is None:
                self._store = open_store(self._home.views)
            return self._store

    def refuse_lost(self) -> None:
        """SparkLost or Closed if there was a session, and is none any more."""
        if self._session is not None:
            session.refuse_lost(self._session, f"app {self._app!r}", self._home.directory)

    # -- flows -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Whether all flows can be run; the error says which cannot, and why. Makes nothing."""
        made = store_exists(self._home.views)
        for flow in self.settle():
            spec = self.query(flow).compiled.spec
            if made and not self._throwaway:
                self.store.refuse_changed(spec)

    def query(self, flow: Flow) -> FlowQuery:
        """The flow, checked: once, here or where the program was before, for its transforms are tried on sample
        rows."""
        from headrace.flows.compiler.compile import compiled
        from headrace.flows.query import FlowQuery

        with self._lock:
            self.settle()
            planned = self._flows.get(flow.name, flow)
            if planned.sink is flow.sink and planned.retracts and not flow.retracts:
                flow = planned  # again, when it turned out to read changes
            found = self._queries.get(flow.name)
            if found is None or found.compiled.given is not flow:
                known = self._checked.get(flow.name)
                found = None if known is None else known.over(flow, self.spark)
                if found is None:
                    made = compiled(flow, self._app, self.spark)
                    self.written.fit_target(made)
                    found = self._checked[flow.name] = FlowQuery(made, self.spark)
                    for note in found.compiled.notes:
                        logger.warning("%s", note)
                if self._driver_rows is not None:
                    found.driver_rows = self._driver_rows
                self._queries[flow.name] = found
            return found

    def spec(self, view: str) -> ViewSpec | None:
        """What the view will be, whether it was run or not; None if it is not one of this program's."""
        flow = self._flows.get(view)
        return None if flow is None or flow.target is not None else self.query(flow).compiled.spec.view

    def take(self, flow: Flow, *, wait: Callable[[], bool] | None = None, take_over: bool = False) -> None:
        """Says that this process runs the flow, unless it does already."""
        with self._lock:
            if flow.name not in self._locks:
                lock = self._lock_of(flow.name)
                lock.take(wait=wait, take_over=take_over)
                self._locks[flow.name] = lock

    def _lock_of(self, flow: str) -> FlowLock:
        return FlowLock(self._home.directory, flow, self.store.leases)

    def begun(self, flow: Flow, *, at_once: bool = True) -> FlowLoop:
        """A new loop of the flow, at its last commit."""
        from headrace.flows.loop import FlowLoop

        query = self.query(flow)
        self.written.make(query.compiled.given)
        loop = FlowLoop(
            query,
            log=self._log,
            store=self.store,
            batch_rows=self._batch_rows,
            at_once=at_once,
            clock_us=self._clock_us,
            scratch=self._home.directory,
        )
        try:
            loop.begin()
        except FlowChanged:
            if not self._throwaway or flow.target is not None:
                raise
            self.written.grow_feeds(flow)
            loop.begin(replace=True)
        self._begun[flow.name] = loop.position
        return loop

    def _again(self, flow: Flow) -> FlowLoop | None:
        """A new loop of a flow that runs, after an error; None if it is stopped meanwhile. While another version takes
        its place, not before that is done; then at that one, or FlowFenced if another program has made it."""
        from headrace.flows.rebuild import refuse_other

        lock = self._lock_of(version_name(flow.name, "next"))
        supervisor = self._supervisors.get(flow.name)
        while self.store.is_fenced(flow.name) and lock.is_held():
            if supervisor is None or supervisor.is_stopping(LOOK_SECONDS):
                return None
        try:
            state = self.store.state(flow.name)
        except UnknownView:  # dropped
            return self.begun(flow, at_once=False)
        before = self._begun[flow.name]
        if state.born == before.born:
            return self.begun(flow, at_once=False)
        try:
            compiled = self.query(flow).compiled
            self.store.refuse_changed(compiled.spec)  # first, for it says what is different
            refuse_other(self.store, compiled.flow)
            return self.begun(flow, at_once=False)
        except FlowChanged as error:
            why = "another version of the view takes its place, made by another program "
            why += f"({'; '.join(error.changes)}): run that one in place of this"
            raise FlowFenced(flow.name, before.epoch, state.epoch, why) from error

    def loop(self, flow: Flow) -> FlowLoop:
        """The flow's loop for those who step it themselves."""
        with self._lock:
            if flow.name not in self._loops:
                self.take(flow)
                self._loops[flow.name] = self.begun(flow)
            return self._loops[flow.name]

    def drop(self, view: str) -> None:
        """Forgets what the view's flow has made; ViewInUse while it runs, here or elsewhere."""
        with self._lock:
            views = open_views(self._home.views)
            status = views.status(view, topics=True)
            if view in self._supervisors or (status.running and status.pid != os.getpid()):
                raise ViewInUse(view=view, pid=status.pid or 0, host=status.host or "")
            dropped = [view, *(spec.name for spec in views.specs() if spec.parent == view)]
            for name in dropped:
                self._loops.pop(name, None)
            for topic in self.store.drop(view):  # changes begin anew: flows over the view are told that they are others
                with contextlib.suppress(UnknownTopic):
                    self._log.delete_own_topic(topic)
            for name in (*dropped, version_name(view, "next")):
                self._log.forget_flow(name)

    # -- another version of a view -----------------------------------------------------------------

    def rebuild(self, flow: Flow, start: Start) -> Rebuild:
        """The flow's view made anew from `start`, beside the one that is served."""
        from headrace.flows.rebuild import Rebuild, refuse_topics

        refuse_topics(flow)
        if flow.retracts and start != "earliest":
            why = "the changes of a view are read from the beginning, or its rows would not add up. Leave it out"
            raise InvalidArgument("start", start, why)
        query = self.query(flow).named(version_name(flow.name, "next"), start)
        version = query.compiled.flow
        self.written.make_dropped(flow)
        self.written.grow_feeds(flow)
        self.take(version)

        def let_go() -> None:
            with self._lock:
                self._loops.pop(flow.name, None)  # it is of what was served before
                if (lock := self._locks.pop(version.name, None)) is not None:
                    lock.release()

        settings = {"batch_rows": self._batch_rows, "clock_us": self._clock_us, "scratch": self._home.directory}
        made = Rebuild(query, log=self._log, home=self._home, store=self.store, loop_settings=settings, let_go=let_go)
        made.make()
        return made

    def roll_back(self, view: str) -> None:
        """What was served before the last switch is the view again."""
        from headrace.flows.rebuild import roll_back

        roll_back(self._log, self._home, self.store, view)
        self._loops.pop(view, None)

    def discard(self, view: str) -> list[str]:
        """Drops what is beside the view; its names."""
        dropped = self.store.discard(view)
        self._log.forget_flow(version_name(view, "next"))
        return dropped

    # -- all there is ------------------------------------------------------------------------------

    def drain(self, batch_rows: int | None, *, close: bool) -> int:
        """Everything the log has, and what flows write for others meanwhile."""
        if self._supervisors:
            raise InvalidArgument("drain", "", "the app is running: stop() it first, or wait with query(…, wait_for=…)")
        from headrace.flows.reading.inputs import wall_clock_us
        from headrace.flows.supervise import Supervisor

        total, asked_us = 0, (self._clock_us or wall_clock_us)()
        loops = [self.loop(flow) for flow in self.settle()]
        work = [Supervisor(loop, self.begun, batch_rows) for loop in loops]
        try:
            while (done := sum(each.work_off(asked_us) for each in work)) > 0:
                total += done
            if close:
                for loop, each in zip(loops, work, strict=True):  # what is closed may go on to the next
                    total += each.work_off(asked_us)
                    loop.close_windows(all_of_them=True)
        except BaseException:
            self._loops.clear()  # a loop that failed is not where its last commit is
            raise
        return total

    # -- for as long as it goes ----------------------------------------------------------------------

    def start(self, *, wait: Callable[[], bool] | None = None, take_over: bool = False, share: bool = False) -> None:
        """Runs all flows that do not run yet, each in a thread of its own, until `stop`; with `share` this runner's
        part of them."""
        with self._lock:
            if not self.flows:
                raise InvalidArgument("app", self._app, "has no flows: end a stream with .to_view(…) or .to_topic(…)")
            idle = [flow for flow in self.settle() if not self._runs(flow)]
            if share:
                return self._share(idle)
            for flow in idle:
                self._loops.pop(flow.name, None)
            if wait is not None:  # on standby, with all that can be had before: Spark runs, and the flows are checked
                for flow in idle:
                    self.query(flow)
            for flow in sorted(idle, key=lambda each: each.name):  # everywhere in one order: nobody waits in a circle
                self.take(flow, wait=wait, take_over=take_over)
            self._start(idle)

    def _start(self, idle: Sequence[Flow]) -> None:
        """Those that were taken."""
        from headrace.flows.supervise import Supervisor

        with self._lock:
            for flow in idle:
                self.query(flow)
            # What cannot begin is said here, not by a thread. Producers may be about to start, too: silence must last.
            begun = [self.begun(flow, at_once=False) for flow in idle]
            for loop in begun:
                supervisor = Supervisor(loop, self._again)
                self._supervisors[loop.flow.name] = supervisor
                supervisor.start()

    def _share(self, flows: Sequence[Flow]) -> None:
        from headrace.flows.sharing import Sharing

        leases = self.store.leases
        if leases is None:
            why = "needs views in Postgres (--views), whose leases say which runner has which flow"
            raise InvalidArgument("share", True, why)
        for flow in flows:
            self.query(flow)
        if self._sharing is None:
            self._sharing = Sharing(self, leases, self._app)

    def shared(self) -> tuple[list[str], list[str]]:
        """The names of the flows that run here, and of the others. One that was taken from here runs elsewhere."""
        with self._lock:
            for name, supervisor in list(self._supervisors.items()):
                taken = isinstance(supervisor.error, FlowFenced) and not supervisor.superseded
                if taken or (supervisor.error is None and supervisor.join(0)):  # let go, in a batch that took long
                    self._forget(name)
            return [*self._supervisors], [flow.name for flow in self.flows if flow.name not in self._supervisors]

    def begin_one(self, name: str) -> None:
        with self._lock:
            flow = self._flows[name]
            self._loops.pop(name, None)
            self.take(flow)
            try:
                self._start([flow])
            except BaseException:
                self._forget(name)
                raise

    def let_go(self, name: str) -> None:
        """In a batch that takes long: the next time."""
        supervisor = self._supervisors[name]
        supervisor.ask_to_stop()
        if supervisor.join(STOP_SECONDS) and supervisor.error is None:
            self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._supervisors.pop(name, None)
            if (lock := self._locks.pop(name, None)) is not None:
                lock.release()

    def _runs(self, flow: Flow) -> bool:
        """One that has failed does not."""
        return flow.name in self._supervisors and not self._supervisors[flow.name].join(0)

    def stop(self) -> None:
        """Stops all flows; another process may run them then."""
        if (sharing := self._sharing) is not None:
            self._sharing = None
            sharing.end()
        stopped = list(self._supervisors)
        self._end([self._supervisors[flow] for flow in stopped])
        self._supervisors.clear()
        for flow in stopped:
            if (lock := self._locks.pop(flow, None)) is not None:
                lock.release()

    def _end(self, supervisors: list[Supervisor]) -> None:
        """Lets the batches that run finish, for a while; then gives them up: they are read again by the next start."""
        for supervisor in supervisors:
            supervisor.ask_to_stop()
        limit = time.monotonic() + STOP_SECONDS
        if not all(supervisor.join(max(limit - time.monotonic(), 0)) for supervisor in supervisors):
            with contextlib.suppress(Exception):
                session.cancel(self.spark)
            for supervisor in supervisors:
                supervisor.join(STOP_SECONDS)

    def wait(self, timeout: float | None = None) -> bool:
        """Until all flows have ended, or for `timeout` seconds; re-raises what stopped one. True: all have ended. One
        whose view another program has rebuilt ends alone: the others go on."""
        limit = None if timeout is None else time.monotonic() + timeout
        while True:
            supervisors = list(self._supervisors.values())
            shares = self._sharing is not None
            ended = not shares and all(supervisor.join(0) for supervisor in supervisors)
            for supervisor in supervisors:
                taken = shares and isinstance(supervisor.error, FlowFenced)  # by another runner
                if supervisor.error is not None and (ended or not (supervisor.superseded or taken)):
                    raise supervisor.error
            if ended:
                return True
            left = 0.1 if limit is None else min(0.1, limit - time.monotonic())
            if left <= 0:
                return False
            running = next((each for each in supervisors if not each.join(0)), None)
            if running is None:  # other runners have all flows
                time.sleep(left)
            else:
                running.join(left)

    def status(self) -> AppStatus:
        readers: Mapping[str, Reader] = {}
        with contextlib.suppress(StorageError):  # it cannot be reached now: the flows that run say so themselves
            readers = open_views(self._home.views).readers()
        return AppStatus(self._status(flow, flow.name, readers) for flow in self.flows)

    def making(self, view: str) -> list[FlowStatus]:
        """How far the version is that is made beside the view."""
        flow, name = self._flows.get(view), version_name(view, "next")
        readers = open_views(self._home.views).readers(name)
        return [] if flow is None else [self._status(flow, name, readers)]

    def _status(self, flow: Flow, name: str, readers: Mapping[str, Reader]) -> FlowStatus:
        from headrace.flows.spark.spark_use import SparkUse
        from headrace.flows.supervise import Pulse

        supervisor, query = self._supervisors.get(name), self._queries.get(name)
        use = SparkUse() if query is None else query.spark_use
        pulse = supervisor.pulse if supervisor else Pulse(flow.name, state="stopped")
        lag, read, frontier = 0, 0, None
        kept: tuple[Kept, ...] = ()
        held: tuple[OpenTransaction, ...] = ()
        with contextlib.suppress(UnknownView, KeyError, StorageError, KafkaFailed):  # not run yet, or not reached now
            views = open_views(self._home.views)  # the store may be busy
            state, kept = views.state(name, topics=True), views.kept(name)
            frontier = None if state.frontier_us is None else from_us(state.frontier_us)
            sources = sources_of(self._log, branches(name, readers), state)
            lag, read = lag_of(sources) or 0, read_of(sources)  # of a topic that is gone its error says so
            held = tuple(holds_up(self._log, (source["topic"] for source in sources)))
        return FlowStatus(
            flow.name,
            pulse.state,
            pulse.rows,
            pulse.batches,
            pulse.rate,
            pulse.batch_seconds,
            lag,
            frontier,
            pulse.dead,
            pulse.restarts,
            pulse.error,
            read,
            pulse.committing_seconds,
            use.jobs,
            use.tasks,
            use.seconds,
            use.on_driver,
            kept,
            held,
        )

    def close(self, *, keep_session: bool = False) -> None:
        self._closed = True
        self.stop()
        if not self._starting:  # else another thread starts Spark, for seconds; it lets go when Spark is there
            self._let_go(keep_session=keep_session)

    def _let_go(self, *, keep_session: bool = False) -> None:
        with self._lock:
            self.stop()  # flows that a start in another thread began meanwhile
            for lock in list(self._locks.values()):  # another thread may be stopping flows
                lock.release()
            self._locks.clear()
            if self._store is not None:
                self._store.close()
            if self._session is not None and self._owned and not keep_session:
                session.stop(self._session)
