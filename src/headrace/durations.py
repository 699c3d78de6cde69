"""Lengths of time and instants, as whole microseconds.

Owns the reading of durations ("5 minutes", `timedelta`) and instants (aware datetimes, ISO text with a
zone), and their exact integer arithmetic: no float ever touches a time. Knows no clock, no Arrow and no
local time zone: a time without a zone is refused, never guessed. Instants lie in the years 1 to 9999,
the range every Python reader can hold."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any, Final

from headrace.errors import InvalidArgument

__all__ = ["INSTANT_MAX_US", "INSTANT_MIN_US", "Duration", "duration_us", "format_duration", "from_us", "instant_us"]

Duration = str | timedelta

DURATION_MAX_US: Final = 2**63 - 1
TEXT_MAX: Final = 200

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
INSTANT_MIN_US: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
INSTANT_MAX_US: Final = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // _MICROSECOND

# Largest first: format_duration walks it. The short forms keep their case: "5 M" could be months.
_UNITS: Final = (
    ("week", 7 * 86_400_000_000, ("w",)),
    ("day", 86_400_000_000, ("d",)),
    ("hour", 3_600_000_000, ("h", "hr", "hrs")),
    ("minute", 60_000_000, ("m", "min", "mins")),
    ("second", 1_000_000, ("s", "sec", "secs")),
    ("millisecond", 1_000, ("ms",)),
    ("microsecond", 1, ("us", "µs", "μs")),
)
_SHORT: Final = {short: us for _, us, shorts in _UNITS for short in shorts}
_LONG: Final = {form: us for name, us, _ in _UNITS for form in (name, name + "s")}

_PART: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµμ]+)\s*,?")
_ACCEPTED: Final = (
    "write a number and a unit, as in '5 minutes', '1 hour 30 minutes', '250 ms', '30s', '7 days', or pass a "
    "timedelta; units are weeks, days, hours, minutes, seconds, milliseconds, microseconds (w, d, h, m, s, ms, us)"
)


def duration_us(value: Duration, *, argument: str, positive: bool = True) -> int:
    """Microseconds of a duration: `duration_us("1 hour 30 minutes", argument="grace")` is 5_400_000_000."""
    if isinstance(value, timedelta):
        us = value // _MICROSECOND
    elif isinstance(value, str):
        us = _parse_duration(value, argument)
    else:
        raise InvalidArgument(argument, value, f"is not a duration; {_ACCEPTED}")
    if us < 0:
        raise InvalidArgument(argument, value, "a duration cannot be negative")
    if us == 0 and positive:
        raise InvalidArgument(argument, value, "must be longer than zero")
    if us > DURATION_MAX_US:
        raise InvalidArgument(argument, value, f"is too long; at most {DURATION_MAX_US} microseconds (292,000 years)")
    return us


def _parse_duration(text: str, argument: str) -> int:
    if len(text) > TEXT_MAX:
        raise InvalidArgument(argument, text[:40] + "…", f"is not a duration; {_ACCEPTED}")
    total, at, seen = 0, 0, set[int]()
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            if at and not text[at:].strip():
                break
            hint = "a duration cannot be negative" if re.match(r"\s*-", text) else f"is not a duration; {_ACCEPTED}"
            raise InvalidArgument(argument, text, hint)
        number, unit = part.groups()
        us = _SHORT.get(unit) or _LONG.get(unit.lower())
        if us is None:
            why = f"unknown unit {unit!r}; {_ACCEPTED}"
            if unit.lower().rstrip("s") in ("month", "year", "quarter", "y", "mo", "yr"):
                why = f"a {unit.lower().rstrip('s')} has no fixed length; say how many days"
            raise InvalidArgument(argument, text, why)
        if us in seen:
            raise InvalidArgument(argument, text, f"names the unit {unit!r} twice")
        seen.add(us)
        whole, _, fraction = number.partition(".")
        us_part, rest = divmod(int(whole + fraction) * us, 10 ** len(fraction))
        if rest:
            raise InvalidArgument(argument, text, "is not a whole number of microseconds")
        total += us_part
        at = part.end()
    if not seen or text.rstrip().endswith(","):
        raise InvalidArgument(argument, text, f"is not a duration; {_ACCEPTED}")
    return total


def format_duration(us: int) -> str:
    """The duration in words, exactly: `format_duration(5_400_000_000)` is '1 hour 30 minutes'."""
    if isinstance(us, bool) or not isinstance(us, int) or us < 0:
        raise InvalidArgument("us", us, "a duration is a whole number of microseconds, not negative")
    if us == 0:
        return "0 seconds"
    parts = []
    for name, size, _ in _UNITS:
        if name == "week" and us % size:
            continue  # weeks only when they come out even: '10 days', not '1 week 3 days'
        count, us = divmod(us, size)
        if count:
            parts.append(f"{count} {name}" + ("s" if count > 1 else ""))
    return " ".join(parts)


# -- instants --------------------------------------------------------------------------------------

# Narrower than datetime.fromisoformat, which takes any separator and cuts off the 7th decimal in silence.
_ISO: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}(?::[0-9]{2}(?::[0-9]{2})?)?)(?:\.([0-9]+))?(Z|[+-][0-9]{2}(?::?[0-9]{2}(?::[0-9]{2})?)?)?)?"
)


def parse_iso(text: str) -> datetime:
    """ISO text to the datetime it says, naive if it names no zone. ValueError says what is wrong with it."""
    match = _ISO.fullmatch(text) if len(text) <= TEXT_MAX else None
    if match is None:
        raise ValueError("is not ISO 8601, as in '2026-01-31T12:00:00Z' or '2026-01-31T12:00:00.25+02:00'")
    day, time, fraction, zone = match.groups()
    time = time or "00:00"
    if fraction is not None:
        if len(time) < 8:
            raise ValueError("has a fraction of an hour or minute; write seconds")
        if fraction[6:].strip("0"):
            raise ValueError("is finer than a microsecond; round it to six decimals")
        time = f"{time}.{fraction[:6]:0<6}"
    try:
        return datetime.fromisoformat(f"{day}T{time}{zone or ''}")
    except ValueError as error:
        raise ValueError(f"is no such time: {error}") from None


def epoch_us(when: datetime, *, text: bool = False) -> int:
    """Epoch microseconds of an aware datetime; ValueError for a naive one or one outside the years 1 to 9999 UTC.
    `text`: it was written as text, so the advice is about text."""
    if when.utcoffset() is None:
        raise ValueError(
            "has no time zone. Say which: add 'Z' if it is UTC, or an offset such as '+02:00'"
            if text
            else "has no time zone. Say which: value.replace(tzinfo=timezone.utc) if it is UTC, "
            "value.astimezone() if it is local time"
        )
    us = (when - _EPOCH) // _MICROSECOND
    if not INSTANT_MIN_US <= us <= INSTANT_MAX_US:
        raise ValueError("lies outside the years 1 to 9999 in UTC")
    return us


def instant_us(value: datetime | str, *, argument: str) -> int:
    """Epoch microseconds (UTC) of an aware datetime or of ISO text with a zone."""
    try:
        if isinstance(value, str):
            return epoch_us(parse_iso(value), text=True)
        if isinstance(value, datetime):
            if getattr(value, "nanosecond", 0):
                raise ValueError("is finer than a microsecond; round it first, as with .floor('us')")
            return epoch_us(value)
    except ValueError as error:
        raise InvalidArgument(argument, value, str(error)) from None
    raise InvalidArgument(argument, _short(value), "is not a time; pass an aware datetime, or ISO text with a zone")


def from_us(us: int) -> datetime:
    """The aware UTC datetime of epoch microseconds; the inverse of `instant_us`."""
    try:
        return _EPOCH + timedelta(microseconds=index(us))
    except (OverflowError, TypeError):
        raise InvalidArgument("us", us, "epoch microseconds of the years 1 to 9999 are expected") from None


def _short(value: Any) -> Any:
    return value if len(repr(value)) <= 80 else repr(value)[:79] + "…"
