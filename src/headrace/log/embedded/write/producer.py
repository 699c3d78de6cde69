"""The embedded log's producer: batches of the buffer become stamped appends. Owns the epochs of producers. Does not
know frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import PRODUCERS, ProducerRow
from headrace.log.embedded.write.append import Stamp
from headrace.log.producer import BufferedProducer
from headrace.position import Position

if TYPE_CHECKING:
    from headrace.log.embedded.topic import EmbeddedTopic

ROOM_SECONDS = 0.25
"""A full topic is looked at again after this long, should no consumer's commit say so before."""


def begin(engine: Engine, topic: TopicState, producer: str) -> tuple[int, int]:
    """A new epoch, and the next sequence. An earlier producer of the same id is fenced from now on."""

    def apply(tx: Tx) -> tuple[int, int]:
        row = PRODUCERS.get(tx.db, topic.id, producer) or ProducerRow(topic.id, producer, 0, 0)
        row = row._replace(epoch=row.epoch + 1)
        PRODUCERS.put(tx.db, row)
        return row.epoch, row.sequence

    began: tuple[int, int] = engine.committer.run(apply, synced=topic.synced)
    return began


class EmbeddedProducer(BufferedProducer):
    """Takes rows one by one and appends them in batches. `sequence`: the number of records of its id that are done."""

    def __init__(self, engine: Engine, topic: EmbeddedTopic, id: str | None, **how: Any) -> None:
        topic.refresh()  # a closed log or a deleted topic is said now, not with the first batch
        self._engine, self._handle = engine, topic
        self._epoch = 0
        super().__init__(topic.name, id, **how)

    def _begin(self, id: str) -> int:
        self._epoch, sequence = begin(self._engine, self._handle._state(), id)
        return sequence

    def _check_log(self) -> None:
        self._engine.check()

    def _append_rows(self, rows: Sequence[Mapping[str, Any]], rejected: int) -> Position:
        stamp = None if self.id is None else Stamp(self.id, self._epoch, self.sequence, rejected)
        return self._handle.append(rows, stamp=stamp).position

    def _wait_for_room(self) -> None:
        seen = self._engine.wakes.count(self._handle.topic_id)
        self._engine.wakes.wait(self._handle.topic_id, seen, ROOM_SECONDS)
