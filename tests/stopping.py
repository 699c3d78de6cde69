"""A process stopped where it holds nobody up: SIGSTOP between two of its commits.

One that is stopped inside a commit keeps the log's lock and holds up every writer until it goes on, as it must; a
test that waits for what others do meanwhile has to miss that moment."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

LOCKS = Path("/proc/locks")


def stop_between_commits(pid: int) -> None:
    """Returns when all its threads stand still and it writes to no log and no view (readers' locks hold nobody up)."""
    if not LOCKS.exists():
        pytest.skip("needs /proc/locks, to see that a stopped process holds no lock")
    while True:
        os.kill(pid, signal.SIGSTOP)
        while not _stands_still(pid):
            time.sleep(0.001)
        held = (line.split()[1:5] for line in LOCKS.read_text().splitlines())
        if ["POSIX", "ADVISORY", "WRITE", str(pid)] not in held:
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)


def _stands_still(pid: int) -> bool:
    """All its threads. Asked of the system, since only the parent can wait for that."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return False
    return all(stat.rpartition(") ")[2].startswith("T") for stat in stats)
