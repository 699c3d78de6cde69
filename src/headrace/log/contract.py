"""The contract of a log: its values, and the protocols of its handles. Owns no behaviour. All code above the log is
typed against these names. `log/open.py` opens an implementation; `log/capabilities.py` has what only some logs can do.
`headrace.testing.LogContract` tests the contract.

Offsets of a partition increase, but need not be dense: a range of offsets may hold fewer records than it is long, or
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
"""The prefix of a group's name that stands for a flow: `__flow.NAME`."""

Start = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""Where to begin: the earliest or latest offset, the first record that arrived at a time or later, or offsets by
partition."""

Rows = Mapping[str, Any] | Iterable[Mapping[str, Any]] | Any
"""What can be appended: a mapping, an iterable of mappings, or anything with `__arrow_c_stream__`."""

Progress: TypeAlias = "datetime | Sequence[datetime | None] | pa.ChunkedArray | None"
"""Explicit event-time progress, for records derived from others: one for all rows, or one per row; also as a column."""

Overload = Literal["block", "buffer", "drop"]


@dataclass(frozen=True, slots=True)
class Offsets:
    """One partition: its earliest offset, the offset of the next record, and its event-time progress. `arrived_at`: the
    arrival of the last record, or when the partition was created."""

    earliest: int
    next: int
    progress: datetime | None
    arrived_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Span:
    """A stored batch, for planning reads: offsets [start, stop), the approximate number of records, their bytes before
    compression, and their latest event time (None if they have none). `whole`: no record was removed since the append.
    The spans of a partition have no gaps between them."""

    start: int
    stop: int
    records: int
    bytes: int
    event_max_us: int | None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append. `ranges`: the offsets of the records, by partition. `quarantined`: how many records
    became dead letters because their event time is too far ahead."""

    position: Position
    ranges: dict[int, range]
    quarantined: int = 0
    duplicate: bool = False
    """True if this append repeats an earlier one; the offsets are those of the earlier one."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was read."""

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
    """How far a group is behind in one partition. `records` is the number of unread offsets, which may hold fewer
    records. `time`: how long the oldest unread record has waited."""

    committed: int | None
    next: int
    records: int
    time: timedelta


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group, and its partitions."""

    member: str
    host: str
    pid: int
    partitions: tuple[int, ...]
    joined_at: datetime
    alive: bool


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The number of a queue's messages in each state, and counters that only grow. Offsets without a record (compacted,
    erased) count as ready until the queue has passed them."""

    ready: int
    """Not delivered yet."""
    in_flight: int
    """Delivered to a consumer, and not acknowledged."""
    waiting: int
    """Waiting for another message of their key (order="key")."""
    due: int
    """Due for another delivery: rejected, or not acknowledged in time."""
    delivered: int
    redelivered: int
    acked: int
    dead: int
    """All messages that ever became dead letters."""
    dead_open: int
    """Those that are dead letters now."""
    lost: int
    """Deleted by retention before they were acknowledged."""
    oldest: timedelta
    """Age of the oldest message that is not done; zero when all are."""


@dataclass(slots=True)
class ProducerStats:
    """The counters of a producer, which only grow: sent = acked + failed + dropped + buffered_rows. Rows that `send`
    refused (overload="buffer") do not count as sent."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    batches: int = 0
    dropped: int = 0
    refused: int = 0
    blocked: int = 0
    blocked_seconds: float = 0.0
    full_seconds: float = 0.0
    """Time spent waiting for room in a full topic, whose consumers have not read its records."""
    buffered_rows: int = 0
    buffered_bytes: int = 0
    buffered_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead letter comes from. Fields that do not apply are None."""

    topic: str | None
    partition: int | None = None
    offset: int | None = None
    source: str | None = None
    """A file and line, a flow and operator, or a queue."""
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """A registered group or queue in one partition. It needs the records from `offset` on."""

    kind: str
    name: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """A topic's size on disk, what retention would delete now, and the registered readers."""

    records: int
    bytes: int
    batches: int
    small_batches: int
    """Small batches that sealing would join."""
    would_delete_records: int
    would_delete_bytes: int
    consumers: list[Consumer]


@dataclass(frozen=True, slots=True)
class LogUsage:
    """The size of a log's data files: bytes that batches use, and unused (dead) bytes."""

    files: int
    live_bytes: int
    dead_bytes: int
    would_free_bytes: int
    """The dead bytes that `maintain` would give back now: whole files, and files that are mostly dead."""
    wipe_due: bool
    """True if an erasure still has bytes to overwrite."""
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
    """A group or queue that loses records in `time_to_loss`, if it and its producers continue at their pace."""

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
    """The result of `maintain`: what it did, and what it could not do."""

    records_deleted: int = 0
    """Records that retention deleted."""
    records_archived: int = 0
    """Records that retention moved into the topic's archive."""
    records_compacted: int = 0
    """Records that compaction removed, because there is a newer record of their key."""
    batches_sealed: int = 0
    """By how many batches sealing reduced their number."""
    files_removed: int = 0
    bytes_freed: int = 0
    overtaken: list[Overtaken] = field(default_factory=list)
    at_risk: list[AtRisk] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Damage that it found. Damaged batches are not changed; `verify` says more."""
    postponed: list[str] = field(default_factory=list)
    """Work that could not be done now, with the reason: the disk is full, or the clock is not believed."""
    incomplete: list[str] = field(default_factory=list)
    """Bytes that an earlier erasure still has to overwrite, with the reason."""


@dataclass(slots=True)
class Erased:
    """The result of an erasure. If `incomplete` has entries, bytes may be left there."""

    topic: str
    records: int = 0
    batches: int = 0
    dead_letters: int = 0
    incomplete: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartitionAhead:
    """A partition whose newest arrival or progress is more than an hour ahead of the clock, because it was written to
    when the clock was ahead. New records get that arrival, and are late by that progress."""

    topic: str
    partition: int
    arrived: datetime
    progress: datetime | None


@dataclass(frozen=True, slots=True)
class ClockStanding:
    """How a log judges the machine's clock."""

    clock: datetime
    newest: datetime | None
    """The newest arrival in the home. No record gets an earlier one."""
    ahead: timedelta
    """How far the clock is ahead of the newest arrival plus the time that has surely passed since; negative if it is
    behind."""
    verdict: str
    """`believed`; `doubted`: records are accepted, but retention by age waits; `refused`: appends raise ClockAhead."""
    synchronised: bool
    """True if the system says that its clock is synchronised (NTP)."""
    partitions: list[PartitionAhead]


@dataclass(frozen=True, slots=True)
class Mended:
    """A topic that was ahead of the clock, and was replaced by a repaired one."""

    topic: str
    topic_id: str
    restamped: int
    """Records whose arrival was in the future; it is now the time of the repair."""
    dead_letters: int
    """Records whose event time is in the future too."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that `verify` found. Ranges are half-open; -1 means none."""

    what: str
    topic: str = ""
    partition: int = -1
    start: int = -1
    stop: int = -1
    file: str = ""
    position: int = -1


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `verify`: how much it read, and the problems it found."""

    topics: int
    batches: int
    records: int
    bytes: int
    problems: list[Problem] = field(default_factory=list)
    lost: list[Problem] = field(default_factory=list)
    """Ranges of `os` topics that a power loss took. They are not damage."""
    ahead: list[Problem] = field(default_factory=list)
    """Partitions ahead of the clock. They are not damage, but new records get their times. `mend` repairs them."""

    @property
    def ok(self) -> bool:
        """True if nothing is damaged."""
        return not self.problems


class Closing(Protocol):
    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class DeadLetter(Protocol):
    """A record that could not be appended or processed. `reason` is a word, `error` a sentence, `origin` says where it
    comes from, as far as that is known. `value` is the row, or the bytes that could not be read as a row."""

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
    """One consumer in a group. `poll` returns records of its partitions; `commit` commits their offsets."""

    @property
    def id(self) -> str: ...

    @property
    def partitions(self) -> tuple[int, ...]: ...

    def poll(self, timeout: Duration = "1 second", max_records: int = 500) -> list[Record]: ...

    def commit(self, upto: Record | None = None) -> None: ...


class Group(Protocol):
    name: str

    @property
    def flow(self) -> str | None:
        """The flow that this group stands for; None if it is an ordinary group."""

    def join(self, *, lease: Duration = "10 seconds", start: Start = "earliest") -> Member: ...

    def lag(self) -> dict[int, Lag]: ...

    def time_to_loss(self) -> timedelta | None:
        """The time until retention deletes the oldest record that the group has not read; None if never, or unknown."""

    def members(self) -> list[MemberInfo]: ...

    def committed(self) -> dict[int, int]: ...

    def wait(
        self, *, members: int | None = None, lag: int | None = None, timeout: Duration = "1 minute"
    ) -> tuple[int, int]: ...

    def rewind(self, start: Start) -> dict[int, int]: ...

    def delete(self) -> None: ...


class Producer(Closing, Protocol):
    """Takes rows one by one and appends them in batches. `sequence` is the number of the next record of this producer
    id."""

    @property
    def stats(self) -> ProducerStats: ...

    def send(self, row: Mapping[str, Any]) -> Future[Position]: ...

    def flush(self, timeout: Duration | None = None) -> None: ...


class Sender(Protocol):
    """Appends numbered rows, each once. The rows for one topic are numbered from 0, in the order they are sent. Rows
    that are sent again with the same number are not appended again. A new sender of the same name fences the one before
    it, at each topic that it sends to."""

    def send(
        self, topic: str, rows: pa.Table, number: int, *, partition: int | None = None, progress: Progress = None
    ) -> Position:
        """Appends rows; the first has this `number`. If the topic has too few partitions for `partition`, it gets
        more."""

    def bury(self, topic: str, letters: Sequence[Mapping[str, Any]], number: int) -> range:
        """The same for dead letters of a topic (see `Topic.bury`); they have numbers of their own."""

    def sent(self, topic: str) -> int:
        """How many rows of this name the topic has; of the topic of dead letters, how many letters. Fences nobody."""


class TopicRef(Protocol):
    """Names a topic to other processes: small, and can be pickled."""

    def open(self) -> Topic:
        """The topic, in this process; TopicReplaced if it no longer exists. The topics opened last stay open, and need
        not be closed."""


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
        """Appends a table of any size in one transaction. With a `writer` and a `number`, it appends nothing if the log
        already has that batch of the writer; BatchDiffers if that batch has another number of rows."""

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
        """Stores dead letters for records that could not be appended or processed. Returns their numbers."""

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

    def ends(self) -> dict[int, Offsets]:
        """As `offsets`, but reads no records: without progress where that is only made by reading them."""

    def arrived_us(self, partition: int, offset: int) -> int | None:
        """The arrival of the record at the offset; None if there is no such record, or it can no longer be read."""

    def spans(self, partition: int, start: int, limit: int = 1000) -> list[Span]:
        """A hint for planning: the first `limit` stored batches with records at or after `start`. A log that does not
        know its batches returns one span up to the end."""

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
        """The address that opens this log."""

    @property
    def log_id(self) -> str:
        """The log's id. Copies of the log have the same id."""

    @property
    def in_place(self) -> bool:
        """True if the log is still at the address where it was opened."""

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
        archive: str | None = None,
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
        """An internal topic of headrace, which is not listed. It is created if it does not exist, and gets missing
        columns."""

    def flow_topic(self, name: str, schema: pa.Schema, *, flow: str, **settings: Any) -> Topic:
        """The topic that a flow writes to. It is created if it does not exist. A topic that this flow created gets
        missing columns."""

    def delete_own_topic(self, name: str) -> None: ...

    def clone_topic(self, topic: Topic) -> Topic:
        """A topic with the schema and settings of another log's topic, without its records. If a topic of that name
        exists, it is returned unchanged."""

    # -- across topics -----------------------------------------------------------------------------

    def transaction(self) -> AbstractContextManager[Transaction]: ...

    def sync(self) -> None:
        """Syncs all records that can be read now."""

    def sender(self, name: str) -> Sender: ...

    # -- readers -----------------------------------------------------------------------------------

    def news(self, topics: Iterable[Topic]) -> dict[str, int]:
        """A state of the topics for `wait`. Take it before you read; if there was nothing to read, pass it to
        `wait`."""

    def wait(self, seen: Mapping[str, int], timeout: float | None = None) -> bool:
        """Waits until one of the topics has changed since `seen`, or for `timeout` seconds. True if one has changed."""

    def report(self, flow: str, places: Iterable[tuple[Topic, Mapping[int, int]]]) -> Future[None]:
        """Reports the offsets that a flow has read, for retention and for lag. The caller need not wait for the
        result."""

    def forget_flow(self, flow: str) -> None: ...

    # -- dead letters ------------------------------------------------------------------------------

    def dead_letters(self, *, newest: int | None = None) -> Iterator[DeadLetter]: ...

    def dead_letter(self, id: int) -> DeadLetter: ...

    def dead_letters_count(self) -> int: ...
