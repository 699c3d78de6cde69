"""Receiving from a queue: chooses the next messages. Owns the windows that are read ahead, and the turn of partitions.
Does not wait, and acknowledges nothing.

Records are read before the transaction that delivers them, or after it (those delivered before), never inside it.
Several consumers read the same windows; one that is overtaken while it reads tries again with a larger window."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import repeat
from typing import Any

from headrace.errors import HeadraceError, OffsetOutOfRange, WaitTimeout
from headrace.failpoints import reach
from headrace.log.embedded.consume import burying, queue_core, windows
from headrace.log.embedded.consume.queue_core import ATTEMPTS, QueueCore
from headrace.log.embedded.consume.windows import Window
from headrace.log.embedded.storage import deliveries
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.committer import Plain, Tx
from headrace.log.embedded.storage.deliveries import WAITING, Claim, NothingTaken, Taken
from headrace.log.embedded.storage.index import CURSORS, PARTITIONS, QUEUES, PartitionRow, QueueRow

WINDOW_RECORDS = 1_000
WINDOWS_BYTES_MAX = 64 << 20
LOOKS_SPARED = 8
"""A receiver that gets as much as it asks for looks at the whole queue only every so many times."""


Handed = tuple[int, int, datetime, Any, dict[str, Any], int, int, int | None]
"""What becomes a message: partition, offset, arrival, key, value, how often it was delivered, and what names this
delivery: the lease, and the key's hash where order matters."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a receiver sees before it takes."""

    topic: TopicState
    queue: QueueRow
    cursors: dict[int, int]
    states: dict[int, PartitionRow]
    due: int | None  # the first delivery that is not waiting for another
    age: int = 0  # how many receives ago it was so

    def cursor(self, partition: int) -> int:
        return self.cursors.get(partition, 0)

    @property
    def fresh(self) -> list[int]:
        """Partitions with messages that were not handed out yet."""
        return [n for n, state in self.states.items() if state.earliest <= self.cursor(n) < state.next]

    def after(self, taken: Taken) -> Outlook | None:
        """As it must be now, unless others were here; None when it is time to look."""
        if self.age + 1 >= LOOKS_SPARED:
            return None
        reached = {number: int(window.offsets[rows[-1]]) + 1 for number, window, rows in taken.fresh}
        return replace(self, cursors=self.cursors | reached, age=self.age + 1)

    def overtaken(self) -> OffsetOutOfRange | None:
        """Retention has deleted what the queue had not handed out."""
        for number, state in self.states.items():
            if self.cursor(number) < state.earliest:
                return OffsetOutOfRange(self.topic.name, number, self.cursor(number), state.earliest, state.next)
        return None


def look(core: QueueCore) -> Outlook:
    topic = core.topic_now()
    with core.engine.index.reading() as db:
        row = QUEUES.get(db, core.id)
        cursors = CURSORS.select(db, "WHERE queue = ?", core.id)
        states = PARTITIONS.select(db, "WHERE topic = ? ORDER BY partition", core.topic.id)
        (due,) = db.execute(
            "SELECT min(due) FROM deliveries WHERE queue = ? AND due < ?", (core.id, WAITING)
        ).fetchone()
    if row is None:
        raise core.unknown()
    if row.boot != core.engine.boot and due is not None:
        due = 0  # of another boot's clock
    next_of = {cursor.partition: cursor.next for cursor in cursors}
    return Outlook(topic, row, next_of, {state.partition: state for state in states}, due)


class Receiver:
    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._windows: dict[int, Window] = {}
        self._keeping = threading.Lock()
        self._turn = 0
        self._kept: Outlook | None = None

    def receive(self, count: int) -> tuple[list[Handed], int | None]:
        """What there is, or when something will be due. An error of a partition, or of a message, is raised when there
        is nothing else: what is whole goes on."""
        began = time.monotonic()
        attempt = 0  # in vain: what ends messages, or passes over what is gone, is none
        while attempt < ATTEMPTS:
            kept, self._kept = self._kept, None
            self._core.catalog.check()
            outlook = kept or look(self._core)
            problem: HeadraceError | None = outlook.overtaken()
            unread: HeadraceError | None = None
            fresh = outlook.fresh
            if fresh or (outlook.due is not None and outlook.due <= queue_core.now()):
                first = self._turn % max(len(fresh), 1)  # begin with another partition each time: none starves
                self._turn += 1
                fresh = fresh[first:] + fresh[:first]
                failed = self._load(outlook, fresh, count, min(attempt, 6))
                problem = next(iter(failed.values()), problem)
                taken = self._take([number for number in fresh if number not in failed], count)
                handed, gone, unread = self._handed(taken)
                buried = self._bury(taken, quietly=bool(handed))
                if len(handed) == count:
                    self._kept = outlook.after(taken)
                if handed:
                    return handed, None
                problem = unread or problem
                if unread is None and (gone or buried or taken.missing):
                    attempt += not (gone or buried or taken.moved)
                    continue  # there may be more behind them, or others were faster than the window
            if kept is not None and unread is None:
                continue  # it was as old as it looked
            if problem is not None:
                raise problem
            return [], outlook.due
        raise WaitTimeout(
            f"messages of queue {self._core.name!r}, which others always took first", time.monotonic() - began
        )

    def _load(self, outlook: Outlook, fresh: list[int], count: int, larger: int) -> dict[int, HeadraceError]:
        """Sees to it that windows hold `count` messages. Returns what is wrong with partitions."""
        core, topic = self._core, outlook.topic
        failed: dict[int, HeadraceError] = {}
        needed = count
        for partition in fresh:
            cursor, state = outlook.cursor(partition), outlook.states[partition]
            window = self._windows.get(partition)
            if (
                window is None
                or not window.fits(cursor, state)
                or window.topic.schema_version != topic.schema_version
                or (len(window.offsets) - window.first(cursor) < needed and window.stop < state.next)
            ):
                size = max(WINDOW_RECORDS, 2 * count) << larger
                hashed = bool(outlook.queue.by_key)
                try:
                    window = windows.load(core.engine, core.catalog, topic, partition, cursor, size, hashed=hashed)
                except HeadraceError as error:
                    failed[partition] = error
                    continue
                self._keep(partition, window)
            needed -= len(window.offsets) - window.first(cursor)
            if needed <= 0:
                break
        return failed

    def _keep(self, partition: int, window: Window) -> None:
        with self._keeping:
            kept = self._windows
            kept.pop(partition, None)
            kept[partition] = window
            while len(kept) > 1 and sum(one.nbytes for one in kept.values()) > WINDOWS_BYTES_MAX:
                del kept[next(iter(kept))]

    def _take(self, fresh: list[int], count: int) -> Taken:
        core = self._core
        with self._keeping:
            held = dict(self._windows)

        def apply(tx: Tx) -> Taken:
            return deliveries.take(tx, core.row_in(tx), held, fresh, count, queue_core.now())

        try:
            taken: Taken = core.engine.submit(Plain(apply, synced=False)).result()
        except NothingTaken as nothing:
            return nothing.taken
        reach("queue.received")
        return taken

    def _handed(self, taken: Taken) -> tuple[list[Handed], list[Claim], HeadraceError | None]:
        """What was taken, with its values. A record that is gone from the topic is done with; one that cannot be read
        stays delivered, until it is a dead letter that says so."""
        core = self._core
        out: list[Handed] = []
        gone: list[Claim] = []
        problem: HeadraceError | None = None
        if taken.again:
            places = {(row.partition, at): row for row in taken.again for at in range(row.offset, row.stop)}
            found, failed = windows.read(core.engine, core.catalog, core.topic_now(), places)
            for place, row in places.items():
                if place in found:
                    out.append((row.partition, *found[place], row.deliveries, row.lease, row.key))
                elif place in failed:
                    problem = failed[place]
                else:
                    gone.append(Claim(*place, row.lease, row.key))
        for partition, window, rows in taken.fresh:
            hashes = [window.hashes[row] for row in rows] if window.hashes else repeat(None)
            out += [
                (partition, *entry, 1, taken.lease, hashed)
                for entry, hashed in zip(window.entries(rows), hashes, strict=False)
            ]
        if gone:
            burying.end_gone(core, gone)
        return out, gone, problem

    def _bury(self, taken: Taken, *, quietly: bool) -> bool:
        """Whether there were messages that had been delivered too often. `quietly`: there are others to hand out, so
        what fails is tried again by the next receive."""
        if not taken.exhausted:
            return False
        try:
            burying.bury_exhausted(self._core, taken.exhausted)
        except HeadraceError:
            if not quietly:
                raise
        return True
