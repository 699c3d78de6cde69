"""Requests over topics: a request is appended with an id, a flow answers it, and the reply is found by that id. Owns
who waits for what, how long, and what a request that was taken back is. What answers is any flow (`app.answers`); where
it runs is nobody's concern here. `remote` asks over HTTP.

    reply = call(".headrace", "quotes", {"sku": "k1"}, timeout="5 seconds")

A request that was appended is answered, whether the caller still lives or not. Calling again with the same id appends
nothing, and waits for the same reply.

A request is taken back by a record in `REQUESTS.cancelled`, which is appended on condition that there is no reply yet:
one transaction of the log has both. So of a reply and its cancellation one came first, and stays the first."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.durations import Duration, duration_us
from headrace.errors import CallCancelled, CallTimeout, InvalidArgument, UnknownTopic, VersionConflict
from headrace.log.capabilities import Versions
from headrace.log.contract import Log, Record, Start, Topic
from headrace.position import Position

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.sourcing.topics import Transaction

__all__ = ["DEADLINE", "ID", "Reply", "Requests", "answers_of", "call", "cancel", "cancelled_of"]

ID = "id"
"""The column that names a request, in the topic of requests and in that of the answers."""
DEADLINE = "deadline"
"""A topic of requests that has this column gets the time until which each caller waits."""
OP = "op"
URL = re.compile(r"https?://", re.IGNORECASE)
SECONDS_MAX = 366 * 86_400.0
"""Of a timeout: a deadline is a time, and times end."""
LOOK_SECONDS, LOOK_SECONDS_FIRST = 1.0, 0.2
"""So often it is looked for topics that are not there yet: of the cancelled, and of the answers."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. `value`: its columns. `position`: behind it, for `wait_for=`."""

    id: str
    value: dict[str, Any]
    position: Position


def answers_of(requests: str) -> str:
    """The topic in which the answers to a topic's requests are."""
    return f"{requests}.answers"


def cancelled_of(requests: str) -> str:
    """The topic that has the ids of requests that were taken back."""
    return f"{requests}.cancelled"


def call(
    where: App | Log | str | Path,
    name: str,
    request: Mapping[str, Any] | None = None,
    *,
    timeout: Duration = "5 seconds",
    id: str | None = None,
    token: str | None = None,
) -> Reply:
    """Appends a request to the topic `name` and waits for its reply. `where`: an app, a log, a home, or the address of
    a server, `http://…`, whose `token` is `env:NAME` or `file:PATH` (env:HEADRACE_TOKEN by default). `id`: names the
    request, so that calling again is the same call; a new one by default. Without a request the reply to the one of
    that id is waited for. CallTimeout, with the id, if there is no reply in time: the request stands, and calling again
    with that id goes on waiting. CallCancelled if it was taken back."""
    seconds = timeout_seconds(timeout)
    if id is not None or request is None:
        check_id(id)
    if request is not None and not isinstance(request, Mapping):
        raise InvalidArgument("request", request, "must be a mapping: {'sku': 'k1'}")
    if request is not None and ID in request:
        raise InvalidArgument(
            "request", ID, "is the column of the request's id: leave it out, or give it as id= (--id)"
        )
    named = uuid.uuid4().hex if id is None else id
    if isinstance(where, str) and URL.match(where):
        from headrace.remote import Remote

        found = Remote(where, token).call(name, request, named, seconds)
        return Reply(named, found["value"], Position.parse(found["position"]))
    _refuse_token(token)
    with _log_of(where) as log:
        requests = Requests(log, name)
        start = requests.answered_from(named, fresh=id is None)
        if request is not None:
            requests.ask(request, named, seconds)
        until = time.monotonic() + seconds
        while True:
            seen = requests.news()
            if (reply := requests.reply(named, start)) is not None:
                return reply
            left = until - time.monotonic()
            if left <= 0:
                raise CallTimeout(topic=name, id=named, seconds=seconds)
            requests.wait(seen, left)


def cancel(where: App | Log | str | Path, name: str, id: str, *, token: str | None = None) -> bool:
    """Takes a request back. True: it is cancelled, and no reply to it is delivered any more. False: it was answered
    first. Which of both it is never changes. `where`, `token`: as for `call`."""
    check_id(id)
    if isinstance(where, str) and URL.match(where):
        from headrace.remote import Remote

        return Remote(where, token).cancel(name, id)
    _refuse_token(token)
    with _log_of(where) as log:
        return Requests(log, name).cancel(id)


class Requests:
    """The requests of a topic, and what became of them. Holds nothing open."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self.topic = log, log.topic(name)
        self._known: dict[str, Topic] = {}
        if self.topic.settings.key != (ID,):
            why = f"is no topic of requests, whose key is {ID!r}: app.topic({name!r}, 'id string, …', key='id')"
            raise InvalidArgument("topic", name, why)

    def ask(self, request: Mapping[str, Any], id: str, seconds: float) -> None:
        """Appends the request: once for each id, if the topic is versioned. One that was taken back is not appended."""
        topic, now = self.topic, datetime.now(UTC)
        self._refuse_cancelled(id)
        row = {**request, ID: id}
        times = {topic.settings.event_time: now}
        if pa.types.is_timestamp(_type_of(topic, DEADLINE)):
            times[DEADLINE] = now + timedelta(seconds=seconds)
        row |= {name: time for name, time in times.items() if name is not None and row.get(name) is None}
        if not (isinstance(topic, Versions) and topic.settings.versioned):
            topic.append(row)
        elif not topic.version(id):
            with contextlib.suppress(VersionConflict):  # somebody else calls with this id
                cast(Versions, topic).append(row, expect={id: 0})

    def answered_from(self, id: str, *, fresh: bool = False) -> Start:
        """Where a reply can be, at the earliest: what was there before need not be read. `fresh`: nobody has asked with
        this id yet."""
        answers = self._beside(answers_of)
        if answers is None:
            return "earliest"
        ends = {number: end.next for number, end in answers.ends().items()}
        return ends if fresh or _never_had(answers, id) else "earliest"

    def reply(self, id: str, start: Start) -> Reply | None:
        """The newest reply, from there on; None if there is none yet. CallCancelled if the request was taken back."""
        answers = self._beside(answers_of)
        found = None if answers is None or _never_had(answers, id) else _found(answers, id, start)
        self._refuse_cancelled(id)  # looked at last: what has a reply by now can no longer be taken back
        if answers is None or found is None:
            return None
        own = OP if answers.settings.changes else None  # else it is a column like any other
        value = {column: held for column, held in found.value.items() if column != own}
        behind = Position.of(answers.name, answers.topic_id, {found.partition: found.offset + 1})
        return Reply(id, value, behind)

    def cancel(self, id: str) -> bool:
        """Whether the request is taken back, now or before."""
        answers, name = self._beside(answers_of), self.topic.name
        if answers is None:
            why = "no flow has answered its requests yet: run the app that has app.answers(…) once"
            raise InvalidArgument("topic", name, why)
        if not answers.settings.versioned:
            why = (
                "keeps no versions, which tell whether a reply or its cancellation was first: a log in a directory "
                "has them, for answers of app.answers(…)"
            )
            raise InvalidArgument("topic", answers.name, why)
        taken = self._beside(cancelled_of)
        if taken is None:
            taken = self._log.create_topic(cancelled_of(name), f"{ID} string", key=ID, versioned=True, exist_ok=True)
        try:
            with self._log.transaction() as any_tx:
                tx = cast("Transaction", any_tx)
                tx.append(taken.name, {ID: id}, expect={id: 0})
                tx.append(answers.name, [], expect={id: 0})
        except VersionConflict as conflict:
            return conflict.topic == taken.name
        return True

    def news(self) -> dict[str, int]:
        """For `wait`; taken before it is looked for a reply."""
        return self._log.news(self._there())

    def wait(self, seen: Mapping[str, int], seconds: float) -> None:
        """Until there may be something new, for so long at most."""
        if not seen:
            time.sleep(min(seconds, LOOK_SECONDS_FIRST))
        else:
            self._log.wait(seen, seconds if len(seen) > 1 else min(seconds, LOOK_SECONDS))

    def _there(self) -> list[Topic]:
        return [topic for of in (answers_of, cancelled_of) if (topic := self._beside(of)) is not None]

    def _beside(self, of: Callable[[str], str]) -> Topic | None:
        name = of(self.topic.name)
        if name not in self._known:
            with contextlib.suppress(UnknownTopic):  # the flow has not begun; nothing was taken back
                self._known[name] = self._log.topic(name)
        return self._known.get(name)

    def _refuse_cancelled(self, id: str) -> None:
        taken = self._beside(cancelled_of)
        if taken is not None and not _never_had(taken, id):
            raise CallCancelled(topic=self.topic.name, id=id)


def check_id(id: object) -> None:
    if not isinstance(id, str) or not id:
        raise InvalidArgument("id", id, "must be a text that names the request, such as a UUID")
    if any("\ud800" <= each <= "\udfff" for each in id):
        raise InvalidArgument("id", id, "has a lone surrogate, which is no Unicode")


def timeout_seconds(timeout: Duration) -> float:
    """InvalidArgument if nobody waits that long."""
    seconds = duration_us(timeout, argument="timeout") / 1e6
    if seconds > SECONDS_MAX:
        why = "is longer than a year: calling again with the same id goes on waiting"
        raise InvalidArgument("timeout", timeout, why)
    return seconds


def _never_had(topic: Topic, id: str) -> bool:
    """True if it is known without reading that the topic never had a record of this id."""
    return isinstance(topic, Versions) and topic.settings.versioned and topic.version(id) == 0


def _found(answers: Topic, id: str, start: Start) -> Record | None:
    """The newest answer that was not taken back."""
    last = None
    for record in answers.records(start, key=id):
        last = None if answers.settings.changes and record.value[OP] == "-" else record
    return last


def _type_of(topic: Topic, column: str) -> pa.DataType:
    schema = topic.schema
    return schema.field(column).type if column in schema.names else pa.null()


def _refuse_token(token: str | None) -> None:
    if token is not None:
        raise InvalidArgument("token", "…", "is for a server: give its address, http://HOST:PORT")


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
