"""Opens sinks: what a user gives as one, over its topic. Owns what can be a sink, and where one is recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connect.calling import Function
from headrace.connect.contract import Deliver, Delivery, Sink
from headrace.connect.index import file
from headrace.connect.index.spec import KIND, SearchIndex
from headrace.connect.journal import SPEC, Journal, recorded, state_topic
from headrace.connect.running import reader_of
from headrace.errors import InvalidArgument, TopicReplaced

if TYPE_CHECKING:
    from headrace.log.contract import Log, Topic

__all__ = ["as_sink", "forget", "open_sink"]


def as_sink(given: Sink | Deliver | Any) -> Sink:
    """InvalidArgument if it can be none."""
    if isinstance(given, Sink):
        return given
    if callable(given) and not isinstance(given, type):
        _check_takes_two(given)
        return Function(given)
    why = "must be hr.search_index(…), hr.webhook(…), hr.command(…), or a function of rows (a pyarrow.Table) and a key"
    raise InvalidArgument("sink", given, why)


def _check_takes_two(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, "")
    except TypeError:
        why = f"is called with rows and a key, and takes {signature}: def deliver(rows, key): …"
        raise InvalidArgument("sink", getattr(function, "__name__", function), why) from None


def open_sink(
    sink: Sink, name: str, log: Log, topic: Topic, home: Path, key: tuple[str, ...] | None = None
) -> Delivery:
    """Over its topic, from where it was. TopicReplaced if it has read another topic of that name."""
    try:
        opened = sink.over(name, log, topic, home, key)
    except TopicReplaced as error:
        raise TopicReplaced(error.topic, error.topic_id, sink=name) from None
    own = {**sink.facts(), "key": [*key]} if key and not sink.facts().get("key") else sink.facts()
    Journal(log, name).describe({"kind": sink.kind, "topic": topic.name, **own})
    return opened


def forget(log: Log, home: Path, name: str) -> None:
    """The sink, its place and its lag are gone, and the file of an index. UnknownSink if there is none."""
    facts = recorded(log, name).get(SPEC, {})
    if facts.get("kind") == KIND:
        file.remove(SearchIndex.of(name, facts).file(home))
    log.forget_flow(reader_of(name))
    log.delete_topic(state_topic(name))
