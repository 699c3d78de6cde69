"""Where Spark writes records on their way: shuffles, spills, what goes to Python. Owns `spark/` in the home: a
directory for each process that has a session, which nobody else may enter, and which is locked as long as the process
lives. What a process leaves is removed when the next makes its own."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.storage import disk

FOLDER = "spark"
OURS = re.compile(r"\d+-\w{8}")
"""The names that `make` gives: whatever else lies there is the user's."""
_held: list[int] = []
"""Locks of this process. They end with it."""


def make(home: Path, *, outlives_home: bool = False) -> Path:
    """A new directory for this process. It is with the system's temporary files, and goes with the process, where the
    session may outlive the home, and where the home has a comma in its name: Spark takes a list with commas."""
    folder = home.absolute() / FOLDER
    if outlives_home or "," in str(folder):
        made = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        return made
    with disk.typed(folder):
        folder.mkdir(mode=disk.DIRECTORY_MODE, exist_ok=True)
        with _alone(folder):
            for left in folder.iterdir():
                if OURS.fullmatch(left.name):
                    _remove_left(left)
            made = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))
            _held.append(_locked(made))
    return made


def remove_left(home: Path) -> list[Path]:
    """Removes what processes that ended have left; returns what others still use."""
    folder = home.absolute() / FOLDER
    if not folder.is_dir():
        return []
    with _alone(folder):
        found = [each for each in folder.iterdir() if OURS.fullmatch(each.name)]
        for each in found:
            _remove_left(each)
    return [each for each in found if each.exists()]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A directory that is made and not locked yet must not be taken for one that was left."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _locked(path: Path) -> int:
    """BlockingIOError if a process has it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _remove_left(path: Path) -> None:
    with contextlib.suppress(OSError):
        fd = _locked(path)
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)
