"""How a command is stopped from outside: SIGTERM, and a reader that went away. Owns the exception both become in
the main thread, so that `with` blocks end as they should: members leave their groups, transactions are abandoned."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from types import FrameType

EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM. Not an Exception: nothing but the way out may catch it."""


class ReaderGone(BaseException):
    """Nobody reads standard output any more."""


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
