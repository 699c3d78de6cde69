"""What entities give back: an event with its version, a state, the result of a command, an audit. Owns no rule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from headrace.position import Position

__all__ = ["Difference", "EntityAudit", "Event", "Handled", "Loaded", "State"]

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Event:
    """An event that happened to an entity. `version`: the entity's version that it made, from 1 on."""

    event: Any
    version: int
    at: datetime
    command: str | None
    """The id of the command that it came from, if that had one."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[State]):
    """An entity's state, and its version: how many events made it."""

    key: str
    state: State
    version: int


@dataclass(frozen=True, slots=True)
class Handled(Generic[State]):
    """A command's result: its events, and the entity's version and state behind them. `position`: where the log has
    them, for `wait_for=`. `duplicate`: a command of this id was handled before, and this is its result; `state` is the
    one of that time."""

    key: str
    events: tuple[Any, ...]
    version: int
    state: State
    position: Position
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """A snapshot that is not what its entity's events come to."""

    key: str
    version: int
    snapshot: Any
    folded: Any


@dataclass(frozen=True, slots=True)
class EntityAudit:
    """How many snapshots were compared with the fold of their events, and those that are not the same."""

    checked: int
    differences: list[Difference]

    @property
    def ok(self) -> bool:
        """True if no snapshot differs."""
        return not self.differences
