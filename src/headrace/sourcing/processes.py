"""Process managers: what happens in several entities, step by step, is folded in a topic of its own, and each event may
ask for commands and timers. Owns how these leave: an outbox, and the topic of timers. Knows no Spark.

    transfers = ProcessManager(log, "transfers", events=[Asked], evolve=evolve, react=react, initial=Transfer(),
                               commands={Withdraw: accounts, Deposit: accounts})
    transfers.handle("t1", Asked("ann", "bob", 100))

A process is an entity whose commands are its events. The transaction of an event has the rows that its reaction asked
for, so they are there if and only if the event is. Whatever comes after that may be done again, by any number of
programs: a command has an id made of process and step, which its target takes once; the reply has the same id, which
the process takes once; a timer fires if its row is the newest when the process's version is still the same. How far the
outbox is sent is only reported: after a crash some is sent again, and taken for what it is."""

from __future__ import annotations

import contextlib
import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa

from headrace import failpoints
from headrace.errors import HeadraceError, InvalidArgument, ProcessFailed, Rejected, UnknownTopic, VersionConflict
from headrace.log.capabilities import Erasure, capability
from headrace.log.contract import FLOW_GROUP, Log, Record, Topic
from headrace.schema import TIMESTAMP
from headrace.sourcing.columns import is_fixed
from headrace.sourcing.entities import Beside, Entities, check_key
from headrace.sourcing.events import EventTypes, Upcast
from headrace.sourcing.reactions import (
    TOLD,
    Action,
    Cancel,
    CommandAccepted,
    CommandRejected,
    PendingTimer,
    Send,
    Timer,
    TimerFired,
)
from headrace.sourcing.results import Handled, State
from headrace.sourcing.timers import Timers, end_row, set_row
from headrace.sourcing.topics import Transaction, topic_of

__all__ = ["ProcessManager", "actions_of"]

HEADER = pa.schema(
    {
        "id": pa.string(),
        "process": pa.string(),
        "step": pa.int64(),
        "number": pa.int32(),
        "to": pa.string(),
        "command": pa.string(),
        "command_version": pa.int32(),
        "at": TIMESTAMP,
    }
)
"""The columns of the outbox beside the commands' own."""
AT_ONCE = 1000
"""So many records are taken of one topic before the others have their turn."""
LOOK_SECONDS = 1.0

React = Callable[[Any, Any, str], Iterable[Action]]
Route = Callable[[Any, str], str | None]
"""(event, entity's key) -> the process that it goes to, if any."""


class _Over(Rejected):
    """A timer is not to fire any more."""


class ProcessManager(Entities[State]):
    """The processes of one kind, in the topic `name`, which is created when it is first used. `events`: the classes of
    the events that come from outside. `evolve(state, event)` gives the next state, and `react(state, event, key)` what
    the event, which has made this state, asks for: `Send`, `Timer`, `Cancel`. Both are pure functions, and also get
    `CommandAccepted`, `CommandRejected` and `TimerFired`. `commands`: by class, the entities (or other process manager)
    that handle the command, or the topic that it is appended to. `inputs`: entities whose events are routed here, each
    with a function `route(event, entity)` that gives the key of a process, or None. All other arguments are as in
    `Entities`."""

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        events: Sequence[type],
        evolve: Callable[[State, Any], State],
        react: React,
        commands: Mapping[type, Entities[Any] | Topic],
        initial: State,
        inputs: Mapping[Entities[Any], Route] | None = None,
        snapshot_every: int | None = 100,
        version: str = "1",
        upcasts: Mapping[type, Mapping[int, Upcast]] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        given = dict(upcasts or {})
        if not commands:
            raise InvalidArgument("commands", commands, "must say where each class of command goes, one at least")
        self._command_types = EventTypes(
            list(commands), {cls: given.pop(cls) for cls in commands if cls in given}, header=HEADER
        )
        super().__init__(
            log,
            name,
            events=[*events, *TOLD],
            evolve=evolve,
            decide=self._decide,
            initial=initial,
            snapshot_every=snapshot_every,
            version=version,
            upcasts=given,
            clock=clock,
        )
        self.react, self._targets, self._inputs = react, dict(commands), dict(inputs or {})
        self._by_name = {cls.__name__: target for cls, target in self._targets.items()}
        self._reader = f"process.{name}"
        self._places: dict[str, dict[int, int]] = {}
        self._turn = threading.Lock()
        self._opening = threading.Lock()
        self._sides: tuple[Topic, Timers] | None = None

    # -- events ------------------------------------------------------------------------------------

    def handle(
        self, key: str, event: Any, *, id: str | None = None, expected: int | None = None, at: datetime | None = None
    ) -> Handled[State]:
        """Appends the event to the process, and in the same transaction what it asks for. With an `id`, an event that
        came before gives its first result."""
        self._check_outside(event)
        if isinstance(id, str) and id.startswith(f"{self.name}/"):
            raise InvalidArgument("id", id, f"ids that begin with '{self.name}/' are the process manager's own")
        return super().handle(key, event, id=id, expected=expected, at=at)

    def append(self, key: str, *events: Any, expected: int, at: datetime | None = None) -> Handled[State]:
        """Appends events, and what they ask for: VersionConflict unless the process is at the version `expected`."""
        for event in events:
            self._check_outside(event)
        return super().append(key, *events, expected=expected, at=at)

    def _check_outside(self, event: Any) -> None:
        if isinstance(event, (*TOLD, PendingTimer)):
            raise InvalidArgument("event", event, "comes from a process's own manager alone")

    def _decide(self, _state: State, event: Any, _key: str) -> tuple[Any, ...]:
        if not isinstance(event, PendingTimer):
            return (event,)
        if not self._open_sides()[1].holds(event):
            raise _Over(f"timer {event.name!r} is cancelled, set anew, or has fired")
        return (TimerFired(event.name),)

    def _beside(self, key: str, version: int, event: Any, state: State, at: datetime) -> list[Beside]:
        outbox, timers = self._open_sides()
        rows: list[Beside] = []
        if isinstance(event, TimerFired):
            rows.append((timers.topic.name, end_row(key, event.name), None))
        if isinstance(event, CommandRejected):  # whoever still tries it, as a program that slept, comes too late
            target = cast("Entities[Any]", self._by_name[event.command])
            id = self._id(key, event.step, event.number)
            rows.append(target._id_row(id, event.to, target.load(event.to).version, 0))
        theirs = state if is_fixed(state) else copy.deepcopy(state)
        for number, action in enumerate(actions_of(self, theirs, event, key)):
            if isinstance(action, Send):
                header = {"id": self._id(key, version, number), "process": key, "step": version, "number": number}
                rows.append((outbox.name, header | self._row(action.command) | {"to": action.to, "at": at}, None))
            elif isinstance(action, Timer):
                rows.append((timers.topic.name, set_row(key, action.name, action.due(at), version), None))
            else:
                rows.append((timers.topic.name, end_row(key, action.name), None))
        return rows

    def _row(self, command: Any) -> dict[str, Any]:
        row = self._command_types.row(command)
        return {"command": row.pop("event"), "command_version": row.pop("event_version"), **row}

    def _command(self, row: Mapping[str, Any]) -> Any:
        named = {"event": row["command"], "event_version": row["command_version"]}
        return self._command_types.event({**row, **named}, f"{self.name}.outbox")

    def _id(self, process: str, step: int, number: int) -> str:
        return f"{self.name}/{process}/{step}/{number}"

    # -- reading -----------------------------------------------------------------------------------

    @property
    def outbox(self) -> Topic:
        """The topic of the commands."""
        return self._open_sides()[0]

    @property
    def waiting(self) -> int:
        """How many commands are not sent yet, as far as that was reported."""
        place = self._reported(self.outbox).get(0, 0)
        return self.outbox.ends()[0].next - place

    def stored_command(self, command: Any) -> Any:
        """The command as it comes back from the outbox."""
        (back,) = pa.Table.from_pylist([self._row(command)], self._command_types.schema).to_pylist()
        return self._command(back)

    def timers(self, key: str | None = None) -> list[PendingTimer]:
        """The timers that are to fire, of all processes or of one, by time."""
        pending = Timers(self._log, f"{self.name}.timers").all()
        return [timer for timer in pending if key is None or timer.process == key]

    def erase(self, key: str) -> int:
        """Removes the process's events, what it has sent, its timers and its snapshot, bytes and all; returns how many
        records went. What it has not sent yet is not sent any more."""
        check_key(key)
        outbox, timers = self._open_sides()
        # The events go last: after a crash no timer fires in a process that has none.
        return timers.erase(key) + capability(outbox, Erasure).erase(key).records + super().erase(key)

    # -- running -----------------------------------------------------------------------------------

    def drain(self) -> int:
        """Takes the events of the inputs, fires the timers that are due and sends the commands, until there is nothing
        more to do now; how much there was."""
        total = 0
        while done := self._step(lambda: False):
            total += done
        return total

    def run(self, is_stopping: Callable[[], bool], is_well: Callable[[], None] = lambda: None) -> None:
        """The same again and again, until it is to stop. Any number of programs may run it."""
        topics = [self.outbox, self._open_sides()[1].topic, *(source.topic for source in self._inputs)]
        while not is_stopping():
            seen = self._log.news(topics)
            done = self._step(is_stopping)
            is_well()
            if not done:
                self._log.wait(seen, self._pause())

    def _pause(self) -> float:
        with self._turn:
            first = self._open_sides()[1].first()
        left = timedelta(seconds=LOOK_SECONDS) if first is None else first.due - self._clock()
        return min(LOOK_SECONDS, max(0.0, left.total_seconds()))

    def _step(self, is_stopping: Callable[[], bool]) -> int:
        with self._turn:
            routed = sum(self._route(source, route, is_stopping) for source, route in self._inputs.items())
            return routed + self._fire(is_stopping) + self._send(is_stopping)

    def _route(self, source: Entities[Any], route: Route, is_stopping: Callable[[], bool]) -> int:
        topic = source.topic

        def take(record: Record) -> None:
            event = source.event_of(record)
            key = route(event.event, record.value["entity"])
            id = f"{self.name}/{topic.name}@{record.partition}@{record.offset}"
            if key is not None and not self._has_id(id):
                self._check_outside(event.event)
                super(ProcessManager, self).handle(key, event.event, id=id, at=event.at)

        doing = lambda value: f"an event of {value['entity']!r} in {topic.name!r}"  # noqa: E731
        return self._taken(topic, take, doing, is_stopping)

    def _fire(self, is_stopping: Callable[[], bool]) -> int:
        timers = self._open_sides()[1]
        for fired in range(AT_ONCE):
            if is_stopping() or (timer := timers.due(self._clock())) is None:
                return fired
            with self._failing(f"timer {timer.name!r} of {timer.process!r}"), contextlib.suppress(_Over):
                super().handle(timer.process, timer)
                failpoints.reach("process.fired")
            timers.drop(timer)
        return AT_ONCE

    def _send(self, is_stopping: Callable[[], bool]) -> int:
        def send(record: Record) -> None:
            self._deliver(record.value)
            failpoints.reach("process.answered")

        doing = lambda value: f"command {value['command']} of {value['process']!r}"  # noqa: E731
        return self._taken(self.outbox, send, doing, is_stopping)

    def _deliver(self, row: dict[str, Any]) -> None:
        if self._has_id(row["id"]):
            return  # it is sent, and answered
        command = self._command(row)
        target, told = self._targets[type(command)], (row["command"], row["to"])
        if not isinstance(target, Entities):
            self._append_once(target, command, row)
            return
        while True:
            reply: CommandAccepted | CommandRejected
            try:
                if not target._has_id(row["id"]):
                    target.handle(row["to"], command, id=row["id"])
                reply = CommandAccepted(*told, row["step"], row["number"])
            except Rejected as error:
                reply = CommandRejected(*told, str(error), row["step"], row["number"])
            failpoints.reach("process.handled")
            try:
                super().handle(row["process"], reply, id=row["id"])
                return
            except VersionConflict as conflict:
                if conflict.topic == self.name:
                    raise
                # refused here, and meanwhile another program got it through: ask again, and get its result

    def _append_once(self, topic: Topic, command: Any, row: dict[str, Any]) -> None:
        name, mark, expect = self._id_row(row["id"], row["process"], row["step"], 0)
        stored = self._command_types.fields(command)
        try:
            with cast("AbstractContextManager[Transaction]", self._log.transaction()) as tx:
                tx.append(topic.name, stored)
                tx.append(name, mark, expect=expect)
        except VersionConflict:  # another program has just sent it
            return

    def _taken(
        self,
        topic: Topic,
        take: Callable[[Record], None],
        doing: Callable[[Mapping[str, Any]], str],
        is_stopping: Callable[[], bool],
    ) -> int:
        """Takes the records of the topic from where it was left, and reports how far it is."""
        if topic.name not in self._places:
            self._places[topic.name] = self._reported(topic)
        place, taken = self._places[topic.name], 0
        for record in itertools.islice(topic.records(dict(place)), AT_ONCE):
            if is_stopping():
                break
            with self._failing(doing(record.value)):
                take(record)
            place[record.partition] = record.offset + 1
            taken += 1
        if taken:
            self._log.report(self._reader, [(topic, dict(place))]).result()
        return taken

    def _reported(self, topic: Topic) -> dict[int, int]:
        return dict(topic.group(FLOW_GROUP + self._reader).committed())

    @contextlib.contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, HeadraceError) and not isinstance(error, Rejected):
                raise
            raise ProcessFailed(self.name, doing, f"{type(error).__name__}: {error}") from error

    def _open_sides(self) -> tuple[Topic, Timers]:
        with self._opening:
            if self._sides is None:
                for argument, named in ("commands", self._targets.values()), ("inputs", self._inputs):
                    for each in named:
                        if each.name == self.name:
                            why = "is this process manager itself: what it is to do next is for react to say"
                            raise InvalidArgument(argument, each.name, why)
                        self._check_log(argument, each.topic if isinstance(each, Entities) else each)
                outbox = topic_of(self._log, f"{self.name}.outbox", self._command_types.schema, key="process")
                self._sides = outbox, Timers(self._log, f"{self.name}.timers")
            return self._sides

    def _check_log(self, argument: str, topic: Topic) -> None:
        id = topic.topic_id
        with contextlib.suppress(UnknownTopic):
            if self._log.topic(topic.name).topic_id == id:
                return
        why = f"is in another log than {self.name!r}: what a process sends and is told is in one log"
        raise InvalidArgument(argument, topic.name, why)


def actions_of(manager: ProcessManager[Any], state: Any, event: Any, key: str) -> tuple[Action, ...]:
    """What the event, which has made this state, asks for."""
    asked = manager.react(state, event, key)
    if not isinstance(asked, Iterable):
        raise InvalidArgument("react", asked, "must give a list of Send, Timer, Cancel: an empty one for nothing")
    actions = tuple(asked)
    for action in actions:
        if not isinstance(action, Send | Timer | Cancel):
            raise InvalidArgument("react", action, "must give a list of Send, Timer, Cancel")
        if isinstance(action, Send):
            _check_send(manager._targets, action)
    return actions


def _check_send(targets: Mapping[type, Entities[Any] | Topic], action: Send) -> None:
    if type(action.command) not in targets:
        known = ", ".join(sorted(cls.__name__ for cls in targets))
        raise InvalidArgument("react", action.command, f"sends a command of none of the classes in commands=: {known}")
    to_entity = isinstance(targets[type(action.command)], Entities)
    if to_entity and (not isinstance(action.to, str) or not action.to):
        raise InvalidArgument("react", action, "sends a command to an entity without its key: Send(command, to=key)")
    if not to_entity and action.to is not None:
        raise InvalidArgument("react", action, "sends to a key of a topic, whose key is a field: leave to= out")
