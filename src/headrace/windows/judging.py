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
