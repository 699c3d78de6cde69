"""Server-sent events: what is sent to one listener, until it or the server ends. Owns the form of an event. A listener
that does not read delays no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.jsonrows import encode_row

__all__ = ["PIECE_BYTES", "EventStream", "event"]

PIECE_BYTES = 64 << 10
"""Sent at once: a large event goes out piece by piece, so that it is not copied for everybody who is slow."""
HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


def event(kind: str, data: Mapping[str, Any] | bytes, id: str | None = None) -> bytes:
    """JSON has no line breaks, so that one `data` line is enough."""
    text = data if isinstance(data, bytes) else encode_row(data)
    end = b"\n\n" if id is None else f"\nid: {id}\n\n".encode()
    return b"event: %s\ndata: %s%s" % (kind.encode(), text, end)


class EventStream(Response):
    """Sends what `events` yields. Ends when it does, or when the client is gone; then `done` is called."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], done: Callable[[], None] = lambda: None) -> None:
        self._events, self._done = events, done
        self.status_code, self.background = 200, None
        self.init_headers(HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            self._done()
            with contextlib.suppress(asyncio.CancelledError):
                await sending

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for some in events:
                view = memoryview(some)
                for begin in range(0, len(view), PIECE_BYTES):
                    piece = bytes(view[begin : begin + PIECE_BYTES])
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
