"""What is asked of a window, whatever its kind: which windows a record is in, for which of them it is on time, what a
batch's panes become, when a window is over, and what a store has to know. A new kind of window is a class in a file of
its own that answers these; nobody else asks which kind it is.

Values and numpy only, many records at a time; microseconds since the epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from headrace.windows.judging import Held, Judged, Missed, Piece

if TYPE_CHECKING:
    from headrace.windows.judging import I64

Kind = Literal["fixed", "calendar", "cumulative", "session", "sliding"]
"""How a store keeps the rows."""


class Ending(NamedTuple):
    """What follows from a window's end. `final_after_us`: how far behind it the frontier is when the window is final,
    without grace; `unchanged_after_us`: the same of the reach, when no record to come changes it."""

    final_after_us: int = 0
    unchanged_after_us: int = 0
    included: bool = False
    """True when the end itself is part of the window."""
    length_us: int | None = None
    """A window ends at most so long after its start; None where the start does not say."""
    gap_us: int = 0
    """What is left of a window, without its first records, begins at most so long after them."""


class Window(ABC):
    """A kind of window with its sizes. Frozen, hashable, and shown as a program writes it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"hr.{self}"

    kind: ClassVar[Kind]
    aligned: ClassVar[bool]
    """True when time alone says where windows begin and end; otherwise records do, key by key."""

    @property
    @abstractmethod
    def reach_us(self) -> int:
        """A record's windows begin and end at most so far from its time."""

    @property
    @abstractmethod
    def kept_us(self) -> tuple[int, int]:
        """The lengths a store has to know."""

    @property
    def joins_us(self) -> int | None:
        """Records of a key that are at most so far apart are in one window; None where the key does not matter."""
        return None

    @property
    def windows_max(self) -> int:
        """The most windows that a pane is in, where they are aligned."""
        return 1

    @abstractmethod
    def judged(self, event: I64, progress: I64, grace_us: int, within_us: int) -> Judged:
        """The records' panes, for how many of a pane's windows each is too late, and for how many not on time."""

    @abstractmethod
    def pieces(self, panes: Panes) -> Iterator[Piece]:
        """The windows that the records of a batch are part of."""

    @abstractmethod
    def missed(self, pane: I64, dropped: I64) -> Missed:
        """What each of some records, at least `dropped` 1, was too late for; of unaligned windows `pane` is its
        time."""


class Panes(NamedTuple):
    """Partial rows: each has a pane, how late its records were, how many they are, and when the first and the last of
    them were."""

    pane: I64
    dropped: I64
    late: I64
    records: I64
    first: I64
    last: I64


class Aligned(Window):
    """Windows over which time alone decides. A subclass says which windows hold a pane."""

    __slots__ = ()

    aligned = True

    @property
    @abstractmethod
    def longest_us(self) -> int:
        """How long the longest window is, but for an hour that a clock shows twice."""

    @property
    def disjoint(self) -> bool:
        """True when every instant is in one window: windows follow each other."""
        return self.windows_max == 1

    def start_of(self, at_us: int) -> int:
        """Where the window of an instant starts, of windows that are disjoint."""
        return int(self._held(at_us).start[0])

    def end_of(self, at_us: int) -> int:
        """Where it ends."""
        return int(self._held(at_us).end[0])

    def _held(self, at_us: int) -> Held:
        import numpy as np

        at = np.array([at_us], np.int64)
        return next(self.windows(self.judged(at, at, 0, 0).pane))

    @abstractmethod
    def windows(self, pane: I64) -> Iterator[Held]:
        """The panes' first windows, their second ones, …, counted from the one that ends first."""

    def pieces(self, panes: Panes) -> Iterator[Piece]:
        import numpy as np

        for number, held in enumerate(self.windows(panes.pane)):
            corrections = np.where(number >= panes.late, 0, panes.records)
            yield Piece(held.inside & (number >= panes.dropped), held.start, held.end, corrections)

    def missed(self, pane: I64, dropped: I64) -> Missed:
        """From the start of the first window to the end of the last that the record was too late for."""
        import numpy as np

        held = list(self.windows(pane))
        ends = np.stack([each.end for each in held])[dropped - 1, np.arange(len(pane))]
        return Missed(held[0].start, ends, dropped, np.sum([each.inside for each in held], axis=0) - dropped)
