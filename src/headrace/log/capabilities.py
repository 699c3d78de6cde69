"""Capabilities that only some logs have. Each is a protocol, and code asks for it by name:

    capability(topic, Queues).queue("mail")

Owns the protocols and `capability`, which raises Unsupported for a log without it. No caller has to know which log it
uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from headrace.durations import Duration
from headrace.errors import Unsupported
from headrace.log.contract import (
    Appended,
    AtRisk,
    ClockStanding,
    Closing,
    Erased,
    Group,
    Log,
    LogUsage,
    Maintained,
    Mended,
    Progress,
    QueueStats,
    Record,
    Rows,
    Start,
    Topic,
    TopicRef,
    TopicUsage,
    Verified,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.copying import Copied, Told

__all__ = [
    "Clock",
    "Cluster",
    "Erasure",
    "Files",
    "Foreign",
    "GroupsAtOnce",
    "Message",
    "OpenTransaction",
    "Order",
    "Queue",
    "Queues",
    "RawTopics",
    "ReadMark",
    "Remembers",
    "SoleWriter",
    "SoleWriters",
    "TextTopics",
    "Transactions",
    "Usage",
    "Verification",
    "Versions",
    "capability",
]

Order = Literal["none", "key"]
Capability = TypeVar("Capability")


def capability(handle: Log | Topic, kind: type[Capability]) -> Capability:
    """The same log or topic, typed as one that has the capability; Unsupported if it does not."""
    if issubclass(type(handle), kind):  # which is remembered; isinstance would look through the protocol each time
        return cast(Capability, handle)
    raise Unsupported(repr(handle), kind.__name__.lower())


class Message(Closing, Protocol):
    """A record that a queue delivered. Call `ack` or `nack` before its visibility runs out, or use `with message:`,
    which acknowledges it, or rejects it if the block raises (the exception is passed on)."""

    topic: str
    partition: int
    offset: int
    arrived_at: datetime
    key: Any
    value: dict[str, Any]
    deliveries: int
    """How often it was delivered, including this time."""
    answered: bool
    """True if this object has acknowledged, rejected or given back the delivery."""

    @property
    def queue(self) -> str:
        """The queue's name."""

    def ack(self) -> None:
        """Acknowledges the message. LeaseExpired if it was delivered to another consumer meanwhile."""

    def nack(self, error: str = "", *, delay: Duration | None = None) -> None:
        """Rejects the message: it is delivered again after `delay`. After `max_deliveries` it becomes a dead letter."""

    def extend(self, duration: Duration) -> None:
        """Extends the visibility: no other consumer gets the message for `duration` from now on."""


class Queue(Protocol):
    """A queue on a topic: delivers each message to one consumer, and again until it is acknowledged."""

    name: str

    @property
    def visibility(self) -> timedelta: ...

    @property
    def max_deliveries(self) -> int: ...

    @property
    def order(self) -> Order: ...

    @property
    def has_stats(self) -> bool:
        """Whether `stats` can be asked for: some logs do not count."""

    def stats(self) -> QueueStats: ...

    def time_to_loss(self) -> timedelta | None: ...

    def peek(self, count: int = 10) -> list[Record]: ...

    def receive(self, max: int = 1, wait: Duration | None = None) -> Sequence[Message]: ...

    def interrupt(self) -> None: ...

    def ack(self, messages: Iterable[Any]) -> None: ...

    def nack(self, messages: Iterable[Any], error: str = "", *, delay: Duration | None = None) -> None: ...

    def extend(self, messages: Iterable[Any], duration: Duration) -> None: ...

    def give_back(self, messages: Iterable[Any]) -> None: ...

    def redrive(self) -> int: ...

    def rewind(self, start: Start) -> dict[int, int]: ...

    def delete(self) -> None: ...


@runtime_checkable
class Queues(Protocol):
    """A topic that has queues."""

    def queue(
        self,
        name: str,
        *,
        visibility: Duration | None = None,
        max_deliveries: int | None = None,
        order: Order | None = None,
        start: Start = "earliest",
        create: bool = True,
    ) -> Queue: ...

    def queues(self) -> Sequence[Queue]: ...


@runtime_checkable
class Foreign(Protocol):
    """A log that has topics of others, which become known with a schema."""

    def adopt_topic(self, name: str, schema: object, **settings: Any) -> Topic: ...


class ReadMark(Protocol):
    """How far event time and arrival had come below an offset of a partition."""

    @property
    def offset(self) -> int: ...

    @property
    def progress_us(self) -> int | None: ...

    @property
    def arrived_us(self) -> int | None: ...

    @property
    def raised(self) -> bool:
        """True if a flow has raised it: records from the offset on have at least this progress, and reading those
        before does not give it."""


@runtime_checkable
class Remembers(Protocol):
    """A topic whose progress is made by its readers, from the nearest mark below. Flows keep marks in their
    transactions, and tell them to the topic."""

    def remember(self, marks: Mapping[int, Iterable[ReadMark]]) -> None:
        """Progress is made from these marks, by partition: what is before them need not be read again."""

    def reached(self, partition: int, offset: int) -> ReadMark:
        """The mark at the offset. Reads what is between it and the nearest one that this process knows."""

    def ref_from(self, starts: Mapping[int, Iterable[int]]) -> TopicRef:
        """A reference for who reads from these offsets."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that did not end, and holds readers up: they see none of the records of offsets [offset, end)
    before it does. `stored`: the topic's name in the cluster. `since`: when its first record was written."""

    topic: str
    stored: str
    partition: int
    offset: int
    end: int
    since: datetime

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition}: a transaction that is open since {self.since.isoformat()} holds up what "
            f"was written from offset {self.offset} to {self.end}. End its producer, or abort it: "
            f"kafka-transactions.sh abort --topic {self.stored} --partition {self.partition} "
            f"--start-offset {self.offset}"
        )


@runtime_checkable
class Transactions(Protocol):
    """A topic that is read up to the first open transaction."""

    def open_transactions(self) -> list[OpenTransaction]:
        """Those that hold readers up for so long that they may never end."""

    def written(self) -> dict[int, int]:
        """The offset behind the last record of each partition, whether it can be read yet or not."""


class RawTopics(Protocol):
    """The topics of a cluster as bytes, by their names there and partitions: those of others, in whatever form."""

    def ends(self, chosen: Callable[[str], bool]) -> dict[tuple[str, int], tuple[int, int]]:
        """Of the chosen topics' partitions the earliest offset, and the one behind the last."""

    def read(
        self, at: Mapping[tuple[str, int], int], rows_max: int, seconds: float
    ) -> tuple[list[tuple[str, int, int, bytes | None, bytes | None]], dict[tuple[str, int], int]]:
        """Records from these offsets on (topic, partition, offset, key, value), and the offsets behind them. Waits so
        long for the first. OffsetOutOfRange if one is not there any more."""

    def close(self) -> None: ...


class SoleWriter(Protocol):
    """Who writes under a name."""

    def transaction(self) -> AbstractContextManager[Any]:
        """As the log's, except that rows are not held: they are taken apart when the block ends, one append after the
        other. Fenced if another has the name now."""


@runtime_checkable
class SoleWriters(Protocol):
    """A log in which a name has one writer, whoever took it last. What the one before has open is given up when the
    name is taken, and nothing that it writes afterwards is ever seen."""

    def sole_writer(self, name: str) -> SoleWriter: ...


@runtime_checkable
class TextTopics(Protocol):
    """A log whose topics have texts as others read them, where elsewhere they are rows."""

    def text_topic(self, name: str) -> Topic:
        """A topic with the columns `key` and `value`, which are a record's key and value as they are; made if there is
        none. A null value is a tombstone."""


@runtime_checkable
class GroupsAtOnce(Protocol):
    """A log that tells the groups of all its topics in one go."""

    def groups(self) -> list[tuple[Topic, Group]]: ...


@runtime_checkable
class Erasure(Protocol):
    """A topic from which the records of some keys can be removed, or those with some values in a column: all in one
    pass."""

    def erase(self, *keys: Any, column: str | None = None) -> Erased: ...


@runtime_checkable
class Versions(Protocol):
    """A topic that counts the records of each key, and appends on condition that the count is still the same."""

    def version(self, key: Any) -> int: ...

    def append(self, rows: Rows, *, expect: Mapping[Any, int] | None = None, progress: Progress = None) -> Appended: ...


@runtime_checkable
class Usage(Protocol):
    """A topic that knows its size on disk, and the groups that retention will overtake."""

    def usage(self) -> TopicUsage: ...

    def at_risk(self) -> list[AtRisk]: ...


@runtime_checkable
class Files(Protocol):
    """A log that maintains its own files."""

    def maintain(self) -> Maintained: ...

    def erase_letters(self, topics: Collection[str]) -> Erased: ...

    def usage(self) -> LogUsage: ...

    def verify(self) -> Verified: ...

    def back_up(
        self, target: Path, told: Told, together: Callable[[Callable[[], None]], None]
    ) -> tuple[list[Copied], Verified, int]: ...


@runtime_checkable
class Cluster(Protocol):
    """A log that is kept by servers."""

    def servers(self) -> list[str]:
        """Their addresses, HOST:PORT, as they tell them to clients."""


@runtime_checkable
class Verification(Protocol):
    """A log that can be checked."""

    def verify(self) -> Verified: ...


@runtime_checkable
class Clock(Protocol):
    """A log that stamps arrival itself, so it has to judge the clock."""

    def clock(self) -> ClockStanding: ...

    def confirm_clock(self) -> None: ...

    def mend(self) -> list[Mended]: ...
