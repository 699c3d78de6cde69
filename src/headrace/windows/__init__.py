"""Windows: which stretches of event time a record belongs to, and for which of them it is on time. Pure; microseconds
since the epoch; knows no Spark, no store and no clock.

One file for each kind. All judge a record by itself, from its time and the progress of its partition. A record's
windows begin and end at most `reach_us` from its time. `horizon` says when a window is final, and when it can no longer
change."""

from __future__ import annotations

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.windows.calendars import CALENDAR_US_MAX, Calendar, calendar
from headrace.windows.fixed import Fixed, hopping, tumbling
from headrace.windows.late import Correct, Drop, Late, correct, drop
from headrace.windows.sessions import Session, session
from headrace.windows.slides import Sliding, sliding

__all__ = [
    "CALENDAR_US_MAX",
    "Calendar",
    "Correct",
    "Drop",
    "Fixed",
    "Late",
    "Session",
    "Sliding",
    "Window",
    "calendar",
    "correct",
    "drop",
    "hopping",
    "session",
    "sliding",
    "timed_us",
    "tumbling",
]

Window = Fixed | Calendar | Session | Sliding


def timed_us(window: Window) -> tuple[int, int]:
    """From when to when a record has windows: those of others would begin before the year 1, or end after 9999."""
    return INSTANT_MIN_US + window.reach_us, INSTANT_MAX_US - window.reach_us
