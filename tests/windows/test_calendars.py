"""Hours, days, weeks, months, quarters and years of time zones: their bounds by tables computed by hand, and as a
partition of time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.windows import Calendar
from headrace.windows.calendars import Unit, Weekday

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(when: datetime | str) -> int:
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    return (moment - EPOCH) // timedelta(microseconds=1)


def window(unit: str, timezone: str, when: str, week_start: str = "monday") -> tuple[str, str]:
    """Start and end, in UTC, of the window that holds the time."""
    (held,) = Calendar(unit, timezone, week_start).windows(np.array([us(when)]))  # type: ignore[arg-type]
    return shown(int(held.start[0])), shown(int(held.end[0]))


def shown(at_us: int) -> str:
    return (EPOCH + timedelta(microseconds=at_us)).strftime("%Y-%m-%dT%H:%MZ")


DAYS = [
    # Berlin, UTC+1 and UTC+2: forward on 2026-03-29 at 01:00Z, a day of 23 hours; back on 2026-10-25 at 01:00Z, 25
    ("Europe/Berlin", "2026-03-28T22:59:59+00:00", "2026-03-27T23:00Z", "2026-03-28T23:00Z", 24),
    ("Europe/Berlin", "2026-03-28T23:00:00+00:00", "2026-03-28T23:00Z", "2026-03-29T22:00Z", 23),
    ("Europe/Berlin", "2026-03-29T21:59:59+00:00", "2026-03-28T23:00Z", "2026-03-29T22:00Z", 23),
    ("Europe/Berlin", "2026-03-29T22:00:00+00:00", "2026-03-29T22:00Z", "2026-03-30T22:00Z", 24),
    ("Europe/Berlin", "2026-10-24T22:00:00+00:00", "2026-10-24T22:00Z", "2026-10-25T23:00Z", 25),
    ("Europe/Berlin", "2026-10-25T22:59:59+00:00", "2026-10-24T22:00Z", "2026-10-25T23:00Z", 25),
    ("Europe/Berlin", "2026-10-25T23:00:00+00:00", "2026-10-25T23:00Z", "2026-10-26T23:00Z", 24),
    # New York, UTC-5 and UTC-4: forward on 2026-03-08 at 07:00Z, back on 2026-11-01 at 06:00Z
    ("America/New_York", "2026-03-08T04:59:59+00:00", "2026-03-07T05:00Z", "2026-03-08T05:00Z", 24),
    ("America/New_York", "2026-03-08T05:00:00+00:00", "2026-03-08T05:00Z", "2026-03-09T04:00Z", 23),
    ("America/New_York", "2026-03-09T03:59:59+00:00", "2026-03-08T05:00Z", "2026-03-09T04:00Z", 23),
    ("America/New_York", "2026-11-01T04:00:00+00:00", "2026-11-01T04:00Z", "2026-11-02T05:00Z", 25),
    ("America/New_York", "2026-11-02T04:59:59+00:00", "2026-11-01T04:00Z", "2026-11-02T05:00Z", 25),
    # Lord Howe, UTC+10:30 and UTC+11: back by half an hour on 2026-04-05 (from 15:00Z the day before), forward on
    # 2026-10-04 (from 15:30Z the day before)
    ("Australia/Lord_Howe", "2026-04-04T12:59:59+00:00", "2026-04-03T13:00Z", "2026-04-04T13:00Z", 24),
    ("Australia/Lord_Howe", "2026-04-04T13:00:00+00:00", "2026-04-04T13:00Z", "2026-04-05T13:30Z", 24.5),
    ("Australia/Lord_Howe", "2026-04-05T13:29:59+00:00", "2026-04-04T13:00Z", "2026-04-05T13:30Z", 24.5),
    ("Australia/Lord_Howe", "2026-10-03T13:30:00+00:00", "2026-10-03T13:30Z", "2026-10-04T13:00Z", 23.5),
    ("Australia/Lord_Howe", "2026-10-04T13:00:00+00:00", "2026-10-04T13:00Z", "2026-10-05T13:00Z", 24),
    # Cairo goes forward at midnight: 2026-04-24 begins at 01:00, which is 22:00Z the day before, and has 23 hours
    ("Africa/Cairo", "2026-04-23T21:59:59+00:00", "2026-04-22T22:00Z", "2026-04-23T22:00Z", 24),
    ("Africa/Cairo", "2026-04-23T22:00:00+00:00", "2026-04-23T22:00Z", "2026-04-24T21:00Z", 23),
    # Toronto skipped from 23:30 to 00:30 in 1919: the 31st began at 00:30, 04:30Z
    ("America/Toronto", "1919-03-31T04:29:59+00:00", "1919-03-30T05:00Z", "1919-03-31T04:30Z", 23.5),
    ("America/Toronto", "1919-03-31T04:30:00+00:00", "1919-03-31T04:30Z", "1919-04-01T04:00Z", 23.5),
    # St. John's went back from 00:01 to 23:01 on 2010-11-07: its midnight came twice, and the day begins with the first
    ("America/St_Johns", "2010-11-07T02:29:59+00:00", "2010-11-06T02:30Z", "2010-11-07T02:30Z", 24),
    ("America/St_Johns", "2010-11-07T02:31:30+00:00", "2010-11-07T02:30Z", "2010-11-08T03:30Z", 25),
    # Samoa had no 2011-12-30: from the end of the 29th, 10:00Z, it was the 31st
    ("Pacific/Apia", "2011-12-30T09:59:59+00:00", "2011-12-29T10:00Z", "2011-12-30T10:00Z", 24),
    ("Pacific/Apia", "2011-12-30T10:00:00+00:00", "2011-12-30T10:00Z", "2011-12-31T10:00Z", 24),
    ("UTC", "2026-03-29T12:00:00+00:00", "2026-03-29T00:00Z", "2026-03-30T00:00Z", 24),
    ("Asia/Kolkata", "1969-12-31T18:29:59+00:00", "1969-12-30T18:30Z", "1969-12-31T18:30Z", 24),
]


@pytest.mark.parametrize(("timezone", "when", "start", "end", "hours"), DAYS)
def test_days_across_changes_of_the_clock(timezone: str, when: str, start: str, end: str, hours: float) -> None:
    assert window("day", timezone, when) == (start, end)
    assert us(end) - us(start) == hours * 3_600_000_000


@pytest.mark.parametrize(
    ("unit", "timezone", "when", "start", "end"),
    [
        # Sunday 2026-03-29 is in the week of Monday the 23rd, which is an hour short
        ("week", "Europe/Berlin", "2026-03-29T21:59:59+00:00", "2026-03-22T23:00Z", "2026-03-29T22:00Z"),
        ("week", "Europe/Berlin", "2026-03-29T22:00:00+00:00", "2026-03-29T22:00Z", "2026-04-05T22:00Z"),
        ("week", "America/New_York", "2026-11-01T12:00:00+00:00", "2026-10-26T04:00Z", "2026-11-02T05:00Z"),
        ("week", "UTC", "2027-01-01T00:00:00+00:00", "2026-12-28T00:00Z", "2027-01-04T00:00Z"),  # over the year's end
        ("week", "UTC", "1970-01-01T00:00:00+00:00", "1969-12-29T00:00Z", "1970-01-05T00:00Z"),
        ("month", "Europe/Berlin", "2026-03-31T21:59:59+00:00", "2026-02-28T23:00Z", "2026-03-31T22:00Z"),
        ("month", "Europe/Berlin", "2026-10-15T00:00:00+00:00", "2026-09-30T22:00Z", "2026-10-31T23:00Z"),
        ("month", "UTC", "2028-02-29T23:59:59+00:00", "2028-02-01T00:00Z", "2028-03-01T00:00Z"),  # a leap year
        ("month", "America/New_York", "2027-01-01T04:59:59+00:00", "2026-12-01T05:00Z", "2027-01-01T05:00Z"),
        ("month", "Australia/Lord_Howe", "2026-04-30T00:00:00+00:00", "2026-03-31T13:00Z", "2026-04-30T13:30Z"),
    ],
)
def test_weeks_begin_on_monday_and_months_on_the_first(
    unit: str, timezone: str, when: str, start: str, end: str
) -> None:
    assert window(unit, timezone, when) == (start, end)


@pytest.mark.parametrize(
    ("unit", "timezone", "when", "start", "end"),
    [
        ("quarter", "Europe/Berlin", "2026-03-31T21:59:59+00:00", "2025-12-31T23:00Z", "2026-03-31T22:00Z"),
        ("quarter", "Europe/Berlin", "2026-03-31T22:00:00+00:00", "2026-03-31T22:00Z", "2026-06-30T22:00Z"),
        ("quarter", "UTC", "2027-12-31T23:59:59+00:00", "2027-10-01T00:00Z", "2028-01-01T00:00Z"),
        ("year", "Europe/Berlin", "2026-12-31T22:59:59+00:00", "2025-12-31T23:00Z", "2026-12-31T23:00Z"),
        ("year", "America/New_York", "2029-01-01T04:59:59+00:00", "2028-01-01T05:00Z", "2029-01-01T05:00Z"),
        ("year", "UTC", "1969-12-31T23:59:59+00:00", "1969-01-01T00:00Z", "1970-01-01T00:00Z"),
        # Kolkata is 5:30 before UTC, Kathmandu 5:45
        ("hour", "Asia/Kolkata", "2026-01-01T08:29:59+00:00", "2026-01-01T07:30Z", "2026-01-01T08:30Z"),
        ("hour", "Asia/Kathmandu", "2026-01-01T08:15:00+00:00", "2026-01-01T08:15Z", "2026-01-01T09:15Z"),
        # Berlin shows the hour from 2 on twice on 2026-10-25: two windows; it skips one on 2026-03-29: none
        ("hour", "Europe/Berlin", "2026-10-25T00:59:59+00:00", "2026-10-25T00:00Z", "2026-10-25T01:00Z"),
        ("hour", "Europe/Berlin", "2026-10-25T01:00:00+00:00", "2026-10-25T01:00Z", "2026-10-25T02:00Z"),
        ("hour", "Europe/Berlin", "2026-03-29T01:00:00+00:00", "2026-03-29T01:00Z", "2026-03-29T02:00Z"),
        # Lord Howe goes back from 2:00 to 1:30 on 2026-04-05, at 15:00Z the day before: an hour, half a one, an hour
        ("hour", "Australia/Lord_Howe", "2026-04-04T14:59:59+00:00", "2026-04-04T14:00Z", "2026-04-04T15:00Z"),
        ("hour", "Australia/Lord_Howe", "2026-04-04T15:00:00+00:00", "2026-04-04T15:00Z", "2026-04-04T15:30Z"),
        ("hour", "Australia/Lord_Howe", "2026-04-04T15:30:00+00:00", "2026-04-04T15:30Z", "2026-04-04T16:30Z"),
        # and forward from 2:00 to 2:30 on 2026-10-04, at 15:30Z the day before: half an hour is left
        ("hour", "Australia/Lord_Howe", "2026-10-03T15:29:59+00:00", "2026-10-03T14:30Z", "2026-10-03T15:30Z"),
        ("hour", "Australia/Lord_Howe", "2026-10-03T15:30:00+00:00", "2026-10-03T15:30Z", "2026-10-03T16:00Z"),
        # Toronto skipped from 23:30 to 00:30 in 1919, at 04:30Z: half an hour on both sides
        ("hour", "America/Toronto", "1919-03-31T04:29:59+00:00", "1919-03-31T04:00Z", "1919-03-31T04:30Z"),
        ("hour", "America/Toronto", "1919-03-31T04:30:00+00:00", "1919-03-31T04:30Z", "1919-03-31T05:00Z"),
    ],
)
def test_hours_quarters_and_years(unit: str, timezone: str, when: str, start: str, end: str) -> None:
    assert window(unit, timezone, when) == (start, end)


@pytest.mark.parametrize(
    ("week_start", "start"),
    [("sunday", "2026-03-29"), ("monday", "2026-03-30"), ("wednesday", "2026-04-01"), ("thursday", "2026-03-26")],
)
def test_weeks_begin_on_the_day_that_is_said(week_start: str, start: str) -> None:
    """Of Wednesday, 2026-04-01."""
    assert window("week", "UTC", "2026-04-01T12:00:00+00:00", week_start)[0] == f"{start}T00:00Z"


ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Asia/Tehran",
    "Asia/Kathmandu",
    "America/St_Johns",
]
instants = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
changes = st.sampled_from(["2026-03-29T01:00+00:00", "2026-04-04T15:00+00:00", "2010-11-07T02:31+00:00"]).flatmap(
    lambda at: st.integers(-7_200_000_000, 7_200_000_000).map(
        lambda more: datetime.fromisoformat(at) + timedelta(microseconds=more)
    )
)
"""Near when some of the clocks are set."""


@given(
    st.sampled_from(get_args(Unit)),
    st.sampled_from(ZONES),
    st.sampled_from(get_args(Weekday)),
    st.lists(instants | changes, min_size=1, max_size=5),
)
def test_every_instant_is_in_one_window_which_the_next_one_follows(
    unit: Unit, timezone: str, week_start: Weekday, times: list[datetime]
) -> None:
    calendar = Calendar(unit, timezone, week_start)
    events = np.array([us(each) for each in times])
    (held,) = calendar.windows(events)
    assert np.all(held.start <= events) and np.all(events < held.end)
    assert np.all(held.end - events <= calendar.reach_us) and np.all(events - held.start <= calendar.reach_us)
    (again,) = calendar.windows(np.concatenate((held.start, held.end - 1)))
    assert again.start.tolist() == held.start.tolist() * 2
    (after,) = calendar.windows(held.end)
    assert after.start.tolist() == held.end.tolist()
    zone = ZoneInfo(timezone)
    for start, end in zip(held.start.tolist(), held.end.tolist(), strict=True):
        if unit == "hour":
            check_hour(start, end, zone)
        else:
            check_days(start, end, zone, unit, week_start)


def there(at_us: int, zone: ZoneInfo) -> datetime:
    return (EPOCH + timedelta(microseconds=at_us)).astimezone(zone)


def check_hour(start: int, end: int, zone: ZoneInfo) -> None:
    """In it the clock is not set, and shows one hour; at both ends it shows a full hour, or is set."""
    first, last = there(start, zone), there(end - 1, zone)
    assert (first.utcoffset(), first.date(), first.hour) == (last.utcoffset(), last.date(), last.hour)
    for at in start, end:
        now, before = there(at, zone), there(at - 1, zone)
        assert (now.minute, now.second) == (0, 0) or now.utcoffset() != before.utcoffset()


def check_days(start: int, end: int, zone: ZoneInfo, unit: str, week_start: str) -> None:
    """It begins with the first instant of its first day, or of the first that is shown, and ends so."""

    def first_of(day: date) -> date:
        match unit:
            case "week":
                return day - timedelta(days=(day.weekday() - get_args(Weekday).index(week_start)) % 7)
            case "month":
                return day.replace(day=1)
            case "quarter":
                return date(day.year, {1: 1, 2: 4, 3: 7, 4: 10}[-(-day.month // 3)], 1)
            case "year":
                return date(day.year, 1, 1)
        return day

    assert there(start - 1, zone).date() < first_of(there(start, zone).date())
    following = first_of(there(end, zone).date())
    assert there(end - 1, zone).date() < following
    gone = following - timedelta(days=2 if there(end - 1, zone).date() < following - timedelta(days=1) else 1)
    assert first_of(gone) == first_of(there(start, zone).date())  # no other window is between


def test_a_record_is_judged_by_the_end_of_its_day() -> None:
    end = us("2026-03-29T22:00:00+00:00")
    event = np.full(4, us("2026-03-29T10:00:00+00:00"))
    progress = np.array([end + 9, end + 10, end + 29, end + 30])
    judged = hr.calendar("day", timezone="Europe/Berlin").judged(event, progress, grace_us=10, within_us=20)
    assert judged.late.tolist() == [0, 1, 1, 1]
    assert judged.dropped.tolist() == [0, 0, 0, 1]


def test_the_first_and_the_last_instants_there_are() -> None:
    events = np.array([us("0001-01-01T00:00:00+00:00"), us("9999-12-31T23:59:59.999999+00:00")])
    for unit in get_args(Unit):
        for timezone in ("UTC", "Pacific/Kiritimati", "America/New_York"):
            (held,) = Calendar(unit, timezone).windows(events)
            assert held.start[1] < events[1] <= held.end[1]
            assert len(held.start) == 2


@pytest.mark.parametrize(
    ("make", "argument", "said"),
    [
        (lambda: hr.calendar("minute", timezone="UTC"), "unit", "use tumbling"),  # type: ignore[arg-type]
        (lambda: hr.calendar("week", timezone="UTC", week_start="sun"), "week_start", "'monday' to 'sunday'"),  # type: ignore[arg-type]
        (lambda: hr.calendar("day", timezone="UTC", week_start="sunday"), "week_start", "is for weeks"),
        (lambda: hr.calendar("day", timezone="Europe/Berln"), "timezone", "Did you mean 'Europe/Berlin'"),
        (lambda: hr.calendar("day", timezone="../../etc/passwd"), "timezone", "is no time zone"),
        (lambda: hr.calendar("day", timezone=""), "timezone", "is no time zone"),
        (lambda: hr.calendar("day", timezone=None), "timezone", "is no time zone"),  # type: ignore[arg-type]
        (lambda: hr.session("0 seconds"), "gap", "longer than zero"),
        (lambda: hr.sliding("0 seconds"), "size", "longer than zero"),
        (lambda: hr.sliding("soon"), "size", "is not a duration"),
    ],
)
def test_what_is_no_window_is_refused_by_name(make: object, argument: str, said: str) -> None:
    with pytest.raises(hr.InvalidArgument, match=said) as refused:
        make()  # type: ignore[operator]
    assert refused.value.argument == argument


def test_windows_are_told_as_they_were_written() -> None:
    sunday = hr.calendar("week", timezone="UTC", week_start="sunday")
    written = [hr.calendar("week", timezone="UTC"), sunday, hr.session("30 minutes"), hr.sliding("5 minutes")]
    assert [str(each) for each in written] == [
        "calendar('week', timezone='UTC')",
        "calendar('week', timezone='UTC', week_start='sunday')",
        "session('30 minutes')",
        "sliding('5 minutes')",
    ]
