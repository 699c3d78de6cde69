"""Upkeep in the background: one thread of each process that writes, woken when much has come, and now and then. Owns
the schedule; `upkeep` does the work. No caller waits for it, and the first of all processes does it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.errors import Closed

PERIOD_SECONDS = 60.0
PAUSE_SECONDS = 1.0

logger = logging.getLogger("headrace.log")


class Background:
    """`once` does what is due, and returns whether there was anything to do; its argument says whether to stop."""

    def __init__(self, home: Path, once: Callable[[Callable[[], bool]], bool]) -> None:
        self._home, self._once = home, once
        self._due = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def poke(self, due: bool) -> None:
        """After a commit; `due` when there is something to do."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stop.is_set():
                    self._thread = threading.Thread(target=self._run, name="headrace-upkeep", daemon=True)
                    self._thread.start()
        if due:
            self._due.set()

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._stop.is_set():
            self._due.wait(timeout=PERIOD_SECONDS)
            if self._stop.is_set():
                return
            self._due.clear()
            done = False
            try:
                done = self._once(self._stop.is_set)
            except Closed:
                return
            except Exception as error:  # the next run tries again; nobody waits for this one
                logger.warning("upkeep of %s: %s", self._home, error)
            # What looks due and cannot be done (small batches with large ones between them, damage) stays due.
            pause = PAUSE_SECONDS if done else min(2 * pause, PERIOD_SECONDS)
            self._stop.wait(pause)

    def check(self) -> None:
        """Between the steps of what may take long: when the thread of this is asked to stop, it ends here."""
        if self._stop.is_set() and threading.current_thread() is self._thread:
            raise Closed(what=f"the log {self._home}")

    def stop(self) -> None:
        """Lets a step that runs finish."""
        with self._lock:
            self._stop.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()
