"""Entities: what happened to each is a sequence of events in a topic, and its state a fold of them. Owns how a command
is handled: load, decide, append on the condition that the entity's version is still the same. Knows no Spark.

    seats = Entities(log, "seats", events=[Reserved, Released], evolve=evolve, decide=decide, initial=Seat())
    seats.handle("12A", Reserve(by="ann"))

An append is one transaction of the log: the events of a command are there all or not at all, and so is the id that
makes a command idempotent. States that are kept in memory and snapshots are caches: they are checked against the
version that the log has, and are made of the log again when they do not fit."""

from __future__ import annotations

import functools
import operator
import threading
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import pyarrow as pa

from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument, OffsetOutOfRange, Rejected, UnknownTopic, VersionConflict
from headrace.fingerprint import fingerprint
from headrace.log.capabilities import Erasure, Versions, capability
from headrace.log.contract import Appended, Log, Record, Start, Topic
from headrace.names import check_name
from headrace.position import Position
from headrace.rows import to_rows
from headrace.schema import TIMESTAMP
from headrace.sourcing.columns import Column, column_of, own
from headrace.sourcing.events import EventTypes, Upcast
from headrace.sourcing.results import Difference, EntityAudit, Event, Handled, Loaded, State
from headrace.sourcing.snapshots import Snapshot, Snapshots
from headrace.sourcing.topics import Transaction, check_ahead, topic_of

__all__ = ["Entities", "Known", "check_key", "events_of"]

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
Beside = tuple[str, Any, Mapping[Any, int] | None]
"""Rows for another topic, and the versions that these rows' keys must have there."""


@dataclass(frozen=True, slots=True)
class Known:
    """A state, and where in the topic the events behind it begin; nowhere yet without a partition."""

    state: Any
    version: int = 0
    partition: int = -1
    next: int = 0
    at: datetime | None = None
    """Of its last event."""
    first: int = -1
    """The offset of its first event: if the log has that no more, the state is of erased events."""


class Entities(Generic[State]):
    """The entities of one kind, in the topic `name`, which is created when it is first used. `events`: their classes.
    `evolve(state, event)` gives the next state, `decide(state, command, key)` the events of a command, or raises
    `Rejected`: both are pure functions. `initial`: the state of an entity without events. `snapshot_every`: a snapshot
    is written when so many events came since the last; None for none. `version`: raise it when something that `evolve`
    uses has changed and it does not name it; then snapshots are made again. `upcasts`: for an event class, by version,
    how the stored fields of that version become those of the next. `clock`: what the time is, for tests.

    Where the log appends on no condition, as on Kafka, commands are sent to whoever runs the entities, and their
    classes must be known: `commands`. There `handle` waits for the reply for so long: `timeout`."""

    _instead: ClassVar[list[tuple[type, type[Entities[Any]]]]] = []
    """A log with this capability has entities of this class."""

    def __init_subclass__(cls, *, of: type | None = None) -> None:
        super().__init_subclass__()
        if of is not None:
            Entities._instead.append((of, cls))

    def __new__(cls, log: Log, *_: Any, **__: Any) -> Self:
        found = [other for has, other in cls._instead if issubclass(type(log), has)] if cls is Entities else []
        return cast(Self, object.__new__(found[0] if found else cls))

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        events: Sequence[type],
        evolve: Callable[[State, Any], State],
        decide: Callable[[State, Any, str], Sequence[Any]] | None = None,
        commands: Sequence[type] = (),
        initial: State,
        snapshot_every: int | None = 100,
        version: str = "1",
        upcasts: Mapping[type, Mapping[int, Upcast]] | None = None,
        partitions: int = 1,
        timeout: Duration = "30 seconds",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._wait_us = duration_us(timeout, argument="timeout")
        self._command_classes = list(commands)
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
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._opened: tuple[Topic, Snapshots] | None = None
        self._ids: Topic | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

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
        check_key(key)
        if id is not None and (before := self._handled(id, key)) is not None:
            return before
        known = self._cached(key) or self._load(key)
        for _ in range(RETRIES):
            try:
                if expected is not None and known.version != expected:
                    raise VersionConflict(topic=self.name, key=key, expected=expected, actual=known.version)
                events = events_of(self.decide(own(known.state), command, key))
            except (Rejected, VersionConflict):
                if (latest := self._load(key)).version == known.version:
                    if id is not None and (before := self._handled(id, key)) is not None:
                        return before  # meanwhile, by somebody else with this id: that is why it is refused
                    raise
                known = latest
                continue
            if not events and id is None and (latest := self._load(key)).version != known.version:
                known = latest
                continue
            try:
                return self._append(key, known, events, id, at)
            except VersionConflict as conflict:
                if conflict.topic == self.name:
                    known = self._load(key)
                elif id is not None and (before := self._handled(id, key)) is not None:
                    return before
                else:
                    raise
        raise VersionConflict(topic=self.name, key=key, expected=known.version, actual=self._load(key).version)

    def append(self, key: str, *events: Any, expected: int, at: datetime | None = None) -> Handled[State]:
        """Appends events as they are, without a command: VersionConflict unless the entity is at the version
        `expected`."""
        check_key(key)
        known = self._load(key)
        if known.version != expected:
            raise VersionConflict(topic=self.name, key=key, expected=expected, actual=known.version)
        return self._append(key, known, events, None, at)

    def _append(
        self, key: str, known: Known, events: tuple[Any, ...], id: str | None, at: datetime | None
    ) -> Handled[State]:
        topic, _ = self._open()
        when = self._clock() if at is None else at
        check_ahead(topic, when)
        state, rows, beside = own(known.state), [], list[Beside]()
        for number, event in enumerate(events, known.version + 1):
            header = {"entity": key, "version": number, "command": id, "at": when}
            rows.append(self._types.row(event) | header)
            state = self.evolve(state, event)
            beside += self._beside(key, number, event, state, when)
        done = self._write(topic, key, known.version, rows, id, beside)
        position = functools.reduce(operator.or_, (each.position for each in done)) if done else Position()
        after = known
        if rows:
            ((partition, offsets),) = done[0].ranges.items()
            first = offsets.start if known.first < 0 else known.first
            after = Known(state, known.version + len(rows), partition, offsets.stop, when, first)
            self._keep(key, after)
            if self._column is not None and self._every and after.version // self._every > known.version // self._every:
                self._put_snapshot(key, after)
        return Handled(key, events, after.version, own(after.state), position)

    def _beside(self, _key: str, _version: int, _event: Any, _state: State, _at: datetime) -> list[Beside]:
        """What else is appended in the transaction of an event, which has made this state."""
        return []

    def _write(
        self, topic: Topic, key: str, version: int, rows: list[dict[str, Any]], id: str | None, beside: list[Beside]
    ) -> list[Appended]:
        if id is not None:
            beside.append(self._id_row(id, key, version, len(rows)))
        if not beside:
            return [capability(topic, Versions).append(rows, expect={key: version})] if rows else []
        with cast("AbstractContextManager[Transaction]", self._log.transaction()) as tx:
            if rows:
                tx.append(topic.name, rows, expect={key: version})
            for name, more, expect in beside:
                tx.append(name, more, expect=expect)
        return tx.results

    def _id_row(self, id: str, key: str, version: int, events: int) -> Beside:
        """That a command of this id had so many events, behind this version; on condition that it is the first."""
        row = {"id": id, "entity": key, "first": version, "events": events}
        return self._commands().name, row, {id: 0}

    def _has_id(self, id: str) -> bool:
        """Whether there was a command with this id; it may be erased."""
        return bool(capability(self._commands(), Versions).version(id))

    def _handled(self, id: str, key: str) -> Handled[State] | None:
        """The result of the command with this id, if there was one."""
        if not isinstance(id, str) or not id:
            raise InvalidArgument("id", id, "must be a text that names the command, such as a UUID")
        commands = self._commands()
        if not self._has_id(id):
            return None
        record = next(iter(commands.records(key=id)), None)
        if record is None:
            raise InvalidArgument("id", id, f"was handled before, and erased from {commands.name!r}: use another")
        if record.value["entity"] != key:
            raise InvalidArgument("id", id, f"is that of a command to {record.value['entity']!r}: use another")
        first, count = record.value["first"], record.value["events"]
        position = Position.of(commands.name, commands.topic_id, {record.partition: record.offset + 1})
        events, known = [], Known(own(self.initial))
        for stored, event in self._stored(key, known) if first + count else ():
            known = self._evolved(known, stored, event)
            if known.version > first:
                events.append(event)
                position |= Position.of(self.name, self.topic.topic_id, {stored.partition: stored.offset + 1})
            if known.version >= first + count:
                break
        return Handled(key, tuple(events), first + count, own(known.state), position, duplicate=True)

    # -- running -----------------------------------------------------------------------------------

    def drain(self) -> int:
        """Handles the commands that were sent, and returns how many there were: none where callers decide."""
        return 0

    def run(self, is_stopping: Callable[[], bool], is_well: Callable[[], None] = lambda: None) -> None:
        """The same again and again, until it is to stop. Returns at once where callers decide."""

    # -- reading -----------------------------------------------------------------------------------

    def load(self, key: str, *, at: int | datetime | None = None) -> Loaded[State]:
        """The entity's state now, or `at` a version, or at a time: of the events that had arrived by then."""
        check_key(key)
        if at is None:
            known = self._load(key)
        elif isinstance(at, datetime):
            if at.tzinfo is None:
                raise InvalidArgument("at", at, "has no time zone")
            known = self._fold(key, Known(self.initial), at)
        elif isinstance(at, bool) or not isinstance(at, int) or at < 0:
            raise InvalidArgument("at", at, "must be a version (0, 1, …) or a time with zone")
        else:
            base = self._base(key)
            near = self._fold_on(key, base, at) if base and base.version <= at else None
            known = near or self._fold(key, Known(self.initial), at)
            if known.version < at:
                now = self._version(key)
                why = f"is {'erased' if at <= now else 'not there yet'}: {key!r} is at version {now}"
                raise InvalidArgument("at", at, why)
        return Loaded(key, own(known.state), known.version)

    def events(self, key: str) -> Iterator[Event]:
        """All that happened to the entity, in order."""
        check_key(key)
        for record in self._records(key, "earliest"):
            yield self.event_of(record)

    def event_of(self, record: Record) -> Event:
        """The event of a record of the topic."""
        value = record.value
        return Event(self._types.event(value, self.name), value["version"], value["at"], value["command"])

    def audit(self) -> EntityAudit:
        """Folds the events of every entity that has a snapshot again, and compares."""
        found = self._open()[1].all() if self._column is not None else []
        differences = []
        for snapshot in found:
            held = self._state_of(snapshot)
            folded = self._fold(snapshot.entity, Known(self.initial), snapshot.version)
            if (folded.version, folded.state) != (snapshot.version, held):
                differences.append(Difference(snapshot.entity, snapshot.version, held, folded.state))
        return EntityAudit(len(found), differences)

    def erase(self, key: str) -> int:
        """Removes the entity's events, its commands' ids and its snapshot, bytes and all; returns how many records
        went. The entity's version stays: what comes next counts on."""
        check_key(key)
        gone = capability(self.topic, Erasure).erase(key).records
        for commands in self._known_commands():
            gone += capability(commands, Erasure).erase(key, column="entity").records
        self._forget(key)
        return gone

    # -- states ------------------------------------------------------------------------------------

    def _load(self, key: str) -> Known:
        """The state at the version that the log has now."""
        cached = self._cached(key)
        base = cached or self._base(key)
        version = self._version(key)
        if cached is not None and version == cached.version:
            return cached
        known = None if base is None else self._fold_on(key, base, version)
        if known is None:  # nothing is kept, or what is kept is not of this log
            if base is not None:
                self._forget(key)
            base, known = None, self._fold(key, Known(self.initial), version)
            while not self._has_first(key, known):  # erased while it was read
                known = self._fold(key, Known(self.initial), version)
        if known.version < version:  # its events are erased: what comes next counts on
            known = Known(self.initial, version)
        self._keep(key, known)
        since = known.version - (base.version if base else 0)
        if self._column is not None and self._every and known.partition >= 0 and since >= self._every:
            self._put_snapshot(key, known)
        return known

    def _base(self, key: str) -> Known | None:
        """Where folding may begin: the state in memory, or the snapshot."""
        if (cached := self._cached(key)) is not None:
            return cached
        if self._column is None or (found := self._open()[1].get(key)) is None:
            return None
        try:
            state, at = self._state_of(found), datetime.fromisoformat(found.at)
        except Exception:  # its class takes no such value any more
            return None
        return Known(state, found.version, found.partition, found.next, at, found.first)

    def _fold(self, key: str, known: Known, upto: int | datetime | None = None) -> Known:
        """With all events behind the state; or up to a version, or of those that had arrived by a time."""
        return self._folded(replace(known, state=own(known.state)), self._stored(key, known), upto)

    def _fold_on(self, key: str, base: Known, upto: int | None = None) -> Known | None:
        """The same; None if the log does not have the state's last event: it is erased, or the log an older copy."""
        if base.partition < 0:
            return self._fold(key, base, upto)
        if self._header(base.partition, base.next - 1) != {"entity": key, "version": base.version, "at": base.at}:
            return None
        known = self._fold(key, base, upto)
        return known if self._has_first(key, known) else None

    def _folded(self, known: Known, stored: Iterator[tuple[Record, Any]], upto: int | datetime | None = None) -> Known:
        """`known` is nobody else's: `evolve` may change its state. What lies behind the version asked for is not
        read."""
        if known.version == upto:
            return known
        for record, event in stored:
            version = record.value["version"]
            if isinstance(upto, datetime) and record.arrived_at > upto:
                break
            if isinstance(upto, int) and version > upto:
                break
            known = self._evolved(known, record, event)
            if version == upto:
                break
        return known

    def _evolved(self, known: Known, record: Record, event: Any) -> Known:
        first = record.offset if known.first < 0 else known.first
        state = self.evolve(known.state, event)
        return Known(state, record.value["version"], record.partition, record.offset + 1, record.value["at"], first)

    def _stored(self, key: str, known: Known) -> Iterator[tuple[Record, Any]]:
        """The events behind a state."""
        start: Start = "earliest" if known.partition < 0 else {known.partition: known.next}
        for record in self._records(key, start):
            yield record, self._types.event(record.value, self.name)

    def _records(self, key: str, start: Start) -> Iterator[Record]:
        return self.topic.records(start, key=key)

    def _version(self, key: str) -> int:
        return capability(self.topic, Versions).version(key)

    def _cached(self, key: str) -> Known | None:
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
            return known

    def _keep(self, key: str, known: Known) -> None:
        with self._lock:
            if (before := self._known.get(key)) is None or before.version < known.version:
                self._known[key] = known
                self._known.move_to_end(key)
            if len(self._known) > CACHED:
                self._known.popitem(last=False)

    def _put_snapshot(self, key: str, known: Known) -> None:
        """Unless the state is of events that were erased, while it was in memory here. Looks once more behind it: who
        erases meanwhile may not have seen the snapshot."""
        if self._has_first(key, known):
            self._open()[1].put(self._snapshot(key, known))
        if not self._has_first(key, known):
            self._forget(key)

    def _has_first(self, key: str, known: Known) -> bool:
        """Whether the log has the state's first event: erasure takes all that there are."""
        return known.partition < 0 or self._header(known.partition, known.first).get("entity") == key

    def _header(self, partition: int, offset: int) -> dict[str, Any]:
        """Of the event at that very place: whose it is, its version and its time. Empty if there is none."""
        try:
            found = self.topic.batches(partition, offset, offset + 1, ["entity", "version", "at"])
            return next((row for batch in found for row in to_rows(batch)), {})
        except OffsetOutOfRange:
            return {}

    def _forget(self, key: str) -> None:
        self._open()[1].forget(key)
        with self._lock:
            self._known.pop(key, None)

    def _snapshot(self, key: str, known: Known) -> Snapshot:
        assert self._column is not None and self._column.type is not None and known.at is not None
        try:
            array = pa.array([self._column.store(known.state)], self._column.type)
        except (TypeError, pa.ArrowInvalid) as error:
            raise InvalidArgument("evolve", known.state, f"gave a state that is not of its type: {error}") from None
        schema = pa.schema({"state": self._column.type})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.record_batch([array], schema=schema))
        return Snapshot(
            key,
            known.version,
            known.partition,
            known.next,
            known.at.isoformat(),
            known.first,
            sink.getvalue().to_pybytes(),
        )

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

    def _known_commands(self) -> list[Topic]:
        """The topic of commands' ids, if there is one."""
        try:
            return [self._log.topic(f"{self.name}.commands")]
        except UnknownTopic:
            return []

    def _commands(self) -> Topic:
        if self._ids is None:  # making sure of a topic is a transaction of its own
            self._ids = self._log.create_topic(
                f"{self.name}.commands", COMMANDS, key="id", versioned=True, exist_ok=True
            )
        return self._ids


def check_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise InvalidArgument("key", key, "an entity's key is a text that is not empty")


def events_of(decided: Any) -> tuple[Any, ...]:
    """What `decide` gave."""
    if not isinstance(decided, Iterable):
        why = "must be a list of events: an empty one if nothing comes of the command"
        raise InvalidArgument("decide", decided, why)
    return tuple(decided)


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
