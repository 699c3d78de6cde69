"""Requests over HTTP: asked, waited for, taken back. Owns these routes, and the threads that wait for news: all who
wait for replies of one topic share one. Whoever waits holds no thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from headrace.calls import Reply, Requests, timeout_seconds
from headrace.durations import duration_us
from headrace.errors import CallTimeout, InvalidArgument
from headrace.jsonrows import decode_row, encode_row
from headrace.log.contract import Start
from headrace.names import check_name
from headrace.serve.answers import Json
from headrace.serve.home import Busy, Home

__all__ = ["CallRoutes"]

WAITING_MAX = 100
WAIT_SECONDS_MAX = 60.0
WATCHED_MAX = 16
"""So many topics are waited on at a time; who waits for others looks now and then."""
LOOK_SECONDS = 1.0
ID_MAX = 1_000

Id = Annotated[str, Field(min_length=1, max_length=ID_MAX)]
IdGiven = Annotated[str, Query(min_length=1, max_length=ID_MAX)]


class Call(BaseModel):
    """A request. With an `id`, asking again is the same call."""

    model_config = ConfigDict(extra="forbid")

    request: dict[str, Any] = Field(examples=[{"sku": "k1", "pieces": 3}])
    id: Id | None = Field(None, description="Names the request; a new one by default.")
    timeout: str = Field("5 seconds", description="How long the reply is waited for; a column `deadline` has its end.")
    wait: str | None = Field(None, description="How long this answer may take: the timeout by default, at most 60 s.")


class CallRoutes:
    def __init__(self, home: Home) -> None:
        self._home, self._waiting = home, 0
        self._watches: dict[tuple[str, frozenset[tuple[str, int]]], asyncio.Future[None]] = {}
        self._threads: anyio.CapacityLimiter | None = None

    def routes(self) -> Iterator[tuple[str, str, Callable[..., Any]]]:
        for method, answer in (("POST", self.ask), ("GET", self.reply), ("DELETE", self.cancel)):
            yield "/api/topics/{topic}/calls", method, answer

    async def ask(self, topic: str, call: Call) -> Json:
        """Appends a request, once for each id, and waits for its reply. The error CallTimeout says its `id`: the
        request stands, and its reply can be asked for."""
        seconds = timeout_seconds(call.timeout)
        wait = min(seconds, WAIT_SECONDS_MAX) if call.wait is None else min(seconds, _seconds(call.wait, "wait"))
        if "id" in call.request:
            raise InvalidArgument("request", "id", "is the column of the request's id: give it beside the request")
        id = call.id or uuid.uuid4().hex

        def append() -> Start:
            requests = self._requests(topic)
            start = requests.answered_from(id, fresh=call.id is None)
            requests.ask(decode_row(encode_row(call.request), requests.topic.schema), id, seconds)
            return start

        with self._one_more():
            return await self._replied(topic, id, await self._home.read(append), wait)

    async def reply(self, topic: str, id: IdGiven, wait: str = "0 seconds") -> Json:
        """The reply to a request by its id; the error CallTimeout while there is none."""
        seconds = _seconds(wait, "wait")
        with self._one_more():
            start = await self._home.read(lambda: self._requests(topic).answered_from(id))
            return await self._replied(topic, id, start, seconds)

    async def cancel(self, topic: str, id: IdGiven) -> Json:
        """Takes a request back, unless it was answered before: `cancelled` says which of both. That never changes."""
        cancelled = await self._home.read(lambda: self._requests(topic).cancel(id))
        return Json({"id": id, "cancelled": cancelled})

    def _requests(self, topic: str) -> Requests:
        return Requests(self._home.log(), check_name(topic, argument="topic"))

    # -- waiting ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _one_more(self) -> Iterator[None]:
        """Refused before anything was done: then nothing was appended."""
        if self._waiting >= WAITING_MAX:
            raise Busy("requests that wait", WAITING_MAX)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _replied(self, topic: str, id: str, start: Start, seconds: float) -> Json:
        until = time.monotonic() + seconds
        while True:
            seen, found = await self._home.read(lambda: self._look(topic, id, start))
            if found is not None:
                return Json({"id": id, "value": found.value, "position": str(found.position)})
            left = until - time.monotonic()
            if left <= 0 or self._home.closing.is_set():
                raise CallTimeout(topic=topic, id=id, seconds=seconds)
            await self._news(topic, seen, min(left, LOOK_SECONDS))

    def _look(self, topic: str, id: str, start: Start) -> tuple[dict[str, int], Reply | None]:
        requests = self._requests(topic)
        return requests.news(), requests.reply(id, start)

    async def _news(self, topic: str, seen: dict[str, int], seconds: float) -> None:
        """Until there is something new since `seen`. Who has seen the same waits for the same thread; one that waits
        since something older ends at once."""
        key = topic, frozenset(seen.items())
        if key not in self._watches:
            self._watches[key] = asyncio.ensure_future(self._watch(topic, seen))
            self._watches[key].add_done_callback(lambda _: self._watches.pop(key))
        await asyncio.wait([self._watches[key]], timeout=seconds)

    async def _watch(self, topic: str, seen: dict[str, int]) -> None:
        self._threads = self._threads or anyio.CapacityLimiter(WATCHED_MAX)
        await anyio.to_thread.run_sync(lambda: self._requests(topic).wait(seen, LOOK_SECONDS), limiter=self._threads)


def _seconds(text: str, argument: str) -> float:
    seconds = duration_us(text, argument=argument, positive=False) / 1e6
    if seconds > WAIT_SECONDS_MAX:
        raise InvalidArgument(argument, text, f"is longer than {WAIT_SECONDS_MAX:g} seconds: ask again instead")
    return seconds
