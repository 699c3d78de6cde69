"""How far a log was written: a value that travels.

Owns `Position` and its text form, e.g. `clicks~1a2b3c4d:0=12,1=7;orders~99ff:0=3`: for each topic (name and
id, so that a recreated topic is never mistaken for the old one) the next offset of each partition. ASCII
without blanks, so it fits an HTTP header. Positions are ordered as sets are: `p <= q` when q has written all
that p has; two may be incomparable. Offset 0 says nothing was written and is left out, so equal means equal.
Knows no log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import InvalidArgument
from headrace.names import check_name

__all__ = ["Position"]

TEXT_MAX: Final = 1_000_000
_ID: Final = re.compile(r"[0-9a-f]{1,64}")
_TOPIC: Final = re.compile(
    r"([A-Za-z0-9._-]{1,249})~([0-9a-f]{1,64}):([0-9]{1,10}=[0-9]{1,19}(?:,[0-9]{1,10}=[0-9]{1,19})*)"
)
_PARTITION_MAX: Final = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 1

_Nexts = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Position:
    """`topics`: (name, id, ((partition, next offset), …)), sorted; make one with `of`, `parse` or `|`."""

    topics: tuple[tuple[str, str, _Nexts], ...] = ()

    @classmethod
    def of(cls, topic: str, topic_id: str, nexts: Mapping[int, int]) -> Position:
        """The position of one topic: partition -> next offset."""
        check_name(topic, argument="topic", system=True)
        if not isinstance(topic_id, str) or _ID.fullmatch(topic_id) is None:
            raise InvalidArgument("topic_id", topic_id, "a topic id is 1 to 64 lower-case hexadecimal digits")
        for partition, offset in nexts.items():
            if not _is_int(partition) or not 0 <= partition <= _PARTITION_MAX:
                raise InvalidArgument("nexts", partition, "a partition is a whole number, not negative")
            if not _is_int(offset) or not 0 <= offset <= _OFFSET_MAX:
                raise InvalidArgument("nexts", offset, "an offset is a whole number, not negative, below 2**63")
        written = tuple(sorted((partition, offset) for partition, offset in nexts.items() if offset))
        return cls(((topic, topic_id, written),) if written else ())

    @classmethod
    def _canonical(cls, nexts: Mapping[tuple[str, str], Mapping[int, int]]) -> Position:
        topics = (
            (name, topic_id, tuple(sorted((p, n) for p, n in by_partition.items() if n)))
            for (name, topic_id), by_partition in sorted(nexts.items())
        )
        return cls(tuple(topic for topic in topics if topic[2]))

    @classmethod
    def parse(cls, text: str) -> Position:
        """The inverse of `str`; the empty text is the empty position."""
        if not isinstance(text, str):
            raise InvalidArgument("position", text, f"a position is text, not {type(text).__name__}")
        if len(text) > TEXT_MAX:
            raise InvalidArgument("position", text[:40] + "…", f"is longer than {TEXT_MAX} characters")
        nexts: dict[tuple[str, str], dict[int, int]] = {}
        for part in text.split(";") if text else ():
            match = _TOPIC.fullmatch(part)
            if match is None:
                raise InvalidArgument("position", _short(text), f"cannot be read at {_short(part)!r}; {_EXPECTED}")
            name, topic_id, offsets = match.groups()
            check_name(name, argument="position", system=True)
            if (name, topic_id) in nexts:
                raise InvalidArgument("position", _short(text), f"names topic {name!r} twice")
            by_partition = nexts[name, topic_id] = {}
            for pair in offsets.split(","):
                partition, _, offset = pair.partition("=")
                if int(partition) in by_partition:
                    raise InvalidArgument("position", _short(text), f"names partition {partition} of {name!r} twice")
                if int(partition) > _PARTITION_MAX or int(offset) > _OFFSET_MAX:
                    raise InvalidArgument("position", _short(text), f"{pair!r} is out of range")
                by_partition[int(partition)] = int(offset)
        return cls._canonical(nexts)

    def offsets(self, topic: str) -> dict[int, int]:
        """Partition -> next offset of the topic; a partition (or topic) that is not named is at 0."""
        found = [(topic_id, nexts) for name, topic_id, nexts in self.topics if name == topic]
        if len(found) > 1:
            ids = ", ".join(topic_id for topic_id, _ in found)
            raise InvalidArgument("topic", topic, f"the position knows several topics of this name, with ids {ids}")
        return dict(found[0][1]) if found else {}

    def covers(self, other: Position) -> bool:
        """Whether all that `other` says was written is in this position too."""
        mine = self._nexts()
        return all(
            mine.get((name, topic_id), {}).get(partition, 0) >= offset
            for name, topic_id, nexts in other.topics
            for partition, offset in nexts
        )

    def __or__(self, other: Position) -> Position:
        if not isinstance(other, Position):
            return NotImplemented
        both = self._nexts()
        for name, topic_id, nexts in other.topics:
            mine = both.setdefault((name, topic_id), {})
            for partition, offset in nexts:
                mine[partition] = max(offset, mine.get(partition, 0))
        return self._canonical(both)

    def __le__(self, other: Position) -> bool:
        return other.covers(self) if isinstance(other, Position) else NotImplemented

    def __ge__(self, other: Position) -> bool:
        return self.covers(other) if isinstance(other, Position) else NotImplemented

    def __lt__(self, other: Position) -> bool:
        return self != other and other.covers(self) if isinstance(other, Position) else NotImplemented

    def __gt__(self, other: Position) -> bool:
        return self != other and self.covers(other) if isinstance(other, Position) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self.topics)

    def __str__(self) -> str:
        return ";".join(
            f"{name}~{topic_id}:" + ",".join(f"{partition}={offset}" for partition, offset in nexts)
            for name, topic_id, nexts in self.topics
        )

    def _nexts(self) -> dict[tuple[str, str], dict[int, int]]:
        return {(name, topic_id): dict(nexts) for name, topic_id, nexts in self.topics}


_EXPECTED: Final = "expected topic~id:partition=offset,… with ';' between topics, as str(position) writes it"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
