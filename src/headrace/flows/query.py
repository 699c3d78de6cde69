"""A flow's query over ranges of offsets: records, transforms, partial rows, as Arrow. Owns the plans and the choice
between three routes, by the size of the batch and by the flow, never by where Spark runs:

    on the driver    few records (`driver_rows`), and Spark has nothing to compute: the kernels run here, no job
    prepared plan    a Spark job by a plan that is made once; each batch only assigns ranges to its tasks. Where Spark
                     groups, jobs of one task run side by side, so that no record is moved between tasks: rows of one
                     group may then come from several jobs, and are merged like those of several batches
    plan per batch   the same job by a plan of its own, where a plan cannot serve twice: it moves records between
                     partitions (as a join does), or the session is a Spark Connect one

All three give the same rows. Knows no position and no store."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from headrace.flows.compiler.compile import Compiled, moved
from headrace.flows.compiler.partials import column_of, partial_rows
from headrace.flows.compiler.plan_check import has_exchange, reorders
from headrace.flows.compiler.records import judge_of, time_column
from headrace.flows.flow import Flow, Input, through
from headrace.flows.reading import ranges
from headrace.flows.reading.numbers import gathered
from headrace.flows.reading.poison import Failing, Failure, culprits
from headrace.flows.reading.reached import remembering, take_reports
from headrace.flows.spark import session
from headrace.flows.spark.spark_use import SparkUse
from headrace.kernels.judge import DROPPED, EVENT, JUDGED, PANE, REACHED, SOURCE, Judge, OwnProgress
from headrace.operators.records import HASH
from headrace.schema import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.log.contract import Start

Planned = Mapping[str, Sequence[ranges.Range]]
"""Topic -> what to read of it, for every input that reads it."""
Tasks = Mapping[str, Sequence[ranges.Task]]
"""Topic -> what each task reads of it."""
Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Reader = Callable[[ranges.Columns], "DataFrame"]
"""The records of an input."""

DRIVER_ROWS = 10_000
"""Up to so many records are not worth a Spark job, where Spark has nothing to compute."""
ONE_TASK_ROWS = 50_000
"""Up to so many are read by one task: Spark then groups them without moving any."""
JOBS_MAX = 16
"""So many jobs run side by side at most: where there are more cores, Spark moves the records that it groups."""


class _Prepared:
    """Plans that serve every batch, by their number of tasks. One thread uses a plan at a time: Spark generates code
    from it whenever it runs, and keeps what it needs for that in the plan."""

    def __init__(self, by_number: _Prepared | None = None) -> None:
        self.lock = threading.Lock()
        self.first: dict[int, DataFrame | None] = {}
        """None where no plan with so many tasks can serve every batch."""
        self.idle: dict[int, list[DataFrame]] = {}
        self.moves_records: dict[int, bool] = {}
        self.by_number = by_number
        """The same for the flow's query by numbers, as long as its groups are not too many for that."""


class FlowQuery:
    """Serves any number of loops of the flow, in any number of threads."""

    driver_rows: float = DRIVER_ROWS
    one_task_rows: float = ONE_TASK_ROWS

    _behind: tuple[Step, str] | None = None

    def __init__(self, compiled: Compiled, spark: SparkSession, prepared: _Prepared | None = None) -> None:
        self.compiled, self._flow, self.spark = compiled, compiled.flow, spark
        self._prepared = prepared or _Prepared(None if compiled.reads.by_number is None else _Prepared())
        self.spark_use = SparkUse()
        self._parts = {name: FlowQuery(part, spark) for name, part in compiled.parts.items()}
        for part in self._parts.values():
            part.spark_use = self.spark_use

    def over(self, flow: Flow, spark: SparkSession) -> FlowQuery | None:
        """The same over the same flow of another log; None if it is not the same."""
        found = moved(self.compiled, flow)
        return None if found is None or spark is not self.spark else self._like(found)

    def named(self, name: str, start: Start) -> FlowQuery:
        """The same under another name, from another start: for a version of the flow beside it."""
        flow, spec = self.compiled.flow, self.compiled.spec
        flow = replace(flow, name=name, inputs=tuple(replace(each, start=start) for each in flow.inputs))
        view = None if spec.view is None else replace(spec.view, name=name)
        spec = replace(spec, name=name, view=view, feeds=())  # flows over the view are told of the switch
        return self._like(replace(self.compiled, flow=flow, spec=spec))

    def behind(self, step: Step, schema: str) -> FlowQuery:
        """The same with a step behind it, which makes something else of each task's rows where they are."""
        made = FlowQuery(self.compiled, self.spark, _Prepared())
        made._behind, made.spark_use = (step, schema), self.spark_use
        made.one_task_rows = self.one_task_rows
        return made

    def _like(self, compiled: Compiled) -> FlowQuery:
        made = FlowQuery(compiled, self.spark, self._prepared)
        made.driver_rows, made.one_task_rows = self.driver_rows, self.one_task_rows
        return made

    def by_input(self, planned: Planned) -> dict[str, pa.Table]:
        """The records of each input, where they meet in an operator."""
        out = {}
        for name, part in self._asked_of(planned).items():
            part.driver_rows, part.one_task_rows = self.driver_rows, self.one_task_rows
            topic = part.compiled.columns[name].topic.name
            out[name] = part.rows({topic: planned[topic]})
        return out

    def _asked_of(self, planned: Planned) -> dict[str, FlowQuery]:
        """The queries of the inputs of which there is something to read."""
        return {read.id: self._parts[read.id] for read in self._flow.inputs if planned.get(read.topic.name)}

    def rows(self, planned: Planned) -> pa.Table:
        """What is made of the ranges: partial rows, or records when the flow does not aggregate."""
        rows = sum(each.rows for chosen in planned.values() for each in chosen)
        if self.compiled.arrow is not None and rows <= self.driver_rows:
            return self._on_driver(planned)
        found = self._by_number(planned, rows)
        if found is None:
            found = self._by_spark(planned, rows)
        if self.compiled.passed is None:
            return found
        ((read, chosen),) = self._chosen(planned)
        return self.compiled.passed.joined(found, self.compiled.columns[read.id], chosen)

    def _chosen(self, planned: Planned) -> list[tuple[Input, Sequence[ranges.Range]]]:
        """What to read for each input of which there is something to read."""
        return [(each, planned[each.topic.name]) for each in self._flow.inputs if planned.get(each.topic.name)]

    def _by_number(self, planned: Planned, rows: int) -> pa.Table | None:
        """By a query of its own, in which numbers stand for what records are grouped by; None if there is none, or the
        groups are too many for that."""
        reads, prepared = self.compiled.reads.by_number, self._prepared.by_number
        if reads is None or reads.names is None or prepared is None:
            return None
        query = FlowQuery(replace(self.compiled, reads=reads), self.spark, prepared)
        query.one_task_rows, query.spark_use = self.one_task_rows, self.spark_use
        with gathered(self.spark.sparkContext, reads.names) as names:
            found = names.put_back(query._by_spark(planned, rows))
        if found is None:
            self._prepared.by_number = None
        return found

    def rows_by_spark(self, planned: Planned) -> pa.Table:
        """As `rows`, always by a Spark job, with the step behind it."""
        return self._by_spark(planned, sum(each.rows for chosen in planned.values() for each in chosen))

    def _by_spark(self, planned: Planned, rows: int) -> pa.Table:
        if rows <= self.one_task_rows:
            return self._one_job(planned, 1)
        cores = session.cores(self.spark)
        if self._groups_in_spark and cores <= JOBS_MAX and self._serves(1):
            return self._jobs_side_by_side(planned, cores)
        return self._one_job(planned, self._tasks())

    def _one_job(self, planned: Planned, count: int) -> pa.Table:
        """`count`: so many tasks for each topic."""
        tasks = self._shared_out(planned, count)
        if not self._serves(count):
            return self._collect(self._query(self._readers(tasks), count))
        with self._plans(count, 1) as (plan,):
            return self.spark_use.run(self.spark, lambda: self._run_assigned(plan, tasks))

    def _jobs_side_by_side(self, planned: Planned, count: int) -> pa.Table:
        """Each job has one task, which reads its part of every topic."""
        tasks = self._shared_out(planned, count)
        parts = [{name: some[number : number + 1] for name, some in tasks.items()} for number in range(count)]
        parts = [part for part in parts if any(part.values())]
        with self._plans(1, len(parts)) as plans:
            jobs = [functools.partial(self._run_assigned, *each) for each in zip(plans, parts, strict=True)]
            return pa.concat_tables(self.spark_use.run(self.spark, lambda: session.side_by_side(jobs)))

    @property
    def _groups_in_spark(self) -> bool:
        return self.compiled.arrow is None and self._flow.aggregates is not None

    def _on_driver(self, planned: Planned) -> pa.Table:
        columns = self.compiled.columns
        found = [
            batch for read, chosen in self._chosen(planned) for batch in ranges.read_on_driver(columns[read.id], chosen)
        ]
        self.spark_use.folded_on_driver()
        return pa.Table.from_batches(found, self.compiled.arrow)

    def _collect(self, df: DataFrame) -> pa.Table:
        return self.spark_use.run(self.spark, df.toArrow)

    def _tasks(self) -> int:
        """For each input: as many in all as there are cores."""
        return -(-session.cores(self.spark) // len(self.compiled.columns))

    def _shared_out(self, planned: Planned, count: int) -> dict[str, list[ranges.Task]]:
        """Where progress is made by reading, who reads the second half of a partition would read the first one, too."""
        uncut = {topic.name for topic in self._flow.topics if self._flow.own_progress or remembering(topic)}
        return {name: ranges.tasks_of(chosen, count, uncut=name in uncut) for name, chosen in planned.items()}

    def _serves(self, count: int) -> bool:
        """Whether a plan with so many tasks for each input can serve every batch."""
        with self._prepared.lock:
            if count not in self._prepared.first:
                plan = self._plan(count)
                self._prepared.first[count] = plan
                self._prepared.idle[count] = [] if plan is None else [plan]
            return self._prepared.first[count] is not None

    def _plan(self, count: int) -> DataFrame | None:
        if session.context_of(self.spark) is None:  # jobs have no properties of their own there
            return None
        readers = dict.fromkeys(self.compiled.columns, lambda columns: ranges.read_assigned(self.spark, columns, count))
        df = self._query(readers, count)
        return None if has_exchange(self.spark, df) else df

    @contextmanager
    def _plans(self, count: int, number: int) -> Iterator[list[DataFrame]]:
        """So many prepared plans, for this block alone."""
        with self._prepared.lock:
            first, idle = self._prepared.first[count], self._prepared.idle[count]
            taken = [idle.pop() for _ in range(min(number, len(idle)))]
        assert first is not None
        taken += [first.select("*") for _ in range(number - len(taken))]  # the same query, planned for itself
        try:
            yield taken
        finally:
            with self._prepared.lock:
                idle += taken

    def _run_assigned(self, plan: DataFrame, tasks: Tasks) -> pa.Table:
        with ranges.assigned(self.spark, tasks, self.compiled.columns):
            return plan.toArrow()

    def _readers(self, tasks: Tasks, *, whole: bool = False) -> dict[str, Reader]:
        """For each input of which there is something to read."""

        def reader(some: Sequence[ranges.Task], columns: ranges.Columns) -> DataFrame:
            return ranges.read(self.spark, ranges.whole(columns) if whole else columns, some)

        inputs = {each.id: tasks.get(each.topic.name, ()) for each in self._flow.inputs}
        return {name: functools.partial(reader, some) for name, some in inputs.items() if any(some)}

    def dropped(self, planned: Planned) -> pa.Table:
        """The records that were too late, whole, with `_pane`, which is their time where windows are not aligned, and
        `_dropped`: for how many of its windows."""
        count = self._tasks()
        tasks = self._shared_out(planned, count)
        df = self._transformed(self._readers(tasks, whole=True))
        names = df.columns
        df = self._judged(df, [name for name in names if name not in JUDGED], count).where(F.col(DROPPED) > 0)
        time = self._time()
        if self._flow.window is not None and not self._flow.window.aligned and time is not None:
            df = df.withColumn(PANE, F.unix_micros(time))
        return self._collect(df.select(*(quoted_name(name) for name in names if name not in JUDGED), PANE, DROPPED))

    def take_reports(self) -> None:
        """Topics whose progress is made by reading are told what the last jobs have found out."""
        for topic in self._flow.topics:
            take_reports(self.spark, topic)

    def culprits(self, planned: Planned, enough: float) -> dict[tuple[str, int, int], str]:
        """(topic, partition, offset) -> error, of the records that break the transforms, or what is aggregated; none
        where the session does not tell."""
        if self._parts:
            asked = self._asked_of(planned).values()
            return {place: error for part in asked for place, error in part.culprits(planned, enough).items()}
        return {
            (read.topic.name, *place): error
            for read, chosen in self._chosen(planned)
            for place, error in culprits(chosen, self._failing(read.id, chosen), enough).items()
        }

    def fails_on_nothing(self) -> bool:
        """Whether the flow fails without any record: as where a static table is gone."""
        if self._parts:
            return any(part.fails_on_nothing() for part in self._parts.values())
        readers = dict.fromkeys(self.compiled.columns, lambda columns: ranges.read(self.spark, columns, []))
        try:
            self._collect(self._query(readers, 1))
        except Exception:
            return True
        return False

    def _failing(self, read: str, chosen: Sequence[ranges.Range]) -> Failing:
        offsets_in = functools.cache(functools.partial(ranges.offsets, self.compiled.columns[read]))

        def offset(part: ranges.Range, row: int | None) -> int | None:
            """Of the row of a part: there may be no record at some offsets."""
            if row is None:
                return None
            (known,) = (offsets_in(each) for each in chosen if each.holds(part))
            at = int(np.searchsorted(known, part.start)) + row
            return int(known[at]) if 0 <= at < len(known) else None

        def failing(parts: Sequence[ranges.Range]) -> Mapping[int, Failure]:
            look = functools.partial(self._run_alone, read, parts)
            failed = self.spark_use.run(self.spark, lambda: session.failed_tasks(self.spark, look, len(parts)))
            return {number: Failure(each.error, offset(parts[number], each.row)) for number, each in failed.items()}

        return failing

    def _run_alone(self, read: str, parts: Sequence[ranges.Range]) -> None:
        """Computes what the flow needs of each part of an input, in a task of its own, and keeps nothing."""
        df = self._transformed({read: lambda columns: ranges.read_parts(self.spark, columns, parts)})
        if self._flow.aggregates is not None:  # what nobody asks for is not computed
            df = df.select([column.alias(f"/{number}") for number, column in enumerate(self._asked())])
        df.write.format("noop").mode("overwrite").save()

    def _asked(self) -> list[Column]:
        """What is aggregated, and by what, without aggregating it."""
        flow, time = self._flow, self._time()
        given = [one for each in (flow.aggregates or {}).values() for one in each.algebra.given()]
        named = [F.col(quoted_name(name)) for name in flow.groups]
        return [F.lit(0), *named, *([] if time is None else [time]), *map(column_of, given)]

    def _query(self, readers: Mapping[str, Reader], count: int) -> DataFrame:
        """`count`: so many tasks there are for each input."""
        df = self._rows_of(readers, count)
        return df if self._behind is None else df.mapInArrow(*self._behind)

    def _rows_of(self, readers: Mapping[str, Reader], count: int) -> DataFrame:
        if self.compiled.arrow is not None:
            return _together([read(self.compiled.columns[name]) for name, read in readers.items()])
        df = self._transformed(readers, together=count == 1)
        if self._flow.through is not None and self._flow.through.hashed:
            df = df.withColumn(HASH, _hash([F.col(quoted_name(name)) for name in self._flow.through.hashed]))
        if self.compiled.passed is not None:
            return df.select([quoted_name(name) for name in self.compiled.passed.computed])
        if self._flow.aggregates is None:
            return df
        judged, names = self._judged(df, self.compiled.reads.judged_behind, count), self.compiled.reads.names
        return partial_rows(self._flow, judged, self._time(), None if names is None else names.schema.names)

    def _judged(self, df: DataFrame, names: Sequence[str], count: int) -> DataFrame:
        """The records with what a judge says of them, if nobody has where they were read; of their columns, these.
        `count`: so many tasks there are for each input."""
        flow, time = self._flow, self._time()
        if flow.window is None or time is None or any(each.judge for each in self.compiled.columns.values()):
            return df
        if flow.own_progress and (flow.shares_topic or self._moves_records(df, count)):
            df = df.repartition(SOURCE, "_partition").sortWithinPartitions(SOURCE, "_partition", "_offset")
        read = df.select(*map(quoted_name, names), F.unix_micros(time).alias(EVENT))
        own: list[OwnProgress | Judge] = [OwnProgress()] if flow.own_progress else []
        steps = (*own, judge_of(flow, EVENT))
        made = (REACHED, *JUDGED) if flow.own_progress else JUDGED
        schema = StructType([field for field in read.schema if field.name != EVENT])
        for name in made:
            schema = schema.add(name, LongType())

        def in_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            judged = functools.reduce(lambda records, step: step.of(records), steps, batches)
            return (batch.select([*names, *made]) for batch in judged)

        rest = [field for field in df.schema if field.name not in names]  # an expression may name them all the same
        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in rest]
        return read.mapInArrow(in_worker, schema).select("*", *nulls)

    def _moves_records(self, df: DataFrame, count: int) -> bool:
        """Whether transforms leave records in any order, in any task. How Spark joins a table depends on the number of
        tasks."""
        known = self._prepared.moves_records
        if count not in known:
            known[count] = reorders(self.spark, df, len(self._flow.inputs))
        return known[count]

    def _transformed(self, readers: Mapping[str, Reader], *, together: bool = False) -> DataFrame:
        """The records behind the transforms; `together`: in one task."""
        frames: list[DataFrame] = []
        topics = sorted(topic.name for topic in self._flow.topics)  # of equal times, their partition and topic decide
        for read in self._flow.inputs:
            columns = self.compiled.columns[read.id]
            nothing = functools.partial(self.spark.createDataFrame, [], columns.schema)
            df = readers[read.id](columns) if read.id in readers else nothing()  # it has a say about types, too
            df = through(read.transforms, df)
            if self._flow.records and len(topics) > 1:
                number = topics.index(read.topic.name)
                df = df.withColumn("_partition", F.col("_partition") * len(topics) + number)
            number = self._flow.topic_number(read)
            frames.append(df.withColumn(SOURCE, F.lit(number)) if self._flow.tells_topic else df)
        df = _together(frames)
        if together and len(frames) > 1:
            df = df.coalesce(1)
        return through(self._flow.transforms, df)

    def _time(self) -> Column | None:
        name = time_column(self._flow)
        return None if name is None else F.col(quoted_name(name))


def _hash(key: Sequence[Column]) -> Column:
    """Spark passes nulls over: where there are several columns, which of them is null is hashed, too."""
    return F.xxhash64(*key, *(column.isNull() for column in key if len(key) > 1))


def _together(frames: Sequence[DataFrame]) -> DataFrame:
    return functools.reduce(lambda left, right: left.unionByName(right), frames)
