"""From the outbox to the log: what a flow emits, appended once. Owns the order; knows no Spark.

Rows in the outbox are numbered for their target, and the log's sender appends each number once. So a relay that was
killed after an append and before the outbox knew does no harm when it is run again."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from headrace.failpoints import reach
from headrace.log.contract import DEAD_LETTERS
from headrace.position import Position
from headrace.views.contract import ViewStore, Waiting

if TYPE_CHECKING:
    from headrace.log.contract import Log, Sender

logger = logging.getLogger("headrace.flows")


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
        if waiting.target == DEAD_LETTERS:
            return self._bury(waiting, self._sender)
        rows, partition = waiting.rows, None
        progress = rows["_progress"] if "_progress" in rows.column_names else None
        if "_partition" in rows.column_names:
            partition = rows["_partition"][0].as_py()
        rows = rows.drop_columns([name for name in ("_progress", "_partition") if name in rows.column_names])
        self.written |= self._sender.send(waiting.target, rows, waiting.base, partition=partition, progress=progress)
        reach("relay.appended")
        return int(rows.num_rows)

    def _bury(self, waiting: Waiting, sender: Sender) -> int:
        """Letters of one topic."""
        letters = waiting.rows.to_pylist()
        numbers = sender.bury(letters[0]["topic"], letters, waiting.base)
        reach("relay.appended")
        for number, letter in zip(numbers, letters, strict=True):
            place = f"{letter['topic']}/{letter['partition']} offset {letter['offset']}"
            said = letter["error"].partition("\n")[0]
            logger.warning("flow %s: %s became dead letter %d: %s", self._flow, place, number, said)
        return len(letters)
