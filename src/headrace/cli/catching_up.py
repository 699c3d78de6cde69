"""The progress line of flows that are far behind: records read of all, rate, event time, and the time left. Owns the
estimate and the line, which is rewritten on a terminal, and printed every ten seconds elsewhere. Does not know what
flows do."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.cli.output import about, harmless, note

if TYPE_CHECKING:
    from headrace.flows.status import FlowStatus

FEW_RECORDS = 10_000
"""Who has fewer to read has caught up."""
SETTLED_SECONDS = 3.0
"""Before that a pace is none."""
LIVE_SECONDS, TOLD_SECONDS = 0.5, 10.0


def shown_columns() -> int:
    """How long a line on the terminal may be: one less than it has, or some terminals begin the next."""
    return shutil.get_terminal_size().columns - 1


class Pace:
    """How fast each flow reads, since it began to catch up. `bar`: how much of it is done, to be seen at a glance."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, bar: bool = False) -> None:
        self._clock, self._bar = clock, bar
        self._began: dict[str, tuple[float, int]] = {}

    def line(self, status: FlowStatus) -> str | None:
        """None: it is not behind."""
        if status.lag < FEW_RECORDS:
            self._began.pop(status.flow, None)
            return None
        now = self._clock()
        since, read = self._began.setdefault(status.flow, (now, status.read))
        done, seconds = status.read - read, now - since
        total = done + status.lag
        tenths = 10 * done // total
        bar = f"[{'#' * tenths}{'.' * (10 - tenths)}] " if self._bar else ""
        said = f"{status.flow}: {bar}{done:,} of {total:,} records ({100 * done // total} %)"
        if status.frontier is not None:
            said += f", at {status.frontier:%Y-%m-%d %H:%M}"
        if done and seconds >= SETTLED_SECONDS:
            said += f", {done / seconds:,.0f}/s, about {about(status.lag * seconds / done)} left"
        return said + in_spark([status])


def in_spark(statuses: Sequence[FlowStatus]) -> str:
    """What Spark ran for the flows, as the end of a line; nothing where it ran nothing."""
    jobs, tasks = (sum(getattr(status, f"spark_{name}") for status in statuses) for name in ("jobs", "tasks"))
    if not jobs:
        return ""
    of = f" ({tasks:,} task{'s' * (tasks > 1)})" if tasks else ""  # Spark Connect does not tell them
    seconds = sum(status.spark_seconds for status in statuses)
    return f", {jobs:,} Spark job{'s' * (jobs > 1)}{of}: {seconds:,.1f} s"


class Ticker:
    """Shows `line()` from time to time. On a terminal in place, and gone at the end; else only what there is to say."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line, self._live = line, sys.stderr.isatty()
        self._next = time.monotonic() + (0 if self._live else TOLD_SECONDS)

    def tick(self) -> None:
        if time.monotonic() < self._next:
            return
        said = harmless(self._line())
        if self._live:
            sys.stderr.write("\r\x1b[K" + said[: shown_columns()])
            sys.stderr.flush()
        elif said:
            note(said)
        self._next = time.monotonic() + (LIVE_SECONDS if self._live else TOLD_SECONDS)

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def catching_up(statuses: Callable[[], list[FlowStatus]]) -> Ticker:
    """The flows that are behind, in one line."""
    pace = Pace(bar=sys.stderr.isatty())
    return Ticker(lambda: " · ".join(said for status in statuses() if (said := pace.line(status)) is not None))
