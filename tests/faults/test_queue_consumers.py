"""Ten consumers of one queue in ten processes, killed and paused past their visibility at random: every message is
acknowledged exactly once in the end, or dead; none is lost, and what a paused consumer says too late changes nothing.

Each ack is in the transaction that writes what was done, so the topic `done` says how often each message was."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import LeaseExpired
from headrace.log.open import open_log
from tests.faults.checking import opened
from tests.faults.children import Child, ChildEnded, Children, ack

CONSUMERS = 10
VISIBILITY_SECONDS = 1.0
POISON = 1_000
"""One in so many messages is rejected by everybody."""


def consumer(home: str, seed: int, at_once: int) -> None:
    """Works until nothing is left; tells before each batch that it holds one."""
    rng = random.Random(seed)
    with open_log(home, create=False) as log:
        queue = log.topic("work").queue("q")
        late = 0
        while True:
            messages = queue.receive(rng.randint(1, at_once), wait="100 milliseconds")
            if not messages:
                stats = queue.stats()
                if not (stats.ready or stats.in_flight or stats.due or stats.waiting):
                    ack(["late", late])
                    return
                continue
            ack(["holds", len(messages)])
            if rng.random() < 0.1:
                time.sleep(0.05)  # some work takes longer
            try:
                bad = [message for message in messages if message.value["n"] % POISON == 7]
                good = [message for message in messages if message.value["n"] % POISON != 7]
                queue.nack(bad, "poison")
                places = [
                    pa.array([m.partition for m in good], pa.int32()),
                    pa.array([m.offset for m in good], pa.int64()),
                ]
                with log.transaction() as tx:
                    tx.append("done", pa.table(places, ["p", "o"]))
                    tx.ack(*good)
            except LeaseExpired:
                late += 1  # paused for too long: others have them, and nothing of this was written


def survive(
    home: Path, children: Children, seed: int, *, messages: int, order: str, at_once: int, keys: int, faults: int
) -> Counter[str]:
    """The whole story; what was seen of it."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    with open_log(home) as log:
        topic = log.create_topic("work", "k int, n int", key="k", partitions=3, durability="os")
        log.create_topic("done", "p int, o long", durability="os")
        for first in range(0, messages, 10_000):
            numbers = range(first, min(first + 10_000, messages))
            topic.append(pa.table({"k": [n % keys for n in numbers], "n": list(numbers)}))
        queue = topic.queue("q", order=order, visibility=f"{VISIBILITY_SECONDS} seconds", max_deliveries=20)
        crowd = [children.start(consumer, str(home), rng.random(), at_once) for _ in range(CONSUMERS)]
        for _ in range(faults):
            place = rng.randrange(CONSUMERS)
            child = crowd[place]
            try:
                child.next(60)
            except ChildEnded:
                break  # nothing is left
            if rng.random() < 0.5:
                child.kill()
                crowd[place] = children.start(consumer, str(home), rng.random(), at_once)
                seen["killed"] += 1
            else:
                pause(child, VISIBILITY_SECONDS * rng.uniform(1.1, 1.5))
                seen["paused"] += 1
        for child in crowd:
            facts = child.finish(120)
            seen["late"] += facts[-1][1]
        stats = queue.stats()
        assert (stats.ready, stats.in_flight, stats.due, stats.waiting, stats.lost) == (0, 0, 0, 0, 0)
        seen["redelivered"] = stats.redelivered
    with opened(home) as log:
        assert log.verify().ok
        done = Counter(
            place
            for batch in log.topic("done").batches()
            for place in zip(batch.column("p").to_pylist(), batch.column("o").to_pylist(), strict=True)
        )
        dead = Counter((letter.origin.partition, letter.origin.offset) for letter in log.dead_letters())
        assert set(done.values()) | set(dead.values()) <= {1}, "acknowledged or buried twice"
        assert not done.keys() & dead.keys()
        ends = {number: at.next for number, at in log.topic("work").offsets().items()}
        assert done.keys() | dead.keys() == {(p, o) for p, end in ends.items() for o in range(end)}, "lost"
        assert (stats.acked, stats.dead) == (len(done), len(dead))
        poison = sum(n % POISON == 7 for n in range(messages))
        assert len(dead) >= poison
    return seen


def pause(child: Child, seconds: float) -> None:
    child.stop()
    time.sleep(seconds)
    child.resume()


@pytest.mark.timeout(300)
def test_ten_consumers(tmp_path: Path, children: Children, seed: int) -> None:
    seen = survive(tmp_path / "log", children, seed, messages=20_000, order="none", at_once=200, keys=1000, faults=12)
    assert seen["killed"] and seen["paused"] and seen["redelivered"], seen


@pytest.mark.timeout(300)
def test_ten_consumers_in_order(tmp_path: Path, children: Children, seed: int) -> None:
    seen = survive(tmp_path / "log", children, seed, messages=5_000, order="key", at_once=60, keys=300, faults=6)
    assert seen["killed"] or seen["paused"], seen


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_ten_consumers_for_long(tmp_path: Path, children: Children, seed: int, soak_seconds: float) -> None:
    rng = random.Random(seed)
    until = time.monotonic() + soak_seconds
    turn: Any = 0
    while time.monotonic() < until:
        turn += 1
        order = rng.choice(["none", "key"])
        survive(
            tmp_path / str(turn),
            children,
            rng.getrandbits(32),
            messages=100_000 if order == "none" else 20_000,
            order=order,
            at_once=rng.choice([1, 20, 1000]) if order == "key" else rng.choice([50, 400, 5000]),
            keys=rng.choice([1, 50, 5000]) if order == "none" else rng.choice([50, 5000]),
            faults=rng.randint(5, 60),
        )
