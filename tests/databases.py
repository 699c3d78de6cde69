"""A Postgres server for tests, from `scripts/postgres`: one in a run, a schema for each test."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "postgres"


class PostgresServer:
    """Ends with this process, whatever becomes of it: the server's standard input ends then."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        folder = {"TMPDIR": str(memory)} if os.access(memory, os.W_OK) else {}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=-1, stdout=-1, stderr=-3, text=True, env={**os.environ, **folder}
        )
        self.missing = ""
        self._facts()

    def _facts(self) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if said.startswith("{"):
            found = json.loads(said)
            self.url, self.pid = found["url"], found["pid"]
        else:
            self.missing = said.strip() or "the Postgres server did not start"

    def schema(self, of: object) -> str:
        """An address of its own for whatever this is: the home of a test, say."""
        return f"{self.url}?schema=t_{hashlib.sha256(str(of).encode()).hexdigest()[:24]}"

    def kill(self) -> None:
        """As a crash of the machine: SIGKILL, then it is started again on the same port."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        self._facts()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real Postgres, one in a run; without one the test is skipped, with the reason."""
    with PostgresServer() as server:
        if server.missing:
            pytest.skip(server.missing)
        yield server
