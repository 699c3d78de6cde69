"""From the outbox to its targets: what a flow emits, sent once. Owns the order; knows no Spark.

Rows in the outbox are numbered for their target, which takes each number once. So a relay that was killed after it had
sent rows, and before the outbox knew, does no harm when it is run again."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from headrace.failpoints import reach
from headrace.flows.targets import target_of
from headrace.position import Position
from headrace.views.contract import ViewStore, Waiting

if TYPE_CHECKING:
    from headrace.log.contract import Log, Sender


class Relay:
    def __init__(self, log: Log, store: ViewStore, flow: str) -> None:
        self._log, self._store, self._flow = log, store, flow
        self._sender: Sender | None = None
        self.done = -1
        """All of the outbox up to this sequence has arrived …"""
        self.written = Position()
        """… and lies below these offsets."""

    def begin(self, born: str) -> None:
        """A new epoch at each target, taken when it is first used: whoever relayed before is fenced there. A flow that
        was made anew counts its rows anew: under another name, or the log would take them for what it has."""
        self._sender = self._log.sender(f"flow.{self._flow[:200]}.{born}" if born else f"flow.{self._flow}")

    def run(self) -> int:
        """Sends what waits; how many rows."""
        sent = 0
        for sequence, group in itertools.groupby(self._store.outbox(self._flow), key=lambda each: each.sequence):
            if sequence > self.done:
                sent += sum(self._send(waiting) for waiting in group)
                self.done = sequence
        return sent

    def _send(self, waiting: Waiting) -> int:
        assert self._sender is not None
        self.written |= target_of(waiting.target, self._sender, self._flow).send(waiting.rows, waiting.base)
        reach("relay.appended")
        return int(waiting.rows.num_rows)
