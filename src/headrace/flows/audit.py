"""Is a view what it should be? The same query once more, as a batch over the log from where the view began up to where
it is, into a store of its own; then row by row and window by window. Owns the comparison, and what can be compared when
retention has deleted records the view was made of; writes nothing to log or views."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.durations import INSTANT_MIN_US, from_us
from headrace.errors import FlowChanged, TopicReplaced
from headrace.flows.compiler.own_check import same
from headrace.flows.loop import FlowLoop
from headrace.flows.query import FlowQuery
from headrace.flows.reading.reached import remembering
from headrace.views.contract import FlowState, Place, ViewSpec
from headrace.views.open import open_store, open_views
from headrace.views.reading import LEDGER_COLUMNS, Moment

if TYPE_CHECKING:
    from headrace.flows.flow import Flow
    from headrace.log.contract import Log, Offsets, Topic
    from headrace.places import Home

SHOWN = 100
"""So many differences of a view are told, the rest counted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`stored` is what the view has, `expected` what the log says; None where there is no such row."""

    view: str
    row: str
    column: str
    stored: Any
    expected: Any


@dataclass(frozen=True, slots=True)
class Gone:
    """Offsets [start, stop) of a partition that a view was made of, and where the log has not all any more: `why` says
    who took it. Windows that begin at `compared_from` or later have no record of them, and are compared; None: nothing
    is."""

    view: str
    topic: str
    partition: int
    start: int
    stop: int
    compared_from: datetime | None
    why: str = "retention has deleted them"

    def __str__(self) -> str:
        if self.compared_from is None:
            what = "it cannot be recomputed"
        else:
            what = f"windows that begin before {self.compared_from.isoformat()} cannot be recomputed"
        return (
            f"view {self.view!r} was made of {self.topic}/{self.partition} offsets {self.start}..{self.stop}, and "
            f"{self.why}: {what}."
        )


@dataclass(slots=True)
class Audited:
    """`rows` were recomputed and compared; `gone` says what could not be."""

    views: int = 0
    rows: int = 0
    found: int = 0
    differences: list[Difference] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no row differs."""
        return self.found == 0


def audit(flows: list[FlowQuery], log: Log, home: Home) -> Audited:
    """Recomputes every view that has been run; FlowChanged if by another flow, for then nothing could be compared."""
    out = Audited()
    real = open_views(home.views)
    made = {spec.name: spec for spec in real.specs()}
    written = {topic for spec in made.values() for topic in spec.writes}
    for query in flows:
        flow = query.compiled.flow
        if flow.target is not None or flow.name not in real.names():
            continue
        if changes := made[flow.name].changes(query.compiled.spec):
            raise FlowChanged(flow=flow.name, changes=changes, parent=flow.parent)
        stored = real.moment(flow.name)
        state = stored.state
        _refuse_replaced(flow, state)
        gone = gone_of(flow, state)
        out.gone += gone
        out.views += 1
        compared = Compared.of(stored.spec, state, gone)
        if compared is None:
            continue
        with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder, open_store(folder) as store:
            marks = real.read_marks(flow.name) if any(map(remembering, flow.topics)) else ()
            until = replace(state, buried=real.buried(flow.name), read_marks=marks)
            loop = FlowLoop(query, log=log, store=store, until=until, scratch=home.directory)
            loop.begin()
            loop.drain()
            fresh = open_views(folder).moment(flow.name)
            closed = _when_closed(loop, folder) if flow.meets is not None else None
            compare(out, stored, fresh, compared, closed)
            if flow.marked or not {topic.name for topic in flow.topics} & written:  # else the writers say what is final
                _compare_final(out, stored, compared, loop.closed_by_log_us())
    return out


def _when_closed(loop: FlowLoop, folder: str) -> Moment:
    """The view as if its streams had ended: with a row for each record that is without a match so far."""
    loop.close_windows(all_of_them=True)
    return open_views(folder).moment(loop.flow.name)


def _refuse_replaced(flow: Flow, state: FlowState) -> None:
    for topic in flow.topics:
        if (known := state.topic_ids.get(topic.name, topic.topic_id)) != topic.topic_id:
            raise TopicReplaced(topic=topic.name, topic_id=known)


def gone_of(flow: Flow, state: FlowState) -> list[Gone]:
    """What the view was made of and is not in the log any more."""
    out = []
    for topic in flow.topics:
        ends = topic.ends()
        for partition, place in sorted(state.places.get(topic.name, {}).items()):
            begin = state.begins.get(topic.name, {}).get(partition, Place(0, None)).offset
            end = ends[partition]
            stop = min(end.earliest, place.offset)
            if begin < stop:
                since = (
                    _none_of_them_after(topic, partition, end)
                    if flow.window and not flow.own_progress and not flow.lives
                    else None
                )
                out.append(Gone(flow.name, topic.name, partition, begin, stop, since))
            if _has_holes(topic, partition, max(begin, end.earliest), place.offset):
                why = "some of them were erased or compacted since"
                out.append(Gone(flow.name, topic.name, partition, max(begin, end.earliest), place.offset, None, why))
    return out


def _has_holes(topic: Topic, partition: int, start: int, stop: int) -> bool:
    """Whether some of the records are there no more."""
    while start < stop:
        spans = topic.spans(partition, start)
        for span in spans:
            if not span.whole:
                return True
            start = span.stop
            if start >= stop:
                return False
        if not spans:
            return True
    return False


def _none_of_them_after(topic: Topic, partition: int, end: Offsets) -> datetime | None:
    """A time that no deleted record's is after: they arrived before what is left, and a record that is further ahead of
    its arrival than `max_ahead` is not in the topic."""
    arrived = end.arrived_at
    for batch in topic.batches(partition, end.earliest, end.next, ["_arrived_at"]):
        if batch.num_rows:
            arrived = batch.column(0)[0].as_py()
            break
    return None if arrived is None else arrived + timedelta(microseconds=topic.settings.max_ahead_us + 1)


@dataclass(frozen=True, slots=True)
class Compared:
    """What of a view is compared: windows that begin at `since` or later, and end after `kept_after`: what is older has
    gone by its own rule, and when is a matter of the clock. None: all."""

    spec: ViewSpec
    since: datetime | None = None
    kept_after: datetime | None = None

    @classmethod
    def of(cls, spec: ViewSpec, state: FlowState, gone: list[Gone]) -> Compared | None:
        """None: nothing can be compared."""
        times = [each.compared_from for each in gone if each.compared_from is not None]
        if len(times) < len(gone):
            return None
        kept = None
        if spec.keep_us is not None and state.frontier_us is not None:
            kept = from_us(max(state.frontier_us - spec.keep_us, INSTANT_MIN_US))
        since = max(times, default=None)
        if since is not None and spec.ending is not None:
            since += timedelta(microseconds=spec.ending.gap_us)
        return cls(spec, since, kept)

    def rows(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of the view's rows, or of its ledger's, that are compared. What belongs to no window may be of records
        that are gone."""
        if self.since is not None:
            found = [row for row in found if row["window_start"] is not None and row["window_start"] >= self.since]
        if self.kept_after is not None:
            ends = [(row, row.get("window_end", row.get("_updated_at"))) for row in found]
            found = [row for row, end in ends if end is None or end > self.kept_after]
        return found


def compare(out: Audited, real: Moment, fresh: Moment, compared: Compared, closed: Moment | None = None) -> None:
    """Notes in `out` where a view and its ledger differ from what they are in `fresh`. How far they were called final
    is not compared; nor, of what is made of changes, when it last changed: that may be by something that is gone.
    `closed`: rows that the view may have besides, because `drain(close=True)` published them."""
    spec = compared.spec
    key = [*spec.key, *([] if spec.shaped is None else [ROW])]
    not_compared = (*key, "_status", *(("_updated_at",) if spec.retracts else ()))
    columns = [column.name for column in spec.columns if column.name not in not_compared]
    stored, expected = (_by_key(_numbered(compared.rows(each.rows.to_pylist()), spec), key) for each in (real, fresh))
    if closed is not None:
        early = _by_key(compared.rows(closed.rows.to_pylist()), key)
        expected = {at: early[at] for at in stored.keys() & early.keys()} | expected
    out.rows += len(expected)
    _differ(out, spec.name, "", stored, expected, columns)
    stored, expected = (_by_key(compared.rows(each.ledger.to_pylist()), LEDGER_COLUMNS[:2]) for each in (real, fresh))
    _differ(out, spec.name, "ledger ", stored, expected, LEDGER_COLUMNS[2:])


def _compare_final(out: Audited, real: Moment, compared: Compared, closed_us: int | None) -> None:
    """Notes rows that are open, and that the log alone makes final; by silence, more may be."""
    if closed_us is None or compared.spec.window_us is None:
        return
    key = [*compared.spec.key, *([] if compared.spec.shaped is None else [ROW])]
    stored = _by_key(_numbered(compared.rows(real.rows.to_pylist()), compared.spec), key)
    closed = from_us(closed_us)
    final = {at: {"_status": "final"} for at, row in stored.items() if row["window_end"] <= closed}
    _differ(out, compared.spec.name, "", {at: stored[at] for at in final}, final, ["_status"])


ROW = "/row"


def _numbered(rows: list[dict[str, Any]], spec: ViewSpec) -> list[dict[str, Any]]:
    """Of one result a transform may have made several rows: they are compared in order. Doubles decide last: they may
    differ in their last digits."""
    if spec.shaped is None:
        return rows
    names = [*spec.key, *(each.name for each in spec.shaped if each.type not in ("double", "float"))]
    names += [each.name for each in spec.shaped if each.type in ("double", "float")]
    seen: Counter[tuple[Any, ...]] = Counter()
    out = []
    for row in sorted(rows, key=lambda row: [str(row[name]) for name in names]):
        place = tuple(_key(row[name]) for name in spec.key)
        out.append({**row, ROW: seen[place]})
        seen[place] += 1
    return out


Rows = dict[tuple[Any, ...], dict[str, Any]]


def _by_key(rows: list[dict[str, Any]], key: list[str]) -> Rows:
    return {tuple(_key(row[name]) for name in key): row for row in rows}


def _key(value: Any) -> Any:
    """NaN is a group like any other, and no key: it does not equal itself."""
    return str(value) if isinstance(value, float) and math.isnan(value) else value


def _differ(out: Audited, view: str, what: str, stored: Rows, expected: Rows, columns: list[str]) -> None:
    for key in sorted(stored.keys() | expected.keys(), key=str):
        left, right = stored.get(key), expected.get(key)
        name = what + (", ".join("null" if part is None else str(part) for part in key) or "the row")
        if left is None or right is None:
            _note(out, Difference(view, name, "", left and "there", right and "there"))
            continue
        for column in columns:
            if not same(left[column], right[column]):
                _note(out, Difference(view, name, column, left[column], right[column]))


def _note(out: Audited, difference: Difference) -> None:
    out.found += 1
    if len(out.differences) < SHOWN:
        out.differences.append(difference)


__all__ = ["Audited", "Compared", "Difference", "Gone", "audit", "compare", "gone_of"]
