"""A flow: what the planner makes of a program, and what is run by itself. It has one view or topic that it writes, and
one place in each topic that it reads. Values only; knows no Spark session, no store and no position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from headrace.aggregates import Aggregate
from headrace.views.contract import ARRIVED as ARRIVED
from headrace.views.contract import AT, WINDOW, Emit, Gaps, feed_topic
from headrace.windows import Drop, Late, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession

    from headrace.flows.graph import Sink
    from headrace.log.contract import Start, Topic
    from headrace.operators.contract import Operator
    from headrace.operators.joins.meetings import Meeting
    from headrace.operators.records import Through

Transform = Callable[[Any], Any]
"""DataFrame -> DataFrame, row by row."""


def through(transforms: Iterable[Transform], df: DataFrame) -> DataFrame:
    return reduce(lambda df, transform: transform(df), transforms, df)


@dataclass(frozen=True, slots=True)
class Input:
    """Records of a topic on their way into a flow. `id` tells a flow's inputs apart: two may read one topic."""

    topic: Topic
    start: Start = "earliest"
    transforms: tuple[Transform, ...] = ()
    changes: bool = False
    """Whether its records are changes, which can take back others."""
    judged: bool = False
    """Whether changes are of records, which can be late; those of a view never are."""
    name: str | None = None
    """What its author calls it."""
    id: str = ""
    role: str = ""
    """Which input of the flow's operator it is, where that has several."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.id or self.topic.name)

    @property
    def marked(self) -> bool:
        """Whether marks among its changes say how far they are: headrace's own topics have them."""
        return self.changes and self.topic.name.startswith("__")

    @property
    def called(self) -> str:
        return self.name or self.id

    @property
    def rows(self) -> bool:
        """Whether its changes are of a view's rows, which are never late."""
        return self.changes and not self.judged


@dataclass(frozen=True, slots=True)
class Flow:
    """`target`: the topic the result goes to; without one it goes to the view of the flow's name."""

    name: str
    inputs: tuple[Input, ...]
    transforms: tuple[Transform, ...] = ()
    """Of all inputs' records together, after those of each."""
    window: Window | None = None
    time: str | None = None
    """A column the transforms made, in place of the topic's event time; or when the records arrived."""
    grace_us: int = 0
    late: Late = field(default_factory=Drop)
    idle_us: int = 30_000_000
    absent_us: int = 3_600_000_000
    groups: tuple[str, ...] = ()
    aggregates: Mapping[str, Aggregate] | None = None
    after: tuple[Transform, ...] = ()
    """Of result rows."""
    target: str | None = None
    emit: Emit | None = None
    keep_us: int | None = None
    lives: bool = False
    """Whether its groups go when no record has come for `keep_us`: its windows are sessions by arrival, of which
    readers see each group's newest, without its times."""
    every_us: int = 0
    """While it is live, a batch is taken at most so often."""
    fill: Gaps | None = None
    """What readers of the view see where a group has no records in a window."""
    feeds: tuple[Emit, ...] = ()
    """Which of the view's changes other flows read."""
    records: bool = False
    """Whether its results are records, one of many that are alike: only other flows read them."""
    through: Through | None = None
    """The step that records go through behind the transforms, and that keeps state: what it passes on is for other
    flows."""
    meets: Meeting | None = None
    """The step in which the records of its inputs meet: a join, or a table."""
    operator: Operator | None = field(default=None, compare=False)
    """What records go through, or meet in, when the columns are known."""
    parent: str | None = None
    """Of a helper, which the planner made and no user has named: the flow that it works for, directly or through other
    helpers."""
    sink: Sink | None = field(default=None, compare=False, repr=False)
    """The end of the program's graph that it was planned from."""

    @property
    def retracts(self) -> bool:
        """Whether what it reads can take back what it has read."""
        return any(each.changes for each in self.inputs)

    @property
    def marked(self) -> bool:
        """Whether marks say how far what it reads is; otherwise the log does."""
        return any(each.marked for each in self.inputs)

    def is_marked(self, topic: str) -> bool:
        """Whether marks among its changes say how far the topic is."""
        return any(each.marked for each in self.inputs if each.topic.name == topic)

    @property
    def judged(self) -> bool:
        """Whether what it reads can be late."""
        return not self.retracts or any(each.judged for each in self.inputs)

    @property
    def by_arrival(self) -> bool:
        """Whether its time is when records arrived: the log's own, and in a partition it never goes back."""
        return self.time == ARRIVED

    @property
    def own_progress(self) -> bool:
        """True when event time comes from a transform, so the flow tracks progress itself."""
        return self.time is not None and not self.by_arrival

    @property
    def tells_topic(self) -> bool:
        """Whether records carry the number of their topic: what is known of a partition must not meet another's."""
        return self.own_progress or self.through is not None

    @property
    def topics(self) -> list[Topic]:
        """Each once: a flow has one place in a topic, however many inputs read it."""
        return list({each.topic.name: each.topic for each in self.inputs}.values())

    def topic_number(self, read: Input) -> int:
        """Which of `topics` the input reads."""
        return [topic.name for topic in self.topics].index(read.topic.name)

    @property
    def shares_topic(self) -> bool:
        """Whether two inputs read one topic."""
        return len(self.topics) < len(self.inputs)

    @property
    def written(self) -> set[str]:
        """The names of the topics it writes to."""
        own = {feed_topic(self.name, emit) for emit in self.feeds}
        return own | {name for name in (self.target, self.late.dropped_to) if name is not None}


def event_times(flow: Flow) -> dict[str, str | None]:
    """By side, the column with its records' event time; None where the topics have none, or different ones. The rows
    of a view have the end of their window."""
    found: dict[str, set[str | None]] = {}
    for each in flow.inputs:
        time = each.topic.settings.event_time
        found.setdefault(each.role, set()).add(WINDOW[1] if time == AT else time)
    return {role: names.pop() if len(names) == 1 else None for role, names in found.items()}


def circle(new: Flow, flows: Iterable[Flow]) -> list[str]:
    """The names of the flows by which what `new` writes comes back to it; none if it does not."""
    ways, others = [[new]], {flow.name: flow for flow in flows}
    for way in ways:  # which grows
        if way[-1].written & {topic.name for topic in new.topics}:
            return [flow.name for flow in way]
        for name, other in list(others.items()):
            if way[-1].written & {topic.name for topic in other.topics}:
                ways.append([*way, others.pop(name)])
    return []
