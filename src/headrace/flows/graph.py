"""A program as values: where records come from, what is done with them, where results go. Each node is what a user
wrote in one step, and knows the nodes before it. Nothing is opened, created or started here; `plan` checks the nodes
and makes flows of them.

    Source | Changes ─ Transform, Union, Dedup, Through, Meet ─ Window ─ Aggregate ─ Sink"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace import aggregates, bloom, windows
from headrace.flows.flow import Flow
from headrace.flows.flow import Transform as Function
from headrace.views.contract import Emit, Gaps

if TYPE_CHECKING:
    from headrace.log.contract import Start, Topic
    from headrace.log.declared import DeclaredTopic
    from headrace.operators import records
    from headrace.operators.joins import meetings

IDLE_US, ABSENT_US = 30_000_000, 3_600_000_000


@dataclass(frozen=True)
class Source:
    """The records of a topic."""

    topic: Topic
    start: Start = "earliest"
    name: str | None = None
    """What its author calls it."""


@dataclass(frozen=True)
class Changes:
    """The changes of a view of the same program. `topic`: where its flow leaves them."""

    view: Flow
    topic: DeclaredTopic
    emit: Emit = "updates"
    name: str | None = None


@dataclass(frozen=True)
class Transform:
    of: Records
    function: Function


@dataclass(frozen=True)
class Union:
    left: Records
    right: Records


@dataclass(frozen=True)
class Dedup:
    """`approximate`: how repetitions are found in bounded memory; None: exactly."""

    of: Records
    key: tuple[str, ...]
    within_us: int
    grace_us: int = 0
    late: windows.Late | None = None
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    approximate: bloom.Dedup | None = None


@dataclass(frozen=True)
class Through:
    """Records that go through an operator, which keeps state and passes records on."""

    of: Records
    step: records.Through


@dataclass(frozen=True)
class Meet:
    """Records of several inputs that meet in an operator: joins, and a table's own records. `sides`: by the operator's
    name of each input."""

    sides: tuple[tuple[str, Records], ...]
    step: meetings.Meeting


Records = Source | Changes | Transform | Union | Dedup | Through | Meet


@dataclass(frozen=True)
class Window:
    """`window`: None for one result of all time."""

    of: Records
    window: windows.Window | None = None
    time: str | None = None
    grace_us: int = 0
    late: windows.Late | None = None
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    fill: Gaps | None = None


@dataclass(frozen=True)
class Aggregate:
    of: Window
    groups: tuple[str, ...]
    aggregates: Mapping[str, aggregates.Aggregate]
    after: tuple[Function, ...] = ()
    """Transforms of result rows."""


@dataclass(frozen=True)
class Sink:
    """Where a chain of nodes ends: in a view, or in the topic `target`."""

    name: str
    of: Records | Aggregate
    target: str | None = None
    emit: Emit | None = None
    keep_us: int | None = None
    every_us: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the topic, as the user wrote them."""

    @property
    def plain(self) -> bool:
        """Whether the topic gets records where it would get changes: rows that are never taken back."""
        return self.settings.get("changes") is False


Node = Records | Window | Aggregate | Sink


def before(node: Node) -> tuple[Node, ...]:
    match node:
        case Source() | Changes():
            return ()
        case Union(left, right):
            return left, right
        case Meet():
            return tuple(node for _, node in node.sides)
        case _:
            return (node.of,)


def walk(node: Node) -> Iterator[Node]:
    """The node and all before it, those that come first at first."""
    for each in before(node):
        yield from walk(each)
    yield node
