"""A standalone Spark master and a worker with two executors on the loopback; an executor is killed in the middle of a
batch."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from headrace.views.open import open_views
from tests.flows.on_cluster import NAMES, ROWS, quick_java
from tests.flows.oracle import expected, records_of
from tests.flows.shop import QUERIES, app_of, ledger_in, rows_in, some_rows

SEED = 20261116
ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def daemon(folder: Path, kind: str, *arguments: str) -> Iterator[str]:
    """A part of Spark's standalone cluster; gives what it says first that has an address in it."""
    folder.mkdir()
    environment = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_WORKER_DIR": str(folder), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_JAVA_OPTS": quick_java()}
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        until = time.monotonic() + 120
        while not (found := re.search(r"(?:at|with master) (spark://[\d.]+:\d+)", log.read_text())):
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.05)
        yield found[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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


@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the executor")
def test_an_executor_killed_in_mid_batch_changes_nothing(tmp_path: Path) -> None:
    home, marks = tmp_path / "home", tmp_path / "marks"
    marks.mkdir()
    with app_of(home, None, names=NAMES) as app:
        app.log.topic("events").append(some_rows(random.Random(SEED), ROWS))
        records = records_of(app.log.topic("events"))
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(daemon(tmp_path / "master", "master.Master", *here))
        stack.enter_context(daemon(tmp_path / "worker", "worker.Worker", *here, "-c", "2", master))
        command = [sys.executable, "-m", "tests.flows.on_cluster", str(home), master, str(marks)]
        child = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
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
