"""Entities on a log that appends on no condition, such as Kafka: commands go through a topic. Owns how a caller sends
one, and what it makes of the reply. `handler.py` decides.

Each partition of the events has one handler, so nothing comes between what it decides on and what it appends. A caller
sends the command, waits for the reply, and folds the partition's events up to what the reply says."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

import pyarrow as pa

from headrace.errors import (
    CommandFailed,
    CommandTimeout,
    InvalidArgument,
    KafkaFailed,
    Rejected,
    VersionConflict,
)
from headrace.keys import partitions_of
from headrace.log.capabilities import SoleWriters
from headrace.log.contract import Record, Start, Topic
from headrace.position import Position
from headrace.schema import schema_from
from headrace.sourcing.columns import own
from headrace.sourcing.commands import COMMAND, COMMANDS, REPLIES, Replies, pack, unpack
from headrace.sourcing.entities import Entities, Known, check_key, events_of
from headrace.sourcing.events import EventTypes
from headrace.sourcing.folded import Folded
from headrace.sourcing.handler import Deciding, Handler, Topics
from headrace.sourcing.results import Handled, State
from headrace.sourcing.topics import check_ahead, topic_of

__all__ = ["CommandedEntities"]

KEPT = "7 days"
"""Commands are kept for so long: whoever sent one has gone long before."""
LOOK_SECONDS = 1.0
KEY = pa.schema({"entity": pa.string()})


class CommandedEntities(Entities[State], of=SoleWriters):
    """Entities whose commands go through the topics `NAME.commands` and `NAME.replies`."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **{**given, "snapshot_every": None})  # states are in memory
        if self.decide is not None and not self._command_classes:
            why = "this log appends on no condition, so commands are sent to a handler: name their classes"
            raise InvalidArgument("commands", self._command_classes, why)
        self._commands_as = EventTypes(self._command_classes, header=COMMAND) if self._command_classes else None
        self._opening, self._turn = threading.RLock(), threading.Lock()
        self._all: Topics | None = None
        self._folded_of: dict[int, Folded] = {}
        self._replies: dict[int, Replies] = {}
        self._handlers: list[Handler] | None = None

    @property
    def topic(self) -> Topic:
        return self._topics().events

    # -- writing -----------------------------------------------------------------------------------

    def handle(
        self, key: str, command: Any, *, id: str | None = None, expected: int | None = None, at: datetime | None = None
    ) -> Handled[State]:
        """Sends the command to whoever handles the entity's partition, and waits for the reply. CommandTimeout if none
        comes: the command may still be handled."""
        if self._commands_as is None:
            raise InvalidArgument("decide", None, f"{self!r} has none: give decide= and commands=, or use append()")
        check_key(key)
        return self._ask(key, pack(self._commands_as, [command]), id, expected, at, is_command=True)

    def append(self, key: str, *events: Any, expected: int, at: datetime | None = None) -> Handled[State]:
        """Appends events as they are, without a command: VersionConflict unless the entity is at the version
        `expected`. They, too, are sent to the handler."""
        check_key(key)
        return self._ask(key, pack(self._types, events) if events else b"", None, expected, at, is_command=False)

    def _ask(
        self, key: str, body: bytes, id: str | None, expected: int | None, at: datetime | None, *, is_command: bool
    ) -> Handled[State]:
        if id is not None and (not isinstance(id, str) or not id):
            raise InvalidArgument("id", id, "must be a text that names the command, such as a UUID")
        topics, partition = self._topics(), self._partition(key)
        if at is not None:
            check_ahead(topics.events, at)
        name, call, seconds = id or uuid.uuid4().hex, uuid.uuid4().hex, self._wait_us / 1e6
        until = time.monotonic() + seconds
        row = {"entity": key, "id": name, "call": call, "is_command": is_command, "expected": expected, "at": at}
        replies = self._replies_of(partition)
        with replies.expecting(call), self._fold_of(partition).expecting(name):
            try:
                topics.commands.append(row | {"body": body})
            except KafkaFailed as error:  # it may be there
                raise CommandTimeout(self.name, key, name, 0) from error
            reply = replies.wait(call, seconds)
            if reply is None:
                raise CommandTimeout(self.name, key, name, seconds)
            if reply["outcome"] != "accepted":
                self._refuse(key, name, expected, reply)
            return self._handled_by(key, partition, reply, until)

    def _refuse(self, key: str, id: str, expected: int | None, reply: dict[str, Any]) -> NoReturn:
        match reply["outcome"]:
            case "rejected":
                raise Rejected(reply["why"])
            case "conflict":
                assert expected is not None
                raise VersionConflict(topic=self.name, key=key, expected=expected, actual=reply["first"])
            case "taken":
                raise InvalidArgument("id", id, f"is that of a command to {reply['why']!r}: use another")
            case _:
                raise CommandFailed(self.name, key, reply["why"])

    def _handled_by(self, key: str, partition: int, reply: dict[str, Any], until: float) -> Handled[State]:
        """The result, of the events that the reply speaks of. They are in the same transaction, but a reader may see
        them later than the reply."""
        folded, first, count = self._fold_of(partition), reply["first"], reply["events"]
        version = first + count
        while folded.known(key, version).version < version:
            if time.monotonic() > until:
                raise CommandTimeout(self.name, key, reply["id"], self._wait_us / 1e6)
            folded.wait(LOOK_SECONDS)
        events, known = folded.came_of(reply["id"]) if count else ([], folded.known(key, version))
        if known is None or known.version != version:  # they came before this call; or others have come since
            events, known = [], Known(own(self.initial))
            for record, event in self._stored(key, known) if version else ():
                known = self._evolved(known, record, event)
                events += [event] if known.version > first else []
                if known.version == version:
                    break
        position = Position.of(self.name, self.topic.topic_id, {partition: known.next}) if count else Position()
        return Handled(key, tuple(events), version, own(known.state), position, duplicate=reply["duplicate"])

    # -- reading -----------------------------------------------------------------------------------

    def _load(self, key: str) -> Known:
        return self._fold_of(self._partition(key)).known(key)

    def _version(self, key: str) -> int:
        return self._load(key).version

    def _records(self, key: str, start: Start) -> Iterator[Record]:
        partition = self._partition(key)
        known = self._fold_of(partition).known(key)
        if known.partition < 0:
            return iter(())
        begin = start if isinstance(start, Mapping) else {partition: known.first}
        return self.topic.records(begin, key=key, partition=partition)

    # -- handling ----------------------------------------------------------------------------------

    def drain(self) -> int:
        """Handles the commands that are there now; how many there were."""
        total = 0
        while done := self._step():
            total += done
        return total

    def run(self, is_stopping: Callable[[], bool], is_well: Callable[[], None] = lambda: None) -> None:
        """Handles commands until it is to stop. Fenced if another program has begun to."""
        commands = [self._topics().commands]
        while not is_stopping():
            seen = self._log.news(commands)
            done = self._step()
            is_well()
            if not done:
                self._log.wait(seen, LOOK_SECONDS)

    def _step(self) -> int:
        with self._turn:
            if self._handlers is None:
                topics, deciding = self._topics(), self._deciding()
                numbers = range(topics.events.settings.partitions)
                self._handlers = [Handler(self._log, self.name, topics, each, deciding) for each in numbers]
            return sum(handler.step() for handler in self._handlers)

    def _deciding(self) -> Deciding:
        def decide(row: dict[str, Any], state: Any) -> tuple[Any, ...]:
            if not row["is_command"]:
                return tuple(unpack(self._types, row["body"], self.name) if row["body"] else ())
            if self.decide is None or self._commands_as is None:
                raise InvalidArgument("decide", None, f"{self!r} has none where it is run: give decide= and commands=")
            (command,) = unpack(self._commands_as, row["body"], f"{self.name}.commands")
            return events_of(self.decide(state, command, row["entity"]))

        def event(row: dict[str, Any]) -> Any:
            return self._types.event(row, self.name)

        return Deciding(self.initial, decide, self._types.row, event, self.evolve, self._clock)

    # -- topics ------------------------------------------------------------------------------------

    def _topics(self) -> Topics:
        with self._opening:
            if self._all is None:
                log, name, count = self._log, self.name, self._partitions
                schema = self._types.schema
                events = topic_of(log, name, schema, key="entity", partitions=count, versioned=False)
                count = events.settings.partitions
                more: dict[str, Any] = {"key": "entity", "partitions": count, "exist_ok": True}
                commands = log.create_topic(f"{name}.commands", COMMANDS, retention=KEPT, **more)
                replies = log.create_topic(f"{name}.replies", REPLIES, **more)
                self._all = Topics(events, commands, replies)
            _check_whole(self._all)
            return self._all

    def _evolved_by(self, known: Known, record: Record) -> tuple[Known, Any]:
        event = self._types.event(record.value, self.name)
        return self._evolved(known, record, event), event

    def _partition(self, key: str) -> int:
        row = pa.RecordBatch.from_pylist([{"entity": key}], KEY)
        return int(partitions_of(row, ["entity"], self._topics().events.settings.partitions)[0])

    def _fold_of(self, partition: int) -> Folded:
        with self._opening:
            if partition not in self._folded_of:
                self._folded_of[partition] = Folded(
                    self._log, self._topics().events, partition, self.initial, self._evolved_by
                )
            return self._folded_of[partition]

    def _replies_of(self, partition: int) -> Replies:
        with self._opening:
            if partition not in self._replies:
                self._replies[partition] = Replies(self._log, self._topics().replies, partition)
            return self._replies[partition]


def _check_whole(topics: Topics) -> None:
    """An entity's events, commands and replies are in the partition of its key, and stay there."""
    for topic, columns in (topics.commands, COMMANDS), (topics.replies, REPLIES):
        if topic.schema != schema_from(columns) or topic.settings.key != ("entity",):
            why = "is a topic of something else: choose another name for the entities"
            raise InvalidArgument("name", topic.name, why)
    every = [each.settings for each in (topics.events, topics.commands, topics.replies)]
    if len({settings.partitions for settings in every}) > 1 or any(settings.partitions_added for settings in every):
        why = "was given partitions: entities would be elsewhere than their events. Copy it to a new name, with as many"
        raise InvalidArgument("partitions", topics.events.name, why)
