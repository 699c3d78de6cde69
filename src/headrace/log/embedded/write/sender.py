"""The outbox's way into the log: numbered rows, appended once. Owns one stamp for each topic that is sent to, with an
epoch taken at its first use, which fences an earlier sender of the same name there. The log recognises a repeated
append by the number of its first row, so a sender may be killed between an append and its caller's note."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import UnknownTopic
from headrace.log.contract import DEAD_LETTERS

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Progress
    from headrace.log.embedded.topic import EmbeddedTopic
    from headrace.log.embedded.write.append import Stamp
    from headrace.position import Position

__all__ = ["EmbeddedSender"]


class EmbeddedSender:
    """Sends under one name. `topic` opens a topic, `widen` gives one more partitions."""

    def __init__(self, name: str, topic: Callable[[str], EmbeddedTopic], widen: Callable[[str, int], None]) -> None:
        self._name, self._topic, self._widen = name, topic, widen
        self._stamps: dict[str, Stamp] = {}

    def send(
        self, topic: str, rows: pa.Table, number: int, *, partition: int | None = None, progress: Progress = None
    ) -> Position:
        """Appends rows of which the first has this `number`, unless they are in the topic already."""
        handle = self._topic(topic)
        stamp = self._stamps.get(topic) or handle.stamps(self._name)
        self._stamps[topic] = stamp
        if partition is not None:
            self._widen(topic, partition + 1)
        stamp = replace(stamp, sequence=number)
        return handle.append(rows, partition=partition, progress=progress, stamp=stamp).position

    def sent(self, topic: str) -> int:
        """How many rows of this name the topic has; 0 if there is no such topic."""
        try:
            return self._topic(topic).sequence(self._name)
        except UnknownTopic:
            return 0

    def bury(self, topic: str, letters: Sequence[Mapping[str, Any]], number: int) -> range:
        """The same for dead letters."""
        handle = self._topic(topic)
        stamp = self._stamps.get(DEAD_LETTERS) or handle.letter_stamps(self._name)
        self._stamps[DEAD_LETTERS] = stamp
        return handle.bury(letters, stamp=replace(stamp, sequence=number))
