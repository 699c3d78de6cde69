"""From the outbox to its targets: what a flow emits, sent once. Owns the order; knows no Spark.

Rows in the outbox are numbered for their target, which takes each number once. So a relay that was killed after it had
sent rows, and before the outbox knew, does no harm when it is run again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.errors import KafkaFailed, ViewsDiverged
from headrace.failpoints import reach
from headrace.flows.writing.targets import target_of
from headrace.position import Position
from headrace.views.contract import ViewStore, Waiting

if TYPE_CHECKING:
    from headrace.log.contract import Log, Sender

AGAIN_SECONDS, PAUSE_SECONDS = 30.0, 0.2
"""For how long a cluster is asked again, and how often."""


class Relay:
    def __init__(self, log: Log, store: ViewStore, flow: str, still_ours: Callable[[], None] = lambda: None) -> None:
        """`still_ours` raises FlowFenced if the flow was taken."""
        self._log, self._store, self._flow, self._still_ours = log, store, flow, still_ours
        self._sender: Sender | None = None
        self.done = -1
        """All of the outbox up to this sequence has arrived …"""
        self.written = Position()
        """… and lies below these offsets."""

    def begin(self, born: str) -> None:
        """A new epoch at each target, taken when it is first used: whoever relayed before is fenced there. A flow that
        was made anew counts its rows anew: under another name, or the log would take them for what it has."""
        self._sender = self._log.sender(f"flow.{self._flow[:200]}.{born}" if born else f"flow.{self._flow}")

    def refuse_older_views(self, targets: Iterable[str], parent: str | None) -> None:
        """ViewsDiverged if more has arrived than was put out: these rows are made again, and cut differently."""
        assert self._sender is not None
        sent = {target: self._sender.sent(target) for target in sorted({*targets, *self._store.carried(self._flow)})}
        carried = self._store.carried(self._flow)  # behind that: whoever had the flow may be sending yet
        for target, count in sent.items():
            if count > carried.get(target, 0):
                raise ViewsDiverged(self._flow, target, count, carried.get(target, 0), parent)

    def run(self) -> int:
        """Sends what waits; how many rows."""
        sent = 0
        for sequence, group in itertools.groupby(self._store.outbox(self._flow), key=lambda each: each.sequence):
            if sequence > self.done:
                sent += sum(self._send(waiting) for waiting in group)
                self.done = sequence
        return sent

    def _send(self, waiting: Waiting) -> int:
        """A cluster that does not answer (a broker is restarted, a coordinator moves) is asked again for a while."""
        assert self._sender is not None
        target, until = target_of(waiting.target, self._sender, self._flow), time.monotonic() + AGAIN_SECONDS
        while True:
            try:
                self.written |= target.send(waiting.rows, waiting.base)
                break
            except KafkaFailed:
                if time.monotonic() > until:
                    raise
                self._still_ours()  # who tries again takes the target back
                time.sleep(PAUSE_SECONDS)
        reach("relay.appended")
        return int(waiting.rows.num_rows)
