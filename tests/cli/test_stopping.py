"""How a command that runs a program is stopped while it works."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SECONDS_MAX, Spawner, environment

PROGRAM = """
import os, signal, sys, time
from headrace.cli.run import run_in_thread
from headrace.cli.stopping import stoppable

def start():  # as Spark is: standard error is a file meanwhile
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    time.sleep(60)

with stoppable() as stopping:
    try:
        run_in_thread(start, stopping)
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


APP = """
import headrace as hr
app = hr.App("shop")
app.stream(app.topic("t", "v int")).agg(n=hr.count()).to_view("v")
"""
JAVA = """#!/bin/sh
case "$*" in
*-version*) echo 'openjdk version "17.0.1" 2025-01-01' >&2 ;;
*) touch {begun}; exec cat ;; # it starts for ever, and ends when its parent does, as Spark's JVM
esac
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_spark_that_starts_is_not_waited_for(
    tmp_path: Path, spawn: Spawner, number: signal.Signals, code: int
) -> None:
    java, begun = tmp_path / "java" / "bin" / "java", tmp_path / "begun"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(begun=begun))
    java.chmod(0o755)
    (tmp_path / "shop.py").write_text(APP)
    process = spawn("run", str(tmp_path / "shop.py"), env=environment(JAVA_HOME=str(java.parent.parent)))
    while not begun.exists():
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait(SECONDS_MAX) == code
