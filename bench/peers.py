"""What peers have in common: a server of their own on a free port of the loopback, and being unavailable."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path


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
