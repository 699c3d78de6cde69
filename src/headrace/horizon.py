"""What follows from how far time has come: up to where an input is complete, which windows are final, which can no
longer change, and which rows may be dropped. Pure; microseconds since the epoch; knows no clock, no log and no store.

Two numbers say how far an input is. Its *frontier* says when results are called final: silence moves it. Its *reach* is
the least progress that a record still to come can have: only the log moves it, and only it lets state be dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.windows import Ending

__all__ = ["Horizon", "Partition", "dropped_us", "frontier", "over_us", "reach"]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as a flow sees it. `progress_us`: None without any. `quiet_us`: how long nothing has come, 0 while
    that does not count. `floor_us`: the least progress of what is appended next, where the log promises one."""

    progress_us: int | None
    quiet_us: int = 0
    floor_us: int | None = None

    def moved_us(self, idle_us: int) -> int | None:
        """Its progress, which silence longer than `idle` moves on with the clock."""
        return None if self.progress_us is None else self.progress_us + max(0, self.quiet_us - idle_us)


def frontier(partitions: Sequence[Partition], idle_us: int, absent_us: int) -> int | None:
    """Up to where an input is complete: the least of its partitions. One without progress, or silent for `absent`, does
    not count; if none counts, the one that is furthest does. None without any progress."""
    moved = [(each, us) for each in partitions if (us := each.moved_us(idle_us)) is not None]
    present = [us for each, us in moved if each.quiet_us < max(absent_us, idle_us)]
    return min(present) if present else max((us for _, us in moved), default=None)


def reach(partitions: Iterable[Partition]) -> int | None:
    """The least progress a record to come can have; None if it can have none, or there are no partitions."""
    least = [_largest(each.progress_us, each.floor_us) for each in partitions]
    known = [us for us in least if us is not None]
    return min(known) if known and len(known) == len(least) else None


def _largest(*times_us: int | None) -> int | None:
    return max((us for us in times_us if us is not None), default=None)


@dataclass(frozen=True, slots=True)
class Horizon:
    """What a flow's windows make of a frontier and a reach. `ending`: what follows from a window's end; None without
    windows."""

    ending: Ending | None
    grace_us: int = 0
    within_us: int = 0

    @property
    def final_after_us(self) -> int:
        """How far behind a window's end the frontier is when it is final."""
        return (self.ending or Ending()).final_after_us + self.grace_us

    @property
    def unchanged_after_us(self) -> int:
        """How far behind a window's end the reach is when no record to come changes it."""
        return (self.ending or Ending()).unchanged_after_us + self.grace_us + self.within_us

    def final_us(self, frontier_us: int | None) -> int | None:
        """Windows that end by then are final; None: none is."""
        return _before(frontier_us, self.final_after_us)

    def unchanged_us(self, reach_us: int | None) -> int | None:
        """Windows that end by then can no longer change; None: all can."""
        return _before(reach_us, self.unchanged_after_us)

    def told_us(self, end_us: int | None) -> int | None:
        """For those who read a view's changes: all of an earlier time are of windows that end by then. A change's time
        is the last instant of its window."""
        if end_us is None or self.ending is None or not self.ending.included:
            return end_us
        return min(end_us + 1, INSTANT_MAX_US)

    def written_us(self, frontier_us: int | None) -> int | None:
        """For those who read a topic of results, whose time is their window's start: all of an earlier time are final.
        None where the start does not say when a window ends."""
        if self.ending is None:
            return frontier_us
        if self.ending.length_us is None:
            return None
        return _before(self.final_us(frontier_us), self.ending.length_us - 1)


def dropped_us(
    keep_us: int | None, frontier_us: int | None, final_us: int | None, unchanged_us: int | None
) -> int | None:
    """Rows of windows that end by then may be dropped: they are older than they are kept, final, and unchanging."""
    old_us = None if keep_us is None else _before(frontier_us, keep_us)
    if old_us is None or final_us is None or unchanged_us is None:
        return None
    return min(old_us, final_us, unchanged_us)


def over_us(keep_us: int, reach_us: int | None) -> int | None:
    """Groups whose last record arrived by then are over, where no record for so long ends one: what is to come, by
    arrival, comes later than that."""
    return _before(reach_us, keep_us + 1)


def _before(us: int | None, by_us: int) -> int | None:
    """None where that is before the first year: no window ends there."""
    return None if us is None or us - by_us < INSTANT_MIN_US else us - by_us
