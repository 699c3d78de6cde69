"""Files that tell a plan what to read are gone when nobody needs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.flows.spark import scratch

HOLD = """
import sys
from headrace.flows.spark.scratch import scratch_file
class Owner: pass
owner = Owner()
print(scratch_file(owner), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scratch._sweep.cache_clear()
    return tmp_path


class Owner:
    pass


def test_a_file_goes_with_its_owner(folder: Path) -> None:
    owner = Owner()
    path = Path(scratch.scratch_file(owner))
    assert path.parent == folder and path.exists()
    del owner
    assert not path.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_a_process_that_was_killed_leaves_nothing_for_long(folder: Path, how: signal.Signals | None) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    with child:
        assert child.stdin is not None and child.stdout is not None
        path = Path(child.stdout.readline().strip())
        mine = Owner()
        scratch.scratch_file(mine)
        assert path.exists()  # it is in use
        if how is None:
            child.stdin.close()
        else:
            child.send_signal(how)
        child.wait()
    assert path.exists() == (how is not None)
    scratch._sweep.cache_clear()
    other = Owner()
    scratch.scratch_file(other)
    assert not path.exists()
