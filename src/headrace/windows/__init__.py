"""Windows: which stretches of event time a record belongs to, and for which of them it is on time. Pure; microseconds
since the epoch; knows no Spark, no store and no clock.

One file for each kind, and `window` for what is asked of all of them. All judge a record by itself, from its time and
the progress of its partition. A record's windows begin and end at most `reach_us` from its time. `horizon` says when a
window is final, and when it can no longer change."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.windows.calendars import Calendar, calendar
from headrace.windows.cumulative import Cumulative, cumulative
from headrace.windows.fixed import Fixed, hopping, tumbling
from headrace.windows.late import Correct, Drop, Late, correct, drop
from headrace.windows.sessions import Session, session
from headrace.windows.slides import Sliding, sliding
from headrace.windows.window import Aligned, Ending, Kind, Window

__all__ = [
    "Aligned",
    "Calendar",
    "Correct",
    "Cumulative",
    "Drop",
    "Ending",
    "Fixed",
    "Kind",
    "Late",
    "Session",
    "Sliding",
    "Window",
    "calendar",
    "correct",
    "cumulative",
    "drop",
    "ending",
    "hopping",
    "parse",
    "session",
    "sliding",
    "timed_us",
    "tumbling",
]

_ENDINGS: dict[str, Callable[[int], Ending]] = {
    each.kind: each.ending for each in (Fixed, Calendar, Cumulative, Session, Sliding)
}


def ending(kind: str, length_us: int) -> Ending:
    """What follows from the end of a window that a store keeps so: `window.kind`, and the first of `window.kept_us`."""
    return _ENDINGS[kind](length_us)


_MAKERS: dict[str, Callable[..., Window]] = {
    each.__name__: each for each in (tumbling, hopping, calendar, cumulative, session, sliding)
}


def parse(text: str) -> Window:
    """The window that is written so: `parse(str(window)) == window`."""
    call: Any = ast.parse(text, mode="eval").body
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    return _MAKERS[call.func.id](*map(ast.literal_eval, call.args), **given)


def timed_us(window: Window) -> tuple[int, int]:
    """From when to when a record has windows: those of others would begin before the year 1, or end after 9999."""
    return INSTANT_MIN_US + window.reach_us, INSTANT_MAX_US - window.reach_us
