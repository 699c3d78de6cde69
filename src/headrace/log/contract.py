"""What any log is: the values that go in and out of it, and the shape of its handles. Owns no behaviour. All code above
the log is typed against these names; `log/open.py` opens an implementation, and `log/capabilities.py` has what only
some logs can do. `headrace.testing.LogContract` tests what the names promise.

Offsets of a partition increase; they need not be dense: a range of offsets may hold fewer records than it is long, or
none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

from headrace.durations import Duration
from headrace.log.settings import TopicDescription as TopicDescription
from headrace.log.settings import TopicSettings as TopicSettings
from headrace.names import META as META
from headrace.position import Position

if TYPE_CHECKING:
    import pyarrow as pa

DEAD_LETTERS = "__dead_letters"
"""The topic of the dead letters."""
FLOW_GROUP = "__flow."
"""A group of this name, with the flow's name behind it, stands for a flow that reads the topic."""

Start = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""Where to begin: an end of the log, the first record that arrived at a time or later, or offsets by partition."""

Rows = Mapping[str, Any] | Iterable[Mapping[str, Any]] | Any
"""What can be appended: a mapping, an iterable of them, or anything with `__arrow_c_stream__`."""

Progress: TypeAlias = "datetime | Sequence[datetime | None] | pa.ChunkedArray | None"
"""Explicit event-time progress, for records derived from others: one for all rows, or one per row; also as a column."""

Overload = Literal["block", "buffer", "drop"]


@dataclass(frozen=True, slots=True)
class Offsets:
    """One partition: the first offset held, the next to be given, and event-time progress there. `arrived_at`: when the
    last record came, or the partition was made."""

    earliest: int
    next: int
    progress: datetime | None
    arrived_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Span:
    """A stored batch, for planning what to read: offsets [start, stop), about so many records, their bytes before
    compression, and their latest event time (None: they have none). `whole`: none of its records was taken out since
    they were appended. The spans of a partition touch."""

    start: int
    stop: int
    records: int
    bytes: int
    event_max_us: int | None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did. `ranges`: the offsets given, by partition. `quarantined`: records that went to the
    dead letters instead, because their event time is too far ahead."""

    position: Position
    ranges: dict[int, range]
    quarantined: int = 0
    duplicate: bool = False
    """The append is a repetition of an earlier one, whose offsets these are."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was read."""

    topic: str
    partition: int
    offset: int
    arrived_at: datetime
    progress: datetime | None
    key: Any
    """The key column's value; a tuple of them for a composite key; None without a key."""
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind in one partition. `records` is an estimate: the offsets that it has not read, which may
    hold fewer records. `time`: how long the oldest unread record has waited."""

    committed: int | None
    next: int
    records: int
    time: timedelta


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group, and which partitions it has."""

    member: str
    host: str
    pid: int
    partitions: tuple[int, ...]
    joined_at: datetime
    alive: bool


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Where a queue's messages are now, and counters that only grow. Offsets without a record (compacted, erased) count
    as ready until the queue has passed them."""

    ready: int
    """Not handed out yet."""
    in_flight: int
    """With a consumer."""
    waiting: int
    """Waiting for another message of their key (order="key")."""
    due: int
    """To be handed out again: rejected, or not answered in time."""
    delivered: int
    redelivered: int
    acked: int
    dead: int
    """Became dead letters, ever …"""
    dead_open: int
    """… and still are."""
    lost: int
    """Deleted by retention before they were acknowledged."""
    oldest: timedelta
    """Age of the oldest message that is not done; zero when all are."""


@dataclass(slots=True)
class ProducerStats:
    """Counters of one producer, for ever growing: sent = acked + failed + dropped + buffered_rows. What `send` refused
    (policy "buffer") was not sent."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    batches: int = 0
    dropped: int = 0
    refused: int = 0
    blocked: int = 0
    blocked_seconds: float = 0.0
    full_seconds: float = 0.0
    """Waiting for room in a topic whose consumers have not read what it holds."""
    buffered_rows: int = 0
    buffered_bytes: int = 0
    buffered_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead letter comes from. Fields that make no sense for it are None."""

    topic: str | None
    partition: int | None = None
    offset: int | None = None
    source: str | None = None
    """A file and line, a flow and operator, a queue: whatever led here."""
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """Where one registered group or queue is in one partition: it needs the records from `offset` on."""

    kind: str
    name: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """What a topic takes on disk, what retention would delete of it now, and whom it has to mind."""

    records: int
    bytes: int
    batches: int
    small_batches: int
    """So small that sealing would join them."""
    would_delete_records: int
    would_delete_bytes: int
    consumers: list[Consumer]


@dataclass(frozen=True, slots=True)
class LogUsage:
    """What the data files of a log take: bytes that batches need, and those that nobody needs any more."""

    files: int
    live_bytes: int
    dead_bytes: int
    would_free_bytes: int
    """Of the dead, what `maintain` would give back now: whole files, and files that are mostly dead."""
    wipe_due: bool
    """An erasure is not wiped everywhere yet."""
    lost_records: int
    """Records of `os` topics that a power loss took."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Retention deleted [start, stop) of a partition before a group or queue had read it."""

    topic: str
    partition: int
    kind: str
    consumer: str
    start: int
    stop: int

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition}: retention deleted offsets {self.start}..{self.stop} before {self.kind} "
            f"{self.consumer!r} had read them. Use unread='keep', or a longer retention."
        )


@dataclass(frozen=True, slots=True)
class AtRisk:
    """A group or queue that loses records in `time_to_loss` if it and its producers go on as they do."""

    topic: str
    kind: str
    consumer: str
    time_to_loss: timedelta

    def __str__(self) -> str:
        return (
            f"{self.topic}: at its pace, retention overtakes {self.kind} {self.consumer!r} in {self.time_to_loss}. "
            f"Speed it up, use a longer retention, or unread='keep'."
        )


@dataclass(slots=True)
class Maintained:
    """What `maintain` did, and what it could not do."""

    records_deleted: int = 0
    """By retention."""
    records_compacted: int = 0
    """Gone because a newer record of their key is there."""
    batches_sealed: int = 0
    """Fewer than before."""
    files_removed: int = 0
    bytes_freed: int = 0
    overtaken: list[Overtaken] = field(default_factory=list)
    at_risk: list[AtRisk] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Damage that was met; what it concerns is left as it is. `verify` says more."""
    postponed: list[str] = field(default_factory=list)
    """What could not be done now, and why: the disk is full, or the clock is not believed."""
    incomplete: list[str] = field(default_factory=list)
    """What an earlier erasure still has to wipe, and why it could not."""


@dataclass(slots=True)
class Erased:
    """What an erasure touched. While `incomplete` has entries, bytes may be left where they say."""

    topic: str
    records: int = 0
    batches: int = 0
    dead_letters: int = 0
    incomplete: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartitionAhead:
    """A partition whose newest arrival, or progress, is more than an hour ahead of the clock: a clock that was ahead
    has written to it. What is appended to it is stamped with that arrival, and counts as late by that progress."""

    topic: str
    partition: int
    arrived: datetime
    progress: datetime | None


@dataclass(frozen=True, slots=True)
class ClockStanding:
    """What a log makes of the clock."""

    clock: datetime
    newest: datetime | None
    """The newest arrival in the home. What arrives is never stamped with less."""
    ahead: timedelta
    """How far the clock is ahead of the newest arrival and the time that has surely passed since; negative where it is
    behind that."""
    verdict: str
    """`believed`; `doubted`: records are taken, retention by age waits; `refused`: nothing is written by this clock."""
    synchronised: bool
    """Whether the system says that its clock is synchronised (NTP)."""
    partitions: list[PartitionAhead]


@dataclass(frozen=True, slots=True)
class Mended:
    """A topic that was ahead of the clock, and the incarnation in its place."""

    topic: str
    topic_id: str
    restamped: int
    """Records that arrived in the future, and now when it was mended."""
    dead_letters: int
    """Records whose event time is in the future too."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing `verify` found. Ranges are half-open; -1 where there is none."""

    what: str
    topic: str = ""
    partition: int = -1
    start: int = -1
    stop: int = -1
    file: str = ""
    position: int = -1


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` read, and what it found."""

    topics: int
    batches: int
    records: int
    bytes: int
    problems: list[Problem] = field(default_factory=list)
    lost: list[Problem] = field(default_factory=list)
    """Ranges of `os` topics that a power loss took: known and reported, not damage."""
    ahead: list[Problem] = field(default_factory=list)
    """Partitions ahead of the clock: no damage, but what comes is stamped by them. `mend` takes them back."""

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems


class Closing(Protocol):
    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class DeadLetter(Protocol):
    """A record that could not go where it should. `reason` in a word, `error` in a sentence, `origin` as far as it is
    known. `value` is the row as it would have been appended, or the bytes that could not be read as one."""

    @property
    def id(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def error(self) -> str: ...

    @property
    def origin(self) -> Origin: ...

    @property
    def died_at(self) -> datetime: ...

    @property
    def value(self) -> dict[str, Any] | bytes: ...

    @property
    def deliveries(self) -> int | None: ...

    def replay(self) -> Appended: ...

    def drop(self) -> None: ...


class Member(Closing, Protocol):
    """One consumer in a group. `poll` hands out records of the partitions it has; `commit` says they are done."""

    id: str

    @property
    def partitions(self) -> tuple[int, ...]: ...

    def poll(self, timeout: Duration = "1 second", max_records: int = 500) -> list[Record]: ...

    def commit(self, upto: Record | None = None) -> None: ...


class Group(Protocol):
    name: str

    @property
    def flow(self) -> str | None:
        """The flow that this group stands for; None: it is a group."""

    def join(self, *, lease: Duration = "10 seconds", start: Start = "earliest") -> Member: ...

    def lag(self) -> dict[int, Lag]: ...

    def time_to_loss(self) -> timedelta | None:
        """How long until retention deletes the oldest record that the group has not read; None: never, or unknown."""

    def members(self) -> list[MemberInfo]: ...

    def committed(self) -> dict[int, int]: ...

    def wait(
        self, *, members: int | None = None, lag: int | None = None, timeout: Duration = "1 minute"
    ) -> tuple[int, int]: ...

    def rewind(self, start: Start) -> dict[int, int]: ...

    def delete(self) -> None: ...


class Producer(Closing, Protocol):
    """Sends rows one by one, in batches. `sequence` is the number of the next record of this producer id."""

    @property
    def stats(self) -> ProducerStats: ...

    def send(self, row: Mapping[str, Any]) -> Future[Position]: ...

    def flush(self, timeout: Duration | None = None) -> None: ...


class Sender(Protocol):
    """Appends rows that carry numbers, each once. The rows for one topic are numbered from 0 on, in the order they are
    sent; what is sent again with the same number is recognised, and not appended again. A new sender of the same name
    fences the one before it, at each topic that it sends to."""

    def send(
        self, topic: str, rows: pa.Table, number: int, *, partition: int | None = None, progress: Progress = None
    ) -> Position:
        """Appends rows of which the first has this `number`. A topic that has fewer partitions than `partition` asks
        for gets more."""

    def bury(self, topic: str, letters: Sequence[Mapping[str, Any]], number: int) -> range:
        """The same for dead letters of a topic (see `Topic.bury`); they have numbers of their own."""


class TopicRef(Protocol):
    """Names a topic to other processes: small, and can be pickled."""

    def open(self) -> Topic:
        """The topic, in this process; TopicReplaced if it is no more. The topics opened last stay open, and nobody has
        to close them."""


@runtime_checkable
class Topic(Protocol):
    name: str

    @property
    def topic_id(self) -> str: ...

    @property
    def settings(self) -> TopicSettings: ...

    @property
    def schema(self) -> pa.Schema: ...

    def describe(self) -> TopicDescription: ...

    def alter(self, **changes: Any) -> None: ...

    def ref(self) -> TopicRef: ...

    # -- writing -----------------------------------------------------------------------------------

    def append(self, rows: Rows, *, partition: int | None = None, progress: Progress = None) -> Appended: ...

    def append_batch(
        self, rows: pa.Table, writer: str | None = None, number: int | None = None, *, progress: Progress = None
    ) -> None:
        """Appends a table of any size in one transaction; a writer's batch of that number only if it is not in the log
        yet. BatchDiffers: it is, with other rows."""

    def check(self, rows: Rows) -> None:
        """Raises what `append` would raise for these rows, and appends nothing."""

    def load(
        self,
        data: Any,
        *,
        id: str | None = None,
        batch_rows: int = 100_000,
        progress: Callable[[int], object] | None = None,
    ) -> int: ...

    def producer(
        self,
        id: str | None = None,
        *,
        linger: Duration = "5 milliseconds",
        batch_rows: int = 10_000,
        buffer_bytes: int = 64 << 20,
        overload: Overload = "block",
    ) -> Producer: ...

    def bury(self, letters: Sequence[Mapping[str, Any]]) -> range:
        """Keeps as dead letters what could not be appended here, or not be processed. Their numbers."""

    # -- reading -----------------------------------------------------------------------------------

    def batches(
        self,
        partition: int | None = None,
        start: int | Start = "earliest",
        stop: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]: ...

    def records(
        self,
        start: Start = "earliest",
        *,
        key: Any = None,
        partition: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> Iterator[Record]: ...

    def offsets(self, at: datetime | None = None) -> dict[int, Offsets]: ...

    def arrived_us(self, partition: int, offset: int) -> int | None:
        """When the record at the offset arrived; None if there is none, or none any more that can be read."""

    def spans(self, partition: int, start: int, limit: int = 1000) -> list[Span]:
        """A hint for planning: the first `limit` stored batches with records at `start` or behind it. A log that does
        not know them gives one span up to the end."""

    # -- consuming ---------------------------------------------------------------------------------

    def group(self, name: str) -> Group: ...

    def groups(self) -> Sequence[Group]: ...


class Transaction(Protocol):
    def append(self, topic: str, rows: Rows, *, progress: Progress = None) -> None: ...

    def commit(self, member: Any) -> None:
        """A member's offsets become part of the transaction."""

    @property
    def position(self) -> Position: ...


@runtime_checkable
class Log(Closing, Protocol):
    @property
    def address(self) -> str:
        """Where the log is: what it is opened by."""

    @property
    def log_id(self) -> str:
        """Names this log for ever, wherever it is copied."""

    @property
    def in_place(self) -> bool:
        """Whether the log is still where it was opened."""

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        schema: object,
        *,
        key: str | tuple[str, ...] | None = None,
        event_time: str | None = None,
        partitions: int = 1,
        retention: Duration | None = None,
        retention_bytes: int | None = None,
        cleanup: str = "delete",
        unread: str = "delete",
        tombstone_grace: Duration = "1 day",
        durability: str = "fsync",
        compression: str = "zstd",
        versioned: bool = False,
        max_ahead: Duration = "1 hour",
        forget: Duration = "7 days",
        extra: str = "forbid",
        changes: bool = False,
        exist_ok: bool = False,
    ) -> Topic: ...

    def topic(self, name: str) -> Topic: ...

    def topics(self) -> Sequence[Topic]: ...

    def delete_topic(self, name: str) -> None: ...

    def own_topic(
        self,
        name: str,
        schema: pa.Schema,
        *,
        event_time: str | None = None,
        max_ahead: Duration = "1 hour",
        partitions: int = 1,
    ) -> Topic:
        """A topic of headrace's own, which is not listed: made if there is none, with columns added that it has not."""

    def flow_topic(self, name: str, schema: pa.Schema, *, flow: str, **settings: Any) -> Topic:
        """The topic that a flow writes to: made if there is none. One that this flow made gets columns added."""

    def delete_own_topic(self, name: str) -> None: ...

    def clone_topic(self, topic: Topic) -> Topic:
        """A topic like another log's, without its records; one of that name that is here is returned as it is."""

    # -- across topics -----------------------------------------------------------------------------

    def transaction(self) -> AbstractContextManager[Transaction]: ...

    def sync(self) -> None:
        """Makes durable whatever can be read now."""

    def sender(self, name: str) -> Sender: ...

    # -- readers -----------------------------------------------------------------------------------

    def news(self, topics: Iterable[Topic]) -> dict[str, int]:
        """What `wait` compares with: take it before looking, wait when there was nothing to see."""

    def wait(self, seen: Mapping[str, int], timeout: float | None = None) -> bool:
        """Until one of the topics has news since `seen`, or for `timeout` seconds. True: look again."""

    def report(self, flow: str, places: Iterable[tuple[Topic, Mapping[int, int]]]) -> Future[None]:
        """Says how far a flow has read topics: retention minds it, and its lag is seen. Nobody has to wait for it."""

    def forget_flow(self, flow: str) -> None: ...

    # -- dead letters ------------------------------------------------------------------------------

    def dead_letters(self, *, newest: int | None = None) -> Iterator[DeadLetter]: ...

    def dead_letter(self, id: int) -> DeadLetter: ...

    def dead_letters_count(self) -> int: ...
