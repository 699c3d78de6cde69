"""Commands in this process, for speed (`shell`), and as real processes, for what only they have (`spawn`)."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import run

SECONDS_MAX = 60


@dataclass
class Done:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands in this process, on one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *args: str, stdin: bytes = b"") -> Done:
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
        sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
        try:
            code = run(args)
            sys.stdout.flush()
            sys.stderr.flush()
            return Done(code, sys.stdout.buffer.getvalue(), sys.stderr.buffer.getvalue().decode())  # type: ignore[attr-defined]
        finally:
            sys.stdin, sys.stdout, sys.stderr = before

    def ok(self, *args: str, stdin: bytes = b"") -> Done:
        done = self(*args, stdin=stdin)
        assert done.code == 0, done
        return done

    def refused(self, *args: str, stdin: bytes = b"", code: int = 1) -> str:
        """The one line a command says when it refuses."""
        done = self(*args, stdin=stdin)
        assert done.code == code, done
        assert done.out == b""
        (line,) = done.err.splitlines()
        return line.removeprefix("headrace: ")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return Shell(tmp_path / "home")


COMMAND = [sys.executable, "-m", "headrace"]


class Spawner:
    """Starts commands as processes, and leaves none behind."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        process = subprocess.Popen([*COMMAND, *args], **options)
        self.started.append(process)
        return process

    def done(self, *args: str, **options: Any) -> Done:
        process = self(*args, **options)
        out, err = process.communicate(timeout=SECONDS_MAX)
        return Done(process.returncode, out or b"", (err or b"").decode())


@pytest.fixture
def spawn(shell: Shell) -> Iterator[Spawner]:  # noqa: ARG001 - for its home
    spawner = Spawner()
    yield spawner
    for process in spawner.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def clicks(shell: Shell) -> Shell:
    """A topic `clicks` with three records in two partitions."""
    shell.ok(
        *("topics", "create", "clicks", "user string, ms int, at timestamp"),
        *("--key", "user", "--event-time", "at", "--partitions", "2"),
    )
    lines = [{"user": user, "ms": i, "at": f"2026-01-01T00:00:0{i}Z"} for i, user in enumerate(["ann", "bob", "cat"])]
    shell.ok("produce", "clicks", stdin="\n".join(map(json.dumps, lines)).encode())
    return shell


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}
