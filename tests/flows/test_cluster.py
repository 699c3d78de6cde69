"""A standalone Spark master and a worker with two executors on the loopback; an executor is killed in the middle of a
batch."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.servers import spark_daemon
from headrace.views.open import open_views
from tests.flows.on_cluster import NAMES, ROWS, quick_java
from tests.flows.oracle import expected, records_of
from tests.flows.shop import QUERIES, app_of, ledger_in, rows_in, some_rows

SEED = 20261116
ROOT = Path(__file__).parent.parent.parent


def parents(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(worker: int) -> int:
    """The executor whose Python worker this is."""
    for pid in parents(worker):
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError(f"{worker} is not an executor's")


@pytest.mark.soak  # `test_many_machines` kills one, too
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the executor")
def test_an_executor_killed_in_mid_batch_changes_nothing(tmp_path: Path) -> None:
    home, marks = tmp_path / "home", tmp_path / "marks"
    marks.mkdir()
    with app_of(home, None, names=NAMES) as app:
        app.log.topic("events").append(some_rows(random.Random(SEED), ROWS))
        records = records_of(app.log.topic("events"))
    options = quick_java()
    with (
        spark_daemon(tmp_path / "master", "master.Master", java_options=options) as master,
        spark_daemon(tmp_path / "worker", "worker.Worker", "-c", "2", master, java_options=options),
    ):
        command = [sys.executable, "-m", "tests.flows.on_cluster", str(home), master, str(marks)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            killed = executor_of(_marked(marks, child))
            os.kill(killed, signal.SIGKILL)
            out, problem = child.communicate(timeout=400)
    assert out == "done\n", problem[-3000:]
    views = open_views(home)
    for name in NAMES:
        rows, ledger = expected(records, QUERIES[name])
        assert rows_in(views, name) == rows
        assert ledger_in(views, name) == ledger
    slow = {row["word"]: row["records"] for row in views.to_arrow("slow").to_pylist()}
    assert slow == Counter(record["word"] for record in records)


def _marked(marks: Path, child: subprocess.Popen[str]) -> int:
    """A worker that has begun with a batch."""
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n", child.communicate()[1][-3000:]
    until = time.monotonic() + 300
    while not (found := list(marks.iterdir())):
        assert child.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    return int(found[0].name)
