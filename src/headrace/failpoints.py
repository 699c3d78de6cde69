"""Named points along the write path where a test may stop the process. Owns the list of names and
what is armed in this process. Knows nothing of the modules that call `reach`, reads no environment
and does nothing at import: unless a test calls `arm`, a point costs one comparison with None.

    failpoints.reach("append.frame_written")              # in product code, after the frame is written
    failpoints.arm("append.frame_written", "kill")        # in a test's child process, before it appends
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["KNOWN", "Action", "InjectedFault", "arm", "disarm", "reach"]

KNOWN: dict[str, str] = {
    "append.encoded": "the frames are in memory; nothing is written",
    "append.written": "the frames are in the data file, unsynced; no row points to them",
    "append.synced": "the frames are synced; no row points to them",
    "commit.applied": "the rows are in the transaction, which is not committed",
    "commit.committed": "the transaction is committed; the commit mark is old",
    "commit.unacked": "the commit is done and marked; nobody was told or woken",
    "checkpoint.due": "the commit is done; its write-ahead log is about to be moved into the index",
    "roll.created": "a new data file exists; its directory entry is not synced, the index does not know it",
    "roll.registered": "the new data file is in a transaction that is not committed",
    "roll.adopted": "the new data file has taken the old one's place; it is empty",
    "member.joined": "the member is in the group; it has not looked at its partitions",
    "member.evicted": "an expired member is out, in a transaction that is not committed",
    "member.handing_over": "the member was asked for partitions and is about to give them",
    "member.handed_over": "the partitions belong to the other member",
    "member.committed": "the offsets are committed; the member was not told",
    "queue.received": "the deliveries are committed; the consumer has not got the messages",
    "queue.acked": "the ack is committed; the consumer was not told",
    "queue.nacked": "the message is to be delivered again, committed; the consumer was not told",
    "queue.burying": "a message was delivered too often; its dead letter is made, nothing is written",
    "queue.buried": "the dead letter and the end of the message are committed; nobody was told",
    "queue.redriven": "the message is back in its queue and its letter ended, committed; nobody was told",
    "swap.prepared": "the batches that take others' place are in memory; nothing is written",
    "swap.deleted": "the old batches' rows are deleted, in a transaction that is not committed",
    "swap.done": "the new batches have taken the old ones' place; the old frames are still in their files",
    "retention.deleted": "the rows of old batches are deleted, in a transaction that is not committed",
    "retention.done": "old batches are gone; their frames are still in their files",
    "reclaim.forgotten": "the index has forgotten data files; they are still there",
    "reclaim.unlinked": "one of these data files is unlinked",
    "erase.wiped": "dead bytes are zero; the index's write-ahead log is not emptied, the wiping still counts as due",
    "forget.topics": "the subject is erased from its topics; nothing that was made of them is dropped",
    "forget.deleted": "one of the topics that flows write is deleted; the flows are there",
    "forget.dropped": "one of the flows is dropped; those that it read from are there",
    "forget.vacuumed": "the views' file is written anew, into its write-ahead log; that is not emptied",
    "mend.piece": "a batch is copied to the hidden topic that is to take another's place",
    "mend.copied": "the hidden topic holds all there is; it has not taken the other's place",
    "mend.switched": "the hidden topic has the other's name, in a transaction that is not committed",
    "view.begun": "the view store's transaction has begun; nothing is in it",
    "view.merged": "the batch's rows are merged into the view, in a transaction that is not committed",
    "view.applied": "positions, ledger and outbox are in the transaction, too, which is not committed",
    "view.committed": "the batch is committed; the loop was not told",
    "switch.fenced": "a view takes no more commits, for another version to take its place; that one is not at the end",
    "switch.applied": "the other version has the view's name, in a transaction that is not committed",
    "switch.committed": "the other version is the view; nobody was told",
    "begin.taken": "a flow is taken from whoever had it, in a transaction that is not committed",
    "flow.planned": "the next range of offsets is chosen; nothing is read",
    "flow.computed": "the batch is computed by Spark; nothing is committed",
    "kafka.sent": "the records of a Kafka transaction are on the broker; the transaction is open",
    "kafka.committed": "a Kafka transaction is committed; nobody was told",
    "sink.recorded": "the batch that a sink gets is recorded; its function was not called",
    "sink.called": "a sink's function has returned; that is not recorded",
    "index.applied": "rows and place of an index are in the transaction, which is not committed",
    "index.switched": "an index that was built is served in the transaction, which is not committed",
    "capture.slot": "the database keeps changes for a capture; the capture has not recorded from where on",
    "capture.before": "changes of another database are read; nothing is written",
    "capture.written": "these changes and their place are in the log; the database was not told",
    "process.handled": "a process's command is handled, or refused, by its target; the process was not told",
    "process.answered": "the process was told what came of its command; how far the outbox is sent is not reported",
    "process.fired": "a timer's event and what it asked for are in the log; nothing of that is sent",
    "relay.appended": "rows of the outbox are appended to their topic; the outbox does not know",
}
"""name -> what has happened, and what has not, when the point is reached. A test walks all of it."""

Action = Literal["kill", "raise"] | Callable[[], None]


class InjectedFault(Exception):
    """Raised at a point armed with "raise". Not a HeadraceError: no product code may expect it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"injected at failpoint {self.name!r}"


@dataclass
class _Armed:
    action: Action
    skip: int


_armed: dict[str, _Armed] | None = None
_lock = threading.Lock()


def reach(name: str) -> None:
    """Say that the point `name` is reached. Does nothing unless a test has armed a point."""
    if _armed is None:
        return
    _reach_armed(name)


def arm(name: str, action: Action, *, skip: int = 0) -> None:
    """Act once at `name`, when it is reached for the (skip + 1)-th time from now on, in any thread.

    "kill": SIGKILL to this very process. "raise": InjectedFault out of `reach`. A callable: called in
    the thread that reached the point. Several points may be armed; arming one again replaces it."""
    global _armed
    _refuse_unknown(name)
    if not (action in ("kill", "raise") or callable(action)):
        raise ValueError(f"action={action!r}: use 'kill', 'raise' or a callable")
    if skip < 0:
        raise ValueError(f"skip={skip}: how many times the point is passed unharmed, 0 or more")
    with _lock:
        _armed = {**(_armed or {}), name: _Armed(action, skip)}


def disarm() -> None:
    """Disarm every point."""
    global _armed
    with _lock:
        _armed = None


def _reach_armed(name: str) -> None:
    global _armed
    _refuse_unknown(name)  # here and not in reach(): a misspelt point is found by the first test that arms any
    with _lock:
        point = (_armed or {}).get(name)
        if point is None:
            return
        if point.skip > 0:
            point.skip -= 1
            return
        assert _armed is not None
        _armed = {other: armed for other, armed in _armed.items() if other != name} or None
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif point.action == "raise":
        raise InjectedFault(name)
    else:
        point.action()


def _refuse_unknown(name: str) -> None:
    if name not in KNOWN:
        raise ValueError(f"unknown failpoint {name!r}. Known: {', '.join(sorted(KNOWN)) or 'none'}")
