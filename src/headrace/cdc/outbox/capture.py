"""Captures an outbox: its rows into topics, each once, in their order. Owns what an event becomes, and the order of
things: appended, durable, then taken from the table.

Which rows were appended last is in the log, in the transaction of their events. So after a crash between the two they
are taken from the table, and not appended again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from headrace.cdc.choice import READERS
from headrace.cdc.journal import Journal, Value
from headrace.cdc.outbox.table import Connected, Event, Events
from headrace.errors import HeadraceError, InvalidArgument, RecordTooLarge
from headrace.names import check_name

if TYPE_CHECKING:
    from headrace.cdc.choice import Choice
    from headrace.cdc.outbox.address import Outbox
    from headrace.log.contract import Log

__all__ = ["OutboxCapture"]

BATCH_ROWS: Final = 1_000
POLL_SECONDS: Final = 0.05


class Poison(Exception):
    """An event that no topic can hold: why."""


class Routed(NamedTuple):
    """An event as its topic has it."""

    topic: str
    id: str
    key: str | None
    type: str | None
    headers: list[tuple[str, str | None]] | None
    payload: Any


class OutboxCapture:
    """`shown`: the address, for messages."""

    def __init__(
        self, log: Log, name: str, choice: Choice, outbox: Outbox, shown: str, connect: Callable[[], Connected]
    ) -> None:
        self.log, self.name, self.choice = log, name, choice
        self._outbox, self._shown, self._connect = outbox, shown, connect

    def run(self, stopping: Callable[[], bool]) -> None:
        with self._life() as life:
            while not stopping():
                if not life.step():
                    time.sleep(POLL_SECONDS)

    def drain(self, *, again: Sequence[str] | None = None) -> int:
        if again is not None:
            raise self._nothing_again()
        with self._life() as life:
            waiting = life.events.waiting()
            while life.done < waiting and life.step():
                pass
            return life.appended

    @contextlib.contextmanager
    def _life(self) -> Iterator[Life]:
        with contextlib.ExitStack() as ending:
            db = self._connect()
            ending.callback(db.close)
            yield Life(self, db, self._outbox, self._shown)

    def _nothing_again(self) -> HeadraceError:
        why = "is an outbox: its events are routed once, and cannot be read again. They are in the topics"
        return InvalidArgument("tables", self._outbox.table, why)

    def ask_again(self, tables: Sequence[str]) -> None:  # noqa: ARG002
        raise self._nothing_again()

    def describe(self, schema: str, table: str) -> tuple[pa.Schema, tuple[str, ...]]:  # noqa: ARG002
        why = f"capture {self.name!r} is of an outbox, which has topics and no tables: app.topic(…, create=False)"
        raise InvalidArgument("name", table, why)

    def uninstall(self) -> list[str]:
        """Others may read the table from now on."""
        with contextlib.closing(self._connect()) as db:
            released = Events(db, self._outbox).release(self.name, Journal(self.log, self.name).id)
        return [f"its row in {READERS}"] if released else []


class Life:
    """From connecting to the end of a connection. `done`: rows that were taken, `appended`: those that were new."""

    def __init__(self, capture: OutboxCapture, db: Connected, outbox: Outbox, shown: str) -> None:
        self._capture, self._db, self._outbox = capture, db, outbox
        self.events = Events(db, outbox)
        self.journal = Journal(capture.log, capture.name)
        self.events.claim(capture.name, self.journal.id)
        self._pending: dict[str, str] = self.journal.states.get(("taken", ""), {})
        self._schema = _schema(pa.binary() if self.events.is_binary else pa.string())
        self._topics: set[str] = set()
        home, _, name = f"{capture.choice.home}.{outbox.table}".rpartition(".")
        self._table = {"schema": home.rpartition(".")[2], "name": name, "topic": f"{capture.name}_*", "state": "live"}
        before = self.journal.of("table").get(self._name, {}).get("copied", 0)
        self._copied, self.done, self.appended = int(before), 0, 0
        facts: Value = {"database": shown, "tables": [*capture.choice.tables], "mask": {}, "source": "outbox"}
        if facts != self.journal.states.get(("capture", "")):
            self.journal.write([], {("capture", ""): facts, **self._recorded()})

    @property
    def _name(self) -> str:
        return f"{self._table['schema']}.{self._table['name']}"

    def _recorded(self, more: int = 0) -> dict[tuple[str, str], Value]:
        return {("table", self._name): {**self._table, "copied": self._copied + more, "epoch": 0, "why": ""}}

    def step(self) -> bool:
        """Routes what waits, at most a batch. False if nothing waits."""
        rows = self.events.read(BATCH_ROWS)
        if not rows:
            return False
        digests = [_digest(row) for row in rows]
        known = [self._pending.get(str(row.id)) == digest for row, digest in zip(rows, digests, strict=True)]
        fresh, whole = dict[int, Routed](), len(rows)
        for at, row in enumerate(rows):
            if known[at]:
                continue
            try:
                fresh[at] = self._routed(row)
            except Poison as poison:
                whole = at
                if not fresh and not any(known[:at]):
                    raise self._refused(row, poison) from None
                break
        while fresh:
            try:
                self._append([*fresh.values()], {str(row.id): digests[at] for at, row in enumerate(rows[:whole])})
                break
            except RecordTooLarge as error:
                whole = max(fresh, key=lambda at: _size(fresh[at]))
                fresh = {at: each for at, each in fresh.items() if at < whole}
                if not fresh and not any(known[:whole]):
                    why = Poison(f"it has more than {error.limit_bytes:,} bytes")
                    raise self._refused(rows[whole], why) from None
        self.events.take([row.id for row in rows[:whole]])
        self._pending = {}
        self.done, self.appended = self.done + whole, self.appended + len(fresh)
        return True

    def _append(self, fresh: Sequence[Routed], taken: dict[str, str]) -> None:
        by_topic: dict[str, list[Routed]] = {}
        for each in fresh:
            by_topic.setdefault(each.topic, []).append(each)
        now_us = time.time_ns() // 1000
        count = int(self.journal.states.get(("place", ""), {}).get("end", 0)) + len(fresh)
        place = {"end": count, "at_us": now_us}
        parts = [(topic, _table(rows, self._schema)) for topic, rows in by_topic.items()]
        recorded = self._recorded(len(fresh))
        self.journal.write(parts, {("place", ""): place, ("taken", ""): taken, **recorded})
        self._copied += len(fresh)

    def _refused(self, row: Event, why: Poison) -> HeadraceError:
        return self._db.failed(
            f"the event with {self._outbox.id} = {row.id} in {self._outbox.table!r} cannot be routed: {why}. Correct "
            f"the row or delete it; those behind it wait, and those before it are in their topics"
        )

    def _routed(self, row: Event) -> Routed:
        value = _text(row.topic, self._outbox.topic)
        if not value:
            raise Poison(f"{self._outbox.topic} says no topic")
        topic = f"{self._capture.name}_{value}"
        if topic not in self._topics:
            try:
                check_name(topic, argument=self._outbox.topic)
                made = self._capture.log.create_topic(topic, self._schema, key=("key",), exist_ok=True)
            except HeadraceError as error:
                raise Poison(str(error)) from None
            if made.settings.key != ("key",):
                raise Poison(f"topic {topic!r} is there already, with the key {made.settings.key}")
            self._topics.add(topic)
        payload = row.payload
        if self.events.is_binary:
            payload = payload.encode() if isinstance(payload, str) else None if payload is None else bytes(payload)
        else:
            payload = _text(payload, self._outbox.payload)
        headers = _headers(_text(row.headers, self._outbox.headers), self._outbox.headers)
        key, kind = _text(row.key, self._outbox.key), _text(row.type, self._outbox.type)
        return Routed(topic, str(row.id), key, kind, headers, payload)


def _schema(payload: pa.DataType) -> pa.Schema:
    texts = [pa.field(name, pa.string()) for name in ("id", "key", "type")]
    return pa.schema([*texts, pa.field("headers", pa.map_(pa.string(), pa.string())), pa.field("payload", payload)])


def _table(rows: Sequence[Routed], schema: pa.Schema) -> pa.Table:
    columns = dict(zip(Routed._fields, zip(*rows, strict=True), strict=True))
    return pa.Table.from_arrays([pa.array(columns[each.name], each.type) for each in schema], schema=schema)


def _size(event: Routed) -> int:
    return sum(len(each) for each in event if isinstance(each, str | bytes)) + len(str(event.headers))


def _digest(row: Event) -> str:
    return hashlib.blake2b(repr(tuple(row)).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _text(value: Any, column: str) -> str | None:
    if value is None:
        return None
    try:
        found = bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)
        found.encode()
    except UnicodeError:
        raise Poison(f"{column} is no UTF-8") from None
    return found


def _headers(text: str | None, column: str) -> list[tuple[str, str | None]] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Poison(f"{column} is no object in JSON")
    return [
        (name, value if isinstance(value, str) or value is None else json.dumps(value)) for name, value in found.items()
    ]
