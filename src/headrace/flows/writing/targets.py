"""Where the rows of a flow's outbox go: a topic, or the dead letters. Each kind of target is behind one protocol. Owns
what is done to rows on their way. Knows no outbox, and no Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from headrace.log.contract import DEAD_LETTERS
from headrace.position import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Sender

__all__ = ["Target", "target_of"]

logger = logging.getLogger("headrace.flows")


class Target(Protocol):
    """Takes rows exactly once. `base`: how many rows went to it before these; by that it recognises a repetition."""

    def send(self, rows: pa.Table, base: int) -> Position:
        """Returns up to where a topic is written then; nothing where no flow reads what goes there."""


def target_of(name: str, sender: Sender, flow: str) -> Target:
    """The target that the outbox calls so."""
    return _DeadLetters(sender, flow) if name == DEAD_LETTERS else _Topic(sender, name)


class _Topic:
    """Rows bring the progress that each carries in a column `_progress`, and may name their partition."""

    def __init__(self, sender: Sender, topic: str) -> None:
        self._sender, self._topic = sender, topic

    def send(self, rows: pa.Table, base: int) -> Position:
        names = rows.column_names
        progress = rows["_progress"] if "_progress" in names else None
        partition = rows["_partition"][0].as_py() if "_partition" in names else None
        rows = rows.drop_columns([name for name in ("_progress", "_partition") if name in names])
        return self._sender.send(self._topic, rows, base, partition=partition, progress=progress)


class _DeadLetters:
    """Letters of one topic. Each is named in the log of the program."""

    def __init__(self, sender: Sender, flow: str) -> None:
        self._sender, self._flow = sender, flow

    def send(self, rows: pa.Table, base: int) -> Position:
        letters = rows.to_pylist()
        numbers = self._sender.bury(letters[0]["topic"], letters, base)
        for number, letter in zip(numbers, letters, strict=True):
            place = f"{letter['topic']}/{letter['partition']} offset {letter['offset']}"
            said = letter["error"].partition("\n")[0]
            logger.warning("flow %s: %s became dead letter %d: %s", self._flow, place, number, said)
        return Position()
