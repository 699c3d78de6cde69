"""A queue's consumer killed, and made to fail, at every point it passes: its own, and those of the commits it makes.
Afterwards no message is lost, none is delivered that was acknowledged, what was written in the transaction of an ack is
there once, and a letter is there or its message, never both and never neither.

The consumer does all a queue can do: it acknowledges by itself and in transactions, rejects what is poison until it is
dead, lets visibilities run out, redrives, and then does the dead ones too."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import failpoints
from headrace.errors import LeaseExpired
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.open import open_log
from tests.faults.checking import check_sound, opened
from tests.faults.children import Children, ack

MESSAGES = 60
POISON = 10
"""Every tenth message fails, until it is redriven."""
VISIBILITY = "200 milliseconds"
PASSED = sorted(point for point in failpoints.KNOWN if point.startswith(("queue.", "commit.", "append.")))
SKIPS = {
    "commit.": 30,
    "append.": 3,
    "queue.redriven": 0,
    "queue.nacked": 4,
    "queue.buried": 3,
    "queue.burying": 3,
    "queue.": 8,
}


def prepare(home: Path, order: str) -> None:
    with open_log(home) as log:
        topic = log.create_topic("mail", "who string, n int", key="who", partitions=2, durability="os")
        topic.append([{"who": f"w{n % 7}", "n": n} for n in range(MESSAGES)])
        log.create_topic("sent", "n int")
        queue = topic.queue("q", order=order, visibility=VISIBILITY, max_deliveries=3)
        queue.rewind("earliest")


# -- the child ---------------------------------------------------------------------------------------


def consumer(home: str, point: str, action: str, skip: int) -> None:
    log = open_log(home, create=False)
    failpoints.arm(point, action, skip=skip)
    work(log, ack)
    ack(["reached", failpoints._armed is None])
    log.close()


def work(log: EmbeddedLog, tell: Callable[[Any], None]) -> None:
    """Until every message is done, the dead ones too."""
    queue = log.topic("mail").queue("q")
    cured = False
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            stats = queue.stats()
            if not (stats.ready or stats.in_flight or stats.due or stats.waiting):
                if not stats.dead_open:
                    return
                queue.redrive()
                cured = True
            for message in queue.receive(5, wait=VISIBILITY):
                answer(log, message, tell, cured=cured)
        except (failpoints.InjectedFault, LeaseExpired):
            continue  # what was received and not answered comes again
    raise AssertionError("it stands still")


def answer(log: EmbeddedLog, message: Any, tell: Callable[[Any], None], *, cured: bool) -> None:
    n = message.value["n"]
    tell(["got", n])
    if n % POISON == 0 and not cured:
        if n % 20:  # the others die of silence
            message.nack("poison")
    elif n % 2:
        message.ack()
        tell(["acked", n])
    else:
        with log.transaction() as tx:
            tx.append("sent", {"n": n})
            tx.ack(message)
        tell(["acked", n])


# -- what must be true -------------------------------------------------------------------------------


def check(log: EmbeddedLog, facts: list[Any]) -> set[int]:
    """Of a log whose consumer is gone; which messages are done for ever."""
    check_sound(log)
    done: set[int] = set()
    for kind, n in [fact for fact in facts if fact[0] in ("got", "acked")]:
        assert n not in done, f"{n} was delivered again, or acknowledged twice, after its ack was committed"
        if kind == "acked":
            done.add(n)
    sent = [record.value["n"] for record in log.topic("sent").records()]
    assert len(sent) == len(set(sent)), "the transaction of an ack was done twice"
    assert {n for n in done if n % 2 == 0} <= set(sent), "an ack without its transaction"
    stats = log.topic("mail").queue("q").stats()
    alive = stats.ready + stats.in_flight + stats.due + stats.waiting
    assert alive + stats.dead_open + stats.acked == MESSAGES, "a message is nowhere, or in two places"
    return done | set(sent)


def go_on(log: EmbeddedLog, done: set[int]) -> None:
    """Whoever comes after finishes it."""
    facts: list[Any] = []
    work(log, facts.append)
    got = {n for kind, n in facts if kind == "got"}
    assert not got & done, "delivered again, although its ack was committed"
    check(log, facts)
    stats = log.topic("mail").queue("q").stats()
    assert (stats.acked, stats.dead_open, stats.lost) == (MESSAGES, 0, 0)
    sent = [record.value["n"] for record in log.topic("sent").records()]
    assert {n for n in range(MESSAGES) if n % 2 == 0 and n % POISON} <= set(sent)
    check_sound(log)


def skips(point: str, seed: int, more: str) -> int:
    most = next(most for prefix, most in SKIPS.items() if point.startswith(prefix))
    return random.Random(f"{seed} {point} {more}").randint(0, most)


def run(children: Children, home: Path, point: str, action: str, skip: int) -> list[Any]:
    child = children.start(consumer, str(home), point, action, skip)
    code = child.wait(60)
    facts = child.rest()
    if action == "kill":
        assert code == -signal.SIGKILL, f"{point} was never reached\n{child.stderr}"
    else:
        assert code == 0, child.stderr
        assert facts[-1] == ["reached", True], f"{point} was never reached"
    return facts


@pytest.mark.parametrize("action", ["kill", "raise"])
@pytest.mark.parametrize("point", PASSED)
def test_stopped_at(point: str, action: str, tmp_path: Path, children: Children, seed: int) -> None:
    order = random.Random(f"{seed} {point} {action}").choice(["none", "key"])
    prepare(tmp_path / "log", order)
    facts = run(children, tmp_path / "log", point, action, skips(point, seed, action))
    with opened(tmp_path / "log") as log:
        go_on(log, check(log, facts))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_stopped_anywhere(tmp_path: Path, children: Children, seed: int, soak_seconds: float) -> None:
    rng = random.Random(seed)
    until = time.monotonic() + soak_seconds
    for turn in range(10**9):
        if time.monotonic() > until:
            break
        home = tmp_path / str(turn)
        prepare(home, rng.choice(["none", "key"]))
        point = rng.choice(PASSED)
        facts = run(children, home, point, rng.choice(["kill", "raise"]), skips(point, turn, "anywhere"))
        with opened(home) as log:
            go_on(log, check(log, facts))
