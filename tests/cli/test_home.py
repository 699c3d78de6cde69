"""Where no --home and no HEADRACE_HOME is given, the log is .headrace in the directory one is in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def headrace(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_HOME"}
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_there_yet(tmp_path: Path) -> None:
    done = headrace(tmp_path, "topics", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "No topics yet" in done.stderr
    assert headrace(tmp_path, "verify").returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_produce_create_makes_the_log(tmp_path: Path) -> None:
    (tmp_path / "clicks.jsonl").write_text('{"user":"ann","ms":1}\n')
    done = headrace(tmp_path, "produce", "clicks", "--create", "--key", "user", "clicks.jsonl")
    assert done.returncode == 0, done.stderr
    assert headrace(tmp_path, "consume", "clicks").stdout == '{"user":"ann","ms":1}\n'
