"""The flows of one app, spread over several runners. Owns how many of them this runner has: a fair share of all, by the
leases of the store (`views.owner.Leases`). Each runner looks for itself, and nobody leads: who has more than its share
lets go of one, who has less takes what nobody has. So the flows of a runner that died are taken by the others, and one
that is started gets its part, a flow at a time, each from its last commit on."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import uuid
from collections.abc import Collection, Sequence
from typing import Protocol

from headrace.errors import AlreadyRunning
from headrace.views.owner import Leases

__all__ = ["Sharing", "fair_share"]

logger = logging.getLogger("headrace.flows")

LOOK_SECONDS = 1.0


class Runner(Protocol):
    """What it moves flows in and out of."""

    def shared(self) -> tuple[Collection[str], Collection[str]]:
        """The names of the flows that run here, and of the others."""

    def begin_one(self, flow: str) -> None:
        """AlreadyRunning if somebody has it."""

    def let_go(self, flow: str) -> None:
        """Ends it after its batch, and lets others have it."""


def fair_share(flows: int, name: str, runners: Sequence[str]) -> int:
    """So many flows a runner has; all of them together have each flow once. What does not divide goes to the first."""
    each, more = divmod(flows, max(len(runners), 1))
    return each + (sum(other < name for other in runners) < more)


class Sharing:
    """Until `end`. The first look is made at once, so that what is wrong with the first flow is said by `start`."""

    def __init__(self, runner: Runner, leases: Leases, app: str) -> None:
        self._runner, self._leases = runner, leases
        self._runners = f"~runners/{app}/"
        self._name = self._runners + uuid.uuid4().hex
        self._end = threading.Event()
        self._leases.take(self._name)
        try:
            self.look()
        except BaseException:
            self._leases.release(self._name)  # or others would leave a share to this runner
            raise
        self._thread = threading.Thread(target=self._looking, name="headrace-sharing", daemon=True)
        self._thread.start()

    def look(self) -> None:
        here, elsewhere = self._runner.shared()
        share = fair_share(len(here) + len(elsewhere), self._name, self._leases.names(self._runners))
        if len(here) > share:
            self._runner.let_go(next(iter(here)))
            return
        free, taken = list(elsewhere), len(here)
        random.shuffle(free)  # else all runners ask for the same one first
        for flow in free:
            if taken >= share:
                return
            with contextlib.suppress(AlreadyRunning):
                self._runner.begin_one(flow)
                taken += 1

    def _looking(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # whatever it is: others count on this runner while its lease is renewed
                logger.warning("sharing flows with other runners: %s; looking again", error)

    def end(self) -> None:
        self._end.set()
        self._thread.join()
        self._leases.release(self._name)
