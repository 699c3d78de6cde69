"""The steps between `app.stream(…)` and `.to_view(…)`, and the checks on them. Every step is a value, and every call
returns a new one; the last makes a flow of them all.

    Stream ─ transform, union, dedup ─ window ─→ Windowed ─ group_by ─→ Grouped ─ agg ─→ Aggregated ─→ view or topic"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Never, get_args

from headrace.aggregates import Aggregate, first, over_changes
from headrace.bloom import Dedup
from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument
from headrace.flows.flow import Flow, Source, Transform
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.names import check_name
from headrace.view import View
from headrace.views.contract import ARRIVED, RECORD, Emit, Gaps, check_emit, feed_topic
from headrace.windows import Aligned, Correct, Drop, Late, Session, Window, drop

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.flows.flow import DataFrame

KEYS = 1_000_000
"""So many different keys are expected within the time of an approximate dedup, in a partition."""


class _Steps:
    """The next steps. A step that is written in the wrong place raises an error that says where it belongs."""

    elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to a type checker, what is not there is not there

        def __getattr__(self, name: str) -> Any:
            where = f": {self.elsewhere[name]}" if name in self.elsewhere else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{where}")


_AGGREGATE_FIRST = "aggregate first, .group_by(…).agg(n=hr.count()).to_view(…)"
_OF_A_DATAFRAME = "that is for DataFrames, .transform(lambda df: df.{name}(…))"
_TWO_STREAMS = (
    "streams are not joined. Bring both kinds of records into one with .union(other), each with the other's columns "
    "as nulls, and put them together by key: .window(…).group_by('id').agg(left=hr.last('a'), right=hr.last('b')). A "
    "static table is joined in .transform(lambda df: df.join(table, 'id'))"
)
_DEDUP = "use .dedup('id', within='1 hour')"
_ELSEWHERE = {
    **{
        name: _OF_A_DATAFRAME.format(name=name)
        for name in (
            "where",
            "filter",
            "select",
            "selectExpr",
            "withColumn",
            "withColumns",
            "withColumnRenamed",
            "drop",
        )
    },
    "groupBy": "use .group_by(…)",
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "distinct"), _DEDUP),
    **dict.fromkeys(("join", "enrich", "match"), _TWO_STREAMS),
    "withWatermark": "lateness is decided from the log, .window(…, grace=, late=)",
    **dict.fromkeys(("count", "sum", "avg", "min", "max"), "aggregate with .agg(n=hr.count(), total=hr.sum('v'))"),
    **dict.fromkeys(("write", "writeStream", "to_sink"), "results go to .to_view(name) or .to_topic(name)"),
}
"""Names of PySpark and of other libraries, and what to write here instead."""


@dataclass(frozen=True, repr=False)
class Stream(_Steps):
    """A stream of records, from `app.stream(…)`. Every step returns a new stream."""

    elsewhere = {**_ELSEWHERE, "to_view": _AGGREGATE_FIRST}  # noqa: RUF012

    app: App
    sources: tuple[Source, ...]
    transforms: tuple[Transform, ...] = ()
    upstream: Flow | None = None
    """Of a view's changes: the flow that makes the view."""
    deduped: Flow | None = None
    """The flow that takes out duplicates, without the name it gets from what is behind it."""

    def __repr__(self) -> str:
        sources = self.sources if self.deduped is None else self.deduped.sources
        named = ", ".join(source.called for source in sources) if self.upstream is None else self.upstream.name
        return f"<stream of {named}{'' if self.deduped is None else ', without repetitions'}>"

    @property
    def takes_back(self) -> bool:
        """True for a stream of changes, which retract rows: over a view, or from a topic of changes."""
        return any(source.changes for source in self.sources)

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
        if any(stream.takes_back or stream.deduped for stream in (self, other)):
            why = "union() needs plain records, and one of these streams can retract rows (it is behind dedup(…), or "
            why += "over a view). Call union() before that"
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
        absent: Duration = "1 hour",
        approx: float | None = None,
        keys: int = KEYS,
    ) -> Stream:
        """Passes one of the records with the same `key` that are at most `within` apart: the earliest by event time. If
        an earlier record arrives later, it replaces the other one in every result behind this. A record is too late
        when its partition is `within` and `grace` past its time, or further if the windows behind this still accept
        it; then `late` decides.

        With `approx`, in bounded memory and without retractions, it passes the record that arrived first, of each key
        and partition. At most this share of records (0.01: one in a hundred) is lost by mistake, if at most `keys`
        different keys arrive within `within` in a partition. Give the topic the same key: repetitions in other
        partitions are not found. A record is too late when its partition is `within` and `grace` past its time, even
        if the windows behind this would accept it."""
        if not key or not all(isinstance(name, str) and name for name in key):
            raise InvalidArgument(
                "key", key, "must be names of columns: dedup('id', within='1 hour'), dedup('shop', 'id', …)"
            )
        if self.takes_back or self.deduped:
            raise InvalidArgument("key", key, "dedup() needs plain records: call it once, before .agg(…)")
        if approx is not None:
            return self._dedup_about(key, within, grace, late, idle, absent, approx, keys)
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
            absent_us=duration_us(absent, argument="absent"),
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
        absent: Duration,
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
            absent_us=duration_us(absent, argument="absent"),
            dedup=Dedup(key, within_us, grace_us, approx, keys),
        )
        return Stream(self.app, (), deduped=flow)

    def _named(self, name: str, shape: _Shape) -> Stream:
        """With the flow that takes out duplicates before it, if there is one. That accepts all records that the windows
        behind it accept."""
        if self.deduped is None:
            return self
        flow, window, app = self.deduped, shape.window, self.app
        if window is not None:  # silence counts where records come from a topic
            flow = replace(flow, idle_us=shape.idle_us, absent_us=shape.absent_us)
        if flow.dedup is not None:
            flow = replace(flow, name=f"{name}.dedup", target=f"__records.{name}.dedup")
            return replace(self, sources=(Source(app._add_to_topic(flow, {})),), deduped=None)
        assert flow.keep_us is not None, "so long repetitions are found"
        if window is not None:
            needed_us = window.reach_us + shape.grace_us + shape.late.within_us - flow.keep_us
            late = drop(dropped_to=shape.late.dropped_to) if flow.late == Drop() else flow.late
            flow = replace(flow, grace_us=max(flow.grace_us, needed_us), late=late)
        flow = replace(flow, name=f"{name}.dedup", target=feed_topic(f"{name}.dedup", "updates"))
        source = Source(app._add_to_topic(flow, {}), changes=True, judged=True)
        return replace(self, sources=(source,), deduped=None)

    def window(
        self,
        window: Window,
        *,
        time: str | None = None,
        grace: Duration = "0 seconds",
        late: Late | None = None,
        idle: Duration = "30 seconds",
        absent: Duration = "1 hour",
        fill: Gaps | None = None,
    ) -> Windowed:
        """Groups records by event time, or by another column: `time="_arrived_at"` groups by arrival.

        `grace`: how long a window waits for records that arrive out of order. `late`: what happens to later records,
        `hr.drop()` or `hr.correct(within=…)`. `idle`: a partition without records for this long moves on with the
        clock, from where it is. `absent`: a partition without records for this long no longer keeps windows open.
        `fill`: readers also see a row for each window in which a group has no records, from the group's first window
        on: with "null" results, with counts and sums of "zero", or with the results of the "previous" row."""
        if not isinstance(window, Window):
            kinds = "hr.tumbling(…), hr.hopping(…), hr.cumulative(…), hr.calendar(…), hr.session(…), hr.sliding(…)"
            raise InvalidArgument("window", window, f"must be a window: {kinds}")
        if time is not None and not isinstance(time, str):
            raise InvalidArgument("time", time, "must be the name of a column; make one with .transform(…)")
        grace_us = duration_us(grace, argument="grace", positive=False)
        if late is not None and not isinstance(late, Late):
            raise InvalidArgument("late", late, "must be hr.drop() or hr.correct(within='1 hour')")
        judging = {"grace": grace if grace_us else None, "late": late}
        if self.upstream is not None:
            _check_over_view(self.upstream, window, time, judging)
        elif self.takes_back:
            _check_over_changes(f"topic {self.sources[0].topic.name!r}", window, time, judging)
        if self.deduped is not None and time is not None:
            raise InvalidArgument("time", time, "behind dedup(…) windows use the records' own event time: leave it out")
        if self.deduped is not None and self.deduped.records and not window.aligned:
            why = "behind dedup(…) use tumbling, hopping, cumulative or calendar windows; dedup(…, approx=…) allows all"
            raise InvalidArgument("window", str(window), why)
        if fill is not None:
            _check_fill(fill, window)
        idle_us, absent_us = duration_us(idle, argument="idle"), duration_us(absent, argument="absent")
        shape = _Shape(window, time, grace_us, late or Drop(), idle_us, absent_us, fill)
        return Windowed(self, shape)

    def group_by(self, *columns: str) -> Grouped:
        """One result for each combination of values of these columns, over all time."""
        return Windowed(self, _Shape()).group_by(*columns)

    def agg(self, *unnamed: Never, **aggregates: Aggregate) -> Aggregated:
        """One result for all records."""
        return self.group_by().agg(*unnamed, **aggregates)

    def to_topic(self, name: str, **settings: Any) -> EmbeddedTopic:
        """Writes the records to a topic, each exactly once. Creates the topic, with their columns, if there is none."""
        check_name(name, argument="name")
        stream = self._named(name, _Shape())
        flow = Flow(name=name, sources=stream.sources, transforms=self.transforms, target=name)
        return self.app._add_to_topic(flow, settings)


@dataclass(frozen=True)
class _Shape:
    window: Window | None = None
    time: str | None = None
    grace_us: int = 0
    late: Late = field(default_factory=Drop)
    idle_us: int = 30_000_000
    absent_us: int = 3_600_000_000
    fill: Gaps | None = None


@dataclass(frozen=True, repr=False)
class Windowed(_Steps):
    """Records grouped by window."""

    elsewhere = {  # noqa: RUF012
        **_ELSEWHERE,
        "to_view": _AGGREGATE_FIRST,
        "to_topic": "aggregate first, .agg(n=hr.count()).to_topic(…); records go there without a window",
        **dict.fromkeys(("dedup", "transform", "union"), "that is for records, and comes before .window(…)"),
    }

    stream: Stream
    shape: _Shape

    def __repr__(self) -> str:
        return repr(self.group_by())

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


@dataclass(frozen=True, repr=False)
class Grouped(_Steps):
    """Records grouped by window and columns."""

    elsewhere = {  # noqa: RUF012
        **_ELSEWHERE,
        "window": ".window(…) comes before .group_by(…)",
        "to_view": ".agg(n=hr.count()) comes before",
        "to_topic": ".agg(n=hr.count()) comes before",
        **dict.fromkeys(("dedup", "transform", "union"), "that is for records, and comes before .group_by(…)"),
    }

    stream: Stream
    shape: _Shape
    columns: tuple[str, ...]

    def __repr__(self) -> str:
        by = ", ".join([*([] if self.shape.window is None else [str(self.shape.window)]), *self.columns])
        return f"{repr(self.stream)[:-1]}{f' by {by}' if by else ''}>"

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
                why = "merges the state of a view: use it over app.stream(view)"
                raise InvalidArgument(name, str(aggregate), why)
            if aggregate.kind == "merge" and self.stream.upstream is not None and self.stream.upstream.after:
                why = f"view {self.stream.upstream.name!r} has a transform behind agg, and transformed rows have no "
                why += "state to merge. Aggregate their columns, hr.sum(…), or stream a view without the transform"
                raise InvalidArgument(name, str(aggregate), why)
        upstream = self.stream.upstream
        deduped = self.stream.deduped
        if not self.stream.takes_back and (deduped is None or not deduped.records):
            return Aggregated(self, aggregates)
        known = None if deduped is not None else {} if upstream is None else upstream.aggregates or {}
        stream = self.stream
        transformed = bool(stream.transforms) or any(source.transforms for source in stream.sources)
        return Aggregated(
            self,
            {name: over_changes(name, each, known, transformed=transformed) for name, each in aggregates.items()},
        )


@dataclass(frozen=True, repr=False)
class Aggregated:
    """Results: a row per window and group."""

    grouped: Grouped
    aggregates: Mapping[str, Aggregate]
    after: tuple[Transform, ...] = ()

    def __repr__(self) -> str:
        results = ", ".join(f"{aggregate} as {name}" for name, aggregate in self.aggregates.items())
        return f"<{results} of {self.grouped!r}>"

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Aggregated:
        """`DataFrame -> DataFrame` over result rows, each by itself: thresholds, ratios, explode. Before a view it must
        keep window and groups. Before a topic it gets the changes, with `op` '-' and '+'."""
        if not callable(function):
            raise InvalidArgument("function", function, "must be a function DataFrame -> DataFrame")
        return replace(self, after=(*self.after, function))

    def _flow(self, name: str, every: Duration | None = None) -> Flow:
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
            absent_us=shape.absent_us,
            groups=self.grouped.columns,
            aggregates=self.aggregates,
            after=self.after,
            every_us=0 if every is None else duration_us(every, argument="every"),
        )

    def to_view(self, name: str, *, keep: Duration | None = None, every: Duration | None = None) -> View:
        """Keeps the results in a view of that name: a table that any process reads with SQL. `keep`: how long rows
        stay; without a window, how long a group stays after its last record arrived. `every`: a live flow changes the
        view at most this often; it does not wait while it is behind, nor in `drain`."""
        keep_us = None if keep is None else duration_us(keep, argument="keep")
        lives = keep_us is not None and self.grouped.shape.window is None
        stream = self.grouped.stream
        if lives and (stream.takes_back or (stream.deduped is not None and stream.deduped.records)):
            why = "needs a window here: over a view, and behind dedup, records can be retracted"
            raise InvalidArgument("keep", keep, f"{why}. Leave it out, use a window, or use dedup(…, approx=…)")
        fill = self.grouped.shape.fill
        if fill is not None and self.after:
            why = "a transform behind agg sees stored results only, and rows that fill gaps are not stored"
            raise InvalidArgument("fill", fill, f"{why}. Leave one of them out, or compute it in the query")
        flow = replace(self._flow(name, every), keep_us=keep_us, fill=fill)
        if lives and keep_us is not None:
            flow = replace(flow, window=Session(keep_us), time=ARRIVED, lives=True)
        self.grouped.stream.app._add(flow)
        return View(self.grouped.stream.app, name)

    def to_topic(
        self, name: str, *, emit: Emit = "updates", every: Duration | None = None, **settings: Any
    ) -> EmbeddedTopic:
        """Writes the changes to a topic: every change, or with `emit="final"` each result once, when its window is
        final, and then only corrections, as '-' and '+'. `every`: a result changes at most this often, as in
        `to_view`."""
        if check_emit(emit) == "final" and self.grouped.shape.window is None:
            raise InvalidArgument("emit", emit, "without a window no result is ever final: use emit='updates'")
        if self.grouped.shape.fill is not None:
            why = "gaps are filled when a view is read, and a topic has stored rows only. Leave it out, or use"
            raise InvalidArgument("fill", self.grouped.shape.fill, f"{why} .to_view(…)")
        flow = replace(self._flow(name, every), target=name, emit=emit)
        return self.grouped.stream.app._add_to_topic(flow, settings)


def _check_fill(fill: Gaps, window: Window) -> None:
    if fill not in get_args(Gaps):
        raise InvalidArgument("fill", fill, f"must be one of {', '.join(map(repr, get_args(Gaps)))}")
    if not window.aligned:
        why = f"{window} has a window only where there are records, so it has no gaps"
        raise InvalidArgument("fill", fill, f"{why}. Use hr.tumbling(…) or hr.calendar(…)")
    if not (isinstance(window, Aligned) and window.disjoint):
        why = f"is for windows that follow each other, and those of {window} overlap"
        raise InvalidArgument("fill", fill, f"{why}. Use hr.tumbling(…) or hr.calendar(…), or leave it out")


def _check_over_view(view: Flow, window: Window, time: str | None, judging: Mapping[str, Any]) -> None:
    """Refuses settings of records (time, grace, late) over a view: they were decided where the topic was read."""
    of = f"view {view.name!r}"
    if view.window is None:
        raise InvalidArgument(
            "window", str(window), f"{of} has no windows, so its rows have no time. Use .group_by(…) without .window(…)"
        )
    _check_over_changes(of, window, time, judging)
    if isinstance(window, Aligned) and isinstance(view.window, Aligned) and window.longest_us < view.window.longest_us:
        raise InvalidArgument(
            "window",
            str(window),
            f"is shorter than the windows of {of}, {view.window}. Use the same size or a longer one",
        )


def _check_over_changes(of: str, window: Window, time: str | None, judging: Mapping[str, Any]) -> None:
    if not window.aligned:
        raise InvalidArgument("window", str(window), f"over {of} use tumbling, hopping, cumulative or calendar windows")
    if time is not None:
        raise InvalidArgument("time", time, f"a row of {of} has the time of its window. Leave it out")
    for argument, value in judging.items():
        if value:
            why = f"a change of {of} is never late: lateness was decided where the topic was read. Leave it out"
            raise InvalidArgument(argument, str(value), why)
