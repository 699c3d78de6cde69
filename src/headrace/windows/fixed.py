"""Fixed windows: [offset + k * every, offset + k * every + size), tumbling when `every` is the size, hopping when it is
less. 0 <= offset < every: any other gives windows that one of these gives, too.

An event is folded once, into its *pane*: the longest stretch that every window either holds whole or not at all. A
pane's windows are counted from the one that ends first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import gcd
from typing import TYPE_CHECKING

from headrace.durations import Duration, duration_us, format_duration
from headrace.errors import InvalidArgument
from headrace.windows.judging import Held, Judged
from headrace.windows.window import Aligned, Ending

if TYPE_CHECKING:
    from headrace.windows.judging import I64

WINDOWS_MAX = 10_000


class Sized(Aligned):
    """Windows none of which is longer than a size. The windows of a pane end one after the other, equally far apart."""

    __slots__ = ()

    size_us: int

    @staticmethod
    def ending(size_us: int) -> Ending:
        return Ending(length_us=size_us)

    @property
    def reach_us(self) -> int:
        return self.size_us

    @property
    def longest_us(self) -> int:
        return self.size_us

    @abstractmethod
    def panes(self, event: I64) -> tuple[I64, I64, int, I64]:
        """The records' panes; where the first window of each ends, how far apart they end, and how many they are."""

    def judged(self, event: I64, progress: I64, grace_us: int, within_us: int) -> Judged:
        import numpy as np

        pane, end, apart_us, count = self.panes(event)
        if len(pane) and int(progress.max()) - grace_us < int(end.min()):  # as a rule nothing is late
            none = np.zeros_like(pane)
            return Judged(pane, none, none)

        def ended(bound: I64) -> I64:
            passed: I64 = np.clip((bound - end) // apart_us + 1, 0, count)
            return passed

        late = ended(progress - grace_us)
        return Judged(pane, late if within_us == 0 else ended(progress - grace_us - within_us), late)


@dataclass(frozen=True, slots=True, repr=False)
class Fixed(Sized):
    """`tumbling` or `hopping`."""

    size_us: int
    every_us: int
    offset_us: int = 0

    kind = "fixed"

    @property
    def kept_us(self) -> tuple[int, int]:
        return self.size_us, self.every_us

    @property
    def pane_us(self) -> int:
        return gcd(self.size_us, self.every_us)

    @property
    def windows_max(self) -> int:
        return -(-self.size_us // self.every_us)

    def panes(self, event: I64) -> tuple[I64, I64, int, I64]:
        # numpy divides by a constant without dividing, but does not know that of a remainder
        pane = (event - self.offset_us) // self.pane_us * self.pane_us + self.offset_us
        first, count = self._windows_of(pane)
        return pane, first + self.size_us, self.every_us, count

    def end_of(self, at_us: int) -> int:
        return at_us - (at_us - self.offset_us) % self.size_us + self.size_us  # asked a million times

    def windows(self, pane: I64) -> Iterator[Held]:
        first, count = self._windows_of(pane)
        for number in range(self.windows_max):
            start = first + number * self.every_us
            yield Held(start, start + self.size_us, number < count)

    def _windows_of(self, pane: I64) -> tuple[I64, I64]:
        """Where the first window that holds the pane starts, and how many there are."""
        import numpy as np

        lowest = pane + self.pane_us - self.size_us
        if self.pane_us == self.every_us:  # the size is a multiple of it: each pane is in as many
            return lowest, np.full_like(pane, self.windows_max)
        first = lowest + (self.offset_us - lowest) % self.every_us
        return first, (pane - first) // self.every_us + 1

    def __str__(self) -> str:
        size, offset = repr(format_duration(self.size_us)), ""
        if self.offset_us:
            offset = f", offset={format_duration(self.offset_us)!r}"
        if self.every_us == self.size_us:
            return f"tumbling({size}{offset})"
        return f"hopping({size}, every={format_duration(self.every_us)!r}{offset})"


def tumbling(size: Duration, *, offset: Duration = "0 seconds") -> Fixed:
    """Windows of one size, one after the other, counted from 1970-01-01T00:00Z: `tumbling("1 minute")`; or from
    `offset` after that: `tumbling("1 day", offset="6 hours")`. It may be negative, or longer than a window."""
    size_us = duration_us(size, argument="size")
    return Fixed(size_us, size_us, _offset_us(offset) % size_us)


def hopping(size: Duration, *, every: Duration, offset: Duration = "0 seconds") -> Fixed:
    """Windows of `size` that begin `every` so often, and overlap: `hopping("1 hour", every="5 minutes")`. `offset`: as
    in `tumbling`."""
    size_us, every_us = duration_us(size, argument="size"), duration_us(every, argument="every")
    if every_us > size_us:
        raise InvalidArgument("every", every, f"is longer than size={size!r}: what falls between windows would be lost")
    window = Fixed(size_us, every_us, _offset_us(offset) % every_us)
    if window.windows_max > WINDOWS_MAX:
        raise InvalidArgument("every", every, f"each record would be in {window.windows_max} windows of {size!r}")
    return window


def _offset_us(offset: Duration) -> int:
    """Microseconds of a duration that may be negative."""
    if isinstance(offset, timedelta) and offset < timedelta(0):
        return -duration_us(-offset, argument="offset")
    if isinstance(offset, str) and offset.lstrip().startswith("-"):
        return -duration_us(offset.lstrip()[1:], argument="offset", positive=False)
    return duration_us(offset, argument="offset", positive=False)
