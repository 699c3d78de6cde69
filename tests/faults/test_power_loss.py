"""Power loss at any moment, with `fsync` and `os` topics mixed, several threads, a second process, rolling files and
checkpoints: what was acknowledged on an `fsync` topic is there and equal; an `os` topic is a prefix whose missing end
is reported, its offsets never given again; transactions are whole or absent; the log always opens.

The programs run once, under a shim that notes every write and sync; then the disk is made as it could be after a power
loss at many moments. A machine that lost power has another boot id; one whose processes were killed has not, and has
lost nothing at all: both are checked."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.log.embedded.consume.groups import EmbeddedMember
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import index as index_module
from headrace.log.embedded.write.append import Stamp
from headrace.log.open import open_log
from tests.faults.checking import SCHEMA, State, check_acked, check_sound, json_ranges, opened, together
from tests.faults.children import Children, ack, hear
from tests.faults.disk import Disk, Image, Shim, Trace, mark

TOPICS: dict[str, dict[str, Any]] = {
    "safe": {"partitions": 2},
    "quick": {"partitions": 2, "durability": "os"},
    "left": {},
    "right": {"durability": "os"},
    "near": {"durability": "os"},
    "far": {"partitions": 2, "durability": "os"},
    "stamped": {"durability": "os"},
    "work": {"partitions": 2},
    "chores": {"durability": "os"},
    "done": {"durability": "os"},
}
ROUNDS = 8


def row(who: str, n: int) -> dict[str, Any]:
    return {"who": who, "n": n, "pad": "p" * (101 * n % 700)}


# -- the traced programs -----------------------------------------------------------------------------


def first(home: str) -> None:
    """Makes the log, then works in many threads beside the second process."""
    index_module.CHECKPOINT_BYTES = 60_000
    log = open_log(home)
    mark(["opened"])
    for name, settings in TOPICS.items():
        log.create_topic(name, SCHEMA, **settings)
        mark(["created", name])
    for topic in ("work", "chores"):
        log.topic(topic).append([row(topic, n) for n in range(30)])
    mark(["ready"])
    ack("ready")
    hear()
    log._engine.files.file_bytes_max = 5_000
    quick = [
        lambda: appends(log, "quick", "quick-a"),
        lambda: transactions(log, "near", "far"),
        lambda: stamps(log),
        lambda: consume(log, "chores"),
    ]
    together(*quick)  # nothing is synced for a while, but by the other process
    together(
        *quick,
        lambda: appends(log, "safe", "safe-a"),
        lambda: transactions(log, "left", "right"),
        lambda: consume(log, "work"),
    )
    together(*quick)
    ack("end")
    hear()
    os._exit(0)  # as if killed: nothing is closed


def second(home: str) -> None:
    index_module.CHECKPOINT_BYTES = 60_000
    log = open_log(home, create=False)
    log._engine.files.file_bytes_max = 5_000
    ack("ready")
    hear()
    together(lambda: appends(log, "quick", "quick-b"))
    together(lambda: appends(log, "safe", "safe-b"), lambda: appends(log, "quick", "quick-b"))
    ack("end")
    hear()
    os._exit(0)


def appends(log: EmbeddedLog, topic: str, who: str) -> None:
    for n in range(ROUNDS):
        rows = [row(who, n)] * (1 + n % 3)
        mark(["acked", topic, rows, json_ranges(log.topic(topic).append(rows).ranges)])


def transactions(log: EmbeddedLog, one: str, other: str) -> None:
    for n in range(len(numbers_of(log, one)), len(numbers_of(log, one)) + ROUNDS):
        with log.transaction() as tx:
            tx.append(one, row("tx", n))
            tx.append(other, [row("tx", n), row("tx", n)])
        for topic, rows, done in zip((one, other), ([row("tx", n)], [row("tx", n)] * 2), tx.results, strict=True):
            mark(["acked", topic, rows, json_ranges(done.ranges)])


def numbers_of(log: EmbeddedLog, topic: str) -> list[int]:
    return [record.value["n"] for record in log.topic(topic).records()]


def stamps(log: EmbeddedLog) -> None:
    with log.topic("stamped").producer("p") as producer:
        for n in range(producer.sequence, producer.sequence + 8, 2):
            rows = [row("p", n), row("p", n + 1)]
            done = log.topic("stamped").append(rows, stamp=Stamp("p", producer._epoch, n))
            mark(["acked", "stamped", rows, json_ranges(done.ranges)])


def positions_of(member: EmbeddedMember) -> dict[int, int]:
    return {partition: offset for partition, (_, _, offset) in member.claims().items()}


def consume(log: EmbeddedLog, topic: str) -> None:
    """What was read is written in the transaction that commits it."""
    member = log.topic(topic).group("g").join(lease="60 seconds")
    for _ in range(4):
        found = member.poll(timeout="0 seconds", max_records=3)
        if found:
            with log.transaction() as tx:
                tx.append("done", [{"who": f"{topic}/{r.partition}", "n": r.offset, "pad": None} for r in found])
                tx.commit(member)
                positions = positions_of(member)
            mark(["committed", f"{topic}/g", positions])
    with log.topic(topic).group("h").join(lease="60 seconds") as plain:
        for _ in range(4):
            if plain.poll(timeout="0 seconds", max_records=2):
                positions = positions_of(plain)
                plain.commit()
                mark(["committed", f"{topic}/h", positions])
    member.close()


@pytest.fixture(scope="module")
def trace(shim: Shim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trace, State]]:
    """What both programs did, and the log they left."""
    folder = tmp_path_factory.mktemp("traced")
    children = Children()
    try:
        yield traced(Disk(shim, folder / "log"), folder / "trace", children, folder / "end")
    finally:
        children.close()


def traced(disk: Disk, path: Path, children: Children, end: Path) -> tuple[Trace, State]:
    a = disk.start(children, first, str(disk.root), trace=path)
    assert a.next() == "ready"
    b = disk.start(children, second, str(disk.root), trace=path)
    assert b.next() == "ready"
    for child in (a, b):
        child.tell("go")
    for child in (a, b):
        assert child.next(60) == "end"
    for child in (a, b):
        child.tell("bye")
        child.finish()
    trace = Trace.load(path)
    trace.verify(disk.root)
    shutil.copytree(disk.root, end)
    with opened(end) as log:
        state, found = check_sound(log)
        assert not found.lost
    return trace, state


# -- what must be true -------------------------------------------------------------------------------


def check_image(image: Image, whole: State, copy: Path, *, rebooted: bool) -> int:
    """Opens the image as a process after the power loss does. Returns how many records were lost and reported."""
    facts = image.markers
    home = image.write(copy)
    boot = "after the power loss" if rebooted else None
    if not any(fact[0] == "opened" for fact in facts):
        with open_log(home) as log:  # the log may be there or not: it opens, or is made
            log.create_topic("new", SCHEMA)
        return 0
    with opened(home, boot=boot) as log:
        state, found = check_sound(log)
        for fact in facts:
            if fact[0] == "created":
                assert fact[1] in state.records, f"topic {fact[1]} is gone"
            elif fact[0] == "acked" and (not rebooted or TOPICS[fact[1]].get("durability") != "os"):
                check_acked(state, *fact[1:])
            elif fact[0] == "committed" and (not rebooted or not fact[1].endswith("/h")):
                for partition, offset in fact[2].items():
                    assert state.groups[fact[1]][int(partition)] >= offset, "a committed offset went back"
        assert rebooted or not found.lost, "killed processes lose nothing"
        for topic, parts in state.records.items():
            for partition, records in parts.items():
                original = list(whole.records[topic][partition].items())
                assert list(records.items()) == original[: len(records)], f"{topic}/{partition} is no prefix"
        check_transactions(state)
        assert all(TOPICS[problem.topic].get("durability") == "os" for problem in found.lost)
        for topic in state.records:
            done = log.topic(topic).append([row("after", n) for n in range(4)])
            assert all(given.start >= state.nexts[topic][p] for p, given in done.ranges.items()), "offsets used again"
        lost = sorted(map(str, found.lost))
    if image.point % 3 and not lost:
        return 0
    with opened(home, boot=boot) as log:
        after, again = check_sound(log)
        assert sorted(map(str, again.lost)) == lost, "what was lost stays known"
        for topic, parts in state.records.items():
            for partition, records in parts.items():
                assert records.items() <= after.records[topic][partition].items()
    return sum(problem.stop - problem.start for problem in found.lost)


def check_transactions(state: State) -> None:
    """Whole or absent."""
    if not {"left", "right", "near", "far", "done"} <= state.records.keys():
        return
    for one, other in (("left", "right"), ("near", "far")):
        assert sorted(state.numbers(one, "tx") * 2) == state.numbers(other, "tx"), f"half a transaction: {one}, {other}"
    for topic in ("work", "chores"):
        for partition, committed in state.groups.get(f"{topic}/g", {}).items():
            seen = state.numbers("done", f"{topic}/{partition}")
            assert seen == list(range(committed)), f"{topic}/{partition}: committed {committed}, wrote {seen}"


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """Where images are written: in memory where there is such a place, since they are synced, and many."""
    memory = Path("/dev/shm")
    folder = memory / f"headrace-{os.getpid()}-{time.monotonic_ns()}" if memory.is_dir() else tmp_path / "copies"
    yield folder / "copy"
    shutil.rmtree(folder, ignore_errors=True)


def walk(trace: tuple[Trace, State], copy: Path, seed: int, points: int, **which: Any) -> tuple[int, int]:
    """Images, and records lost in them."""
    ops, whole = trace
    images = lost = 0
    for image in ops.images(seed, points=points, **which):
        rebooted = which.get("modes") != ["everything"]
        try:
            lost += check_image(image, whole, copy, rebooted=rebooted)
        except BaseException as error:
            error.add_note(f"the disk as in trace.{image}, another boot: {rebooted}")
            raise
        images += 1
    return images, lost


def test_after_a_power_loss(trace: tuple[Trace, State], copy: Path, seed: int) -> None:
    images, lost = walk(trace, copy, seed, points=20)
    assert images > 40
    assert lost > 0, "no image lost anything: the test sees nothing"


def test_after_killing_every_process(trace: tuple[Trace, State], copy: Path, seed: int) -> None:
    images, lost = walk(trace, copy, seed, points=50, modes=["everything"], names=["posix"])
    assert (images > 30, lost) == (True, 0)


def test_a_power_loss_during_recovery(
    trace: tuple[Trace, State], shim: Shim, tmp_path: Path, copy: Path, children: Children, seed: int
) -> None:
    """A second power loss, while the first one is being recovered from."""
    ops, whole = trace
    rng = random.Random(seed)
    points = sorted(rng.sample(range(len(ops.ops) // 2, len(ops.ops)), 4))
    for number, image in enumerate(ops.images(seed, points=points, modes=["random"], names=["posix"])):
        disk = Disk(shim, image.write(tmp_path / f"crashed{number}"))
        again = disk.trace(children, reopen, str(disk.root))
        for second_image in again.images(seed, points=6, modes=["nothing", "random"], names=["posix"]):
            both = Image(second_image.tree, image.markers, image.point, image.mode, image.names, image.seed)
            check_image(both, whole, copy, rebooted=True)


def reopen(home: str) -> None:
    with opened(home, boot="between"):
        pass


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_power_losses(shim: Shim, tmp_path: Path, copy: Path, seed: int, soak_seconds: float) -> None:
    until = time.monotonic() + soak_seconds
    for turn in range(10**9):
        if time.monotonic() > until:
            break
        children = Children()
        folder = tmp_path / str(turn)
        folder.mkdir()
        try:
            made = traced(Disk(shim, folder / "log"), folder / "trace", children, folder / "end")
        finally:
            children.close()
        walk(made, copy, seed + turn, points=60)
        walk(made, copy, seed + turn, points=60, modes=["everything"])
        shutil.rmtree(folder)
