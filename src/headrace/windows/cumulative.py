"""Cumulative windows: [day, day + 1 hour), [day, day + 2 hours), …, [day, day + 24 hours). All windows of a day begin
with it, and each ends a step later than the one before: "so far today", every hour.

A pane is a step. Its windows are those of its day that end behind it, counted from the one that ends first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.durations import Duration, duration_us, format_duration
from headrace.errors import InvalidArgument
from headrace.windows.fixed import WINDOWS_MAX, Sized
from headrace.windows.judging import Held

if TYPE_CHECKING:
    from headrace.windows.judging import I64


@dataclass(frozen=True, slots=True, repr=False)
class Cumulative(Sized):
    size_us: int
    step_us: int

    kind = "cumulative"

    @property
    def kept_us(self) -> tuple[int, int]:
        return self.size_us, self.step_us

    @property
    def windows_max(self) -> int:
        return self.size_us // self.step_us

    def panes(self, event: I64) -> tuple[I64, I64, int, I64]:
        pane = event - event % self.step_us
        return pane, pane + self.step_us, self.step_us, self._count(pane)

    def windows(self, pane: I64) -> Iterator[Held]:
        start, count = pane - pane % self.size_us, self._count(pane)
        for number in range(self.windows_max):
            yield Held(start, pane + (number + 1) * self.step_us, number < count)

    def _count(self, pane: I64) -> I64:
        """How many windows hold the pane."""
        return self.windows_max - pane % self.size_us // self.step_us

    def __str__(self) -> str:
        return f"cumulative({format_duration(self.size_us)!r}, step={format_duration(self.step_us)!r})"


def cumulative(size: Duration, *, step: Duration) -> Cumulative:
    """Windows that begin every `size` and grow by a `step`, up to `size`: `cumulative("1 day", step="1 hour")`."""
    size_us, step_us = duration_us(size, argument="size"), duration_us(step, argument="step")
    if size_us % step_us:
        raise InvalidArgument("step", step, f"must go into size={size!r} a whole number of times")
    window = Cumulative(size_us, step_us)
    if window.windows_max > WINDOWS_MAX:
        raise InvalidArgument("step", step, f"each record would be in up to {window.windows_max} windows of {size!r}")
    return window
