"""What a user writes begins here: an app, with its topics, its flows and their running. Owns the home and what is open
in it; `streams` makes the flows, `flows` runs them.

    app = App("shop")
    clicks = app.topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
    app.stream(clicks).window(hr.tumbling("1 minute")).group_by("page").agg(views=hr.count()).to_view("views")
    app.drain()

No Spark session is made before a flow is run, but for one that writes to a topic which is not there yet: its columns
only Spark can tell."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.durations import Duration, duration_us
from headrace.errors import Closed, DuplicateView, FlowCycle, InvalidArgument, UnknownView, nearest
from headrace.flows.flow import Flow, Source, circle
from headrace.log.contract import Log, Topic
from headrace.log.open import open_log
from headrace.log.starting import check_start
from headrace.names import check_name
from headrace.places import Home, directory, without_secrets
from headrace.position import Position
from headrace.rendering import html_table
from headrace.streams import Stream
from headrace.view import View
from headrace.views.contract import Emit, check_emit

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.flows.audit import Audited
    from headrace.flows.flow import SparkSession
    from headrace.flows.query import FlowQuery
    from headrace.flows.rebuild import Rebuild
    from headrace.flows.running import AppStatus, Running
    from headrace.log.contract import Start
    from headrace.notebook import Live
    from headrace.views.reading import Views

HOME = ".headrace"

overrides: dict[str, Any] = {}
"""What the command line says of `home` and `spark`: it comes over what programs say."""


class App:
    """A program of streams and views. `home`: the directory of log and views; ":temp:" for one that goes with the app.
    `log`: an open log, in place of the one in the home; whoever opened it closes it. `views`: None, for they are in the
    home and nowhere else yet. `spark`: a SparkSession, a master, a mapping
    of settings; by default a local session of our own. `batch_rows`: no batch has more records; None: as many as suit
    how far a flow is behind, and how long its commits take. `driver_rows`: batches up to so many records may be folded
    on the driver, by the kernels that Spark's workers run; 0: every batch is a Spark job. `clock_us`: what time it is,
    in microseconds, for log and flows; for tests."""

    def __init__(
        self,
        name: str,
        *,
        home: str | Path | None = None,
        log: Log | None = None,
        views: None = None,
        spark: SparkSession | str | Mapping[str, Any] | None = None,
        batch_rows: int | None = None,
        driver_rows: int = 10_000,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self.name = check_name(name, argument="name")
        self.batch_rows = None if batch_rows is None else _checked_rows(batch_rows)
        self.driver_rows = _checked_rows(driver_rows, argument="driver_rows", least=0)
        _check_in_home(log=None if isinstance(log, Log) else log, views=views)
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
        self.flows: dict[str, Flow] = {}

    def __repr__(self) -> str:
        return f"<app {self.name!r} in {self._given_home or HOME}>"

    def _repr_html_(self) -> str:
        """For notebooks: its flows, and how they do."""
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
        return Home.at(self.home, log=None if self._given_log is None else self._given_log.address)

    @property
    def log(self) -> Log:
        """The log in the home; opened when first used."""
        with self._lock:
            if self._closed:
                raise Closed(what=f"the app {self.name!r}")
            if self._log is None:
                self._log = self._given_log or open_log(self.home, clock_us=self._clock_us)
            return self._log

    # -- what it is made of ------------------------------------------------------------------------

    def topic(self, name: str, schema: Any = None, *, create: bool = True, **settings: Any) -> Topic:
        """The topic of that name; made if there is none, unless `create=False`. One that is there must have the
        columns, key and event time asked for."""
        if "exist_ok" in settings:
            why = "leave it out: app.topic(…) takes the topic that is there, and makes it only if there is none"
            raise InvalidArgument("exist_ok", settings["exist_ok"], why)
        if not create:
            return _adopted(self.log.topic(name), schema, settings)
        if schema is None:
            raise InvalidArgument("schema", None, f"topic {name!r} needs one, such as 'user string, at timestamp'")
        return _adopted(self.log.create_topic(name, schema, exist_ok=True, **settings), schema, settings)

    def stream(
        self,
        source: Topic | View | str,
        *,
        name: str | None = None,
        start: Start = "earliest",
        emit: Emit = "updates",
    ) -> Stream:
        """The records of a topic, or the changes of a view of this app; where a flow has written changes to the topic,
        these. `name`: what errors about its transforms call
        it, in place of the topic; it may change at any time. `start` counts when the flow is run for the first time.
        `emit`: of a view, every change, or with "final" each result once, when its window is closed, and then
        corrections only."""
        if name is not None:
            check_name(name, argument="name")
        if isinstance(source, View) or (isinstance(source, str) and self._is_view(source)):
            return self._changes_of(source if isinstance(source, str) else source.name, name, start, check_emit(emit))
        topic = self.log.topic(source) if isinstance(source, str) else source
        if not isinstance(topic, Topic):
            raise InvalidArgument("source", source, "must be a topic: app.topic(…), a view, or the name of one")
        if emit != "updates":
            raise InvalidArgument("emit", emit, "is for the changes of views: the records of a topic all come")
        if topic.settings.changes and start != "earliest":
            raise InvalidArgument("start", start, "of a topic of changes all are read, or its rows would not add up")
        return Stream(self, (Source(topic, check_start(start), changes=topic.settings.changes, name=name),))

    def _changes_of(self, view: str, name: str | None, start: Start, emit: Emit) -> Stream:
        """The view's flow is told to leave its changes where flows over it read them."""
        flow = self._flow(view)
        if start != "earliest":
            raise InvalidArgument("start", start, "of a view's changes all are read, or its rows would not add up")
        if flow.target is not None:
            raise InvalidArgument("source", view, f"is no view, but a flow into topic {flow.target!r}: stream that")
        if emit == "final" and flow.window is None:
            raise InvalidArgument("emit", emit, "without a window no result is ever final: use emit='updates'")
        if flow.lives:
            why = "drops groups when no record has come for so long (keep=…), and that is no change"
            raise InvalidArgument("source", view, f"{why}. Make a view of the same without keep=, and stream that")
        if flow.fill is not None:
            why = f"fills gaps when it is read (fill={flow.fill!r}), and rows that fill gaps are no changes"
            raise InvalidArgument("source", view, f"{why}. Make a view of the same without fill=, and stream that")
        topic = self.running.feed(flow, emit)
        if emit not in flow.feeds:
            self.flows[view] = replace(flow, feeds=(*flow.feeds, emit))
            self.running.replaced(self.flows[view])
        return Stream(self, (Source(topic, changes=True, name=name),), upstream=flow)

    def _is_view(self, name: str) -> bool:
        """And no topic: a topic and a view may have one name."""
        view = name in self.flows and self.flows[name].target is None
        return view and name not in {topic.name for topic in self.log.topics()}

    def view(self, name: str) -> View:
        """The view of that name, made by this app or by another one of the home."""
        return View(self, check_name(name, argument="name"))

    def _add(self, flow: Flow) -> None:
        """Two flows cannot write one view, and none reads what it writes, by way of others either; in a notebook,
        running a cell again replaces its flow."""
        with self._lock:
            if _in_notebook():
                self._replace_earlier()
            elif flow.name in self.flows:
                raise DuplicateView(view=flow.name)
            if names := circle(flow, (other for other in self.flows.values() if other.name != flow.name)):
                if (before := f"{flow.name}.dedup") in names:
                    del self.flows[before]  # nobody else reads what that lets through
                raise FlowCycle(flows=names)
            self.flows[flow.name] = flow
            if self._running is not None:
                self._running.replaced(flow)

    def _add_to_topic(self, flow: Flow, settings: Mapping[str, Any]) -> Topic:
        """The same of a flow into a topic; if it cannot have that, it is not one of ours."""
        self._add(flow)
        try:
            return self.running.target(flow, settings)
        except BaseException:
            del self.flows[flow.name]
            raise

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
        """The flows with their session and store: made when first used."""
        from headrace.flows.running import Running

        with self._lock:
            if self._running is None:
                self._running = Running(
                    self.name,
                    self.flows,
                    self.log,
                    self._place,
                    overrides.get("spark", self._spark) or os.environ.get("HEADRACE_SPARK"),
                    self.batch_rows,
                    self._checked,
                    self._clock_us,
                    driver_rows=self.driver_rows,
                    throwaway=self._remove_home is not None,
                )
            return self._running

    def drain(self, batch_rows: int | None = None, *, close: bool = False) -> int:
        """Processes all there is, then returns; how many records. `close=True` also closes every window."""
        return self.running.drain(None if batch_rows is None else _checked_rows(batch_rows), close=close)

    def start(self, *, standby: bool = False, take_over: bool = False) -> None:
        """Runs all flows in the background, until `stop`; called again, those that do not run. AlreadyRunning if
        another process does: `standby=True` waits for its end, `take_over=True` takes the flows from it."""
        self.running.start(wait=(lambda: True) if standby else None, take_over=take_over)

    def stop(self) -> None:
        """Stops the flows in bounded time. What is not committed is read again by the next start."""
        self.running.stop()
        self._stop_lives()

    def _stop_lives(self) -> None:
        while self._lives:
            self._lives.popitem()[1].stop()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Until the flows have ended, or for `timeout`; re-raises what stopped one. True: they have ended."""
        return self.running.wait(None if timeout is None else duration_us(timeout, argument="timeout") / 1e6)

    def run(self, *, standby: bool = False, take_over: bool = False) -> None:
        """Runs all flows until they are stopped by Ctrl-C, or fail."""
        self.start(standby=standby, take_over=take_over)
        try:
            self.wait()
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()

    def status(self) -> AppStatus:
        """How each flow does: rows, rate, lag, frontier, errors, and what Spark ran for it."""
        return self.running.status()

    def audit(self) -> Audited:
        """Recomputes every view as a batch over the log, and compares: `app.audit().ok`."""
        from headrace.flows.audit import audit

        running = self.running
        return audit([running.query(flow) for flow in running.flows], self.log, self._place)

    def rebuild(self, view: str, *, start: Start = "earliest") -> Rebuild:
        """The view made anew by this program, from `start`, beside the one that is served. What comes back says what
        that changes, `diff()`; then `switch()` or `discard()` it. The one that is served goes on, if it runs. What the
        same program made before, and did not switch to, is gone on with."""
        return self.running.rebuild(self._flow(view), check_start(start))

    def rollback(self, view: str) -> None:
        """What was served before the last switch is the view again, as it was then."""
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
        views: None = None,
        spark: Any = None,
        clock_us: Callable[[], int] | None = None,
    ) -> App:
        """The same program elsewhere: topics of the same settings are made there, and the flows are the same. What
        was checked here is not checked there again."""
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
        moved: dict[str, Topic] = {}
        for flow in self.flows.values():
            for topic in flow.topics:
                moved.setdefault(topic.name, other.log.clone_topic(topic))
            if flow.target is not None:
                moved.setdefault(flow.target, other.log.clone_topic(self.log.topic(flow.target)))
            sources = tuple(replace(source, topic=moved[source.topic.name]) for source in flow.sources)
            other.flows[flow.name] = replace(flow, sources=sources)
        return other

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        wait_for: Position | None = None,
        timeout: Duration = "5 seconds",
    ) -> pa.Table:
        """Read-only SQL over the views, parameters bound."""
        return self.views.query(sql, params, wait_for=wait_for, timeout=timeout)

    @property
    def views(self) -> Views:
        """The views of the home, for reading: as `hr.open_views(app.home)`."""
        from headrace.views.reading import open_views

        return open_views(self.home)

    def close(self) -> None:
        """Stops what runs and lets go of log, store and session. A temporary home is removed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._running is not None:
                self._running.close()
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


def _check_in_home(**given: object) -> None:
    """Who says that log or views are elsewhere must not find them in the home."""
    for argument, variable in ("log", "HEADRACE_LOG"), ("views", "HEADRACE_VIEWS"):
        value = given[argument]
        said = (os.environ.get(variable) or None) if value is None else value
        if said is not None:
            what = "it" if value is not None else variable
            why = f"log and views are in the home, a directory, and nowhere else yet. Leave {what} out, and say home=…"
            raise InvalidArgument(argument, without_secrets(said), why)


def _adopted(topic: Topic, schema: Any, settings: Mapping[str, Any]) -> Topic:
    """The topic, if it is what was asked for: its columns may be more."""
    from headrace.schema import schema_from, type_ddl

    if schema is not None:
        known = {field.name: field.type for field in topic.schema}
        for field in schema_from(schema):
            if field.name not in known:
                raise InvalidArgument(
                    "schema", field.name, f"topic {topic.name!r} has no such column.{nearest(field.name, list(known))}"
                )
            if known[field.name] != field.type:
                raise InvalidArgument(
                    "schema",
                    field.name,
                    f"is {type_ddl(known[field.name])} in topic {topic.name!r}, not {type_ddl(field.type)}",
                )
    for name in ("key", "event_time"):
        asked, has = settings.get(name), getattr(topic.settings, name)
        if name == "key" and asked is not None:
            asked = (asked,) if isinstance(asked, str) else tuple(asked)
        if asked is not None and asked != has:
            raise InvalidArgument(name, asked, f"topic {topic.name!r} has {has!r}")
    return topic


_of_cells: dict[tuple[str, str], App] = {}
"""The app of each name and home that has flows, in a notebook."""


def _in_notebook() -> bool:
    import builtins

    return hasattr(builtins, "__IPYTHON__")
