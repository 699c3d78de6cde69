"""Several producers and consumers in processes of their own, killed and paused at random: nothing is lost, doubled,
reordered or left unseen. And the checker itself: what it must find, it finds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.errors import MemberFenced
from headrace.log.open import open_log
from tests.faults import verifiable
from tests.faults.checking import opened
from tests.faults.children import Children, ack, hear
from tests.faults.verifiable import EVENTS, GROUP, SEEN, Run
from tests.stopping import stop_between_commits


def run(home: Path, children: Children, seed: int, seconds: float, least: dict[str, int], **how: int) -> Run:
    verifiable.prepare(home)
    run = Run(home, children, seed, **how)  # type: ignore[arg-type]
    run.go(seconds, lambda did: all(did[what] >= times for what, times in least.items()))
    for what, times in least.items():
        assert run.did[what] >= times, f"seed {seed}: too little of {what} to see anything: {dict(run.did)}"
    with opened(home) as log:
        assert log.verify().ok
        report = verifiable.check(log, run.acked)
        assert report.clean, f"seed {seed}, {dict(run.did)}: {report}"
        assert report.written >= sum(run.acked.values()) > 0
        assert sum(log.topic(EVENTS).group(GROUP).committed().values()) == report.written
    return run


@pytest.mark.timeout(300)
def test_killed_and_paused_at_random(tmp_path: Path, children: Children, seed: int) -> None:
    """Zombies wake up, and repetitions are recognised."""
    least = {"kill": 3, "pause": 3, "replaced": 2, "woken": 2, "recognised": 1, "processed": 21}
    assert run(tmp_path / "log", children, seed, 6, least).did["fenced"] >= 1, "a zombie says so at the end"


@pytest.mark.timeout(300)
def test_maintained_meanwhile(tmp_path: Path, children: Children, seed: int) -> None:
    """Two keepers, killed and paused like everybody else, in the middle of whatever they do."""
    run(tmp_path / "log", children, seed, 6, {"kept": 6, "sealed": 21, "removed": 1}, keepers=2)


def consume_slowly(home: str, in_transaction: bool) -> None:
    log = open_log(home, create=False)
    member = log.topic(EVENTS).group(GROUP).join(lease="500 milliseconds")
    ack(len(member.poll(max_records=1000)))
    hear()
    try:
        if in_transaction:
            with log.transaction() as tx:
                tx.append(SEEN, seen(0, 0, "zombie", 0))
                tx.commit(member)
        else:
            member.commit()
        ack("committed")
    except MemberFenced as error:
        ack(["fenced", sorted(error.partitions)])


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_member_paused_past_its_lease_commits_nothing(
    in_transaction: bool, tmp_path: Path, children: Children
) -> None:
    home = tmp_path / "log"
    verifiable.prepare(home)
    with open_log(home) as log:
        log.topic(EVENTS).append([event(who, n) for who in "abcdef" for n in range(10)])
    sleeper = children.start(consume_slowly, str(home), in_transaction)
    assert sleeper.next() == 60
    stop_between_commits(sleeper.process.pid)
    with open_log(home) as log:
        group = log.topic(EVENTS).group(GROUP)
        with group.join(lease="500 milliseconds") as member:
            found: list[object] = []
            deadline = time.monotonic() + 20
            while len(found) < 60:
                assert time.monotonic() < deadline, "the partitions stay with the sleeper"
                found += member.poll(timeout="100 milliseconds", max_records=7)
            before = group.committed()
            sleeper.resume()
            sleeper.tell("go")
            assert sleeper.next() == ["fenced", [0, 1, 2, 3]]
            assert group.committed() == before == {}
            member.commit()
            assert sum(group.committed().values()) == 60
        assert not list(log.topic(SEEN).records()), "half a transaction of the zombie"


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_killed_and_paused_for_long(tmp_path: Path, children: Children, seed: int, soak_seconds: float) -> None:
    run(tmp_path / "log", children, seed, soak_seconds, {}, producers=3, consumers=3, keepers=1)


def event(who: str, n: int) -> dict[str, object]:
    return {"producer": who, "n": n, "key": f"{who}-{n % 3}"}


def seen(p: int, o: int, who: str, n: int) -> dict[str, object]:
    return {"by": "c", "p": p, "o": o, "producer": who, "n": n}


def test_the_checker_finds_what_is_wrong(tmp_path: Path) -> None:
    verifiable.prepare(tmp_path / "log", partitions=1)
    with open_log(tmp_path / "log") as log:
        log.topic(EVENTS).append([event("a", n) for n in (0, 1, 2, 4, 1, 7)])
        log.topic(SEEN).append([seen(0, o, "a", n) for o, n in ((0, 0), (2, 2), (1, 1), (1, 1), (3, 5))])
        report = verifiable.check(log, {"a": 9, "b": 1})
    assert report.lost == [("a", 3), ("a", 5), ("a", 6), ("a", 8), ("b", 0)]
    assert report.doubled == [("a", 1)]
    assert ("a", "a-1", 1) in report.reordered and ("seen", (0, 1)) in report.reordered
    assert report.unseen == [(0, 4), (0, 5)]
    assert report.seen_twice == [(0, 1)]
    assert [value["n"] for value in report.seen_wrong] == [5]
