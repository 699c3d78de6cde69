"""How far the inputs of a flow are. Owns what a flow sees of its topics at one moment (their ends, silence, the marks
of those who write them), and what follows from it: the frontier, up to which results are final, and the reach, below
which state may be dropped. `horizon` has the rules. Knows no Spark, and commits nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace import horizon
from headrace.durations import from_us, instant_us
from headrace.flows.reading.reached import remembering
from headrace.log.capabilities import Transactions
from headrace.log.contract import Offsets
from headrace.log.declared import DeclaredTopic
from headrace.operators.contract import InputTimes
from headrace.views.contract import FlowState, Mark, Place, ViewStore

if TYPE_CHECKING:
    from headrace.flows.flow import Flow
    from headrace.log.contract import Topic

__all__ = ["Clock", "Ends", "Inputs", "Look", "Places", "arrived_us", "steady_clock", "wall_clock_us"]

Clock = Callable[[], int]
Ends = dict[str, dict[int, Offsets]]
Places = Mapping[str, Mapping[int, Place]]
CLOCKS_US = 1_000_000
"""The clocks of a cluster's brokers, which stamp arrival, differ by no more."""


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def steady_clock() -> Clock:
    """The machine's clock as it is now, moved on by one that nobody sets."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (offset_ns + time.monotonic_ns()) // 1000


@dataclass(frozen=True, slots=True)
class Look:
    """What a flow saw of its topics at one moment: what has come since is not in it, so nobody is quiet for not being
    in it. `quiet_us`: for how long nothing has come to a partition, where that counts. `marks`: of topics that flows
    write to; None if nobody asked."""

    ends: Ends
    now_us: int = 0
    """The clock, before the ends were looked up."""
    quiet_us: Mapping[tuple[str, int], int] = field(default_factory=dict)
    marks: Mapping[str, Mark | None] | None = None
    unseen: frozenset[tuple[str, int]] = frozenset()
    """Partitions with records behind their ends, of transactions that were open: they had arrived, and will be seen
    later. Only where records of several inputs meet."""


class Inputs:
    """Of one flow in this process. `until`: no further than this state of the flow. `at_once`: silence counts at once,
    and not only when this process has been at a partition's end for `idle`, as it must be where producers may be about
    to write."""

    def __init__(
        self, flow: Flow, store: ViewStore, *, until: FlowState | None, at_once: bool, clock_us: Clock
    ) -> None:
        self._flow, self._store, self._until = flow, store, until
        self._at_once, self._clock_us = at_once, clock_us
        self._at_end_since: dict[tuple[str, int], int] = {}

    def begin(self) -> None:
        """Forgets for how long partitions have been quiet."""
        self._at_end_since.clear()

    def look(self, places: Places, now_us: int, *, marks: bool = False) -> Look:
        """What a flow that is at `places` sees. `marks`: asks the store for them, first, so that what they speak of is
        before the ends."""
        told = self._marks() if marks else None
        written = self._written() if self._flow.meets is not None and self._until is None else {}
        ends = self.ends(places)
        unseen = frozenset(at for at, offset in written.items() if offset > ends[at[0]][at[1]].next)
        quiet = {} if self._until is not None else self._quiet(places, ends, now_us)
        return Look(ends, now_us, quiet, told, unseen)

    def ends(self, places: Places) -> Ends:  # noqa: ARG002 (a version beside the served one has a limit by it)
        """Where the topics end; with `until`, no further than that."""
        ends = {topic.name: topic.ends() for topic in self._flow.topics}
        if self._until is not None:  # partitions that were added since are not read
            for topic, found in ends.items():
                known = self._until.places.get(topic, {})
                ends[topic] = {partition: self._end_at(place, found[partition]) for partition, place in known.items()}
        return ends

    def _end_at(self, place: Place, end: Offsets) -> Offsets:
        """The end of a partition that is read no further than to the place."""
        reached = None if place.progress_us is None else from_us(place.progress_us)
        earliest = min(end.earliest, place.offset)  # what came later may be gone, too
        arrived = reached if self._flow.by_arrival else end.arrived_at
        return replace(end, earliest=earliest, next=place.offset, progress=reached, arrived_at=arrived)

    def _written(self) -> dict[tuple[str, int], int]:
        """Up to where partitions are written, where that is not where they can be read to."""
        topics = [(each.name, each.opened() if isinstance(each, DeclaredTopic) else each) for each in self._flow.topics]
        return {
            (name, partition): offset
            for name, topic in topics
            if isinstance(topic, Transactions)
            for partition, offset in topic.written().items()
        }

    def _marks(self) -> dict[str, Mark | None]:
        """None by arrival: whatever flows write yet, it will have arrived later."""
        asked = [] if self._flow.by_arrival else self._unmarked_names()
        return self._store.marks(asked) if asked else {}

    def _unmarked_names(self) -> list[str]:
        return [topic.name for topic in self._flow.topics if not self._flow.is_marked(topic.name)]

    def _quiet(self, places: Places, ends: Ends, now_us: int) -> dict[tuple[str, int], int]:
        """For how long nothing has come, of the partitions where that counts."""
        out = {}
        for topic in self._unmarked_names():
            for partition, end in ends[topic].items():
                place = places.get(topic, {}).get(partition, Place(0, None))
                since_us = self._at_end_since.setdefault((topic, partition), now_us)
                if place.offset < end.next:
                    since_us = self._at_end_since[topic, partition] = now_us  # at the earliest
                if self._at_once or now_us - since_us >= self._flow.idle_us:
                    out[topic, partition] = now_us - arrived_us(end)
        return out

    def is_logged(self, topic: Topic) -> bool:
        """Whether the topic's own event time counts, and not one that transforms make, or writers' marks."""
        return not (self._flow.own_progress or self._flow.is_marked(topic.name))

    def goes_back(self) -> bool:
        """Whether a record to come can have less progress than one that was read: then nothing that is kept goes. Asked
        for each commit, since a flow that writes a topic may begin after those that read it."""
        if self._until is not None:
            return True
        if (self._flow.window is None and self._flow.meets is None) or self._flow.by_arrival:
            return False
        return self._store.goes_back(self._unmarked_names())

    def frontier(self, places: Places, look: Look) -> int | None:
        """Up to where all inputs are complete; one without any progress holds nobody up. In the log's time, no further
        than flows are that write an input: records of one partition of theirs say nothing of the others."""
        marks = self._marks() if look.marks is None else look.marks
        found = [self._frontier_of(topic, places[topic], look, marks) for topic in places]
        known = [us for us in found if us is not None]
        if not known:
            return None
        bounds = [mark.us for mark in marks.values() if mark is not None] if self._flow.time is None else []
        least = min([*known, *bounds])
        reached = None if self._until is not None or marks else self.reach_us(places, look.ends)
        return least if reached is None else max(least, reached)

    def _frontier_of(
        self, topic: str, places: Mapping[int, Place], look: Look, marks: Mapping[str, Mark | None]
    ) -> int | None:
        """Of one topic. What flows write is moved on by them alone, and not by silence: they may be behind."""
        ends = look.ends[topic]
        at_end = {partition for partition, place in places.items() if place.offset >= ends[partition].next}
        counts = at_end if topic not in marks else ()
        partitions = [
            horizon.Partition(place.progress_us, look.quiet_us.get((topic, partition), 0) if partition in counts else 0)
            for partition, place in places.items()
        ]
        found, mark = horizon.frontier(partitions, self._flow.idle_us, self._flow.absent_us), marks.get(topic)
        if mark is None or not mark.sent or look.marks is None or len(at_end) < len(places):
            return found
        return mark.us if found is None else max(mark.us, found)

    def reach_us(self, places: Places, ends: Ends) -> int | None:
        """The least progress a record to come can have."""
        found = [each for topic in self._flow.topics for each in self.reaches(topic, places[topic.name], ends)]
        return horizon.reach(found)

    def reaches(self, topic: Topic, places: Mapping[int, Place], ends: Ends) -> Sequence[horizon.Partition]:
        """A partition that slept for longer than `forget`, until the last record came to the topic, wakes with the
        topic's floor; not in a time that the log does not know."""
        known = ends[topic.name]
        newest_us = max(map(arrived_us, known.values()), default=0)
        furthest = [instant_us(end.progress, argument="progress") for end in known.values() if end.progress is not None]
        if remembering(topic) and self.is_logged(topic) and not self._flow.by_arrival:  # the ends may not be read yet
            furthest += [place.progress_us for place in places.values() if place.progress_us is not None]
        floor_us = None
        if furthest and self._flow.time is None and not self._flow.is_marked(topic.name):
            floor_us = max(furthest) - topic.settings.forget_us
        out = []
        for partition, place in places.items():
            end = known[partition]
            at_end = place.offset >= end.next
            sleeps = at_end and newest_us - arrived_us(end) > topic.settings.forget_us
            least_us = floor_us if sleeps else None
            if at_end and self._flow.lives:  # nothing arrives before what has arrived, but where a clock was mended
                least_us = min(newest_us, self._clock_us())
            out.append(horizon.Partition(place.progress_us, floor_us=least_us))
        return out

    def times(
        self, places: Places, look: Look, unchanging_us: int | None, reaches_us: Mapping[str, int | None]
    ) -> dict[str, InputTimes]:
        """By side, how far its topics are. A table that was read to its ends is known as of the clock before these were
        looked up; and what it gets later arrives no earlier than what other topics had then."""
        assert self._flow.meets is not None
        out = dict[str, InputTimes]()
        marks = self._marks() if look.marks is None else look.marks
        told = {each.role for each in self._flow.inputs if each.marked}
        for role in dict.fromkeys(each.role for each in self._flow.inputs):
            topics = list({each.topic.name: each.topic for each in self._flow.inputs if each.role == role}.values())
            own = {topic.name: places[topic.name] for topic in topics}
            if role in self._flow.meets.first and any(map(self._flow.is_marked, own)):
                known = [place.progress_us for each in own.values() for place in each.values()]
                told_us = None if None in known else min((us for us in known if us is not None), default=None)
                out[role] = InputTimes(told_us, unchanging_us if self._until is None else None)
                continue
            if role in self._flow.meets.first:
                read = all(
                    known.get(at, Place(0, None)).offset >= end.next and (name, at) not in look.unseen
                    for name, known in own.items()
                    for at, end in look.ends[name].items()
                )
                arrived = [arrived_us(end) for known in look.ends.values() for end in known.values()]
                out[role] = InputTimes(look.now_us, max(arrived, default=None)) if read else InputTimes(None, None)
                continue
            if any(map(self._flow.is_marked, own)):
                out[role] = self._told_by_marks(own, reaches_us)
                continue
            found = [self._frontier_of(name, known, look, marks) for name, known in own.items()]
            bounds = [mark.us for name, mark in marks.items() if mark is not None and name in own]
            known_us = [us for us in found if us is not None]
            reach_us = horizon.reach([each for t in topics for each in self.reaches(t, own[t.name], look.ends)])
            frontier_us = min([*known_us, *bounds]) if known_us else None
            if frontier_us is not None and reach_us is not None and not marks:
                frontier_us = max(frontier_us, reach_us)
            reach_us = reach_us if self._until is None and not self.goes_back() else None
            records = not any(each.changes for each in self._flow.inputs if each.role == role)
            arrives_us = self._arrives_us(own, look) if records else None  # rows that go have old arrivals
            out[role] = InputTimes(frontier_us, reach_us, arrived_us=arrives_us)
        streams = [each.frontier_us for role, each in out.items() if role not in self._flow.meets.first]
        others = min((us for us in streams if us is not None), default=None)
        for role, each in out.items():  # a side without any progress holds nobody up
            if each.frontier_us is None and role not in (*self._flow.meets.first, *told):
                out[role] = replace(each, frontier_us=others)
        return out

    def _arrives_us(self, places: Places, look: Look) -> int | None:
        """What is still to come of these topics arrived then or later: behind the end of one, later than all that had
        arrived when the ends were looked up. None: not known, as of what flows write, which keeps its own arrival."""
        if self._until is not None or any(name.startswith("__") for name in places):
            return None
        newest_us = max((arrived_us(end) for known in look.ends.values() for end in known.values()), default=None)
        if newest_us is not None and any(map(remembering, self._flow.topics)):
            newest_us -= CLOCKS_US
        found = [
            newest_us
            if place.offset >= look.ends[name][partition].next and (name, partition) not in look.unseen
            else place.arrived_us
            for name, known in places.items()
            for partition, place in known.items()
        ]
        return None if None in found else min((us for us in found if us is not None), default=None)

    def _told_by_marks(self, places: Places, reaches_us: Mapping[str, int | None]) -> InputTimes:
        """How far a side is whose records another flow passes on. One that has said nothing yet may be behind. A view
        has no reach: when it is rebuilt, it may take any row back."""
        (name,) = places
        closed = [place.progress_us for place in places[name].values()]
        frontier_us = min((us for us in closed if us is not None), default=None) if None not in closed else None
        rebuilt = any(each.rows for each in self._flow.inputs if each.topic.name == name)
        return InputTimes(frontier_us, None if rebuilt or self._until is not None else reaches_us.get(name))


def arrived_us(end: Offsets) -> int:
    assert end.arrived_at is not None
    return instant_us(end.arrived_at, argument="arrived_at")
