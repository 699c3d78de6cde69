"""Work in a thread of its own that goes on until it is stopped, and is tried again after what passes. Owns the thread,
the pauses between attempts, and what is wrong just now. Knows nothing of the work."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from headrace.errors import DiskFull, HeadraceError, KafkaFailed, TopicFull

__all__ = ["RetryingThread", "log_may_recover"]

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 30.0
STEADY_SECONDS = 60.0
"""An attempt that lasted so long was no failed one: the pauses begin anew."""


def log_may_recover(error: HeadraceError) -> bool:
    """Whether it is the log's, and may be gone later: a broker is away, there is no room."""
    return isinstance(error, DiskFull | TopicFull) or (isinstance(error, KafkaFailed) and error.retriable)


class RetryingThread:
    """Runs `work` until it returns. It asks `is_stopping` again and again, and says `is_well` when it works. `passes`:
    whether an error may be gone later; any other ends the thread, and is `error`. `retrying`: what its state is called
    meanwhile."""

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        passes: Callable[[HeadraceError], bool],
        *,
        logger: logging.Logger,
        retrying: str = "retrying",
    ) -> None:
        self._name, self._work, self._passes = name, work, passes
        self._logger, self._retrying = logger, retrying
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name.replace(" ", "-"), daemon=True)
        self.error: BaseException | None = None
        self.trouble = ""
        """What is wrong just now, while it is tried again."""
        self.restarts = 0

    @property
    def state(self) -> str:
        if self.error is not None:
            return "failed"
        if not self._thread.is_alive():
            return "stopped"
        return self._retrying if self.trouble else "running"

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends it after what it is doing. True if it has ended."""
        self._stopping.set()
        return self.join(timeout)

    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def pause(self, seconds: float) -> None:
        """For the work: waits, unless it is to stop."""
        self._stopping.wait(seconds)

    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def is_well(self) -> None:
        """For the work: whatever was wrong has passed."""
        self.trouble = ""

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                self._work()
                return
            except HeadraceError as error:
                if not self._passes(error):
                    self.error = error
                    self._logger.error("%s: %s", self._name, error)
                    return
                self.trouble = str(error)
                self.restarts += 1
                if time.monotonic() - begun > STEADY_SECONDS:
                    pause = PAUSE_SECONDS
                self._logger.warning("%s. Trying again in %.1f seconds", error, pause)
                self._stopping.wait(pause * random.uniform(0.8, 1.2))  # not all at once
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            except BaseException as error:
                self.error = error
                self._logger.exception("%s", self._name)
                return
