"""`make demo-cluster`: what is missing is said in one sentence; the whole of it, and Ctrl-C, in `make soak`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "scripts" / "demo_cluster.py")]
MISSING = 77


def test_what_is_missing_is_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    spark = [sys.executable, str(ROOT / "scripts" / "spark")]
    for command, said in ((COMMAND, "demo-cluster: "), (spark, "no Spark cluster: ")):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == MISSING and done.stderr.count("\n") == 1, done
        assert done.stderr.startswith(said) and "java" in done.stderr


def below(pid: int) -> Iterator[int]:
    """The processes that it has started, and what those have."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                yield from (int(folder.name), *below(int(folder.name)))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_on_a_cluster() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=800)
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("0 lost, 0 doubled") == 3 and done.stdout.count("kill -9") == 2


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the processes")
def test_ctrl_c_stops_all_that_was_started() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        for line in running.stdout:
            if "the driver runs" in line:
                break
        else:
            pytest.skip(running.stderr.read().strip())
        started = set(below(running.pid))
        assert len(started) > 6
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=120) == 130
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
