"""The end of a dead letter: replayed or dropped, once. Owns that the append of a replay and the letter's end are one
transaction. A queue's letter is not appended again: its message goes back into that queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidArgument, TopicReplaced, WaitTimeout
from headrace.log.contract import Appended
from headrace.log.embedded.consume import queues
from headrace.log.embedded.storage.catalog import Catalog
from headrace.log.embedded.storage.committer import Job, Plain, Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.write.append import ATTEMPTS, Append, Stale
from headrace.log.embedded.write.dead_letters import DeadLetter, end

if TYPE_CHECKING:
    from headrace.log.embedded.topic import EmbeddedTopic


@dataclass(frozen=True, slots=True)
class LetterOwner:
    """Ends letters of one log. `topic` opens a topic by its name."""

    engine: Engine
    catalog: Catalog
    topic: Callable[[str], EmbeddedTopic]

    def replay(self, letter: DeadLetter) -> Appended:
        origin = letter.origin
        target = None if origin.topic is None else self.topic(origin.topic)
        if target is not None and origin.topic is not None and not target._state().was(origin.topic_id):
            raise TopicReplaced(topic=origin.topic, topic_id=origin.topic_id or "")
        if target is not None and letter._queue is not None:
            return queues.replay(letter._queue, letter, self.engine, self.catalog, target._state())
        if target is None or isinstance(letter.value, bytes):
            raise InvalidArgument(
                "letter", letter.id, "is not a row of a topic: correct it, append it, then drop the letter"
            )
        for _ in range(ATTEMPTS):
            prepared = target.prepare(letter.value)
            if prepared.quarantine is not None:
                raise InvalidArgument("letter", letter.id, f"would be quarantined again: {letter.error}")
            try:
                done: Appended = self.engine.submit(_Replay(prepared, letter.id)).result()
                return done
            except Stale:
                target.describe()  # learns the topic's new state
        raise WaitTimeout(f"topic {target.name!r}, which is altered all the time", 0.0)

    def drop(self, letter: DeadLetter) -> None:
        self.engine.submit(Plain(lambda tx: end(tx, letter.id), synced=True)).result()


class _Replay:
    merge_key = None
    frees = False

    def __init__(self, prepared: Append, letter: int) -> None:
        self._append, self._letter = prepared, letter
        self.synced = True

    def combine(self, jobs: Any) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Any]:
        return self._append.drafts()

    def apply(self, tx: Tx) -> Appended:
        end(tx, self._letter)
        return self._append.apply(tx)
