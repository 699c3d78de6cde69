"""What peers have in common: a server of their own on a free port of the loopback, or an environment of their own and a
job in it; and being unavailable."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOB_SECONDS_MAX = 900.0
PR_SET_CHILD_SUBREAPER = 36
"""Of Linux."""


class Unavailable(Exception):
    """The peer cannot be had here; the text says why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until_ready(process: subprocess.Popen[bytes], port: int, log: Path, seconds: float) -> None:
    """Until somebody listens there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    last = log.read_text(errors="replace").strip().splitlines()
    raise Unavailable(f"{process.args[0]} did not start: {last[-1] if last else 'it said nothing'}")  # type: ignore[index]


def stop(process: subprocess.Popen[bytes], seconds: float = 20) -> None:
    process.terminate()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def job(name: str, request: dict[str, Any], **environ: str) -> dict[str, Any]:
    """Runs `bench/<name>_job.py` in that peer's environment, which scripts/peers makes: a JSON object on its standard
    input, another one as the last line of its output. Everything it started ends with it."""
    python = Path(sys.prefix, "peers", name, "bin", "python")
    if not python.with_name("..").joinpath("set-up").exists():
        raise Unavailable(f"{name} has no environment here (scripts/peers makes it)")
    script = Path(__file__).with_name(f"{name}_job.py")
    _adopt()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "PYTHONPATH": "", **environ},
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(json.dumps(request).encode(), timeout=JOB_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{name} did not finish in {JOB_SECONDS_MAX:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(ChildProcessError):
                while True:  # what it left behind is ours
                    os.waitpid(-process.pid, 0)
        if process.returncode:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
            told = [line for line in lines if ("Error" in line or "Exception" in line) and not line[0].isspace()]
            raise Unavailable(f"{name} failed: {(told or lines or ['it said nothing'])[-1]}")
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def _adopt() -> None:
    """Whatever loses its parent below us becomes our child, where the system can do that: so the time that a peer's
    JVM took is known when it ends, and is not mistaken for that of other programs (`neighbours`)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
