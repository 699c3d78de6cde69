"""What a user writes begins here: an app, with its topics, its flows and their running. Owns the home and what is open
in it; `streams` makes the flows, `flows` runs them.

    app = App("shop")
    clicks = app.topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
    app.stream(clicks).window(hr.tumbling("1 minute")).group_by("page").agg(views=hr.count()).to_view("views")
    app.drain()

Writing a program creates nothing, opens nothing and starts nothing. A topic is created when it is first used, and Spark
starts when flows are checked or run, or when a topic is used that one of them is yet to create: its columns only Spark
can tell."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

from headrace.beside import AllBeside
from headrace.calls import ID, answers_of
from headrace.durations import Duration, duration_us
from headrace.errors import (
    AlreadyRunning,
    Closed,
    DuplicateView,
    FlowCycle,
    InvalidArgument,
    LogMissing,
    UnknownTopic,
    UnknownView,
    closest,
)
from headrace.flows import graph
from headrace.flows.flow import Flow, circle
from headrace.flows.plan import plan, writes_changes
from headrace.log.capabilities import Foreign
from headrace.log.contract import Log, Topic
from headrace.log.declared import DeclaredTopic, check_agrees, check_declaration, check_fits, declare
from headrace.log.open import Kafka, log_address, open_address, trial_log
from headrace.log.settings import TopicSettings, settings_of
from headrace.log.starting import check_start
from headrace.names import check_name
from headrace.operators.joins.meetings import OP, History, TableJoining, Tabling, with_op
from headrace.places import ADDRESS, Home, directory, without_secrets
from headrace.position import Position
from headrace.rendering import html_table
from headrace.storage import disk
from headrace.streams import Aggregated, Stream
from headrace.view import View
from headrace.views.contract import Emit, check_emit, feed_topic
from headrace.views.past import arrival_of
from headrace.views.reading import AsOf

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.capture import Capture
    from headrace.flows.audit import Audited
    from headrace.flows.flow import SparkSession
    from headrace.flows.query import FlowQuery
    from headrace.flows.rebuild import Rebuild
    from headrace.flows.running import Running
    from headrace.flows.status import AppStatus
    from headrace.log.contract import Start
    from headrace.notebook import Live
    from headrace.queries import Queries
    from headrace.rules import Rules
    from headrace.sink import Sink
    from headrace.sourcing.entities import Entities
    from headrace.supervised import Supervised
    from headrace.table import Table
    from headrace.views.reading import SqlViews

HOME = ".headrace"

overrides: dict[str, Any] = {}
"""`home` and `spark` from the command line: they override what the program says."""


class App:
    """A program of streams and views. `home`: the directory of log and views; ":temp:" for a temporary one, removed
    with the app. `log`: in place of the one in the home, a Kafka cluster (`hr.kafka("host:9092")`,
    "kafka://host:9092"), or an open log, which the caller closes. `views`: None, because they
    are in the home and nowhere else yet. `spark`: a SparkSession, a master, or a mapping of settings; by default
    headrace starts a local session. `batch_rows`: the most records of a batch; None chooses by the flow's lag and the
    length of its commits. `driver_rows`: batches of at most this many records may be folded on the driver, by the
    kernels that Spark's workers run; 0 makes every batch a Spark job. `clock_us`: returns the time in microseconds, for
    log and flows; for tests."""

    def __init__(
        self,
        name: str,
        *,
        home: str | Path | None = None,
        log: Log | Kafka | str | None = None,
        views: str | None = None,
        spark: SparkSession | str | Mapping[str, Any] | None = None,
        batch_rows: int | None = None,
        driver_rows: int = 10_000,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self.name = check_name(name, argument="name")
        self.batch_rows = None if batch_rows is None else _checked_rows(batch_rows)
        self.driver_rows = _checked_rows(driver_rows, argument="driver_rows", least=0)
        self._given_views = None if views is None else _checked_views(views)
        if log is not None and not isinstance(log, Log):
            log = log_address(log)
        self._given_home, self._spark, self._clock_us = home, spark, clock_us
        self._home: Path | None = None
        self._remove_home: Callable[[], object] | None = None
        self._given_log = log
        self._log: Log | None = None
        self._running: Running | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._checked: dict[str, FlowQuery] = {}
        self._lives: dict[str, Live] = {}
        self._topics: list[DeclaredTopic] = []
        """What the program declares with `topic(…)`."""
        self._created: list[DeclaredTopic] = []
        """Of these, those that are created if there are none."""
        self._targets: dict[str, DeclaredTopic] = {}
        """The topics that its flows write to."""
        self._tables: dict[str, Table] = {}
        self.beside = AllBeside()
        """What runs beside its flows."""
        self.flows: dict[str, Flow] = {}

    def __repr__(self) -> str:
        return f"<app {self.name!r} in {self._given_home or HOME}>"

    def _repr_html_(self) -> str:
        """For notebooks: its flows and their state."""
        known = {} if self._running is None or self._closed else {each.flow: each for each in self._running.status()}
        rows = []
        for flow in self.flows.values():
            status = known.get(flow.name)
            sources = ", ".join(topic.name for topic in flow.topics)
            into = f"view {flow.name}" if flow.target is None else f"topic {flow.target}"
            facts = (status.state, status.rows, status.lag, status.frontier, status.error) if status else ("not run",)
            rows.append((f"topic {sources}", into, *facts))
        columns = ("from", "into", "state", "rows", "lag", "complete to", "error")
        note = "" if rows else "no flows yet: app.stream(topic) … .to_view(name)"
        caption = f"app {self.name} in {self._home or self._given_home or HOME}{', closed' if self._closed else ''}"
        return html_table(caption, columns if rows else (), rows, note)

    # -- where it lives ----------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        """The directory of log and views."""
        with self._lock:
            if self._home is None:
                given = overrides.get("home") or self._given_home or os.environ.get("HEADRACE_HOME") or HOME
                if str(given) == ":temp:":
                    made = tempfile.mkdtemp(prefix="headrace-")
                    self._home = Path(made)
                    self._remove_home = weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
                else:
                    self._home = directory(given)
            return self._home

    @property
    def _place(self) -> Home:
        elsewhere = self._elsewhere()
        log = None if elsewhere is None else elsewhere.address
        return Home.at(self.home, log=log, views=self._views_address())

    def _elsewhere(self) -> Log | Kafka | None:
        """The log, if it is not in the home: as the command line, the program or the environment says."""
        said = overrides.get("log")
        if said is None and self._given_log is not None:
            return self._given_log
        said = said or os.environ.get("HEADRACE_LOG")
        return log_address(said) if said else None

    def _views_address(self) -> str | None:
        """Where the views are, if that is not the home."""
        said = overrides.get("views") or self._given_views or os.environ.get("HEADRACE_VIEWS")
        return _checked_views(said) if said else None

    @property
    def views_at(self) -> str | Path:
        """Where the views are: the home, or an address, which may hold a password."""
        return self._views_address() or self.home

    @property
    def log_at(self) -> str | None:
        """The log's address; None: it is in the home."""
        elsewhere = self._elsewhere()
        return None if elsewhere is None else elsewhere.address

    @property
    def log(self) -> Log:
        """The log in the home, with the topics that the program declares; opened, and they created, when first used."""
        log = self._open_log()
        for topic in self._created:
            topic.opened()
        return log

    def _open_log(self) -> Log:
        if self._log is not None and not self._closed:  # without the lock, which whoever waits for a flow may hold
            return self._log
        with self._lock:
            self._check_open()
            if self._log is None:
                elsewhere = self._elsewhere()
                self._log = elsewhere if isinstance(elsewhere, Log) else self._log_there(create=True)
            return self._log

    def _log_there(self, *, create: bool) -> Log:
        elsewhere = self._elsewhere()
        assert not isinstance(elsewhere, Log)
        return open_address(elsewhere or self.home, create=create, clock_us=self._clock_us)

    def _check(self) -> None:
        """Whether all flows can be run. Makes nothing in the log. Call nothing but `close` after this."""
        given = self._elsewhere()
        before = there = given if isinstance(given, Log) else self._log
        with contextlib.ExitStack() as until:
            if before is None:
                with contextlib.suppress(LogMissing):
                    there = self._log_there(create=False)
                    until.callback(there.close)
            beside = until.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
            self._log = until.enter_context(trial_log(Path(beside), there))
            until.callback(setattr, self, "_log", before)
            disk.make_directory(self.home)  # Spark writes there
            self.running.check()
            for each in self.beside:
                each.check()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(what=f"the app {self.name!r}")

    # -- what it is made of ------------------------------------------------------------------------

    def topic(self, name: str, schema: Any = None, *, create: bool = True, **settings: Any) -> DeclaredTopic:
        """The topic of that name. Its first use creates it if it does not exist, unless `create=False`. A topic that
        exists must have these columns, this key and this event time; it may have more columns. The first use checks
        that, too. On Kafka, `create=False` with a schema adopts a topic that others write."""
        if "exist_ok" in settings:
            why = "leave it out: app.topic(…) takes the topic that is there, and makes it only if there is none"
            raise InvalidArgument("exist_ok", settings["exist_ok"], why)
        check_name(name, argument="name")
        if create and schema is None:
            raise InvalidArgument("schema", None, f"topic {name!r} needs one, such as 'user string, at timestamp'")
        columns, declared = check_declaration(schema, settings) if create else (None, None)
        for earlier in self._topics:
            if earlier.name == name:
                check_agrees(earlier, schema, settings)

        def open() -> Topic:
            log = self._open_log()
            if not create and schema is not None and isinstance(log, Foreign):
                return log.adopt_topic(name, schema, **settings)
            found = log.create_topic(name, columns, exist_ok=True, **settings) if create else log.topic(name)
            check_fits(name, schema, settings, found.schema, found.settings)
            return found

        topic = declare(name, open, columns, declared)
        self._topics.append(topic)
        if create:
            self._created.append(topic)
        return topic

    def table(
        self,
        name: str,
        schema: Any,
        *,
        key: str | Sequence[str],
        event_time: str | None = None,
        history: History = "latest",
        keep: Duration | None = None,
        loads: bool = False,
        **settings: Any,
    ) -> Table:
        """A table of that name: rows by key, which are put and deleted. Its changes are in a topic, its rows in a view.
        `event_time`: the column that says from when on a row is valid. `history`: "latest" keeps the rows as they are
        now, "versions" also those before, with the time for which each was valid, "bitemporal" also when that was
        known. `keep`: how long a version is kept after it was valid, by the newest arrival; without it, for ever.
        `loads`: the table is loaded after the records that look up in it: they are open until `table.loaded()`.
        `settings`: of the topic."""
        from headrace.table import Table

        check_name(name, argument="name")
        if history not in get_args(History):
            raise InvalidArgument("history", history, f"must be one of {', '.join(map(repr, get_args(History)))}")
        keep_us = None if keep is None else duration_us(keep, argument="keep")
        if keep is not None and history != "versions":
            why = "bounds a history of versions: leave it out, or make the table with history='versions'"
            raise InvalidArgument("keep", keep, why)
        for given in settings:
            if near := closest(given, ["event_time", "history", "keep", "loads"]):
                raise InvalidArgument(given, settings[given], f"there is no such setting. Did you mean {near[0]!r}?")
        for taken in ("cleanup", "changes", "versioned"):
            if taken in settings:
                raise InvalidArgument(taken, settings[taken], "is decided by the table's history: leave it out")
        keys = (key,) if isinstance(key, str) else tuple(key)
        plain, _ = check_declaration(schema, {"key": keys, "event_time": event_time})
        if OP in plain.names:
            raise InvalidArgument("schema", OP, "is the column that says what a record does to its row")
        cleanup = "compact" if history == "latest" and not loads else "delete"
        topic = self.topic(name, with_op(plain), key=keys, event_time=event_time, cleanup=cleanup, **settings)
        if cleanup == "delete":
            topic.alter_at_first_use(cleanup="delete")
        step = Tabling(keys, event_time, history, keep_us)
        self._add(graph.Sink(name, graph.Meet((("records", graph.Source(topic)),), step)))
        made = self._tables[name] = Table(self, name, topic, plain, keys, event_time, history, keep_us, loads)
        return made

    def answers(self, requests: str, flow: Stream | Aggregated, **settings: Any) -> DeclaredTopic:
        """The flow answers the requests in the topic `requests`: its rows have the request's `id`, and go to the topic
        `REQUESTS.answers`, where `hr.call` finds them. `settings`: of that topic; in a log in a directory it is
        versioned, so that requests can be taken back."""
        elsewhere = self._elsewhere()
        settings.setdefault("versioned", elsewhere is None or not ADDRESS.match(elsewhere.address))
        return flow.to_topic(answers_of(requests), key=ID, **settings)

    def queries(self, name: str, *, tenant: str | None = None, **settings: Any) -> Queries:
        """Stored queries of that name, for `stream.search(…)`: put and removed while flows run. They are a table.
        `tenant`: the column of the searched records that says whose they are: a tenant's queries are asked of its
        records only. `settings`: of the topic."""
        from headrace.queries import Queries, queries_table

        return Queries(queries_table(self, name, tenant, settings), tenant)

    def rules(
        self,
        name: str,
        schema: Any,
        *,
        within: Duration = "1 hour",
        most: int = 1_000,
        **settings: Any,
    ) -> Rules:
        """Rules of that name, for `stream.match(rules, by=…)`: conditions and patterns that are put, changed and
        removed while flows run. They are a table. `schema`: the columns of the records that rules may name. `within`:
        the most that a rule's own may be; `most`: so many rules there may be. `settings`: of the topic."""
        from headrace.rules import Rules, rules_table

        return Rules(rules_table(self, name, settings), schema, within, most)

    def capture(
        self,
        name: str,
        url: str,
        *,
        tables: Sequence[str] | None = None,
        mask: Mapping[str, str] | None = None,
        debezium: str | None = None,
        debezium_schemas: bool = False,
    ) -> Capture:
        """Captures the tables of another database, `postgresql://…`, `mysql://…` or `sqlite:///…`: what they have, then
        what is done to them; or the events that `hr.outbox(…)` and `hr.debezium(…)` say.
        `tables`: patterns, "public.*" by default; "!public.audit" leaves one out. `mask`: {"users.email": "hash"} or
        "null". A password is best a reference: `?password=env:NAME` or `file:PATH`. `.table("users")` is one of them as
        a table of the app. `debezium`: a prefix; each change is written as an event in Debezium's envelope, too, to the
        topic PREFIX.SCHEMA.TABLE, with a schema block if `debezium_schemas`."""
        from headrace.capture import Capture

        made = Capture(self, name, url, tables, mask, debezium, debezium_schemas)
        return self.beside.put(made, again=_in_notebook())

    def supervise(self, manager: Entities[Any]) -> Supervised:
        """Runs the process manager while the app runs, and again after what passes. Of entities on Kafka it handles the
        commands; in a log in a directory callers do that, and there is nothing to run."""
        from headrace.sourcing.processes import ProcessManager
        from headrace.supervised import Supervised, SupervisedEntities

        kind = Supervised if isinstance(manager, ProcessManager) else SupervisedEntities
        return self.beside.put(kind(self, manager), again=_in_notebook())

    def stream(
        self,
        source: Topic | View | str,
        *,
        name: str | None = None,
        start: Start = "earliest",
        emit: Emit = "updates",
    ) -> Stream:
        """The records of a topic, or the changes of a view of this app, or the changes that a flow wrote to a topic. If
        a topic of the program and a view have the same name, that name means the topic. `name`: errors about its
        transforms use it in place of the topic's name; it may change at any time. `start` applies to the first run of
        the flow. `emit`, for a view: "updates" gives every change, "final" each result once, when its window is final,
        and then only corrections."""
        if name is not None:
            check_name(name, argument="name")
        if isinstance(source, str):
            source = self._named(source)
        if isinstance(source, View):
            if start != "earliest":
                why = "the changes of a view are read from the beginning, or its rows would not add up. Leave it out"
                raise InvalidArgument("start", start, why)
            view, emit = self._flow(source.name), check_emit(emit)
            return Stream(self, graph.Changes(view, self._feed(view.name, emit), emit, name))
        if not isinstance(source, DeclaredTopic | Topic):
            raise InvalidArgument("source", source, "must be a topic: app.topic(…), a view, or the name of one")
        if emit != "updates":
            why = "is for the changes of a view, not for the records of a topic. Leave it out"
            raise InvalidArgument("emit", emit, why)
        return Stream(self, graph.Source(source, check_start(start), name))

    def _named(self, name: str) -> DeclaredTopic | View:
        """A topic of the program, or a view; any other name is a topic's that is there."""
        found = (
            self._tables.get(name)
            or self._targets.get(name)
            or next((each for each in self._topics if each.name == name), None)
        )
        if found is not None:
            return found
        if name in self.flows and self.flows[name].target is None:
            return View(self, name)
        return declare(name, lambda: self._open_log().topic(name))

    def _feed(self, view: str, emit: Emit) -> DeclaredTopic:
        """The topic with the changes of a view, for flows over it."""
        return declare(feed_topic(view, emit), lambda: self.running.written.feed(self._flow(view), emit))

    def _written(self, flow: Flow) -> DeclaredTopic:
        """The topic that a flow writes to."""
        assert flow.target is not None
        name, sink = flow.name, flow.sink
        changes = flow.records or flow.meets is not None if sink is None else writes_changes(sink)
        return declare(
            flow.target,
            lambda: self.running.written.target(self._flow(name)),
            declared=TopicSettings(changes=changes),
        )

    def view(self, name: str) -> View:
        """The view of that name, of this app or of another app of the home."""
        return View(self, check_name(name, argument="name"))

    def _add(self, sink: graph.Sink) -> Flow:
        """Refuses a second flow into one view, and flows that read what they write. In a notebook, running a cell again
        replaces its flow."""
        with self._lock:
            planned = {flow.name: flow for flow in plan(sink, self._written)}
            if _in_notebook():
                self._replace_earlier()
            elif known := self.flows.keys() & planned.keys():
                raise DuplicateView(view=known.pop())
            self._refuse_history_names(planned)
            fed = {flow.name: flow for flow in self._feeding(sink)}
            flows = {**self.flows, **fed, **planned}
            for name, flow in planned.items():
                if names := circle(flow, (other for other in flows.values() if other.name != name)):
                    raise FlowCycle(flows=names)
            self.flows.update({**fed, **planned})
            if self._running is not None:
                for flow in (*fed.values(), *planned.values()):
                    self._running.replaced(flow)
            return planned[sink.name]

    def _refuse_history_names(self, planned: Mapping[str, Flow]) -> None:
        """A table's history is read as `NAME_history`: no view may be called so."""
        flows = {**self.flows, **planned}
        kept = [
            flow.name
            for flow in flows.values()
            if isinstance(flow.meets, Tabling | TableJoining) and flow.meets.history != "latest"
        ]
        taken = {f"{name}_history".lower(): name for name in kept}
        for name in flows:
            if name.lower() in taken:
                why = f"is what the history of {taken[name.lower()]!r} is called: choose another name"
                raise InvalidArgument("name", name, why)

    def _feeding(self, sink: graph.Sink) -> list[Flow]:
        """The flows whose views' changes the sink reads, where they do not leave these for others yet."""
        read = [node for node in graph.walk(sink) if isinstance(node, graph.Changes)]
        found = [(self.flows[node.view.name], node.emit) for node in read if node.view.name in self.flows]
        return [replace(flow, feeds=(*flow.feeds, emit)) for flow, emit in found if emit not in flow.feeds]

    def _add_to_topic(self, sink: graph.Sink) -> DeclaredTopic:
        settings_of(sink.settings, base=TopicSettings(key=("",)))  # a key may follow from the flow
        topic = self._targets[sink.name] = self._written(self._add(sink))
        return topic

    def _add_sink(self, sink: Sink) -> Sink:
        return self.beside.put(sink, again=_in_notebook())

    def _settled(self, flow: Flow) -> Flow:
        """The flow, planned again if it reads a topic that has turned out to hold changes."""
        if flow.sink is None or all(each.changes or not each.topic.settings.changes for each in flow.inputs):
            return flow
        planned = replace(plan(flow.sink, self._written)[-1], feeds=flow.feeds)
        self.flows[flow.name] = planned
        return planned

    def _replace_earlier(self) -> None:
        """The app that an earlier run of the same cell made lets go of its flows, and of a temporary home; its Spark
        session stays, for us."""
        earlier = _of_cells.get((self.name, str(self._given_home)))
        _of_cells[self.name, str(self._given_home)] = self
        if earlier is not None and earlier is not self:
            earlier._stop_lives()
            if earlier._running is not None:
                earlier._running.close(keep_session=True)
                earlier._running = None
            if earlier._remove_home is not None:
                earlier.close()

    # -- running -----------------------------------------------------------------------------------

    @property
    def running(self) -> Running:
        """The flows with their session and store: made when first used, with the topics that the program declares."""
        running = self._open_running()
        for topic in self._topics:
            topic.opened()
        return running

    def _open_running(self) -> Running:
        from headrace.flows.running import Running

        if self._running is not None:
            return self._running
        with self._lock:
            if self._running is None:
                self._running = Running(
                    self.name,
                    self.flows,
                    self._open_log(),
                    self._place,
                    overrides.get("spark", self._spark) or os.environ.get("HEADRACE_SPARK"),
                    self.batch_rows,
                    self._checked,
                    self._clock_us,
                    driver_rows=self.driver_rows,
                    throwaway=self._remove_home is not None,
                    settled=self._settled,
                )
            return self._running

    def drain(self, batch_rows: int | None = None, *, close: bool = False) -> int:
        """Processes all records there are, and returns how many. `close=True` also closes every window. What captured
        databases have committed by now is captured first, then process managers do what is due, and sinks get it all at
        last."""
        self.beside.drain(behind=False)
        rows = None if batch_rows is None else _checked_rows(batch_rows)
        total = self.running.drain(rows, close=close) if self._has_flows else 0
        return total + self.beside.drain(behind=True)

    @property
    def _has_flows(self) -> bool:
        """Whether flows are to be run, or there is nothing at all: what runs beside them does without Spark."""
        return bool(self.flows) or not self.beside

    def start(self, *, standby: bool = False, take_over: bool = False, share: bool = False) -> None:
        """Runs all flows in the background, until `stop`; called again, it starts those that do not run. Raises
        AlreadyRunning if another process runs them: `standby=True` waits for its end, `take_over=True` takes over.
        `share=True`: several processes that say so have a part of the flows each; with views in Postgres."""
        self.begin(wait=(lambda: True) if standby else None, take_over=take_over, share=share)

    def begin(self, *, wait: Callable[[], bool] | None, take_over: bool, share: bool = False) -> None:
        """As `start`; on standby as long as `wait()` says so. Of runners that share the flows, one captures and
        one delivers."""
        ignore: tuple[type[Exception], ...] = (AlreadyRunning,) if share else ()
        self.beside.start(behind=False, wait=wait, take_over=take_over, ignore=ignore)
        if self._has_flows:
            self.running.start(wait=wait, take_over=take_over, share=share)
        self.beside.start(behind=True, wait=wait, take_over=take_over, ignore=ignore)

    def stop(self) -> None:
        """Stops captures and flows in bounded time. What is not committed is read again by the next start."""
        self.beside.stop(behind=False)
        if self._running is not None:
            self._running.stop()
        self.beside.stop(behind=True)
        self._stop_lives()

    def _stop_lives(self) -> None:
        while self._lives:
            self._lives.popitem()[1].stop()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until the flows have ended, or for `timeout`. Raises the error that stopped one. True if they ended."""
        seconds = None if timeout is None else duration_us(timeout, argument="timeout") / 1e6
        if not self.beside:
            return self.running.wait(seconds)
        return self.beside.wait(self.running.wait if self.flows else None, seconds)

    def run(self, *, standby: bool = False, take_over: bool = False, share: bool = False) -> None:
        """Runs all flows until they are stopped by Ctrl-C, or fail."""
        self.start(standby=standby, take_over=take_over, share=share)
        try:
            self.wait()
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()

    def status(self) -> AppStatus:
        """The state of each flow: rows, rate, lag, frontier, errors, and what Spark ran for it."""
        return self.running.status()

    def audit(self) -> Audited:
        """Recomputes every view as a batch over the log, and compares: `app.audit().ok`."""
        from headrace.flows.audit import audit

        running = self.running
        return audit([running.query(flow) for flow in running.settle()], self.log, self._place)

    def rebuild(self, view: str, *, start: Start = "earliest") -> Rebuild:
        """Computes the view again with this program, from `start`, beside the version that is served, which may keep
        running. Returns the new version: `diff()` shows what changes, then `switch()` or `discard()` it. A version
        that the same program made before, and did not switch to, is continued."""
        return self.running.rebuild(self._flow(view), check_start(start))

    def rollback(self, view: str) -> None:
        """Switches back to the version that was served before the last switch, as it was then."""
        self._flow(view)
        self.running.roll_back(view)

    def _flow(self, view: str) -> Flow:
        if view not in self.flows:
            raise UnknownView(view=view, known=[name for name, flow in self.flows.items() if flow.target is None])
        return self.flows[view]

    def replace(
        self,
        *,
        home: str | Path,
        log: None = None,
        views: str | None = None,
        spark: Any = None,
        clock_us: Callable[[], int] | None = None,
    ) -> App:
        """The same program in another home: it creates topics of the same settings there, and has the same flows. Flows
        that were checked here are not checked again."""
        other = App(
            self.name,
            home=home,
            log=log,
            views=views,
            spark=self._spark if spark is None else spark,
            batch_rows=self.batch_rows,
            driver_rows=self.driver_rows,
            clock_us=clock_us or self._clock_us,
        )
        other._checked = self._checked
        moved: dict[str, Topic] = {
            flow.target: other._written(flow) for flow in self.flows.values() if flow.target is not None
        }
        for flow in self.running.settle():
            if flow.target is None:
                moved |= {feed_topic(flow.name, emit): other._feed(flow.name, emit) for emit in flow.feeds}
            for topic in flow.topics:
                if topic.name not in moved:
                    moved[topic.name] = other._open_log().clone_topic(topic)
            if flow.target is not None and flow.parent is None:
                with contextlib.suppress(UnknownTopic):
                    other._open_log().clone_topic(self.log.topic(flow.target))
            inputs = tuple(replace(each, topic=moved[each.topic.name]) for each in flow.inputs)
            other.flows[flow.name] = replace(flow, inputs=inputs)
        return other

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        wait_for: Position | None = None,
        timeout: Duration = "5 seconds",
        as_of: AsOf | None = None,
    ) -> pa.Table:
        """Read-only SQL over the views, parameters bound. `as_of`: a time, or a position, at which tables and views
        with a history are read; others are refused then."""
        if isinstance(as_of, Position):
            wait_for = as_of if wait_for is None else wait_for | as_of
            as_of = arrival_of(self.log, as_of)
        return self.views.query(sql, params, wait_for=wait_for, timeout=timeout, as_of=as_of)

    @property
    def views(self) -> SqlViews:
        """The views of the app, for reading: as `hr.open_views(app.home)`, or of the address that `views=` says."""
        from headrace.views.open import open_views

        return open_views(self.views_at)

    def close(self) -> None:
        """Stops the flows and closes log, store and session. Removes a temporary home."""
        with self._lock:
            if self._closed:
                return
            self.beside.stop(behind=False)
            self._closed = True
            if self._running is not None:
                self._running.close()
            self.beside.stop(behind=True)
            self._stop_lives()
            if self._log is not None and self._given_log is None:
                self._log.close()
            if self._remove_home is not None:
                self._remove_home()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked_rows(rows: Any, *, argument: str = "batch_rows", least: int = 1) -> int:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < least:
        raise InvalidArgument(argument, rows, f"must be a whole number, {least} or more")
    return rows


def _checked_views(address: object) -> str:
    if isinstance(address, str) and address.startswith(("postgresql://", "postgres://")):
        return address
    why = "views are in the home, or in Postgres: views='postgresql://user@host/database'"
    raise InvalidArgument("views", without_secrets(address), why)


_of_cells: dict[tuple[str, str], App] = {}
"""The app of each name and home that has flows, in a notebook."""


def _in_notebook() -> bool:
    import builtins

    return hasattr(builtins, "__IPYTHON__")
