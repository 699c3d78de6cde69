"""Calendar windows: hours, days, weeks, months, quarters and years as a time zone counts them. A day in Berlin has 23,
24 or 25 hours; its bounds come from the time zone database, so they are as right as that is.

A day begins at the first instant at which its date is shown: where clocks skip midnight, when they have skipped it;
where they show it twice, the first time. Weeks, months, quarters and years begin with their first day. An hour begins
when the clock shows a full hour, and when the clock is set: one that is shown twice is two windows, one that is skipped
is none. So every instant is in one window, and windows follow each other."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.errors import InvalidArgument, nearest
from headrace.windows.judging import Held, Judged
from headrace.windows.window import Aligned, Ending

if TYPE_CHECKING:
    from headrace.windows.judging import I64

Unit = Literal["hour", "day", "week", "month", "quarter", "year"]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
LONGEST_US: dict[Unit, int] = {
    "hour": HOUR_US,
    "day": DAY_US,
    "week": 7 * DAY_US,
    "month": 31 * DAY_US,
    "quarter": 92 * DAY_US,
    "year": 366 * DAY_US,
}
REACH_US: dict[Unit, int] = {
    "hour": HOUR_US,
    **dict.fromkeys(("day", "week", "month"), 32 * DAY_US),
    "quarter": 93 * DAY_US,
    "year": 367 * DAY_US,
}
"""No window is longer, whatever clocks do. Of days and weeks it need not be less."""
_MONTHS: dict[Unit, int] = {"month": 1, "quarter": 3, "year": 12}
_WEEKDAYS = get_args(Weekday)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
_LAST_SECOND = INSTANT_MAX_US // 1_000_000 - 2 * 86_400
_FIRST_SECOND = -(-INSTANT_MIN_US // 1_000_000) + 2 * 86_400


@dataclass(frozen=True, slots=True, repr=False)
class Calendar(Aligned):
    unit: Unit
    timezone: str
    week_start: Weekday = "monday"

    kind = "calendar"

    @staticmethod
    def ending(_: int) -> Ending:
        return Ending()

    @property
    def reach_us(self) -> int:
        return REACH_US[self.unit]

    @property
    def kept_us(self) -> tuple[int, int]:
        """No length: a day has 23 hours, or 25."""
        return 0, 0

    @property
    def longest_us(self) -> int:
        return LONGEST_US[self.unit]

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

        ends = self.around(np.unique(event // DAY_US).tolist())
        starts = np.array(sorted(ends), np.int64)
        at = np.maximum(np.searchsorted(starts, event, side="right") - 1, 0)
        return starts[at], np.array([ends[start] for start in starts.tolist()], np.int64)[at]

    def around(self, days: Iterable[int]) -> dict[int, int]:
        """Start -> end of all windows with an instant of the days, counted in UTC from 1970, and perhaps of others."""
        if self.unit == "hour":
            starts = sorted(
                {start for day in days for near in (-1, 0, 1) for start in _hours(self.timezone, day + near)}
            )
            return dict(pairwise(starts))
        near = {day + more for day in days for more in (-2, -1, 0, 1, 2)}
        out = {}
        for first in {self._first(_moved(date(1970, 1, 1), day)) for day in near}:
            following = self._next(first)
            last = not first < following < date.max
            start, end = _begin(self.timezone, first), INSTANT_MAX_US if last else _begin(self.timezone, following)
            if start < end:  # Samoa has had no 2011-12-30
                out[start] = end
        return out

    def _first(self, day: date) -> date:
        """The first day of the window that the day is in."""
        if self.unit == "week":
            return _moved(day, -((day.weekday() - _WEEKDAYS.index(self.week_start)) % 7))
        if months := _MONTHS.get(self.unit):
            return day.replace(month=(day.month - 1) // months * months + 1, day=1)
        return day

    def _next(self, first: date) -> date:
        """The first day of the window after the one that begins then."""
        months = _MONTHS.get(self.unit)
        if months is None:
            return _moved(first, 7 if self.unit == "week" else 1)
        year, month = divmod(first.year * 12 + first.month - 1 + months, 12)
        return date(year, month + 1, 1) if year <= date.max.year else date.max

    def __str__(self) -> str:
        week = "" if self.week_start == "monday" else f", week_start={self.week_start!r}"
        return f"calendar({self.unit!r}, timezone={self.timezone!r}{week})"


def calendar(unit: Unit, *, timezone: str, week_start: Weekday = "monday") -> Calendar:
    """Hours, days, weeks, months, quarters or years of a time zone: `calendar("day", timezone="Europe/Berlin")`.
    `week_start`: the day on which weeks begin."""
    if unit not in get_args(Unit):
        known = ", ".join(map(repr, get_args(Unit)))
        raise InvalidArgument("unit", unit, f"must be one of {known}; for other lengths use tumbling('15 minutes')")
    if week_start not in _WEEKDAYS:
        why = f"must be a day of the week, 'monday' to 'sunday'.{nearest(str(week_start), list(_WEEKDAYS))}"
        raise InvalidArgument("week_start", week_start, why)
    if week_start != "monday" and unit != "week":
        raise InvalidArgument("week_start", week_start, f"is for weeks, calendar('week', …), not for {unit!r}")
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        from zoneinfo import available_timezones

        known = nearest(timezone, sorted(available_timezones())) if isinstance(timezone, str) else ""
        why = f"is no time zone; write its name, as in 'Europe/Berlin' or 'UTC'.{known}"
        raise InvalidArgument("timezone", timezone, why) from None
    return Calendar(unit, timezone, week_start)


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
        return _set_at(zone, before // _SECOND, after // _SECOND) * 1_000_000
    return after // _MICROSECOND


@functools.lru_cache(maxsize=20_000)
def _hours(timezone: str, day: int) -> tuple[int, ...]:
    """Where the hours begin that begin on a day, counted in UTC from 1970: with a full hour, and where the clock is
    set."""
    zone, found = ZoneInfo(timezone), set[int]()
    for start in range(day * 86_400, (day + 1) * 86_400, 3600):
        stop = start + 3600
        before, after = _offset_seconds(zone, start), _offset_seconds(zone, stop)
        at = stop if before == after else _set_at(zone, start, stop)
        first, second = (start + (-start - offset) % 3600 for offset in (before, after))  # full by the one clock, …
        found |= {each for each in (first,) if each < at} | {each for each in (second,) if at <= each < stop}
        if before != after:
            found.add(at)
    return tuple(second * 1_000_000 for second in sorted(found))


def _set_at(zone: ZoneInfo, low: int, high: int) -> int:
    """The second at which the clock is set that shows another time at `high` than it would have since `low`."""
    before = _offset_seconds(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset_seconds(zone, middle) == before else (low, middle)
    return high


def _offset_seconds(zone: ZoneInfo, second: int) -> int:
    """How far the clock there is before UTC. Near the first and the last year it is as two days from there."""
    within = min(max(second, _FIRST_SECOND), _LAST_SECOND)
    offset = (_EPOCH + timedelta(seconds=within)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // _SECOND
