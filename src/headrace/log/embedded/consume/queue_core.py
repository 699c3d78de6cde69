"""One queue of one topic, as the parts that work on it share it. Owns how it is looked up, and what is said when it or
its topic is gone. Does not know messages. Times of deliveries are of the machine's monotonic clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.errors import HeadraceError, UnknownQueue
from headrace.log.embedded.read.reading import partition_states
from headrace.log.embedded.storage import deliveries
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import QUEUES, QueueRow

ATTEMPTS = 100
"""How often something is tried anew when others changed what it was based on."""


def now() -> int:
    return time.monotonic_ns() // 1000


class Rewritten(HeadraceError):
    """Batches were replaced since they were read: read again."""


@dataclass(frozen=True, slots=True)
class QueueCore:
    engine: Engine
    catalog: Catalog
    topic: TopicState  # as of the handle's making
    id: int
    name: str

    def topic_now(self) -> TopicState:
        self.catalog.check()
        return self.catalog.current(self.topic.id, self.topic.name, self.topic.uid)

    def row(self) -> QueueRow:
        self.catalog.check()
        with self.engine.index.reading() as db:
            row = QUEUES.get(db, self.id)
        if row is None:
            raise self.unknown()
        return row

    def row_in(self, tx: Tx) -> QueueRow:
        """Inside a write transaction; its deliveries are of this boot's clock then."""
        row = deliveries.current(tx, self.id, self.engine.boot)
        if row is None:
            raise self.unknown()
        return row

    def rewritten(self) -> dict[int, int]:
        """How often each partition was rewritten; taken before reading, compared inside the transaction."""
        return {number: state.rewritten for number, state in partition_states(self.engine, self.topic).items()}

    def check_rewritten(self, tx: Tx, before: dict[int, int], partitions: set[int]) -> None:
        now_there = {state.partition: state.rewritten for state in tx.partitions(self.topic.id)}
        if any(now_there[number] != before.get(number) for number in partitions):
            raise Rewritten  # what was read may be erased since

    def freed(self, tx: Tx) -> None:
        """Messages are done: with `unread="keep"`, retention may make room for producers who wait for it."""
        if self.topic.settings.unread == "keep":
            tx.touched.add(self.topic.uid)

    def unknown(self) -> HeadraceError:
        self.catalog.current(self.topic.id, self.topic.name, self.topic.uid)  # TopicReplaced, if that is why
        with self.engine.index.reading() as db:
            known = [row.name for row in QUEUES.select(db, "WHERE topic = ?", self.topic.id)]
        return UnknownQueue(self.topic.name, self.name, known)
