"""Requests over topics: a request is appended with an id, a flow answers it, and the reply is found by that id. Owns
who waits for what, and how long. What answers is any flow (`app.answers`); where it runs is nobody's concern here.

    reply = call(".headrace", "quotes", {"sku": "k1"}, timeout="5 seconds")

A request that was appended is answered, whether the caller still lives or not. Calling again with the same id appends
nothing, and waits for the same reply."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.durations import Duration, duration_us
from headrace.errors import CallTimeout, InvalidArgument, UnknownTopic, VersionConflict
from headrace.log.capabilities import Versions
from headrace.log.contract import Log, Record, Topic
from headrace.position import Position

if TYPE_CHECKING:
    from headrace.app import App

__all__ = ["ID", "Reply", "answers_of", "call"]

ID = "id"
"""The column that names a request, in the topic of requests and in that of the answers."""
OP = "op"
LOOK_SECONDS = 0.2
"""So often it is looked for answers whose topic is not there yet."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. `value`: its columns. `position`: behind it, for `wait_for=`."""

    id: str
    value: dict[str, Any]
    position: Position


def answers_of(requests: str) -> str:
    """The topic in which the answers to a topic's requests are."""
    return f"{requests}.answers"


def call(
    where: App | Log | str | Path, name: str, request: Mapping[str, Any], *, timeout: Duration = "5 seconds",
    id: str | None = None,
) -> Reply:  # fmt: skip
    """Appends a request to the topic `name` and waits for its reply. `where`: an app, a log, or a home. `id`: names the
    request, so that calling again is the same call; a new one by default. CallTimeout, with the id, if there is no
    reply in time: the request stands, and calling again with that id goes on waiting."""
    seconds = duration_us(timeout, argument="timeout") / 1e6
    if id is not None and (not isinstance(id, str) or not id):
        raise InvalidArgument("id", id, "must be a text that names the request, such as a UUID")
    if not isinstance(request, Mapping):
        raise InvalidArgument("request", request, "must be a mapping: {'sku': 'k1'}")
    if ID in request:
        raise InvalidArgument(
            "request", ID, "is the column of the request's id: leave it out, or give it as id= (--id)"
        )
    named = uuid.uuid4().hex if id is None else id
    with _log_of(where) as log:
        topic = log.topic(name)
        _check(topic)
        until = time.monotonic() + seconds
        _append(topic, {**request, ID: named})
        while True:
            answers = _answers(log, name)
            seen = {} if answers is None else log.news([answers])
            if answers is not None and (found := _found(answers, named)) is not None:
                own = OP if answers.settings.changes else None  # else it is a column like any other
                value = {column: held for column, held in found.value.items() if column != own}
                return Reply(
                    named, value, Position.of(answers.name, answers.topic_id, {found.partition: found.offset + 1})
                )
            left = until - time.monotonic()
            if left <= 0:
                raise CallTimeout(topic=name, id=named, seconds=seconds)
            if answers is None:
                time.sleep(min(left, LOOK_SECONDS))
            else:
                log.wait(seen, left)


def _append(topic: Topic, request: dict[str, Any]) -> None:
    """Once for each id."""
    at = topic.settings.event_time
    if at is not None and request.get(at) is None:
        request[at] = datetime.now(UTC)
    if not (isinstance(topic, Versions) and topic.settings.versioned):
        topic.append(request)
    elif not topic.version(request[ID]):
        with contextlib.suppress(VersionConflict):  # somebody else calls with this id
            cast(Versions, topic).append(request, expect={request[ID]: 0})


def _found(answers: Topic, id: str) -> Record | None:
    """The newest answer that was not taken back."""
    last = None
    for record in answers.records(key=id):
        last = None if answers.settings.changes and record.value[OP] == "-" else record
    return last


def _answers(log: Log, name: str) -> Topic | None:
    try:
        return log.topic(answers_of(name))
    except UnknownTopic:  # the flow has not begun
        return None


def _check(topic: Topic) -> None:
    if topic.settings.key != (ID,):
        why = f"is no topic of requests, whose key is {ID!r}: app.topic({topic.name!r}, 'id string, …', key='id')"
        raise InvalidArgument("topic", topic.name, why)


@contextlib.contextmanager
def _log_of(where: App | Log | str | Path) -> Iterator[Log]:
    if isinstance(where, Log):
        yield where
    elif isinstance(where, str | Path):
        from headrace.log.open import open_address

        with open_address(str(where), create=False) as log:
            yield log
    else:
        yield where.log
