"""The timers of processes: a topic that has, for each timer, when it is due; or that it is over. Owns that topic, and
what of it is pending. Knows no process and no clock.

The topic is compacted, so a timer that fired or was cancelled goes in the end. Rows are appended in the transaction of
the event that set or ended the timer. Of several programs that follow the topic, one may be behind: `holds` asks the
topic itself."""

from __future__ import annotations

import heapq
from datetime import datetime
from typing import Any

from headrace.log.capabilities import Erasure, capability
from headrace.log.contract import Log, Topic
from headrace.sourcing.reactions import PendingTimer

__all__ = ["Timers", "end_row", "set_row"]

COLUMNS = "process string, timer string, due timestamp, step bigint"


class Timers:
    """Those in one topic. Used by one thread at a time, but for `topic`."""

    def __init__(self, log: Log, name: str) -> None:
        self.topic: Topic = log.create_topic(name, COLUMNS, key=("process", "timer"), cleanup="compact", exist_ok=True)
        self._next = 0
        self._pending: dict[tuple[str, str], PendingTimer] = {}
        self._by_time: list[tuple[datetime, str, str, int]] = []
        """A heap; it has timers that are over, too, until they come up."""

    def first(self) -> PendingTimer | None:
        """The next one that fires, of those that were followed."""
        while self._by_time:
            due, process, name, step = self._by_time[0]
            if self._pending.get((process, name)) == (timer := PendingTimer(process, name, due, step)):
                return timer
            heapq.heappop(self._by_time)
        return None

    def due(self, now: datetime) -> PendingTimer | None:
        """The first one that is due."""
        self._follow()
        timer = self.first()
        return timer if timer is not None and timer.due <= now else None

    def drop(self, timer: PendingTimer) -> None:
        """It is over: its row need not be read."""
        if self._pending.get((timer.process, timer.name)) == timer:
            del self._pending[timer.process, timer.name]

    def holds(self, timer: PendingTimer) -> bool:
        """Whether it is still to fire."""
        last = None
        for record in self.topic.records(key=(timer.process, timer.name)):
            last = record.value
        return last is not None and (last["due"], last["step"]) == (timer.due, timer.step)

    def all(self) -> list[PendingTimer]:
        """All that are to fire, by time."""
        self._follow()
        return sorted(self._pending.values(), key=lambda timer: (timer.due, timer.process, timer.name))

    def erase(self, process: str) -> int:
        """Removes those of a process; returns how many records went."""
        return capability(self.topic, Erasure).erase(process, column="process").records

    def _follow(self) -> None:
        for record in self.topic.records({0: self._next}):
            self._next, value = record.offset + 1, record.value
            key = value["process"], value["timer"]
            if value["due"] is None:
                self._pending.pop(key, None)
            else:
                timer = self._pending[key] = PendingTimer(*key, value["due"], value["step"])
                heapq.heappush(self._by_time, (timer.due, *key, timer.step))


def set_row(process: str, name: str, due: datetime, step: int) -> dict[str, Any]:
    return {"process": process, "timer": name, "due": due, "step": step}


def end_row(process: str, name: str) -> dict[str, Any]:
    """It has fired, or was cancelled: a tombstone."""
    return {"process": process, "timer": name, "due": None, "step": None}
