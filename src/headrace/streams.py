"""The steps between `app.stream(…)` and `.to_view(…)`. Every step is a value, and every call returns a new one: it
holds the node of the program's graph (`flows.graph`) that is written so far, and has it checked (`flows.plan`). The
last step gives the graph's end to the app. None of them opens, creates or starts anything.

    Stream ─ transform, union, dedup, through, enrich, join, match ─ window ─→ Windowed ─ group_by ─→ Grouped
    ─ agg ─→ Aggregated ─→ view, topic or sink"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Never

from headrace.aggregates import Aggregate
from headrace.bloom import Dedup
from headrace.connect.open import as_sink
from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument
from headrace.flows import graph
from headrace.flows.flow import Transform
from headrace.flows.plan import check, only_adds, origin
from headrace.joining import names_of, pairs_of
from headrace.names import check_name
from headrace.operators.joins.meetings import Enriching, How, Joining, Matching, Missing, ViewEnriching
from headrace.operators.remember import Remember
from headrace.operators.stored.searching import FACTS, QUERIES, Searching
from headrace.schema import parse_ddl, type_ddl
from headrace.sink import Sink, read_directly
from headrace.view import View
from headrace.views.contract import WINDOW, Emit, Gaps, check_emit
from headrace.windows import Drop, Late, Window, correct

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.cep.definition import Pattern
    from headrace.connect.contract import Deliver
    from headrace.connect.contract import Sink as Kind
    from headrace.flows.flow import DataFrame
    from headrace.log.declared import DeclaredTopic
    from headrace.operators.records import Through
    from headrace.queries import Queries
    from headrace.rules import Rules

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
_OF_RECORDS = ("dedup", "enrich", "join", "match", "remember", "search", "through", "transform", "union")
_DEDUP = "use .dedup('id', within='1 hour')"
_OF_ROWS = {
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
    **dict.fromkeys(
        ("show", "collect", "take", "toPandas", "to_pandas", "toArrow", "to_arrow"),
        "rows are read from a view: .to_view(name), then app.drain() and app.query(…)",
    ),
}
_ELSEWHERE = {
    **_OF_ROWS,
    **dict.fromkeys(("map", "flatMap", "apply"), "PySpark's functions go into .transform(lambda df: df.withColumn(…))"),
    **dict.fromkeys(("foreach", "foreachBatch"), "results go to .to_view(name), and a program reads view.changes()"),
    "groupBy": "use .group_by(…)",
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "distinct"), _DEDUP),
    "withWatermark": "lateness is decided from the log, .window(…, grace=, late=)",
    **dict.fromkeys(("count", "sum", "avg", "min", "max"), "aggregate with .agg(n=hr.count(), total=hr.sum('v'))"),
    **dict.fromkeys(("write", "writeStream", "to_sink"), "results go to .to_view(name) or .to_topic(name)"),
}
"""Names of PySpark and of other libraries, and what to write here instead."""


@dataclass(frozen=True, repr=False)
class Stream(_Steps):
    """A stream of records, from `app.stream(…)`. Every step returns a new stream."""

    elsewhere = _ELSEWHERE

    app: App
    node: graph.Records

    def __post_init__(self) -> None:
        check(self.node)

    def __repr__(self) -> str:
        return f"<stream of {_described(self.node)}>"

    def transform(self, function: Transform) -> Stream:
        """`DataFrame -> DataFrame`, record by record: select, filter, explode, UDFs, joins with static tables. It must
        keep the columns `hr.META`."""
        return Stream(self.app, graph.Transform(self.node, _checked_function(function)))

    def union(self, other: Stream) -> Stream:
        """The records of both; they must have the same columns."""
        if not isinstance(other, Stream):
            raise InvalidArgument("other", other, "must be a stream")
        return Stream(self.app, graph.Union(self.node, other.node))

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
        if approx is None and keys != KEYS:
            raise InvalidArgument("keys", keys, "is for approx=…: without that all keys are kept, however many come")
        within_us = duration_us(within, argument="within")
        grace_us = duration_us(grace, argument="grace", positive=False)
        node = graph.Dedup(
            self.node,
            key,
            within_us,
            grace_us,
            late,
            duration_us(idle, argument="idle"),
            duration_us(absent, argument="absent"),
            None if approx is None else Dedup(key, within_us, grace_us, approx, keys),
        )
        return Stream(self.app, node)

    def through(self, step: Through) -> Stream:
        """Passes records through a step that keeps state: `hr.changed("price", key="sku")`, or an operator of your own
        (docs/extending.md). What it keeps is committed with the flow's position."""
        if not callable(getattr(step, "over", None)):
            why = "must be a step that keeps state: hr.changed(…), or an operator of your own (docs/extending.md)"
            raise InvalidArgument("step", step, why)
        return Stream(self.app, graph.Through(self.node, step))

    def remember(
        self, function: Callable[..., Any], *, key: str | Sequence[str], column: str, type: str = "string"
    ) -> Stream:
        """Each record with the answer of an impure function (an HTTP service, a model) to its key: `function(value)`,
        or of several key columns `function(a, b)`. It is called once for each key. The answer is recorded in the same
        commit, and replays and rebuilds use what was recorded. If it raises an OSError (a connection, a time-out), the
        flow tries again later."""
        keys = (key,) if isinstance(key, str) else tuple(key)
        if not keys or not all(isinstance(name, str) and name for name in keys):
            raise InvalidArgument("key", key, "must be a column, or columns, that the answer depends on")
        if not isinstance(column, str) or not column or column.startswith("_"):
            raise InvalidArgument("column", column, "must be the name of the answer's column, without '_' before it")
        kind = parse_ddl(f"x {type}")  # InvalidSchema says what is wrong with it
        step = Remember(_checked_function(function), keys, column, type_ddl(kind.field(0).type))
        return self.through(step)

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
        """Groups records by event time, or by another column: `time="_arrived_at"` groups by arrival. Behind a join of
        streams that is `joined_at`, or the time of one of the sides.

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
        idle_us, absent_us = duration_us(idle, argument="idle"), duration_us(absent, argument="absent")
        return Windowed(self.app, graph.Window(self.node, window, time, grace_us, late, idle_us, absent_us, fill))

    def group_by(self, *columns: str) -> Grouped:
        """One result for each combination of values of these columns, over all time."""
        return Windowed(self.app, graph.Window(self.node)).group_by(*columns)

    def agg(self, *unnamed: Never, **aggregates: Aggregate) -> Aggregated:
        """One result for all records."""
        return self.group_by().agg(*unnamed, **aggregates)

    def enrich(
        self,
        table: View,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        as_of: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        grace: Duration = "0 seconds",
        late: Late | None = None,
        missing: Missing = "null",
    ) -> Stream:
        """Each record with the row of a table that has its key. `on`: the columns that are the table's key, `{"user":
        "id"}` if they are called differently. `as_of`: a time of the record: the row that was valid then; without it,
        the last that had arrived before the record. `columns`: which of the table's to take, `{"zip": "user_zip"}` with
        other names. A column `<table>_version` says which version was used.

        A row is there at once. With `as_of`, changes of the table that arrive up to `grace` after the record still
        count, and later ones correct the row, for an hour or as `late` says: `hr.correct(within=…)`, `hr.drop()`. Later
        ones never touch it. `missing`: a record that finds no row gets "null", is counted and goes ("drop"), or becomes
        a "dead_letter".

        `table` may be a view with windows: a record gets the row of its groups whose window ended last, at its time or
        before. The view has decided what is late, so `as_of` is needed, and `grace` and `late` are left out."""
        from headrace.table import Table

        if isinstance(table, View) and not isinstance(table, Table):
            table = self.app._tables.get(table.name, table)
        if isinstance(table, View) and not isinstance(table, Table):
            return self._enrich_by_view(table, on, as_of, columns, grace, late, missing)
        if not isinstance(table, Table):
            raise InvalidArgument("table", table, "must be a table, app.table(…), or a view with windows")
        pairs = pairs_of(on, None, table.columns.names, of=("the stream", f"table {table.name!r}"))
        if sorted(theirs for _, theirs in pairs) != sorted(table.key):
            why = f"must name the whole key of table {table.name!r}: {', '.join(table.key)}"
            raise InvalidArgument("on", dict(pairs), why)
        _check_missing(missing)
        if as_of is not None and not isinstance(as_of, str):
            raise InvalidArgument("as_of", as_of, "must be the name of a column: a time of the record")
        grace_us = duration_us(grace, argument="grace", positive=False)
        own = (*table.key, table.event_time or "")
        taken = names_of(columns, table.columns.names, of=f"table {table.name!r}", but=own)
        step = Enriching(
            table.name,
            pairs,
            as_of,
            table.event_time,
            taken,
            grace_us,
            _checked_late(late or correct("1 hour")),
            missing,
            table.keep_us,
            table.loads,
        )
        table.topic.alter_at_first_use(cleanup="delete")  # what a record looks up may be older than the last
        return Stream(self.app, graph.Meet((("facts", self.node), ("table", graph.Source(table.topic))), step))

    def _enrich_by_view(
        self,
        view: View,
        on: str | Sequence[str] | Mapping[str, str],
        as_of: str | None,
        columns: Sequence[str] | Mapping[str, str] | None,
        grace: Duration,
        late: Late | None,
        missing: Missing,
    ) -> Stream:
        flow = self.app._flow(view.name)
        if flow.window is None or flow.lives:
            why = f"view {view.name!r} has no windows, so its rows have no time to be looked up by. Use a view with"
            raise InvalidArgument("table", view.name, f"{why} windows, or a table: app.table(…)")
        if not isinstance(as_of, str):
            why = f"view {view.name!r} has a row for each window: name the record's time, as in as_of='at'"
            raise InvalidArgument("as_of", as_of, why)
        if late is not None or duration_us(grace, argument="grace", positive=False):
            why = f"a change of view {view.name!r} is never late: lateness was decided where the topic was read"
            given = ("grace", grace) if late is None else ("late", str(late))
            raise InvalidArgument(*given, f"{why}. Leave it out")
        _check_missing(missing)
        side = view._joinable()
        assert side.columns is not None
        pairs = pairs_of(on, None, side.columns, of=("the stream", side.called))
        if sorted(theirs for _, theirs in pairs) != sorted(flow.groups):
            groups = ", ".join(flow.groups) or "none: it has one row for each window"
            raise InvalidArgument("on", dict(pairs), f"must name all groups of {side.called}: {groups}")
        own = (*WINDOW, *flow.groups)
        step = ViewEnriching(view.name, pairs, as_of, names_of(columns, side.columns, of=side.called, but=own), missing)
        return Stream(self.app, graph.Meet((("facts", self.node), ("table", side.records)), step))

    def join(
        self,
        other: Stream,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        grace: Duration,
        before: Duration = "0 seconds",
        after: Duration = "0 seconds",
        how: How = "inner",
        suffix: str = "_right",
        late: Late | None = None,
        idle: Duration = "30 seconds",
        absent: Duration = "1 hour",
    ) -> Stream:
        """Pairs of records of two streams, of the same key, whose times are close: the other's is at most `before`
        earlier and at most `after` later. `how`: "inner"; with "left", "right" or "full", a record without a match
        becomes a row of its own when none can come any more. `suffix`: for columns of the other stream whose names are
        taken. `grace`: how long a record may be behind its partition; later ones are dropped or, with `late=
        hr.correct(within=…)`, corrections. A column `joined_at` has the later of both times."""
        if not isinstance(other, Stream):
            raise InvalidArgument("other", other, "must be a stream: app.stream(…)")
        if how not in ("inner", "left", "right", "full"):
            raise InvalidArgument("how", how, "must be 'inner', 'left', 'right' or 'full'")
        step = Joining(
            pairs_of(on, None, None, of=("the stream", "the other stream")),
            duration_us(before, argument="before", positive=False),
            duration_us(after, argument="after", positive=False),
            how,
            suffix,
            duration_us(grace, argument="grace", positive=False),
            _checked_late(late),
            duration_us(idle, argument="idle"),
            duration_us(absent, argument="absent"),
        )
        return Stream(self.app, graph.Meet((("left", self.node), ("right", other.node)), step))

    def match(
        self,
        pattern: Pattern | Rules,
        *,
        by: str | Sequence[str] | None = None,
        grace: Duration = "0 seconds",
        late: Late | None = None,
        idle: Duration = "30 seconds",
        absent: Duration = "1 hour",
    ) -> Stream:
        """What matches a pattern, `hr.pattern(…)` or `hr.match_recognize(…)`, in the records of each key; or rules that
        come and go while the program runs, `app.rules(…)`. `by`: the key's columns. A match has these, `match_start`,
        `match_end` and the measures; that of a rule also `rule` and `version`, and its measures as JSON. It is there
        when it is certain as far as records come in order; later ones take it back, or bring another. `grace`: how long
        a record may be behind its partition; later ones are dropped or, with `late=hr.correct(within=…)`, corrections.
        An absence, and a partial match that timed out, wait for `within` and `grace`, by the other records or by
        silence (`idle`, `absent`)."""
        from headrace.cep.definition import Pattern, parts_of
        from headrace.rules import Rules

        given = (by,) if isinstance(by, str) else tuple(by or ())
        if not isinstance(pattern, Pattern | Rules):
            raise InvalidArgument("pattern", pattern, "must be a pattern, hr.pattern('a+ b', …), or app.rules(…)")
        if isinstance(pattern, Pattern) and pattern.by and given and pattern.by != given:
            why = f"the pattern says PARTITION BY {', '.join(pattern.by)}: leave it out"
            raise InvalidArgument("by", by, why)
        given = given or (pattern.by if isinstance(pattern, Pattern) else ())
        if not given or not all(isinstance(name, str) and name for name in given) or len({*given}) < len(given):
            raise InvalidArgument("by", by, "must be a column, or columns, of the key: match(pattern, by='card')")
        times = (
            duration_us(grace, argument="grace", positive=False),
            _checked_late(late),
            duration_us(idle, argument="idle"),
            duration_us(absent, argument="absent"),
        )
        if isinstance(pattern, Rules):
            return Stream(self.app, graph.Meet(pattern._sides(self.node), pattern._matching(given, *times)))
        step = Matching(pattern, given, *times)
        parts = parts_of(pattern)
        records = self.transform(parts.transform) if parts.computed else self
        return Stream(self.app, graph.Meet((("events", records.node),), step))

    def search(self, queries: Queries, *, text: str | Sequence[str], as_of: datetime | str | None = None) -> Stream:
        """Each record once for each stored query that finds it, with the columns `query`, `version` and `highlights`.
        `text`: the columns, strings, that are searched for words; all others are asked for by their values. A query
        finds the records that arrive after it was put, until it is put again or removed. `as_of`: queries that were
        stored by then find earlier records, too: a search of what the log has."""
        from headrace.queries import Queries

        if not isinstance(queries, Queries):
            raise InvalidArgument("queries", queries, "must be stored queries: app.queries('alerts')")
        names = (text,) if isinstance(text, str) else tuple(text)
        if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            raise InvalidArgument("text", text, "must be the names of columns, each once: text=['title', 'body']")
        as_of_us = None if as_of is None else queries._checked_as_of_us(as_of)
        step = Searching(queries.name, names, queries.tenant, as_of_us)
        queries._searched.append((self.node, names))
        queries.table.topic.alter_at_first_use(cleanup="delete")  # records may be older than a query's last version
        sides = ((FACTS, self.node), (QUERIES, graph.Source(queries.table.topic)))
        return Stream(self.app, graph.Meet(sides, step))

    def to_view(self, name: str, *, keep: None = None, every: Duration | None = None) -> View:
        """Behind enrich, join, match and search: keeps a row for each record, pair, match or hit in a view. Transforms
        between them must keep the columns `_id` and `op`."""
        if not isinstance(origin(self.node), graph.Meet):
            why = f"a view has results: {_AGGREGATE_FIRST}. Records as they are go to a topic: .to_topic(…)"
            raise InvalidArgument("to_view", name, why)
        if keep is not None:
            raise InvalidArgument("keep", keep, "joined rows and matches are kept for ever: leave it out")
        check_name(name, argument="name")
        self.app._add(graph.Sink(name, self.node, every_us=_every_us(every)))
        return View(self.app, name)

    def to_topic(self, name: str, **settings: Any) -> DeclaredTopic:
        """Writes the records to a topic, each exactly once. Creates the topic, with their columns, if there is none.
        Behind a join these are changes; behind an inner join without corrections `changes=False` makes them records,
        which can be joined again. Right behind a search they are records, where no record can be taken back."""
        check_name(name, argument="name")
        if isinstance(self.node, graph.Meet) and isinstance(self.node.step, Searching) and only_adds(self.node):
            settings = {"changes": False, **settings}
        return self.app._add_to_topic(graph.Sink(name, self.node, target=name, settings=settings))

    def to_sink(self, name: str, sink: Kind | Deliver, **settings: Any) -> Sink:
        """Delivers the records outside of log and views: to `hr.search_index(…)`, or to a function that is called with
        rows (a pyarrow.Table) and a key (a text), which is the same when rows come again. A topic without further
        steps, or a table, is read as it is; anything else goes through a topic of that name first, with these
        settings."""
        kind = as_sink(sink)
        topic, key = read_directly(self.app, self.node)
        if topic is None:
            topic = self.to_topic(name, **settings)
        elif settings:
            setting, value = next(iter(settings.items()))
            raise InvalidArgument(setting, value, f"is of a topic, and topic {topic.name!r} is there: leave it out")
        return self.app._add_sink(Sink(self.app, name, topic, kind, key))


@dataclass(frozen=True, repr=False)
class Windowed(_Steps):
    """Records grouped by window."""

    elsewhere = {  # noqa: RUF012
        **_ELSEWHERE,
        "to_view": _AGGREGATE_FIRST,
        "to_topic": "aggregate first, .agg(n=hr.count()).to_topic(…); records go there without a window",
        **dict.fromkeys(_OF_RECORDS, "that is for records, and comes before .window(…)"),
    }

    app: App
    node: graph.Window

    def __post_init__(self) -> None:
        check(self.node)

    def __repr__(self) -> str:
        return repr(self.group_by())

    def group_by(self, *columns: str) -> Grouped:
        """One result for each window and value of these columns."""
        for column in columns:
            if not isinstance(column, str) or not column:
                raise InvalidArgument("columns", column, "must be names of columns; make others with .transform(…)")
        if len(set(columns)) < len(columns):
            raise InvalidArgument("columns", columns, "names a column twice")
        return Grouped(self.app, self.node, columns)

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
        **dict.fromkeys(_OF_RECORDS, "that is for records, and comes before .group_by(…)"),
    }

    app: App
    node: graph.Window
    columns: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<stream of {_described(self.node)}{_by(self.node, self.columns)}>"

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
        return Aggregated(self.app, graph.Aggregate(self.node, self.columns, aggregates))


@dataclass(frozen=True, repr=False)
class Aggregated(_Steps):
    """Results: a row per window and group."""

    elsewhere = _OF_ROWS

    app: App
    node: graph.Aggregate

    def __post_init__(self) -> None:
        check(self.node)

    def __repr__(self) -> str:
        results = ", ".join(f"{aggregate} as {name}" for name, aggregate in self.node.aggregates.items())
        return f"<{results} of <stream of {_described(self.node)}{_by(self.node.of, self.node.groups)}>>"

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Aggregated:
        """`DataFrame -> DataFrame` over result rows, each by itself: thresholds, ratios, explode. Before a view it must
        keep window and groups. Before a topic it gets the changes, with `op` '-' and '+'."""
        return Aggregated(self.app, replace(self.node, after=(*self.node.after, _checked_function(function))))

    def to_view(self, name: str, *, keep: Duration | None = None, every: Duration | None = None) -> View:
        """Keeps the results in a view of that name: a table that any process reads with SQL. `keep`: how long rows
        stay; without a window, how long a group stays after its last record arrived. `every`: a live flow changes the
        view at most this often; it does not wait while it is behind, nor in `drain`."""
        check_name(name, argument="name")
        keep_us = None if keep is None else duration_us(keep, argument="keep")
        self.app._add(graph.Sink(name, self.node, keep_us=keep_us, every_us=_every_us(every)))
        return View(self.app, name)

    def to_topic(
        self, name: str, *, emit: Emit = "updates", every: Duration | None = None, **settings: Any
    ) -> DeclaredTopic:
        """Writes the changes to a topic: every change, or with `emit="final"` each result once, when its window is
        final, and then only corrections, as '-' and '+'. `every`: a result changes at most this often, as in
        `to_view`."""
        check_name(name, argument="name")
        sink = graph.Sink(
            name, self.node, target=name, emit=check_emit(emit), every_us=_every_us(every), settings=settings
        )
        return self.app._add_to_topic(sink)

    def to_sink(self, name: str, sink: Kind | Deliver, *, emit: Emit = "updates", **settings: Any) -> Sink:
        """Delivers the changes outside of log and views, by way of a topic of that name: see `Stream.to_sink` and
        `to_topic`."""
        kind, window = as_sink(sink), self.node.of
        topic = self.to_topic(name, emit=emit, **settings)
        key = (*(WINDOW if window.window is not None else ()), *self.node.groups)
        return self.app._add_sink(Sink(self.app, name, topic, kind, key or None))


def _checked_function(function: Any) -> Transform:
    if not callable(function):
        raise InvalidArgument("function", function, "must be a function DataFrame -> DataFrame")
    return function  # type: ignore[no-any-return]


def _checked_late(late: Late | None) -> Late:
    if late is not None and not isinstance(late, Late):
        raise InvalidArgument("late", late, "must be hr.drop() or hr.correct(within='1 hour')")
    return late or Drop()


def _check_missing(missing: Missing) -> None:
    if missing not in ("null", "drop", "dead_letter"):
        raise InvalidArgument("missing", missing, "must be 'null', 'drop' or 'dead_letter'")


def _every_us(every: Duration | None) -> int:
    return 0 if every is None else duration_us(every, argument="every")


def _described(node: graph.Node) -> str:
    """Where the records come from, for a person."""
    nodes = list(graph.walk(node))
    named = [each.name or each.topic.name for each in nodes if isinstance(each, graph.Source)]
    named += [each.view.name for each in nodes if isinstance(each, graph.Changes)]
    once = ", without repetitions" if any(isinstance(each, graph.Dedup) for each in nodes) else ""
    return f"{', '.join(named)}{once}"


def _by(node: graph.Window, groups: Sequence[str]) -> str:
    by = [*([] if node.window is None else [str(node.window)]), *groups]
    return f" by {', '.join(by)}" if by else ""
