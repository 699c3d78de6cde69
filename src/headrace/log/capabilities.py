"""What only some logs can do, each a protocol of its own, asked for by name:

    capability(topic, Queues).queue("mail")

Owns the protocols and the question. A log that cannot do it raises Unsupported; no caller asks which log it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from headrace.durations import Duration
from headrace.errors import Unsupported
from headrace.log.contract import (
    Appended,
    AtRisk,
    ClockStanding,
    Closing,
    Erased,
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
    TopicUsage,
    Verified,
)

__all__ = ["Clock", "Erasure", "Files", "Message", "Order", "Queue", "Queues", "Usage", "Versions", "capability"]

Order = Literal["none", "key"]
Capability = TypeVar("Capability")


def capability(handle: Log | Topic, kind: type[Capability]) -> Capability:
    """The log or topic as one that can also do that; Unsupported if it cannot."""
    if isinstance(handle, kind):
        return handle
    raise Unsupported(repr(handle), kind.__name__.lower())


class Message(Closing, Protocol):
    """A record as one delivery of a queue. Answer it before its visibility runs out: `ack`, `nack`, or by
    `with message:`, which acknowledges, or rejects it when the block raises (and lets the exception through)."""

    topic: str
    partition: int
    offset: int
    arrived_at: datetime
    key: Any
    value: dict[str, Any]
    deliveries: int
    """How often it was handed out, this time included."""
    answered: bool
    """Whether this delivery was acknowledged, rejected or given back, by this very object."""

    @property
    def queue(self) -> str:
        """The queue's name."""

    def ack(self) -> None:
        """It is done. LeaseExpired when it was given to somebody else meanwhile."""

    def nack(self, error: str = "", *, delay: Duration | None = None) -> None:
        """It failed: somebody gets it again, after `delay`; after `max_deliveries` it is a dead letter."""

    def extend(self, duration: Duration) -> None:
        """It takes longer: from now on nobody else gets it for `duration`."""


class Queue(Protocol):
    """A queue on a topic: hands messages out one by one, and again until they are answered."""

    name: str

    @property
    def visibility(self) -> timedelta: ...

    @property
    def max_deliveries(self) -> int: ...

    @property
    def order(self) -> Order: ...

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
    """A topic whose records are handed out one by one."""

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
class Erasure(Protocol):
    """A topic from which the records of a key can be removed."""

    def erase(self, key: Any) -> Erased: ...


@runtime_checkable
class Versions(Protocol):
    """A topic that counts the records of each key, and appends on condition that the count is still the same."""

    def version(self, key: Any) -> int: ...

    def append(self, rows: Rows, *, expect: Mapping[Any, int] | None = None, progress: Progress = None) -> Appended: ...


@runtime_checkable
class Usage(Protocol):
    """A topic that knows what it takes on disk, and whom its retention overtakes."""

    def usage(self) -> TopicUsage: ...

    def at_risk(self) -> list[AtRisk]: ...


@runtime_checkable
class Files(Protocol):
    """A log that looks after files of its own."""

    def maintain(self) -> Maintained: ...

    def usage(self) -> LogUsage: ...

    def verify(self) -> Verified: ...


@runtime_checkable
class Clock(Protocol):
    """A log that stamps arrival itself, and so has to judge the clock."""

    def clock(self) -> ClockStanding: ...

    def confirm_clock(self) -> None: ...

    def mend(self) -> list[Mended]: ...
