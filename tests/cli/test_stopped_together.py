"""A signal that reaches a command and what it has started: what breaks by it is not told as an error."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from headrace.cli.run import run_in_thread
from headrace.cli.stopping import stoppable
from headrace.errors import JavaMissing

def start():  # as Spark does, when its JVM gets the signal, too
    os.kill(os.getpid(), signal.SIGTERM)
    raise JavaMissing(why="JAVA_GATEWAY_EXITED")

with stoppable() as stopping:
    try:
        run_in_thread(start, stopping)
    except BaseException as error:
        print(type(error).__name__, flush=True)
"""


def test_a_spark_that_is_stopped_while_it_starts_is_no_error() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "Terminated\n"
