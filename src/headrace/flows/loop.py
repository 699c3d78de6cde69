"""The loop: one flow, batch after batch. Owns the order of a batch: where the flow is, what to read next, what Spark
makes of it, one commit, and the way out of what it emits.

    plan a range of offsets -> read, transform, partial rows (Spark) -> fold -> commit -> relay

A batch is a plain query over a range of offsets; a replay, a test step and a live batch are the same. After a crash the
flow goes on where its last commit is: what was not committed is read again, what was committed is not. Reading and
computing the next batch may run beside the commit of the last one; nothing else overlaps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import from_us, instant_us
from headrace.errors import Closed, LogDiverged, StorageError, TopicReplaced
from headrace.failpoints import reach
from headrace.flows import ranges, session
from headrace.flows.fold import folded, needed, spread
from headrace.flows.fold import reached as reached_by
from headrace.flows.partials import DROPPED, SOURCE
from headrace.flows.query import FlowQuery, Planned
from headrace.flows.relay import Relay
from headrace.flows.repeats import Repeats
from headrace.flows.shaping import Shaping
from headrace.jsonrows import encode_row
from headrace.log.contract import META, Offsets
from headrace.log.embedded.dead_letters import NAME as DEAD_LETTERS
from headrace.time import UNSET
from headrace.views.contract import (
    CHANGE,
    MARK,
    OP,
    Commit,
    Filtered,
    FlowState,
    LedgerRow,
    Outgoing,
    Place,
    ViewStore,
)

if TYPE_CHECKING:
    from headrace.flows.flow import Flow
    from headrace.log.embedded.log import EmbeddedLog
    from headrace.log.embedded.topic import EmbeddedTopic

Clock = Callable[[], int]
REPORT_SECONDS = 1.0
"""The log is told this often how far a flow is."""
Ends = dict[str, dict[int, Offsets]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A computed micro-batch: what to commit, without the sequence it gets. `looked_us`: when `ends` was so; what has
    come since is not in it, so nobody is idle for not being in it."""

    places: dict[str, dict[int, Place]]
    ends: Ends
    looked_us: int
    rows: int
    begins: dict[str, dict[int, Place]] = field(default_factory=dict)
    partials: pa.Table | None = None
    ledger: list[LedgerRow] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    buried: list[tuple[str, int, int]] = field(default_factory=list)
    filters: list[Filtered] = field(default_factory=list)
    unchanging_us: int | None = None
    """Of a flow over a view's changes: up to where that says that nothing changes any more."""


class FlowLoop:
    """One flow's life in this process. Not thread-safe: one thread steps it. `until`: reads no further than this state
    of the flow, and sends nothing out: to see what it should have come to."""

    def __init__(
        self,
        query: FlowQuery,
        *,
        log: EmbeddedLog,
        store: ViewStore,
        batch_rows: int = 1_000_000,
        until: FlowState | None = None,
        clock_us: Clock = lambda: time.time_ns() // 1000,
    ) -> None:
        self.flow, self.batch_rows, self._until = query.compiled.flow, batch_rows, until
        self.spec = query.compiled.spec if until is None else replace(query.compiled.spec, feeds=())
        self._query, self._log, self._store, self._clock_us = query, log, store, clock_us
        self._shape = Shaping(query) if self.flow.after else None
        self._state: FlowState | None = None
        self._relay = Relay(log, store, self.flow.name)
        self._noted = -1
        self._repeats = Repeats(self.flow, store) if self.flow.dedup else None
        self._places: dict[str, dict[int, Place]] = {}
        self._reporting = _Reporting(log, self.flow) if until is None else None
        self._begun_us = 0
        self.planned_rows = 0
        """How many offsets the last `prepare` meant to cover."""
        self._planned: tuple[dict[str, list[ranges.Range]], Batch] = ({}, Batch({}, {}, 0, 0))

    # -- where it is -------------------------------------------------------------------------------

    def begin(self, *, replace: bool = False) -> None:
        """Takes the flow from whoever had it, and finishes what that one left in the outbox."""
        state = self._store.begin(self.spec, replace=replace)
        for topic in self.flow.topics:
            known = state.topic_ids.get(topic.name)
            if known is not None and known != topic.topic_id:
                raise TopicReplaced(topic=topic.name, topic_id=known)
            self._refuse_diverged(topic, state.places.get(topic.name, {}))
        self._state, self._places = state, {topic: dict(places) for topic, places in state.places.items()}
        self._relay.begin(state.born)
        self._begun_us = self._clock_us()
        if state.sequence == 0:
            first = self._first_places()
            self._commit(Batch(first, self._ends(), self._begun_us, 0, begins=first))
        self.report(now=True)
        self._relay.run()
        self.note_relayed()

    def _refuse_diverged(self, topic: EmbeddedTopic, places: Mapping[int, Place]) -> None:
        """LogDiverged if the log has other records than the flow has read: an older copy was restored, and written to
        since. Upkeep keeps when a record arrived; of one that it took away nothing can be said."""
        ends = topic.offsets()
        for partition, place in places.items():
            found = topic.arrived_us(partition, place.offset - 1)
            another = None not in (found, place.arrived_us) and found != place.arrived_us
            if another or place.offset > ends[partition].next:
                raise LogDiverged(self.flow.name, topic.name, partition, place.offset, ends[partition].next)

    def _first_places(self) -> dict[str, dict[int, Place]]:
        """Where the flow starts is committed before anything is read: 'latest' is decided once."""
        out = {}
        ends = self._ends()
        for source in self.flow.sources:
            name = source.topic.name
            begin = ranges.begin(source.topic, source.start) if self._until is None else self._began(name, ends[name])
            out[name] = {
                partition: self._place(source.topic, partition, offset, ends[name][partition])
                for partition, offset in begin.items()
            }
        self._places = {topic: dict(places) for topic, places in out.items()}
        return out

    def _place(self, topic: EmbeddedTopic, partition: int, offset: int, end: Offsets) -> Place:
        """Without the progress of a time that the log does not know."""
        place = Place(offset, None)
        if not self.flow.own_progress and not self.flow.retracts:
            place = ranges.place_at(topic, partition, offset, end, by_arrival=self.flow.by_arrival)
        return replace(place, arrived_us=topic.arrived_us(partition, offset - 1))

    def _began(self, topic: str, ends: Mapping[int, Offsets]) -> dict[int, int]:
        """Where the flow began whose state this one is to come to; later, where the log has no more what is before."""
        assert self._until is not None
        began = self._until.begins.get(topic, {})
        return {
            partition: max(ends[partition].earliest, began[partition].offset if partition in began else 0)
            for partition in self._until.places.get(topic, {})
        }

    def _ends(self) -> Ends:
        ends = {topic.name: topic.offsets() for topic in self.flow.topics}
        if self._until is not None:  # partitions that were added since are not read
            for topic, found in ends.items():
                places = self._until.places.get(topic, {})
                ends[topic] = {partition: self._end_at(place, found[partition]) for partition, place in places.items()}
        return ends

    def _end_at(self, place: Place, end: Offsets) -> Offsets:
        """The end of a partition that is read no further than to the place."""
        reached = None if place.progress_us is None else from_us(place.progress_us)
        earliest = min(end.earliest, place.offset)  # what came later may be gone, too
        arrived = reached if self.flow.by_arrival else end.arrived_at
        return replace(end, earliest=earliest, next=place.offset, progress=reached, arrived_at=arrived)

    @property
    def position(self) -> FlowState:
        assert self._state is not None, "begin() comes first"
        return self._state

    # -- one batch ---------------------------------------------------------------------------------

    def step(self, batch_rows: int | None = None) -> int:
        """Reads, computes and commits one batch; how many offsets it covered, 0 when there is nothing to read."""
        batch = self.prepare(batch_rows)
        if batch is None:
            self.note_relayed()
            return 0
        self.commit(batch)
        return batch.rows

    def prepare(self, batch_rows: int | None = None) -> Batch | None:
        """The next batch, computed but not committed: may run while the last one is being committed."""
        self.planned_rows = 0
        self._query.compiled.check_topics()
        looked_us, ends = self._clock_us(), self._ends()
        places = {topic: dict(known) for topic, known in self._places.items()}
        behind = []
        for topic in self.flow.topics:
            for partition in ends[topic.name]:  # partitions that were added since
                places[topic.name].setdefault(partition, Place(0, None))
            at = {partition: place.offset for partition, place in places[topic.name].items()}
            behind.append(ranges.Behind(topic, at, ends[topic.name]))
        whole = self.flow.retracts and batch_rows is None  # what a view took back is not missing without its successor
        planned = ranges.plan(behind, batch_rows or self.batch_rows, whole=whole)
        unchanging: list[int | None] = []
        for topic in self.flow.topics:
            known, chosen = places[topic.name], planned[topic.name]
            if self.flow.own_progress:
                chosen = [replace(each, carry_us=known[each.partition].progress_us) for each in chosen]
                planned[topic.name] = chosen
            for each in chosen:
                place = self._place(topic, each.partition, each.stop, ends[topic.name][each.partition])
                carried = self.flow.own_progress
                if self.flow.retracts:
                    closed, reachable = ranges.marks(topic, each)
                    before = known[each.partition].progress_us
                    place = replace(place, progress_us=before if closed is None else closed)
                    unchanging.append(reachable)
                known[each.partition] = replace(place, progress_us=each.carry_us) if carried else place
        rows = sum(each.rows for chosen in planned.values() for each in chosen)
        told = [us for us in unchanging if us is not None]
        least = min(told) if told and len(told) == sum(map(len, ends.values())) else None
        self._planned, self.planned_rows = (planned, Batch(places, ends, looked_us, rows, unchanging_us=least)), rows
        if rows == 0:
            return None
        reach("flow.planned")
        read = planned if self._until is None else self._not_buried(planned)
        batch = self._planned[1] if not any(read.values()) else self._computed(read, self._planned[1])
        reach("flow.computed")
        self._places = places
        return batch

    def _not_buried(self, planned: Planned) -> Planned:
        """To see what a flow should have come to, without what it gave up."""
        assert self._until is not None
        buried = self._until.buried
        return {name: ranges.without(chosen, buried.get(name, ())) for name, chosen in planned.items()}

    def bury(self, error: str, trace: str) -> None:
        """The planned batch, one record that cannot be processed, becomes a dead letter, and is done with."""
        planned, batch = self._planned
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
        self._places = batch.places
        outgoing = [Outgoing(DEAD_LETTERS, pa.Table.from_pylist(letters))] if letters else []
        self.commit(replace(batch, outgoing=outgoing, buried=[(name, one.partition, one.start)]))

    def refuse_fenced(self) -> None:
        """FlowFenced if the flow was taken: who has nothing to commit would not find out."""
        self._store.refuse_fenced(self.position)

    def refuse_lost(self) -> None:
        """Closed if the session is: nothing comes of trying again, and no record is to blame."""
        if session.lost(self._query.spark):
            raise Closed(what=f"the Spark session of flow {self.flow.name!r}")

    def news(self) -> dict[str, int]:
        return self._log.news(self.flow.topics)

    def wait(self, seen: Mapping[str, int], timeout: float) -> bool:
        return self._log.wait(seen, timeout)

    def _computed(self, planned: Planned, batch: Batch) -> Batch:
        flow = self.flow
        table = self._query.rows(planned)
        if flow.aggregates is None:
            assert flow.target is not None
            if self._repeats is not None:
                found = self._repeats.taken_out(table, self._places, batch.places)
                return replace(batch, outgoing=found.outgoing, ledger=found.ledger, filters=found.filters)
            out = _in_order(table)
            return replace(batch, outgoing=[Outgoing(flow.target, out)] if out.num_rows else [])
        if flow.own_progress:
            self._reach(batch.places, reached_by(table))
        rows, ledger = folded(table, flow.window, flow.groups, flow.aggregates)
        assert self.spec.view is not None
        return replace(
            batch,
            partials=rows.select(needed(self.spec.view)),
            ledger=ledger,
            outgoing=self._dropped(planned) if flow.window and pc.max(table[DROPPED]).as_py() else [],
        )

    def _reach(self, places: dict[str, dict[int, Place]], found: Mapping[tuple[int, int], int]) -> None:
        """The progress of a time that the transforms made is the flow's own: the log does not know it."""
        for number, source in enumerate(self.flow.sources):
            for partition, place in places[source.topic.name].items():
                before = self._places.get(source.topic.name, {}).get(partition, Place(0, None)).progress_us
                after = [us for us in (before, found.get((number, partition))) if us is not None]
                places[source.topic.name][partition] = replace(place, progress_us=max(after, default=None))

    def _dropped(self, planned: Planned) -> list[Outgoing]:
        """The records that were too late, for the topic that takes them. Read again: it is rare that there are any."""
        if self.flow.late.dropped_to is None or self.flow.window is None:
            return []
        rows = self._query.dropped(planned)
        if self.flow.records:  # those behind it may go again
            rows = rows.append_column(OP, pa.array(["+"] * rows.num_rows, pa.string()))
        return [Outgoing(self.flow.late.dropped_to, _in_order(spread(rows, self.flow.window)))]

    # -- committing --------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """Commits, and sends on what goes out."""
        self._commit(batch)
        self.report()
        self._relay.run()

    def report(self, *, now: bool = False) -> None:
        """Tells the log how far the flow is, if it is time to; or `now`, and has it told when it returns."""
        if self._reporting is not None:
            self._reporting.tell(self.position, now=now)

    def note_relayed(self) -> None:
        """Tells the store that all rows of the outbox have arrived. The next commit would do that, too; but a reader
        that waits for these rows must not wait for another commit."""
        if self._relay.done > self._noted:
            self._store.note_relayed(self.position, self._relay.done, self._relay.written)
            self._noted = self._relay.done

    def _commit(self, batch: Batch, close: bool = False) -> None:
        state, relayed = self.position, self._relay.done
        if any(topic.settings.durability == "os" for topic in self.flow.topics):
            self._log.sync()  # a view must not know what a power loss could take from the log
        frontier = self.frontier(batch.places, batch.ends, batch.looked_us)
        reachable = batch.unchanging_us if self.flow.retracts or self._goes_back() else self._reachable(batch.places)
        closed = None if frontier is None else self._closed(frontier)
        if close:
            last = self._store.last_window_end(self.flow.name)
            closed = last if closed is None else max(closed, last or closed)
        self._state = self._store.commit(
            state,
            Commit(
                sequence=state.sequence,
                places=batch.places,
                topic_ids={topic.name: topic.topic_id for topic in self.flow.topics},
                begins=batch.begins,
                frontier_us=frontier,
                closed_us=closed,
                reachable_us=reachable if reachable is None or self.flow.retracts else self._unchanged(reachable),
                partials=batch.partials,
                ledger=batch.ledger,
                outgoing=batch.outgoing if self._until is None else (),
                buried=batch.buried,
                filters=batch.filters,
                relayed=relayed,
                written=self._relay.written,
                shape=self._shape,
                aggregates=self.flow.aggregates or {},
            ),
        )
        self._noted = relayed

    def close_windows(self, *, all_of_them: bool = False) -> bool:
        """Commits a new frontier when time alone has closed a window; whether it did."""
        looked_us, ends = self._clock_us(), self._ends()
        frontier = self.frontier(self._places, ends, looked_us)
        known = self.position.frontier_us
        if not all_of_them and (frontier is None or (known is not None and frontier <= known)):
            return False
        if not all_of_them and not self._store.closes(self.flow.name, self._closed(frontier or 0)):
            return False
        self._commit(Batch(self._places, ends, looked_us, 0), close=all_of_them)
        self._relay.run()
        self.note_relayed()
        return True

    def _closed(self, frontier_us: int) -> int:
        """Windows that end by then are final."""
        window = self.flow.window
        return frontier_us - self.flow.grace_us - (0 if window is None else window.final_after_us)

    def _unchanged(self, reachable_us: int) -> int:
        """Windows that end by then are changed by no record that has this progress, or more."""
        window = self.flow.window
        later = self.flow.grace_us + self.flow.late.within_us
        return reachable_us - later - (0 if window is None else window.unchanged_after_us)

    def frontier(self, places: Mapping[str, Mapping[int, Place]], ends: Ends, now_us: int) -> int | None:
        """Up to where all partitions have come. One that is read to its end and got nothing for `idle`, while this loop
        was looking, counts as the clock less `idle`; any other as what it has."""
        lowest: int | None = None
        for topic, partitions in places.items():
            for partition, place in partitions.items():
                progress = UNSET if place.progress_us is None else place.progress_us
                end = ends[topic][partition]
                assert end.arrived_at is not None
                since = max(instant_us(end.arrived_at, argument="arrived_at"), self._begun_us)
                quiet = now_us - since >= self.flow.idle_us and not self.flow.retracts
                if place.offset >= end.next and quiet:
                    progress = max(progress, now_us - self.flow.idle_us)
                lowest = progress if lowest is None else min(lowest, progress)
        return None if lowest is None or lowest == UNSET else lowest

    def _goes_back(self) -> bool:
        """Whether a record to come can have less progress than one that was read: then nothing that is kept goes. Asked
        for each commit, since a flow that writes a topic may begin after those that read it."""
        if self._until is not None:
            return True
        return self.flow.window is not None and self._store.goes_back([topic.name for topic in self.flow.topics])

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
        self.note_relayed()
        self.report(now=True)
        return total


class _Reporting:
    """A flow's places live in its store, beside its results. The log is told of them now and then, so that retention
    minds the flow and lag is seen: not with every batch, and without a sync, for what is not told only keeps records
    for longer. At once where producers may be waiting for room."""

    def __init__(self, log: EmbeddedLog, flow: Flow) -> None:
        self._log, self._flow = log, flow
        self._told: dict[str, dict[int, int]] = {}
        self._told_at = -REPORT_SECONDS
        self._telling: Future[None] | None = None

    def tell(self, state: FlowState, *, now: bool) -> None:
        if not now and not self._is_due():
            return
        offsets = {
            topic: {partition: place.offset for partition, place in places.items()}
            for topic, places in state.places.items()
        }
        first = not self._told
        if offsets != self._told:
            self._told_at = time.monotonic()
            news = [(topic, offsets.get(topic.name, {})) for topic in self._flow.topics]
            self._telling, self._told = self._log.report(self._flow.name, news), offsets
        if now and self._telling is not None:
            try:
                self._telling.result()
            except StorageError:
                if first:  # retention minds only those it knows
                    raise

    def _is_due(self) -> bool:
        if self._telling is not None and not self._telling.done():
            return False
        bounded = any(
            topic.settings.unread == "keep" and topic.settings.retention_bytes is not None
            for topic in self._flow.topics
        )
        return bounded or time.monotonic() - self._told_at >= REPORT_SECONDS


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows as their sources have them: by partition and offset. Of the metadata only progress goes on."""
    if not _is_in_order(rows):
        rows = rows.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    ours = {*META, SOURCE, *CHANGE[1:], *MARK} - {"_progress"}
    rows = rows.drop_columns([name for name in rows.column_names if name in ours])
    return rows.rename_columns(["op" if name == OP else name for name in rows.column_names])


def _is_in_order(rows: pa.Table) -> bool:
    partition, offset = (rows[name].to_numpy() for name in ("_partition", "_offset"))
    same = partition[1:] == partition[:-1]
    return bool(np.all((partition[1:] > partition[:-1]) | (same & (offset[1:] >= offset[:-1]))))
