"""One log of this process: the parts that work in its directory. Owns the directory's layout, what is opened and closed
in it, and the refusal to work in a forked child. Knows the parts, not what they are used for; `opening` shares it.

    log.db      the index (SQLite)            data/     frames
    lock        turnstile and commit mark     wake/     one file per topic, touched after its commits
    reserve     space for when there is none  keys.db   a cache: which batches may hold a key"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headrace.errors import (
    Closed,
    DiskFull,
    ForkedProcess,
    IndexDamaged,
    LogMissing,
)
from headrace.log.embedded.storage import recovery
from headrace.log.embedded.storage.background import Background
from headrace.log.embedded.storage.clock import Reading, machine_reading
from headrace.log.embedded.storage.committer import Committer, Job
from headrace.log.embedded.storage.datafiles import DataFiles
from headrace.log.embedded.storage.index import Index
from headrace.log.embedded.storage.key_filters import KeyFilters
from headrace.log.embedded.storage.waiting import Wakes
from headrace.storage import disk
from headrace.storage.reserve import Reserve
from headrace.storage.turnstile import Turnstile

Clock = Callable[[], int]
"""Microseconds since the epoch: what records' arrival is stamped with."""


GIVEN = "given"
"""The boot of a log whose caller brings the clock: time is what that clock says, and no other clock contradicts it."""


def _open_index(path: Path, reserve: Reserve) -> Index:
    """SQLite makes two files beside the index when it is opened: on a full disk the reserve has room for them."""
    try:
        return Index(path)
    except DiskFull:
        if not reserve.release():
            raise
        return Index(path)


class Engine:
    """`upkeep` is what its background thread does, and says whether there was anything to do."""

    def __init__(
        self,
        home: Path,
        identity: tuple[int, int],
        *,
        upkeep: Callable[[Engine, Callable[[], bool]], bool],
        create: bool,
        clock_us: Clock | None = None,
    ) -> None:
        self.home, self.identity = home, identity
        self.given_clock_us = clock_us
        self.pid = os.getpid()
        self.users = 0
        self.boot = disk.boot_id()
        self.data = home / "data"
        turnstile = None
        try:
            turnstile = self.turnstile = Turnstile(home / "lock")
            if create and not (home / "log.db").exists():
                self._create()
            if not self.data.is_dir():
                raise LogMissing(path=str(self.data), why="the data files are gone. Restore them from a backup")
            reserve = Reserve(home)
            self.index = _open_index(home / "log.db", reserve)
        except BaseException:
            if turnstile is not None:
                turnstile.close()
            raise
        self.files = DataFiles(self.data, self.index)
        self.wakes = Wakes(home / "wake")
        self.key_filters = KeyFilters(home / "keys.db")
        self.committer = Committer(
            self.index,
            self.files,
            self.turnstile,
            reserve=reserve,
            boot=self.boot,
            wake=self.wakes.wake,
            clock=self.clock,
        )
        self.upkeep_lock = threading.Lock()
        self.background = Background(home, lambda stopped: upkeep(self, stopped))
        self.committer.after_commit = self.background.poke
        self.closed = False
        try:
            recovery.check_index_is_newest(self.index, self.data, self.turnstile, self.boot)
            self._settle()
        except BaseException:
            self.close()
            raise

    def clock(self) -> Reading:
        if self.given_clock_us is None:
            return machine_reading(self.boot)
        now_us = self.given_clock_us()
        return Reading(now_us, GIVEN, now_us)

    def clock_us(self) -> int:
        return self.clock().now_us

    def _settle(self) -> None:
        try:
            recovery.settle(self.index, self.data, self.turnstile, self.committer, self.boot)
        except DiskFull as error:  # reading goes on; the next opening settles
            recovery.logger.warning("%s", error)

    def _create(self) -> None:
        with self.turnstile.writing():
            if (self.home / "log.db").exists():
                return  # somebody else was first
            if self.data.is_dir() and any(self.data.iterdir()):
                raise IndexDamaged(path=str(self.home / "log.db"), why="the index is missing, but there are data files")
            disk.make_directory(self.data)
            disk.make_directory(self.home / "wake")
            Index.create(self.home / "log.db", uuid.uuid4().hex)

    def check(self) -> None:
        """Before anything is done through this engine."""
        if os.getpid() != self.pid:
            raise ForkedProcess(what=f"the log {self.home}")
        if self.closed:
            raise Closed(what=f"the log {self.home}")

    def submit(self, job: Job) -> Future[Any]:
        self.check()
        return self.committer.submit(job)

    def close(self) -> None:
        if self.closed or os.getpid() != self.pid:
            return
        self.background.stop()
        self.closed = True
        try:
            self.committer.close()
        finally:
            self.wakes.close()
            self.files.close()
            self.index.close()
            self.turnstile.close()
