"""A cheap future for one row among thousands. A `concurrent.futures.Future` creates a lock and a condition, and takes
them to be resolved, which costs more than storing the row. Most futures are done before a caller waits for them; these
create their condition only when a caller waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_making = threading.Lock()
"""Held while a condition is made, and while futures without one are resolved: so nobody waits on one too late."""


class LazyFuture(Future[T], Generic[T]):
    """A Future in every respect. Whatever waits, cancels, asks or adds a callback goes through `_condition`."""

    __slots__ = ("_done_callbacks", "_exception", "_made", "_result", "_state", "_waiters")

    def __init__(self) -> None:  # what Future.__init__ does; the rest is made with the condition
        self._made: threading.Condition | None = None
        self._state = "PENDING"
        self._result: Any = None
        self._exception: BaseException | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _making:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._made = threading.Condition()
        return self._made

    def done(self) -> bool:
        return self._state in _DONE

    def result(self, timeout: float | None = None) -> T:
        if self._state == "FINISHED" and self._exception is None:  # set last, so the result is there
            result: T = self._result
            return result
        return super().result(timeout)


_DONE = frozenset({"CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED"})


def resolve(futures: Iterable[LazyFuture[T]], outcome: T | Exception) -> None:
    """Gives all of them the result, or the error; those that were cancelled stay so."""
    watched = []
    failed = isinstance(outcome, Exception)
    with _making:
        for future in futures:
            if future._made is not None:
                watched.append(future)
            elif failed:
                future._exception, future._state = outcome, "FINISHED"  # type: ignore[assignment]
            else:
                future._result, future._state = outcome, "FINISHED"
    for future in watched:
        if future.set_running_or_notify_cancel():
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _renew_in_child() -> None:
    """Another thread may have held it when the process was forked, and is not there to let go."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_renew_in_child)
