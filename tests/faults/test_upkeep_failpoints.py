"""Upkeep killed, and made to fail, at every point it passes: its own, and those of the commits it makes. Afterwards
everything is old or new: what has to stay is there unchanged, offsets are never given again, and the same work done
again ends as if it had never been interrupted, down to the bytes of what was erased.

How often upkeep passes each point is counted first; then it is stopped at the first passage, the last and others.
A parent that has imported everything forks the processes to be killed, since they are many."""

from __future__ import annotations

import os
import random
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import failpoints
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import index as index_module
from headrace.log.embedded.storage import recovery
from tests.faults import keeping
from tests.faults.checking import opened
from tests.faults.children import Child, Children, ack, hear
from tests.faults.keeping import DURABILITIES, Kept, clean
from tests.faults.test_failpoints_matrix import UPKEEP
from tests.searching import files_with

PASSED = sorted(
    [
        *(point for point in failpoints.KNOWN if point.startswith(UPKEEP)),
        *(point for point in failpoints.KNOWN if point.startswith(("append.", "commit.", "roll.", "checkpoint."))),
    ]
)
"""What upkeep passes."""


# -- the processes -----------------------------------------------------------------------------------


def nursery() -> None:
    """Forks a worker for each job it hears, and says how it ended."""
    while (job := hear()) is not None:
        if (pid := os.fork()) == 0:
            try:
                worker(*job)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        ack(["ended", os.waitstatus_to_exitcode(status)])


def worker(home: str, point: str, action: str, skip: int) -> None:
    """Does all the work, stopped at the point; made to fail, it does it again. Without a point, it counts them."""
    index_module.CHECKPOINT_BYTES = 30_000
    passed: Counter[str] = Counter()
    with opened(home) as log:
        log._engine.files.file_bytes_max = keeping.FILE_BYTES
        if point:
            failpoints.arm(point, action, skip=skip)  # type: ignore[arg-type]
        else:
            for each in PASSED:
                count(each, passed)
        keeping.work(log, attempt)
        if point:
            assert failpoints._armed is None, "never reached"
            recovery.LEFTOVER_SECONDS = 0
            keeping.work(log, attempt)
        ack(["passed", passed])


def count(point: str, passed: Counter[str]) -> None:
    def again() -> None:
        passed[point] += 1
        failpoints.arm(point, again)

    failpoints.arm(point, again)


def attempt(what: str, step: Callable[[], Any]) -> None:
    try:
        result = step()
    except failpoints.InjectedFault:
        ack(["failed", what])
    else:
        ack(["done", what, clean(result)])


# -- what comes after --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Kept]:
    home = tmp_path_factory.mktemp("upkeep") / "filled"
    keeping.fill(home)
    with opened(home) as log:
        return home, Kept.of(log)


@pytest.fixture(scope="module")
def forks() -> Iterator[Child]:
    children = Children()
    yield children.start(nursery)
    children.close()


def run(forks: Child, home: Path, point: str, action: str, skip: int) -> tuple[int, list[Any]]:
    forks.tell([str(home), point, action, skip])
    facts: list[Any] = []
    while (fact := forks.next(20))[0] != "ended":
        facts.append(fact)
    return fact[1], facts


@pytest.fixture(scope="module")
def passages(forks: Child, filled: tuple[Path, Kept], tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often each point is passed when nothing happens."""
    home = shutil.copytree(filled[0], tmp_path_factory.mktemp("upkeep") / "counted")
    code, facts = run(forks, home, "", "", 0)
    assert code == 0, forks.stderr
    assert all(fact[2] for fact in facts[:-1]), facts
    with opened(home) as log:
        filled[1].check_done(log)
    counts: dict[str, int] = facts[-1][1]
    return counts


def chosen(passages: dict[str, int], point: str, seed: int, action: str) -> list[int]:
    """Which passages: one at random; of upkeep's own points the first and the last, too."""
    last = passages[point] - 1
    ends = {0, last} if point.startswith(UPKEEP) else set()
    return sorted({*ends, random.Random(f"{seed} {point} {action}").randint(0, last)})


@pytest.mark.parametrize("point", PASSED)
def test_killed_at(
    point: str,
    filled: tuple[Path, Kept],
    passages: dict[str, int],
    forks: Child,
    memory: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "LEFTOVER_SECONDS", 0)
    template, before = filled
    for skip in chosen(passages, point, seed, "kill"):
        home = shutil.copytree(template, memory / str(skip))
        code, facts = run(forks, home, point, "kill", skip)
        assert code == -signal.SIGKILL, forks.stderr
        erased = tuple(fact[1] for fact in facts if fact[0] == "done" and fact[1].startswith("people"))
        if len(erased) == len(DURABILITIES):
            assert files_with(home, keeping.SECRET) == [], "it was said to be erased"
        with opened(home) as log:
            half = before.check_half(log, erased=erased)
            go_on(log, half)
            before.check_done(log)


def go_on(log: EmbeddedLog, half: Kept) -> None:
    """What was interrupted is completed, and new offsets follow the old ones."""
    keeping.work(log, completed)
    for name in ("many", "many_os"):
        for partition, given in (
            log.topic(name).append([keeping.row(name, "after", n) for n in range(6)]).ranges.items()
        ):
            assert given.start == half.nexts[name, partition]
    completed("maintain", log.maintain)


def completed(what: str, step: Callable[[], Any]) -> None:
    result = step()
    assert clean(result), (what, result)


@pytest.mark.parametrize("point", PASSED)
def test_made_to_fail_at(
    point: str, filled: tuple[Path, Kept], passages: dict[str, int], forks: Child, memory: Path, seed: int
) -> None:
    """The process lives on, and the next run completes the work."""
    template, before = filled
    for skip in chosen(passages, point, seed, "raise"):
        home = shutil.copytree(template, memory / str(skip))
        code, facts = run(forks, home, point, "raise", skip)
        assert code == 0, forks.stderr
        assert sum(fact[0] == "failed" for fact in facts) <= 1
        again = facts[-1 - 2 * len(DURABILITIES) : -1]
        assert all(fact[0] == "done" and fact[2] for fact in again), facts
        with opened(home) as log:
            before.check_done(log)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_killed_at_every_passage(
    filled: tuple[Path, Kept], passages: dict[str, int], forks: Child, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "LEFTOVER_SECONDS", 0)
    template, before = filled
    for point in PASSED:
        for skip in range(passages[point]):
            home = shutil.copytree(template, memory / "log")
            code, _ = run(forks, home, point, "kill", skip)
            assert code == -signal.SIGKILL, forks.stderr
            with opened(home) as log:
                go_on(log, before.check_half(log))
                before.check_done(log)
            shutil.rmtree(home)
