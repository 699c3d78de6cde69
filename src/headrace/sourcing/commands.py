"""Commands as records of a topic, and their replies. Owns what these records are, and how a caller waits for a reply.
Decides nothing.

A caller appends a command to its entity's partition of `NAME.commands`; whoever handles that partition appends the
reply to the same partition of `NAME.replies`. A reply names the call, so that a caller that asks again with the same id
knows which reply is its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.log.contract import Log, Record, Topic
from headrace.sourcing.events import EventTypes

__all__ = ["COMMAND", "COMMANDS", "REPLIES", "Replies", "Tail", "pack", "unpack"]

COMMANDS = "entity string, id string, call string, is_command boolean, expected bigint, at timestamp, body binary"
"""`body`: a command, or events that are appended as they are. `at`: the events' time, if the caller says which."""
REPLIES = (
    "entity string, id string, call string, place bigint, outcome string, first bigint, events int, duplicate boolean, "
    "why string"
)
"""`place`: the offset of the command. `first`: the version behind which its events are, or, of a conflict, the version
that the entity has."""
COMMAND = pa.schema({"event": pa.string(), "event_version": pa.int32()})
"""The columns of a packed command beside its own."""
LOOK_SECONDS = 1.0


def pack(types: EventTypes, items: Sequence[Any]) -> bytes:
    """Objects of these types as bytes that say their own columns: of each, only the columns that it has."""
    rows = [types.row(item) for item in items]
    schema = pa.schema([field for field in types.schema if any(field.name in row for row in rows)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def unpack(types: EventTypes, body: bytes, topic: str) -> list[Any]:
    with pa.ipc.open_stream(body) as stream:
        return [types.event(row, topic) for row in stream.read_all().to_pylist()]


class Tail:
    """Reads a partition on from where it was."""

    def __init__(self, topic: Topic, partition: int, at: int | None = None) -> None:
        """From the earliest record on, if no offset is given."""
        self.topic, self.partition = topic, partition
        self.next = topic.ends()[partition].earliest if at is None else at

    def records(self) -> Iterator[Record]:
        """What has come since."""
        end = self.topic.ends()[self.partition].next
        if end > self.next:
            for record in self.topic.records({self.partition: self.next}, partition=self.partition):
                self.next = record.offset + 1
                yield record
            self.next = max(self.next, end)  # there may be none up to the end


class Replies:
    """The replies of one partition, for all threads that wait for one. One of them reads for all."""

    def __init__(self, log: Log, topic: Topic, partition: int) -> None:
        self._log, self._topic, self._partition = log, topic, partition
        self._changed = threading.Condition()
        self._tail: Tail | None = None
        self._expected: dict[str, dict[str, Any] | None] = {}
        self._reading = False

    @contextlib.contextmanager
    def expecting(self, call: str) -> Iterator[None]:
        """Inside the block, a reply to this call is not missed. The command is appended in it, not before."""
        with self._changed:
            if not self._expected:
                self._tail = Tail(self._topic, self._partition, self._topic.ends()[self._partition].next)
            self._expected[call] = None
        try:
            yield
        finally:
            with self._changed:
                del self._expected[call]

    def wait(self, call: str, seconds: float) -> dict[str, Any] | None:
        """The reply; None if none has come by then."""
        until = time.monotonic() + seconds
        while True:
            with self._changed:
                if (reply := self._expected[call]) is not None:
                    return reply
                if (left := until - time.monotonic()) <= 0:
                    return None
                if self._reading:
                    self._changed.wait(left)
                    continue
                self._reading = True
            try:
                self._read(min(left, LOOK_SECONDS))
            finally:
                with self._changed:
                    self._reading = False
                    self._changed.notify_all()

    def _read(self, seconds: float) -> None:
        assert self._tail is not None
        seen, came = self._log.news([self._topic]), False
        for record in self._tail.records():
            came = True
            with self._changed:
                if record.value["call"] in self._expected:
                    self._expected[record.value["call"]] = record.value
        if not came:
            self._log.wait(seen, seconds)
