"""What an app runs beside its flows, each in a thread of its own: captures, process managers, sinks. Owns the thread's
life, and the lock by which one process of a home does it. Knows nothing of the work."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from headrace.errors import Closed, InvalidArgument
from headrace.names import check_name
from headrace.retrying import RetryingThread
from headrace.views.owner import FlowLock

if TYPE_CHECKING:
    from headrace.app import App

__all__ = ["AllBeside", "Beside"]

STOP_SECONDS = 30.0
Kind = TypeVar("Kind", bound="Beside")


class Beside(abc.ABC):
    """Something that `app.run()`, `app.start()` and `app.drain()` also run."""

    kind: ClassVar[str]
    behind: ClassVar[bool] = False
    """Whether it takes what flows have made; others bring what flows read."""
    makes_work: ClassVar[bool] = False
    """Whether what it does may be something to do for others of its kind."""

    def __init__(self, app: App, name: str) -> None:
        self.app, self.name = app, check_name(name, argument="name")
        self._thread: RetryingThread | None = None
        self._lock: FlowLock | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} of {self.app!r}>"

    @abc.abstractmethod
    def _new_thread(self) -> RetryingThread: ...

    @abc.abstractmethod
    def _drain(self) -> int:
        """Does all there is to do now; how much that was."""

    def check(self) -> None:
        """Raises what can be known to be wrong with it before it runs."""
        return

    @property
    def waits(self) -> str:
        """What it waits for that may never come; nothing if that is empty."""
        return ""

    @classmethod
    def lock_name(cls, name: str) -> str:
        """The lock of the one of that name."""
        return f"{cls.kind.replace(' ', '-')}/{name}"

    @property
    def state(self) -> str:
        """Of this process: "running", "failed", "stopped", or what its state is called while it is tried again."""
        return "stopped" if self._thread is None else self._thread.state

    @property
    def error(self) -> str:
        """What is wrong with it, in this process; nothing if that is empty."""
        if self._thread is None:
            return ""
        return str(self._thread.error) if self._thread.error is not None else self._thread.trouble

    def drain(self) -> int:
        """Does all there is to do now, and returns how much that was. For an app that does not run."""
        if self._is_active():
            raise InvalidArgument("drain", "", f"{self.kind} {self.name!r} is running: stop() the app first")
        self.app._open_log()  # a directory with a lock, and no log yet, would not be taken for a home
        with self.locked(self.app.home, self.name):
            return self._drain()

    def start(self, *, wait: Callable[[], bool] | None = None, take_over: bool = False) -> None:
        """Runs in the background; AlreadyRunning if another process of the home runs it."""
        if self._is_active():
            return
        self.app._open_log()
        if self._lock is None:
            lock = FlowLock(self.app.home, self.lock_name(self.name))
            lock.take(wait=wait, take_over=take_over)
            self._lock = lock
        self._thread = self._new_thread()
        self._thread.start()

    def stop(self) -> None:
        """Ends after what is being done."""
        if self._thread is not None and not self._thread.stop(STOP_SECONDS):
            raise Closed(what=f"{self.kind} {self.name!r}, which does not end: what it does takes long")
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def wait(self, seconds: float) -> bool:
        """Until it has ended, or for so long. Raises what ended it. True if it has ended."""
        if self._thread is None:
            return True
        ended = self._thread.join(seconds)
        if ended and self._thread.error is not None:
            raise self._thread.error
        return ended

    @classmethod
    @contextlib.contextmanager
    def locked(cls, home: Path, name: str) -> Iterator[None]:
        """While this process does it, no other of the home does."""
        lock = FlowLock(home, cls.lock_name(name))
        lock.take()
        try:
            yield
        finally:
            lock.release()

    def _is_active(self) -> bool:
        return self._thread is not None and self._thread.state not in ("stopped", "failed")


class AllBeside:
    """All that an app runs beside its flows."""

    def __init__(self) -> None:
        self._by_lock: dict[str, Beside] = {}

    def put(self, made: Kind, *, again: bool) -> Kind:
        """Takes it in. `again`: in place of one of that name, as in a notebook."""
        lock = made.lock_name(made.name)
        if (known := self._by_lock.get(lock)) is not None:
            if not again:
                raise InvalidArgument("name", made.name, f"the app has a {made.kind} of that name: choose another")
            known.stop()
        self._by_lock[lock] = made
        return made

    def __iter__(self) -> Iterator[Beside]:
        yield from (*self.of(behind=False), *self.of(behind=True))

    def __bool__(self) -> bool:
        return bool(self._by_lock)

    def of(self, *, behind: bool) -> list[Beside]:
        """Those that bring what flows read; or those behind the flows."""
        return [each for each in self._by_lock.values() if each.behind is behind]

    def kinds(self) -> list[str]:
        """The kind of each."""
        return [each.kind for each in self]

    def start(
        self, *, behind: bool, wait: Callable[[], bool] | None, take_over: bool, ignore: tuple[type[Exception], ...]
    ) -> None:
        """Starts those before or behind the flows, but not those that raise one of `ignore`."""
        for each in self.of(behind=behind):
            with contextlib.suppress(*ignore):
                each.start(wait=wait, take_over=take_over)

    def stop(self, *, behind: bool) -> None:
        for each in self.of(behind=behind):
            each.stop()

    def drain(self, *, behind: bool) -> int:
        """Those that make work for each other come last, until none has any."""
        every = self.of(behind=behind)
        total = sum(each.drain() for each in every if not each.makes_work)
        while done := sum(each.drain() for each in every if each.makes_work):
            total += done
        return total

    def states(self) -> dict[str, tuple[str, str]]:
        """The state of each in this process, and what is wrong with it; by the name of its lock."""
        return {lock: (each.state, each.error) for lock, each in self._by_lock.items()}

    def wait(self, flows: Callable[[float], bool] | None, timeout: float | None) -> bool:
        """Until all of it and the flows have ended, or for `timeout` seconds; the first error of one is raised."""
        limit = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 0.1 if limit is None else max(0.0, min(0.1, limit - time.monotonic()))
            going = [each for each in self if not each.wait(0)]
            done = flows(left) if flows is not None else None
            if not going and done is not False:
                return True
            if limit is not None and time.monotonic() >= limit:
                return False
            if done is None:
                going[0].wait(left)
