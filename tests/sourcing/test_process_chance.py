"""Process managers against brute force: any order of events, clocks, programs and faults."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest

import headrace as hr
from headrace import failpoints
from headrace import sourcing as es
from tests.sourcing.chance import Added, Kick, check, manager_in
from tests.sourcing.transferring import HandClock

POINTS = sorted(point for point in failpoints.KNOWN if point.startswith("process."))


def run(path: Path, draw: random.Random, rounds: int) -> Counter[str]:
    """Several programs, each of which fails now and then, or is replaced by one that knows nothing."""
    clock = HandClock()
    with hr.open_log(path) as log:
        managers = [manager_in(log, clock) for _ in range(3)]
        for number in range(rounds):
            manager = draw.choice(managers)
            match draw.randrange(8):
                case 0 | 1 | 2:
                    manager.handle(draw.choice("abcdef"), Kick(number), id=draw.choice([None, f"k{number}"]))
                case 3:
                    clock.pass_on(minutes=draw.randrange(1, 8))
                case 4:
                    log.forget_flow("process.chance")
                    managers[draw.randrange(3)] = manager_in(log, clock)
                case 5:
                    failpoints.arm(draw.choice(POINTS), "raise", skip=draw.randrange(3))
                    with contextlib.suppress(hr.ProcessFailed):
                        manager.drain()
                    failpoints.disarm()
                case _:
                    other = draw.choice([each for each in managers if each is not manager])
                    failpoints.arm(draw.choice(POINTS), other.drain, skip=draw.randrange(3))
                    manager.drain()
                    failpoints.disarm()
        check(log, manager_in(log, clock), clock.now, drained=False)
        managers[0].drain()
        seen = check(log, manager_in(log, clock), clock.now)
        clock.pass_on(hours=1)
        managers[1].drain()
        check(log, manager_in(log, clock), clock.now)
        return seen


def test_all_that_events_ask_for_happens_once(tmp_path: Path, seed: int) -> None:
    seen = run(tmp_path, random.Random(seed), 50)
    assert {cls.__name__ for cls in (Kick, Added, es.CommandAccepted, es.TimerFired)} <= set(seen)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_that_events_ask_for_happens_once_for_long(tmp_path: Path, seed: int, soak_seconds: float) -> None:
    until, number = time.monotonic() + soak_seconds, 0
    while time.monotonic() < until:
        number += 1
        run(tmp_path / str(number), random.Random(f"{seed} {number}"), 200)
