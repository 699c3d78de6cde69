"""Wake-ups for those who watch views in Postgres: NOTIFY after the commit, on another connection, without payload, and
at most one each 50 ms for a view. They make watching quick; looking at the tables makes it right."""

from __future__ import annotations

import contextlib
import hashlib
import threading

from headrace.errors import HeadraceError
from headrace.views.postgres.address import Address
from headrace.views.postgres.connections import pool_of

__all__ = ["Waker", "channel"]

APART_SECONDS = 0.05


def channel(address: Address, view: str) -> str:
    return f"headrace_{hashlib.sha256(f'{address.schema}/{view}'.encode()).hexdigest()[:24]}"


class Waker:
    """A thread, from the first wake-up on, so that no commit waits for it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._views: set[str] = set()
        self._news = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self, view: str) -> None:
        with self._news:
            self._views.add(view)
            if self._thread is None:
                self._thread = threading.Thread(target=self._waking, name="headrace-notify", daemon=True)
                self._thread.start()
            self._news.notify()

    def _waking(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: bool(self._views) or self._closed)
                views, self._views = self._views, set()
                if not views:
                    return
            self._notify(views)
            with self._news:
                self._news.wait_for(lambda: self._closed, APART_SECONDS)

    def _notify(self, views: set[str]) -> None:
        """Failing to is no failure: who watches also looks by itself."""
        with contextlib.suppress(HeadraceError), pool_of(self._address).writing() as db:
            for view in sorted(views):
                db.run(f"NOTIFY {channel(self._address, view)}")

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify()
