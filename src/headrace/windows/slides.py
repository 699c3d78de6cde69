"""Sliding windows: for each event, what happened up to it. One window for each time *e* at which a key has an event:
[e - size, e], both ends included.

An event is in the windows that end in [t, t + size], and there are as many of these as instants: it is left out of the
first `dropped` microseconds' worth of them and corrects those up to `late`, as everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.durations import Duration, duration_us, format_duration
from headrace.windows.judging import Judged, Missed, Piece
from headrace.windows.window import Ending, Panes, Window

if TYPE_CHECKING:
    from headrace.windows.judging import I64


@dataclass(frozen=True, slots=True, repr=False)
class Sliding(Window):
    size_us: int

    kind = "sliding"
    aligned = False

    @staticmethod
    def ending(size_us: int) -> Ending:
        return Ending(1, 1, included=True, length_us=size_us)

    @property
    def reach_us(self) -> int:
        return self.size_us

    @property
    def kept_us(self) -> tuple[int, int]:
        return self.size_us, 0

    def judged(self, event: I64, progress: I64, grace_us: int, within_us: int) -> Judged:
        """A pane is an instant."""
        import numpy as np

        def ended(bound: I64) -> I64:
            passed: I64 = np.clip(bound - event, 0, self.size_us + 1)
            return passed

        late = ended(progress - grace_us)
        return Judged(event, late if within_us == 0 else ended(progress - grace_us - within_us), late)

    def pieces(self, panes: Panes) -> Iterator[Piece]:
        """An instant and how late its records were: the store makes windows of them."""
        at = panes.pane
        chosen = panes.dropped <= self.size_us
        yield Piece(chosen, at - self.size_us, at, panes.records, at + panes.dropped, at + panes.late)

    def missed(self, pane: I64, dropped: I64) -> Missed:
        """The window of the record's own time."""
        import numpy as np

        return Missed(pane - self.size_us, pane, np.ones_like(dropped), None)

    def __str__(self) -> str:
        return f"sliding({format_duration(self.size_us)!r})"


def sliding(size: Duration) -> Sliding:
    """For each event, the events of its key in the time `size` up to it: `sliding("5 minutes")`."""
    return Sliding(duration_us(size, argument="size"))
