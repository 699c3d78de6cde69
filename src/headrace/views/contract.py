"""What a view store is: the values that go in and out of it, and what it promises. Owns no behaviour.

A flow is one line of work: topics in, one view or topic out. The store keeps, for each, an epoch (who may write), a
sequence (how many commits), positions, frontier, ledger, outbox and the view's rows, and changes them together:

    flow = store.begin(spec)                                  # a new epoch: whoever had it before is fenced
    store.commit(flow, Commit(...))                           # all of it, and sequence + 1; or none of it

After a crash the store is as some commit left it. A commit whose outcome is unknown is looked up by its sequence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from headrace.aggregates import WIDE as WIDE
from headrace.aggregates import Rule
from headrace.aggregates import whole_of as whole_of
from headrace.durations import format_duration
from headrace.errors import IncompatibleSchema, InvalidArgument
from headrace.horizon import Horizon
from headrace.position import Position
from headrace.views.keyed import Column as Column
from headrace.views.keyed import Staged as Staged
from headrace.views.keyed import State as State
from headrace.views.keyed import TableSpec as TableSpec
from headrace.views.keyed import Writes as Writes
from headrace.views.owner import Leases
from headrace.windows import Ending, Kind, ending

if TYPE_CHECKING:
    import pyarrow as pa

ARRIVED = "_arrived_at"
WINDOW = ("window_start", "window_end")
WINDOWS_MISSED, WINDOWS_COUNTED = "windows_missed", "windows_counted"
"""Of a dropped record: of how many windows it is no part, because it came too late, and of how many it is."""
COUNTS_FROM, ON_TIME_FROM = "/counts_from", "/on_time_from"
TAIL = ("_status", "_corrections", "_updated_at")
"""The columns every view has: a windowed one begins with `WINDOW`, all end with `TAIL`."""

Emit = Literal["updates", "final"]
Gaps = Literal["null", "zero", "previous"]

OP, AT, CORRECTIONS, UPDATED_AT, ROW = CHANGE = (
    "change__op",
    "change__at",
    "change__corrections",
    "change__updated_at",
    "change__row",
)
"""What says what became of a row of a view, and when: columns of a stream of its changes. `change__at` is the last
instant of the row's window: what is made of changes has no other time. `change__updated_at` is the row's own arrival:
the largest of those of its records. `change__row` says which row it is: the '-' of a row has that of its '+'."""
MARK = ("change__closed", "change__reachable")
"""Of a record that is no change, `change__op` '.': windows that end by then are final, or can no longer change."""
RESULTS, SHAPED, HISTORY = "rows", "shaped", "history"
"""The tables of a view: its results, the rows that a transform made of them, and of a table what was there before,
which readers see as `NAME_history`. Others are the operator's own."""
DUE = "due/"
"""Tables whose names begin so have timers: their rows say when a step is due though no record comes."""
PARTIALS = f"{DUE}partials"
"""What each key of a pattern waits for: its partial match."""
BESIDE = {HISTORY: "history", PARTIALS: "partials"}
"""Tables of a view that readers see beside it, as `NAME_history`."""
FINAL_AT = "/final_at"
"""Of a row that has no window: it is final when the frontier has passed this time."""
RECORD = "/record"
"""The one result of a flow whose results are records."""
ROWS = "/rows"
"""How many rows a result is made of: with the last of them it goes."""
Which = Literal["next", "previous"]
VERSIONS: tuple[Which, ...] = ("next", "previous")
"""Versions of a view beside the one that is served: made anew, and the one served before."""


def version_name(view: str, which: Which) -> str:
    """What a version is called."""
    return f"{view}/{which}"


def is_version(name: str) -> bool:
    return "/" in name


def check_emit(emit: Emit) -> Emit:
    if emit not in ("updates", "final"):
        raise InvalidArgument("emit", emit, "must be 'updates' or 'final'")
    return emit


@dataclass(frozen=True, slots=True)
class SlotColumn:
    """A column of the state: see `aggregates.Slot`. The type of a `distinct` slot is that of its values, the type of a
    `counted` one a list of structs of value and count."""

    name: str
    type: str
    rule: Rule
    of: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """A column readers see: a slot, or the ratio of two."""

    name: str
    type: str
    slots: tuple[str, ...]
    unless: str = ""
    """Null, when that slot is 0: what was summed has all gone again."""
    widened: bool = False
    """Of a sum of whole numbers: one did not fit `type`, so readers see the column as `WIDE`."""


@dataclass(frozen=True, slots=True)
class Fill:
    """What readers see where a group has no records in a window: results that are null, or the values of the row
    before; or with "zero" 0 in `zeros`, and null in the others."""

    gaps: Gaps
    window: str
    """As it is written: `windows.parse`."""
    zeros: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """What a view's table is made of. `public`: readers may see it under its name; a flow into a topic has the state
    only."""

    name: str
    groups: tuple[Column, ...]
    slots: tuple[SlotColumn, ...]
    results: tuple[Result, ...]
    window_us: tuple[int, int] | None = None
    """Size and hop of fixed windows, size and step of cumulative ones; the gap of sessions and the size of sliding
    ones, and 0; of a calendar's zeros."""
    keep_us: int | None = None
    public: bool = True
    shaped: tuple[Column, ...] | None = None
    """What a transform makes of the results, besides window and groups: for each any number of rows. None: readers see
    the results themselves."""
    windows: Kind = "fixed"
    retracts: bool = False
    """Whether results can go again: they are made of another view's changes."""
    records: bool = False
    """Whether its one result, `RECORD`, is a record, and what is told of changes is that."""
    fill: Fill | None = None
    """Of windows that have no row; None: readers see the rows that are stored."""
    final_by_row: bool = False
    """Whether each row says when it is final, in a column `FINAL_AT`: rows of an operator, which have no windows."""

    @property
    def key(self) -> tuple[str, ...]:
        """What tells rows apart. The start tells windows apart, but for cumulative ones, which begin together."""
        window = () if self.window_us is None else WINDOW if self.windows == "cumulative" else WINDOW[:1]
        return (*window, *(column.name for column in self.groups))

    @property
    def ending(self) -> Ending | None:
        """What follows from a window's end, or from when a row says that it is final."""
        if self.final_by_row:
            return Ending(final_after_us=1)
        return None if self.window_us is None else ending(self.windows, self.window_us[0])

    @property
    def lives(self) -> bool:
        """Whether groups go when nothing has come for `keep_us`, since there are no windows to go by."""
        return self.keep_us is not None and self.window_us is None

    @property
    def places(self) -> list[Column]:
        """Which result it is: its window and its groups."""
        return [*(Column(name, "timestamp") for name in (WINDOW if self.window_us else ())), *self.groups]

    @property
    def result_columns(self) -> list[Column]:
        """What a result has, in order, on its way to a topic or a transform: there a sum that does not fit is null."""
        return [*self.places, *(Column(result.name, result.type) for result in self.results)]

    @property
    def columns(self) -> list[Column]:
        """What readers see, in order."""
        tail = [Column("_status", "string"), Column("_corrections", "bigint"), Column("_updated_at", "timestamp")]
        results = [Column(result.name, WIDE if result.widened else result.type) for result in self.results]
        return [*self.places, *(results if self.shaped is None else self.shaped), *tail]

    @property
    def whole_sums(self) -> list[Result]:
        """The results that are sums of whole numbers."""
        rules = {slot.name: slot.rule for slot in self.slots}
        return [each for each in self.results if len(each.slots) == 1 and rules[each.slots[0]] == "whole"]


def rows_view(name: str, key: Sequence[Column], columns: Sequence[Column], *, final: bool) -> ViewSpec:
    """A view whose rows are an operator's, as they are. `final`: rows say when they are final."""
    slots = tuple(SlotColumn(each.name, each.type, "latest") for each in columns)
    results = tuple(Result(each.name, each.type, (each.name,)) for each in columns)
    return ViewSpec(name, tuple(key), slots, results, final_by_row=final)


def rows_table(view: ViewSpec) -> TableSpec:
    """The table that has the rows of such a view."""
    final = (Column(FINAL_AT, "timestamp"),) if view.final_by_row else ()
    tail = (Column("_corrections", "bigint"), Column("_updated_at", "timestamp"))
    columns = tuple(Column(slot.name, slot.type) for slot in view.slots)
    return TableSpec(RESULTS, view.groups, (*columns, *final, *tail), FINAL_AT if final else None)


def widened(view: ViewSpec, results: Collection[str]) -> ViewSpec:
    """The view, of which these sums have not fit their type."""
    made = tuple(replace(each, widened=True) if each.name in results else each for each in view.results)
    return replace(view, results=made)


def change_columns(view: ViewSpec) -> list[Column]:
    """What a change of the view has: whether the row came or went, and the row, without what only readers see."""
    return [Column("op", "string"), *view.result_columns]


def feed_topic(view: str, emit: Emit) -> str:
    """The topic with the view's changes, for flows over them."""
    return f"__{'changes' if emit == 'updates' else 'finals'}.{view}"


def feed_columns(view: ViewSpec) -> list[Column]:
    """What such a change has, besides what marks one: the result, and what other views can merge; or what a transform
    made of the result."""
    if view.shaped is not None:
        return [*view.places, *view.shaped]
    shown = view.result_columns
    sums = [Column(whole_of(result.name), WIDE) for result in view.whole_sums]
    names = {each.name for each in shown}  # a user's column may be called like a slot
    kept = [Column(slot.name, slot.type) for slot in view.slots if is_fed(slot.name) and slot.name not in names]
    return [*shown, *sums, *kept]


def wholes_in(columns: Collection[str]) -> list[str]:
    """Those of the columns of a view's changes that are there for sums alone."""
    return [name for name in map(whole_of, columns) if name in columns]


def is_fed(slot: str) -> bool:
    return slot.endswith(("__state", "__sum", "__count"))


def fed_in(columns: Collection[str]) -> list[str]:
    """Those of the columns of a view's changes that are there for other views to merge: the state of a result, which is
    one column, or a sum and a count."""
    out: list[str] = []
    for name in columns:
        for parts in (("__state",), ("__sum", "__count")):
            state = [name + part for part in parts]
            out += state if all(each in columns for each in state) else []
    return out


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """What a flow is, as far as its stored state depends on it. Kept as JSON, and compared before a start."""

    name: str
    app: str
    sources: tuple[str, ...]
    view: ViewSpec | None
    window: str = ""
    aggregates: Mapping[str, str] = field(default_factory=dict, hash=False)
    """name -> text, e.g. "views" -> "count()"."""
    grace_us: int = 0
    within_us: int = 0
    time: str | None = None
    target: str | None = None
    emit: Emit | None = None
    feeds: tuple[Emit, ...] = ()
    """Which of the view's changes flows of this home read: `feed_topic`."""
    operator: str = ""
    """What records go through, as it is written."""
    idle_us: int = 30_000_000
    absent_us: int = 3_600_000_000
    """When silence moves the frontier: that says nothing of the rows, and may change freely."""
    dropped_to: str | None = None
    parent: str | None = None
    """Of a helper, which no user has named: the flow that it works for, directly or through other helpers."""
    tables: tuple[TableSpec, ...] = ()
    """What its operator keeps: see `views.keyed`."""
    sides: tuple[tuple[str, str], ...] = ()
    """Of a table or a join: the operator's inputs, each with a topic that it reads. Their rows are counted."""

    @property
    def horizon(self) -> Horizon:
        """What its windows make of how far time has come."""
        ending = None if self.view is None else self.view.ending
        if ending is not None and self.time == ARRIVED:  # nothing is late: what is final does not change
            ending = ending._replace(unchanged_after_us=ending.final_after_us)
        return Horizon(ending, self.grace_us, self.within_us)

    @property
    def is_table(self) -> bool:
        """Whether its view is a table of the program's, with rows that are put and deleted."""
        return self.operator.startswith("table(") and self.parent is None

    @property
    def history(self) -> str:
        """Which rows of a table are kept: "latest", "versions" or "bitemporal"."""
        kept = [each.names for each in self.tables if each.name == HISTORY]
        return "latest" if not kept else "bitemporal" if "known_from" in kept[0] else "versions"

    @property
    def beside(self) -> tuple[str, ...]:
        """The names under which readers see what it keeps beside its view's rows."""
        return tuple(f"{self.name}_{BESIDE[each.name]}" for each in self.tables if each.name in BESIDE)

    @property
    def writes(self) -> frozenset[str]:
        """The topics it writes to."""
        given = (self.target, self.dropped_to, *(feed_topic(self.name, emit) for emit in self.feeds))
        return frozenset(topic for topic in given if topic is not None)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> FlowSpec:
        view = tree["view"]
        if view is not None:
            shaped, fill = view.get("shaped"), view.get("fill")
            view = ViewSpec(
                **{
                    **view,
                    "groups": tuple(Column(**each) for each in view["groups"]),
                    "slots": tuple(SlotColumn(**each) for each in view["slots"]),
                    "results": tuple(Result(**{**each, "slots": tuple(each["slots"])}) for each in view["results"]),
                    "window_us": None if view["window_us"] is None else tuple(view["window_us"]),
                    "shaped": None if shaped is None else tuple(Column(**each) for each in shaped),
                    "fill": None if fill is None else Fill(**{**fill, "zeros": tuple(fill["zeros"])}),
                }
            )
        made = {"view": view, "sources": tuple(tree["sources"]), "feeds": tuple(tree.get("feeds", ()))}
        made["sides"] = tuple((side, topic) for side, topic in tree.get("sides", ()))
        return cls(**{**tree, **made, "tables": tuple(map(TableSpec.from_json, tree.get("tables", ())))})

    def changes(self, new: FlowSpec) -> list[str]:
        """What is different in `new`, each in a few words. The order of sources and of results, and how long rows are
        kept, may change freely, and records may have columns more, or wider ones. But rows that can go again, and that
        were kept for a shorter time, would come back in part; and where groups go, what one is depends on it."""
        was, now = self._said(), new._said()
        said = [f"{name}: {was[name]} became {now[name]}" for name in was if was[name] != now[name]]
        for name in self.aggregates.keys() | new.aggregates.keys():
            before, after = self.aggregates.get(name), new.aggregates.get(name)
            if before is None:
                said.append(f"aggregate {name!r} was added")
            elif after is None:
                said.append(f"aggregate {name!r} was removed")
            elif before != after:
                said.append(f"aggregate {name!r}: {before} became {after}")
            elif self._types(name) != new._types(name) and not self._records_grew(new):
                said.append(f"aggregate {name!r}: its type {self._types(name)} became {new._types(name)}")
        passes_on = (self.view is None and new.view is None) or (self.sides and new.sides)
        if passes_on and not self._fits_tables(new):
            said.append(f"what is kept: {_tables_differ(self.tables, new.tables)}")
        if self.view is not None and new.view is not None:
            kept, now_kept = self.view.keep_us, new.view.keep_us
            longer = kept is not None and (now_kept is None or now_kept > kept)
            groups_go = self.view.lives or new.view.lives
            if (self.view.retracts and longer) or (groups_go and kept != now_kept):
                texts = ["for ever" if us is None else repr(format_duration(us)) for us in (kept, now_kept)]
                said.append(f"keep: {texts[0]} became {texts[1]}")
        return sorted(said)

    def _records_grew(self, new: FlowSpec) -> bool:
        """Whether both keep records, and those of before can be read as those to come."""
        from headrace.schema import evolve, parse_ddl

        kept = [
            parse_ddl(f"record {slot.type}")
            for view in (self.view, new.view)
            for slot in (view.slots if view is not None and view.records else ())
            if slot.name == RECORD
        ]
        try:
            return len(kept) == 2 and evolve(*kept) is not None
        except IncompatibleSchema:
            return False

    def _fits_tables(self, new: FlowSpec) -> bool:
        """Whether the tables of an operator are those it had, but for columns that have become wider."""
        from headrace.schema import evolve, parse_ddl

        was, now = ([(each.name, each.key, each.names, each.time) for each in spec.tables] for spec in (self, new))
        if was != now:
            return False
        old, wider = ([column.type for each in spec.tables for column in each.columns] for spec in (self, new))
        try:
            for types in zip(old, wider, strict=True):
                evolve(*(parse_ddl(f"x {each}") for each in types))
        except IncompatibleSchema:
            return False
        return True

    def _said(self) -> dict[str, str]:
        """What the stored state depends on, besides the aggregates, in the words it was written in."""
        groups = [f"{column.name} {column.type}" for column in self.view.groups] if self.view else []
        shaped = None if self.view is None else self.view.shaped
        made = None if shaped is None else ", ".join(f"{column.name} {column.type}" for column in shaped)
        late = f"correct(within={format_duration(self.within_us)!r})" if self.within_us else "drop()"
        return {
            "source": ", ".join(sorted(self.sources)),
            "read as": "changes" if self.view is not None and self.view.retracts else "records",
            "window": self.window or "none",
            "grace": repr(format_duration(self.grace_us)),
            "late": late,
            "time": self.time or "the topic's",
            "group_by": ", ".join(groups) or "nothing",
            "transform behind agg": "none" if made is None else f"to {made}" if made else "a filter",
            "written to": f"topic {self.target!r}" if self.target else "a view",
            "emit": self.emit or "none",
            "through": self.operator or "none",
        }

    def _types(self, aggregate: str) -> str:
        slots = self.view.slots if self.view else ()
        return ", ".join(slot.type for slot in slots if slot.name.split("__")[0] == aggregate)


def _tables_differ(was: Sequence[TableSpec], now: Sequence[TableSpec]) -> str:
    """Which columns came and went; if there are none, all that there are."""
    before, after = (
        dict.fromkeys(f"{column.name} {column.type}" for table in some for column in (*table.key, *table.columns))
        for some in (was, now)
    )
    came = [f"{column} came" for column in after if column not in before]
    went = [f"{column} went" for column in before if column not in after]
    return ", ".join([*went, *came]) or f"{_tables_text(was)} became {_tables_text(now)}"


def _tables_text(tables: Sequence[TableSpec]) -> str:
    each = [
        (table.name, [f"{column.name} {column.type}" for column in (*table.key, *table.columns)]) for table in tables
    ]
    return ", ".join(f"{name}({', '.join(columns)})" for name, columns in each) or "nothing"


@dataclass(frozen=True, slots=True)
class Place:
    """How far a flow has read one partition: the next offset, and event-time progress there (None: none yet).
    `arrived_us`: when the record before the offset arrived, by which its log is known again; None if that is gone."""

    offset: int
    progress_us: int | None
    arrived_us: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReadMark:
    """How far event time and arrival had come below an offset, of a topic whose progress is made by its readers. A
    store keeps one in so many records. `raised`: by the flow, so that reading the topic again does not give it."""

    topic: str
    partition: int
    offset: int
    progress_us: int | None
    arrived_us: int | None
    raised: bool = False


Places = Mapping[str, Mapping[int, Place]]
"""Topic -> partition -> place."""


@dataclass(frozen=True, slots=True)
class FlowState:
    """A flow as its last commit left it."""

    name: str
    epoch: int
    sequence: int
    places: dict[str, dict[int, Place]]
    topic_ids: dict[str, str]
    frontier_us: int | None
    begins: dict[str, dict[int, Place]] = field(default_factory=dict)
    """Where it began; partitions that were added later begin at 0."""
    born: str = ""
    """Another text each time the flow is made anew: what it sends then is no repetition of what it sent before."""
    line: str = ""
    """Another text each time those who watch must begin anew: of one line, changes follow each other by sequence."""
    buried: Mapping[str, Collection[tuple[int, int]]] = field(default_factory=dict)
    """Topic -> (partition, offset) of records that were given up; only for who asks (`Views.buried`)."""
    read_marks: Sequence[ReadMark] = ()
    """Only for who asks (`Views.read_marks`)."""
    held_seconds: float = field(default=0.0, compare=False)
    """How long the commit that made this state kept others from committing."""
    closed_us: int | None = None
    """Windows that end by then are final."""
    unchanged_us: int | None = None
    """Windows that end by then can no longer change."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What became of the records of a window, in one batch or in all; without a window: of the flow."""

    window_start_us: int | None
    window_end_us: int | None
    on_time: int = 0
    corrected: int = 0
    dropped: int = 0
    untimed: int = 0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Rows on their way to a topic, with the progress each carries in a column `_progress`. With a column `_partition`
    they go to that one, all of them."""

    target: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to where what flows write to a topic is complete; for those who have read all of it, if it is all `sent`."""

    us: int
    sent: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows in the outbox. `base`: how many rows went to the target before, so that the log knows a repetition."""

    sequence: int
    target: str
    base: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Commit:
    """One micro-batch's worth of change. `sequence` is the flow's before it."""

    sequence: int
    places: Places
    topic_ids: Mapping[str, str]
    begins: Places = field(default_factory=dict)
    """Where the flow begins: of its first commit."""
    buried: Sequence[tuple[str, int, int]] = ()
    """(topic, partition, offset) of records that were given up."""
    read_marks: Sequence[ReadMark] = ()
    frontier_us: int | None = None
    closed_us: int | None = None
    """Windows that end by then are final."""
    unchanged_us: int | None = None
    """Windows that end by then can no longer change."""
    writes: Writes = field(default_factory=Writes)
    """To the flow's tables: made of `ViewStore.read_state` of the same sequence."""
    changes: Callable[[], pa.Table] | None = None
    """What changes for readers of the view, with `op`. Called in the transaction, and only if somebody watches."""
    ledger: Sequence[LedgerRow] = ()
    outgoing: Sequence[Outgoing] = ()
    relayed: int = -1
    """What is in the outbox up to this sequence has arrived where it goes …"""
    written: Position = field(default_factory=Position)
    """… and lies below these offsets there."""


class Stager(Protocol):
    """Where workers lay down what a commit will add, side by side. It pickles, and works in any process that reaches
    the store. What is staged and never committed goes when the flow begins the next time."""

    def put(self, rows: pa.Table) -> list[Staged]:
        """Durably enough for the commit to notice if they were lost. No key comes twice."""

    def rows(self, staged: Sequence[Staged]) -> pa.Table:
        """What was put, back."""


class ViewStore(Protocol):
    """The side that writes; `views.reading` is the other. One of each for every kind of store."""

    def begin(self, spec: FlowSpec, *, replace: bool = False) -> FlowState: ...

    def refuse_changed(self, spec: FlowSpec) -> None: ...

    def feeds(self, flow: str) -> tuple[Emit, ...]: ...

    def drop(self, flow: str) -> list[str]: ...

    def state(self, flow: str) -> FlowState: ...

    def read_marks(self, flow: str) -> list[ReadMark]: ...

    def refuse_fenced(self, flow: FlowState) -> None: ...

    def begin_beside(self, spec: FlowSpec, program: str) -> None: ...

    def fence(self, flow: str) -> FlowState: ...

    def is_fenced(self, flow: str) -> bool: ...

    def unfence(self, fenced: FlowState) -> None: ...

    def program(self, flow: str) -> str | None: ...

    def switch(self, served: FlowState, beside: FlowState) -> FlowState: ...

    def beside(self, view: str) -> str | None: ...

    def discard(self, view: str) -> list[str]: ...

    def read_state(self, flow: FlowState) -> State:
        """The flow's tables as its last commit left them. Takes no lock: only who has the flow's epoch changes them,
        and the commit of anybody else is refused."""

    @property
    def leases(self) -> Leases | None:
        """Who runs which flow, where several homes may share the store; None: the home's locks say it."""

    def state_opener(self, flow: FlowState) -> Callable[[], State]:
        """The same for another process of this machine: a function that pickles, and opens the state there."""

    def stager(self, flow: FlowState, table: str) -> Stager | None:
        """For large batches of rows that are added to the table; None where all rows come with the commit."""

    def is_watched(self, flow: str) -> bool:
        """Whether somebody watches the view: then a commit had better know what it changes."""

    def commit(self, flow: FlowState, commit: Commit) -> FlowState: ...

    def outbox(self, flow: str) -> list[Waiting]: ...

    def carried(self, flow: str) -> dict[str, int]:
        """How many rows the flow has put out for each target, sent or not."""

    def note_relayed(self, flow: FlowState, relayed: int, written: Position) -> None: ...

    def goes_back(self, topics: Sequence[str]) -> bool:
        """Whether progress can go back in one of the topics, because of a flow that writes it: `views.writers`."""

    def last_window_end(self, flow: str) -> int | None:
        """The end of the flow's last window that has a row."""

    def closes(self, flow: str, frontier_us: int) -> bool:
        """Whether this frontier of the flow makes a row final that is open: of its view, or of one that reads it."""

    def wipe(self) -> list[str]:
        """Leaves no byte of rows that have gone in the store's files, as far as it reaches them. Returns where some may
        be left, with the reason: "where: why"."""

    def marks(self, topics: Sequence[str]) -> dict[str, Mark | None]:
        """How far the writers of the topics are, of those that flows write to; None: not known."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
