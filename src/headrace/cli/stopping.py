"""How a command is stopped from outside: Ctrl-C, SIGTERM, and a reader that went away. Owns the exception each becomes
in the main thread, so that `with` blocks end as they should: members leave their groups, transactions are abandoned;
and the flag that is raised in its place for commands that end what they have begun."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM. Not an Exception: nothing but the way out may catch it."""


class ReaderGone(BaseException):
    """Nobody reads standard output any more."""


class Stopping(threading.Event):
    """Set when the command is asked to stop. `interrupted`: by Ctrl-C."""

    interrupted = False

    def tell(self) -> None:
        """At an orderly end: exit code 130 after Ctrl-C, 0 after SIGTERM."""
        if self.interrupted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def stoppable() -> Iterator[Stopping]:
    """Set by Ctrl-C or SIGTERM; a second Ctrl-C does not wait for anybody."""
    stopping = Stopping()

    def stop(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if stopping.is_set():
                raise KeyboardInterrupt
            stopping.interrupted = True
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_reader_gone = threading.Event()


def terminated(_number: int, _frame: FrameType | None) -> None:
    raise ReaderGone if _reader_gone.is_set() else Terminated


def watch_reader() -> None:
    """Stops the command when the reader of a pipe goes away, even while there is nothing to write. For commands that
    wait: `consume --follow | head -1` ends with head, not with the next record."""
    try:
        fd = sys.stdout.fileno()
        piped = os.isatty(fd) is False and signal.getsignal(signal.SIGTERM) is terminated
    except (OSError, ValueError):
        return
    if piped:
        threading.Thread(target=_wait_for_end, args=(fd, threading.main_thread().ident), daemon=True).start()


def _wait_for_end(fd: int, main: int | None) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # errors and hang-ups are always told
    try:
        events = poll.poll()
    except OSError:
        return
    if main is not None and any(flags & (select.POLLERR | select.POLLHUP) for _, flags in events):
        _reader_gone.set()
        signal.pthread_kill(main, signal.SIGTERM)
