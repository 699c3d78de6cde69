from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US, duration_us, format_duration, from_us, instant_us
from headrace.errors import InvalidArgument


@pytest.mark.parametrize(
    ("value", "us"),
    [
        ("5 minutes", 5 * 60 * 10**6),
        ("1 hour", 3600 * 10**6),
        ("250 milliseconds", 250 * 10**3),
        ("2h", 2 * 3600 * 10**6),
        ("30s", 30 * 10**6),
        ("5 ms", 5 * 10**3),
        ("7us", 7),
        ("1 week", 7 * 86400 * 10**6),
        ("7 days", 7 * 86400 * 10**6),
        ("1 hour 30 minutes", 90 * 60 * 10**6),
        ("1 hour, 30 minutes", 90 * 60 * 10**6),
        ("1h30m", 90 * 60 * 10**6),
        ("1.5 hours", 90 * 60 * 10**6),
        ("0.000001 seconds", 1),
        ("  2 Days ", 2 * 86400 * 10**6),
        (timedelta(seconds=1.5), 1_500_000),
        (timedelta(microseconds=1), 1),
    ],
)
def test_durations_are_exact_microseconds(value: str | timedelta, us: int) -> None:
    assert duration_us(value, argument="grace") == us


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "as in '5 minutes'"),
        ("   ", "as in '5 minutes'"),
        ("5", "as in '5 minutes'"),
        ("minutes", "as in '5 minutes'"),
        ("five minutes", "as in '5 minutes'"),
        ("-5 minutes", "cannot be negative"),
        (timedelta(seconds=-1), "cannot be negative"),
        ("0 minutes", "longer than zero"),
        (timedelta(0), "longer than zero"),
        ("NaN seconds", "as in '5 minutes'"),
        ("nan", "as in '5 minutes'"),
        ("1e3 seconds", "unknown unit 'e'"),
        ("5 M", "unknown unit 'M'"),
        ("2 months", "no fixed length"),
        ("1 year", "no fixed length"),
        ("1 minute 2 minutes", "twice"),
        ("1 minute,", "as in '5 minutes'"),
        ("0.1 microseconds", "whole number of microseconds"),
        ("9999999999999 weeks", "too long"),
        ("9" * 500 + " s", "not a duration"),
        (5, "is not a duration"),
        (float("nan"), "is not a duration"),
        (None, "is not a duration"),
    ],
)
def test_nonsense_is_refused_naming_the_argument(value: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        duration_us(value, argument="grace")
    assert caught.value.argument == "grace"
    assert reason in caught.value.why


def test_zero_is_a_duration_where_it_makes_sense() -> None:
    assert duration_us("0 seconds", argument="grace", positive=False) == 0
    assert duration_us(timedelta(0), argument="grace", positive=False) == 0


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 seconds"),
        (1, "1 microsecond"),
        (90 * 60 * 10**6, "1 hour 30 minutes"),
        (10 * 86400 * 10**6, "10 days"),
        (14 * 86400 * 10**6, "2 weeks"),
        (1_001_002, "1 second 1 millisecond 2 microseconds"),
    ],
)
def test_durations_in_words(us: int, text: str) -> None:
    assert format_duration(us) == text


@pytest.mark.parametrize("us", [-1, True, 1.5, None])
def test_what_is_no_duration_has_no_words(us: int) -> None:
    with pytest.raises(InvalidArgument):
        format_duration(us)


@given(st.integers(0, 2**63 - 1))
def test_words_say_exactly_the_duration(us: int) -> None:
    assert duration_us(format_duration(us), argument="x", positive=False) == us


# -- instants --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1970, 1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), 0),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 02:00+02:00", 0),
        ("1970-01-01T02:00:00.5+0200", 500_000),
        ("1969-12-31T22Z", -2 * 3600 * 10**6),
        ("1970-01-01T00:00:00.1234560000Z", 123_456),
        ("1970-01-01T00:53:28+00:53:28", 0),
        (datetime.min.replace(tzinfo=UTC), INSTANT_MIN_US),
        (datetime.max.replace(tzinfo=UTC), INSTANT_MAX_US),
    ],
)
def test_instants_are_exact_microseconds(value: datetime | str, us: int) -> None:
    assert instant_us(value, argument="start") == us


class Nowhere(tzinfo):
    """A zone that does not know its offset: the datetime is naive, though it has a tzinfo."""

    def utcoffset(self, _when: datetime | None) -> None:
        return None

    def dst(self, _when: datetime | None) -> None:
        return None

    def tzname(self, _when: datetime | None) -> str:
        return "nowhere"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (datetime(2026, 1, 1), "has no time zone"),
        (datetime(2026, 1, 1, tzinfo=Nowhere()), "has no time zone"),
        ("2026-01-01T00:00:00", "has no time zone. Say which: add 'Z'"),
        ("2026-01-01", "has no time zone"),
        ("2026-01-01T00:00:00.1234567Z", "finer than a microsecond"),
        ("2026-01-01T00:00.5Z", "write seconds"),
        ("2026-02-30T00:00:00Z", "no such time"),
        ("2026-01-01T24:00:01Z", "no such time"),
        ("2026-01-01x00:00:00Z", "not ISO 8601"),
        ("2026-01-01T00:00:00Z ", "not ISO 8601"),
        ("٢٠٢٦-01-01T00:00:00Z", "not ISO 8601"),
        ("yesterday", "not ISO 8601"),
        ("0001-01-01T00:00:00+02:00", "years 1 to 9999"),
        ("9999-12-31T23:59:59-02:00", "years 1 to 9999"),
        (1_700_000_000, "not a time"),
        (None, "not a time"),
    ],
)
def test_times_that_are_no_instants_are_refused(value: datetime | str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        instant_us(value, argument="start")
    assert caught.value.argument == "start"
    assert reason in caught.value.why


@given(st.integers(INSTANT_MIN_US, INSTANT_MAX_US))
def test_instants_round_trip(us: int) -> None:
    when = from_us(us)
    assert when.tzinfo is UTC
    assert instant_us(when, argument="x") == us
    assert instant_us(when.isoformat(), argument="x") == us


@given(st.datetimes(timezones=st.timezones()))
def test_an_instant_is_the_same_in_every_zone(when: datetime) -> None:
    try:
        utc = when.astimezone(UTC)
    except OverflowError:
        return  # before year 1 or after 9999 in UTC
    assert instant_us(when, argument="x") == instant_us(utc, argument="x")


@pytest.mark.parametrize("us", [INSTANT_MIN_US - 1, INSTANT_MAX_US + 1, 2**80, 1.5, None])
def test_no_datetime_beyond_the_years_python_knows(us: int) -> None:
    with pytest.raises(InvalidArgument):
        from_us(us)
