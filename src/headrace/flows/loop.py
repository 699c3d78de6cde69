"""The loop: one flow, batch after batch. Owns the order of a batch: where the flow is, what to read next, what Spark
makes of it, one commit, and the way out of what it emits.

    plan a range of offsets -> read, transform, partial rows (Spark) -> fold -> commit -> relay

A batch is a plain query over a range of offsets; a replay, a test step and a live batch are the same. After a crash the
flow goes on where its last commit is: what was not committed is read again, what was committed is not. Reading and
computing the next batch may run beside the commit of the last one; nothing else overlaps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import from_us
from headrace.errors import LogMissing, TopicReplaced
from headrace.failpoints import reach
from headrace.flows.flow import event_times
from headrace.flows.folding import parted, reading_in_parts
from headrace.flows.folding.meeting import MeetingFold
from headrace.flows.folding.passing_on import InParts, PassedOn, PassingOn
from headrace.flows.folding.shaping import Shaping
from headrace.flows.folding.staging import Staging
from headrace.flows.query import FlowQuery, Planned
from headrace.flows.reading import ranges
from headrace.flows.reading.inputs import Clock, Inputs, Look, steady_clock, wall_clock_us
from headrace.flows.reading.places import FlowPlaces, copied
from headrace.flows.spark import session
from headrace.flows.writing.relay import Relay
from headrace.flows.writing.reporting import Reporting
from headrace.jsonrows import encode_row
from headrace.kernels.fold import dropped_records, folded, needed
from headrace.kernels.fold import reached as reached_by
from headrace.kernels.judge import DROPPED, SOURCE
from headrace.log.contract import DEAD_LETTERS, META
from headrace.operators.aggregate import Bounds
from headrace.operators.fold import Fold, StagedRows
from headrace.rows import to_rows
from headrace.schema import EXTRA_COLUMN
from headrace.views.contract import (
    CHANGE,
    MARK,
    OP,
    Commit,
    FlowSpec,
    FlowState,
    LedgerRow,
    Outgoing,
    Place,
    ReadMark,
    State,
    ViewStore,
    wholes_in,
)

if TYPE_CHECKING:
    from headrace.log.contract import Log, Topic

ROWS_MAX, RECORDS_MAX = 4_000_000, 1_000_000
"""No batch has more records, unless its author says so: of those that are folded where they are read, and of those that
come to the driver."""
Culprits = Mapping[tuple[str, int, int], str]
"""Topic, partition and offset of records that cannot be processed, each with its error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch has become: how far its flow is then, and what is written with it."""

    frontier_us: int | None
    closed_us: int | None
    unchanged_us: int | None
    out: PassedOn
    changes: Callable[[], pa.Table] | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A computed micro-batch: what to commit, without the sequence it gets."""

    places: dict[str, dict[int, Place]]
    look: Look
    rows: int
    begins: dict[str, dict[int, Place]] = field(default_factory=dict)
    partials: pa.Table | None = None
    staged: StagedRows | None = None
    """The same of a large batch, where workers have laid them down."""
    ledger: list[LedgerRow] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    buried: list[tuple[str, int, int]] = field(default_factory=list)
    records: pa.Table | None = None
    """Of a flow with an operator, whose step depends on what the flow has seen: it comes with the commit."""
    met: Mapping[str, pa.Table] | None = None
    """The same by input, of a flow in which records of several meet."""
    unchanging_us: int | None = None
    """Of a flow over a view's changes: up to where that says that nothing changes any more."""
    reaches_us: Mapping[str, int | None] = field(default_factory=dict)
    """Of topics with marks: the reach that the last mark says."""
    read_marks: Sequence[ReadMark] = ()
    """How far what was read has come, where only reading tells."""


class FlowLoop:
    """One flow's life in this process. Not thread-safe: one thread steps it. `until`: reads no further than this state
    of the flow, and sends nothing out: to see what it should have come to. `at_once`: silence counts at once, and not
    only when this loop has been at a partition's end for `idle`, as it must be where producers may be about to write.
    """

    def __init__(
        self,
        query: FlowQuery,
        *,
        log: Log,
        store: ViewStore,
        batch_rows: int | None = None,
        until: FlowState | None = None,
        at_once: bool = True,
        clock_us: Clock | None = None,
        scratch: Path = Path(),
    ) -> None:
        self._scratch = scratch
        """Where the session leaves its own log."""
        self.flow, self._until = query.compiled.flow, until
        self.batch_rows = batch_rows or (RECORDS_MAX if self.flow.aggregates is None else ROWS_MAX)
        self.spec = query.compiled.spec if until is None else replace(query.compiled.spec, feeds=())
        self._query, self._log, self._store = query, log, store
        self._clock_us = clock_us or (wall_clock_us if at_once else steady_clock())
        self._inputs = self._make_inputs(at_once)
        self._shape = Shaping(query) if self.flow.after else None
        self._fold: Fold | None = None
        self._staging: Staging | None = None
        self._state: FlowState | None = None
        self._relay = Relay(log, store, self.flow.name, self.refuse_fenced)
        self._noted = -1
        """The store knows that all of the outbox up to this sequence has arrived."""
        self._passing = PassingOn(self.flow) if self.flow.through is not None else None
        self._meeting: MeetingFold | None = None
        self._places = FlowPlaces(self.flow, self._inputs, until)
        self._reporting = Reporting(log, self.flow) if until is None else None
        self.asked_us: int | None = None
        """Silence counts up to then; by default up to now."""
        self.planned_rows = 0
        """How many offsets the last `prepare` meant to cover."""
        self.computing = False
        """Whether it failed while it computed something of them: then records may be to blame."""
        self._planned: tuple[dict[str, list[ranges.Range]], Batch] = ({}, Batch({}, Look({}), 0))

    def _make_inputs(self, at_once: bool) -> Inputs:
        return Inputs(self.flow, self._store, until=self._until, at_once=at_once, clock_us=self._clock_us)

    def _look(self, *, marks: bool = False) -> Look:
        now_us = self._clock_us() if self.asked_us is None else self.asked_us
        return self._inputs.look(self._places.now, now_us, marks=marks)

    def remember(self, marks: Sequence[ReadMark]) -> None:
        """How far the topics had come, as the store has it, where only reading tells."""
        self._places.remember(marks)

    # -- where it is -------------------------------------------------------------------------------

    def begin(self, *, replace: bool = False) -> None:
        """Takes the flow from whoever had it, and finishes what that one left in the outbox."""
        state = self._store.begin(self.spec, replace=replace)
        self.remember(self._store.read_marks(self.flow.name) if self._until is None else self._until.read_marks)
        self._fold, self._meeting = self._folding(), self._meeting_fold()
        self._staging = Staging.of(self._query, self._fold, self._store, state)
        for topic in self.flow.topics:
            known = state.topic_ids.get(topic.name)
            if known is not None and known != topic.topic_id:
                raise TopicReplaced(topic=topic.name, topic_id=known)
        self._places.begin(state)
        self._state = state
        self._relay.begin(state.born)
        if state.sequence > 0:
            self._relay.refuse_older_views({*self.spec.writes, DEAD_LETTERS}, self.flow.parent)
        self._inputs.begin()
        if state.sequence == 0:
            first, marks = self._places.first()
            self._commit(Batch(first, self._look(), 0, begins=first, read_marks=marks))
        self.report(now=True)
        self._send_out()
        self.note_relayed()

    def _folding(self) -> Fold | None:
        """What folds batches into the view."""
        if self.spec.view is None or self.flow.meets is not None:
            return None
        return Fold(self._fed_spec(), self.flow.aggregates or {}, self._shape)

    def _meeting_fold(self) -> MeetingFold | None:
        if self.flow.meets is None:
            return None
        time = self.flow.meets.time(event_times(self.flow))
        if self.flow.target is not None and self.flow.parent is None:
            time = self._log.topic(self.flow.target).settings.event_time
        return MeetingFold(self.flow, self._fed_spec(), self._shape, time)

    def _fed_spec(self) -> FlowSpec:
        """The store knows who has read the view's changes before, in other programs too."""
        return dataclasses.replace(self.spec, feeds=self._store.feeds(self.flow.name))

    @property
    def position(self) -> FlowState:
        assert self._state is not None, "begin() comes first"
        return self._state

    @property
    def merges_plainly(self) -> bool:
        """True when a row takes no longer than another to commit: no window and no list grows by it, and it is neither
        shaped nor sent on."""
        flow = self.flow
        aggregates = flow.aggregates or {}
        if any(each.algebra.arrow_merges(name) is None for name, each in aggregates.items()):
            return False
        grows = flow.window is not None and not flow.window.aligned
        goes_on = bool(aggregates) and (flow.after or flow.feeds or flow.target is not None)
        return not (grows or goes_on or flow.retracts or flow.records or flow.operator)

    # -- one batch ---------------------------------------------------------------------------------

    def step(self, batch_rows: int | None = None) -> int:
        """Reads, computes and commits one batch; how many offsets it covered, 0 when there is nothing to read."""
        batch = self.prepare(batch_rows)
        if batch is None:
            self.note_relayed()
            return 0
        self.commit(batch)
        return batch.rows

    def prepare(self, batch_rows: int | None = None, *, whole: bool | None = None) -> Batch | None:
        """The next batch, computed but not committed: may run while the last one is being committed. `whole`: of a
        view's changes stored batches are not cut; by default where no number of rows is given."""
        self.planned_rows, self.computing = 0, False
        self._query.compiled.check_topics()
        look = self._look()
        places, behind = self._places.behind(look.ends)
        uncut = batch_rows is None if whole is None else whole
        # What a view took back is not missing without its successor.
        planned = self._plan(behind, batch_rows or self.batch_rows, whole=self.flow.retracts and uncut)
        least, marked_us = self._places.advance(planned, places, look.ends)
        rows = sum(each.rows for chosen in planned.values() for each in chosen)
        made = Batch(places, look, rows, unchanging_us=least, reaches_us=marked_us)
        self._planned, self.planned_rows = (planned, made), rows
        if rows == 0:
            return None
        reach("flow.planned")
        read = planned if self._until is None else self._not_buried(planned)
        self.computing = True
        batch = self._planned[1] if not any(read.values()) else self._computed(read, self._planned[1])
        self.computing = False
        batch = self._settled(planned, batch)
        reach("flow.computed")
        self._places.now, self._places.marked_us = places, marked_us
        return batch

    def _settled(self, planned: Planned, batch: Batch) -> Batch:
        """With how far what was read has come, where only reading tells."""
        self._query.take_reports()
        return replace(batch, read_marks=self._places.settle(planned, batch.places, batch.look.ends))

    def _plan(self, behind: list[ranges.Behind], rows_max: int, *, whole: bool) -> dict[str, list[ranges.Range]]:
        """What to read next. Tables are read to their ends before what looks up in them, or with it: else most answers
        would be corrected."""
        first = {each.topic.name for each in self.flow.inputs if self.flow.meets and each.role in self.flow.meets.first}
        tables = [each for each in behind if each.topic.name in first]
        others = [each for each in behind if each.topic.name not in first]
        planned = ranges.plan(tables, rows_max, whole=whole) if tables else {}
        taken = sum(each.rows for chosen in planned.values() for each in chosen)
        unread = sum(end.next - each.places[at] for each in tables for at, end in each.ends.items())
        if taken < unread or (tables and taken >= rows_max):
            return {**planned, **{each.topic.name: [] for each in others}}
        return {**planned, **ranges.plan(others, rows_max - taken, whole=whole)}

    def _not_buried(self, planned: Planned) -> Planned:
        """To see what a flow should have come to, without what it gave up."""
        assert self._until is not None
        buried = self._until.buried
        return {name: ranges.without(chosen, buried.get(name, ())) for name, chosen in planned.items()}

    def culprits(self, enough: float) -> Culprits:
        """The records of the planned batch that cannot be processed, all or `enough`; none if that cannot be told."""
        return self._query.culprits(self._planned[0], enough)

    def fails_on_nothing(self) -> bool:
        """Whether it fails without any record, too: then none is to blame."""
        return self._query.fails_on_nothing()

    def only_record(self) -> tuple[str, int, int]:
        """Of a planned batch of one record: where it is."""
        ((name, (one,)),) = [(name, chosen) for name, chosen in self._planned[0].items() if chosen]
        return name, one.partition, one.start

    def prepare_without(self, culprits: Culprits) -> Batch:
        """The planned batch without some records, which become dead letters."""
        planned, batch = self._planned
        read = {
            name: ranges.without(chosen, [place[1:] for place in culprits if place[0] == name])
            for name, chosen in planned.items()
        }
        made = self._computed(read, batch) if any(read.values()) else batch
        made = self._settled(planned, made)
        self._places.now, self._places.marked_us = batch.places, dict(batch.reaches_us)
        letters = [self._letters(topic, culprits) for topic in self.flow.topics]
        outgoing = [Outgoing(DEAD_LETTERS, pa.Table.from_pylist(some)) for some in letters if some]
        return replace(made, outgoing=[*made.outgoing, *outgoing], buried=[*culprits])

    def _letters(self, topic: Topic, culprits: Culprits) -> list[dict[str, Any]]:
        out = []
        for (name, partition, offset), error in culprits.items():
            if name != topic.name:
                continue
            columns = [*topic.schema.names, EXTRA_COLUMN]
            for batch in topic.batches(partition, offset, offset + 1, columns):  # none if it was erased since
                (row,) = to_rows(batch)
                out.append(
                    {
                        "reason": "poison",
                        "error": error,
                        "topic": name,
                        "topic_id": topic.topic_id,
                        "partition": partition,
                        "offset": offset,
                        "source": f"flow {self.flow.name}",
                        "died_at": from_us(self._clock_us()),
                        "row": encode_row(row).decode(),
                    }
                )
        return out

    def refuse_fenced(self) -> None:
        """FlowFenced if the flow was taken: who has nothing to commit would not find out."""
        self._store.refuse_fenced(self.position)

    def refuse_removed(self) -> None:
        """LogMissing if the home is not where it was: an open file can be read long after it was deleted."""
        if not self._log.in_place:
            why = "it was removed or replaced while open. Nothing is made in its place: put it back, and start again"
            raise LogMissing(path=self._log.address, why=why)

    def refuse_lost(self) -> None:
        """SparkLost or Closed if the session is: nothing comes of trying again, and no record is to blame."""
        session.refuse_lost(self._query.spark, f"flow {self.flow.name!r}", self._scratch)

    def refuse_ended(self) -> None:
        """SparkLost if the session's JVM has ended: who has no batch for it would not find out."""
        session.refuse_ended(self._query.spark, self._scratch)

    def news(self) -> dict[str, int]:
        return self._log.news(self.flow.topics)

    def wait(self, seen: Mapping[str, int], timeout: float) -> bool:
        return self._log.wait(seen, timeout)

    def _computed(self, planned: Planned, batch: Batch) -> Batch:
        flow = self.flow
        if flow.meets is not None:
            return replace(batch, met=self._query.by_input(planned))
        if self._staging is not None and self._staging.pays(batch.rows):
            staged = self._staging.run(planned)
            self._staging.learn(batch.rows, staged.rows.num_rows)
            outgoing = self._dropped(planned) if staged.dropped else []
            return replace(batch, staged=staged.rows, ledger=staged.ledger, outgoing=outgoing)
        table = self._query.rows(planned)
        if flow.aggregates is None:
            assert flow.target is not None
            if self._passing is not None:
                return replace(batch, records=table)
            table = table.drop_columns(wholes_in(table.column_names)) if flow.retracts else table
            out = self._that_fit(_in_order(table), flow.target)
            return replace(batch, outgoing=[Outgoing(flow.target, out)] if out.num_rows else [])
        if flow.own_progress:
            self._places.reach(batch.places, reached_by(table))
        rows, ledger = folded(table, flow.window, flow.groups, flow.aggregates)
        assert self.spec.view is not None
        if self._staging is not None:
            self._staging.learn(batch.rows, rows.num_rows)
        return replace(
            batch,
            partials=rows.select(needed(self.spec.view)),
            ledger=ledger,
            outgoing=self._dropped(planned) if flow.window and pc.max(table[DROPPED]).as_py() else [],
        )

    def _that_fit(self, rows: pa.Table, target: str) -> pa.Table:
        """The rows without columns that the topic does not take: their source has got these since the flow began."""
        topic = self._log.topic(target)
        if topic.settings.extra != "forbid":
            return rows
        return rows.select([name for name in rows.column_names if name in (*topic.schema.names, "_progress")])

    def _dropped(self, planned: Planned) -> list[Outgoing]:
        """The records that were too late, for the topic that takes them. Read again: it is rare that there are any."""
        if self.flow.late.dropped_to is None or self.flow.window is None:
            return []
        rows = self._query.dropped(planned)
        if self.flow.records:  # those behind it may go again
            rows = rows.append_column(OP, pa.array(["+"] * rows.num_rows, pa.string()))
        return [Outgoing(self.flow.late.dropped_to, _in_order(dropped_records(rows, self.flow.window)))]

    # -- committing --------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """Commits, and sends on what goes out."""
        self._commit(batch)
        self.report()
        self._send_out()

    def _send_out(self) -> None:
        with self._unless_fenced(self.position):
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
        if self._meeting is not None:
            self._commit_meeting(self._meeting, batch, close)
            return
        state, relayed = self.position, self._relay.done
        folded = PassedOn(batch.outgoing, tuple(batch.ledger))
        if self._passing is not None and batch.records is not None:
            with self._unless_fenced(state):
                found = self._passing.step(batch.records, self._store.read_state(state), self._in_parts(batch.records))
            folded = replace(found, outgoing=[*batch.outgoing, *found.outgoing])
        self._sync_sources()
        frontier = self._inputs.frontier(batch.places, batch.look)
        unchanged = batch.unchanging_us
        if not self.flow.retracts and not self._inputs.goes_back():
            unchanged = self.spec.horizon.unchanged_us(self._inputs.reach_us(batch.places, batch.look.ends))
        closed = self.spec.horizon.final_us(frontier)
        if close:
            last = self._store.last_window_end(self.flow.name)
            closed = last if closed is None else max(closed, last or closed)
        changes = None
        if self._fold is not None:
            with self._unless_fenced(state):
                known = self._store.read_state(state)
                now = Bounds(frontier, closed, unchanged)
                before = Bounds(state.frontier_us, state.closed_us, state.unchanged_us)
                watched = self._store.is_watched(self.flow.name)
                if batch.staged is None:
                    made = self._fold(batch.partials, known, now, before, watched=watched)
                else:
                    made = self._fold.of_staged(batch.staged, known, now, before, watched=watched)
            folded = PassedOn([*folded.outgoing, *made.outgoing], folded.ledger, made.writes)
            changes = made.changes
        outcome = Outcome(frontier, closed, unchanged, folded, changes)
        self._commit_outcome(state, batch, outcome, relayed)

    def _commit_meeting(self, meeting: MeetingFold, batch: Batch, close: bool) -> None:
        """The same where records of several inputs meet: the operator says how far what comes out is."""
        state, relayed = self.position, self._relay.done
        self._sync_sources()
        times = self._inputs.times(batch.places, batch.look, batch.unchanging_us, batch.reaches_us)
        with self._unless_fenced(state):
            known = self._readable_state(sum(each.num_rows for each in (batch.met or {}).values()))
            made = meeting.step(batch.met or {}, known, times, state, self._clock_us(), closes=close)
        out = PassedOn([*batch.outgoing, *made.outgoing], (*batch.ledger, *made.ledger), made.writes)
        outcome = Outcome(made.frontier_us, made.closed_us, made.unchanged_us, out, made.changes)
        self._commit_outcome(state, batch, outcome, relayed)

    def _commit_outcome(self, state: FlowState, batch: Batch, outcome: Outcome, relayed: int) -> None:
        """All of the batch in one transaction. `relayed`: the outbox had arrived up to there before it was folded."""
        commit = Commit(
            sequence=state.sequence,
            places=batch.places,
            topic_ids={topic.name: topic.topic_id for topic in self.flow.topics},
            begins=batch.begins,
            frontier_us=outcome.frontier_us,
            closed_us=outcome.closed_us,
            unchanged_us=outcome.unchanged_us,
            changes=outcome.changes,
            ledger=outcome.out.ledger,
            outgoing=outcome.out.outgoing if self._until is None else (),
            writes=outcome.out.writes,
            buried=batch.buried,
            read_marks=batch.read_marks,
            relayed=relayed,
            written=self._relay.written,
        )
        self._state = self._store.commit(state, commit)
        self._noted = relayed

    def _sync_sources(self) -> None:
        """A view must not know what a power loss could take from the log."""
        if any(topic.settings.durability == "os" for topic in self.flow.topics):
            self._log.sync()

    @contextmanager
    def _unless_fenced(self, state: FlowState) -> Iterator[None]:
        """An error in the block is FlowFenced if the flow was taken meanwhile: what was read may be another's, or gone.
        Whoever starts again after any other error takes the flow back."""
        try:
            yield
        except Exception:
            self._store.refuse_fenced(state)
            raise

    def _readable_state(self, records: int) -> State:
        """The flow's state, of which a step of so many records may read many keys."""
        state, query = self._store.read_state(self.position), self._query
        if records < reading_in_parts.KEYS_MIN or not self._workers_reach_it():
            return state
        opener = self._store.state_opener(self.position)
        return reading_in_parts.ReadInParts(state, self.spec.tables, opener, query.spark, query.spark_use)

    def _in_parts(self, records: pa.Table) -> InParts | None:
        """How Spark's workers make the step over these records, if they are many."""
        if records.num_rows < parted.ROWS_MIN or not self._workers_reach_it():
            return None
        query, opener = self._query, self._store.state_opener(self.position)
        return lambda operator, rows: parted.step_in_parts(operator, rows, opener, query.spark, query.spark_use)

    def _workers_reach_it(self) -> bool:
        return session.workers_reach(self._query.spark, shared=self._store.leases is not None)

    def close_windows(self, *, all_of_them: bool = False) -> bool:
        """Commits a new frontier when time alone has closed a window; whether it did."""
        look = self._look(marks=True)
        places = copied(self._places.now)
        if self._meeting is not None:
            marks = self._places.raised(places, look.ends)
            batch = Batch(places, look, 0, reaches_us=self._places.marked_us, read_marks=marks)
            return self._close_meeting(self._meeting, batch, all_of_them)
        if not all_of_them and not self._closes_more(self._inputs.frontier(self._places.now, look)):
            return False
        marks = self._places.raised(places, look.ends)
        self._commit(Batch(places, look, 0, read_marks=marks), close=all_of_them)
        self._places.now = places
        self._send_out()
        self.note_relayed()
        return True

    def _close_meeting(self, meeting: MeetingFold, batch: Batch, all_of_them: bool) -> bool:
        """The same where records of several inputs meet: rows without a match, and rows that become final."""
        times = self._inputs.times(batch.places, batch.look, batch.unchanging_us, batch.reaches_us)
        if not all_of_them:
            state = self._store.read_state(self.position)
            does, frontier_us = meeting.when_quiet(times, state, self.position)
            if not does and not self._closes_more(frontier_us):
                return False
        self._commit(batch, close=all_of_them)
        self._places.now = copied(batch.places)
        self._send_out()
        self.note_relayed()
        return True

    def _closes_more(self, frontier_us: int | None) -> bool:
        """Whether that closes a window, here or in flows that read what this one writes. Those that have been told, and
        have not read it, are not told again."""
        told_us = None if self._is_unsettled() else self.position.frontier_us
        if frontier_us is None or (told_us is not None and frontier_us <= told_us):
            return False
        if told_us is not None and self._store.closes(self.flow.name, told_us):
            return False
        return self._store.closes(self.flow.name, frontier_us)

    def _is_unsettled(self) -> bool:
        """Whether those who read the topic that it writes do not know that all of it has arrived."""
        return self.flow.target is not None and not self.flow.feeds and self._relay.done > self._noted

    def closed_by_log_us(self) -> int | None:
        """Windows that end by then are final by what was read alone, without silence and without other flows."""
        look = Look(self._inputs.ends(self._places.now), marks={})
        return self.spec.horizon.final_us(self._inputs.frontier(self._places.now, look))

    # -- many batches ------------------------------------------------------------------------------

    def drain(self, batch_rows: int | None = None, asked_us: int | None = None) -> int:
        """Everything there is, the next batch computed while the last is committed. Silence counts up to `asked_us`:
        that Spark takes long to start makes nobody quiet."""
        total, self.asked_us = 0, asked_us
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
