"""Windows: which stretches of event time a record belongs to, and for which of them it is on time. Pure; microseconds
since the epoch; knows no Spark, no store and no clock.

Fixed windows are [k * every, k * every + size): tumbling when `every` is the size, hopping when it is less. An event is
folded once, into its *pane*: the longest stretch that every window either holds whole or not at all. A pane's windows
are counted from the one that ends first; of these the record is too late for the first `dropped`, a straggler for those
up to `late`, and on time for the rest. Windows that are not fixed (session, sliding, calendar) will have their own kind
beside `Fixed`."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from headrace.durations import Duration, duration_us, format_duration
from headrace.errors import InvalidArgument

__all__ = ["Correct", "Drop", "Fixed", "Late", "correct", "drop", "hopping", "tumbling"]


@dataclass(frozen=True, slots=True)
class Fixed:
    """`tumbling` or `hopping`."""

    size_us: int
    every_us: int

    @property
    def pane_us(self) -> int:
        return gcd(self.size_us, self.every_us)

    @property
    def windows_max(self) -> int:
        """The most windows one record belongs to."""
        return -(-self.size_us // self.every_us)

    def pane_of(self, event_us: int) -> int:
        return event_us - event_us % self.pane_us

    def first_start(self, pane_us: int) -> int:
        """The start of the first window that holds the pane."""
        return -(-(pane_us + self.pane_us - self.size_us) // self.every_us) * self.every_us

    def count(self, pane_us: int) -> int:
        """How many windows hold the pane."""
        return (pane_us - self.first_start(pane_us)) // self.every_us + 1

    def ended(self, pane_us: int, bound_us: int) -> int:
        """How many of the pane's windows end at `bound_us` or before."""
        first_end = self.first_start(pane_us) + self.size_us
        return min(max((bound_us - first_end) // self.every_us + 1, 0), self.count(pane_us))

    def __str__(self) -> str:
        size = format_duration(self.size_us)
        if self.every_us == self.size_us:
            return f"tumbling({size!r})"
        return f"hopping({size!r}, every={format_duration(self.every_us)!r})"


def tumbling(size: Duration) -> Fixed:
    """Windows of one size, one after the other, counted from 1970-01-01T00:00Z: `tumbling("1 minute")`."""
    size_us = duration_us(size, argument="size")
    return Fixed(size_us, size_us)


def hopping(size: Duration, *, every: Duration) -> Fixed:
    """Windows of `size` that begin `every` so often, and overlap: `hopping("1 hour", every="5 minutes")`."""
    size_us, every_us = duration_us(size, argument="size"), duration_us(every, argument="every")
    if every_us > size_us:
        raise InvalidArgument("every", every, f"is longer than size={size!r}: what falls between windows would be lost")
    window = Fixed(size_us, every_us)
    if window.windows_max > WINDOWS_MAX:
        raise InvalidArgument("every", every, f"each record would be in {window.windows_max} windows of {size!r}")
    return window


WINDOWS_MAX = 10_000


# -- what becomes of stragglers --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drop:
    """Stragglers are counted, and not folded in."""

    dropped_to: str | None = None
    within_us: int = 0


@dataclass(frozen=True, slots=True)
class Correct:
    """Stragglers are folded in while the partition is less than `within` past the window's end and grace."""

    within_us: int
    dropped_to: str | None = None


Late = Drop | Correct


def drop(dropped_to: str | None = None) -> Drop:
    """Count stragglers and leave them out; with `dropped_to`, keep them in a topic of that name."""
    return Drop(dropped_to)


def correct(within: Duration, dropped_to: str | None = None) -> Correct:
    """Fold stragglers in, as corrections, for so long after the window closed; then drop them."""
    return Correct(duration_us(within, argument="within"), dropped_to)
