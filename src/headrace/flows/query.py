"""A flow's query over ranges of offsets: records, transforms, partial rows, as Arrow. Owns the plans, and the one for
small batches that is made once and serves all of them, of any log. Knows no position and no store."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from headrace.flows import ranges, session
from headrace.flows.compile import Compiled, moved, time_column
from headrace.flows.flow import Flow, through
from headrace.flows.partials import SOURCE, column_of, dropped_rows, partial_rows
from headrace.flows.plan_check import has_exchange
from headrace.flows.poison import culprits
from headrace.flows.repeats import HASH
from headrace.flows.session import cores, workers_are_here
from headrace.flows.spark_use import SparkUse
from headrace.schema import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.log.contract import Start

Planned = Mapping[str, Sequence[ranges.Range]]
"""Topic -> what to read of it."""
Reader = Callable[["SparkSession", ranges.Columns, Sequence[ranges.Range]], "DataFrame"]


class _Small:
    """The plan for small batches, and the slate it reads what to read from."""

    def __init__(self) -> None:
        self.slate = ranges.Slate()
        self.lock = threading.Lock()
        self.plan: DataFrame | None = None
        self.slated = False


class FlowQuery:
    """Serves any number of loops of the flow, one batch at a time."""

    small_rows: int | None = None
    """Up to so many records take the way of small batches, in place of what is best. It changes no result, and tests
    see to that."""

    def __init__(self, compiled: Compiled, spark: SparkSession, small: _Small | None = None) -> None:
        self.compiled, self._flow, self.spark = compiled, compiled.flow, spark
        self._small = small or _Small()
        self.spark_use = SparkUse()

    def over(self, flow: Flow, spark: SparkSession) -> FlowQuery | None:
        """The same over the same flow of another log; None if it is not the same."""
        found = moved(self.compiled, flow)
        return None if found is None or spark is not self.spark else FlowQuery(found, spark, self._small)

    def named(self, name: str, start: Start) -> FlowQuery:
        """The same under another name, from another start: for a version of the flow beside it."""
        flow, spec = self.compiled.flow, self.compiled.spec
        flow = replace(flow, name=name, sources=tuple(replace(source, start=start) for source in flow.sources))
        view = None if spec.view is None else replace(spec.view, name=name)
        spec = replace(spec, name=name, view=view, feeds=())  # flows over the view are told of the switch
        return FlowQuery(replace(self.compiled, flow=flow, spec=spec), self.spark, self._small)

    def rows(self, planned: Planned) -> pa.Table:
        """What is made of the ranges: partial rows, or records when the flow does not aggregate."""
        rows = sum(each.rows for chosen in planned.values() for each in chosen)
        if rows > self._limit():
            return self._run(self._query(_each(planned, ranges.read), planned))
        if self.compiled.arrow is not None:
            columns, threads = self.compiled.columns, cores(self.spark)
            found = [batch for name, chosen in planned.items() for batch in ranges.here(columns[name], chosen, threads)]
            self.spark_use.folded_on_driver()
            return pa.Table.from_batches(found, self.compiled.arrow)
        small = self._small
        with small.lock:
            if small.plan is None:
                small.plan = self._query(dict.fromkeys(planned, self._on_slate), planned)
                small.slated = workers_are_here(self.spark) and not has_exchange(self.spark, small.plan)
            if small.slated:
                small.slate.write(planned, self.compiled.columns)
                return self._run(small.plan)
        return self._run(self._query(_each(planned, ranges.few), planned))

    def _run(self, df: DataFrame) -> pa.Table:
        return self.spark_use.run(self.spark, df.toArrow)

    def _limit(self) -> float:
        """More records than that are read by the workers. Where these are on this machine, and have nothing to compute,
        they are only a detour."""
        if self.small_rows is not None:
            return self.small_rows
        if self.compiled.arrow is None:
            return ranges.TINY_ROWS
        return math.inf if workers_are_here(self.spark) else ranges.HERE_ROWS

    def dropped(self, planned: Planned) -> pa.Table:
        """The records that were too late, whole."""
        time = self._time()
        assert time is not None
        df = self._transformed(_each(planned, ranges.read_whole), planned)
        return self._run(dropped_rows(self._flow, df, time))

    def culprits(self, planned: Planned) -> dict[tuple[str, int, int], str]:
        """(topic, partition, offset) -> error, of the records that break the transforms, or what is aggregated; none
        where the session does not tell."""
        return {
            (name, *place): error
            for name, chosen in planned.items()
            for place, error in culprits(chosen, functools.partial(self._failing, name)).items()
        }

    def _failing(self, topic: str, parts: Sequence[ranges.Range]) -> Mapping[int, str]:
        df = self._transformed({topic: ranges.read_parts}, {topic: parts})
        if self._flow.aggregates is not None:  # what nobody asks for is not computed
            df = df.select([column.alias(f"/{number}") for number, column in enumerate(self._asked())])
        save = df.write.format("noop").mode("overwrite").save
        return self.spark_use.run(self.spark, lambda: session.failed_tasks(self.spark, save, len(parts)))

    def _asked(self) -> list[Column]:
        """What is aggregated, and by what, without aggregating it."""
        flow, time = self._flow, self._time()
        partials = [each.partial for each in (flow.aggregates or {}).values() if each.kind != "own"]
        given = [one for each in partials for one in (each.argument, each.where) if one is not None]
        named = [F.col(quoted_name(name)) for name in flow.groups]
        return [F.lit(0), *named, *([] if time is None else [time]), *map(column_of, given)]

    def _on_slate(self, spark: SparkSession, columns: ranges.Columns, _: Sequence[ranges.Range]) -> DataFrame:
        return self._small.slate.read(spark, columns)

    def _query(self, readers: Mapping[str, Reader], planned: Planned) -> DataFrame:
        if self.compiled.arrow is not None:
            return _together(
                [readers[name](self.spark, self.compiled.columns[name], planned[name]) for name in readers]
            )
        df = self._transformed(readers, planned)
        if self._flow.dedup is not None:
            df = df.withColumn(HASH, _hash([F.col(quoted_name(name)) for name in self._flow.dedup.key]))
        return df if self._flow.aggregates is None else partial_rows(self._flow, df, self._time())

    def _transformed(self, readers: Mapping[str, Reader], planned: Planned) -> DataFrame:
        """The records behind the transforms."""
        frames: list[DataFrame] = []
        topics = sorted(topic.name for topic in self._flow.topics)  # of equal times, their partition and topic decide
        for number, source in enumerate(self._flow.sources):
            name = source.topic.name
            columns = self.compiled.columns[name]
            if name in readers:
                df = readers[name](self.spark, columns, planned[name])
            else:  # it decides about the types of the others' columns, too
                df = self.spark.createDataFrame([], columns.schema)
            df = through(source.transforms, df)
            if self._flow.records and len(topics) > 1:
                df = df.withColumn("_partition", F.col("_partition") * len(topics) + topics.index(name))
            frames.append(df.withColumn(SOURCE, F.lit(number)) if self._flow.tells_source else df)
        df = _together(frames)
        if len(frames) > 1 and all(reader != ranges.read for reader in readers.values()):
            df = df.coalesce(1)  # few records need no exchange
        return through(self._flow.transforms, df)

    def _time(self) -> Column | None:
        name = time_column(self._flow)
        return None if name is None else F.col(quoted_name(name))


def _hash(key: Sequence[Column]) -> Column:
    """Spark passes nulls over: where there are several columns, which of them is null is hashed, too."""
    return F.xxhash64(*key, *(column.isNull() for column in key if len(key) > 1))


def _together(frames: Sequence[DataFrame]) -> DataFrame:
    return functools.reduce(lambda left, right: left.unionByName(right), frames)


def _each(planned: Planned, reader: Reader) -> dict[str, Reader]:
    """The reader for all topics of which there is something to read."""
    return {name: reader for name, chosen in planned.items() if chosen}
