"""What a capture writes to the log: the changes of its tables and how far it is, in one transaction. Owns the capture's
own topic, and who may write: of two processes with one capture, the log refuses the one that came first.

After a crash the topic says exactly which changes are in the log: place, tables and chunks of a snapshot are records of
it, appended in the transaction of their rows. Knows no database: what it keeps of one are values by name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.cdc.choice import state_topic
from headrace.errors import (
    CaptureFenced,
    Fenced,
    InvalidArgument,
    UnknownCapture,
    UnknownTopic,
    Unsupported,
    VersionConflict,
)
from headrace.failpoints import reach
from headrace.log.capabilities import SoleWriter, SoleWriters, Versions
from headrace.log.contract import Log, Topic

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Journal", "Name", "Value", "captures", "recorded"]

SCHEMA = "kind string, name string, value string"
KEY = ("kind", "name")
TURN = ("place", "")
"""The record that is in every transaction: it has the place up to which changes are in the log."""
Name = tuple[str, str]
Value = dict[str, Any]


def recorded(log: Log, capture: str) -> dict[Name, Value]:
    """What a capture has written of itself; UnknownCapture if there is none."""
    try:
        topic = log.topic(state_topic(capture))
    except UnknownTopic:
        raise UnknownCapture(capture=capture, known=captures(log)) from None
    return _read(topic)


def captures(log: Log) -> list[str]:
    """The names of the captures whose changes are in this log."""
    ending = state_topic("")
    return [topic.name.removesuffix(ending) for topic in log.topics() if topic.name.endswith(ending)]


def _read(topic: Topic) -> dict[Name, Value]:
    found: dict[Name, str] = {}
    for batch in topic.batches(columns=["kind", "name", "value"]):
        for kind, name, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found[kind, name] = value
    return {name: json.loads(value) for name, value in found.items()}


class Journal:
    """The one writer of a capture. `states`: what was recorded last, by kind and name."""

    def __init__(self, log: Log, capture: str) -> None:
        self.log, self.capture = log, capture
        settings: dict[str, Any] = {"key": KEY, "cleanup": "compact", "exist_ok": True}
        try:
            self._topic = log.create_topic(state_topic(capture), SCHEMA, versioned=True, **settings)
        except (Unsupported, InvalidArgument):  # a log that counts no versions
            self._topic = log.create_topic(state_topic(capture), SCHEMA, **settings)
        # taken before anything is read: what another process is writing is there then, or never will be
        self._writer: Log | SoleWriter = log.sole_writer(f"capture.{capture}") if isinstance(log, SoleWriters) else log
        self._turn = self._counted()
        self.states = _read(self._topic)
        if self._counted() != self._turn:
            raise CaptureFenced(capture)

    @property
    def id(self) -> str:
        """Of no other log, and no other capture."""
        return self._topic.topic_id

    def _counted(self) -> int | None:
        return self._topic.version(TURN) if isinstance(self._topic, Versions) and self._versioned else None

    @property
    def _versioned(self) -> bool:
        return self._topic.settings.versioned

    def of(self, kind: str) -> dict[str, Value]:
        """What was recorded of a kind, by name."""
        return {name: value for (of, name), value in self.states.items() if of == kind}

    def write(self, rows: Iterable[tuple[str, pa.Table]], changed: Mapping[Name, Value]) -> None:
        """Appends rows to topics, and records values; all of it or nothing. Durable when it returns. CaptureFenced, if
        another process has written for this capture meanwhile."""
        changed = {TURN: self.states.get(TURN, {}), **changed}
        records = [{"kind": kind, "name": name, "value": json.dumps(value)} for (kind, name), value in changed.items()]
        condition = {} if self._turn is None else {"expect": {TURN: self._turn}}
        reach("capture.before")
        with self._conflicts(), self._writer.transaction() as tx:
            for topic, table in rows:
                tx.append(topic, table)
            tx.append(self._topic, records, **condition)  # type: ignore[arg-type]
        reach("capture.written")
        self._turn = None if self._turn is None else self._turn + 1
        self.states |= changed

    @contextlib.contextmanager
    def _conflicts(self) -> Iterator[None]:
        try:
            yield
        except (VersionConflict, Fenced):
            raise CaptureFenced(self.capture) from None
