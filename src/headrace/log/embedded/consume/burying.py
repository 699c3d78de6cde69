"""Messages that end without an ack, and those that come back: dead letters of queues. Owns what such a letter says and
that a message's end and its letter are one transaction, as are a letter's end and its message's return.

Records are read before that transaction, which refuses when batches were rewritten since: an erased value never
comes back as a letter."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace import jsonrows
from headrace.errors import InvalidArgument, LeaseExpired, WaitTimeout
from headrace.failpoints import reach
from headrace.log.embedded.consume import queue_core, windows
from headrace.log.embedded.consume.queue_core import ATTEMPTS, QueueCore, Rewritten
from headrace.log.embedded.storage import deliveries
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.committer import Job, Tx
from headrace.log.embedded.storage.datafiles import Draft
from headrace.log.embedded.storage.deliveries import Claim
from headrace.log.embedded.storage.index import QUEUES, DeliveryRow
from headrace.log.embedded.write.append import Append, Stale
from headrace.log.embedded.write.dead_letters import DeadLetter, end, letters, listed

ERROR_CHARACTERS = 16_384
BURY_MESSAGES = REDRIVE_LETTERS = 500
"""In one transaction."""
UNANSWERED = "it was not acknowledged within the visibility of its last delivery"


def bury(
    core: QueueCore, errors: Mapping[Claim, str], counts: Mapping[Claim, int], first: Callable[[Tx], None]
) -> None:
    """In one transaction: `first`, the letters with these errors and counts of deliveries, the end of the messages."""
    for _ in range(ATTEMPTS):
        topic, before = core.topic_now(), core.rewritten()
        found = _letters(core, topic, errors, counts)
        append = letters(core.catalog, topic, found, queue=core.id) if found else None

        def apply(tx: Tx, before: dict[int, int] = before, dead: int = len(found)) -> None:
            first(tx)
            core.check_rewritten(tx, before, {claim.partition for claim in errors})
            queue = core.row_in(tx)
            deliveries.finish(tx, queue, errors, queue_core.now())
            QUEUES.change(tx.db, queue._replace(dead=queue.dead + dead))
            core.freed(tx)

        reach("queue.burying")
        try:
            core.engine.submit(_WithLetters(append, apply)).result()
        except Rewritten:
            continue
        reach("queue.buried")
        return
    raise WaitTimeout(f"topic {core.topic.name!r}, which is rewritten all the time", 0.0)


def bury_exhausted(core: QueueCore, rows: Sequence[DeliveryRow]) -> None:
    """Those whose last visibility has run out; nothing is done when one was answered or extended meanwhile."""
    found = (
        (Claim(row.partition, offset, row.lease, row.key), row.deliveries)
        for row in rows
        for offset in range(row.offset, row.stop)
    )
    counts = dict(itertools.islice(found, BURY_MESSAGES))

    def check(tx: Tx) -> None:
        queue = core.row_in(tx)
        for claim in counts:
            for row in deliveries.holding(tx.db, queue.id, claim.partition, claim.offset, claim.offset + 1):
                if row.due > queue_core.now():
                    raise Stale

    try:
        bury(core, dict.fromkeys(counts, UNANSWERED), counts, check)
    except (Stale, LeaseExpired):
        return


def end_gone(core: QueueCore, claims: Sequence[Claim]) -> None:
    """Their records were compacted or erased, which is no loss, or deleted by retention, which is counted."""

    def apply(tx: Tx) -> None:
        queue = core.row_in(tx)
        earliest = {state.partition: state.earliest for state in tx.partitions(queue.topic)}
        deliveries.finish(tx, queue, claims, queue_core.now())
        lost = sum(claim.offset < earliest[claim.partition] for claim in claims)
        QUEUES.change(tx.db, queue._replace(lost=queue.lost + lost))

    with contextlib.suppress(LeaseExpired):  # retention, or somebody else, was faster
        core.engine.committer.run(apply, synced=False)


def _letters(
    core: QueueCore, topic: TopicState, errors: Mapping[Claim, str], counts: Mapping[Claim, int]
) -> list[dict[str, Any]]:
    """A letter for each message whose record is in the topic, readable or not."""
    out = []
    found, failed = windows.read(core.engine, core.catalog, topic, [claim[:2] for claim in errors])
    for claim, said in errors.items():
        place = claim[:2]
        if place not in found and place not in failed:
            continue
        error = said[:ERROR_CHARACTERS].encode("utf-8", "replace").decode()
        letter = {
            "reason": "deliveries",
            "error": error,
            "partition": claim.partition,
            "offset": claim.offset,
            "source": f"queue {core.name}",
            "deliveries": counts[claim],
        }
        if place in found:
            letter["row"] = jsonrows.encode_row(found[place][3]).decode()
        else:
            letter["error"] = f"{error} (the record cannot be read: {failed[place]})"
        out.append(letter)
    return out


class _WithLetters:
    """Rows of the index and, in the same transaction, dead letters."""

    merge_key = None
    frees = False
    synced = True

    def __init__(self, append: Append | None, apply: Callable[[Tx], None]) -> None:
        self._append, self._apply = append, apply

    def combine(self, jobs: Sequence[Any]) -> Job:
        raise NotImplementedError

    def drafts(self) -> list[Draft]:
        return self._append.drafts() if self._append else []

    def apply(self, tx: Tx) -> None:
        self._apply(tx)
        if self._append:
            self._append.apply(tx)


# -- coming back -------------------------------------------------------------------------------------


def redrive(core: QueueCore) -> int:
    """All open letters of the queue; how many came back. One whose record is gone from the topic stays a letter."""
    core.row()
    found = listed(core.engine, core.catalog, None, queue=core.id)
    done = 0
    while chunk := list(itertools.islice(found, REDRIVE_LETTERS)):
        done += put_back(core, chunk, missing_ok=True)
    return done


def put_back(core: QueueCore, found: Sequence[DeadLetter], *, missing_ok: bool) -> int:
    """Ends the letters, and has their messages delivered by this queue as if for the first time; how many. With
    `missing_ok`, those that cannot be, or that others ended, are left out."""
    for _ in range(ATTEMPTS):
        before = core.rewritten()
        back = _whereabouts(core, found, missing_ok=missing_ok)

        def apply(tx: Tx, before: dict[int, int] = before, back: dict[int, _Place] = back) -> int:
            queue = core.row_in(tx)
            core.check_rewritten(tx, before, {partition for partition, _, _ in back.values()})
            done = 0
            for letter, (partition, offset, key) in back.items():
                if end(tx, letter, missing_ok=missing_ok):
                    deliveries.put_back(tx, queue, partition, offset, key, queue_core.now())
                    done += 1
            return done

        try:
            done: int = core.engine.committer.run(apply, synced=True)
        except Rewritten:
            continue
        reach("queue.redriven")
        return done
    raise WaitTimeout(f"topic {core.topic.name!r}, which is rewritten all the time", 0.0)


_Place = tuple[int, int, int | None]
"""Partition, offset, and the key's hash where order matters."""


def _whereabouts(core: QueueCore, found: Sequence[DeadLetter], *, missing_ok: bool) -> dict[int, _Place]:
    """By letter, where its record lies in the topic."""
    topic, by_key = core.topic_now(), core.row().by_key
    places = {letter.id: (letter.origin.partition or 0, letter.origin.offset or 0) for letter in found}
    entries, failed = windows.read(core.engine, core.catalog, topic, places.values())
    out: dict[int, _Place] = {}
    for letter, place in places.items():
        if place in entries:
            key = windows.hash_of(entries[place][2], core.catalog, topic) if by_key else None
            out[letter] = (*place, key)
        elif not missing_ok:
            why = (
                f"its record {topic.name}/{place[0]} offset {place[1]} is no longer in the topic. Append the value "
                f"again (topic.append(letter.value)), or drop the letter"
            )
            raise failed.get(place) or InvalidArgument("letter", letter, why)
    return out
