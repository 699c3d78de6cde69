"""A sink that is a program: it is started for each row, with the row as JSON on its standard input. Owns how it is
started and what its exit code means. No shell reads anything of a row."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connect.calling import Calling
from headrace.connect.webhook import body_of
from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument, SinkFailed
from headrace.rows import to_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Log, Topic

__all__ = ["Command", "command"]

SAID_MAX = 300


def command(arguments: Sequence[str], *, timeout: Duration = "30 seconds") -> Command:
    """A sink that starts a program for each row, one after the other: `hr.command(["notify", "--json"])`. It gets the
    row as JSON on its standard input, with an `id` that is the same when the row comes again. A row is delivered when
    the program ends with 0; a program that takes longer than `timeout` is killed."""
    if (
        isinstance(arguments, str)
        or not arguments
        or not all(isinstance(each, str) and "\0" not in each for each in arguments)
    ):
        raise InvalidArgument("arguments", arguments, "must be a list of texts, the program first: no shell reads them")
    return Command(tuple(arguments), duration_us(timeout, argument="timeout") / 1e6)


@dataclass(frozen=True)
class Command:
    arguments: tuple[str, ...]
    seconds: float
    kind: str = "command"

    def facts(self) -> dict[str, Any]:
        return {"program": self.arguments[0]}

    def over(
        self,
        name: str,
        log: Log,
        topic: Topic,
        home: Path,  # noqa: ARG002
        key: tuple[str, ...] | None,  # noqa: ARG002
    ) -> Calling:
        def deliver(rows: pa.Table, key: str) -> None:
            for batch in rows.to_batches():
                for row in to_rows(batch):
                    self._run(name, key, row)

        return Calling(name, log, topic, deliver, rows_max=1)

    def _run(self, name: str, key: str, row: dict[str, Any]) -> None:
        body = body_of(name, key, row)
        try:
            code, said = _run(self.arguments, body, self.seconds)
        except subprocess.TimeoutExpired:
            raise SinkFailed(name, key, f"{self.arguments[0]} took longer than {self.seconds:g} s") from None
        except OSError as error:
            raise SinkFailed(name, key, f"{self.arguments[0]} cannot be started: {error.strerror}") from None
        if code:
            raise SinkFailed(name, key, f"{self.arguments[0]} ended with {code}{said and f': {said}'}")


def _run(arguments: Sequence[str], body: bytes, seconds: float) -> tuple[int, str]:
    """Its exit code, and the end of what it said. In a file, not a pipe: what it has started may still write there. It
    is killed with all that it has started."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            process.communicate(body, timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4 * SAID_MAX))
        return process.returncode, errors.read(4 * SAID_MAX).decode("utf-8", "replace").strip()[-SAID_MAX:]
