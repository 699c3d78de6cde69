"""What a process manager's reaction can ask for, and what it is told: values. Owns their checks. Knows no log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument

__all__ = [
    "TOLD",
    "Action",
    "Cancel",
    "CommandAccepted",
    "CommandRejected",
    "PendingTimer",
    "Send",
    "Timer",
    "TimerFired",
]


@dataclass(frozen=True, slots=True)
class Send:
    """A command. `to`: the entity's key; None for a command whose class goes to a topic."""

    command: Any
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of the process, in place of the one of that name: `after` the event that is reacted to, or `at` a time.
    The process gets TimerFired then, unless it was cancelled."""

    name: str
    after: Duration | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if (self.after is None) == (self.at is None):
            raise InvalidArgument("after", self.after, f"timer {self.name!r} needs after= or at=, one of them")
        if self.after is not None:
            object.__setattr__(self, "after", timedelta(microseconds=duration_us(self.after, argument="after")))
        elif not isinstance(self.at, datetime) or self.at.tzinfo is None:
            raise InvalidArgument("at", self.at, "must be a time with a zone")

    def due(self, event_at: datetime) -> datetime:
        """When it fires, if it was asked for by an event of that time."""
        if self.at is not None:
            return self.at
        assert isinstance(self.after, timedelta)
        try:
            return event_at + self.after
        except OverflowError:
            raise InvalidArgument("after", self.after, f"timer {self.name!r} would fire behind the year 9999") from None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Takes back the timer of that name, if there is one."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name)


Action = Send | Timer | Cancel


@dataclass(frozen=True, slots=True)
class CommandAccepted:
    """An entity has handled a command of the process. `command`: its class's name. `step` and `number`: which event of
    the process it came of, and its number among what was asked for then."""

    command: str
    to: str
    step: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class CommandRejected:
    """An entity has refused a command of the process, and will not handle it later."""

    command: str
    to: str
    reason: str
    step: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer of the process is due."""

    name: str


TOLD = (CommandAccepted, CommandRejected, TimerFired)
"""The events that a process gets from its manager."""


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A timer that is to fire. `step`: the event of the process that asked for it."""

    process: str
    name: str
    due: datetime
    step: int


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument("name", name, "a timer's name is a text that is not empty")
