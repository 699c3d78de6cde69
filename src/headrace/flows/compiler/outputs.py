"""What a flow writes to topics: which columns, and the settings that follow from the flow. Owns the schemas of targets,
of a view's changes and of dropped records. Asks Spark's analyser; runs no job, and creates no topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import InvalidArgument
from headrace.flows.compiler.records import time_column
from headrace.flows.compiler.results import shape_type
from headrace.flows.flow import Flow, event_times, through
from headrace.kernels.judge import SOURCE
from headrace.log.contract import META
from headrace.operators.joins.meetings import Matching
from headrace.operators.stored.matching import MatchingRules
from headrace.schema import parse_ddl, quoted_name, schema_from
from headrace.views.contract import (
    AT,
    CHANGE,
    MARK,
    OP,
    UPDATED_AT,
    WINDOW,
    WINDOWS_COUNTED,
    WINDOWS_MISSED,
    Column,
    ViewSpec,
    change_columns,
    feed_columns,
    wholes_in,
)
from headrace.views.values import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Written:
    """The columns of a topic that a flow writes to, and its settings."""

    schema: pa.Schema
    settings: Mapping[str, Any]


def target(flow: Flow, view: ViewSpec | None, df: DataFrame) -> Written | None:
    """Results are keyed by their group and have their window's start as event time; records keep the key and the event
    time they had. `df`: no records, as they look behind the transforms."""
    if flow.target is None:
        return None
    if flow.records:
        return _taken_back(flow, df)
    if view is None:
        schema = schema_from(_plain(flow, df).schema)
        if flow.operator is not None:
            if flow.operator.output.columns is not None:
                made = [f"{quoted_name(each.name)} {each.type}" for each in flow.operator.output.columns]
                schema = parse_ddl(", ".join(made))
            schema = schema.append(pa.field(UPDATED_AT, arrow_type("timestamp")))
            partitions = len(flow.topics) * max(topic.settings.partitions for topic in flow.topics)
            settled = {"event_time": time_column(flow), "max_ahead": "36500 days", "partitions": partitions}
            return Written(schema, settled)
        implied: dict[str, Any] = {"event_time": time_column(flow), "key": flow.inputs[0].topic.settings.key}
        changes = flow.retracts
    else:
        schema = parse_ddl(", ".join(f"{quoted_name(column.name)} {column.type}" for column in change_columns(view)))
        if flow.after:
            given = df.sparkSession.createDataFrame([], shape_type(view))
            schema = schema_from(through(flow.after, given).drop("_progress").schema)
        implied = {"event_time": "window_start" if flow.window else None, "key": flow.groups or None}
        changes = "op" in schema.names
    implied = {
        name: value
        for name, value in implied.items()
        if value and all(each in schema.names for each in ((value,) if isinstance(value, str) else value))
    }
    return Written(schema, {**implied, **({"changes": True} if changes else {})})


def meeting_target(flow: Flow) -> Written | None:
    """Of a flow in which records meet. What a helper writes is marked as changes of records are; in a topic of a user's
    own, `op` says of each row whether it came or went."""
    if flow.target is None:
        return None
    assert flow.operator is not None and flow.meets is not None
    columns = flow.operator.output.columns or ()
    plain = flow.sink is not None and flow.sink.plain
    if any(each.name == "op" for each in columns) and not plain:
        why = "says whether a row came or went: give yours another name, in .transform(…)"
        raise InvalidArgument("column", "op", f"flow {flow.name!r}: in a topic of changes it {why}")
    time = flow.meets.time(event_times(flow))
    marks = _marks() if flow.parent is not None else [] if plain else [Column("op", "string")]
    own = [*marks, *columns] if flow.parent is None else [*columns, *marks]
    schema = parse_ddl(", ".join(f"{quoted_name(each.name)} {each.type}" for each in own))
    settings: dict[str, Any] = {"event_time": time if time in schema.names else None, "max_ahead": "36500 days"}
    return Written(schema, settings if flow.parent is not None or plain else {**settings, "changes": True})


def meeting_dropped(flow: Flow) -> pa.Schema | None:
    """The columns of the topic that takes records that came too late for a join, those of both sides; or for a pattern,
    their own."""
    if flow.late.dropped_to is None:
        return None
    assert flow.operator is not None
    columns = [each for each in flow.operator.output.columns or () if each.name != "joined_at"]
    if isinstance(flow.meets, Matching | MatchingRules):
        columns = [each for each in flow.operator.inputs[0].columns if not each.name.startswith("/")]
    schema = parse_ddl(", ".join(f"{quoted_name(each.name)} {each.type}" for each in columns))
    for name in WINDOW:
        schema = schema.append(pa.field(name, arrow_type("timestamp")))
    for name in (WINDOWS_MISSED, WINDOWS_COUNTED):
        schema = schema.append(pa.field(name, pa.int64()))
    return schema


def feed(view: ViewSpec | None) -> Written | None:
    """The topic with a view's changes, for flows over them."""
    if view is None:
        return None
    columns = [*feed_columns(view), *_marks()]
    ddl = ", ".join(f"{quoted_name(column.name)} {column.type}" for column in columns)
    return Written(parse_ddl(ddl), {"event_time": AT if view.window_us else None, "max_ahead": "36500 days"})


def dropped(flow: Flow, df: DataFrame) -> pa.Schema | None:
    """The columns of the topic that takes dropped records: theirs, and which windows they were too late for; and where
    records can go again, `op`."""
    if flow.late.dropped_to is None:
        return None
    schema = schema_from(_plain(flow, df).schema)
    if flow.records:
        schema = schema.append(pa.field("op", pa.string()))
    for name in WINDOW:
        schema = schema.append(pa.field(name, arrow_type("timestamp")))
    for name in (WINDOWS_MISSED, WINDOWS_COUNTED):
        schema = schema.append(pa.field(name, pa.int64()))
    return schema


def _plain(flow: Flow, df: DataFrame) -> DataFrame:
    """No records, as topics have them: of headrace's own columns only that which says whether they came or went."""
    plain = df.drop(*META, SOURCE, *CHANGE[1:], *MARK, *(wholes_in(df.columns) if flow.retracts else ()))
    if (flow.retracts or flow.records) and "op" in plain.columns:
        why = "says whether a record came or went: give yours another name, in .transform(…)"
        raise InvalidArgument("column", "op", f"flow {flow.name!r}: in a topic of changes it {why}")
    return plain.withColumnRenamed(OP, "op")


def _taken_back(flow: Flow, df: DataFrame) -> Written:
    """A topic of records that can be taken back: their columns, and what marks a change."""
    schema = schema_from(df.drop(*META).schema)
    for column in _marks():
        schema = schema.append(pa.field(column.name, arrow_type(column.type)))
    return Written(schema, {"event_time": time_column(flow), "max_ahead": "36500 days"})


def _marks() -> list[Column]:
    kinds = ("string", "timestamp", "bigint", "timestamp", "string", "timestamp", "timestamp")
    return [Column(name, kind) for name, kind in zip((*CHANGE, *MARK), kinds, strict=True)]
