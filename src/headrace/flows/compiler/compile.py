"""From a flow as it was planned to one that can be run: its transforms checked, every schema found out once, so that
nobody asks Spark again. Owns the order of these questions; runs no job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.errors import FlowChanged, InvalidArgument
from headrace.flows.compiler import outputs
from headrace.flows.compiler.meetings import OF_ROWS, meeting_spec, met, shaped_columns, shaped_type
from headrace.flows.compiler.outputs import Written
from headrace.flows.compiler.own_check import check_own
from headrace.flows.compiler.plan_check import check_transform
from headrace.flows.compiler.reads import Reads, Sieves, reads
from headrace.flows.compiler.records import no_records, time_folded
from headrace.flows.compiler.results import flow_spec, settled, shape_type
from headrace.flows.flow import Flow, Input, Transform
from headrace.flows.reading import ranges
from headrace.flows.reading.passing import Passed
from headrace.kernels.judge import EVENT, JUDGED, REACHED, SOURCE
from headrace.kernels.sieve import Sieve
from headrace.log.contract import META
from headrace.log.declared import DeclaredTopic
from headrace.schema import type_ddl
from headrace.views.contract import CHANGE, FlowSpec, ViewSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.log.contract import Topic


@dataclass(frozen=True, slots=True)
class Compiled:
    """A flow that can be run: what its store keeps of it, what is read for it, and what it writes."""

    given: Flow
    """As it was planned."""
    flow: Flow
    spec: FlowSpec
    reads: Reads
    time: str | None
    """The column with the event time, as far as it matters."""
    target: Written | None = None
    """The topic it writes to."""
    feed: Written | None = None
    """A topic with the changes of its view."""
    dropped: pa.Schema | None = None
    """The columns of the topic that takes dropped records, if the program names one."""
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Compiled] = field(default_factory=dict)
    """Of a flow in which records of several inputs meet: by input, the query of its records."""

    @property
    def columns(self) -> Mapping[str, ranges.Columns]:
        """By input, what is read of its topic."""
        return self.reads.columns

    @property
    def arrow(self) -> pa.Schema | None:
        return self.reads.arrow

    @property
    def passed(self) -> Passed | None:
        return self.reads.passed

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
            raise FlowChanged(self.flow.name, changes, self.flow.parent)

    def _read_of(self, columns: ranges.Columns) -> frozenset[str]:
        """What Spark reads, and what goes around it."""
        return columns.needed | frozenset(() if self.passed is None else self.passed.origins.values())


def compiled(flow: Flow, app: str, spark: SparkSession) -> Compiled:
    """The flow, checked; or the error that says what cannot be."""
    if flow.meets is not None:
        return _compiled_meeting(flow, app, spark)
    checks = _Checks(flow, spark)
    sieves = checks.of_records()  # before anything else runs the transforms: it says what is wrong with them
    df = no_records(flow, spark)
    given, flow = flow, settled(flow, df)
    said = {name: str(each) for name, each in (given.aggregates or {}).items()}
    spec = replace(flow_spec(flow, app, df), aggregates=said)
    if spec.view is not None:
        checks.notes += check_own(flow, spec.view, spark)
        if flow.after:
            checks.of_results(spec.view)
    _refuse_taken(flow, df)
    return Compiled(
        given,
        flow,
        spec,
        reads(flow, df, sieves),
        time_folded(flow),
        outputs.target(flow, spec.view, df),
        outputs.feed(spec.view),
        outputs.dropped(flow, df),
        tuple(checks.notes),
    )


def _compiled_meeting(flow: Flow, app: str, spark: SparkSession) -> Compiled:
    """Each input's records are a query of their own; they meet in the operator."""
    parts = {each.id: compiled(Flow(flow.name, (_as_declared(each),)), app, spark) for each in flow.inputs}
    bound = met(flow, {each.id: no_records(parts[each.id].flow, spark) for each in flow.inputs})
    assert bound.operator is not None
    checks = _Checks(flow, spark)
    checks.of_rows(shaped_type(bound.operator))
    spec = meeting_spec(bound, app, shaped_columns(bound, spark))
    return Compiled(
        flow,
        bound,
        spec,
        Reads({name: part.columns[name] for name, part in parts.items()}),
        None,
        outputs.meeting_target(bound),
        outputs.feed(spec.view),
        outputs.meeting_dropped(bound),
        (*(note for part in parts.values() for note in part.notes), *checks.notes),
        parts,
    )


def _as_declared(read: Input) -> Input:
    """Without columns that the program does not declare: whoever adds one to a topic does not change its joins."""
    declared = read.topic.columns if isinstance(read.topic, DeclaredTopic) else None
    more = [] if declared is None else [name for name in read.topic.schema.names if name not in declared.names]
    return replace(read, transforms=(lambda df: df.drop(*more), *read.transforms)) if more else read


def _refuse_taken(flow: Flow, df: DataFrame) -> None:
    """InvalidArgument if a transform makes a column that the judge makes, too."""
    taken = {*JUDGED, EVENT, REACHED, *(() if flow.tells_topic else (SOURCE,))}
    if flow.window is not None and (made := [name for name in df.columns if name.lower() in taken]):
        why = f"flow {flow.name!r}: the name is taken, in flows with windows. Give yours another, in .transform(…)"
        raise InvalidArgument("column", made[0], why)


def moved(known: Compiled, flow: Flow) -> Compiled | None:
    """What is known of a flow, for the same one over topics like its own in another log; None if it is not the same."""
    topics = {each.id: each.topic for each in flow.inputs}
    if known.parts:
        return _moved_meeting(known, flow, topics)
    if {name: ranges.spark_schema(topic) for name, topic in topics.items()} != {
        name: StructType([each for each in columns.schema if each.name not in JUDGED])
        for name, columns in known.columns.items()
    }:
        return None
    inputs = tuple(replace(each, topic=topics[each.id]) for each in known.flow.inputs)
    if replace(known.given, inputs=inputs) != flow or known.time != time_folded(flow):
        return None
    return replace(known, given=flow, flow=replace(known.flow, inputs=flow.inputs), reads=known.reads.of(topics))


def _moved_meeting(known: Compiled, flow: Flow, topics: Mapping[str, Topic]) -> Compiled | None:
    inputs = tuple(replace(each, topic=topics.get(each.id, each.topic)) for each in known.given.inputs)
    if replace(known.given, inputs=inputs) != flow:
        return None
    parts = {each.id: moved(known.parts[each.id], Flow(flow.name, (each,))) for each in flow.inputs}
    found = {name: part for name, part in parts.items() if part is not None}
    if len(found) < len(parts):
        return None
    bound = replace(known.flow, inputs=flow.inputs)
    return replace(known, given=flow, flow=bound, reads=known.reads.of(topics), parts=found)


class _Checks:
    """Whether each transform is row-local, keeps what it must and knows its columns."""

    def __init__(self, flow: Flow, spark: SparkSession) -> None:
        self._flow, self._spark = flow, spark
        self.notes: list[str] = []

    def of_records(self) -> Sieves | None:
        """The transforms of each input's records, if all of them only choose."""
        flow, several = self._flow, len(self._flow.inputs) > 1
        kept = (*META, *CHANGE) if flow.retracts else META
        found = {}
        kinds = []
        for read in flow.inputs:
            of = f" of {read.called}" if several or read.name else ""
            schema, found[read.id] = self._through(ranges.spark_schema(read.topic), read.transforms, of, kept)
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
        self._through(shape_type(view), self._flow.after, " behind agg", kept)

    def of_rows(self, given: StructType) -> None:
        """Of joined rows, what says which row it is comes through."""
        self._through(given, self._flow.after, " of joined rows", OF_ROWS)

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
