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

from headrace.failpoints import KNOWN
from tests.flows.oracle import records_of
from tests.flows.runner import NAMES
from tests.flows.shop import app_of, check, some_rows

POINTS = [point for point in KNOWN if point.split(".")[0] in ("view", "flow", "relay")]
SEED = 20261116
ROOT = Path(__file__).parent.parent.parent


def runner(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.flows.runner", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def add(home: Path, seed: int, now: float) -> None:
    with app_of(home, None, names=NAMES) as app:
        app.log.topic("events").append(some_rows(random.Random(seed), 40, now))


def check_all(app: Any) -> None:
    check(app)
    sent, arrived = (
        sorted(str((row["n"], row["x"], row["at"])) for row in records_of(app.log.topic(name)) if row["word"] == "a")
        for name in ("events", "only_a")
    )
    assert sent == arrived


@pytest.mark.timeout(600)
def test_killed_at_every_point(spark: Any, tmp_path: Path) -> None:
    """One after the other on one home: each finds what the last one left."""
    rng = random.Random(SEED)
    for number, point in enumerate(POINTS):
        add(tmp_path / "home", SEED + number, 25.0 * number)
        with runner(str(tmp_path / "home"), "drain", point, str(rng.randrange(3))) as child:
            out, problem = child.communicate(timeout=200)
        assert child.returncode == -signal.SIGKILL, f"{point}: {out} {problem}"
    with app_of(tmp_path / "home", spark, names=NAMES) as app:
        app.stream("events").transform(lambda df: df.where("word = 'a'")).to_topic("only_a")
        app.drain(batch_rows=25)
        check_all(app)
        assert app.audit().ok


@pytest.mark.timeout(300)
def test_a_runner_that_slept_while_another_took_over(spark: Any, tmp_path: Path) -> None:
    add(tmp_path / "home", SEED, 0)
    with runner(str(tmp_path / "home"), "follow") as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "running\n", sleeper.stderr.read() if sleeper.stderr else ""
        os.kill(sleeper.pid, signal.SIGSTOP)
        try:
            add(tmp_path / "home", SEED + 1, 30)
            with app_of(tmp_path / "home", spark, names=NAMES) as app:
                app.stream("events").transform(lambda df: df.where("word = 'a'")).to_topic("only_a")
                app.start(take_over=True)
                position = app.log.topic("events").append(some_rows(random.Random(SEED + 2), 40, 60)).position
                app.views.wait_for(position, timeout="2 minutes")
                os.kill(sleeper.pid, signal.SIGCONT)
                position = app.log.topic("events").append(some_rows(random.Random(SEED + 3), 40, 90)).position
                assert sleeper.stdout.readline().startswith("fenced")
                app.views.wait_for(position, timeout="2 minutes")
                app.stop()
                check_all(app)
        finally:
            sleeper.kill()
