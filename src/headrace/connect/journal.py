"""What is recorded of sinks in the log: what each is, and how far one is that keeps no place itself. Owns the topic
`NAME.sink`, one for each sink, and who may write there: of two processes with one sink, the log refuses the one that
came first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidArgument, SinkFenced, UnknownSink, UnknownTopic, Unsupported, VersionConflict
from headrace.log.capabilities import Versions

if TYPE_CHECKING:
    from headrace.log.contract import Log, Topic

__all__ = ["Journal", "recorded", "sinks", "state_topic"]

SCHEMA = "kind string, value string"
SPEC, PLACE = "spec", "place"
Facts = dict[str, Any]


def state_topic(sink: str) -> str:
    return f"{sink}.sink"


def sinks(log: Log) -> dict[str, Facts]:
    """All sinks of a log, by name: what each is."""
    ending = state_topic("")
    found = {}
    for topic in log.topics():
        if topic.name.endswith(ending) and topic.schema.names == ["kind", "value"]:
            spec = _read(topic).get(SPEC)
            if spec is not None:
                found[topic.name.removesuffix(ending)] = spec
    return found


def recorded(log: Log, sink: str) -> dict[str, Facts]:
    """All that is recorded of a sink; UnknownSink if there is none."""
    try:
        return _read(log.topic(state_topic(sink)))
    except UnknownTopic:
        raise UnknownSink(sink=sink, known=list(sinks(log))) from None


def _read(topic: Topic) -> dict[str, Facts]:
    found: dict[str, str] = {}
    for batch in topic.batches(columns=["kind", "value"]):
        found |= zip(batch["kind"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return {kind: json.loads(value) for kind, value in found.items()}


class Journal:
    """The one writer of a sink's records. `states`: what was recorded last, by kind."""

    def __init__(self, log: Log, sink: str) -> None:
        self._sink = sink
        settings: dict[str, Any] = {"key": "kind", "cleanup": "compact", "exist_ok": True}
        try:
            self._topic = log.create_topic(state_topic(sink), SCHEMA, versioned=True, **settings)
        except (Unsupported, InvalidArgument):  # a log that counts no versions
            self._topic = log.create_topic(state_topic(sink), SCHEMA, **settings)
        self._versions: dict[str, int] = {}
        counts = isinstance(self._topic, Versions) and self._topic.settings.versioned
        if counts and isinstance(self._topic, Versions):
            self._versions = {kind: self._topic.version(kind) for kind in (SPEC, PLACE)}
        self.states = _read(self._topic)

    def write(self, kind: str, value: Mapping[str, Any]) -> None:
        """Durable when it returns. SinkFenced, if another process has written it meanwhile."""
        known = self._versions.get(kind)
        condition = {} if known is None else {"expect": {kind: known}}
        try:
            self._topic.append({"kind": kind, "value": json.dumps(value)}, **condition)  # type: ignore[arg-type]
        except VersionConflict:
            raise SinkFenced(self._sink) from None
        if known is not None:
            self._versions[kind] = known + 1
        self.states[kind] = dict(value)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Records what the sink is, if that is not recorded yet: also by another that does it now."""
        if self.states.get(SPEC) == facts:
            return
        try:
            self.write(SPEC, facts)
        except SinkFenced:
            if _read(self._topic).get(SPEC) != facts:
                raise
