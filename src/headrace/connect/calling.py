"""A sink that is a function of a user: it gets rows, and a key. Owns the order: what comes next is recorded, the
function is called, and that it has returned is recorded together with what comes next.

After a crash the last batch comes again, with the same rows and the same key. Keys of a sink grow, as texts, too: a
function that stores the key with the rows, in one transaction, and leaves out batches whose key is not larger, applies
each row once. Without that each row is applied at least once. (A topic that is compacted may have fewer rows then.)"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connect.contract import Deliver, Place
from headrace.connect.journal import PLACE, Journal
from headrace.connect.reading import Read, beginning, ends_of, read
from headrace.errors import HeadraceError, SinkFailed, TopicReplaced
from headrace.failpoints import reach

if TYPE_CHECKING:
    from headrace.log.contract import Log, Topic

__all__ = ["Calling", "Function", "key_of", "rewind"]

ROWS_MAX = 10_000


def key_of(sink: str, sequence: int) -> str:
    """The key of a batch: `mails-0000000000000042`."""
    return f"{sink}-{sequence:016d}"


@dataclass(frozen=True)
class Function:
    """The sink that a user's function is."""

    function: Deliver
    kind: str = "function"

    def facts(self) -> dict[str, Any]:
        return {}

    def over(
        self,
        name: str,
        log: Log,
        topic: Topic,
        home: Path,  # noqa: ARG002
        key: tuple[str, ...] | None,  # noqa: ARG002
    ) -> Calling:
        return Calling(name, log, topic, self.function)


class Calling:
    def __init__(self, name: str, log: Log, topic: Topic, function: Deliver, rows_max: int = ROWS_MAX) -> None:
        self.name, self.topic, self._function, self._rows_max = name, topic, function, rows_max
        self._log, self._journal = log, Journal(log, name)
        known = self._journal.states.get(PLACE)
        if known is None:
            known = {"topic_id": topic.topic_id, "sequence": 0, "next": _texts(beginning(topic)), "pending": None}
        if known["topic_id"] != topic.topic_id:
            raise TopicReplaced(topic.name, known["topic_id"])
        self.place, self._sequence = _place(known["next"]), int(known["sequence"])
        self._pending = None if known["pending"] is None else _place(known["pending"])
        self._delivered = False
        """Whether the last batch was delivered, and that is not recorded yet."""

    def step(self) -> int:
        if self._pending is None:
            self._sync()
            found = read(self.topic, self.place, ends_of(self.topic), self._rows_max)
            if not found.records:
                self.place = found.place  # offsets without records
                if self._delivered:
                    self._record(self.place, None)
                return 0
            self._record(self.place, found.place)
        else:  # of a process before this one, which may have delivered it
            found = read(self.topic, self.place, self._pending, None)
        if found.records:
            reach("sink.recorded")
            self._call(found)
            reach("sink.called")
        self.place, self._pending, self._delivered = found.place, None, True
        return max(found.records, 1)

    def _call(self, found: Read) -> None:
        import pyarrow as pa

        key = key_of(self.name, self._sequence)
        try:
            self._function(pa.Table.from_batches(found.batches), key)
        except HeadraceError:
            raise
        except Exception as error:
            raise SinkFailed(self.name, key, f"{type(error).__name__}: {error}") from error

    def _record(self, place: Place, pending: Place | None) -> None:
        """`pending`: a new batch, with the next key."""
        number = self._sequence + (pending is not None)
        value = {
            "topic_id": self.topic.topic_id,
            "sequence": number,
            "next": _texts(place),
            "pending": None if pending is None else _texts(pending),
        }
        self._journal.write(PLACE, value)
        self._sequence, self._pending, self._delivered = number, pending, False

    def _sync(self) -> None:
        """Who is outside must not know what a power loss could take from the log."""
        if self.topic.settings.durability == "os":
            self._log.sync()

    def close(self) -> None:
        """Keeps nothing open."""


def rewind(name: str, log: Log, topic: Topic) -> None:
    """The sink begins anew with the topic as it is, from its earliest record; keys go on growing."""
    journal = Journal(log, name)
    sequence = journal.states.get(PLACE, {}).get("sequence", 0)
    place = {"topic_id": topic.topic_id, "sequence": sequence, "next": _texts(beginning(topic)), "pending": None}
    journal.write(PLACE, place)


def _texts(place: Place) -> dict[str, int]:
    return {str(partition): offset for partition, offset in place.items()}


def _place(value: dict[str, int]) -> Place:
    return {int(partition): offset for partition, offset in value.items()}
