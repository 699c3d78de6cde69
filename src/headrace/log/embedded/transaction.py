"""Transactions: appends to any topics, offsets of any member and acks of any queue, all or nothing. Owns what was
asked for until the block ends; then it is one job of the committer, so one SQLite transaction. An unfinished one leaves
nothing behind: there is nothing to abort after a crash, and nothing readers could see or wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import Closed, InvalidArgument, MemberFenced, WaitTimeout
from headrace.log.contract import Appended, Progress, Rows
from headrace.log.embedded.consume.groups import Claims, EmbeddedMember
from headrace.log.embedded.consume.queues import EmbeddedQueue, Message, mark_answered
from headrace.log.embedded.storage.committer import Job, Tx
from headrace.log.embedded.storage.datafiles import Draft
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.write.append import ATTEMPTS, Append, Stale, Stamp
from headrace.log.incoming import repeatable
from headrace.position import Position
from headrace.storage.spill import HELD_BYTES_MAX, on_disk

if TYPE_CHECKING:
    from headrace.log.embedded.topic import EmbeddedTopic


class EmbeddedTransaction:
    """What `with log.transaction() as tx` gives: all of it is written when the block ends, or nothing."""

    def __init__(self, engine: Engine, topic: Callable[[str], EmbeddedTopic]) -> None:
        self._engine, self._topic = engine, topic
        self._prepare: list[Callable[[], Append]] = []
        self._handles: list[EmbeddedTopic] = []
        self._appends: list[Append] = []
        self._members: list[tuple[EmbeddedMember, Claims]] = []
        self._acks: dict[EmbeddedQueue, list[Message]] = {}
        self._held: list[Draft] = []
        """Frames that wait in memory."""
        self._open = True
        self._results: list[Appended] | None = None

    def append(
        self,
        topic: str | EmbeddedTopic,
        rows: Rows,
        *,
        expect: Mapping[Any, int] | None = None,
        progress: Progress = None,
        stamp: Stamp | None = None,
    ) -> None:
        """Checks the rows now, and appends them when the block ends. A `stamp` makes it idempotent: rows that are in
        the log already are not appended again; the rest of the transaction is written."""
        self._check()
        handle = self._topic(topic) if isinstance(topic, str) else topic
        if handle._engine is not self._engine:
            raise InvalidArgument("topic", topic, "is of another log; a transaction is within one")
        rows = repeatable(rows)

        def prepare() -> Append:
            return handle.prepare(rows, expect=expect, progress=progress, stamp=stamp)

        self._appends.append(prepare())
        self._prepare.append(prepare)
        self._handles.append(handle)
        self._held += self._appends[-1].drafts()
        if sum(len(draft.body.data) for draft in self._held) >= HELD_BYTES_MAX:
            self._spill()

    def _spill(self) -> None:
        """The frames of a large transaction wait on disk."""
        views = on_disk(self._engine.home, [draft.body.data for draft in self._held])
        for draft, view in zip(self._held, views, strict=True):
            draft.body = replace(draft.body, data=view)
        self._held = []

    def commit(self, member: EmbeddedMember) -> None:
        """Makes the member's offsets, up to its last polled records, part of the transaction. MemberFenced refuses all
        of it."""
        self._check()
        if not isinstance(member, EmbeddedMember):
            raise InvalidArgument("member", member, "must be what group.join() returned")
        if member._engine is not self._engine:
            raise InvalidArgument("member", member, "is of another log; a transaction is within one")
        self._members.append((member, member.claims()))

    def ack(self, *messages: Message) -> None:
        """Makes the acks of the messages part of the transaction. LeaseExpired refuses all of it."""
        self._check()
        for message in messages:
            if not isinstance(message, Message):
                raise InvalidArgument("message", message, "must be what queue.receive() returned")
            queue = message._queue
            if queue._core.engine is not self._engine:
                raise InvalidArgument("message", message, "is of another log; a transaction is within one")
            self._acks.setdefault(queue, []).append(message)

    @property
    def position(self) -> Position:
        """The position behind the transaction's records, once the block has ended."""
        position = Position()
        for done in self.results:
            position |= done.position
        return position

    @property
    def results(self) -> list[Appended]:
        """The result of each append, in order, once the block has ended."""
        if self._results is None:
            raise Closed(what="the transaction (it has not ended, or was abandoned)")
        return self._results

    def _check(self) -> None:
        if not self._open:
            raise Closed(what="the transaction")
        self._engine.check()

    def abandon(self) -> None:
        self._open = False

    def finish(self) -> None:
        """Called when the block ends."""
        self._check()
        self._open = False
        began = time.monotonic()
        for _ in range(ATTEMPTS):
            try:
                self._results = self._engine.submit(_Whole(self._appends, self._members, self._acks)).result()
            except Stale:
                for handle in self._handles:  # each refreshes what its own log knows of the topic
                    handle.refresh()
                self._appends = [prepare() for prepare in self._prepare]
                continue
            except MemberFenced:
                for member, claims in self._members:
                    member.refused(claims)
                raise
            for member, claims in self._members:
                member.committed(claims)
            for messages in self._acks.values():
                mark_answered(messages)
            return
        raise WaitTimeout(f"topics altered {ATTEMPTS} times during one transaction", time.monotonic() - began)


@contextmanager
def transaction(engine: Engine, topic: Callable[[str], EmbeddedTopic]) -> Iterator[EmbeddedTransaction]:
    """Written when the block ends; an exception inside writes nothing."""
    tx = EmbeddedTransaction(engine, topic)
    try:
        yield tx
    except BaseException:
        tx.abandon()
        raise
    tx.finish()


class _Whole:
    """The whole transaction, as one job of the committer."""

    merge_key = None
    frees = False

    def __init__(
        self,
        appends: list[Append],
        members: list[tuple[EmbeddedMember, Claims]],
        acks: Mapping[EmbeddedQueue, list[Message]],
    ) -> None:
        self._appends, self._members, self._acks = appends, members, acks
        # Offsets and acks must not outlive the records written for them, whatever the topics' durability: a power loss
        # may keep the index and take unsynced frames.
        consumers = [*(member.synced for member, _ in members), *(queue.synced for queue in acks)]
        self.synced = any(done.synced for done in appends) or any(synced or appends for synced in consumers)

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        return [draft for append in self._appends for draft in append.drafts()]

    def apply(self, tx: Tx) -> list[Appended]:
        done = [append.apply(tx) for append in self._appends]
        for member, claims in self._members:
            member.apply_commit(tx, claims)
        for queue, messages in self._acks.items():
            queue.apply_ack(tx, [message.claim for message in messages])
        return done
