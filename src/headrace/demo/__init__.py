"""The story of a view, told by running it: `headrace demo`, `make demo`. Owns the plot and its processes, which are
gone when it ends, however it ends. What it says is measured, not claimed: numbers are read from log, view and ledger,
and a promise that is not kept ends it with exit code 1."""

from __future__ import annotations

__all__ = ["run"]


def run(*, live: bool = False) -> int:
    """Tells the story; 0 when everything came out as promised. `live`: goes on with more visitors, until Ctrl-C."""
    from headrace.demo.telling import Teller
    from headrace.errors import JavaMissing
    from headrace.flows.spark import java

    if why := java.missing():  # before the first line, not in the midst of it
        raise JavaMissing(why=why)
    teller = Teller()
    teller.title("headrace: streams into views that are exactly right, shown on a small web shop")
    from headrace.demo.story import tell  # here, behind the first line: it loads Arrow

    return tell(teller, live=live)
