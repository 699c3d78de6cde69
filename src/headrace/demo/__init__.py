"""The story of the log, told by running it: `headrace demo`, `make demo`. Owns the plot and its processes, which are
gone when it ends, however it ends. What it says is measured, not claimed: every number is read from the log."""

from __future__ import annotations

__all__ = ["run"]


def run() -> int:
    """Tells the story; 0 when everything came out as promised."""
    from headrace.demo.telling import Teller

    teller = Teller()
    teller.title("headrace: a partitioned, durable, typed log in a directory")
    from headrace.demo.story import tell  # here, behind the first line: it loads Arrow

    return tell(teller)
