"""The home that is served: its log and its views. Owns the handle on the log, which is opened when there is one, and
the threads in which it is read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread

from headrace.errors import HeadraceError, LogMissing
from headrace.log.contract import Log
from headrace.log.open import open_address
from headrace.views.open import open_queries, open_views
from headrace.views.reading import Bounds

if TYPE_CHECKING:
    from headrace.flows.status import FlowStatus

Result = TypeVar("Result")

READERS, READERS_WAITING_MAX = 8, 200
ROWS = 4
QUERIES = 4
SNAPSHOTS = 2


class Home:
    """`flows`: how the flows of this process do; None if none run. `views`: where the views are, `log`: the log's
    address; None: in there. `beside`: the captures and sinks of this process, by
    lock: the state of each, and what is wrong with it."""

    def __init__(
        self,
        path: Path,
        flows: Callable[[], list[FlowStatus]] | None = None,
        views: str | Path | None = None,
        log: str | None = None,
        beside: Callable[[], dict[str, tuple[str, str]]] = dict,
    ) -> None:
        self.path, self.flows, self.beside = path, flows, beside
        self._log_at: str | Path = path if log is None else log
        self.views = open_views(path if views is None else views)
        self.queries = open_queries(path if views is None else views)
        self.closing = threading.Event()
        self._log: Log | None = None
        self._lock = threading.Lock()
        self._readers, self._rows = anyio.CapacityLimiter(READERS), anyio.CapacityLimiter(ROWS)
        self._queries, self._querying = anyio.CapacityLimiter(QUERIES), 0
        self.snapshots = anyio.CapacityLimiter(SNAPSHOTS)

    def bounds(self, **less: Any) -> Bounds:
        """What a query may take; it ends when the server does."""
        return Bounds(stop=self.closing.is_set, **less)

    # -- the log -----------------------------------------------------------------------------------

    def log(self) -> Log:
        """LogMissing while there is none."""
        with self._lock:
            if self._log is None or not self._log.in_place:  # removed, or replaced by another
                self._forget()
                self._log = open_address(self._log_at, create=False)
            return self._log

    def log_if_any(self) -> Log | None:
        try:
            return self.log()
        except LogMissing:
            return None

    def _forget(self) -> None:
        if self._log is not None:
            with contextlib.suppress(HeadraceError):
                self._log.close()
            self._log = None

    def close(self) -> None:
        self.closing.set()
        self.queries.close()
        with self._lock:
            self._forget()

    # -- threads -----------------------------------------------------------------------------------

    async def read(self, work: Callable[[], Result]) -> Result:
        """In a thread, soon: for what takes milliseconds."""
        return await self._in_turn(work, self._readers)

    async def rows(self, work: Callable[[], Result]) -> Result:
        """In a thread, after others: for what takes longer, and is asked by all who look at a view, at each commit."""
        return await self._in_turn(work, self._rows)

    async def _in_turn(self, work: Callable[[], Result], limiter: anyio.CapacityLimiter) -> Result:
        if limiter.statistics().tasks_waiting >= READERS_WAITING_MAX:
            raise Busy(what="readers", limit=READERS_WAITING_MAX)
        return await anyio.to_thread.run_sync(work, limiter=limiter)

    async def query(self, work: Callable[[], Result]) -> Result:
        """In a thread, now or not at all: for somebody's SQL, which may take seconds."""
        if self._querying >= QUERIES:
            raise Busy(what="queries", limit=QUERIES)
        self._querying += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._queries)
        finally:
            self._querying -= 1


class Busy(HeadraceError):
    """The server has as much to do as it takes on; nothing was done."""

    def __init__(self, what: str, limit: int) -> None:
        self.what, self.limit = what, limit

    def __str__(self) -> str:
        return f"the server is at its limit of {self.limit} {self.what}. Try again in a moment."
