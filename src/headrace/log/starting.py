"""Where to begin: as a program says it, and as a text, on a command line or in an address. Owns how it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.durations import from_us, instant_us
from headrace.errors import InvalidArgument
from headrace.log.contract import Start

__all__ = ["check_start", "start_of", "start_us"]

WHY = "must be 'earliest', 'latest', a time with zone, or {partition: offset}"


def start_of(text: str) -> Start:
    """An end, `PARTITION:OFFSET,…`, or a time with its zone."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    parts = [re.fullmatch(r"(\d{1,19}):(\d{1,19})", part.strip()) for part in text.split(",")]
    if None not in parts:
        offsets = {int(part[1]): int(part[2]) for part in parts if part is not None}
        if len(offsets) != len(parts):
            raise InvalidArgument("start", text, "names a partition twice")
        return offsets
    try:
        return from_us(instant_us(text, argument="start"))
    except InvalidArgument as error:
        why = (
            f"must be earliest, latest, PARTITION:OFFSET,… or a time with its zone, as in 2026-01-31T12:00:00Z "
            f"({error.why})"
        )
        raise InvalidArgument("start", text, why) from None


def check_start(start: Any) -> Start:
    """As a program says it; what is none is refused where it is written, not where it is first used."""
    if isinstance(start, str) and start in ("earliest", "latest"):
        return "earliest" if start == "earliest" else "latest"
    if isinstance(start, Mapping):
        for number in (*start, *start.values()):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise InvalidArgument("start", dict(start), f"{WHY}: {number!r} is neither")
        return start
    return from_us(start_us(start))


def start_us(start: Any) -> int:
    """The time, where it is neither an end nor offsets."""
    try:
        return instant_us(start, argument="start")
    except InvalidArgument as error:
        raise InvalidArgument("start", start, f"{WHY} ({error.why})") from None
