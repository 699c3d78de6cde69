"""Failpoints: armed points act once, at the right passage; unarmed ones are free; misspelt ones are refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace import failpoints


@pytest.fixture(autouse=True)
def two_points(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(failpoints, "KNOWN", {"a.written": "a is written", "b.written": "b is written"})
    yield
    failpoints.disarm()


def test_nothing_happens_unless_armed() -> None:
    failpoints.reach("a.written")
    failpoints.reach("never heard of")  # not checked when nothing is armed: reach() must stay free


def test_raise_acts_once_after_the_skipped_passages() -> None:
    failpoints.arm("a.written", "raise", skip=2)
    failpoints.reach("a.written")
    failpoints.reach("b.written")  # another point does not count
    failpoints.reach("a.written")
    with pytest.raises(failpoints.InjectedFault, match=r"a\.written") as fault:
        failpoints.reach("a.written")
    assert fault.value.name == "a.written"
    failpoints.reach("a.written")


def test_a_callable_runs_in_the_thread_that_reached_the_point() -> None:
    where: list[str] = []
    failpoints.arm("a.written", lambda: where.append(threading.current_thread().name))
    thread = threading.Thread(target=failpoints.reach, args=("a.written",), name="committer")
    thread.start()
    thread.join(10)
    assert where == ["committer"]


def test_several_points_and_disarm() -> None:
    failpoints.arm("a.written", "raise")
    failpoints.arm("b.written", "raise")
    with pytest.raises(failpoints.InjectedFault):
        failpoints.reach("b.written")
    failpoints.disarm()
    failpoints.reach("a.written")


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown failpoint 'a\.writen'\. Known: a\.written, b\.written"):
        failpoints.arm("a.writen", "kill")
    with pytest.raises(ValueError, match="action='explode'"):
        failpoints.arm("a.written", "explode")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="skip=-1"):
        failpoints.arm("a.written", "kill", skip=-1)
    failpoints.arm("a.written", "raise")
    with pytest.raises(ValueError, match="unknown failpoint 'c'"):
        failpoints.reach("c")


def test_kill_is_sigkill() -> None:
    program = (
        "from headrace import failpoints as f; f.KNOWN['x'] = 'x'; f.arm('x', 'kill', skip=1)\n"
        "f.reach('x'); print('once', flush=True); f.reach('x'); print('twice', flush=True)"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, "once\n")
