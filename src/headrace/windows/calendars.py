"""Calendar windows: days, weeks (from Monday) and months as a time zone counts them. A day in Berlin has 23, 24 or 25
hours; its bounds come from the time zone database, so they are as right as that is.

A day begins at the first instant at which its date is shown: where clocks skip midnight, when they have skipped it;
where they show it twice, the first time. So every instant is in one window, and windows follow each other."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headrace.durations import INSTANT_MAX_US
from headrace.errors import InvalidArgument, nearest
from headrace.windows.judging import Held, Judged
from headrace.windows.window import Aligned, Ending

if TYPE_CHECKING:
    from headrace.windows.judging import I64

Unit = Literal["day", "week", "month"]
DAY_US = 86_400_000_000
CALENDAR_US_MAX = 32 * DAY_US
"""No window is longer."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Calendar(Aligned):
    unit: Unit
    timezone: str

    kind = "calendar"

    @staticmethod
    def ending(_: int) -> Ending:
        return Ending()

    @property
    def reach_us(self) -> int:
        return CALENDAR_US_MAX

    @property
    def kept_us(self) -> tuple[int, int]:
        """No length: a day has 23 hours, or 25."""
        return 0, 0

    @property
    def longest_us(self) -> int:
        return {"day": 1, "week": 7, "month": 31}[self.unit] * DAY_US

    def judged(self, event: I64, progress: I64, grace_us: int, within_us: int) -> Judged:
        import numpy as np

        start, end = self._bounds(event)
        late = (progress >= end + grace_us).astype(np.int64)
        dropped = late if within_us == 0 else (progress >= end + grace_us + within_us).astype(np.int64)
        return Judged(start, dropped, late)

    def windows(self, pane: I64) -> Iterator[Held]:
        """A pane is its window."""
        import numpy as np

        start, end = self._bounds(pane)
        yield Held(start, end, np.ones(len(start), np.bool_))

    def _bounds(self, event: I64) -> tuple[I64, I64]:
        """Start and end of the windows the times are in. A time zone is asked once for each day, not for each event."""
        import numpy as np

        ends = around(self.unit, self.timezone, np.unique(event // DAY_US).tolist())
        starts = np.array(sorted(ends), np.int64)
        at = np.maximum(np.searchsorted(starts, event, side="right") - 1, 0)
        return starts[at], np.array([ends[start] for start in starts.tolist()], np.int64)[at]

    def __str__(self) -> str:
        return f"calendar({self.unit!r}, timezone={self.timezone!r})"


def calendar(unit: Unit, *, timezone: str) -> Calendar:
    """Days, weeks or months of a time zone: `calendar("day", timezone="Europe/Berlin")`. Weeks begin on Monday."""
    if unit not in get_args(Unit):
        raise InvalidArgument("unit", unit, "must be 'day', 'week' or 'month'; for hours use tumbling('1 hour')")
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        from zoneinfo import available_timezones

        known = nearest(timezone, sorted(available_timezones())) if isinstance(timezone, str) else ""
        why = f"is no time zone; write its name, as in 'Europe/Berlin' or 'UTC'.{known}"
        raise InvalidArgument("timezone", timezone, why) from None
    return Calendar(unit, timezone)


def around(unit: Unit, timezone: str, days: Iterable[int]) -> dict[int, int]:
    """Start -> end of all windows with an instant of the days, counted in UTC from 1970, and perhaps of some more."""
    near = {day + more for day in days for more in (-2, -1, 0, 1, 2)}
    out = {}
    for first in {_first(unit, _moved(date(1970, 1, 1), day)) for day in near}:
        following = _next(unit, first)
        start, end = (
            _begin(timezone, first),
            _begin(timezone, following) if first < following < date.max else INSTANT_MAX_US,
        )
        if start < end:  # Samoa has had no 2011-12-30
            out[start] = end
    return out


def _first(unit: Unit, day: date) -> date:
    match unit:
        case "day":
            return day
        case "week":
            return _moved(day, -day.weekday())
        case "month":
            return day.replace(day=1)


def _next(unit: Unit, first: date) -> date:
    match unit:
        case "day":
            return _moved(first, 1)
        case "week":
            return _moved(first, 7)
        case "month":
            return _moved(first.replace(day=28), 4).replace(day=1)


def _moved(day: date, days: int) -> date:
    """Within what dates can say."""
    return date.fromordinal(min(max(day.toordinal() + days, 1), date.max.toordinal()))


@functools.lru_cache(maxsize=100_000)
def _begin(timezone: str, day: date) -> int:
    """The first instant at which the date is shown there, or a later one, if it never is."""
    zone = ZoneInfo(timezone)
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)  # shown twice: this is the first time
    before, after = (midnight.replace(fold=fold) - _EPOCH for fold in (1, 0))
    if before < after:  # it is skipped, somewhere between these two
        low, high = before // _SECOND, after // _SECOND
        offset = _offset(zone, low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
        return high * 1_000_000
    return after // _MICROSECOND


def _offset(zone: ZoneInfo, second: int) -> timedelta | None:
    return (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
