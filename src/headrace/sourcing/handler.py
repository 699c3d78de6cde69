"""Who handles the commands of one partition. Owns the order in which they are decided, and that events, replies and the
place in the commands are one transaction.

There is one at a time: taking a partition's name fences whoever had it, and gives up what that one has open. What is in
memory is made of the log when the name is taken: states of the events, ids and the place of the replies. After an error
all of it is dropped, because nobody knows then what became of the last transaction; taking the name again tells."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, Rejected, WaitTimeout
from headrace.log.capabilities import SoleWriter, SoleWriters, Transactions, capability
from headrace.log.contract import Log, Record, Topic
from headrace.sourcing.columns import own
from headrace.sourcing.commands import Tail
from headrace.sourcing.topics import check_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Deciding", "Handler", "Topics"]

AT_ONCE = 500
"""So many commands share a transaction, at most."""
WHOLE_SECONDS = 90.0
"""A partition can be read up to its end after so long, or it is held up by another's transaction. A transaction of a
sole writer may take 60."""
PAUSE_SECONDS = 0.02
WHY_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Topics:
    events: Topic
    commands: Topic
    replies: Topic


@dataclass(frozen=True, slots=True)
class Deciding:
    """What a handler asks of its entities. `decide(row, state)`: the events of a command, which it may refuse.
    `row(event)`: its columns. `event(row)`: the event. `evolve(state, event)`: the next state. `now()`: the time of
    events that are given none."""

    initial: Any
    decide: Callable[[dict[str, Any], Any], tuple[Any, ...]]
    row: Callable[[Any], dict[str, Any]]
    event: Callable[[dict[str, Any]], Any]
    evolve: Callable[[Any, Any], Any]
    now: Callable[[], datetime]


@dataclass(slots=True)
class _Standing:
    """What was made of the log, and what was decided since."""

    writer: SoleWriter
    commands: Tail
    states: dict[str, tuple[Any, int]]
    ids: dict[str, tuple[str, int, int]]
    """id -> the entity, the version behind which the command's events are, how many they are."""
    coming: Iterator[Record]
    """What was read of the commands, and is not handled yet."""


class Handler:
    """Handles the commands of a partition, one batch after the other."""

    def __init__(self, log: Log, name: str, topics: Topics, partition: int, deciding: Deciding) -> None:
        self._log, self._topics, self._partition, self._deciding = log, topics, partition, deciding
        self._name = f"entities.{name}.{partition}"
        self._standing: _Standing | None = None

    def step(self) -> int:
        """Handles what is there, up to a number; how many that was. Fenced if another handler has taken over."""
        standing = self._standing or self._take()
        self._standing = None
        batch = list(itertools.islice(standing.coming, AT_ONCE))
        if not batch:
            standing.coming = standing.commands.records()
            batch = list(itertools.islice(standing.coming, AT_ONCE))
        if batch:
            events, replies = list[dict[str, Any]](), list[dict[str, Any]]()
            for record in batch:
                came, reply = self._handle(standing, record)
                events += came
                replies.append(reply)
            with standing.writer.transaction() as tx:
                if events:
                    tx.append(self._topics.events, events)
                tx.append(self._topics.replies, replies)
        self._standing = standing
        return len(batch)

    # -- taking over -------------------------------------------------------------------------------

    def _take(self) -> _Standing:
        writer = capability(self._log, SoleWriters).sole_writer(self._name)
        events, replies = self._whole(self._topics.events), self._whole(self._topics.replies)
        states = dict[str, tuple[Any, int]]()
        for record in events.records():
            key = record.value["entity"]
            state = states[key][0] if key in states else own(self._deciding.initial)
            event = self._deciding.event(record.value)
            states[key] = self._deciding.evolve(state, event), record.value["version"]
        ids, place = dict[str, tuple[str, int, int]](), 0
        for record in replies.records():
            reply, place = record.value, record.value["place"] + 1
            if reply["outcome"] == "accepted" and not reply["duplicate"]:
                ids[reply["id"]] = reply["entity"], reply["first"], reply["events"]
        earliest = self._topics.commands.ends()[self._partition].earliest
        return _Standing(
            writer, Tail(self._topics.commands, self._partition, max(place, earliest)), states, ids, iter(())
        )

    def _whole(self, topic: Topic) -> Tail:
        """The partition, when all that is written there can be read. Now that the name is taken, what another handler
        wrote has its end, but a reader may see it later."""
        written = capability(topic, Transactions).written()[self._partition]
        until = time.monotonic() + WHOLE_SECONDS
        while topic.ends()[self._partition].next < written:
            if time.monotonic() > until:
                held = "; ".join(map(str, capability(topic, Transactions).open_transactions()))
                what = f"topic {topic.name!r}, which handler {self._name!r} cannot read to its end. {held}"
                raise WaitTimeout(what=what, seconds=WHOLE_SECONDS)
            time.sleep(PAUSE_SECONDS)
        return Tail(topic, self._partition)

    # -- deciding ----------------------------------------------------------------------------------

    def _handle(self, standing: _Standing, record: Record) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The rows of the command's events, and its reply. Whatever is wrong with a command is said in its reply."""
        command = record.value
        key, id = command["entity"], command["id"]
        state, version = standing.states.get(key, (self._deciding.initial, 0))
        reply = {
            "entity": key, "id": id, "call": command["call"], "place": record.offset, "outcome": "accepted",
            "first": version, "events": 0, "duplicate": False, "why": None,
        }  # fmt: skip
        if id in standing.ids:
            entity, first, count = standing.ids[id]
            if entity != key:
                return [], reply | {"outcome": "taken", "why": entity}
            return [], reply | {"first": first, "events": count, "duplicate": True}
        if command["expected"] is not None and command["expected"] != version:
            return [], reply | {"outcome": "conflict"}
        try:
            rows, after = self._decided(command, state, version)
        except Rejected as error:
            return [], reply | {"outcome": "rejected", "why": _text(error.why)}
        except Exception as error:
            what = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
            return [], reply | {"outcome": "failed", "why": _text(what)}
        standing.states[key] = after, version + len(rows)
        standing.ids[id] = key, version, len(rows)
        return rows, reply | {"events": len(rows)}

    def _decided(self, command: dict[str, Any], state: Any, version: int) -> tuple[list[dict[str, Any]], Any]:
        when = self._deciding.now() if command["at"] is None else command["at"]
        check_ahead(self._topics.events, when)
        events, state, rows = self._deciding.decide(command, own(state)), own(state), list[dict[str, Any]]()
        for number, event in enumerate(events, version + 1):
            header = {"entity": command["entity"], "version": number, "command": command["id"], "at": when}
            rows.append(self._deciding.row(event) | header)
            state = self._deciding.evolve(state, event)
        if rows:
            self._topics.events.check(rows)
        return rows, state


def _text(why: object) -> str:
    """Words of somebody's function, as a record can have them."""
    return str(why)[:WHY_MAX].encode("utf-8", "replace").decode()
