"""Who else uses the machine while we measure. On a shared one a row is worth as much as it was quiet: so each row says
how much of the processors others used meanwhile, and a run may wait for quiet before each section."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.15
LOOK_SECONDS = 2.0


@dataclass
class Neighbours:
    """Processor time since the last look: all of it, and ours with our children's."""

    busy: float = 0.0
    ours: float = 0.0
    at: float = 0.0
    last: float | None = None

    def __post_init__(self) -> None:
        self.share()
        self.last = None

    def share(self) -> float | None:
        """The part of all processors that others used since the last call; None where the system does not tell. The
        counters are coarse: what comes within half a second of the last call was measured with it."""
        busy, ours, at = _busy_seconds(), our_seconds(), time.monotonic()
        if busy is None or at - self.at < 0.5:
            return self.last
        others = (busy - self.busy) - (ours - self.ours)
        self.last = min(1.0, max(0.0, others / ((at - self.at) * (os.cpu_count() or 1))))
        self.busy, self.ours, self.at = busy, ours, at
        return self.last


def _busy_seconds() -> float | None:
    """All processors' busy time since boot."""
    try:
        user, nice, system, _idle, _wait, irq, softirq, *_ = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except (OSError, IndexError, ValueError):
        return None
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def our_seconds() -> float:
    """This process, the children it has waited for, and those that live (a JVM and its workers)."""
    ticks = 0
    for pid in descendants(os.getpid()):
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except (OSError, ValueError):
            continue
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The processes it started, and those they started; none where the system does not tell."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except (OSError, ValueError, IndexError):
            continue
    out, waiting = [], [pid]
    while waiting:
        found = children.get(waiting.pop(), [])
        out += found
        waiting += found
    return out


def wait_for_quiet(seconds_max: float) -> None:
    """Until others leave the machine alone for a moment, at most so long."""
    until = time.monotonic() + seconds_max
    while time.monotonic() < until:
        look = Neighbours()
        time.sleep(LOOK_SECONDS)
        if (look.share() or 0.0) < QUIET:
            return
