"""SIGKILL at every failpoint from planning to the relay: nothing lost, nothing doubled. And a runner that slept while
another took over."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.flows.spark import session
from headrace.testing import CRASH_POINTS, add, crash_points
from tests.flows.oracle import records_of
from tests.flows.runner import program
from tests.flows.shop import check, some_rows
from tests.stopping import stop_between_commits

SEED = 20261116
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")
def test_killed_at_every_point() -> None:
    rng = random.Random(SEED)
    rows = [add("events", some_rows(rng, 40, now)) for now in (0, 25)]
    assert crash_points(program, *rows, kill=True) == list(CRASH_POINTS)


@pytest.mark.timeout(300)
def test_a_runner_that_slept_while_another_took_over(spark: Any, tmp_path: Path) -> None:
    rng, home = random.Random(SEED), tmp_path / "home"
    with program(home, spark) as app:
        events = app.log.topic("events")
        events.append(some_rows(rng, 40, 0))
        port, token = session.lent(spark) or (0, "")
        command = [sys.executable, "-m", "tests.flows.runner", str(home), str(port)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # it is killed, and clears nothing away
        with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as sleeper:
            assert sleeper.stdin is not None and sleeper.stdout is not None
            print(token, file=sleeper.stdin, flush=True)
            assert sleeper.stdout.readline() == "running\n", sleeper.stderr.read() if sleeper.stderr else ""
            stop_between_commits(sleeper.pid)
            try:
                events.append(some_rows(rng, 40, 30))
                app.start(take_over=True)
                position = events.append(some_rows(rng, 40, 60)).position
                app.views.wait_for(position, timeout="2 minutes")
                os.kill(sleeper.pid, signal.SIGCONT)
                position = events.append(some_rows(rng, 40, 90)).position
                assert sleeper.stdout.readline().startswith("fenced")
                app.views.wait_for(position, timeout="2 minutes")
                app.stop()
                check(app)
                sent, arrived = (
                    sorted(str((row["n"], row["x"], row["at"])) for row in records_of(topic) if row["word"] == "a")
                    for topic in (events, app.log.topic("only_a"))
                )
                assert sent == arrived
            finally:
                sleeper.kill()
