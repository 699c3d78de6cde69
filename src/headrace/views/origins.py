"""How far a flow has come in the topics its records come from, through the flows before it. Pure: values in and out.

    clicks ─→ flow "visits.dedup" ─→ topic "__changes.visits.dedup" ─→ flow "visits"

A flow that writes a topic leaves steps: when it had read up to `read`, it had written the topic up to `written`. A
reader of the topic that is at `written`, or beyond, has all results of `read`. A commit that writes nothing moves
`read` on and leaves `written` as it is. So a position is followed from the view upwards, step by step."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from headrace.position import Position

__all__ = ["Branch", "Reader", "branches", "has", "higher", "latest", "lower", "position_of", "reached", "thinned"]

STEPS_MAX = 128
"""When a flow has more steps, some of the older ones go."""
Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Reader:
    """A flow: what it reads, how far it is, what it writes, and its steps as (read, written), the newest first."""

    name: str
    sources: tuple[str, ...]
    topic_ids: Mapping[str, str]
    read: Position
    writes: frozenset[str] = frozenset()
    steps: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """One way from a topic to a flow: the offsets up to which the flow has the topic's records, by partition. Without
    a `topic_id` nothing was read yet. `written`: flows of the home write the topic, and have come so far; else None."""

    topic: str
    topic_id: str | None
    offsets: Offsets
    direct: bool
    """Whether the flow reads the topic itself."""
    written: Offsets | None = None

    @property
    def between(self) -> bool:
        """Whether the topic is headrace's own, between two flows: nobody else writes it."""
        return self.topic.startswith("__") and self.written is not None


def branches(flow: str, flows: Mapping[str, Reader]) -> list[Branch]:
    """Every way from a topic to the flow, the topics it reads itself included."""
    return list(_branches(flows[flow], flows[flow].read, flows, (flow,)))


def _branches(reader: Reader, read: Position, flows: Mapping[str, Reader], way: tuple[str, ...]) -> Iterator[Branch]:
    for topic in reader.sources:
        topic_id = reader.topic_ids.get(topic)
        offsets = _offsets(read, topic, topic_id)
        writers = [each for each in flows.values() if topic in each.writes and each.name not in way]
        written = [_last_written(each, topic, topic_id) for each in writers]
        yield Branch(topic, topic_id, offsets, len(way) == 1, reduce(higher, written) if written else None)
        for writer in writers:
            yield from _branches(writer, _read_by(writer, topic, topic_id, offsets), flows, (*way, writer.name))


def _read_by(writer: Reader, topic: str, topic_id: str | None, offsets: Offsets) -> Position:
    """What the writer had read when it had written no more than the offsets."""
    for read, written in writer.steps:
        if has(written, topic, topic_id, offsets):
            return Position.parse(read)
    return Position()


def has(written: str, topic: str, topic_id: str | None, offsets: Offsets) -> bool:
    """Whether who has read the topic up to the offsets has read all of it that was written."""
    ends = [(found_id, nexts) for name, found_id, nexts in Position.parse(written).topics if name == topic]
    return all(found_id == topic_id and _covers(offsets, nexts) for found_id, nexts in ends)


def _last_written(writer: Reader, topic: str, topic_id: str | None) -> Offsets:
    ends = Position.parse(writer.steps[0][1]).topics if writer.steps else ()
    found = [nexts for name, found_id, nexts in ends if name == topic and topic_id in (None, found_id)]
    return dict(found[0]) if found else {}


def _offsets(position: Position, topic: str, topic_id: str | None) -> dict[int, int]:
    found = [nexts for name, found_id, nexts in position.topics if (name, found_id) == (topic, topic_id)]
    return dict(found[0]) if found else {}


def _covers(offsets: Offsets, nexts: Iterable[tuple[int, int]]) -> bool:
    return all(offsets.get(partition, 0) >= offset for partition, offset in nexts)


def reached(found: Iterable[Branch], position: Position) -> bool | None:
    """Whether the position was read by every branch that begins at one of its topics; None if none does. A branch of
    an older topic of the name reads another."""
    asked = [
        _covers(branch.offsets, nexts)
        for branch in found
        for topic, topic_id, nexts in position.topics
        if branch.topic == topic and branch.topic_id in (None, topic_id)
    ]
    return all(asked) if asked else None


def position_of(found: Iterable[Branch]) -> Position:
    """How far all branches have come, in the topics that are not between two flows."""
    least: dict[tuple[str, str], dict[int, int]] = {}
    unread: set[str] = set()
    for branch in found:
        if branch.topic_id is None:
            unread.add(branch.topic)
        elif not branch.between:
            known = least.get((branch.topic, branch.topic_id), branch.offsets)
            least[branch.topic, branch.topic_id] = lower(known, branch.offsets)
    out = Position()
    for (topic, topic_id), offsets in least.items():
        if topic not in unread:
            out |= Position.of(topic, topic_id, offsets)
    return out


def lower(one: Offsets, other: Offsets) -> dict[int, int]:
    """The lower offset of each partition."""
    return {partition: min(one.get(partition, 0), other.get(partition, 0)) for partition in one.keys() | other.keys()}


def higher(one: Offsets, other: Offsets) -> Offsets:
    """The higher offset of each partition."""
    return {partition: max(one.get(partition, 0), other.get(partition, 0)) for partition in one.keys() | other.keys()}


def latest(before: Position, after: Position) -> Position:
    """Both; of a topic that was made again since, the new one alone."""
    ids = {name: topic_id for name, topic_id, _ in after.topics}
    kept = (topic for topic in before.topics if ids.get(topic[0], topic[1]) == topic[1])
    return Position(tuple(kept)) | after


def thinned(sequences: Sequence[int], held: Container[int] = ()) -> list[int]:
    """Which of the steps go, so that few stay however many there were: the further back, the wider apart. What is
    `held` stays."""
    newest, kept, gone = sequences[-1], sequences[0], []
    for here, after in pairwise(sequences[1:]):
        if here not in held and after - kept <= (newest - after) // 4:
            gone.append(here)
        else:
            kept = here
    return gone
