"""Child processes that acknowledge facts and may be killed at any moment. Owns starting, listening,
signalling and ending them. Does not know what they do. A fact the parent has read was acknowledged
before the child died, whenever that was; no process outlives its `Children`.

    def appender(path: str, count: int) -> None:          # at the top level of a module
        for i in range(count):
            ...
            ack(i)                                        # one line of JSON on standard output

    child = children.start(appender, str(tmp_path), 1000)
    child.next(); child.kill(); facts = child.rest()
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.faults.nursery import Forked, Nursery, die_with, python_path

__all__ = ["Child", "ChildEnded", "Children", "ack", "hear"]

_MAIN = "from tests.faults.children import _main; _main()"


# -- in the child ------------------------------------------------------------------------------------


def ack(fact: Any) -> None:
    """Tell the parent a fact (JSON). One write of at most PIPE_BUF bytes: the parent reads all of it or nothing."""
    line = json.dumps(fact).encode() + b"\n"
    assert len(line) <= select.PIPE_BUF, f"a fact of {len(line)} bytes could be torn"
    os.write(1, line)


def hear() -> Any:
    """Wait for what the parent says next (`Child.tell`)."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the parent is gone")
    return json.loads(line)


def _main() -> None:
    parent, module, function, args = json.loads(sys.argv[1])
    if parent:
        die_with(parent)  # a test run that is itself killed takes its children with it
    getattr(importlib.import_module(module), function)(*args)


# -- in the parent -----------------------------------------------------------------------------------


class ChildEnded(AssertionError):
    """The child ended while the parent waited for a fact."""


class Child:
    """One process (and its own children: signals go to the whole group)."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], env: Mapping[str, str]) -> None:
        self.name = f"{target.__module__}.{target.__qualname__}"
        self.facts: list[Any] = []
        self._unread = b""
        self._open = True
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        env = {**os.environ, "PYTHONPATH": python_path(), **env}
        nursery = Nursery.found(env.get("LD_PRELOAD", ""))
        self.process: subprocess.Popen[bytes] | Forked
        if nursery is not None:
            start = (target.__module__, target.__qualname__, args)
            self.process = nursery.start(*start, stderr=self._stderr.fileno(), env=env)
            return
        # The death signal follows the thread that started the child, so only the main thread may ask for it.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps([parent, target.__module__, target.__qualname__, args])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=env,
            start_new_session=True,
        )

    @property
    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def tell(self, fact: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fact).encode() + b"\n")
        self.process.stdin.flush()

    def next(self, timeout: float = 30) -> Any:
        """The next fact. Raises ChildEnded when there is none to come, TimeoutError when it does not come."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._unread:
            if not self._read(deadline):
                raise ChildEnded(f"{self.name} ended with {self._ended()} after {len(self.facts)} facts\n{self.stderr}")
        line, self._unread = self._unread.split(b"\n", 1)
        self.facts.append(json.loads(line))
        return self.facts[-1]

    def rest(self, timeout: float = 30) -> list[Any]:
        """All facts, those read before included, once the child has ended by itself or was killed."""
        deadline = time.monotonic() + timeout
        while self._read(deadline):
            pass
        lines = self._unread.split(b"\n")
        assert lines[-1] == b"", f"half a fact: {lines[-1]!r}"
        self._unread = b""
        self.facts += [json.loads(line) for line in lines[:-1]]
        return self.facts

    def finish(self, timeout: float = 30) -> list[Any]:
        """All facts of a child that must end well."""
        facts = self.rest(timeout)
        code = self.wait(timeout)
        assert code == 0, f"{self.name} ended with {code}\n{self.stderr}"
        return facts

    def wait(self, timeout: float = 30) -> int:
        """The exit code; -9 after SIGKILL. Reads on meanwhile, so that a full pipe never holds the child up."""
        self.rest(timeout)
        return self._ended()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone. What it acknowledged before can still be read."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self._ended()

    def stop(self) -> None:
        """SIGSTOP; returns when all its threads stand still."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        self._waitid(os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill whatever is left of the group, and let go of pipes and files."""
        if self.process.returncode is not None:
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self._stderr.close()

    def _ended(self) -> int:
        # Only close() reaps: until then no other process can get this id, so signals never hit a stranger.
        code, status = self._waitid(os.WEXITED | os.WNOWAIT)
        return status if code == os.CLD_EXITED else -status

    def _waitid(self, flags: int) -> tuple[int, int]:
        if isinstance(self.process, Forked):
            return self.process.waitid(flags)
        found = os.waitid(os.P_PID, self.process.pid, flags)
        assert found is not None
        return found.si_code, found.si_status

    def _read(self, deadline: float) -> bool:
        """Read what there is, waiting for it; False at the end."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        if not self._open:
            return False
        remaining = max(deadline - time.monotonic(), 0)  # what is there is read, however late it is
        if not select.select([fd], [], [], remaining)[0]:
            raise TimeoutError(f"{self.name} said nothing in time, after {len(self.facts)} facts\n{self.stderr}")
        data = os.read(fd, 1 << 16)
        self._unread += data
        self._open = bool(data)
        return self._open


class Children:
    """Every child a test starts; `close` leaves none behind. Tests take it as the fixture `children`."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    def start(self, target: Callable[..., None], *args: Any, env: Mapping[str, str] | None = None) -> Child:
        """Run `target(*args)`, a top-level function, in a new process. `args` must be JSON."""
        child = Child(target, args, env or {})
        self._all.append(child)
        return child

    def close(self) -> None:
        for child in self._all:
            child.close()
