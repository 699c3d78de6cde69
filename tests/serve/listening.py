"""Listening to server-sent events, with plain sockets: many at once, slowly, or not at all."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.serve.server import Server


@dataclass(frozen=True)
class Event:
    kind: str
    data: dict[str, Any]
    id: str | None


def request(server: Server, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", f"Authorization: Bearer {server.token}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


@asynccontextmanager
async def listening(server: Server, path: str, **headers: str) -> AsyncIterator[AsyncIterator[Event]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request(server, path, {name.replace("_", "-"): value for name, value in headers.items()}))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0], head
        yield events(reader)
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader) -> AsyncIterator[Event]:
    """Until the server ends the stream, or the connection."""
    text = b""
    while True:
        try:
            size = int(await reader.readuntil(b"\r\n"), 16)
            text += (await reader.readexactly(size + 2))[:-2]
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        if not size:
            return
        *whole, text = text.split(b"\n\n")
        for each in whole:
            fields = dict(line.split(": ", 1) for line in each.decode().split("\n"))
            yield Event(fields["event"], json.loads(fields["data"]), fields.get("id"))


def deaf(server: Server, path: str) -> socket.socket:
    """One who asks, and never reads."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.connect(("127.0.0.1", server.port))
    found.sendall(request(server, path, {}))
    return found


@dataclass
class Copy:
    """A view as its changes make it; what is wrong with them is an error."""

    rows: Counter[str] = field(default_factory=Counter)
    last_id: str | None = None
    position: int = -1
    resets: int = 0
    changes: int = 0
    ends: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        if event.id is not None:
            self.last_id = event.id
        if event.kind == "reset":
            self.resets += 1
        elif event.kind == "snapshot":
            self.rows.clear()
        elif event.kind == "end":
            self.ends.append(event.data["reason"])
        elif event.kind == "change":
            self.changes += 1
            assert event.data["_position"] >= self.position, "commits come in order"
            self.position = event.data["_position"]
            row = json.dumps(event.data["row"], sort_keys=True)
            self.rows[row] += 1 if event.data["op"] == "+" else -1
            assert 0 <= self.rows[row] <= 1, f"lost or doubled: {event}"
            if not self.rows[row]:
                del self.rows[row]

    async def follow(self, found: AsyncIterator[Event], until: Callable[[Copy], bool]) -> None:
        async for event in found:
            self.take(event)
            if until(self):
                return
