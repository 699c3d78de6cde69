"""The loop: one flow, batch after batch. Owns the order of a batch: where the flow is, what to read next, what Spark
makes of it, one commit, and the way out of what it emits.

    plan a range of offsets -> read, transform, partial rows (Spark) -> fold -> commit -> relay

A batch is a plain query over a range of offsets; a replay, a test step and a live batch are the same. After a crash the
flow goes on where its last commit is: what was not committed is read again, what was committed is not. Reading and
computing the next batch may run beside the commit of the last one; nothing else overlaps."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.durations import from_us, instant_us
from headrace.errors import TopicReplaced
from headrace.failpoints import reach
from headrace.flows import ranges
from headrace.flows.flow import Flow
from headrace.flows.fold import folded, needed
from headrace.flows.partials import partial_rows
from headrace.flows.relay import Relay
from headrace.jsonrows import encode_row
from headrace.log.contract import META, Offsets
from headrace.log.embedded.dead_letters import NAME as DEAD_LETTERS
from headrace.time import UNSET
from headrace.views.contract import Commit, FlowSpec, FlowState, LedgerRow, Outgoing, Place, ViewStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.log.embedded.log import EmbeddedLog
    from headrace.log.embedded.topic import EmbeddedTopic

Clock = Callable[[], int]
Reader = Callable[["SparkSession", "EmbeddedTopic", Sequence[ranges.Range], StructType], "DataFrame"]
Ends = dict[str, dict[int, Offsets]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A computed micro-batch: what to commit, without the sequence it gets."""

    places: dict[str, dict[int, Place]]
    ends: Ends
    rows: int
    partials: pa.Table | None = None
    ledger: list[LedgerRow] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)


class FlowLoop:
    """One flow's life in this process. Not thread-safe: one thread steps it."""

    def __init__(
        self,
        flow: Flow,
        spec: FlowSpec,
        *,
        log: EmbeddedLog,
        store: ViewStore,
        spark: SparkSession,
        batch_rows: int,
        clock_us: Clock = lambda: time.time_ns() // 1000,
    ) -> None:
        self.flow, self.spec, self.batch_rows = flow, spec, batch_rows
        self._log, self._store, self._spark, self._clock_us = log, store, spark, clock_us
        self._schemas = {source.topic.name: ranges.spark_schema(source.topic) for source in flow.sources}
        self._state: FlowState | None = None
        self._relay = Relay(log, store, flow.name)
        self._places: dict[str, dict[int, Place]] = {}
        self._slate = ranges.Slate()
        self._small: DataFrame | None = None
        self._slated = False
        self._begun_us = 0
        self.planned_rows = 0
        """How many offsets the last `prepare` meant to cover."""
        self._planned: tuple[dict[str, list[ranges.Range]], dict[str, dict[int, Place]], Ends] = ({}, {}, {})

    # -- where it is -------------------------------------------------------------------------------

    def begin(self, *, replace: bool = False) -> None:
        """Takes the flow from whoever had it, and finishes what that one left in the outbox."""
        state = self._store.begin(self.spec, replace=replace)
        for topic in self.flow.topics:
            known = state.topic_ids.get(topic.name)
            if known is not None and known != topic.topic_id:
                raise TopicReplaced(topic=topic.name, topic_id=known)
        self._state, self._places = state, {topic: dict(places) for topic, places in state.places.items()}
        self._relay.begin()
        self._begun_us = self._clock_us()
        if state.sequence == 0:
            self._commit(Batch(self._first_places(), self._ends(), 0))
        self._relay.run()

    def _first_places(self) -> dict[str, dict[int, Place]]:
        """Where the flow starts is committed before anything is read: 'latest' is decided once."""
        out = {}
        for source in self.flow.sources:
            ends = source.topic.offsets()
            begin = ranges.begin(source.topic, source.start)
            out[source.topic.name] = {
                partition: ranges.place_at(source.topic, partition, offset, ends[partition])
                for partition, offset in begin.items()
            }
        self._places = {topic: dict(places) for topic, places in out.items()}
        return out

    def _ends(self) -> Ends:
        return {topic.name: topic.offsets() for topic in self.flow.topics}

    @property
    def position(self) -> FlowState:
        assert self._state is not None, "begin() comes first"
        return self._state

    # -- one batch ---------------------------------------------------------------------------------

    def step(self, batch_rows: int | None = None) -> int:
        """Reads, computes and commits one batch; how many offsets it covered, 0 when there is nothing to read."""
        batch = self.prepare(batch_rows)
        if batch is None:
            return 0
        self.commit(batch)
        return batch.rows

    def prepare(self, batch_rows: int | None = None) -> Batch | None:
        """The next batch, computed but not committed: may run while the last one is being committed."""
        ends = self._ends()
        places = {topic: dict(known) for topic, known in self._places.items()}
        left = batch_rows or self.batch_rows
        planned: dict[str, list[ranges.Range]] = {}
        for source in self.flow.sources:
            known = places[source.topic.name]
            for partition in ends[source.topic.name]:  # partitions that were added since
                known.setdefault(partition, Place(0, None))
            starts = {partition: place.offset for partition, place in known.items()}
            chosen = ranges.plan(source.topic, starts, ends[source.topic.name], max(left, 1)) if left > 0 else []
            left -= sum(each.rows for each in chosen)
            planned[source.topic.name] = chosen
            for each in chosen:
                end = ends[source.topic.name][each.partition]
                known[each.partition] = ranges.place_at(source.topic, each.partition, each.stop, end)
        rows = sum(each.rows for chosen in planned.values() for each in chosen)
        self._planned, self.planned_rows = (planned, places, ends), rows
        if rows == 0:
            return None
        reach("flow.planned")
        batch = self._computed(planned, Batch(places, ends, rows))
        reach("flow.computed")
        self._places = places
        return batch

    def bury(self, error: str, trace: str) -> None:
        """The planned batch, one record that cannot be processed, becomes a dead letter, and is done with."""
        planned, places, ends = self._planned
        ((name, (one,)),) = [(name, chosen) for name, chosen in planned.items() if chosen]
        topic = next(topic for topic in self.flow.topics if topic.name == name)
        letters = [
            {
                "reason": "poison",
                "error": f"{error}\n{trace}",
                "topic": name,
                "topic_id": topic.topic_id,
                "partition": one.partition,
                "offset": record.offset,
                "source": f"flow {self.flow.name}",
                "died_at": from_us(self._clock_us()),
                "row": encode_row(record.value).decode(),
            }
            for record in topic.records({one.partition: one.start}, partition=one.partition)
            if record.offset < one.stop
        ]
        self._places = places
        outgoing = [Outgoing(DEAD_LETTERS, pa.Table.from_pylist(letters))] if letters else []
        self.commit(Batch(places, ends, one.rows, outgoing=outgoing))

    def news(self) -> dict[str, int]:
        return self._log.news(self.flow.topics)

    def wait(self, seen: Mapping[str, int], timeout: float) -> bool:
        return self._log.wait(seen, timeout)

    def _computed(self, planned: dict[str, list[ranges.Range]], batch: Batch) -> Batch:
        flow = self.flow
        table = self._frame(planned, batch.rows).toArrow()
        if flow.aggregates is None:
            assert flow.target is not None
            out = _in_order(table)
            return replace(batch, outgoing=[Outgoing(flow.target, out)] if out.num_rows else [])
        rows, ledger = folded(table, flow.window, flow.groups, flow.aggregates)
        assert self.spec.view is not None
        return replace(batch, partials=rows.select(needed(self.spec.view)), ledger=ledger)

    def _frame(self, planned: dict[str, list[ranges.Range]], rows: int) -> DataFrame:
        """The batch's query. A small one has a plan that is made once, if it can be."""
        if rows > ranges.TINY_ROWS:
            return self._query({name: ranges.read for name, chosen in planned.items() if chosen}, planned)
        if self._small is None:
            self._small = self._query(dict.fromkeys(planned, self._on_slate), planned)
            self._slated = _local(self._spark) and not has_exchange(self._small)
        if not self._slated:
            return self._query({name: ranges.few for name, chosen in planned.items() if chosen}, planned)
        self._slate.write(planned)
        return self._small

    def _on_slate(
        self, spark: SparkSession, topic: EmbeddedTopic, _: Sequence[ranges.Range], schema: StructType
    ) -> DataFrame:
        return self._slate.read(spark, topic, schema)

    def _query(self, readers: Mapping[str, Reader], planned: Mapping[str, list[ranges.Range]]) -> DataFrame:
        frames: list[DataFrame] = []
        for source in self.flow.sources:
            name = source.topic.name
            if name in readers:
                df = readers[name](self._spark, source.topic, planned[name], self._schemas[name])
                frames.append(functools.reduce(lambda df, transform: transform(df), source.transforms, df))
        small = len(frames) > 1 and all(reader != ranges.read for reader in readers.values())
        df = functools.reduce(lambda left, right: left.unionByName(right), frames)
        df = df.coalesce(1) if small else df
        df = functools.reduce(lambda df, transform: transform(df), self.flow.transforms, df)
        if self.flow.aggregates is None:
            return df
        return partial_rows(self.flow, df, self._time(), F.col("_progress"))

    def _time(self) -> Any:
        """The column with the records' event time."""
        name = self.flow.time or self.flow.sources[0].topic.settings.event_time
        return None if name is None else F.col(f"`{name}`")

    # -- committing --------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """Commits, and sends on what goes out."""
        self._commit(batch)
        self._relay.run()

    def _commit(self, batch: Batch, close: bool = False) -> None:
        state = self.position
        if any(topic.settings.durability == "os" for topic in self.flow.topics):
            self._log.sync()  # a view must not know what a power loss could take from the log
        frontier, reachable = self.frontier(batch.places, batch.ends), self._reachable(batch.places)
        grace = self.flow.grace_us
        closed = None if frontier is None else frontier - grace
        if close:
            last = self._store.last_window_end(self.flow.name)
            closed = last if closed is None else max(closed, last or closed)
        self._state = self._store.commit(
            state,
            Commit(
                sequence=state.sequence,
                places=batch.places,
                topic_ids={topic.name: topic.topic_id for topic in self.flow.topics},
                frontier_us=frontier,
                closed_us=closed,
                reachable_us=None if reachable is None else reachable - grace - self.flow.late.within_us,
                partials=batch.partials,
                ledger=batch.ledger,
                outgoing=batch.outgoing,
                relayed=self._relay.done,
            ),
        )

    def close_windows(self, *, all_of_them: bool = False) -> bool:
        """Commits a new frontier when time alone has closed a window; whether it did."""
        ends = self._ends()
        frontier = self.frontier(self._places, ends)
        known = self.position.frontier_us
        if not all_of_them and (frontier is None or (known is not None and frontier <= known)):
            return False
        if not all_of_them and not self._store.closes(self.flow.name, (frontier or 0) - self.flow.grace_us):
            return False
        self._commit(Batch(self._places, ends, 0), close=all_of_them)
        self._relay.run()
        return True

    def frontier(self, places: Mapping[str, Mapping[int, Place]], ends: Ends) -> int | None:
        """Up to where all partitions have come. One that is read to its end and got nothing for `idle`, while this loop
        was looking, counts as the clock less `idle`; any other as what it has."""
        now, lowest = self._clock_us(), None
        for topic, partitions in places.items():
            for partition, place in partitions.items():
                progress = UNSET if place.progress_us is None else place.progress_us
                end = ends[topic][partition]
                assert end.arrived_at is not None
                since = max(instant_us(end.arrived_at, argument="arrived_at"), self._begun_us)
                quiet = now - since >= self.flow.idle_us
                if place.offset >= end.next and quiet:
                    progress = max(progress, now - self.flow.idle_us)
                lowest = progress if lowest is None else min(lowest, progress)
        return None if lowest is None or lowest == UNSET else lowest

    def _reachable(self, places: Mapping[str, Mapping[int, Place]]) -> int | None:
        """The least progress a record to come can have."""
        lowest = [place.progress_us for partitions in places.values() for place in partitions.values()]
        known = [progress for progress in lowest if progress is not None]
        return min(known) if known and len(known) == len(lowest) else None

    # -- many batches ------------------------------------------------------------------------------

    def drain(self, batch_rows: int | None = None) -> int:
        """Everything there is, the next batch computed while the last is committed."""
        total = 0
        with ThreadPoolExecutor(1, thread_name_prefix=f"headrace-{self.flow.name}") as committer:
            waiting: Future[None] | None = None
            try:
                while (batch := self.prepare(batch_rows)) is not None:
                    if waiting is not None:
                        waiting.result()
                    total += batch.rows
                    waiting = committer.submit(self.commit, batch)
            finally:
                if waiting is not None:
                    waiting.result()
        self.close_windows()
        return total

    @property
    def topics(self) -> list[EmbeddedTopic]:
        return self.flow.topics


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows as their sources have them: by partition and offset. Of the metadata only progress goes on."""
    rows = rows.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    return rows.drop_columns([name for name in META if name != "_progress"])


def has_exchange(df: DataFrame) -> bool:
    """Whether the plan moves records between partitions."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        df.explain()
    return re.search(r"\bExchange\b|\bShuffle", text.getvalue()) is not None


def _local(spark: SparkSession) -> bool:
    """Whether the workers are on this machine."""
    try:
        return str(spark.sparkContext.master).startswith("local")
    except Exception:  # a session of Spark Connect has no context
        return False
