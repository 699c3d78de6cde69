"""The producer of a log on Kafka: batches of the buffer become appends; with an id, transactions of a sender, whose
number says where the id goes on after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.log.kafka.base_topic import BaseTopic, Handle
from headrace.log.kafka.sender import KafkaSender
from headrace.log.producer import BufferedProducer
from headrace.position import Position

__all__ = ["KafkaProducer"]


class KafkaProducer(BufferedProducer):
    def __init__(self, handle: Handle, topic: BaseTopic, id: str | None, **how: Any) -> None:
        topic.entry()  # a closed log or a deleted topic is said now, not with the first batch
        self._handle, self._appends = handle, topic
        self._sender: KafkaSender | None = None
        super().__init__(topic.name, id, **how)

    def _begin(self, id: str) -> int:
        self._sender = KafkaSender(self._handle, f"producer.{id}.{self._appends.name}")
        return self._sender.next_number(self._appends.name)

    def _check_log(self) -> None:
        self._handle.check()

    def _append_rows(self, rows: Sequence[Mapping[str, Any]], rejected: int) -> Position:
        if self._sender is None:
            return self._appends.append(rows).position
        return self._sender.send_rows(self._appends, rows, self.sequence, rejected)
