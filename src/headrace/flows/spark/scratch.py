"""Small files through which a plan, made once, is told what to read. Owns their names and their end: each goes with its
owner, and those of a process that was killed go when the next one makes its first. A file in use is locked."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
import weakref
from pathlib import Path

PREFIX, SUFFIX = "headrace-", ".told"


def scratch_file(owner: object) -> str:
    """A new, empty file that lasts as long as its owner."""
    _sweep()
    file, path = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX)
    fcntl.flock(file, fcntl.LOCK_SH)
    weakref.finalize(owner, _end, file, path, os.getpid())
    return path


def _end(file: int, path: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends without taking what is its parent's
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.close(file)


@functools.cache
def _sweep() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*{SUFFIX}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it
            path.unlink()
