"""A flow in which records of several inputs meet: what the operator's step says of a batch, as what is written to its
view, sent to topics, and told to those who watch. Knows no Spark, and keeps nothing."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import INSTANT_MAX_US, from_us
from headrace.errors import HeadraceError, OperatorFailed
from headrace.flows.flow import event_times
from headrace.flows.folding.shaping import first_line
from headrace.jsonrows import encode_row
from headrace.log.contract import DEAD_LETTERS, META
from headrace.operators.contract import REASON, InputTimes, Step
from headrace.operators.fold import difference
from headrace.operators.joins.changelog import LOADED
from headrace.operators.joins.interval_join import IntervalJoin
from headrace.operators.joins.meetings import TableJoining
from headrace.operators.joins.rows import FINAL_AT, ID, ROW_ID
from headrace.operators.joins.view_changes import changelog_of
from headrace.operators.patterns.match import MatchPattern
from headrace.operators.records import OP as CHANGE
from headrace.operators.result_rows import aligned, together
from headrace.operators.shaped import Shape
from headrace.operators.stored.rules import MatchRules
from headrace.schema import OP_COLUMN
from headrace.views.changes import as_fed, marked, with_mark
from headrace.views.contract import (
    AT,
    CORRECTIONS,
    OP,
    RESULTS,
    ROW,
    UPDATED_AT,
    WINDOW,
    WINDOWS_COUNTED,
    WINDOWS_MISSED,
    FlowSpec,
    FlowState,
    LedgerRow,
    Outgoing,
    State,
    Writes,
    feed_topic,
)
from headrace.views.values import INSTANT, arrow_type, cast_to

if TYPE_CHECKING:
    from headrace.flows.flow import Flow, Input

__all__ = ["MeetingFold", "Met"]

logger = logging.getLogger("headrace.flows")

AGAIN = "//"
"""Before the number of a row that a transform made of a joined one: the last record in its id may have one, too."""
FAN_OUT_ROWS, FAN_OUT = 100_000, 100
"""It is worth a warning if so many joined rows change at once, and for each change of a table so many."""


@dataclass(slots=True)
class Met:
    """What came of a batch. Rows whose `FINAL_AT` is at most `closed_us` are final."""

    writes: Writes
    frontier_us: int | None
    closed_us: int | None
    unchanged_us: int | None
    outgoing: list[Outgoing] = field(default_factory=list)
    ledger: tuple[LedgerRow, ...] = ()
    changes: Callable[[], pa.Table] | None = None


class MeetingFold:
    """`shape`: the transforms of joined rows, if there are some. `time`: the column by which those who read the topic
    that the rows go to know their time."""

    def __init__(self, flow: Flow, spec: FlowSpec, shape: Shape | None = None, time: str | None = None) -> None:
        assert flow.operator is not None and flow.meets is not None
        self._shape = shape
        self._flow, self._spec, self._step = flow, spec, flow.meets
        self._operator = copy.deepcopy(flow.operator)  # its own: it may remember rows of the state
        self._inputs = {each.id: each for each in flow.inputs}
        self._times = event_times(flow)
        own = flow.operator if isinstance(flow.operator, IntervalJoin | MatchPattern | MatchRules) else None
        self._joins_into_topic = own is not None and flow.target is not None
        self._time = time
        self._behind_us = 0 if own is None else own.behind_us(time)
        """How far that time may be before that of the operator's rows; None: any time."""

    # -- one step --------------------------------------------------------------------------------------

    def step(
        self,
        met: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],
        before: FlowState,
        now_us: int,
        *,
        closes: bool = False,
    ) -> Met:
        """`met`: by input, its records behind that state; `before`: the flow as its last commit left it. `closes`: as
        if every frontier were at the end of time: rows come that wait for that, and all are final; what comes later is
        judged as before."""
        if closes:
            times = {role: InputTimes(INSTANT_MAX_US, each.reach_us) for role, each in times.items()}
        try:
            step = self._operator.step(self._sides(met), state, times, changes=True)
        except (HeadraceError, OSError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            raise OperatorFailed(self._flow.name, str(self._step), why) from error
        ahead = self._ahead(step, times)
        changes = self._shown(step.changes)
        self._warn_of_fan_out(sum(each.num_rows for each in met.values()), changes.num_rows)
        if closes:
            ahead = InputTimes(before.frontier_us, before.unchanged_us)
            closed_us = _later(self._last_us(changes, state), before.closed_us)
        else:
            closed_us = _later(self._closed_us(times), before.closed_us)
        out = Met(
            step.writes,
            _later(ahead.frontier_us, before.frontier_us),
            closed_us,
            _later(ahead.reach_us, before.unchanged_us),
            ledger=step.ledger,
        )
        gone = step.missing + _not_counted(step.letters)
        if gone:  # they were counted when they came
            out.ledger = (*out.ledger, LedgerRow(None, None, on_time=-gone, dropped=step.missing))
        if self._spec.view is not None:
            self._keep(out, changes, state, before)
        self._send(out, step, changes, before)
        self._bury(out, step.letters, now_us)
        self._bury(out, step.refused, now_us)
        return out

    def _warn_of_fan_out(self, records: int, changed: int) -> None:
        """A row of a table that many are joined with changes all of these, in one commit."""
        if isinstance(self._step, TableJoining) and changed >= max(FAN_OUT_ROWS, FAN_OUT * records):
            said = "flow %s: %s changes of its tables made %s changes of joined rows, in one commit"
            logger.warning(said, self._flow.name, f"{records:,}", f"{changed:,}")

    def _ahead(self, step: Step, times: Mapping[str, InputTimes]) -> InputTimes:
        """How far those are who read what comes out, by the time that it has for them."""
        found = step.ahead or self._operator.ahead(times)
        if not self._joins_into_topic or not self._behind_us:
            return found
        less = (None if us is None else us - self._behind_us for us in (found.frontier_us, found.reach_us))
        return InputTimes(*less)

    def _last_us(self, changes: pa.Table, state: State) -> int | None:
        """When the last row of the view is final."""
        if self._spec.view is None or not self._spec.view.final_by_row:
            return None
        comes = changes.filter(pc.equal(changes[CHANGE], "+"))
        last = pc.max(comes[FINAL_AT].cast(pa.int64())).as_py() if comes.num_rows else None
        return _later(last, state.last_us(RESULTS))

    def _closed_us(self, times: Mapping[str, InputTimes]) -> int | None:
        final_us = self._step.final_us(times)
        return None if final_us is None else final_us - 1

    def when_quiet(self, times: Mapping[str, InputTimes], state: State, before: FlowState) -> tuple[bool, int | None]:
        """Whether a step without records does anything: a row comes, goes, or becomes final; and how far what comes
        out is then. A step is pure: it is made, and not committed."""
        step = self._operator.step({}, state, times, changes=True)
        written = any(rows.num_rows for rows in (*step.writes.puts.values(), *step.writes.deletes.values()))
        told = any(rows is not None and rows.num_rows for rows in (step.changes, step.letters))
        frontier_us = _later(self._ahead(step, times).frontier_us, before.frontier_us)
        closed_us, view = self._closed_us(times), self._spec.view
        closes = False
        if closed_us is not None and view is not None and view.final_by_row:
            closes = state.due(RESULTS, closed_us, 1, after_us=before.closed_us).num_rows > 0
        return written or told or step.missing > 0 or closes, frontier_us

    # -- what goes in ----------------------------------------------------------------------------------

    def _sides(self, met: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """By side, the records with their ids."""
        out: dict[str, list[pa.Table]] = {}
        columns = {side.id: side.columns for side in self._operator.inputs}
        for name, records in met.items():
            read = self._inputs[name]
            if records.num_rows:
                if read.changes and read.role in self._step.first:
                    records = _with_id(read, changelog_of(records))
                else:
                    records = self._as_changes(read, records) if read.changes else _with_id(read, records)
                out.setdefault(read.role, []).append(records)
        made = {role: pa.concat_tables(some, promote_options="default") for role, some in out.items()}
        for role, records in made.items():
            for each in columns[role]:
                at = records.column_names.index(each.name)
                records = records.set_column(at, each.name, cast_to(records[each.name], arrow_type(each.type)))
            if OP_COLUMN in records.column_names:  # whoever wrote a table's topic may have left it out
                known = pc.is_in(records[OP_COLUMN], pa.array(["delete", LOADED]))
                ops = pc.if_else(known, records[OP_COLUMN], "upsert")
                records = records.set_column(records.column_names.index(OP_COLUMN), OP_COLUMN, ops)
            made[role] = records.combine_chunks()
        return made

    def _as_changes(self, read: Input, records: pa.Table) -> pa.Table:
        """Changes in the order of the log, as operators read them. A row of a view is never late: its progress is its
        time."""
        records = records.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
        ids = _numbered(records[ROW].combine_chunks(), records, AGAIN)
        records = records.append_column(CHANGE, records[OP]).append_column(ID, ids)
        time = self._times[read.role]
        if read.rows:
            own = records[time] if time in records.column_names else pa.nulls(records.num_rows, INSTANT)
            records = records.set_column(records.column_names.index("_progress"), "_progress", own)
        return records

    # -- what comes out --------------------------------------------------------------------------------

    def _shown(self, changes: pa.Table | None) -> pa.Table:
        """Changes as the view has rows: the id is a column that readers see."""
        if changes is None:
            return pa.table({CHANGE: pa.nulls(0, pa.string())})
        rows = changes.rename_columns([ROW_ID.name if name == ID else name for name in changes.column_names])
        return rows if self._shape is None or not rows.num_rows else self._shaped(self._shape, rows)

    def _shaped(self, shape: Shape, rows: pa.Table) -> pa.Table:
        """What transforms make of joined rows. Of several rows that they make of one, each but the first gets a number
        behind its id: the same of a row that goes as of that row when it came."""
        key = [ROW_ID.name, CHANGE]
        columns = [each.name for each in self._operator.output.columns or ()]
        own = [name for name in rows.column_names if name not in columns]
        made = shape(rows.select([*key, *columns]))
        at = aligned(made, rows, key)
        made = made.append_column("/at", pa.array(at))
        for name in own:
            if name not in key:
                made = made.append_column(name, rows[name].take(pa.array(at)))
        order = np.argsort(at, kind="stable")
        same = np.r_[False, at[order][1:] == at[order][:-1]]
        if same.any():
            place = np.arange(len(same))
            number = np.empty(len(same), np.int64)
            number[order] = place - np.maximum.accumulate(np.where(same, 0, place))
            texts = pc.binary_join_element_wise(made[ROW_ID.name], pa.array(number).cast(pa.string()), AGAIN)
            ids = pc.if_else(pa.array(number == 0), made[ROW_ID.name], texts)
            made = made.set_column(made.column_names.index(ROW_ID.name), ROW_ID.name, ids)
        return made.take(pa.array(order)).drop_columns(["/at"])

    def _keep(self, out: Met, changes: pa.Table, state: State, before: FlowState) -> None:
        """The rows of the view; and what changes for those who watch it."""
        view = self._spec.view
        assert view is not None
        if self._operator.output.table is None and changes.num_rows:
            key = [each.name for each in view.groups]
            (table,) = (each for each in self._spec.tables if each.name == RESULTS)
            comes = np.asarray(pc.equal(changes[CHANGE].combine_chunks(), "+"))
            rows, gone = changes.filter(pa.array(comes)), changes.filter(pa.array(~comes)).select(key)
            gone = gone.filter(pa.array(aligned(gone, rows, key) < 0)) if rows.num_rows and gone.num_rows else gone
            puts = {**out.writes.puts, **({RESULTS: rows.select(table.names)} if rows.num_rows else {})}
            deletes = {**out.writes.deletes, **({RESULTS: gone} if gone.num_rows else {})}
            out.writes = Writes(puts, out.writes.adds, deletes, out.writes.drops)
        for emit in self._spec.feeds:
            if changes.num_rows:
                rows = marked(view, as_fed(view, changes), None)
                out.outgoing.append(Outgoing(feed_topic(self._spec.name, emit), rows))
        out.changes = lambda: self._seen(changes, state, before.closed_us, out.closed_us)

    def _seen(self, changes: pa.Table, state: State, closed_us: int | None, closes_us: int | None) -> pa.Table:
        """'-' a row as readers saw it, '+' as they see it; rows that only become final, too."""
        view = self._spec.view
        assert view is not None
        (table,) = (each for each in self._spec.tables if each.name == RESULTS)
        names = [name for name in table.names if not name.startswith("/") or name == FINAL_AT]
        schema = pa.schema([(each.name, arrow_type(each.type)) for each in (*table.key, *table.columns)])
        none = pa.schema([schema.field(name) for name in names]).empty_table()
        raw = (
            changes.select([CHANGE, *names])
            if changes.num_rows
            else none.add_column(0, CHANGE, pa.nulls(0, pa.string()))
        )
        if view.final_by_row and closes_us is not None and (closed_us is None or closes_us > closed_us):
            closing = state.due(RESULTS, closes_us, after_us=closed_us).select(names)
            key = [each.name for each in view.groups]
            if raw.num_rows and closing.num_rows:
                closing = closing.filter(pa.array(aligned(closing, raw, key) < 0))
            both = (closing.add_column(0, CHANGE, pa.repeat(sign, closing.num_rows)) for sign in ("-", "+"))
            raw = together([raw, *(some.cast(raw.schema) for some in both)])
        return difference(view, raw, closed_us, closes_us)

    def _send(self, out: Met, step: Step, changes: pa.Table, before: FlowState) -> None:
        """To the flow that it helps, with a mark behind it; or to a topic."""
        target = self._flow.target
        columns = [each.name for each in self._operator.output.columns or ()]
        if target is not None and self._flow.parent is None and changes.num_rows:
            op = [] if self._flow.sink is not None and self._flow.sink.plain else [CHANGE]
            progress = self._written_progress(changes, before)
            rows = changes.select([*op, *columns]).append_column("_progress", progress)
            out.outgoing.append(Outgoing(target, rows))
        elif target is not None and self._flow.parent is not None:
            moved = out.frontier_us is not None and out.frontier_us != before.frontier_us
            if changes.num_rows or moved:
                marks = None if out.frontier_us is None else (out.frontier_us, out.unchanged_us)
                out.outgoing.append(Outgoing(target, with_mark(self._fed(changes, columns), marks)))
        if self._flow.late.dropped_to is not None and step.dropped is not None and step.dropped.num_rows:
            out.outgoing.append(Outgoing(self._flow.late.dropped_to, self._too_late(step.dropped)))

    def _written_progress(self, changes: pa.Table, before: FlowState) -> pa.ChunkedArray | pa.Array:
        """Of rows in a topic of a user's own. None that comes after a commit has a time before that commit's reach. So
        the reach of the commit before is the progress of these rows, and none of them is late."""
        if not self._joins_into_topic:
            return changes["_progress"]
        known = None if self._behind_us is None or before.unchanged_us is None else from_us(before.unchanged_us)
        return pa.repeat(pa.scalar(known, INSTANT), changes.num_rows)

    def _fed(self, changes: pa.Table, columns: list[str]) -> pa.Table:
        """As changes of records are for the flow behind: with the progress by which it judges them."""
        if not changes.num_rows:
            kinds = {each.name: arrow_type(each.type) for each in self._operator.output.columns or ()}
            own = {OP: pa.string(), AT: INSTANT, CORRECTIONS: pa.int64(), UPDATED_AT: INSTANT, ROW: pa.string()}
            own["_progress"] = INSTANT
            return pa.schema([(name, kind) for name, kind in {**kinds, **own}.items()]).empty_table()
        own = {
            OP: changes[CHANGE],
            AT: pa.nulls(changes.num_rows, INSTANT),
            CORRECTIONS: changes["_corrections"],
            UPDATED_AT: changes["_updated_at"],
            ROW: changes[ROW_ID.name],
            "_progress": changes[self._time] if self._joins_into_topic and self._time else changes["_progress"],
        }
        return pa.table({**{name: changes[name] for name in columns}, **own})

    def _too_late(self, rows: pa.Table) -> pa.Table:
        """With their arrival in place of a window: they are in none."""
        for name in WINDOW:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, INSTANT))
        for name, count in (WINDOWS_MISSED, 1), (WINDOWS_COUNTED, 0):
            rows = rows.append_column(name, pa.array(np.full(rows.num_rows, count)))
        return rows.select([name for name in rows.column_names if name not in META and not name.startswith("/")])

    def _bury(self, out: Met, letters: pa.Table | None, now_us: int) -> None:
        """Records for which nothing was found, with which something was given up, or that mean nothing, by topic."""
        if letters is None or not letters.num_rows:
            return
        topics = {topic.name: topic for topic in self._flow.topics}
        rows: dict[str, list[dict[str, object]]] = {}
        own = {*META, ID, REASON}
        for row in letters.to_pylist():
            topic = topics[row[ID].partition("/")[0].partition("#")[0]]
            value = {name: cell for name, cell in row.items() if name not in own}
            why = value.pop("/error", None)
            rows.setdefault(topic.name, []).append(
                {
                    "reason": "invalid" if why is not None else "given_up" if REASON in row else "missing",
                    "error": why or row.get(REASON) or f"nothing was found for it: {self._step}",
                    "topic": topic.name,
                    "topic_id": topic.topic_id,
                    "partition": row["_partition"],
                    "offset": row["_offset"],
                    "source": f"flow {self._flow.name}",
                    "died_at": from_us(now_us),
                    "row": encode_row(value).decode(),
                }
            )
        out.outgoing += [Outgoing(DEAD_LETTERS, pa.Table.from_pylist(some)) for some in rows.values()]


def _not_counted(letters: pa.Table | None) -> int:
    return 0 if letters is None or REASON in letters.column_names else letters.num_rows


def _later(one_us: int | None, other_us: int | None) -> int | None:
    """Neither frontier nor reach moves back."""
    return max((us for us in (one_us, other_us) if us is not None), default=None)


def _with_id(read: Input, records: pa.Table) -> pa.Table:
    """Records with ids that sort by position: topic, partition, offset."""
    partition, offset = (records[name].combine_chunks() for name in ("_partition", "_offset"))
    padded = pc.utf8_lpad(offset.cast(pa.string()), 16, "0")
    of = read.id.partition(":")[2]  # the topic; of a topic that a side reads twice, with a number
    ids = pc.binary_join_element_wise(of, partition.cast(pa.string()), padded, "/")
    return records.append_column(ID, _numbered(ids, records))


def _numbered(ids: pa.Array, records: pa.Table, mark: str = "/") -> pa.Array:
    """The ids; of several rows that a transform made of one record, each but the first with a number behind it."""
    partition, offset = (records[name].combine_chunks() for name in ("_partition", "_offset"))
    places = np.stack((partition.to_numpy().astype(np.int64), offset.to_numpy()))
    (part, at), (next_part, next_at) = places[:, :-1], places[:, 1:]
    if ((next_part > part) | ((next_part == part) & (next_at > at))).all():  # as they are read: each comes once
        return ids
    order = np.lexsort((np.arange(records.num_rows), places[1], places[0]))
    same = np.r_[False, (places[:, order][:, 1:] == places[:, order][:, :-1]).all(axis=0)]
    if same.any():
        at = np.arange(len(same))
        number = np.empty(len(same), np.int64)
        number[order] = at - np.maximum.accumulate(np.where(same, 0, at))
        texts = pc.binary_join_element_wise(ids, pa.array(number).cast(pa.string()), mark)
        ids = pc.if_else(pa.array(number == 0), ids, texts)
    return ids
