"""What is read for a flow, and what is made of it where it is read: which columns of each topic, whether records are
judged and aggregated there, or behind the transforms by Spark. Owns that choice. Asks Spark's analyser; runs no job."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from headrace.aggregates.algebra import same_in_arrow
from headrace.flows.compiler.arrow_plan import arrow_plan
from headrace.flows.compiler.partials import as_if_judged, partial_rows
from headrace.flows.compiler.plan_check import columns_needed, origins, passes
from headrace.flows.compiler.records import in_arrow, judge_of, time_column
from headrace.flows.flow import Flow, Input, through
from headrace.flows.reading import numbers, ranges
from headrace.flows.reading.numbers import NUMBER, Names, Numbering, names_of
from headrace.flows.reading.passing import PLACE, Passed
from headrace.flows.spark.session import context_of
from headrace.kernels.judge import JUDGED, SOURCE
from headrace.kernels.sieve import Sieve
from headrace.log.contract import META
from headrace.schema import quoted_name, type_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.log.contract import Topic

Sieves = Mapping[str, Sequence[Sieve]]
"""Input -> what its records go through."""


@dataclass(frozen=True, slots=True)
class Reads:
    """`columns`: by input, what is read of its topic."""

    columns: Mapping[str, ranges.Columns]
    arrow: pa.Schema | None = None
    """The columns of what is made where the records are read, if Spark has nothing to compute."""
    passed: Passed | None = None
    """The columns that transforms only pass on, where there are such and the flow writes records."""
    judged_behind: tuple[str, ...] = ()
    """Where records are judged behind the transforms: the columns that anybody reads from there on."""
    names: Names | None = None
    """What the records' numbers stand for, where they have such."""
    by_number: Reads | None = None
    """The same with numbers for what the records are grouped by, where that is possible."""

    def of(self, topics: Mapping[str, Topic]) -> Reads:
        """The same of other topics, by input, that are like these."""
        columns = {name: replace(each, topic=topics[name]) for name, each in self.columns.items()}
        return replace(self, columns=columns, by_number=self.by_number and self.by_number.of(topics))


def reads(flow: Flow, df: DataFrame, sieves: Sieves | None) -> Reads:
    """`df`: no records, as they look behind the transforms. `sieves`: what the transforms are, if they only choose."""
    spark = df.sparkSession
    behind = _judged_behind(flow, df, spark)
    columns = {each.id: _columns(flow, each, behind, spark) for each in flow.inputs}
    if sieves is not None and (made := _in_place(flow, df, sieves, columns)) is not None:
        return made
    if _judged_when_read(flow, spark):
        columns = {each.id: _with_judge(flow, each, columns[each.id], spark) for each in flow.inputs}
        return Reads(columns, by_number=_by_number(flow, df, columns, spark))
    passed = _passed(flow, df, spark)
    if passed is not None:
        columns = {name: _only_computed(flow, passed, each, spark) for name, each in columns.items()}
    by_number = _by_number(flow, df, columns, spark) if flow.window is None else None
    return Reads(columns, passed=passed, judged_behind=behind, by_number=by_number)


def _passed(flow: Flow, df: DataFrame, spark: SparkSession) -> Passed | None:
    """What transforms of the records of one topic only pass on; None if nothing, or the rows are not records."""
    if flow.aggregates is not None or flow.through is not None or flow.retracts or len(flow.inputs) > 1:
        return None
    (read,) = flow.inputs
    transforms = functools.partial(through, (*read.transforms, *flow.transforms))
    found = origins(spark, transforms, ranges.spark_schema(read.topic))
    return Passed(found, tuple(df.columns)) if found.keys() > {*PLACE} else None


def _only_computed(flow: Flow, passed: Passed, columns: ranges.Columns, spark: SparkSession) -> ranges.Columns:
    (read,) = flow.inputs
    asked = [quoted_name(name) for name in passed.computed]
    transforms = (*read.transforms, *flow.transforms)
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
            functools.partial(through, (*read.transforms, *flow.transforms)),
            judged_schema(ranges.spark_schema(read.topic)),
            as_they_are=(time,),
            untouched=JUDGED,
        )
        for read in flow.inputs
    )


def judged_schema(schema: StructType) -> StructType:
    return StructType([*schema, *(StructField(name, LongType()) for name in JUDGED)])


def _with_judge(flow: Flow, read: Input, columns: ranges.Columns, spark: SparkSession) -> ranges.Columns:
    """The columns of records that are judged where they are read."""
    time = time_column(flow)
    assert time is not None
    judge = judge_of(flow, time)
    schema = judged_schema(columns.schema)
    needed = columns_needed(spark, lambda df: _partials_of(flow, read, df), schema)
    return replace(columns, schema=schema, needed=needed - {*JUDGED}, judge=judge)


def _partials_of(flow: Flow, read: Input, df: DataFrame, numbered: Collection[str] | None = None) -> DataFrame:
    time = time_column(flow)
    df = through((*read.transforms, *flow.transforms), df)
    return partial_rows(flow, df, None if time is None else F.col(quoted_name(time)), numbered)


def _by_number(flow: Flow, df: DataFrame, columns: Mapping[str, ranges.Columns], spark: SparkSession) -> Reads | None:
    """What is read where a number stands for what the judge says and for the groups that transforms only pass on; None
    if that is not possible (Spark Connect has no accumulators), or not worth it: windows that are not aligned have few
    records each. `df`: no records, as they look behind the transforms."""
    context = context_of(spark)
    if context is None or flow.aggregates is None or len(flow.inputs) > numbers.INPUTS_MAX:
        return None
    if flow.window is not None and not flow.window.aligned:
        return None
    known = {name: ranges.arrow_schema(each.known, each.schema.names) for name, each in columns.items()}
    schemas = {name: _numbered_schema(each.schema) for name, each in columns.items()}
    passed = {}
    for read in flow.inputs:
        passed[read.id] = origins(
            spark, functools.partial(through, (*read.transforms, *flow.transforms)), schemas[read.id]
        )

    def kinds(group: str) -> list[pa.DataType | None]:
        """By input, the type of the column that the group is, if it has the same type behind the transforms."""
        kind = df.schema[group].dataType if group in df.columns else None
        found = [(each, passed[each].get(group)) for each in passed]
        same = [of is not None and schemas[each][of].dataType == kind for each, of in found]
        return [known[each].field(of).type if fits else None for (each, of), fits in zip(found, same, strict=True)]

    judged = JUDGED if flow.window is not None else ()
    groups = {name: kinds(name)[0] for name in flow.groups if all(kind and same_in_arrow(kind) for kind in kinds(name))}
    if any(each.get(NUMBER) != NUMBER for each in passed.values()) or not (groups or judged):
        return None
    names = names_of(context, pa.schema([*groups.items(), *((name, pa.int64()) for name in judged)]))
    made = {}
    for number, read in enumerate(flow.inputs):
        query = functools.partial(_partials_of, flow, read, numbered=groups)
        of = {name: passed[read.id][name] for name in groups}
        numbering = Numbering(of, judged, number, names.gathered, numbers.NAMES_BYTES_MAX)
        needed = columns_needed(spark, query, schemas[read.id]) - {NUMBER}
        made[read.id] = replace(columns[read.id], schema=schemas[read.id], needed=needed, numbering=numbering)
    return Reads(made, names=names)


def _numbered_schema(schema: StructType) -> StructType:
    return StructType([*(field for field in schema if field.name not in JUDGED), StructField(NUMBER, LongType())])


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


def _in_place(flow: Flow, df: DataFrame, sieves: Sieves, columns: Mapping[str, ranges.Columns]) -> Reads | None:
    """What is made where the records are read, and how; None if Spark has something to compute."""
    come = [_sifted(sieves[name], ranges.arrow_schema(each.known, each.schema.names)) for name, each in columns.items()]
    steps: list[ranges.Step] = []
    if flow.aggregates is not None:
        time = time_column(flow)
        partials = arrow_plan(flow, time, functools.partial(_partial_schema, flow, df, time), come)
        if partials is None:
            return None
        out = partials.schema
        steps = [partials.of]
    elif flow.through is None and all(each == come[0] for each in come):
        out = come[0]
    else:
        return None
    struct = _struct(out)
    made = {
        name: replace(
            each,
            needed=each.needed | _asked(sieves[name]),
            after_read=ranges.AfterRead(struct, (*(sieve.of for sieve in sieves[name]), *steps)),
        )
        for name, each in columns.items()
    }
    return Reads(made, arrow=out)


def _partial_schema(flow: Flow, df: DataFrame, time: str | None) -> pa.Schema:
    """The columns of partial rows that are made where the records are read."""
    rows = partial_rows(flow, as_if_judged(flow, df), None if time is None else F.col(quoted_name(time)))
    return _packed(flow, in_arrow(rows.schema))


def _asked(sieves: Sequence[Sieve]) -> frozenset[str]:
    """The topic's columns that conditions are about. Spark may need fewer: of all transforms together, one may imply
    what another asks."""
    return functools.reduce(lambda wanted, sieve: sieve.reads(wanted), reversed(sieves), frozenset[str]())


def _sifted(sieves: Sequence[Sieve], schema: pa.Schema) -> pa.Schema:
    return functools.reduce(lambda schema, sieve: sieve.schema(schema), sieves, schema)


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


def _columns(flow: Flow, read: Input, behind: tuple[str, ...], spark: SparkSession) -> ranges.Columns:
    """What is read for an input: by its transforms, by the flow's, by the judge behind them, and by the aggregates."""

    def query(df: DataFrame) -> DataFrame:
        df = through((*read.transforms, *flow.transforms), df)
        if flow.aggregates is None:
            return df
        if flow.window is not None:
            return df.select([quoted_name(name) for name in behind if name in df.columns])
        time = time_column(flow)
        return partial_rows(flow, df, None if time is None else F.col(quoted_name(time)))

    schema = ranges.spark_schema(read.topic)
    needed = columns_needed(spark, query, schema)
    placeless = read.changes and flow.aggregates is not None
    return ranges.Columns(
        read.topic,
        ranges.columns_of(read.topic),
        schema,
        needed,
        changes=read.changes,
        placeless=placeless,
        carried=ranges.carries_arrival(read.topic) and not flow.by_arrival,
    )
