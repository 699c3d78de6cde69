"""Where a flow is in the topics that it reads. Owns its place in each partition, from where it begins to behind what
was read last, and how far event time had come there: read from the log, or, where only reading tells, from marks that
go into the flow's transactions. Knows no Spark and no store: what it says is of the log alone, and is said again after
a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import LogDiverged
from headrace.flows.reading import ranges
from headrace.flows.reading.reached import remembering
from headrace.log.contract import Offsets
from headrace.time import UNSET
from headrace.views.contract import FlowState, Place, ReadMark

if TYPE_CHECKING:
    from headrace.flows.flow import Flow
    from headrace.flows.reading.inputs import Inputs
    from headrace.log.contract import Topic

__all__ = ["FlowPlaces", "Places"]

LAST_MARK_ROWS = 10_000
"""So far back the last mark is looked for when a flow begins again."""
Places = dict[str, dict[int, Place]]
"""By topic and partition."""
Ends = dict[str, dict[int, Offsets]]


class FlowPlaces:
    """`until`: the flow reads no further than this state of it."""

    def __init__(self, flow: Flow, inputs: Inputs, until: FlowState | None) -> None:
        self._flow, self._inputs, self._until = flow, inputs, until
        self.now: Places = {}
        """Behind what was read last, committed or not."""
        self.marked_us = dict[str, int | None]()
        """Of topics with marks: the reach that the last mark read says."""

    def begin(self, state: FlowState) -> None:
        """LogDiverged if the log is not the one that the flow has read."""
        for topic in self._flow.topics:
            self._refuse_diverged(topic, state.places.get(topic.name, {}))
        self.now = copied(state.places)
        self.marked_us = self._last_marks() if self._flow.meets is not None else {}

    def _refuse_diverged(self, topic: Topic, places: Mapping[int, Place]) -> None:
        """LogDiverged if the log has other records than the flow has read: an older copy was restored, and written to
        since. Upkeep keeps when a record arrived; of one that it took away nothing can be said."""
        ends = topic.ends()
        for partition, place in places.items():
            found, known = topic.arrived_us(partition, place.offset - 1), place.arrived_us
            another = None not in (found, known) and found != known
            if remembering(topic):  # there the newest arrival up to the place is kept
                another = another and (found or 0) > (known or 0)
            if another or place.offset > ends[partition].next:
                flow = self._flow
                raise LogDiverged(flow.name, topic.name, partition, place.offset, ends[partition].next, flow.parent)

    def _last_marks(self) -> dict[str, int | None]:
        """What the last marks before the flow's places say, if they are not far back: else the next one will."""
        out: dict[str, int | None] = {}
        for topic in self._flow.topics:
            if self._flow.is_marked(topic.name):
                earliest = {partition: end.earliest for partition, end in topic.ends().items()}
                for partition, place in self.now.get(topic.name, {}).items():
                    start = max(earliest[partition], place.offset - LAST_MARK_ROWS)
                    out[topic.name] = ranges.marks(topic, ranges.Range(partition, start, place.offset))[1]
        return out

    def first(self) -> tuple[Places, list[ReadMark]]:
        """Where the flow starts is committed before anything is read: 'latest' is decided once."""
        out = {}
        ends = self._inputs.ends(self.now)
        for read in self._flow.inputs:
            name = read.topic.name
            begin = ranges.begin(read.topic, read.start) if self._until is None else self._began(name, ends[name])
            out[name] = {
                partition: self.place(read.topic, partition, offset, ends[name][partition])
                for partition, offset in begin.items()
            }
        self.now = copied(out)
        return out, self._marks_of(out, {})

    def _began(self, topic: str, ends: Mapping[int, Offsets]) -> dict[int, int]:
        """Where the flow began whose state this one is to come to; later, where the log has no more what is before."""
        assert self._until is not None
        began = self._until.begins.get(topic, {})
        return {
            partition: max(ends[partition].earliest, began[partition].offset if partition in began else 0)
            for partition in self._until.places.get(topic, {})
        }

    def remember(self, marks: Sequence[ReadMark]) -> None:
        """The flow's transactions keep how far its topics had come where only reading tells."""
        for topic in self._flow.topics:
            if known := remembering(topic):
                some: dict[int, list[ReadMark]] = {}
                for mark in marks:
                    if mark.topic == topic.name:
                        some.setdefault(mark.partition, []).append(mark)
                known.remember(some)

    def _marks_of(self, places: Places, before: Places) -> list[ReadMark]:
        """Of the places that the flow comes to from those before."""
        out = []
        for topic in self._flow.topics:
            known = remembering(topic)
            for partition, place in places[topic.name].items() if known else ():
                assert known is not None
                if place != before.get(topic.name, {}).get(partition):
                    at = known.reached(partition, place.offset)
                    us = None if at.progress_us == UNSET else at.progress_us
                    out.append(ReadMark(topic.name, partition, place.offset, us, at.arrived_us, at.raised))
        return out

    def place(self, topic: Topic, partition: int, offset: int, end: Offsets) -> Place:
        """Without the progress of a time that the log does not know."""
        place = Place(offset, None)
        if self._inputs.is_logged(topic) or remembering(topic):
            place = ranges.place_at(topic, partition, offset, end, by_arrival=self._flow.by_arrival)
        if remembering(topic) is None:
            place = replace(place, arrived_us=topic.arrived_us(partition, offset - 1))
        return place if self._inputs.is_logged(topic) else replace(place, progress_us=None)

    def behind(self, ends: Ends) -> tuple[Places, list[ranges.Behind]]:
        """Where it is, with partitions that were added since; and the same for who plans what to read next."""
        places, behind = copied(self.now), []
        for topic in self._flow.topics:
            for partition in ends[topic.name]:
                places[topic.name].setdefault(partition, Place(0, None))
            at = {partition: place.offset for partition, place in places[topic.name].items()}
            behind.append(ranges.Behind(topic, at, ends[topic.name]))
        return places, behind

    def advance(
        self, planned: dict[str, list[ranges.Range]], places: Places, ends: Ends
    ) -> tuple[int | None, dict[str, int | None]]:
        """Moves `places` behind what is planned, and has the ranges carry the flow's own progress. Up to where the view
        that it reads says that nothing changes any more; and `marked_us` behind these ranges."""
        unchanging, marked_us = list[int | None](), dict(self.marked_us)
        for topic in self._flow.topics:
            known, chosen = places[topic.name], planned[topic.name]
            if self._flow.own_progress:
                chosen = [replace(each, carry_us=known[each.partition].progress_us) for each in chosen]
                planned[topic.name] = chosen
            for each in chosen:
                place = Place(each.stop, None)
                if remembering(topic) is None:
                    place = self.place(topic, each.partition, each.stop, ends[topic.name][each.partition])
                if self._flow.is_marked(topic.name):
                    closed, reachable = ranges.marks(topic, each)
                    before = known[each.partition].progress_us
                    place = replace(place, progress_us=before if closed is None else closed)
                    unchanging.append(reachable)
                    if reachable is not None:
                        marked_us[topic.name] = reachable
                own = self._flow.own_progress
                known[each.partition] = replace(place, progress_us=each.carry_us) if own else place
        told = [us for us in unchanging if us is not None]
        marked = sum(len(known) for name, known in ends.items() if self._flow.is_marked(name))
        return min(told) if told and len(told) == marked else None, marked_us

    def reach(self, places: Places, found: Mapping[tuple[int, int], int]) -> None:
        """The progress of a time that the transforms made is the flow's own: the log does not know it."""
        for number, topic in enumerate(self._flow.topics):
            for partition, place in places[topic.name].items():
                before = self.now.get(topic.name, {}).get(partition, Place(0, None)).progress_us
                after = [us for us in (before, found.get((number, partition))) if us is not None]
                places[topic.name][partition] = replace(place, progress_us=max(after, default=None))

    def settle(self, planned: Mapping[str, Sequence[ranges.Range]], places: Places, ends: Ends) -> list[ReadMark]:
        """Puts into `places` how far what was read has come, where only reading tells; the marks of it."""
        for topic in self._flow.topics:
            for each in planned[topic.name] if remembering(topic) else ():
                here, end = places.get(topic.name, {}), ends.get(topic.name, {})[each.partition]
                found, known = self.place(topic, each.partition, each.stop, end), here[each.partition]
                logged = self._inputs.is_logged(topic)
                here[each.partition] = found if logged else replace(known, arrived_us=found.arrived_us)
        return self.raised(places, ends)

    def raised(self, places: Places, ends: Ends) -> list[ReadMark]:
        """Partitions that slept do not reopen the past when they wake: see `Inputs.reaches`. Other logs stamp that on
        the records; here it is a mark of the flow's, by which it is known again. Raises `places`, too; all marks."""
        if self._until is None and self._flow.time is None and not self._flow.by_arrival:
            for topic in self._flow.topics:
                known, here = remembering(topic), places[topic.name]
                if known is None or self._flow.is_marked(topic.name):
                    continue
                for partition, each in zip(here, self._inputs.reaches(topic, here, ends), strict=True):
                    place = here[partition]
                    if each.floor_us is not None and each.floor_us > (place.progress_us or UNSET):
                        place = here[partition] = replace(place, progress_us=each.floor_us)
                        at = (place.offset, place.progress_us, place.arrived_us)
                        known.remember({partition: [ReadMark(topic.name, partition, *at, raised=True)]})
        return self._marks_of(places, self.now)


def copied(places: Mapping[str, Mapping[int, Place]]) -> Places:
    return {topic: dict(known) for topic, known in places.items()}
