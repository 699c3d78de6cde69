"""A process that has imported what children need, and forks them: a new interpreter spends most of a second on that
before it does anything. Owns the forking, and knows how its children ended.

It runs no thread and opens no log, so what it forks begins as a new interpreter would: with standard streams, an
environment and a session of its own."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

_REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_MAIN = "import sys; from tests.faults.nursery import _serve; _serve(int(sys.argv[1]), int(sys.argv[2]))"
_MESSAGE_BYTES = 1 << 17


def python_path() -> str:
    return os.pathsep.join([_REPOSITORY, *(path for path in sys.path if path)])


def die_with(parent: int) -> None:
    """This process is killed when the thread of `parent` that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(98)


# -- in the nursery ------------------------------------------------------------------------------------


def _serve(parent: int, fd: int) -> None:
    """Forks and looks at children until nobody asks any more. In a child it goes on as that."""
    die_with(parent)
    nursery = os.getpid()
    with socket.socket(fileno=fd) as asked:
        _import_what_is_used()
        while True:
            data, streams, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 3)
            if not data:
                return
            question = json.loads(data)
            if question["do"] == "wait":
                found = os.waitid(os.P_PID, question["pid"], question["flags"])
                assert found is not None
                asked.send(json.dumps([found.si_code, found.si_status]).encode())
                continue
            with contextlib.suppress(Exception):  # the child says what is wrong with it
                importlib.import_module(question["module"])
            if os.fork() == 0:
                break
            for each in streams:
                os.close(each)
        die_with(nursery)
        os.setsid()
        asked.send(json.dumps(os.getpid()).encode())
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(question["env"])
    if "HR_DISK_ROOT" in os.environ:
        ctypes.CDLL(None).hr_start()  # the shim of tests.faults.disk, which had no directory until now
    getattr(importlib.import_module(question["module"]), question["function"])(*question["args"])


def _import_what_is_used() -> None:
    """Much is imported when it is first needed: a child uses the log, and says what it has imported then."""
    inner, outer = os.pipe()
    if os.fork() == 0:
        _use_a_log()
        os.write(outer, json.dumps(sorted(sys.modules)).encode())
        os._exit(0)
    os.close(outer)
    with open(inner, "rb") as said:
        names = json.loads(said.read())
    os.wait()
    for name in names:
        with contextlib.suppress(Exception):  # names that are no modules of their own
            importlib.import_module(name)


def _use_a_log() -> None:
    from headrace.log.open import open_log
    from headrace.views.sqlite.store import SqliteViews

    with tempfile.TemporaryDirectory() as folder, open_log(folder) as log:
        topic = log.create_topic("t", "k string, n int, at timestamp", key="k", event_time="at", partitions=2)
        topic.append([{"k": str(n), "n": n} for n in range(200)])
        with topic.group("g").join(start="earliest") as member:
            member.poll(max_records=10)
            member.commit()
        assert topic.erase("1").records == 1
        assert log.verify().ok and log.maintain().problems == []
        SqliteViews(log.home).close()


# -- beside it -----------------------------------------------------------------------------------------


class Nursery:
    """The nurseries of this process: one for children with `preload`, a library that is loaded before all others."""

    _all: ClassVar[dict[str, Nursery]] = {}

    @classmethod
    def found(cls, preload: str) -> Nursery | None:
        """None where there can be none: it lives as long as the thread that starts it."""
        can_be = hasattr(os, "pidfd_open") and threading.current_thread() is threading.main_thread()
        if preload not in cls._all and can_be:
            cls._all[preload] = cls(preload)
        return cls._all.get(preload)

    def __init__(self, preload: str) -> None:
        self._lock = threading.Lock()
        self._asked, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(os.getpid()), str(other.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": python_path(), "LD_PRELOAD": preload},
                pass_fds=[other.fileno()],
            )
        atexit.register(self.close)

    def start(self, module: str, function: str, args: tuple[Any, ...], stderr: int, env: Mapping[str, str]) -> Forked:
        (stdin, tells), (hears, stdout) = os.pipe(), os.pipe()
        question = {"do": "start", "module": module, "function": function, "args": args, "env": dict(env)}
        pid = self._answer(question, [stdin, stdout, stderr])
        os.close(stdin)
        os.close(stdout)
        return Forked(self, pid, tells, hears)

    def wait(self, pid: int, flags: int) -> tuple[int, int]:
        """What `waitid` says of a child: how it changed, and its status."""
        code, status = self._answer({"do": "wait", "pid": pid, "flags": flags}, [])
        return code, status

    def _answer(self, question: dict[str, Any], fds: list[int]) -> Any:
        with self._lock:
            socket.send_fds(self._asked, [json.dumps(question).encode()], fds)
            answer = self._asked.recv(_MESSAGE_BYTES)
        assert answer, "the nursery has ended"
        return json.loads(answer)

    def close(self) -> None:
        self._asked.close()
        self._process.wait(10)


class Forked:
    """A child of the nursery, as far as it is used like a `Popen`."""

    def __init__(self, nursery: Nursery, pid: int, stdin: int, stdout: int) -> None:
        self.pid, self.returncode = pid, None
        self.stdin, self.stdout = open(stdin, "wb"), open(stdout, "rb", buffering=0)  # noqa: SIM115 (closed with it)
        self._nursery, self._alive = nursery, os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def waitid(self, flags: int) -> tuple[int, int]:
        if not flags & os.WSTOPPED:  # the nursery serves others meanwhile
            select.select([self._alive], [], [])
        return self._nursery.wait(self.pid, flags)

    def wait(self, _: float) -> None:
        code, status = self.waitid(os.WEXITED)
        self.returncode = status if code == os.CLD_EXITED else -status
        os.close(self._alive)
