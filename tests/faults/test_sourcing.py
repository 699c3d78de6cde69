"""Commands and conditional appends of many processes, some of which are killed: each is there once or not at all, and
of those that race exactly one wins."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace import sourcing as es
from tests.faults.children import Children, ack, hear


@dataclass(frozen=True)
class Taken:
    by: str


def evolve(taken: list[str], event: Taken) -> list[str]:
    return [*taken, event.by]


def decide(taken: list[str], command: str, _key: str) -> list[Taken]:
    if command in taken:
        raise es.Rejected("twice")
    return [Taken(command)]


def entities(log: Any) -> es.Entities[list[str]]:
    return es.Entities(
        log, "things", events=[Taken], evolve=evolve, decide=decide, initial=list[str](), snapshot_every=3
    )


def racer(path: str, name: str) -> None:
    """Tries to be the first in each round, once all are told that it begins."""
    with hr.open_log(path) as log:
        es.append(log, [es.tagged(Taken(name), warm=name)])
        ack("ready")
        while (turn := hear()) is not None:
            free = es.query(tags={"round": turn})
            try:
                es.append(log, [es.tagged(Taken(name), round=turn, racer=name)], unless=free)
                ack("won")
            except es.BoundaryConflict:
                ack("lost")


def race(children: Children, path: Path, racers: int, rounds: int) -> None:
    all_ = [children.start(racer, str(path), f"racer{number}") for number in range(racers)]
    assert [child.next() for child in all_] == ["ready"] * racers
    for turn in range(rounds):
        for child in all_:
            child.tell(f"r{turn}")
        assert Counter(child.next() for child in all_) == {"won": 1, "lost": racers - 1}
    with hr.open_log(path) as log:
        winners = list(es.read(log, es.query(types=[Taken]), events=[Taken]))
        assert len(winners) == racers + rounds
        assert log.verify().ok


def test_of_many_processes_one_wins_each_round(children: Children, memory: Path) -> None:
    race(children, memory, racers=4, rounds=12)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_of_sixteen_processes_one_wins_each_of_two_hundred_rounds(children: Children, memory: Path) -> None:
    race(children, memory, racers=16, rounds=200)


def commander(path: str, name: str, commands: int, kill: str, after: int) -> None:
    """Handles commands with ids; is killed at a point, once it has come there so often."""
    with hr.open_log(path) as log:
        things = entities(log)
        for number in range(commands):
            if number == after and kill:
                failpoints.arm(kill, "kill")
            done = things.handle("k", f"{name}-{number}", id=f"{name}-{number}")
            ack([number, done.version, done.duplicate])


@pytest.mark.parametrize("kill", ["append.encoded", "append.written", "commit.applied", "commit.committed"])
def test_a_command_that_is_tried_again_is_handled_once(children: Children, memory: Path, kill: str, seed: int) -> None:
    draw = random.Random(f"{seed} {kill}")
    with hr.open_log(memory) as log:
        things = entities(log)
        things.handle("k", "first")
        child = children.start(commander, str(memory), "a", 6, kill, draw.randrange(6))
        other = children.start(commander, str(memory), "b", 6, "", 0)
        assert child.wait() != 0, "it was killed"
        again = children.start(commander, str(memory), "a", 6, "", 0)
        acked = {number: version for number, version, _ in child.rest()}
        repeated = {number: (version, duplicate) for number, version, duplicate in again.rest()}
        other.rest()
        assert len(repeated) == 6
        assert all(repeated[number] == (version, True) for number, version in acked.items())
        state = things.load("k").state
        assert sorted(state) == sorted(["first", *(f"{name}-{number}" for name in "ab" for number in range(6))])
        assert [event.version for event in things.events("k")] == list(range(1, 14))
        assert things.audit().ok and log.verify().ok
