"""Waiting for news, without polling: a file per topic is touched after each of its commits, and one thread per
process watches the folder. Owns the folder `wake`. A wake-up is a hint to look, never a fact: whoever is woken
reads the index, and whoever looks before waiting misses nothing."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.storage import disk

DEBOUNCE_MS = 2
logger = logging.getLogger("headrace.log")

LOOK_ANYWAY_SECONDS = 5.0
"""Should a notification ever be lost (a full inotify queue), nobody sleeps longer than this."""


class Wakes:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._counts: dict[str, int] = {}
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()

    def wake(self, topics: set[str]) -> None:
        """After a commit: tells the waiters of this process and of all others."""
        for topic in topics:
            self._touch(topic)
        self._notify(topics)

    def _touch(self, topic: str) -> None:
        path = f"{self._folder}/{topic}"
        try:
            try:
                os.utime(path, follow_symlinks=False)
            except FileNotFoundError:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, disk.FILE_MODE))
        except OSError:  # a hint that cannot be given must not fail a commit that is done
            pass

    def _notify(self, topics: set[str]) -> None:
        with self._changed:
            for topic in topics:
                self._counts[topic] = self._counts.get(topic, 0) + 1
            self._changed.notify_all()

    def stir(self, topic: str) -> None:
        """Wakes the waiters of this process only."""
        self._notify({topic})

    def count(self, topic: str) -> int:
        """Take it before looking; give it to `wait` when there was nothing to see."""
        self._watch()
        return self._counts.get(topic, 0)

    def wait(self, topic: str, seen: int, timeout: float | None) -> bool:
        """Until there is news since `seen`, or for `timeout` seconds. True: look again."""
        return self.wait_any({topic: seen}, timeout)

    def wait_any(self, seen: Mapping[str, int], timeout: float | None) -> bool:
        """The same for several topics: until one has news."""
        limit = LOOK_ANYWAY_SECONDS if timeout is None else min(timeout, LOOK_ANYWAY_SECONDS)
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    any(self._counts.get(topic, 0) != count for topic, count in seen.items()) or self._stop.is_set()
                ),
                timeout=max(limit, 0),
            )

    def _watch(self) -> None:
        if self._watcher is None:
            with self._changed:
                if self._watcher is None:
                    watcher = threading.Thread(target=self._run, name="headrace-wakes", daemon=True)
                    watcher.start()  # may be interrupted, by Ctrl-C or a reader that is gone
                    self._watcher = watcher
        self._ready.wait(timeout=2)

    def _run(self) -> None:
        try:
            self._look_out()
        except Exception as error:  # no inotify left, say: waiters then look every few seconds
            logger.warning(
                "changes of %s cannot be watched (%s): followers may be late by seconds", self._folder, error
            )
        finally:
            self._ready.set()

    def _look_out(self) -> None:
        from watchfiles import watch

        os.makedirs(self._folder, mode=disk.DIRECTORY_MODE, exist_ok=True)
        changes = watch(
            self._folder,
            watch_filter=None,
            debounce=DEBOUNCE_MS,
            step=1,
            rust_timeout=1000,
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=False,
        )
        # The first yield comes only with a change or a time-out: one touch of our own says that the watch is set.
        starter = threading.Thread(target=self._until_ready, daemon=True)
        starter.start()
        for found in changes:
            self._ready.set()
            topics = {os.path.basename(path) for _, path in found}
            if topics:
                self._notify(topics)

    def _until_ready(self) -> None:
        while not self._ready.is_set() and not self._stop.is_set():
            self._touch(".ready")
            time.sleep(0.002)

    def close(self) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._watcher is not None:
            self._watcher.join(timeout=2)
