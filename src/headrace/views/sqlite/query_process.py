"""SQL of others, in processes that can be killed. Owns the processes and what is said between them and the server: a
line of JSON for the question, a line of JSON and a table in Arrow's stream format for the answer. `reading` owns what
SQL may do, and its bounds while it runs.

SQLite can stop a statement that runs, but before version 3.41 none that it prepares, and a kilobyte of SQL can take
minutes and gigabytes to prepare. So a process has a bound on SQLite's memory, which is for all its connections, and an
alarm that kills it. It keeps nothing: another takes its place. It ends with its server, however that ends."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from headrace import errors
from headrace.errors import HeadraceError, InvalidQuery, QueryTimeout
from headrace.views.reading import Bounds, Queries
from headrace.views.sqlite.reading import SqliteReading

__all__ = ["QueryProcesses"]

HEAP_BYTES_MAX = 128 << 20
"""What SQLite may use for a query. A result comes on top: see `Bounds`."""
ALARM_SECONDS = 0.5
"""So long after its time a query that did not stop is killed."""


class QueryProcesses(Queries):
    """As many as there are questions at a time; they stay for the next ones."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._all: set[_QueryProcess] = set()
        self._idle: list[_QueryProcess] = []
        self._closed = False

    def bounded(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        bounds: Bounds,
        as_of: datetime | str | None = None,
    ) -> tuple[pa.Table, bool]:
        process = self._taken()
        try:
            found = process.ask(sql, params, bounds, as_of)
        except HeadraceError:
            self._give_back(process)
            raise
        except BaseException:
            self._end(process)
            raise
        self._give_back(process)
        return found

    def _taken(self) -> _QueryProcess:
        with self._lock:
            if self._closed:
                raise errors.Closed(what="the server")
            for dead in [each for each in self._idle if not each.lives]:
                self._idle.remove(dead)
                self._all.discard(dead)
                dead.kill()  # and closes what is left of it
            if self._idle:
                return self._idle.pop()
            process = _QueryProcess(self._home)
            self._all.add(process)
            return process

    def _give_back(self, process: _QueryProcess) -> None:
        with self._lock:
            if process.lives and not self._closed:
                self._idle.append(process)
                return
        self._end(process)

    def _end(self, process: _QueryProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            found = list(self._all)
        for process in found:
            self._end(process)


class _QueryProcess:
    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-P", "-m", __name__, str(home)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is not for it: it ends when its standard input does
        )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            with contextlib.suppress(OSError):
                end.close()

    def ask(
        self, sql: str, params: Sequence[Any] | Mapping[str, Any], bounds: Bounds, as_of: datetime | str | None
    ) -> tuple[pa.Table, bool]:
        assert self._process.stdin is not None and self._process.stdout is not None
        time = as_of.isoformat() if isinstance(as_of, datetime) else as_of
        question = {"sql": sql, "params": params, "bounds": _facts(bounds, but="stop"), "as_of": time}
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        head = self._process.stdout.readline()
        if not head.endswith(b"\n"):
            raise self._died(sql, bounds)
        answer = json.loads(head)
        if "error" in answer:
            raise getattr(errors, answer["error"])(**answer["facts"])
        body = self._process.stdout.read(answer["bytes"])
        if len(body) < answer["bytes"]:
            raise self._died(sql, bounds)
        with pa.ipc.open_stream(body) as table:
            return table.read_all(), answer["more"]

    def _died(self, sql: str, bounds: Bounds) -> HeadraceError:
        code = self._process.wait()
        if code in (-signal.SIGALRM, -signal.SIGKILL) or bounds.stop():
            return QueryTimeout(sql=sql, seconds=bounds.seconds)
        raise RuntimeError(f"the process for SQL ended with {code}")


def _facts(value: Any, but: str = "") -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name != but}


# -- in the process --------------------------------------------------------------------------------------


def main(home: str, asked: IO[bytes], answers: IO[bytes]) -> None:
    """Answers until there are no more questions."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"PRAGMA hard_heap_limit={HEAP_BYTES_MAX}")
    views = SqliteReading(Path(home))
    for line in asked:
        question = json.loads(line)
        bounds = Bounds(**question["bounds"])
        signal.setitimer(signal.ITIMER_REAL, bounds.seconds + ALARM_SECONDS)  # nothing handles it: it kills
        try:
            table, more = views.bounded(question["sql"], question["params"], bounds=bounds, as_of=question["as_of"])
            body: bytes | memoryview = _packed(table)
            head: dict[str, Any] = {"more": more, "bytes": len(body)}
        except MemoryError:
            why = f"it needs more than {HEAP_BYTES_MAX >> 20} MiB of memory: ask for less, with fewer parts"
            head, body = _error(InvalidQuery(sql=question["sql"], why=why)), b""
        except HeadraceError as error:
            head, body = _error(error), b""
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(head).encode() + b"\n")
        answers.write(body)
        answers.flush()


def _packed(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def _error(error: HeadraceError) -> dict[str, Any]:
    return {"error": type(error).__name__, "facts": _facts(error)}


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
