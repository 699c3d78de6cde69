"""A process manager, or the handler of entities' commands, as an app runs it. What it does, and
how far it is, is the log's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.beside import Beside
from headrace.errors import HeadraceError, VersionConflict, WaitTimeout
from headrace.retrying import RetryingThread, log_may_recover

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.sourcing.entities import Entities

__all__ = ["Supervised", "SupervisedEntities"]

logger = logging.getLogger("headrace.processes")


class Supervised(Beside):
    """A process manager that `app.run()`, `app.start()` and `app.drain()` run."""

    kind = "process manager"
    makes_work = True

    def __init__(self, app: App, manager: Entities[Any]) -> None:
        super().__init__(app, manager.name)
        self.manager = manager

    def _drain(self) -> int:
        return self.manager.drain()

    def _new_thread(self) -> RetryingThread:
        def run() -> None:
            self.manager.run(thread.is_stopping, thread.is_well)

        thread = RetryingThread(f"{self.kind} {self.name}", run, _passes, logger=logger)
        return thread


class SupervisedEntities(Supervised):
    """Entities whose commands go through a topic."""

    kind = "entities"


def _passes(error: HeadraceError) -> bool:
    """Whether the same may succeed later: others may always have been first, and an open transaction ends."""
    return isinstance(error, VersionConflict | WaitTimeout) or log_may_recover(error)
