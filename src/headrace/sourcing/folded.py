"""A partition of events, folded: the state of every entity in it. Owns no rule: how an event makes the next state, it
is told. What it has is in memory, and read on from where it was."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headrace.log.contract import Log, Record, Topic
from headrace.sourcing.columns import own
from headrace.sourcing.commands import Tail
from headrace.sourcing.entities import Known

__all__ = ["Folded"]

Evolved = Callable[[Known, Record], tuple[Known, Any]]
"""What a record makes of an entity, and the event in it."""


class Folded:
    """For any number of threads."""

    def __init__(self, log: Log, topic: Topic, partition: int, initial: Any, evolved: Evolved) -> None:
        self._log, self._initial, self._evolved = log, initial, evolved
        self._tail = Tail(topic, partition)
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        self._expected: Counter[str] = Counter()
        self._came: dict[str, tuple[list[Any], Known]] = {}

    def known(self, key: str, version: int | None = None) -> Known:
        """The entity as it is now; or, if a version is given, as soon as it is there: nothing is read for it then."""
        with self._lock:
            known = self._known.get(key)
            if version is None or (known.version if known else 0) < version:
                self._follow()
                known = self._known.get(key)
            known = known or Known(self._initial)
            return replace(known, state=own(known.state))

    def wait(self, seconds: float) -> None:
        """Until there may be more, or for so long."""
        seen = self._log.news([self._tail.topic])
        with self._lock:
            behind = self._tail.topic.ends()[self._tail.partition].next > self._tail.next
        if not behind:
            self._log.wait(seen, seconds)

    @contextlib.contextmanager
    def expecting(self, command: str) -> Iterator[None]:
        """Inside the block, the events of this command are kept, for `came_of`."""
        with self._lock:
            self._expected[command] += 1
        try:
            yield
        finally:
            with self._lock:
                self._expected[command] -= 1
                if not self._expected[command]:
                    del self._expected[command]
                    self._came.pop(command, None)

    def came_of(self, command: str) -> tuple[list[Any], Known | None]:
        """The events of the command that came meanwhile, and the entity behind them."""
        with self._lock:
            return self._came.get(command, ([], None))

    def _follow(self) -> None:
        for record in self._tail.records():
            key, command = record.value["entity"], record.value["command"]
            before = self._known.get(key) or Known(own(self._initial))
            known, event = self._evolved(before, record)
            self._known[key] = known
            if command in self._expected:
                events = self._came.get(command, ([], known))[0]
                self._came[command] = [*events, event], replace(known, state=own(known.state))
