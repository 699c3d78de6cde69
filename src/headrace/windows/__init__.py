"""Windows: which stretches of event time a record belongs to, and for which of them it is on time. Pure; microseconds
since the epoch; knows no Spark, no store and no clock.

One file for each kind. All judge a record by itself, from its time and the progress of its partition. A row is final
when the frontier has come to `final_after_us` behind its window's end, and can no longer change when the least progress
of what is to come is `unchanged_after_us` behind it; grace, and the time for corrections, come on top."""

from __future__ import annotations

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
    "tumbling",
]

Window = Fixed | Calendar | Session | Sliding
