"""The demo ends by itself, tells the truth, and leaves nothing behind."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path


def test_the_demo(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "dumb"}
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "headrace", "demo"], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("headrace: ")
    first = time.monotonic() - began
    shown = process.stdout.read()
    assert process.wait(60) == 0, shown
    process.stdout.close()
    assert first < 3, "the first line comes within a second on a machine that is not busy with tests"
    assert "16,000 written, 0 lost, 0 doubled" in shown
    assert "anna died with" in shown
    assert "4,000 records read again" in shown
    assert re.search(r"32,000 records in \d+ batches, [\d,]+ bytes: ok", shown)
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) < 120
    assert list(tmp_path.iterdir()) == []
