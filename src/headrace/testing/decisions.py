"""Given, when, then: tests of what an entity decides, and of what a process asks for, without a log.

    given(seats, Reserved("ann")).when(Reserve("bob")).rejected("taken")
    given(seats).when(Reserve("ann")).then(Reserved("ann")).state(Seat("ann"))
    given(transfers).when(Asked("ann", "bob", 5)).then(Send(Withdraw(5), to="ann"))

Owns no rule: it calls the entity's own functions. Every event and command that is sent goes through its columns, as in
a log, so what would come back as something else fails here."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from headrace.errors import Rejected
from headrace.sourcing.entities import Entities, events_of
from headrace.sourcing.processes import ProcessManager, actions_of
from headrace.sourcing.reactions import Send

__all__ = ["Given", "When", "given"]


def given(entities: Entities[Any], *events: Any, key: str = "key") -> Given:
    """An entity, or a process, to which these events have happened."""
    return Given(entities, key, events)


@dataclass(frozen=True)
class Given:
    entities: Entities[Any]
    key: str
    events: tuple[Any, ...]

    def when(self, command: Any) -> When:
        """What is decided now; or of a process's event, what it asks for."""
        if isinstance(self.entities, ProcessManager):
            return When(self, command, (command,), self._asked(self.entities, command), None)
        state = self.folded(self.events)
        assert self.entities.decide is not None, "these entities have no decide="
        try:
            decided = events_of(self.entities.decide(state, command, self.key))
        except Rejected as error:
            return When(self, command, (), (), error)
        return When(self, command, decided, decided, None)

    def _asked(self, manager: ProcessManager[Any], event: Any) -> tuple[Any, ...]:
        asked = actions_of(manager, self.folded((*self.events, event)), manager.stored(event), self.key)
        for command in (action.command for action in asked if isinstance(action, Send)):
            stored = manager.stored_command(command)
            assert stored == command, f"{command!r} comes back from a log as {stored!r}"
        return asked

    def state(self, expected: Any) -> None:
        """What the events come to."""
        found = self.folded(self.events)
        assert found == expected, f"the state is {found!r}, not {expected!r}"

    def folded(self, events: tuple[Any, ...]) -> Any:
        state = copy.deepcopy(self.entities.initial)
        for event in events:
            stored = self.entities.stored(event)
            assert stored == event, f"{event!r} comes back from a log as {stored!r}"
            state = self.entities.evolve(state, stored)
        return state


@dataclass(frozen=True)
class When:
    given: Given
    command: Any
    events: tuple[Any, ...]
    given_back: tuple[Any, ...]
    error: Rejected | None

    def then(self, *expected: Any) -> Given:
        """These events are appended, and no other; or a process asks for this. It is what the events make of it."""
        if self.error is not None:
            raise AssertionError(f"{self.command!r} is rejected: {self.error}") from self.error
        found = self.given_back
        assert found == expected, f"{self.command!r} gives {list(found)!r}, not {list(expected)!r}"
        after = Given(self.given.entities, self.given.key, (*self.given.events, *self.events))
        after.folded(after.events)
        return after

    def rejected(self, why: str = "") -> None:
        """The command is refused, with a reason that has this text in it."""
        assert self.error is not None, f"{self.command!r} is not rejected: it gives {list(self.given_back)!r}"
        assert why in str(self.error), f"{self.command!r} is rejected with {str(self.error)!r}, not {why!r}"
