"""Process managers that are killed at every point, beside others: what the events ask for happens once."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace import failpoints
from tests.faults.children import Children, ack
from tests.sourcing.chance import Kick, check, manager_in
from tests.sourcing.transferring import HandClock

POINTS = [
    *("append.encoded", "append.written", "append.synced", "commit.applied", "commit.committed"),
    *("process.handled", "process.answered", "process.fired"),
]


def runner(path: str, kill: str) -> None:
    """Brings events, and does what they ask for while time passes; is killed when it is at a point the second time."""
    clock = HandClock()
    with hr.open_log(path) as log:
        manager = manager_in(log, clock)
        if kill:
            failpoints.arm(kill, "kill", skip=1)
        for number in range(10):
            manager.handle("abcde"[number % 5], Kick(number), id=f"k{number}")
            manager.drain()
            clock.pass_on(minutes=5)
        ack("done")


@pytest.mark.parametrize("point", POINTS)
def test_killed_and_started_again(children: Children, memory: Path, point: str) -> None:
    with hr.open_log(memory) as log:  # topics are there
        manager_in(log, HandClock()).drain()
    assert children.start(runner, str(memory), point).wait() != 0, "it was killed"
    beside = children.start(runner, str(memory), "")
    again = children.start(runner, str(memory), "")
    assert beside.rest() == again.rest() == ["done"]
    clock = HandClock()
    clock.pass_on(hours=9)
    with hr.open_log(memory) as log:
        manager = manager_in(log, clock)
        manager.drain()
        seen = check(log, manager, clock.now)
        assert seen["Kick"] == 10 and log.verify().ok
