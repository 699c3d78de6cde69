"""Entities: what happened to each is a sequence of events in a topic, and its state a fold of them. Owns how a command
is handled: load, decide, append on the condition that the entity's version is still the same. Knows no Spark.

    seats = Entities(log, "seats", events=[Reserved, Released], evolve=evolve, decide=decide, initial=Seat())
    seats.handle("12A", Reserve(by="ann"))

An append is one transaction of the log: the events of a command are there all or not at all, and so is the id that
makes a command idempotent. States that are kept in memory and snapshots are caches: they are checked against the
version that the log has, and are made of the log again when they do not fit."""

from __future__ import annotations

import copy
import threading
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa

from headrace.errors import (
    InvalidArgument,
    OffsetOutOfRange,
    Rejected,
    VersionConflict,
)
from headrace.fingerprint import fingerprint
from headrace.log.capabilities import Erasure, Versions, capability
from headrace.log.contract import Appended, Log, Record, Start, Topic
from headrace.names import check_name
from headrace.position import Position
from headrace.schema import TIMESTAMP
from headrace.sourcing.columns import Column, column_of
from headrace.sourcing.events import EventTypes, Upcast
from headrace.sourcing.snapshots import Snapshot, Snapshots
from headrace.sourcing.topics import Transaction, topic_of

__all__ = ["Difference", "Entities", "EntityAudit", "Event", "Handled", "Loaded"]

State = TypeVar("State")

HEADER = pa.schema(
    {
        "entity": pa.string(),
        "event": pa.string(),
        "event_version": pa.int32(),
        "version": pa.int64(),
        "command": pa.string(),
        "at": TIMESTAMP,
    }
)
"""The columns beside the events' own. `version` is the entity's."""
RETRIES = 100
"""So often a command is decided again because another was first. Each time that other one has got through."""
CACHED = 10_000
"""The states that are kept in memory, at most: those used last."""
COMMANDS = "id string, entity string, first bigint, events int"


@dataclass(frozen=True, slots=True)
class Event:
    """An event that happened to an entity. `version`: the entity's version that it made, from 1 on."""

    event: Any
    version: int
    at: datetime
    command: str | None
    """The id of the command that it came from, if that had one."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[State]):
    """An entity's state, and its version: how many events made it."""

    key: str
    state: State
    version: int


@dataclass(frozen=True, slots=True)
class Handled(Generic[State]):
    """A command's result: its events, and the entity's version and state behind them. `position`: where the log has
    them, for `wait_for=`. `duplicate`: a command of this id was handled before, and this is its result; `state` is the
    one of that time."""

    key: str
    events: tuple[Any, ...]
    version: int
    state: State
    position: Position
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """A snapshot that is not what its entity's events come to."""

    key: str
    version: int
    snapshot: Any
    folded: Any


@dataclass(frozen=True, slots=True)
class EntityAudit:
    """How many snapshots were compared with the fold of their events, and those that are not the same."""

    checked: int
    differences: list[Difference]

    @property
    def ok(self) -> bool:
        """True if no snapshot differs."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class _Known:
    """A state, and where in the topic the events behind it begin; nowhere yet without a partition."""

    state: Any
    version: int = 0
    partition: int = -1
    next: int = 0


class Entities(Generic[State]):
    """The entities of one kind, in the topic `name`, which is created when it is first used. `events`: their classes.
    `evolve(state, event)` gives the next state, `decide(state, command, key)` the events of a command, or raises
    `Rejected`: both are pure functions. `initial`: the state of an entity without events. `snapshot_every`: a snapshot
    is written when so many events came since the last; None for none. `version`: raise it when something that `evolve`
    uses has changed and it does not name it; then snapshots are made again. `upcasts`: for an event class, by version,
    how the stored fields of that version become those of the next. `clock`: what the time is, for tests."""

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        events: Sequence[type],
        evolve: Callable[[State, Any], State],
        decide: Callable[[State, Any, str], Sequence[Any]] | None = None,
        initial: State,
        snapshot_every: int | None = 100,
        version: str = "1",
        upcasts: Mapping[type, Mapping[int, Upcast]] | None = None,
        partitions: int = 1,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = check_name(name, argument="name")
        if snapshot_every is not None and (not isinstance(snapshot_every, int) or snapshot_every < 1):
            raise InvalidArgument("snapshot_every", snapshot_every, "must be a whole number above zero, or None")
        self._log, self._partitions, self._clock = log, partitions, clock
        self._types = EventTypes(events, upcasts, header=HEADER)
        self.evolve, self.decide, self.initial = evolve, decide, initial
        self._every = snapshot_every
        self._column = None if snapshot_every is None else _state_column(evolve, initial)
        kinds = [] if self._column is None else [str(self._column.type)]
        self._fingerprint = fingerprint(evolve, initial, str(self._types.schema), version, upcasts or {}, kinds)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._opened: tuple[Topic, Snapshots] | None = None

    def __repr__(self) -> str:
        return f"Entities({self.name!r})"

    @property
    def topic(self) -> Topic:
        """The topic of the events: a flow's source, as any other."""
        return self._open()[0]

    def stored(self, event: Any) -> Any:
        """The event as it comes back from the log."""
        row = self._types.row(event)
        (back,) = pa.Table.from_pylist([row], self._types.schema).to_pylist()
        return self._types.event(back, self.name)

    # -- writing -----------------------------------------------------------------------------------

    def handle(
        self, key: str, command: Any, *, id: str | None = None, expected: int | None = None, at: datetime | None = None
    ) -> Handled[State]:
        """Decides on the entity's state and appends what comes of it, in one transaction. Decides again if another
        command was first. With an `id`, a command that was handled before gives its first result. With `expected`, the
        entity must be at this version, or it is VersionConflict. `at`: the events' time, now if it is not given."""
        if self.decide is None:
            raise InvalidArgument("decide", None, f"{self!r} has none: give decide=, or use append()")
        _check_key(key)
        if id is not None and (before := self._handled(id, key)) is not None:
            return before
        known = self._cached(key) or self._load(key)
        for _ in range(RETRIES):
            try:
                if expected is not None and known.version != expected:
                    raise VersionConflict(topic=self.name, key=key, expected=expected, actual=known.version)
                events = tuple(self.decide(_own(known.state), command, key))
            except (Rejected, VersionConflict):
                if (latest := self._load(key)).version == known.version:
                    raise
                known = latest
                continue
            if not events and id is None and (latest := self._load(key)).version != known.version:
                known = latest
                continue
            try:
                return self._append(key, known, events, id, at)
            except VersionConflict as conflict:
                if conflict.topic != self.name:
                    assert id is not None
                    return cast("Handled[State]", self._handled(id, key))
                known = self._load(key)
        raise VersionConflict(topic=self.name, key=key, expected=known.version, actual=self._load(key).version)

    def append(self, key: str, *events: Any, expected: int, at: datetime | None = None) -> Handled[State]:
        """Appends events as they are, without a command: VersionConflict unless the entity is at the version
        `expected`."""
        _check_key(key)
        known = self._load(key)
        if known.version != expected:
            raise VersionConflict(topic=self.name, key=key, expected=expected, actual=known.version)
        return self._append(key, known, events, None, at)

    def _append(
        self, key: str, known: _Known, events: tuple[Any, ...], id: str | None, at: datetime | None
    ) -> Handled[State]:
        topic, snapshots = self._open()
        when = self._clock() if at is None else at
        state, rows = known.state, []
        for number, event in enumerate(events, known.version + 1):
            header = {"entity": key, "version": number, "command": id, "at": when}
            rows.append(self._types.row(event) | header)
            state = self.evolve(_own(state), event)
        done = self._write(topic, key, known.version, rows, id)
        position = Position()
        for each in done:
            position |= each.position
        after = known
        if rows:
            ((partition, offsets),) = done[0].ranges.items()
            after = _Known(state, known.version + len(rows), partition, offsets.stop)
            self._keep(key, after)
            if self._column is not None and self._every and after.version // self._every > known.version // self._every:
                snapshots.put(self._snapshot(key, after))
        return Handled(key, events, after.version, _own(after.state), position)

    def _write(
        self, topic: Topic, key: str, version: int, rows: list[dict[str, Any]], id: str | None
    ) -> list[Appended]:
        if id is None:
            return [capability(topic, Versions).append(rows, expect={key: version})] if rows else []
        commands = self._commands()
        with cast("AbstractContextManager[Transaction]", self._log.transaction()) as tx:
            if rows:
                tx.append(topic.name, rows, expect={key: version})
            command = {"id": id, "entity": key, "first": version, "events": len(rows)}
            tx.append(commands.name, command, expect={id: 0})
        return tx.results

    def _handled(self, id: str, key: str) -> Handled[State] | None:
        """The result of the command with this id, if there was one."""
        if not isinstance(id, str) or not id:
            raise InvalidArgument("id", id, "must be a text that names the command, such as a UUID")
        commands = self._commands()
        if not capability(commands, Versions).version(id):
            return None
        record = next(iter(commands.records(key=id)), None)
        if record is None:
            raise InvalidArgument("id", id, f"was handled before, and erased from {commands.name!r}: use another")
        if record.value["entity"] != key:
            raise InvalidArgument("id", id, f"is that of a command to {record.value['entity']!r}: use another")
        first, count = record.value["first"], record.value["events"]
        position = Position.of(commands.name, commands.topic_id, {record.partition: record.offset + 1})
        events, known = [], _Known(self.initial)
        for stored, event in self._stored(key, known) if first + count else ():
            known = self._evolved(known, stored, event)
            if known.version > first:
                events.append(event)
                position |= Position.of(self.name, self.topic.topic_id, {stored.partition: stored.offset + 1})
            if known.version >= first + count:
                break
        return Handled(key, tuple(events), first + count, _own(known.state), position, duplicate=True)

    # -- reading -----------------------------------------------------------------------------------

    def load(self, key: str, *, at: int | datetime | None = None) -> Loaded[State]:
        """The entity's state now, or `at` a version, or at a time: of the events that had arrived by then."""
        _check_key(key)
        if at is None:
            known = self._load(key)
        elif isinstance(at, datetime):
            if at.tzinfo is None:
                raise InvalidArgument("at", at, "has no time zone")
            known = self._fold(key, _Known(self.initial), at)
        elif isinstance(at, bool) or not isinstance(at, int) or at < 0:
            raise InvalidArgument("at", at, "must be a version (0, 1, …) or a time with zone")
        else:
            base = self._base(key)
            base = base if base.version <= at else _Known(self.initial)
            known = self._fold(key, base, at)
            if known.version < at:
                raise InvalidArgument("at", at, f"is not there yet: {key!r} is at version {known.version}")
        return Loaded(key, _own(known.state), known.version)

    def events(self, key: str) -> Iterator[Event]:
        """All that happened to the entity, in order."""
        _check_key(key)
        for record, event in self._stored(key, _Known(None)):
            yield Event(event, record.value["version"], record.value["at"], record.value["command"])

    def audit(self) -> EntityAudit:
        """Folds the events of every entity that has a snapshot again, and compares."""
        _, snapshots = self._open()
        found = snapshots.all() if self._column is not None else []
        differences = []
        for snapshot in found:
            held = self._state_of(snapshot)
            folded = self._fold(snapshot.entity, _Known(self.initial), snapshot.version)
            if (folded.version, folded.state) != (snapshot.version, held):
                differences.append(Difference(snapshot.entity, snapshot.version, held, folded.state))
        return EntityAudit(len(found), differences)

    def erase(self, key: str) -> int:
        """Removes the entity's events, its commands' ids and its snapshot, bytes and all; returns how many records
        went. The entity's version stays: what comes next counts on."""
        _check_key(key)
        topic, snapshots = self._open()
        ids = {record.value["command"] for record in topic.records(key=key)} - {None}
        gone = capability(topic, Erasure).erase(key).records
        if ids:
            commands = capability(self._commands(), Erasure)
            gone += sum(commands.erase(each).records for each in ids)
        snapshots.forget(key)
        with self._lock:
            self._known.pop(key, None)
        return gone

    # -- states ------------------------------------------------------------------------------------

    def _load(self, key: str) -> _Known:
        """The state at the version that the log has now."""
        topic, snapshots = self._open()
        base, version = self._base(key), capability(topic, Versions).version(key)
        if version == base.version:
            return base
        known = self._fold(key, base)
        if known.version < version:  # its events are erased: what comes next counts on
            known = _Known(self.initial, version)
        self._keep(key, known)
        if self._column is not None and self._every and known.version - base.version >= self._every:
            snapshots.put(self._snapshot(key, known))
        return known

    def _base(self, key: str) -> _Known:
        """Where folding begins: the state in memory, or the snapshot, or nothing yet."""
        if (cached := self._cached(key)) is not None:
            return cached
        if self._column is None or (found := self._open()[1].get(key)) is None:
            return _Known(self.initial)
        return _Known(self._state_of(found), found.version, found.partition, found.next)

    def _fold(self, key: str, known: _Known, upto: int | datetime | None = None) -> _Known:
        """With all events behind the state; or up to a version, or of those that had arrived by a time."""
        for record, event in self._stored(key, known):
            if isinstance(upto, datetime) and record.arrived_at > upto:
                break
            if isinstance(upto, int) and known.version >= upto:
                break
            known = self._evolved(known, record, event)
        return known

    def _evolved(self, known: _Known, record: Record, event: Any) -> _Known:
        state = self.evolve(_own(known.state), event)
        return _Known(state, record.value["version"], record.partition, record.offset + 1)

    def _stored(self, key: str, known: _Known) -> Iterator[tuple[Record, Any]]:
        """The events behind a state."""
        topic = self.topic
        start: Start = "earliest" if known.partition < 0 else {known.partition: known.next}
        try:
            for record in topic.records(start, key=key):
                yield record, self._types.event(record.value, self.name)
        except OffsetOutOfRange:  # a snapshot of a log that was restored since
            if known.partition < 0:
                raise
            why = f"topic {self.name!r} ends before the state that is kept of it: make the Entities again"
            raise InvalidArgument("key", key, why) from None

    def _cached(self, key: str) -> _Known | None:
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
            return known

    def _keep(self, key: str, known: _Known) -> None:
        with self._lock:
            if (before := self._known.get(key)) is None or before.version < known.version:
                self._known[key] = known
                self._known.move_to_end(key)
            if len(self._known) > CACHED:
                self._known.popitem(last=False)

    def _snapshot(self, key: str, known: _Known) -> Snapshot:
        assert self._column is not None and self._column.type is not None
        try:
            array = pa.array([self._column.store(known.state)], self._column.type)
        except (TypeError, pa.ArrowInvalid) as error:
            raise InvalidArgument("evolve", known.state, f"gave a state that is not of its type: {error}") from None
        schema = pa.schema({"state": self._column.type})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.record_batch([array], schema=schema))
        return Snapshot(key, known.version, known.partition, known.next, sink.getvalue().to_pybytes())

    def _state_of(self, snapshot: Snapshot) -> Any:
        assert self._column is not None
        with pa.ipc.open_stream(snapshot.state) as stream:
            return self._column.load(stream.read_all()["state"][0].as_py())

    # -- topics ------------------------------------------------------------------------------------

    def _open(self) -> tuple[Topic, Snapshots]:
        if self._opened is None:
            topic = topic_of(self._log, self.name, self._types.schema, key="entity", partitions=self._partitions)
            self._opened = topic, Snapshots(Path(self._log.address), topic.topic_id, self._fingerprint)
        return self._opened

    def _commands(self) -> Topic:
        return self._log.create_topic(f"{self.name}.commands", COMMANDS, key="id", versioned=True, exist_ok=True)


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise InvalidArgument("key", key, "an entity's key is a text that is not empty")


def _own(state: Any) -> Any:
    """A state for somebody's function, which may change it."""
    frozen = getattr(type(state), "__dataclass_params__", None)
    if state is None or isinstance(state, str | int | float | frozenset | tuple) or (frozen and frozen.frozen):
        return state
    return copy.deepcopy(state)


def _state_column(evolve: Callable[..., Any], initial: Any) -> Column:
    """By the annotation of what `evolve` returns, or else by the initial state."""
    try:
        hint = typing.get_type_hints(evolve).get("return", type(initial))
    except (NameError, TypeError):
        hint = type(initial)
    try:
        column = column_of(hint if not isinstance(hint, TypeVar) else type(initial), "the state")
    except InvalidArgument as error:
        why = f"{error}. Annotate what evolve returns, or take no snapshots: snapshot_every=None"
        raise InvalidArgument("initial", initial, why) from None
    return column if column.type is not None else replace(column, type=pa.struct([]))
