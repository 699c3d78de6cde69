"""Database servers for tests, one of each in a run: Postgres from `scripts/postgres`, with a schema for each test, and
MariaDB from `scripts/mariadb`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


class Server:
    """Ends with this process, whatever becomes of it: the server's standard input ends then. `settings`: the server's
    own."""

    script: str

    def __init__(self, *settings: str) -> None:
        memory = Path("/dev/shm")
        folder = {"TMPDIR": str(memory)} if os.access(memory, os.W_OK) else {}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / self.script), *(f"--set={each}" for each in settings)],
            stdin=-1,
            stdout=-1,
            stderr=-3,
            text=True,
            env={**os.environ, **folder},
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
            self.missing = said.strip() or f"the server of scripts/{self.script} did not start"

    def kill(self) -> None:
        """As a crash of the machine: SIGKILL, then it is started again on the same port."""
        self._say("kill")

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
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


class PostgresServer(Server):
    script = "postgres"

    def schema(self, of: object) -> str:
        """An address of its own for whatever this is: the home of a test, say."""
        return f"{self.url}?schema=t_{hashlib.sha256(str(of).encode()).hexdigest()[:24]}"

    def database(self, name: str) -> str:
        """The address of a new database."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        return f"{self.url.rpartition('/')[0]}/{name}"


class MariaDbServer(Server):
    script = "mariadb"

    def connect(self, database: str = "") -> Any:
        import pymysql

        to = urlsplit(self.url)
        return pymysql.connect(host=to.hostname, port=to.port, user=to.username, database=database, autocommit=True)

    def database(self, name: str) -> str:
        """The address of a new database."""
        with self.connect() as admin, admin.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return f"{self.url}{name}"

    def restart(self) -> None:
        """In order, on the same port."""
        self._say("restart")


class Proxy:
    """Between a client and the server. `cut` is asked for each message of a client: "before" drops it and the
    connection, "after" the answer to it."""

    def __init__(self, url: str, cut: Callable[[bytes], str]) -> None:
        self._to, self._cut = urlsplit(url).port, cut
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{self._to}/", f":{self._listening.getsockname()[1]}/")
        threading.Thread(target=self._accepting, daemon=True).start()

    def _accepting(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._between, args=(client, server), daemon=True).start()

    def _between(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for one, other in ((client, server), (server, client)):
                    if one not in ready:
                        continue
                    said = one.recv(1 << 16)
                    how = self._cut(said) if one is client else ""
                    if not said or how == "before":
                        return
                    other.sendall(said)
                    if how == "after":
                        server.recv(1 << 16)  # it is done, and says so
                        return

    def close(self) -> None:
        self._listening.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real Postgres, one in a run; without one the test is skipped, with the reason."""
    with PostgresServer("wal_level=logical", "max_replication_slots=40", "max_wal_senders=40") as server:
        if server.missing:
            pytest.skip(server.missing)
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """A real MariaDB, one in a run; without one the test is skipped, with the reason."""
    with MariaDbServer() as server:
        if server.missing:
            pytest.skip(server.missing)
        yield server


class Pooler:
    """A pgbouncer in front of a server, which lends its few connections for a transaction each."""

    def __init__(self, server: PostgresServer, folder: Path, program: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        to = urlsplit(server.url)
        self.url, self._server = server.url.replace(f":{to.port}/", f":{port}/"), server
        users, config = folder / "users.txt", folder / "pgbouncer.ini"
        users.write_text(f'"{to.username}" ""\n')
        lines = ["[databases]", f"postgres = host=127.0.0.1 port={to.port}", "[pgbouncer]", "listen_addr = 127.0.0.1"]
        lines += [f"listen_port = {port}", "unix_socket_dir =", "auth_type = trust", f"auth_file = {users}"]
        lines += ["pool_mode = transaction", "default_pool_size = 3"]
        config.write_text("\n".join(lines))
        other: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        for path, mode in ((folder, 0o755), (users, 0o644), (config, 0o644)):
            path.chmod(mode)
        self._process = subprocess.Popen([program, str(config)], stdin=-3, stdout=-3, stderr=-1, text=True, **other)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "process up" in line:
                break
        else:
            raise AssertionError("pgbouncer did not start")
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def schema(self, of: object) -> str:
        return self._server.schema(of).replace(self._server.url, self.url)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture(scope="session")
def pooler(postgres: PostgresServer) -> Iterator[Pooler]:
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("there is no pgbouncer (Debian: apt-get install pgbouncer)")
    with tempfile.TemporaryDirectory(prefix="headrace-pooler-") as folder:
        found = Pooler(postgres, Path(folder), program)
        yield found
        found.close()
