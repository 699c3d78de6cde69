"""Who runs a flow whose store several homes share: a lease for each flow, by the database's clock. Owns the table
`_leases`, and a thread that renews what this store holds. A lease says who is alive, and no more: who lost one without
knowing it is refused by the flow's row, like anybody whose epoch is over.

The names of flows and of runners (`~runners/APP/…`) are in one table: no flow's name begins with `~`."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable

from headrace.errors import AlreadyRunning, HeadraceError
from headrace.views.postgres.address import Address
from headrace.views.postgres.connections import pool_of

__all__ = ["LEASE_SECONDS", "Leases"]

LEASE_SECONDS = 6.0
"""So long after its holder's last sign a flow can be had."""
BEATS = 4
"""So often in that time the holder gives one."""
LOOK_AGAIN_SECONDS = 0.3
_ENDS = "clock_timestamp() + $1 * interval '1 second'"
_TAKE = (
    f"INSERT INTO _leases AS l VALUES ($2, $3, $4, $5, {_ENDS}) ON CONFLICT (name) DO UPDATE SET holder = $3, "
    "pid = $4, host = $5, ends_at = excluded.ends_at "
    "WHERE l.holder = $3 OR l.ends_at <= clock_timestamp() OR $6 RETURNING 1"
)


class Leases:
    """Those of one store object. Not inherited by a forked child: it holds none."""

    def __init__(self, address: Address) -> None:
        self._pool, self._pid = pool_of(address), os.getpid()
        self._holder = uuid.uuid4().hex
        self._held: set[str] = set()
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, name: str, *, wait: Callable[[], bool] | None = None, take_over: bool = False) -> None:
        """AlreadyRunning while somebody else holds it; or waits, as long as `wait()` says so; or takes it away."""
        while not self._granted(name, take_over=take_over):
            if wait is None or not wait():
                pid, host = self._holder_of(name)
                raise AlreadyRunning(flow=name, pid=pid, host=host)
            time.sleep(LOOK_AGAIN_SECONDS)
        with self._lock:
            self._held.add(name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renewing, name="headrace-leases", daemon=True)
                self._thread.start()

    def _granted(self, name: str, *, take_over: bool) -> bool:
        given = [LEASE_SECONDS, name, self._holder, os.getpid(), socket.gethostname(), take_over]
        with self._pool.writing() as db:
            return db.run(_TAKE, given).fetchone() is not None

    def _holder_of(self, name: str) -> tuple[int, str]:
        with self._pool.reading() as db:
            found = db.run("SELECT pid, host FROM _leases WHERE name = $1", [name]).fetchone()
        return found or (0, "an unknown host")

    def is_held(self, name: str) -> bool:
        """Whether another holds it."""
        with self._pool.reading() as db:
            sql = "SELECT 1 FROM _leases WHERE name = $1 AND holder <> $2 AND ends_at > clock_timestamp()"
            return db.run(sql, [name, self._holder]).fetchone() is not None

    def names(self, prefix: str) -> list[str]:
        """Of the leases that somebody holds, those that begin so."""
        with self._pool.reading() as db:
            sql = "SELECT name FROM _leases WHERE starts_with(name, $1) AND ends_at > clock_timestamp()"
            return [name for (name,) in db.run(sql, [prefix]).fetchall()]

    def release(self, name: str) -> None:
        """At once, for whoever waits; if the database cannot be reached, it runs out."""
        with self._lock:
            self._held.discard(name)
        if os.getpid() == self._pid:
            with contextlib.suppress(HeadraceError), self._pool.writing() as db:
                db.run("DELETE FROM _leases WHERE name = $1 AND holder = $2", [name, self._holder])

    def _renewing(self) -> None:
        while not self._end.wait(LEASE_SECONDS / BEATS):
            with self._lock:
                names = sorted(self._held)
            renew = f"UPDATE _leases SET ends_at = {_ENDS} WHERE name = ANY($2) AND holder = $3"
            with contextlib.suppress(HeadraceError), self._pool.writing() as db:
                db.run(renew, [LEASE_SECONDS, names, self._holder])
                db.run("DELETE FROM _leases WHERE ends_at < clock_timestamp() - interval '1 day'")

    def close(self) -> None:
        self._end.set()
        for name in list(self._held):
            self.release(name)
