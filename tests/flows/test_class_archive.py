"""The archive of Spark's classes: made once, used from then on, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.flows.spark import class_archive

START = """
import sys
from pathlib import Path
from headrace.flows.spark import session
spark, _ = session.make("archive", "local[1]", Path(sys.argv[1]))
print(spark.range(3).count(), flush=True)
print(spark.sparkContext._gateway.proc.pid, flush=True)
sys.stdin.readline()
"""


def started(cache: Path, home: Path) -> tuple[bool, str]:
    """Whether a session's JVM has an archive of ours open, and what it printed."""
    environment = {**os.environ, "HEADRACE_CACHE": str(cache)}
    command = [sys.executable, "-c", START, str(home)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "3\n"
        pid = int(child.stdout.readline())
        used = f"{cache}/" in Path(f"/proc/{pid}/maps").read_text()
        child.stdin.write("\n")
        child.stdin.close()
        rest = child.stdout.read()
    until = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:  # it writes the archive when Python is gone
        time.sleep(0.05)
    return used, rest


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what the JVM has open")
def test_the_second_start_uses_what_the_first_has_left(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert started(cache, tmp_path) == (False, "")
    (made,) = cache.iterdir()
    assert made.suffix == ".new"
    os.utime(made, (0, 0))  # as if a minute had passed
    assert started(cache, tmp_path) == (True, "")
    (archive,) = cache.iterdir()
    assert archive.suffix == ".jsa"


def test_without_java_or_a_place_to_write_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert class_archive.java_options(tmp_path / "file") == ""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert class_archive.java_options(tmp_path / "cache") == ""


def test_a_file_that_may_be_half_written_is_left_alone(tmp_path: Path) -> None:
    options = class_archive.java_options(tmp_path)
    made = Path(options.split("=")[1].split()[0])
    made.touch()
    assert class_archive.java_options(tmp_path) == ""  # somebody writes it: no second one
    os.utime(made, (0, 0))
    assert "ArchiveClassesAtExit" in class_archive.java_options(tmp_path)  # nobody does: it was never finished
    assert not made.exists()
