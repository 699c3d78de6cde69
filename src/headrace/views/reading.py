"""What reading views is, from any process and without Spark: the values that come out, and what every store promises.
Owns no rows. What follows from other answers is written here once; SQL is for stores that have it.

A reader sees whole commits only, never waits for a writer and never makes one wait."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument, WaitTimeout
from headrace.position import Position
from headrace.rendering import html_table
from headrace.views.contract import Column, Emit, FlowSpec, FlowState, LedgerRow, ReadMark, ViewSpec
from headrace.views.kept import Kept, kept_of
from headrace.views.origins import Branch, Reader, branches, reached
from headrace.views.sources import named_source
from headrace.views.values import arrow_type
from headrace.views.writers import goes_back, with_helpers

__all__ = [
    "LEDGER_COLUMNS",
    "AsOf",
    "Bounds",
    "Counts",
    "Diff",
    "FlowGlance",
    "Moment",
    "Page",
    "Queries",
    "Server",
    "SqlViews",
    "ViewStatus",
    "Views",
    "Watch",
    "quoted",
    "schema_of",
]

AsOf = Position | datetime | str
"""A time with its zone, or a position."""
POLL_SECONDS = 0.005
LEDGER_COLUMNS = ["window_start", "window_end", "on_time", "corrected", "dropped", "untimed"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a query of somebody else may take. `result_bytes` counts 8 for each value, and the bytes of texts, blobs and
    lists; `value_bytes` is the most that any value of their SQL may have, on the way too, and less where a row has so
    many that it would not fit. `stop()`: it is not wanted any more."""

    seconds: float = 10.0
    rows: int = 10_000
    result_bytes: int = 16 << 20
    value_bytes: int = 256 << 10
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a view. `after`: where the next page begins, None behind the last; `sequence` and `born`: of which
    commit they are, of which line of changes."""

    rows: pa.Table
    after: str | None
    sequence: int
    born: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A view as one commit left it: what it is, how far it had read, its rows, and its ledger."""

    spec: ViewSpec
    state: FlowState
    rows: pa.Table
    ledger: pa.Table


@dataclass(frozen=True, slots=True)
class Server:
    """A database that has views, as it says of itself. `clock_us`: its clock; `synced`: what it has committed survives
    a power loss; `made`: the schema has a store; `may_create`: the user may make tables there; `reads_files`: and read
    files of the server's machine, as a superuser may."""

    version: str
    clock_us: int
    read_only: bool
    synced: bool
    user: str
    schema: str
    made: bool
    may_create: bool
    reads_files: bool


@dataclass(frozen=True, slots=True)
class FlowGlance:
    """A flow without its rows: cheap to look at, however many there are. `ends_us`: the end of its first window that is
    not final, None if all are, or it has none; `buried`: records that it gave up."""

    spec: FlowSpec
    state: FlowState
    ends_us: int | None
    buried: int
    pid: int | None
    host: str | None
    started_at: datetime | None
    committed_at: datetime | None

    @property
    def running(self) -> bool | None:
        return _runs(self.pid, self.host, self.started_at)


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """Where a view is. `frontier`: event time up to which it is complete; `commits`: how many batches made it;
    `position`: up to where it has the records of topics, through the flows before it."""

    view: str
    app: str
    rows: int
    commits: int
    frontier: datetime | None
    position: Position
    pid: int | None
    host: str | None
    started_at: datetime | None
    committed_at: datetime | None
    kept: tuple[Kept, ...] = ()
    """Of a join, or of a view behind one: what is kept of each input."""

    @property
    def running(self) -> bool | None:
        """Whether the process that took the view last is alive; None: it is of another host."""
        return _runs(self.pid, self.host, self.started_at)

    def _repr_html_(self) -> str:
        facts = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return html_table(f"view {self.view}", ("", "status"), [*facts, ("running", self.running)])


@dataclass(frozen=True, slots=True)
class Counts:
    """Of rows: how many only the new version has, only the old one, both with other values, both alike."""

    added: int
    removed: int
    changed: int
    same: int

    @property
    def ok(self) -> bool:
        """Nothing is different."""
        return not (self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Diff:
    """Two versions of a view. `rows`: what is different; `added` and `removed`: columns that only the new one has, or
    the old one, and that are not compared."""

    rows: pa.Table
    counts: Counts
    added: list[str]
    removed: list[str]


class Watch(Protocol):
    """`for change in views.watch("views_by_page")`: an iterator of dicts; `batches()` has whole commits as Arrow."""

    schema: pa.Schema
    """Of the changes, once the view is there."""

    @property
    def position(self) -> int:
        """The number of the last commit that was read, or of the one it began after."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes as Arrow, a commit at a time; the rows as they are in pieces of some thousand."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> dict[str, Any]: ...

    def next_commit(self, seconds: float) -> pa.Table | None:
        """The next commit's changes; None when there was none for so long."""

    def close(self, *, linger: bool = False) -> None:
        """The store keeps no more changes for this one; with `linger`, not before its lease is over: who watches again
        by then misses nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Views(Protocol):
    """The views of a home, to be read: whole views, single rows, changes, ledgers. Holds nothing open."""

    POLL_SECONDS: float = POLL_SECONDS
    """How often a reader that waits looks again."""

    @property
    def address(self) -> str:
        """Where the store is, for messages."""

    def identity(self) -> object:
        """Another value once the store is removed or replaced by another."""

    # -- what every store answers ------------------------------------------------------------------

    def specs(self) -> list[FlowSpec]:
        """All flows but versions beside views."""

    def flow(self, view: str, *, topics: bool = False) -> FlowSpec:
        """What makes the view; with `topics` also of one that writes to a topic."""

    def state(self, view: str, *, topics: bool = False) -> FlowState:
        """How far its flow has read; with `topics` also of one that writes to a topic."""

    def states(self) -> list[FlowState]:
        """How far each flow has read."""

    def status(self, view: str, *, topics: bool = False) -> ViewStatus:
        """Where the view is; with `topics` also a flow that writes to a topic: its rows are its state."""

    def page(
        self,
        view: str,
        *,
        where: Mapping[str, Any] | None = None,
        start_us: int | None = None,
        stop_us: int | None = None,
        after: str | None = None,
        bounds: Bounds,
        stored: bool = False,
    ) -> Page:
        """Rows of the view in pieces of `bounds.rows`: the latest windows first; without windows, by group. `where`: by
        values of groups; `start_us`, `stop_us`: windows that start in there. `stored`: without rows that fill gaps."""

    def batches(self, view: str, where: Mapping[str, Any] | None = None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """As `to_arrow`, for views of any size: the schema, and the rows, some thousand at a time."""

    def watch(
        self,
        view: str,
        *,
        snapshot: bool = True,
        emit: Emit = "updates",
        timeout: Duration | None = None,
        lease: Duration = "15 seconds",
        keep_bytes: int = 0,
        wait: bool = False,
    ) -> Watch:
        """The view's changes as they are committed, each a dict: `op` ('+' or '-'), the row, and `_position`, the
        number of the commit. First the rows as they are, unless `snapshot` is False. With `emit="final"` each result
        once, when its window is final, and then corrections only. Ends when there was none for `timeout`. `lease`: how
        long the store keeps changes for a watcher that is gone without a word. `keep_bytes`: so much of what was read
        stays in the store; then, without a snapshot, it begins with the oldest change that is there. `wait`: a view
        that is not there yet is waited for, and all its changes come; else it is UnknownView."""

    def ledger(self, view: str) -> pa.Table:
        """What became of every record, window by window; the row without a window counts what belongs to none. Also of
        a flow that writes to a topic."""

    def totals(self, flow: str) -> LedgerRow:
        """The ledger's sum. Takes time by the number of windows."""

    def count(self, view: str, *, seconds: float) -> int:
        """How many rows the view has; where counting takes longer than that, how many results it had at most."""

    def glances(self) -> list[FlowGlance]:
        """All flows, those into topics too, of one moment."""

    def moment(self, view: str) -> Moment:
        """All that is stored of the view, of one moment: whoever makes it may go on meanwhile."""

    def diff(self, view: str, limit: int | None = None) -> Diff:
        """The view beside the version of it that was made anew, or after a switch, the one that was served before; what
        is different comes as `op` ('-' as the older has it, '+' the newer) and the row, at most `limit` of them."""

    def buried(self, flow: str) -> dict[str, set[tuple[int, int]]]:
        """Topic -> (partition, offset) of records the flow gave up: they are dead letters."""

    def read_marks(self, flow: str) -> list[ReadMark]:
        """How far the topics of the flow had come at some offsets, in their order, where only reading tells."""

    def counts(self, flow: str) -> dict[str, tuple[int, int]]:
        """Of a table or a join: rows, and about how many bytes, by table. Counts nothing: commits keep the numbers."""

    def readers(self, version: str | None = None) -> dict[str, Reader]:
        """All flows as one commit left them, for `origins.branches`; with a version beside a view, if that is asked
        for."""

    # -- what follows from that --------------------------------------------------------------------

    def names(self) -> list[str]:
        """The views there are."""
        return [spec.name for spec in self.specs() if spec.view is not None and spec.view.public]

    def spec(self, view: str) -> ViewSpec:
        found = self.flow(view).view
        assert found is not None, "flow() has looked"
        return found

    def to_arrow(self, view: str, where: Mapping[str, Any] | None = None) -> pa.Table:
        """All rows of the view, or those whose columns have the values given; typed, sorted by window and group."""
        schema, batches = self.batches(view, where)
        return pa.Table.from_batches(batches, schema)

    def wait_for(self, position: Position, *, timeout: Duration = "5 seconds") -> None:
        """Until every flow that reads the position's topics, itself or by way of others, has come to it; while there is
        none, it is waited for."""
        if not isinstance(position, Position):
            why = "must be a hr.Position, as append(…).position is; of one that is text, hr.Position.parse(text)"
            raise InvalidArgument("wait_for", position, why)
        _until(lambda: self.are_at(position), lambda: self.awaited(position), timeout, self.POLL_SECONDS)

    def wait_for_any(self, *, timeout: Duration = "5 seconds") -> None:
        """Until there is a view."""
        missing = f"views in {self.address}: does their app run?"
        _until(lambda: bool(self.specs()), lambda: missing, timeout, self.POLL_SECONDS)

    def are_at(self, position: Position) -> bool:
        """Whether every flow that reads the position's topics, itself or by way of others, has what is in them up to
        there; at least one must. A flow that has committed nothing yet has read nothing."""
        asked = self._reached(position)
        return all(asked.values()) and (bool(asked) or not position.topics)

    def awaited(self, position: Position) -> str:
        """What a reader waits for that waits for the position, in words: for `WaitTimeout`."""
        behind = [flow for flow, there in self._reached(position).items() if not there]
        who = f"behind: {', '.join(behind)}" if behind else "no flow reads it yet"
        return f"the views to be at {position} ({who}): does their app run?"

    def _reached(self, position: Position) -> dict[str, bool]:
        """Whether it has come to the position, of each flow that reads one of its topics."""
        flows = self.readers()
        answers = {flow: reached(branches(flow, flows), position) for flow in flows}
        return {flow: there for flow, there in answers.items() if there is not None}

    def branches(self, flow: str) -> list[Branch]:
        """Every way from a topic to the flow, and how far the flow has its records."""
        return branches(flow, self.readers(flow))

    def kept(self, flow: str) -> tuple[Kept, ...]:
        """What the flow, and the flows that help it, keep of the inputs of joins."""
        out: list[Kept] = []
        specs = self.specs()
        for spec in with_helpers(self.flow(flow, topics=True), specs):
            if spec.sides:
                back = goes_back(spec.sources, specs, self._partitions_read)
                state, counts = self.state(spec.name, topics=True), self.counts(spec.name)
                called = partial(named_source, spec=spec, specs=specs)
                out += kept_of(spec, state, counts, goes_back=back, called=called)
        return tuple(out)

    def _partitions_read(self, flow: str) -> int:
        return sum(map(len, self.state(flow, topics=True).places.values()))

    def close(self) -> None:
        """Nothing is held open; for the symmetry of `with`."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SqlViews(Views, Protocol):
    """Views that answer SQL."""

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        wait_for: Position | None = None,
        timeout: Duration = "5 seconds",
        as_of: AsOf | None = None,
    ) -> pa.Table:
        """Runs SQL that only reads, with bound parameters. `wait_for`: first waits until every flow that reads the
        position's topics, itself or by way of others, has folded them in up to there; WaitTimeout if that takes longer
        than `timeout`. `as_of`: tables and views with a history are as they were at that time; InvalidArgument for a
        name without one. A position is the time when the last of its records arrived, and is waited for, too."""

    def bounded(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        bounds: Bounds,
        as_of: datetime | str | None = None,
    ) -> tuple[pa.Table, bool]:
        """As `query`, within bounds; and whether there was more. QueryTimeout when it takes too long."""

    def rows(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        read: set[tuple[str, str]] | None = None,
        as_of: datetime | str | None = None,
    ) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
        """As `query`, for results of any size: the columns' names, and the rows, some thousand at a time. What tables
        and columns it reads is added to `read`."""


class Queries(Protocol):
    """SQL of others, which may take what it is given and no more."""

    def bounded(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        bounds: Bounds,
        as_of: datetime | str | None = None,
    ) -> tuple[pa.Table, bool]:
        """As `SqlViews.bounded`; a query that does not stop is ended by force."""

    def close(self) -> None:
        """Whatever is asked ends."""


def quoted(name: str) -> str:
    """A name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in columns])


def _runs(pid: int | None, host: str | None, started_at: datetime | None) -> bool | None:
    if pid is None or started_at is None:
        return False
    if host != socket.gethostname():
        return None
    return _alive(pid, started_at.timestamp())


def _alive(pid: int, started: float) -> bool:
    """Whether the process that had this id at that time lives. Where the system says since when a process lives, one
    that is younger is another; a minute is left for clocks that were set."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        (boot,) = (line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        born = int(boot.split()[1]) + int(facts[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return True
    return facts[0] not in "ZX" and born < started + 60


def _until(done: Callable[[], bool], what: Callable[[], str], timeout: Duration, poll_seconds: float) -> None:
    seconds = duration_us(timeout, argument="timeout", positive=False) / 1e6
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= limit:
            raise WaitTimeout(what(), seconds)
        time.sleep(poll_seconds)
