"""Sessions: events of a key that follow each other at most the gap apart. One is from its first event to its last.

Which records belong together is a matter of their times alone. So sessions are found in any order, in any pieces:
records of one stretch of the gap's length belong together in any case and are a *pane*; panes, and sessions that were
found before, are joined where they are at most the gap apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.durations import Duration, duration_us, format_duration
from headrace.windows.judging import Judged, Missed, Piece
from headrace.windows.window import Ending, Panes, Window

if TYPE_CHECKING:
    from headrace.windows.judging import I64, Flags


@dataclass(frozen=True, slots=True, repr=False)
class Session(Window):
    gap_us: int

    kind = "session"
    aligned = False

    @staticmethod
    def ending(gap_us: int) -> Ending:
        """What comes exactly the gap behind the end still joins. A record is on time for the gap after its own time,
        and may then join what ended the gap before it."""
        return Ending(gap_us + 1, 2 * gap_us, included=True, gap_us=gap_us)

    @property
    def reach_us(self) -> int:
        return 0

    @property
    def joins_us(self) -> int:
        return self.gap_us

    @property
    def kept_us(self) -> tuple[int, int]:
        return self.gap_us, 0

    def judged(self, event: I64, progress: I64, grace_us: int, within_us: int) -> Judged:
        """A record is judged as if it were a session by itself, which ends when the gap is over: whether some other is
        open would be a matter of the cut."""
        import numpy as np

        end = event + self.gap_us + grace_us
        late = (progress >= end).astype(np.int64)
        dropped = late if within_us == 0 else (progress >= end + within_us).astype(np.int64)
        return Judged(event - event % self.gap_us, dropped, late)

    def pieces(self, panes: Panes) -> Iterator[Piece]:
        """From the first record of a pane to its last: the store joins them."""
        import numpy as np

        corrections = np.where(panes.late > 0, panes.records, 0)
        yield Piece(panes.dropped == 0, panes.first, panes.last, corrections)

    def missed(self, pane: I64, dropped: I64) -> Missed:
        import numpy as np

        return Missed(pane, pane, np.ones_like(dropped), np.zeros_like(dropped))

    def __str__(self) -> str:
        return f"session({format_duration(self.gap_us)!r})"


def session(gap: Duration) -> Session:
    """Events of a key that are at most `gap` apart: `session("30 minutes")`."""
    return Session(duration_us(gap, argument="gap"))


def joined(key: I64, start: I64, end: I64, gap_us: int) -> tuple[I64, I64, I64]:
    """Of stretches of time [start, end], each of a key: which session each is part of, as a number, and from when to
    when the sessions are. Sessions are numbered by key, then by time."""
    import numpy as np

    if not len(key):
        return key, start, end
    order = np.lexsort((start, key))
    keys, starts, ends = key[order], start[order], end[order]
    new_key = np.concatenate(([True], keys[1:] != keys[:-1]))
    reached = _reached(new_key, ends)
    first = new_key.copy()
    first[1:] |= starts[1:] > reached[:-1] + gap_us
    number = np.empty(len(key), np.int64)
    number[order] = np.cumsum(first) - 1
    last = np.concatenate((np.flatnonzero(first)[1:] - 1, [len(key) - 1]))
    return number, starts[first], reached[last]


def _reached(new_key: Flags, ends: I64) -> I64:
    """The largest end so far, within a key."""
    import numpy as np

    key = np.cumsum(new_key) * (len(ends) + 1)
    values, rank = np.unique(ends, return_inverse=True)  # numbers small enough for a key's to stand before them
    reached: I64 = values[np.maximum.accumulate(key + rank) - key]
    return reached
