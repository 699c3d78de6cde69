"""How records stand to their windows: what every kind of window answers, many records at a time. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


class Judged(NamedTuple):
    """Each record's pane, for how many of the pane's windows it is too late, and for how many it is not on time: of
    the windows, counted from the one that ends first, it is left out of the first `dropped`, corrects those up to
    `late`, and is on time for the rest."""

    pane: I64
    dropped: I64
    late: I64


class Held(NamedTuple):
    """A window of each pane, where the pane has one of that number."""

    start: I64
    end: I64
    inside: Flags


class Piece(NamedTuple):
    """One window for each partial row that is `chosen`, and how many of its records correct it. `counts_from`,
    `on_time_from`: of sliding windows, which the store makes of instants: from which end on the records count, and
    count as on time."""

    chosen: Flags
    start: I64
    end: I64
    corrections: I64
    counts_from: I64 | None = None
    on_time_from: I64 | None = None


class Missed(NamedTuple):
    """Of each dropped record: the stretch of the windows that it was too late for, how many these are, and in how many
    others it counts; None where that depends on what is to come."""

    start: I64
    end: I64
    missed: I64
    counted: I64 | None
