"""Where to begin, as a text: on a command line, in an address. Owns how it is written."""

from __future__ import annotations

import re

from headrace.durations import from_us, instant_us
from headrace.errors import InvalidArgument
from headrace.log.contract import Start

__all__ = ["start_of"]


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
            f"say earliest, latest, PARTITION:OFFSET,… or a time with its zone, as in 2026-01-31T12:00:00Z "
            f"({error.why})"
        )
        raise InvalidArgument("start", text, why) from None
