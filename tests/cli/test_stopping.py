"""How a command that runs a program is stopped while it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, time
from headrace.cli.run import aside
from headrace.cli.stopping import stoppable

def start():  # as Spark is: standard error is a file meanwhile
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    time.sleep(60)

with stoppable() as stopping:
    try:
        aside(start, stopping)
    except BaseException as error:
        print(type(error).__name__, flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize(("number", "raised"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Terminated")])
def test_it_is_said_at_once_even_while_a_jvm_starts(tmp_path: Path, number: str, raised: str) -> None:
    log = tmp_path / "spark.log"
    command = [sys.executable, "-c", PROGRAM, str(log), number]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr, log.read_text()) == (f"{raised}\n", "stopping\n", "")
