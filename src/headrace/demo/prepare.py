"""Makes the archive of Spark's classes ahead of the first start (`python -m headrace.demo.prepare`), by checking the
demo's program once. The set-up of `make test` runs it, for many Sparks are started there. Fails without a word:
everything works without the archive."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.flows.spark.class_archive import archive_path, made_beside

WAIT_SECONDS = 60.0
STILL_SECONDS = 1.0


def prepare() -> None:
    archive = archive_path()
    if archive is None or archive.exists():
        return
    with tempfile.TemporaryDirectory(prefix="headrace-prepare-") as home:
        program = Path(__file__).with_name("shop.py")
        command = [sys.executable, "-m", "headrace", "check", str(program), "--home", home]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=WAIT_SECONDS, check=False, **quiet)  # type: ignore[call-overload]
    until, size, since = time.monotonic() + WAIT_SECONDS, 0, time.monotonic()
    while time.monotonic() < until:  # the JVM writes when the program has ended
        made = made_beside(archive)
        now = made[0].stat().st_size if made else 0
        if now != size:
            size, since = now, time.monotonic()
        elif size and time.monotonic() - since >= STILL_SECONDS:
            os.replace(made[0], archive)
            return
        time.sleep(0.1)


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        prepare()
