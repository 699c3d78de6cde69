"""From an append in one process to the follower woken in another."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from bench import nats_peer
from bench.settings import Run
from bench.table import Measured, Row

_FOLLOW = """
import json, sys, time
from headrace.log.open import open_log
with open_log(sys.argv[1], create=False) as log:
    records = log.topic("pings").records("earliest", follow=True, timeout="20 seconds")
    next(records)
    print("ready", flush=True)
    found = []
    for _ in range(int(sys.argv[2])):
        record = next(records)
        found.append(time.monotonic_ns() - record.value["sent"])
    print(json.dumps(found))
"""

_SUBSCRIBE = """
import asyncio, json, sys, time
import nats
async def main():
    client = await nats.connect(sys.argv[1])
    subscription = await client.jetstream().subscribe("clicks.0", ordered_consumer=True)
    print("ready", flush=True)
    found = []
    for _ in range(int(sys.argv[2])):
        message = await subscription.next_msg(timeout=20)
        found.append(time.monotonic_ns() - int(message.data))
    print(json.dumps(found))
    await client.close()
asyncio.run(main())
"""


def wake(run: Run) -> Iterator[Row]:
    count = run.size(300, 20)
    with run.log() as log:
        topic = log.create_topic("pings", "sent long", durability="os")
        topic.append({"sent": 0})
        with _child(_FOLLOW, str(log.home), str(count)) as child:
            for _ in range(count):
                topic.append({"sent": time.monotonic_ns()})
                time.sleep(0.005)
            ours = json.loads(child.communicate(timeout=60)[0])
    theirs = _nats(run, count)
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        peer = run.peer("JetStream", "push consumer, default sync", lambda part=part: _part(theirs(), part))
        yield Row(
            "wake", f"append (os) to woken follower in another process, {name}", "ms", _part(ours, part),
            smaller_is_better=True, peers=[peer],
        )  # fmt: skip


def _part(nanoseconds: Sequence[int], part: float) -> Measured:
    ordered = sorted(nanoseconds)
    return Measured(ordered[int(part * (len(ordered) - 1))] / 1e6, ordered[0] / 1e6)


def _child(code: str, *arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        child.kill()
        raise OSError("the other process did not start")
    return child


class _nats:
    """Measured once, when first asked for."""

    def __init__(self, run: Run, count: int) -> None:
        self.run, self.count = run, count
        self.found: list[int] = []

    def __call__(self) -> list[int]:
        if not self.found:
            with nats_peer.serving(self.run.fresh("nats"), synced=False) as server:
                self.found = nats_peer.run(server, lambda stream: self._measure(server.url, stream))
        return self.found

    async def _measure(self, url: str, stream: object) -> list[int]:
        child = await asyncio.to_thread(_child, _SUBSCRIBE, url, str(self.count))
        with child:
            for _ in range(self.count):
                await nats_peer.publish_one_by_one(stream, [str(time.monotonic_ns()).encode()])
                await asyncio.sleep(0.005)
            out, _ = await asyncio.to_thread(child.communicate, timeout=60)
        found: list[int] = json.loads(out)
        return found
