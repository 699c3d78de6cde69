"""What a store keeps of a flow: its groups, slots and results, with their types. Owns the aggregates' types, and what
is refused because a view cannot have it. Asks Spark's analyser; runs no job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
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
from headrace.aggregates.aggregate import Own
from headrace.aggregates.merged import RolledUp
from headrace.errors import HeadraceError, InvalidArgument, UnknownColumn
from headrace.flows.compiler.partials import WHERE, arguments, as_if_judged, column_of, partial_rows
from headrace.flows.compiler.plan_check import unknown_column
from headrace.flows.compiler.records import in_arrow, time_column
from headrace.flows.flow import Flow, through
from headrace.flows.reading import ranges
from headrace.kernels.judge import SOURCE
from headrace.log.contract import META
from headrace.operators.fold import Fold
from headrace.schema import quoted_name, schema_from, type_ddl
from headrace.views.contract import (
    CHANGE,
    MARK,
    ROWS,
    TAIL,
    WINDOW,
    Column,
    Fill,
    FlowSpec,
    Result,
    SlotColumn,
    ViewSpec,
    change_columns,
    fed_in,
    wholes_in,
)
from headrace.views.values import arrow_type, check_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.operators.records import Through

TIMES = (TimestampType, TimestampNTZType)


def settled(flow: Flow, df: DataFrame) -> Flow:
    """The flow with aggregates that know of which types they are: what they keep depends on that."""
    if flow.through is not None:
        _check_through(flow, flow.through, df)
        return replace(flow, operator=flow.through.over(_record_schema(df), time_column(flow)))
    if flow.aggregates is None:
        return flow
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
    found = in_arrow(df.select(*asked.values()).schema).types if asked else []
    for (name, part), arrow in zip(asked, found, strict=True):
        if part != WHERE:
            out[name][part] = arrow
    found = in_arrow(df.agg(*(column_of(each.argument) for each in own.values())).schema).types if own else []
    return out | {name: {"value": arrow} for name, arrow in zip(own, found, strict=True)}


_WHOLE_RECORD = re.compile(r"\bstruct\s*\(\s*\*\s*\)", re.IGNORECASE)


def _with_named_columns(flow: Flow, df: DataFrame) -> dict[str, Aggregate]:
    """`struct(*)` names the columns that a record has here: those that we add to it later are not part of it, nor, but
    for records that are kept to be taken back, those that are ours from the beginning."""
    own = {*CHANGE, *MARK, *wholes_in(df.columns), *fed_in(df.columns)} if flow.retracts else set()
    known = [name for name in df.columns if flow.records or (name not in own and not name.startswith("_"))]
    names = f"struct({', '.join(map(quoted_name, known))})"
    made = dict(flow.aggregates or {})
    for name, each in made.items():
        if isinstance(each.algebra.argument, str) and _WHOLE_RECORD.search(each.algebra.argument):
            argument = _WHOLE_RECORD.sub(lambda _: names, each.algebra.argument)
            made[name] = each.with_algebra(replace(each.algebra, argument=argument))
    return made


def flow_spec(flow: Flow, app: str, df: DataFrame) -> FlowSpec:
    """`df`: no records, as they look behind the transforms."""
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
        operator=str(flow.through or ""),
        idle_us=flow.idle_us,
        absent_us=flow.absent_us,
        dropped_to=flow.late.dropped_to,
        parent=flow.parent,
    )
    if flow.operator is not None:
        return replace(spec, tables=flow.operator.tables)
    if flow.aggregates is None:
        return spec
    view = _view(flow, df)
    if flow.after and view.public:
        view = replace(view, shaped=_shaped(flow, view, df.sparkSession))
    spec = replace(spec, view=view)
    return replace(spec, tables=Fold(spec, flow.aggregates).tables)


def _check_through(flow: Flow, step: Through, df: DataFrame) -> None:
    """What the step needs of records, they have."""
    time = time_column(flow)
    if step.timed and time is None:
        names = " and ".join(repr(topic.name) for topic in flow.topics)
        why = f"{names} has no event time, or they have different ones: create topics with event_time=…"
        raise InvalidArgument(step.called, str(step), f"flow {flow.name!r}: {why}")
    for name in (*step.needs, *([time] if step.timed and time is not None else [])):
        if name not in df.columns:
            raise UnknownColumn(flow.name, name, [each for each in df.columns if each != SOURCE])


def _record_schema(df: DataFrame) -> pa.Schema:
    """The columns of records, without headrace's own."""
    return schema_from(df.drop(*META, SOURCE).schema)


def _shaped(flow: Flow, view: ViewSpec, spark: SparkSession) -> tuple[Column, ...]:
    """What the transforms make of results, besides window and groups."""
    given = shape_type(view)
    try:
        schema = through(flow.after, spark.createDataFrame([], given)).schema
    except PySparkException as error:
        if unknown := unknown_column(error, flow.name, given.names):
            raise unknown from None
        raise
    places = {column.name for column in view.places}
    made = [each for each in schema if each.name not in places]
    return tuple(Column(each.name, _ddl(each.dataType, each.name, lists=True)) for each in made)


def _view(flow: Flow, df: DataFrame) -> ViewSpec:
    assert flow.aggregates is not None
    time = time_column(flow)
    known = [name for name in df.columns if name != SOURCE]
    if flow.window and time is None:
        raise InvalidArgument(
            "window",
            str(flow.window),
            f"flow {flow.name!r}: topic {flow.inputs[0].topic.name!r} has no event time: create it with event_time=…, "
            "or name a column: window(…, time=…)",
        )
    for name in (*flow.groups, *([time] if flow.window and time else ())):
        if name not in known:
            named = [each for each in known if each not in (*CHANGE, *MARK)]
            raise UnknownColumn(flow.name, name, named, _made_first(name))
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
    aggregates = flow.aggregates or {}
    try:
        known = _argument_types(aggregates, df)  # all at once: a question takes Spark milliseconds
    except PySparkException:
        known = {}  # one after the other, to say which
    for name, aggregate in aggregates.items():
        types = known[name] if name in known else _types_of_one(flow, name, aggregate, df)
        if aggregate.algebra.where is not None:
            _check_condition(flow, name, aggregate.algebra.where, types[WHERE])
        for kind in types.values():
            if not isinstance(aggregate.algebra, RolledUp):
                _check_argument(flow, name, aggregate, kind)
        if why := aggregate.algebra.check():
            raise InvalidArgument("agg", name, f"flow {flow.name!r}: {aggregate} is of {why}")


def _argument_types(aggregates: Mapping[str, Aggregate], df: DataFrame) -> dict[str, dict[str, DataType]]:
    """By aggregate, of what each of its arguments is."""
    asked = {name: arguments(each.algebra) for name, each in aggregates.items()}
    columns = [column for each in asked.values() for column in each.values()]
    found = iter(df.select(*columns).schema if columns else ())
    return {name: {part: next(found).dataType for part in each} for name, each in asked.items()}


def _types_of_one(flow: Flow, name: str, aggregate: Aggregate, df: DataFrame) -> dict[str, DataType]:
    """The same of one of them; an error says what of it cannot be computed."""
    where = aggregate.algebra.where
    what: object = f"where={where!r}"
    try:
        if where is not None:  # with the others it fails where it is not true or false
            _check_condition(flow, name, where, df.select(column_of(where)).schema[0].dataType)
        what = aggregate
        return _argument_types({name: aggregate}, df)[name]
    except AnalysisException as error:
        raise _not_computed(flow, name, what, error, df) from None


def _not_computed(flow: Flow, name: str, what: object, error: AnalysisException, df: DataFrame) -> HeadraceError:
    """What Spark says of an expression, in its first line and without its codes."""
    if unknown := unknown_column(error, flow.name, df.columns):
        return unknown
    said = re.sub(r"^\[[\w.]+\] | ?SQLSTATE: \w+| \(line \d+, pos \d+\)", "", str(error).strip().splitlines()[0])
    return InvalidArgument("agg", name, f"flow {flow.name!r}: {what} cannot be computed. {said.strip()}")


def _check_condition(flow: Flow, name: str, where: Any, kind: DataType) -> None:
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


def shape_type(view: ViewSpec) -> StructType:
    """What the transforms behind the aggregation are given: results, or changes of them on their way to a topic."""
    given = view.result_columns if view.public else [*change_columns(view), Column("_progress", "timestamp")]
    return ranges.struct(", ".join(f"{quoted_name(column.name)} {column.type}" for column in given))
