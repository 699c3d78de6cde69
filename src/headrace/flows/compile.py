"""From a flow as it was written to what a store keeps: types found out, names checked. Owns the questions to Spark's
analyser; runs no job."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.aggregates import Aggregate
from headrace.aggregates.merged import RolledUp
from headrace.aggregates.own import Own
from headrace.bloom import Dedup
from headrace.errors import FlowChanged, HeadraceError, InvalidArgument, UnknownColumn
from headrace.flows import arrow_partials, ranges
from headrace.flows.flow import Flow, Source, Transform, through
from headrace.flows.judge import EVENT, JUDGED, REACHED, SOURCE, Judge
from headrace.flows.own_check import check_own
from headrace.flows.partials import WHERE, arguments, as_if_judged, column_of, partial_rows
from headrace.flows.passing import PLACE, Passed
from headrace.flows.plan_check import check_transform, columns_needed, origins, passes, unknown_column
from headrace.flows.sieve import Sieve
from headrace.log.contract import META
from headrace.schema import parse_ddl, quoted_name, schema_from, type_ddl
from headrace.views.contract import (
    AT,
    CHANGE,
    MARK,
    OP,
    ROWS,
    TAIL,
    WINDOW,
    WINDOWS_COUNTED,
    WINDOWS_MISSED,
    Column,
    Fill,
    FlowSpec,
    Result,
    SlotColumn,
    ViewSpec,
    change_columns,
    feed_columns,
    is_fed,
    wholes_in,
)
from headrace.views.values import arrow_type, check_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Sieves = Mapping[str, Sequence[Sieve]]
"""Topic -> what its records go through."""
TIMES = (TimestampType, TimestampNTZType)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A flow that can be run: what its store keeps of it, and which columns of its topics it reads."""

    given: Flow
    """As it was written."""
    flow: Flow
    spec: FlowSpec
    columns: Mapping[str, ranges.Columns]
    arrow: pa.Schema | None
    """The columns of what is made where the records are read, if Spark has nothing to compute."""
    passed: Passed | None
    """The columns that transforms only pass on, where there are such and the flow writes records."""
    judged_behind: tuple[str, ...]
    """Where records are judged behind the transforms: the columns that anybody reads from there on."""
    time: str | None
    """The column with the event time, as far as it matters."""
    notes: tuple[str, ...] = ()

    def check_topics(self) -> None:
        """FlowChanged when a column that is read has become wider since, so that its values may not fit any more, or
        when flows write changes to a topic that is read as records. Columns that were added are nobody's business."""
        changes = []
        for columns in self.columns.values():
            if columns.topic.settings.changes and not columns.changes:
                changes.append(f"the records of topic {columns.topic.name!r} became changes")
                continue
            now = ranges.columns_of(columns.topic)
            changes += [
                f"column {name!r} of topic {columns.topic.name!r}: {type_ddl(was.type)} became {type_ddl(new.type)}"
                for name, was, new in ((field.name, field, now.field(field.name)) for field in columns.known)
                if name in self._read_of(columns) and was.type != new.type
            ]
        if changes:
            raise FlowChanged(self.flow.name, changes)

    def _read_of(self, columns: ranges.Columns) -> frozenset[str]:
        """What Spark reads, and what goes around it."""
        return columns.needed | frozenset(() if self.passed is None else self.passed.origins.values())


def compiled(flow: Flow, app: str, spark: SparkSession) -> Compiled:
    """The flow, checked; or the error that says what cannot be."""
    checks = _Checks(flow, spark)
    sieves = checks.of_records()  # before anything else runs the transforms: it says what is wrong with them
    given, flow = flow, _exactly(flow, spark)
    df = empty(flow, spark)
    said = {name: str(each) for name, each in (given.aggregates or {}).items()}
    spec = replace(_spec(flow, app, df), aggregates=said)
    if spec.view is not None:
        checks.notes += check_own(flow, spec.view, spark)
        if flow.after:
            checks.of_results(spec.view)
    _refuse_taken(flow, df)
    behind = _judged_behind(flow, df, spark)
    columns = {source.topic.name: _columns(flow, source, behind, spark) for source in flow.sources}
    arrow = None
    if sieves is not None and (made := _in_place(flow, df, sieves, columns)) is not None:
        arrow, columns = made
    elif _judged_when_read(flow, spark):
        columns, behind = {name: _with_judge(flow, each, spark) for name, each in columns.items()}, ()
    passed = None
    if arrow is None and (passed := _passed(flow, df, spark)) is not None:
        columns = {name: _only_computed(flow, passed, each, spark) for name, each in columns.items()}
    return Compiled(given, flow, spec, columns, arrow, passed, behind, _time_folded(flow), tuple(checks.notes))


def _refuse_taken(flow: Flow, df: DataFrame) -> None:
    """InvalidArgument if a transform makes a column that the judge makes, too."""
    taken = {*JUDGED, EVENT, REACHED, *(() if flow.tells_source else (SOURCE,))}
    if flow.window is not None and (made := [name for name in df.columns if name.lower() in taken]):
        why = f"flow {flow.name!r}: the name is taken, in flows with windows. Give yours another, in .transform(…)"
        raise InvalidArgument("column", made[0], why)


def _passed(flow: Flow, df: DataFrame, spark: SparkSession) -> Passed | None:
    """What transforms of the records of one topic only pass on; None if nothing, or the rows are not records."""
    if flow.aggregates is not None or flow.dedup is not None or flow.retracts or len(flow.sources) > 1:
        return None
    (source,) = flow.sources
    transforms = functools.partial(through, (*source.transforms, *flow.transforms))
    found = origins(spark, transforms, ranges.spark_schema(source.topic))
    return Passed(found, tuple(df.columns)) if found.keys() > {*PLACE} else None


def _only_computed(flow: Flow, passed: Passed, columns: ranges.Columns, spark: SparkSession) -> ranges.Columns:
    (source,) = flow.sources
    asked = [quoted_name(name) for name in passed.computed]
    transforms = (*source.transforms, *flow.transforms)
    needed = columns_needed(spark, lambda df: through(transforms, df).select(asked), columns.schema)
    return replace(columns, needed=needed)


def _judged_when_read(flow: Flow, spark: SparkSession) -> bool:
    """Whether records can be judged where they are read: transforms leave their time, and what the judge says, as they
    are. If one makes the time, or names the columns that it keeps, records are judged behind it."""
    if flow.window is None or flow.aggregates is None or flow.own_progress:
        return False
    time = time_column(flow)
    assert time is not None
    return all(
        passes(
            spark,
            functools.partial(through, (*source.transforms, *flow.transforms)),
            judged_schema(ranges.spark_schema(source.topic)),
            as_they_are=(time,),
            untouched=JUDGED,
        )
        for source in flow.sources
    )


def judged_schema(schema: StructType) -> StructType:
    return StructType([*schema, *(StructField(name, LongType()) for name in JUDGED)])


def _with_judge(flow: Flow, columns: ranges.Columns, spark: SparkSession) -> ranges.Columns:
    """The columns of records that are judged where they are read."""
    time = time_column(flow)
    assert time is not None
    judge = Judge.of_flow(flow, time)
    schema = judged_schema(columns.schema)
    (source,) = (each for each in flow.sources if each.topic.name == columns.topic.name)
    needed = columns_needed(spark, lambda df: _partials_of(flow, source, df), schema)
    return replace(columns, schema=schema, needed=needed - {*JUDGED}, judge=judge)


def _partials_of(flow: Flow, source: Source, df: DataFrame) -> DataFrame:
    time = time_column(flow)
    df = through((*source.transforms, *flow.transforms), df)
    return partial_rows(flow, df, None if time is None else F.col(quoted_name(time)))


def _judged_behind(flow: Flow, df: DataFrame, spark: SparkSession) -> tuple[str, ...]:
    """Of the columns behind the transforms, those that the judge and the aggregates read."""
    if flow.window is None or flow.aggregates is None:
        return ()
    time = time_column(flow)
    assert time is not None
    asked = columns_needed(
        spark, lambda df: partial_rows(flow, as_if_judged(flow, df), F.col(quoted_name(time))), df.schema
    )
    ours = {*META, *((SOURCE,) if flow.own_progress else ())}
    return tuple(name for name in df.columns if name in asked | ours | {time})


def _in_place(
    flow: Flow, df: DataFrame, sieves: Sieves, columns: Mapping[str, ranges.Columns]
) -> tuple[pa.Schema, dict[str, ranges.Columns]] | None:
    """What is made where the records are read, and how; None if Spark has something to compute."""
    come = [_sifted(sieves[name], ranges.arrow_schema(each.known, each.schema.names)) for name, each in columns.items()]
    steps: list[ranges.Step] = []
    if flow.aggregates is not None:
        time = time_column(flow)
        judged = as_if_judged(flow, df)
        schema = partial_rows(flow, judged, None if time is None else F.col(quoted_name(time))).schema
        out = _packed(flow, _in_arrow(schema))
        partials = arrow_partials.plan(flow, time, out, come)
        if partials is None:
            return None
        steps = [partials.of]
    elif flow.dedup is None and all(each == come[0] for each in come):
        out = come[0]
    else:
        return None
    struct = _struct(out)
    return out, {
        name: replace(
            each,
            needed=each.needed | _asked(sieves[name]),
            then=ranges.Then(struct, (*(sieve.of for sieve in sieves[name]), *steps)),
        )
        for name, each in columns.items()
    }


def _asked(sieves: Sequence[Sieve]) -> frozenset[str]:
    """The topic's columns that conditions are about. Spark may need fewer: of all transforms together, one may imply
    what another asks."""
    return functools.reduce(lambda wanted, sieve: sieve.reads(wanted), reversed(sieves), frozenset[str]())


def _sifted(sieves: Sequence[Sieve], schema: pa.Schema) -> pa.Schema:
    return functools.reduce(lambda schema, sieve: sieve.schema(schema), sieves, schema)


def _exactly(flow: Flow, spark: SparkSession) -> Flow:
    """The flow with aggregates that know of which types they are: what they keep depends on that."""
    if flow.aggregates is None:
        return flow
    df = empty(flow, spark)
    named = _with_named_columns(flow, df)
    made = {name: each.with_algebra(each.algebra.reading(df.columns)) for name, each in named.items()}
    try:
        types = _types(made, df)
    except (PySparkException, HeadraceError):
        return replace(flow, aggregates=made)  # said where aggregates are checked
    settled = {name: each.with_algebra(each.algebra.settled(types[name])) for name, each in made.items()}
    return replace(flow, aggregates=settled)


def _types(aggregates: Mapping[str, Aggregate], df: DataFrame) -> dict[str, dict[str, pa.DataType]]:
    """By aggregate and argument its type; of one's own the partial's."""
    own = {name: each.algebra for name, each in aggregates.items() if isinstance(each.algebra, Own)}
    asked = {
        (name, part): column for name, each in aggregates.items() for part, column in arguments(each.algebra).items()
    }
    out: dict[str, dict[str, pa.DataType]] = {name: {} for name in aggregates}
    found = _in_arrow(df.select(*asked.values()).schema).types if asked else []
    for (name, part), arrow in zip(asked, found, strict=True):
        if part != WHERE:
            out[name][part] = arrow
    found = _in_arrow(df.agg(*(column_of(each.argument) for each in own.values())).schema).types if own else []
    return out | {name: {"value": arrow} for name, arrow in zip(own, found, strict=True)}


_WHOLE_RECORD = re.compile(r"\bstruct\s*\(\s*\*\s*\)", re.IGNORECASE)


def _with_named_columns(flow: Flow, df: DataFrame) -> dict[str, Aggregate]:
    """`struct(*)` names the columns that a record has here: those that we add to it later are not part of it, nor, but
    for records that are kept to be taken back, those that are ours from the beginning."""
    own = {*CHANGE, *MARK, *wholes_in(df.columns), *filter(is_fed, df.columns)} if flow.retracts else set()
    known = [name for name in df.columns if flow.records or (name not in own and not name.startswith("_"))]
    names = f"struct({', '.join(map(quoted_name, known))})"
    made = dict(flow.aggregates or {})
    for name, each in made.items():
        if isinstance(each.algebra.argument, str) and _WHOLE_RECORD.search(each.algebra.argument):
            argument = _WHOLE_RECORD.sub(lambda _: names, each.algebra.argument)
            made[name] = each.with_algebra(replace(each.algebra, argument=argument))
    return made


def moved(known: Compiled, flow: Flow) -> Compiled | None:
    """What is known of a flow, for the same one over topics like its own in another log; None if it is not the same."""
    topics = {topic.name: topic for topic in flow.topics}
    if {name: ranges.spark_schema(topic) for name, topic in topics.items()} != {
        name: StructType([each for each in columns.schema if each.name not in JUDGED])
        for name, columns in known.columns.items()
    }:
        return None
    sources = tuple(replace(source, topic=topics[source.topic.name]) for source in known.flow.sources)
    if replace(known.given, sources=sources) != flow or known.time != _time_folded(flow):
        return None
    columns = {name: replace(each, topic=topics[name]) for name, each in known.columns.items()}
    return replace(known, given=flow, flow=replace(known.flow, sources=flow.sources), columns=columns)


def _in_arrow(schema: StructType) -> pa.Schema:
    """Partial rows' columns, whose names no topic may use."""
    plain = StructType([StructField(f"c{number}", field.dataType) for number, field in enumerate(schema)])
    return pa.schema(list(zip(schema.names, schema_from(plain).types if len(schema) else [], strict=True)))


def _struct(schema: pa.Schema) -> StructType:
    return ranges.struct(", ".join(f"{quoted_name(field.name)} {type_ddl(field.type)}" for field in schema))


def _packed(flow: Flow, schema: pa.Schema) -> pa.Schema:
    """The columns of partial rows, when what is kept of values is made where the records are read."""
    for name, aggregate in (flow.aggregates or {}).items():
        at = schema.get_field_index(aggregate.slots(name)[0].name)
        if at >= 0:
            schema = schema.set(
                at, pa.field(schema.field(at).name, aggregate.algebra.packed_type(schema.field(at).type))
            )
    return schema


class _Checks:
    """Whether each transform is row-local, keeps what it must and knows its columns."""

    def __init__(self, flow: Flow, spark: SparkSession) -> None:
        self._flow, self._spark = flow, spark
        self.notes: list[str] = []

    def of_records(self) -> Sieves | None:
        """The transforms of each source's records, if all of them only choose."""
        flow, several = self._flow, len(self._flow.sources) > 1
        kept = (*META, *CHANGE) if flow.retracts else META
        found = {}
        kinds = []
        for source in flow.sources:
            of = f" of {source.called}" if several or source.name else ""
            schema, found[source.topic.name] = self._through(
                ranges.spark_schema(source.topic), source.transforms, of, kept
            )
            kinds.append({field.name: field.dataType for field in schema})
        _, last = self._through(schema, flow.transforms, "" if several else of, kept)
        if last is None or any(each is None for each in found.values()):
            return None
        if last and any(each != kinds[0] for each in kinds):
            return None  # of different types Spark makes one, or of different names, before anything is chosen
        return {name: (*(each or ()), *last) for name, each in found.items()}

    def of_results(self, view: ViewSpec) -> None:
        """What goes to a view keeps window and groups; what goes to a topic may have any columns."""
        kept = tuple(column.name for column in view.places) if view.public else ()
        self._through(_shape_type(view), self._flow.after, " behind agg", kept)

    def _through(
        self, schema: StructType, transforms: tuple[Transform, ...], of: str, kept: tuple[str, ...]
    ) -> tuple[StructType, tuple[Sieve, ...] | None]:
        sieves: list[Sieve | None] = []
        for number, transform in enumerate(transforms, start=1):
            step = f"transform {number}{of}"
            checked = check_transform(self._spark, transform, schema, flow=self._flow.name, step=step, kept=kept)
            self.notes += [f"{self._flow.name}, {step}: {note}" for note in checked.notes]
            schema = checked.schema
            sieves.append(checked.sieve)
        sound = tuple(each for each in sieves if each is not None)
        return schema, sound if len(sound) == len(sieves) else None


def _columns(flow: Flow, source: Source, behind: tuple[str, ...], spark: SparkSession) -> ranges.Columns:
    """What is read of a source: by its transforms, by the flow's, by the judge behind them, and by the aggregates."""

    def query(df: DataFrame) -> DataFrame:
        df = through((*source.transforms, *flow.transforms), df)
        if flow.aggregates is None:
            return df
        if flow.window is not None:
            return df.select([quoted_name(name) for name in behind if name in df.columns])
        time = time_column(flow)
        return partial_rows(flow, df, None if time is None else F.col(quoted_name(time)))

    schema = ranges.spark_schema(source.topic)
    needed = columns_needed(spark, query, schema)
    placeless = source.changes and flow.aggregates is not None
    return ranges.Columns(
        source.topic, ranges.columns_of(source.topic), schema, needed, changes=source.changes, placeless=placeless
    )


def _spec(flow: Flow, app: str, df: DataFrame) -> FlowSpec:
    spec = FlowSpec(
        name=flow.name,
        app=app,
        sources=tuple(topic.name for topic in flow.topics),
        view=None,
        window=str(flow.window) if flow.window and not flow.lives else "",
        aggregates={name: str(each) for name, each in (flow.aggregates or {}).items()},
        grace_us=flow.grace_us,
        within_us=flow.late.within_us,
        time=None if flow.lives else flow.time,
        target=flow.target,
        emit=flow.emit,
        feeds=flow.feeds,
        dedup=str(flow.dedup or ""),
        idle_us=flow.idle_us,
        absent_us=flow.absent_us,
        dropped_to=flow.late.dropped_to,
    )
    if flow.dedup is not None:
        _check_dedup(flow, flow.dedup, df)
    if flow.aggregates is None:
        return spec
    view = _view(flow, df)
    if flow.after and view.public:
        view = replace(view, shaped=_shaped(flow, view, df.sparkSession))
    return replace(spec, view=view)


def _check_dedup(flow: Flow, dedup: Dedup, df: DataFrame) -> None:
    """Repetitions are found by a key and a time."""
    time = time_column(flow)
    if time is None:
        names = " and ".join(repr(topic.name) for topic in flow.topics)
        why = f"{names} has no event time, or they have different ones: create topics with event_time=…"
        raise InvalidArgument("dedup", str(dedup), f"flow {flow.name!r}: {why}")
    for name in (*dedup.key, time):
        if name not in df.columns:
            raise UnknownColumn(flow.name, name, [each for each in df.columns if each != SOURCE])


def _shaped(flow: Flow, view: ViewSpec, spark: SparkSession) -> tuple[Column, ...]:
    """What the transforms make of results, besides window and groups."""
    given = _shape_type(view)
    try:
        schema = through(flow.after, spark.createDataFrame([], given)).schema
    except PySparkException as error:
        if unknown := unknown_column(error, flow.name, given.names):
            raise unknown from None
        raise
    places = {column.name for column in view.places}
    made = [each for each in schema if each.name not in places]
    return tuple(Column(each.name, _ddl(each.dataType, each.name, lists=True)) for each in made)


def empty(flow: Flow, spark: SparkSession) -> DataFrame:
    """No records, as they look behind the transforms."""
    out: DataFrame | None = None
    for source in flow.sources:
        df = through(source.transforms, spark.createDataFrame([], ranges.spark_schema(source.topic)))
        if flow.tells_source:
            df = df.withColumn(SOURCE, F.lit(0))
        out = df if out is None else out.unionByName(df)
    assert out is not None
    return through(flow.transforms, out)


def time_column(flow: Flow) -> str | None:
    """The column with the records' event time: the one asked for, or the topics' own."""
    if flow.time is not None:
        return flow.time
    names = {source.topic.settings.event_time for source in flow.sources}
    if len(names) > 1:
        if flow.window is None and not any(each.algebra.ordered for each in (flow.aggregates or {}).values()):
            return None  # nobody asks
        raise InvalidArgument(
            "time",
            None,
            f"flow {flow.name!r}: its topics have different event times {sorted(map(str, names))}: name a column that "
            "all have with window(…, time=…)",
        )
    return names.pop()


def _time_folded(flow: Flow) -> str | None:
    return None if flow.aggregates is None else time_column(flow)


def _view(flow: Flow, df: DataFrame) -> ViewSpec:
    assert flow.aggregates is not None
    time = time_column(flow)
    known = [name for name in df.columns if name != SOURCE]
    if flow.window and time is None:
        raise InvalidArgument(
            "window",
            str(flow.window),
            f"flow {flow.name!r}: topic {flow.sources[0].topic.name!r} has no event time: create it with event_time=…, "
            "or name a column: window(…, time=…)",
        )
    for name in (*flow.groups, *([time] if flow.window and time else ())):
        if name not in known:
            raise UnknownColumn(flow.name, name, known, _made_first(name))
    if flow.window and time:
        _check_time(flow, time, df)
    taken = {*WINDOW, *TAIL, *flow.groups}
    for name in flow.aggregates:
        if not flow.records and (name in taken or name.startswith("_") or "__" in name):
            raise InvalidArgument(
                "agg",
                name,
                f"flow {flow.name!r}: a result cannot have this name; window, group and '_' names are taken",
            )
    column = None if time is None else F.col(quoted_name(time))
    try:
        _check_arguments(flow, df)
        schema = partial_rows(flow, as_if_judged(flow, df), column).schema
    except PySparkException as error:
        if unknown := unknown_column(error, flow.name, known):
            raise unknown from None
        error.add_note(f"in agg of flow {flow.name!r}")
        raise
    groups = tuple(Column(name, _ddl(schema[name].dataType, name)) for name in flow.groups)
    slots: list[SlotColumn] = []
    results: list[Result] = []
    if flow.retracts:
        slots.append(SlotColumn(ROWS, "bigint", "add"))
    for name, aggregate in flow.aggregates.items():
        slots += [SlotColumn(slot.name, slot.type, slot.rule, slot.of) for slot in aggregate.slots(name)]
        shown = aggregate.algebra.shown(name)
        if not flow.records:
            check_column(arrow_type(shown.type), column=name, lists=True, rows=aggregate.algebra.of_rows)
        results.append(Result(name, shown.type, shown.slots, shown.unless))
    window = None if flow.lives else flow.window
    return ViewSpec(
        flow.name,
        groups,
        tuple(slots),
        tuple(results),
        None if window is None else window.kept_us,
        flow.keep_us,
        flow.target is None,
        windows="fixed" if window is None else window.kind,
        retracts=flow.retracts,
        records=flow.records,
        fill=_fill(flow),
    )


def _fill(flow: Flow) -> Fill | None:
    if flow.fill is None:
        return None
    zeros = [name for name, each in (flow.aggregates or {}).items() if each.algebra.zero]
    return Fill(flow.fill, str(flow.window), tuple(zeros) if flow.fill == "zero" else ())


def _made_first(name: str) -> str:
    """What to write where an expression is given for a column; nothing for what may be a name."""
    if re.fullmatch(r"[\w ]+", name):
        return ""
    return f"An expression is computed first: .transform(lambda df: df.withColumn('x', F.expr({name!r}))), then 'x'"


def _check_time(flow: Flow, time: str, df: DataFrame) -> None:
    """Spark would say it of a function that its author has never heard of."""
    kind = df.schema[time].dataType
    if isinstance(kind, TIMES):
        return
    made = f"timestamp_millis({time})" if isinstance(kind, (IntegerType, LongType)) else f"to_timestamp({time})"
    why = f"flow {flow.name!r}: is {kind.simpleString()}; a window needs a timestamp. Make one in .transform(…): {made}"
    raise InvalidArgument("time", time, why)


def _check_arguments(flow: Flow, df: DataFrame) -> None:
    """Spark would read a text as a double, and fail on the first that is none."""
    if flow.records:
        for field in df.schema:
            if _has_map(field.dataType):
                why = "is a map, or has one in it: records with maps have no order, so none is the first of them"
                instead = "Make an array of it, in a .transform(…) before, or use dedup(…, approx=…)"
                raise InvalidArgument("dedup", field.name, f"flow {flow.name!r}: {why}. {instead}")
        return
    for name, aggregate in (flow.aggregates or {}).items():
        if aggregate.algebra.where is not None:
            _check_condition(flow, name, aggregate.algebra.where, df)
        asked = arguments(aggregate.algebra)
        for field in df.select(*asked.values()).schema if asked else ():
            if not isinstance(aggregate.algebra, RolledUp):
                _check_argument(flow, name, aggregate, field.dataType)
        if why := aggregate.algebra.check():
            raise InvalidArgument("agg", name, f"flow {flow.name!r}: {aggregate} is of {why}")


def _check_condition(flow: Flow, name: str, where: Any, df: DataFrame) -> None:
    kind = df.select(column_of(where)).schema[0].dataType
    if not isinstance(kind, BooleanType):
        why = f"flow {flow.name!r}, aggregate {name!r}: is {kind.simpleString()}, and must be true or false"
        raise InvalidArgument("where", str(where), f"{why}: a boolean column, or a comparison such as 'ms > 100'")


def _check_argument(flow: Flow, name: str, aggregate: Aggregate, kind: DataType) -> None:
    if not aggregate.algebra.of_rows or not isinstance(kind, StructType):
        _ddl(kind, name)
    elif _has_map(kind):
        why = f"flow {flow.name!r}: {aggregate} has a map in it, and maps have no order. Leave it out: struct(a, b)"
        raise InvalidArgument("agg", name, why)


def _has_map(kind: DataType) -> bool:
    match kind:
        case MapType():
            return True
        case ArrayType():
            return _has_map(kind.elementType)
        case StructType():
            return any(_has_map(field.dataType) for field in kind)
    return False


def _ddl(kind: DataType, name: str, *, lists: bool = False) -> str:
    text = _state_ddl(kind, name) if lists else kind.simpleString()
    check_column(arrow_type(text), column=name, lists=lists)  # what a view cannot hold is said now
    return text


def _state_ddl(kind: DataType, name: str) -> str:
    """Of any type: with the names in it as they are written."""
    return type_ddl(schema_from(StructType([StructField(name, kind)])).field(0).type)


def target_schema(flow: Flow, app: str, spark: SparkSession) -> tuple[pa.Schema, dict[str, Any]]:
    """The columns of the topic a flow writes to, and the settings that follow from the flow: results are keyed by their
    group and have their window's start as event time; records keep the key and the event time they had."""
    spec = _spec(_exactly(flow, spark), app, empty(flow, spark))
    if flow.records:
        return _records_schema(flow, spark)
    if spec.view is None:
        schema = schema_from(_plain(flow, spark).schema)
        if flow.dedup is not None:
            partitions = len(flow.sources) * max(topic.settings.partitions for topic in flow.topics)
            settled = {"event_time": time_column(flow), "max_ahead": "36500 days", "partitions": partitions}
            return schema, settled
        settings = flow.sources[0].topic.settings
        implied: dict[str, Any] = {"event_time": time_column(flow), "key": settings.key}
        changes = flow.retracts
    else:
        schema = parse_ddl(
            ", ".join(f"{quoted_name(column.name)} {column.type}" for column in change_columns(spec.view))
        )
        if flow.after:
            schema = schema_from(
                through(flow.after, spark.createDataFrame([], _shape_type(spec.view))).drop("_progress").schema
            )
        implied = {"event_time": "window_start" if flow.window else None, "key": flow.groups or None}
        changes = "op" in schema.names
    implied = {
        name: value
        for name, value in implied.items()
        if value and all(each in schema.names for each in ((value,) if isinstance(value, str) else value))
    }
    return schema, {**implied, **({"changes": True} if changes else {})}


def _plain(flow: Flow, spark: SparkSession) -> DataFrame:
    """No records, as topics have them: of headrace's own columns only that which says whether they came or went."""
    df = empty(flow, spark)
    plain = df.drop(*META, SOURCE, *CHANGE[1:], *MARK, *(wholes_in(df.columns) if flow.retracts else ()))
    if (flow.retracts or flow.records) and "op" in plain.columns:
        why = "says whether a record came or went: give yours another name, in .transform(…)"
        raise InvalidArgument("column", "op", f"flow {flow.name!r}: in a topic of changes it {why}")
    return plain.withColumnRenamed(OP, "op")


def _records_schema(flow: Flow, spark: SparkSession) -> tuple[pa.Schema, dict[str, Any]]:
    """The columns of a topic of records that can be taken back: theirs, and what marks a change."""
    schema = schema_from(empty(flow, spark).drop(*META).schema)
    for column in _marks():
        schema = schema.append(pa.field(column.name, arrow_type(column.type)))
    return schema, {"event_time": time_column(flow), "max_ahead": "36500 days"}


def _marks() -> list[Column]:
    kinds = ("string", "timestamp", "bigint", "timestamp", "timestamp", "timestamp")
    return [Column(name, kind) for name, kind in zip((*CHANGE, *MARK), kinds, strict=True)]


def feed_schema(flow: Flow, app: str, spark: SparkSession) -> tuple[pa.Schema, dict[str, Any]]:
    """The columns of the topic with a view's changes, for flows over them."""
    view = _spec(_exactly(flow, spark), app, empty(flow, spark)).view
    assert view is not None
    return feed_of(view)


def feed_of(view: ViewSpec) -> tuple[pa.Schema, dict[str, Any]]:
    columns = [*feed_columns(view), *_marks()]
    ddl = ", ".join(f"{quoted_name(column.name)} {column.type}" for column in columns)
    return parse_ddl(ddl), {"event_time": AT if view.window_us else None, "max_ahead": "36500 days"}


def dropped_schema(flow: Flow, spark: SparkSession) -> pa.Schema:
    """The columns of the topic that takes dropped records: theirs, and which windows they were too late for; and where
    records can go again, `op`."""
    schema = schema_from(_plain(flow, spark).schema)
    if flow.records:
        schema = schema.append(pa.field("op", pa.string()))
    for name in WINDOW:
        schema = schema.append(pa.field(name, arrow_type("timestamp")))
    for name in (WINDOWS_MISSED, WINDOWS_COUNTED):
        schema = schema.append(pa.field(name, pa.int64()))
    return schema


def _shape_type(view: ViewSpec) -> StructType:
    """What the transforms behind the aggregation are given: results, or changes of them on their way to a topic."""
    given = view.result_columns if view.public else [*change_columns(view), Column("_progress", "timestamp")]
    return ranges.struct(", ".join(f"{quoted_name(column.name)} {column.type}" for column in given))
