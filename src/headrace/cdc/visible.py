"""What a snapshot has seen: which transactions of the stream a row that was copied already contains. Pure.

A chunk that is copied after the stream's beginning overlaps it. In Postgres, which changes are in the chunk is no
question of LSNs: a transaction becomes visible after its commit was written. Postgres says it exactly:
`pg_current_snapshot()`. Databases whose snapshots say where they are in the log need no more than that."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Seen"]

_WRAP = 1 << 32


@dataclass(frozen=True)
class Seen:
    """A snapshot. `until`: the end of the log when it was taken; what commits later is not in it. `snapshot`: Postgres'
    `xmin:xmax:xip,…`; "" where all that was committed before `until` is in it."""

    snapshot: str
    until: int

    def has(self, xid: int, end: int) -> bool:
        """Whether the transaction, whose commit ends there, is in the snapshot. `xid` has 32 bits, as in the stream."""
        if end > self.until or not self.snapshot:
            return end <= self.until
        low, high, running = self._parsed()
        distance = (xid - high) % _WRAP
        if distance < _WRAP // 2:  # not begun when the snapshot was taken
            return False
        return (xid - low) % _WRAP >= _WRAP // 2 or xid not in running

    def _parsed(self) -> tuple[int, int, frozenset[int]]:
        low, high, running = self.snapshot.split(":")
        return int(low) % _WRAP, int(high) % _WRAP, frozenset(int(x) % _WRAP for x in running.split(",") if x)
