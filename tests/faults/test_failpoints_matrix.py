"""Every failpoint, killed and made to fail: afterwards nothing acknowledged is missing, nothing is doubled, no
transaction is half there, no offset is used twice, and work goes on.

A child does everything the log can do at once (threads of plain, keyed, conditional, transactional and idempotent
appends, and a consumer that writes what it processed in the transaction that commits its offsets), with data files and
checkpoints so small that they roll all the time. It is stopped at one point; this process is the one that comes after
it, and for the hand-over the second member of the group."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import failpoints
from headrace.errors import HeadraceError, MemberFenced, VersionConflict
from headrace.log.embedded.consume.groups import EmbeddedMember, _beats
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import index as index_module
from headrace.log.embedded.write.append import Stamp
from headrace.log.open import open_log
from tests.faults.checking import SCHEMA, State, check_acked, check_sound, json_ranges, opened, together
from tests.faults.children import Child, Children, ack

UPKEEP = ("swap.", "retention.", "reclaim.", "erase.")
"""Upkeep's own points are walked by test_upkeep_failpoints."""
ELSEWHERE = ("mend.", "queue.", "view.", "flow.", "relay.", "kafka.", "switch.", "begin.", "capture.", "sink.")
ELSEWHERE += ("index.", "forget.", "process.")
"""These have tests of their own, too."""
POINTS = sorted(p for p in failpoints.KNOWN if not p.startswith((*UPKEEP, *ELSEWHERE)))
ROUNDS = 12
WORK = 120
KEYS = ("a", "b", "c")
LEASE = "500 milliseconds"
OPENING = ("append.synced", "commit.applied", "commit.committed", "commit.unacked")
"""The points an opening process passes that finds a dead one's file."""


def prepare(home: Path) -> None:
    with open_log(home) as log:
        log.create_topic("plain", SCHEMA, partitions=3)
        log.create_topic("keyed", SCHEMA, key="who", partitions=2, durability="os")
        log.create_topic("versions", SCHEMA, key="who", partitions=2, versioned=True)
        log.create_topic("left", SCHEMA)
        log.create_topic("right", SCHEMA, partitions=2, durability="os")
        log.create_topic("stamped", SCHEMA, partitions=2)
        log.create_topic("out", "p int, o long, by string")
        work = log.create_topic("work", SCHEMA, partitions=4)
        work.append([row("work", n) for n in range(WORK)])
        ghost = work.group("g").join(lease="1 millisecond")  # a member that died long ago: the next one puts it out
        _beats(log._engine).remove(ghost)


def row(who: str, n: int) -> dict[str, Any]:
    return {"who": who, "n": n, "pad": "x" * (17 * n % 90)}


# -- the child ---------------------------------------------------------------------------------------


def busy(home: str, point: str, action: str, skip: int, before_open: bool, companion: bool) -> None:
    """Does everything; stops at the point. Acknowledges ["try", …] before and ["done", …] after each step."""
    if before_open:
        failpoints.arm(point, action, skip=skip)
    small_checkpoints()
    log = open_log(home, create=False)
    log._engine.files.file_bytes_max = 6_000
    if not before_open:
        failpoints.arm(point, action, skip=skip)
    jobs: list[Callable[[], None]] = [
        *(lambda who=f"plain-{t}": appends(log, "plain", who) for t in range(3)),
        lambda: appends(log, "keyed", "keyed-0"),
        lambda: conditional(log),
        lambda: transactions(log),
        lambda: produce(log),
        lambda: consume(log, companion),
    ]
    together(*jobs)
    ack(["reached", failpoints._armed is None])
    log.close()


def small_checkpoints() -> None:
    index_module.CHECKPOINT_BYTES = 30_000


def attempt(what: list[Any], step: Callable[[], Any]) -> Any:
    """One step: tried, then done or failed. An injected fault is told, and the work goes on."""
    ack(["try", *what])
    try:
        result = step()
    except failpoints.InjectedFault:
        ack(["failed", *what])
        return None
    ack(["done", *what, result])
    return result


def appends(log: EmbeddedLog, topic: str, who: str) -> None:
    handle = log.topic(topic)
    for n in range(ROUNDS):
        attempt([topic, who, n], lambda n=n: json_ranges(handle.append(row(who, n)).ranges))


def conditional(log: EmbeddedLog) -> None:
    handle = log.topic("versions")
    for n in range(ROUNDS):
        key = KEYS[n % len(KEYS)]
        expect = handle.version(key)

        def step(key: str = key, n: int = n, expect: int = expect) -> Any:
            return json_ranges(handle.append(row(key, n), expect={key: expect}).ranges)

        attempt(["versions", key, n], step)


def transactions(log: EmbeddedLog) -> None:
    for n in range(ROUNDS):

        def step(n: int = n) -> Any:
            with log.transaction() as tx:
                tx.append("left", row("tx", n))
                tx.append("right", [row("tx", n), row("tx", n)])
            return [json_ranges(done.ranges) for done in tx.results]

        attempt(["tx", "tx", n], step)


def produce(log: EmbeddedLog) -> None:
    """Batches of three with an id; a batch that fails is sent again, so that each is there once."""
    handle = log.topic("stamped")
    while True:
        try:
            with handle.producer("p") as producer:
                epoch, sequence = producer._epoch, producer.sequence
            break
        except failpoints.InjectedFault:
            continue
    while sequence < 3 * ROUNDS:
        stamp = Stamp("p", epoch, sequence)
        rows = [row("p", sequence + i) for i in range(3)]
        done = attempt(
            ["stamped", "p", sequence], lambda s=stamp, r=rows: json_ranges(handle.append(r, stamp=s).ranges)
        )
        sequence += 3 if done is not None else 0


def consume(log: EmbeddedLog, companion: bool) -> None:
    while True:
        try:
            member = log.topic("work").group("g").join(lease=LEASE)
            break
        except failpoints.InjectedFault:
            continue
    until = time.monotonic() + (10 if companion else 3)
    ack(["member", list(member.partitions)])
    while sum(log.topic("work").group("g").committed().values()) < WORK and time.monotonic() < until:
        try:
            process(log, member, "child", told=True)
        except MemberFenced:
            continue  # slow, and put out meanwhile: nothing of it was written
        except failpoints.InjectedFault:
            member.close()  # what it polled is not committed: read again, by whoever has it then
            member = log.topic("work").group("g").join(lease=LEASE)
        if companion:
            time.sleep(0.005)  # leave something for the other
    member.close()


def process(log: EmbeddedLog, member: EmbeddedMember, by: str, *, told: bool = False) -> None:
    """Polls a few, writes what it saw, commits: in a transaction, then the rest by a commit of its own."""
    found = member.poll(timeout="50 milliseconds", max_records=4)
    if not found:
        return
    with log.transaction() as tx:
        tx.append("out", [{"p": record.partition, "o": record.offset, "by": by} for record in found])
        tx.commit(member)
        positions = {partition: offset for partition, (_, _, offset) in member.claims().items()}
    if told:
        ack(["committed", positions])
    member.commit(upto=found[-1])  # says nothing new, and passes the way of a plain commit


# -- what must be true -------------------------------------------------------------------------------


def check(log: EmbeddedLog, facts: list[Any]) -> State:
    state, found = check_sound(log, KEYS)
    assert not found.lost
    tried = {(f[1], f[2], f[3]) for f in facts if f[0] == "try"}
    failed = {(f[1], f[2], f[3]) for f in facts if f[0] == "failed"}
    done = {(f[1], f[2], f[3]): f[4] for f in facts if f[0] == "done"}
    for (topic, who, n), given in done.items():
        if topic == "tx":
            check_acked(state, "left", [row(who, n)], given[0])
            check_acked(state, "right", [row(who, n)] * 2, given[1])
        elif topic == "stamped":
            check_acked(state, topic, [row(who, n + i) for i in range(3)], given)
        else:
            check_acked(state, topic, [row(who, n)], given)
    for topic, who in {(topic, who) for topic, who, _ in tried if topic not in ("tx", "stamped")}:
        there = state.numbers(topic, who)
        assert len(there) == len(set(there)), f"{who}: doubled {there}"
        mine = {n for t, w, n in tried if (t, w) == (topic, who)}
        assert set(there) <= mine, "never appended"
        # One writer, one after the other: only the last one, or one that was reported as failed, may be missing.
        missing = mine - set(there)
        assert missing <= {max(mine)} | {n for t, w, n in failed if (t, w) == (topic, who)}, f"{who}: {missing}"
        for records in state.records[topic].values():
            order = [value["n"] for _, value in sorted(records.items()) if value["who"] == who]
            assert order == sorted(order), f"{who}: reordered"
    left, right = state.numbers("left", "tx"), state.numbers("right", "tx")
    assert sorted(left * 2) == right, "half a transaction"
    assert len(left) == len(set(left))
    stamped = state.numbers("stamped", "p")
    assert stamped == list(range(len(stamped))), "an idempotent producer's records are not there once each"
    # Consuming: what was processed is exactly what is committed, whoever did it.
    committed = state.groups["work/g"]
    out = sorted((value["p"], value["o"]) for value in state.values("out"))
    assert out == sorted((p, o) for p, end in committed.items() for o in range(end)), "output and offsets differ"
    for fact in facts:
        if fact[0] == "committed":
            for partition, offset in fact[1].items():
                assert committed[int(partition)] >= offset, "a commit was lost"
    return state


def go_on(log: EmbeddedLog, before: State, facts: list[Any]) -> None:
    """The same log works on: the old records stay, retries are recognised, new offsets follow."""
    retried = [f for f in facts if f[0] == "done" and f[1] == "stamped"]
    handle = log.topic("stamped")
    with handle.producer("p") as producer:
        sequence = producer.sequence
        assert sequence == len(before.values("stamped"))
        if retried:
            _, _, _, first, given = retried[-1]
            again = handle.append([row("p", first + i) for i in range(3)], stamp=Stamp("p", producer._epoch, first))
            assert again.duplicate and json_ranges(again.ranges) == given
        futures = [producer.send(row("p", n)) for n in range(sequence, 3 * ROUNDS + 3)]
    assert all(future.result() for future in futures)
    for key in KEYS:
        with pytest.raises(VersionConflict):
            log.topic("versions").append(row(key, 99), expect={key: log.topic("versions").version(key) + 1})
        log.topic("versions").append(row(key, 99), expect={key: log.topic("versions").version(key)})
    log.topic("plain").append([row("after", n) for n in range(100)])
    log.topic("keyed").append([row("after", n) for n in range(100)])
    with log.topic("work").group("g").join(lease=LEASE) as member:
        deadline = time.monotonic() + 20
        while sum(log.topic("work").group("g").committed().values()) < WORK:
            assert time.monotonic() < deadline, "the group stands still"
            process(log, member, "after")
    after, _ = check_sound(log, KEYS)
    for topic, parts in before.records.items():
        for partition, records in parts.items():
            assert records.items() <= after.records[topic][partition].items(), "a record changed"
    assert after.numbers("stamped", "p") == list(range(3 * ROUNDS + 3))
    assert sorted((v["p"], v["o"]) for v in after.values("out")) == sorted(
        (p, o) for p, end in after.nexts["work"].items() for o in range(end)
    )


def accompany(home: Path, child: Child) -> None:
    """The second member of the group, in this process, until the child is gone."""
    with open_log(home, create=False) as log:
        member = log.topic("work").group("g").join(lease=LEASE)
        while not _gone(child):
            try:
                process(log, member, "companion")
            except MemberFenced:
                continue
        member.close()


def _gone(child: Child) -> bool:
    with open(f"/proc/{child.process.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"


def run(children: Children, home: Path, point: str, action: str, skip: int, *, before_open: bool = False) -> list[Any]:
    companion = point.startswith("member.hand")
    child = children.start(busy, str(home), point, action, skip, before_open, companion)
    if companion:
        while child.next()[0] != "member":
            pass
        accompany(home, child)
    code = child.wait(60)
    facts = child.rest()
    if action == "kill":
        assert code == -signal.SIGKILL, f"{point} was never reached\n{child.stderr}"
    else:
        assert code == 0, child.stderr
        assert facts[-1] == ["reached", True], f"{point} was never reached"
    return facts


SKIPS = {"commit.": 8, "append.": 8, "roll.": 2}


def skips(point: str, seed: int, action: str) -> int:
    """How many passages are left alone: seeded, but few enough that the point is still reached."""
    most = next((most for prefix, most in SKIPS.items() if point.startswith(prefix)), 0)
    return random.Random(f"{seed} {point} {action}").randint(0, most)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, tmp_path: Path, children: Children, seed: int) -> None:
    home = tmp_path / "log"
    prepare(home)
    facts = run(children, home, point, "kill", skips(point, seed, "kill"))
    with opened(home) as log:
        go_on(log, check(log, facts), facts)
    with opened(home) as log:
        check_sound(log, KEYS)


@pytest.mark.parametrize("point", POINTS)
def test_made_to_fail_at(point: str, tmp_path: Path, children: Children, seed: int) -> None:
    """The process lives on: whoever waited is told, and everything else goes on."""
    home = tmp_path / "log"
    prepare(home)
    facts = run(children, home, point, "raise", skips(point, seed, "raise"))
    with opened(home) as log:
        go_on(log, check(log, facts), facts)


@pytest.mark.parametrize("point", OPENING)
def test_killed_again_while_opening(point: str, tmp_path: Path, children: Children, seed: int) -> None:
    home = tmp_path / "log"
    prepare(home)
    facts = run(children, home, "commit.committed", "kill", skips("commit.committed", seed, "again"))
    again = children.start(reopen, str(home), point)
    assert again.wait() == -signal.SIGKILL, f"{point} is not passed on opening\n{again.stderr}"
    with opened(home) as log:
        go_on(log, check(log, facts), facts)


def reopen(home: str, point: str) -> None:
    failpoints.arm(point, "kill")
    try:
        open_log(home, create=False)
    except HeadraceError as error:
        ack(str(error))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_killed_anywhere(tmp_path: Path, children: Children, seed: int, soak_seconds: float) -> None:
    """Any point at any passage, again and again over new logs."""
    rng = random.Random(seed)
    until = time.monotonic() + soak_seconds
    for turn in range(10**9):
        if time.monotonic() > until:
            break
        home = tmp_path / str(turn)
        prepare(home)
        point = rng.choice(POINTS)
        action = rng.choice(["kill", "raise"])
        facts = run(children, home, point, action, rng.randint(0, skips(point, turn, action)))
        with opened(home) as log:
            go_on(log, check(log, facts), facts)
