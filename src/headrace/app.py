"""What a user writes: an app, its topics, streams of their records, and views of them. Owns the names and the checks on
them; builds flows, which `flows.loop` runs. Streams are values: every call returns a new one.

    app = App("shop")
    clicks = app.topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
    app.stream(clicks).window(hr.tumbling("1 minute")).group_by("page").agg(views=hr.count()).to_view("views")
    app.drain()

No Spark session is made before a flow is run, but for one that writes to a topic which is not there yet: its columns
only Spark can tell."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self

from headrace.aggregates import Aggregate, first, over_changes
from headrace.bloom import Dedup
from headrace.durations import Duration, duration_us
from headrace.errors import Closed, DuplicateView, HeadraceError, InvalidArgument, UnknownView, nearest
from headrace.flows.flow import Flow, Source, Transform
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.names import check_name
from headrace.position import Position
from headrace.rendering import ROWS_MAX, html_table
from headrace.views.contract import RECORD, Emit, check_emit, feed_topic
from headrace.windows import CALENDAR_US_MAX, Calendar, Correct, Drop, Fixed, Late, Session, Window, drop

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from headrace.flows.audit import Audited
    from headrace.flows.flow import DataFrame, SparkSession
    from headrace.flows.query import FlowQuery
    from headrace.flows.rebuild import Rebuild
    from headrace.flows.running import AppStatus, Running
    from headrace.log.contract import Start
    from headrace.notebook import Live
    from headrace.views.reading import Views, ViewStatus
    from headrace.views.watching import Watch

HOME = ".headrace"
KEYS = 1_000_000
"""So many different keys are expected within the time of an approximate dedup, in a partition."""

overrides: dict[str, Any] = {}
"""What the command line says of `home` and `spark`: it comes over what programs say."""


class App:
    """A program of streams and views. `home`: the directory of log and views; ":temp:" for one that goes with the app.
    `spark`: a SparkSession, a master, a mapping of settings; by default a local session of our own. `clock_us`: what
    time it is, in microseconds, for log and flows; for tests."""

    def __init__(
        self,
        name: str,
        *,
        home: str | Path | None = None,
        spark: SparkSession | str | Mapping[str, Any] | None = None,
        batch_rows: int = 1_000_000,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self.name = check_name(name, argument="name")
        if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
            raise InvalidArgument("batch_rows", batch_rows, "must be a whole number, 1 or more")
        self.batch_rows = batch_rows
        self._given_home, self._spark, self._clock_us = home, spark, clock_us
        self._home: Path | None = None
        self._remove_home: Callable[[], object] | None = None
        self._log: EmbeddedLog | None = None
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
                    self._home = Path(given)
            return self._home

    @property
    def log(self) -> EmbeddedLog:
        """The log in the home; opened when first used."""
        with self._lock:
            if self._closed:
                raise Closed(what=f"the app {self.name!r}")
            if self._log is None:
                self._log = EmbeddedLog(self.home, clock_us=self._clock_us)
            return self._log

    # -- what it is made of ------------------------------------------------------------------------

    def topic(self, name: str, schema: Any = None, *, create: bool = True, **settings: Any) -> EmbeddedTopic:
        """The topic of that name; made if there is none, unless `create=False`. One that is there must have the
        columns, key and event time asked for."""
        if not create:
            return _adopted(self.log.topic(name), schema, settings)
        if schema is None:
            raise InvalidArgument("schema", None, f"topic {name!r} needs one, such as 'user string, at timestamp'")
        return _adopted(self.log.create_topic(name, schema, exist_ok=True, **settings), schema, settings)

    def stream(
        self, source: EmbeddedTopic | View | str, *, start: Start = "earliest", emit: Emit = "updates"
    ) -> Stream:
        """The records of a topic, or the changes of a view of this app. `start` counts when the flow is run for the
        first time. `emit`: of a view, every change, or with "final" each result once, when its window is closed, and
        then corrections only."""
        if isinstance(source, View) or (isinstance(source, str) and self._is_view(source)):
            return self._changes_of(source if isinstance(source, str) else source.name, start, check_emit(emit))
        topic = self.log.topic(source) if isinstance(source, str) else source
        if not isinstance(topic, EmbeddedTopic):
            raise InvalidArgument("source", source, "must be a topic: app.topic(…), a view, or the name of one")
        if emit != "updates":
            raise InvalidArgument("emit", emit, "is for the changes of views: the records of a topic all come")
        return Stream(self, (Source(topic, start),))

    def _changes_of(self, view: str, start: Start, emit: Emit) -> Stream:
        """The view's flow is told to leave its changes where flows over it read them."""
        flow = self._flow(view)
        if start != "earliest":
            raise InvalidArgument("start", start, "of a view's changes all are read, or its rows would not add up")
        if flow.after:
            raise InvalidArgument("source", view, "has a transform behind agg: stream the view without, and .transform")
        if emit == "final" and flow.window is None:
            raise InvalidArgument("emit", emit, "without a window no result is ever final: use emit='updates'")
        topic = self.running.feed(flow, emit)
        if emit not in flow.feeds:
            self.flows[view] = replace(flow, feeds=(*flow.feeds, emit))
            self.running.replaced(self.flows[view])
        return Stream(self, (Source(topic, changes=True),), upstream=flow)

    def _is_view(self, name: str) -> bool:
        """And no topic: a topic and a view may have one name."""
        view = name in self.flows and self.flows[name].target is None
        return view and name not in {topic.name for topic in self.log.topics()}

    def view(self, name: str) -> View:
        """The view of that name, made by this app or by another one of the home."""
        return View(self, check_name(name, argument="name"))

    def _add(self, flow: Flow) -> None:
        """Two flows cannot write one view; in a notebook, running a cell again replaces its flow."""
        with self._lock:
            if _in_notebook():
                self._replace_earlier()
            elif flow.name in self.flows:
                raise DuplicateView(view=flow.name)
            self.flows[flow.name] = flow
            if self._running is not None:
                self._running.replaced(flow)

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
                    overrides.get("spark", self._spark) or os.environ.get("HEADRACE_SPARK"),
                    self.batch_rows,
                    self._checked,
                    self._clock_us,
                    throwaway=self._remove_home is not None,
                )
            return self._running

    def drain(self, batch_rows: int | None = None, *, close: bool = False) -> int:
        """Processes all there is, then returns; how many records. `close=True` also closes every window."""
        return self.running.drain(batch_rows, close=close)

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
        """How each flow does: rows, rate, lag, frontier, errors."""
        return self.running.status()

    def audit(self) -> Audited:
        """Recomputes every view as a batch over the log, and compares: `app.audit().ok`."""
        from headrace.flows.audit import audit

        running = self.running
        return audit([running.query(flow) for flow in running.flows], self.log)

    def rebuild(self, view: str, *, start: Start = "earliest") -> Rebuild:
        """The view made anew by this program, from `start`, beside the one that is served. What comes back says what
        that changes, `diff()`; then `switch()` or `discard()` it. The one that is served goes on, if it runs. What the
        same program made before, and did not switch to, is gone on with."""
        return self.running.rebuild(self._flow(view), start)

    def rollback(self, view: str) -> None:
        """What was served before the last switch is the view again, as it was then."""
        self._flow(view)
        self.running.roll_back(view)

    def _flow(self, view: str) -> Flow:
        if view not in self.flows:
            raise UnknownView(view=view, known=[name for name, flow in self.flows.items() if flow.target is None])
        return self.flows[view]

    def replace(self, *, home: str | Path, spark: Any = None, clock_us: Callable[[], int] | None = None) -> App:
        """The same program elsewhere: topics of the same settings are made there, and the flows are the same. What
        was checked here is not checked there again."""
        other = App(
            self.name,
            home=home,
            spark=self._spark if spark is None else spark,
            batch_rows=self.batch_rows,
            clock_us=clock_us or self._clock_us,
        )
        other._checked = self._checked
        moved: dict[str, EmbeddedTopic] = {}
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
            if self._log is not None:
                self._log.close()
            if self._remove_home is not None:
                self._remove_home()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# -- streams -----------------------------------------------------------------------------------------


class _Steps:
    """What comes next: who looks for it in another place is told where it is."""

    elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to a type checker, what is not there is not there

        def __getattr__(self, name: str) -> Any:
            where = f": {self.elsewhere[name]}" if name in self.elsewhere else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{where}")


_AGGREGATE_FIRST = "aggregate first, .group_by(…).agg(n=hr.count()).to_view(…)"


@dataclass(frozen=True)
class Stream(_Steps):
    """Records on their way."""

    elsewhere = {"to_view": _AGGREGATE_FIRST}  # noqa: RUF012

    app: App
    sources: tuple[Source, ...]
    transforms: tuple[Transform, ...] = ()
    upstream: Flow | None = None
    """Of a view's changes: the flow that makes the view."""
    deduped: Flow | None = None
    """The flow that takes out duplicates, without the name it gets from what is behind it."""

    def transform(self, function: Transform) -> Stream:
        """`DataFrame -> DataFrame`, record by record: select, filter, explode, UDFs, joins with static tables. It must
        keep the columns `hr.META`."""
        if not callable(function):
            raise InvalidArgument("function", function, "must be a function DataFrame -> DataFrame")
        return replace(self, transforms=(*self.transforms, function))

    def union(self, other: Stream) -> Stream:
        """The records of both; they must have the same columns."""
        if not isinstance(other, Stream):
            raise InvalidArgument("other", other, "must be a stream")
        if any(stream.upstream or stream.deduped for stream in (self, other)):
            why = "what can take records back is not united with anything: unite the records themselves, before that"
            raise InvalidArgument("other", other, why)
        both = tuple(
            replace(source, transforms=(*source.transforms, *stream.transforms))
            for stream in (self, other)
            for source in stream.sources
        )
        names = [source.topic.name for source in both]
        if len(set(names)) < len(names):
            raise InvalidArgument("other", other, f"topic {names[-1]!r} is in both streams: transform it once")
        return Stream(self.app, both)

    def dedup(
        self,
        *key: str,
        within: Duration,
        grace: Duration = "0 seconds",
        late: Late | None = None,
        idle: Duration = "30 seconds",
        approx: float | None = None,
        keys: int = KEYS,
    ) -> Stream:
        """Of records with the same `key` that follow each other at most `within` apart, by event time, the earliest; if
        an earlier one comes later, it takes the other's place, in all that was made of it. A record is too late for
        that when its partition is further than `within` and `grace` beyond it, or as far as the windows behind this
        allow: then `late` says what becomes of it.

        With `approx`, in bounded memory, and without ever taking anything back: of records with the same key, in one
        partition of the topic, the first that came. That share of records, 0.01 for one in a hundred, may be taken for
        repetitions and are none, if at most `keys` different keys come `within`, in a partition. Repetitions in other
        partitions are not found: the topic's key should be the same. A record is too late when its partition is
        `within` and `grace` beyond it, whatever the windows behind this allow."""
        if not key or not all(isinstance(name, str) and name for name in key):
            raise InvalidArgument(
                "key", key, "must be names of columns: dedup('id', within='1 hour'), dedup('shop', 'id', …)"
            )
        if self.upstream or self.deduped:
            raise InvalidArgument("key", key, "is for records: dedup them before they are aggregated, and once")
        if approx is not None:
            return self._dedup_about(key, within, grace, late, idle, approx, keys)
        if keys != KEYS:
            raise InvalidArgument("keys", keys, "is for approx=…: without that all keys are kept, however many come")
        flow = Flow(
            name="",
            sources=self.sources,
            transforms=self.transforms,
            window=Session(duration_us(within, argument="within")),
            grace_us=duration_us(grace, argument="grace", positive=False),
            late=late or Drop(),
            idle_us=duration_us(idle, argument="idle"),
            groups=key,
            aggregates={RECORD: first("struct(*)")},
            keep_us=duration_us(within, argument="within"),
            feeds=("updates",),
            records=True,
        )
        return Stream(self.app, (), deduped=flow)

    def _dedup_about(
        self,
        key: tuple[str, ...],
        within: Duration,
        grace: Duration,
        late: Late | None,
        idle: Duration,
        approx: float,
        keys: int,
    ) -> Stream:
        if isinstance(late, Correct):
            why = "with approx=… nothing is corrected: records count while their partition is `within` and `grace` on"
            raise InvalidArgument("late", late, f"{why}. Make grace longer, or use hr.drop(…)")
        within_us, grace_us = (
            duration_us(within, argument="within"),
            duration_us(grace, argument="grace", positive=False),
        )
        flow = Flow(
            name="",
            sources=tuple(replace(each, transforms=(*each.transforms, *self.transforms)) for each in self.sources),
            grace_us=grace_us,
            late=late or Drop(),
            idle_us=duration_us(idle, argument="idle"),
            dedup=Dedup(key, within_us, grace_us, approx, keys),
        )
        return Stream(self.app, (), deduped=flow)

    def _named(self, name: str, shape: _Shape) -> Stream:
        """With the flow that takes out duplicates before it, if there is one. That accepts all records that the windows
        behind it accept."""
        if self.deduped is None:
            return self
        flow, window, app = self.deduped, shape.window, self.app
        if flow.dedup is not None:
            flow = replace(flow, name=f"{name}.dedup", target=f"__records.{name}.dedup")
            app._add(flow)
            return replace(self, sources=(Source(app.running.target(flow, {})),), deduped=None)
        assert isinstance(flow.window, Session)
        if window is not None:
            size_us = window.size_us if isinstance(window, Fixed) else CALENDAR_US_MAX
            needed_us = size_us + shape.grace_us + shape.late.within_us - flow.window.gap_us
            late = drop(dropped_to=shape.late.dropped_to) if flow.late == Drop() else flow.late
            flow = replace(flow, grace_us=max(flow.grace_us, needed_us), late=late, idle_us=shape.idle_us)
        flow = replace(flow, name=f"{name}.dedup", target=feed_topic(f"{name}.dedup", "updates"))
        app._add(flow)
        source = Source(app.running.target(flow, {}), changes=True, judged=True)
        return replace(self, sources=(source,), deduped=None)

    def window(
        self,
        window: Window,
        *,
        time: str | None = None,
        grace: Duration = "0 seconds",
        late: Late | None = None,
        idle: Duration = "30 seconds",
    ) -> Windowed:
        """Groups by event time, or by another column: `time="_arrived_at"` by when records came. `grace`: how long they
        may come late and be on time. `late`: what becomes of later ones: `hr.drop()` or `hr.correct(within=…)`. `idle`:
        a partition without records for so long holds nobody up."""
        if not isinstance(window, Window):
            kinds = "hr.tumbling(…), hr.hopping(…), hr.calendar(…), hr.session(…), hr.sliding(…)"
            raise InvalidArgument("window", window, f"must be a window: {kinds}")
        grace_us = duration_us(grace, argument="grace", positive=False)
        if late is not None and not isinstance(late, Late):
            raise InvalidArgument("late", late, "must be hr.drop() or hr.correct(within='1 hour')")
        if self.upstream is not None:
            _check_over_view(self.upstream, window, time, {"grace": grace if grace_us else None, "late": late})
        if self.deduped is not None and time is not None:
            raise InvalidArgument("time", time, "behind dedup windows are of the records' own time: leave it out")
        if self.deduped is not None and self.deduped.records and not isinstance(window, Fixed | Calendar):
            why = "behind dedup windows are fixed, or of a calendar; with dedup(…, approx=…) they may be any"
            raise InvalidArgument("window", str(window), why)
        shape = _Shape(window, time, grace_us, late or Drop(), duration_us(idle, argument="idle"))
        return Windowed(self, shape)

    def group_by(self, *columns: str) -> Grouped:
        """One result for each value of these columns, for all time."""
        return Windowed(self, _Shape()).group_by(*columns)

    def agg(self, *unnamed: Never, **aggregates: Aggregate) -> Aggregated:
        """One result for all records."""
        return self.group_by().agg(*unnamed, **aggregates)

    def to_topic(self, name: str, **settings: Any) -> EmbeddedTopic:
        """Writes the records to a topic, each exactly once; it is made if there is none, with the columns they have."""
        check_name(name, argument="name")
        stream = self._named(name, _Shape())
        flow = Flow(name=name, sources=stream.sources, transforms=self.transforms, target=name)
        self.app._add(flow)
        return self.app.running.target(flow, settings)


@dataclass(frozen=True)
class _Shape:
    window: Window | None = None
    time: str | None = None
    grace_us: int = 0
    late: Late = field(default_factory=Drop)
    idle_us: int = 30_000_000


@dataclass(frozen=True)
class Windowed(_Steps):
    """Records by window."""

    elsewhere = {  # noqa: RUF012
        "to_view": _AGGREGATE_FIRST,
        "to_topic": "aggregate first, .agg(n=hr.count()).to_topic(…); records go there without a window",
        **dict.fromkeys(("dedup", "transform", "union"), "that is for records, and comes before .window(…)"),
    }

    stream: Stream
    shape: _Shape

    def group_by(self, *columns: str) -> Grouped:
        """One result for each window and value of these columns."""
        for column in columns:
            if not isinstance(column, str) or not column:
                raise InvalidArgument("columns", column, "must be names of columns; make others with .transform(…)")
        if len(set(columns)) < len(columns):
            raise InvalidArgument("columns", columns, "names a column twice")
        return Grouped(self.stream, self.shape, columns)

    def agg(self, *unnamed: Never, **aggregates: Aggregate) -> Aggregated:
        """One result for each window."""
        return self.group_by().agg(*unnamed, **aggregates)


@dataclass(frozen=True)
class Grouped(_Steps):
    """Records by window and group."""

    elsewhere = {  # noqa: RUF012
        "window": ".window(…) comes before .group_by(…)",
        "to_view": ".agg(n=hr.count()) comes before",
        "to_topic": ".agg(n=hr.count()) comes before",
        **dict.fromkeys(("dedup", "transform", "union"), "that is for records, and comes before .group_by(…)"),
    }

    stream: Stream
    shape: _Shape
    columns: tuple[str, ...]

    def agg(self, *unnamed: Never, **aggregates: Aggregate) -> Aggregated:
        """One row per window and group: `agg(views=hr.count(), slowest=hr.max("ms"))`."""
        if unnamed:
            raise InvalidArgument("aggregates", str(unnamed[0]), "has no name: agg(n=hr.count())")
        if not aggregates:
            raise InvalidArgument("aggregates", {}, "name at least one, such as views=hr.count()")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise InvalidArgument(
                    name, aggregate, "must be an aggregate of headrace: hr.count(), hr.sum(…), …; not one of PySpark's"
                )
            if aggregate.kind == "merge" and self.stream.upstream is None:
                why = "merges what a view keeps: use it over app.stream(view)"
                raise InvalidArgument(name, str(aggregate), why)
        upstream = self.stream.upstream
        deduped = self.stream.deduped
        if upstream is None and (deduped is None or not deduped.records):
            return Aggregated(self, aggregates)
        known = (upstream.aggregates if upstream else None) or {}
        return Aggregated(self, {name: over_changes(name, each, known) for name, each in aggregates.items()})


@dataclass(frozen=True)
class Aggregated:
    """Results, a row per window and group."""

    grouped: Grouped
    aggregates: Mapping[str, Aggregate]
    after: tuple[Transform, ...] = ()

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Aggregated:
        """`DataFrame -> DataFrame` over result rows, each by itself: thresholds, ratios, explode. On the way to a view
        it must keep window and groups; to a topic, it is given the changes, with `op` '-' and '+'."""
        if not callable(function):
            raise InvalidArgument("function", function, "must be a function DataFrame -> DataFrame")
        return replace(self, after=(*self.after, function))

    def _flow(self, name: str) -> Flow:
        check_name(name, argument="name")
        shape = self.grouped.shape
        stream = self.grouped.stream._named(name, shape)
        return Flow(
            name=name,
            sources=stream.sources,
            transforms=stream.transforms,
            window=shape.window,
            time=shape.time,
            grace_us=shape.grace_us,
            late=shape.late,
            idle_us=shape.idle_us,
            groups=self.grouped.columns,
            aggregates=self.aggregates,
            after=self.after,
        )

    def to_view(self, name: str, *, keep: Duration | None = None) -> View:
        """Keeps the results in a view of that name: a table, for SQL. `keep`: how long rows stay."""
        keep_us = None if keep is None else duration_us(keep, argument="keep")
        if keep_us is not None and self.grouped.shape.window is None:
            raise InvalidArgument("keep", keep, "without a window no row ever gets old: leave it out")
        self.grouped.stream.app._add(replace(self._flow(name), keep_us=keep_us))
        return View(self.grouped.stream.app, name)

    def to_topic(self, name: str, *, emit: Emit = "updates", **settings: Any) -> EmbeddedTopic:
        """Writes what changes to a topic: every change, or with `emit="final"` each result once, when its window is
        closed, and then corrections only, as '-' and '+'."""
        if check_emit(emit) == "final" and self.grouped.shape.window is None:
            raise InvalidArgument("emit", emit, "without a window no result is ever final: use emit='updates'")
        flow = replace(self._flow(name), target=name, emit=emit)
        app = self.grouped.stream.app
        app._add(flow)
        return app.running.target(flow, settings)


def _check_over_view(view: Flow, window: Window, time: str | None, judging: Mapping[str, Any]) -> None:
    """What is said of records where they come from a topic is not said again of what was made of them."""
    of = f"view {view.name!r}"
    if view.window is None:
        raise InvalidArgument("window", str(window), f"{of} has no windows, so its rows have no time: group them only")
    if not isinstance(window, Fixed | Calendar):
        raise InvalidArgument("window", str(window), "over a view's changes windows are fixed, or of a calendar")
    if isinstance(view.window, Fixed) and isinstance(window, Fixed) and window.size_us < view.window.size_us:
        raise InvalidArgument("window", str(window), f"{of} has longer ones, {view.window}: its rows do not fit in")
    if time is not None:
        raise InvalidArgument("time", time, f"a row of {of} has the time of its window: leave it out")
    for argument, value in judging.items():
        if value:
            why = f"a change of {of} is never late: its records were judged where they came from a topic. Leave it out"
            raise InvalidArgument(argument, str(value), why)


class View:
    """A view by its name: its rows, its ledger, where it is."""

    def __init__(self, app: App, name: str) -> None:
        self.app, self.name = app, name

    def __repr__(self) -> str:
        return f"<view {self.name!r} of {self.app!r}>"

    def _repr_html_(self) -> str:
        """For notebooks: some of its rows."""
        from headrace.notebook import view_table

        try:
            with self._known():
                return view_table(self.app.views, self.name)
        except HeadraceError as error:  # not run yet, dropped: a notebook shows that, not a traceback
            return html_table(f"view {self.name}", (), (), str(error))

    def to_arrow(self) -> pa.Table:
        """All rows, typed, sorted by window and group."""
        return self._rows()

    def to_pandas(self) -> pd.DataFrame:
        """All rows, for pandas."""
        return self._rows().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All rows, for polars, which must be installed."""
        import polars

        return polars.DataFrame(self._rows())

    def to_spark(self) -> DataFrame:
        """All rows, as a DataFrame of the app's session."""
        return self.app.running.spark.createDataFrame(self._rows())

    def arrow(self) -> pa.Table:
        """The same as `to_arrow()`, for notebooks."""
        return self.to_arrow()

    def df(self) -> DataFrame:
        """The same as `to_spark()`, for notebooks: a `df` is Spark's here, as everywhere in headrace."""
        return self.to_spark()

    def live(self, rows: int = ROWS_MAX) -> Live:
        """In a notebook: a table of so many rows in the cell's output, drawn again when the view changes, while other
        cells are run. Ends with `stop()`, with `app.stop()`, or when the cell is run again. `view.live().wait()` keeps
        the cell busy until the kernel is interrupted."""
        from headrace.notebook import Live, view_table

        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise InvalidArgument("rows", rows, "must be a whole number, 1 or more")
        lives, views, name = self.app._lives, self.app.views, self.name
        if name in lives:
            lives.pop(name).stop()
        with self._known():  # its thread asks the views alone: an app that closes waits for it
            made = Live(
                name, lambda note: view_table(views, name, rows, note), lambda: views.watch(name, snapshot=False)
            )
        lives[name] = made
        return made

    def drop(self) -> None:
        """Forgets the view, its rows, its ledger and how far it has read: run again, it is made anew from the log. Not
        while it runs."""
        self.app.running.drop(self.name)

    def get(self, **columns: Any) -> dict[str, Any] | None:
        """The one row whose columns have these values; None if there is none."""
        found = self._rows(columns)
        if found.num_rows > 1:
            raise InvalidArgument(
                "columns", columns, f"{found.num_rows} rows of view {self.name!r} have these: name more"
            )
        return found.to_pylist()[0] if found.num_rows else None

    def changes(
        self,
        emit: Emit = "updates",
        *,
        start: Literal["earliest", "latest"] = "earliest",
        timeout: Duration | None = None,
    ) -> Watch:
        """The view's changes as they are committed, each a dict: `op` ('+' a row that came, '-' one that went), the
        row, and `_position`, the number of the commit. `start`: "earliest" begins with the rows as they are, "latest"
        with the next change. With `emit="final"` each result once, when its window is final, and then corrections only.
        Ends when there was none for `timeout`; without, never."""
        if start not in ("earliest", "latest"):
            raise InvalidArgument(
                "start",
                start,
                "must be 'earliest' (the rows as they are, then changes) or 'latest' (changes only): old changes are "
                "not kept. A flow that ends with .to_topic(…) keeps them all",
            )
        with self._known():
            return self.app.views.watch(self.name, snapshot=start == "earliest", emit=emit, timeout=timeout)

    def _rows(self, where: Mapping[str, Any] | None = None) -> pa.Table:
        with self._known():
            return self.app.views.to_arrow(self.name, where)

    @contextlib.contextmanager
    def _known(self) -> Iterator[None]:
        try:
            yield
        except UnknownView as error:
            if self.name in self.app.flows:
                raise UnknownView(view=f"{self.name} (its app was not run yet)", known=error.known) from None
            raise

    def ledger(self) -> pa.Table:
        """What became of every record: a row per window."""
        with self._known():
            return self.app.views.ledger(self.name)

    def status(self) -> ViewStatus:
        """Where the view is: rows, commits, frontier, position, and who makes it."""
        with self._known():
            return self.app.views.status(self.name)


def _adopted(topic: EmbeddedTopic, schema: Any, settings: Mapping[str, Any]) -> EmbeddedTopic:
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
        if asked is not None and ((asked,) if isinstance(asked, str) and name == "key" else asked) != has:
            raise InvalidArgument(name, asked, f"topic {topic.name!r} has {has!r}")
    return topic


_of_cells: dict[tuple[str, str], App] = {}
"""The app of each name and home that has flows, in a notebook."""


def _in_notebook() -> bool:
    import builtins

    return hasattr(builtins, "__IPYTHON__")
