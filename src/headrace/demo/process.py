"""The worker process as the story sees it: started, listened to, asked, killed. Owns the process and all that it
started; ends them when its `with` block ends. The home and the folder it may litter are its caller's."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_SECONDS = 120.0
GONE_SECONDS = 5.0
QUICK_START = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For a JVM that lives for seconds: compile little, and leave no file in /tmp."""


class NotSo(Exception):
    """Something the story promised did not happen."""


class WorkerFailed(NotSo):
    """The worker said why it cannot go on."""


class Worker:
    def __init__(self, home: Path, litter: Path, *batch_rows: int) -> None:
        options = f'{QUICK_START} -Djava.io.tmpdir="{litter}" {os.environ.get("JAVA_TOOL_OPTIONS", "")}'
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.demo.worker", str(home), *map(str, batch_rows)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(litter), "SPARK_LOCAL_DIRS": str(litter), "JAVA_TOOL_OPTIONS": options},
            start_new_session=True,  # Ctrl-C is for the story, which ends its worker; and what it started dies with it
        )
        self.pid, self._killed = self._process.pid, False
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._said.put(json.loads(line))
        self._said.put(None)

    def hear(self, word: str) -> dict[str, Any]:
        """What the worker says next, which must have `word`."""
        try:
            said = self._said.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise NotSo(f"the worker did not say {word!r} within {PATIENCE_SECONDS:g} s") from None
        if said is None:
            raise WorkerFailed(f"the worker process ended with exit code {self._process.wait()}")
        if "error" in said:
            raise WorkerFailed(said["error"])
        if word not in said:
            raise NotSo(f"the worker said {said}, not {word!r}")
        return said

    def check_alive(self) -> None:
        """Raises what the worker has to say, if it failed."""
        if not self._said.empty():
            self.hear("nothing")

    def audit(self) -> dict[str, Any]:
        """The views, recomputed by the worker."""
        return self._ask("audit", "differences")

    def status(self) -> dict[str, dict[str, Any]]:
        """How each flow does, by name, as `app.status()` says it."""
        found: dict[str, dict[str, Any]] = self._ask("status", "flows")["flows"]
        return found

    def _ask(self, question: str, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self.hear(word)

    def kill(self) -> None:
        """SIGKILL, for the process and its JVM: as if the machine were gone. Returns when the process is."""
        if not self._killed:  # once: later the number may be somebody else's
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def _until_all_is_gone(self) -> None:
        """The JVM too."""
        limit = time.monotonic() + GONE_SECONDS
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < limit:
                os.killpg(self.pid, 0)
                time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._until_all_is_gone()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()


@contextmanager
def every(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Inside, it is done again and again, in a thread that ends with the block."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
