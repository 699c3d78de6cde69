"""What Spark writes on the way is nobody else's to read, and does not pile up."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import LogMissing
from headrace.flows.spark import local_dir

HOLD = """
import sys
from pathlib import Path
from headrace.flows.spark import local_dir
made = local_dir.make(Path(sys.argv[1]))
(made / "blockmgr-1").mkdir()
(made / "blockmgr-1" / "shuffle").write_text("records")
print(made, flush=True)
sys.stdin.read()
"""


def test_only_the_owner_may_enter(tmp_path: Path) -> None:
    made = local_dir.make(tmp_path)
    assert made.parent == tmp_path / "spark"
    for folder in (made, made.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_killed_processes_left_goes_and_what_living_ones_have_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living,
    ):
        assert killed.stdout is not None and living.stdout is not None
        left, used = Path(killed.stdout.readline().strip()), Path(living.stdout.readline().strip())
        assert (left / "blockmgr-1" / "shuffle").exists() and (used / "blockmgr-1" / "shuffle").exists()
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        mine = local_dir.make(tmp_path)
        assert sorted(mine.parent.iterdir()) == sorted([mine, used])
        assert (used / "blockmgr-1" / "shuffle").exists()
        assert local_dir.make(tmp_path) != mine and mine.exists(), "one process may have two"


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "spark" / "jobs").mkdir(parents=True)
    (tmp_path / "spark" / "jobs" / "daily.py").write_text("")
    local_dir.make(tmp_path)
    assert (tmp_path / "spark" / "jobs" / "daily.py").exists()


def test_a_home_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        local_dir.make(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_home_with_a_comma_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    made = local_dir.make(tmp_path / "a,b")
    assert "," not in str(made) and stat.S_IMODE(made.stat().st_mode) == 0o700
    made.rmdir()


def test_a_session_of_ours_writes_there(spark: Any) -> None:
    folder = Path(spark.sparkContext.getConf().get("spark.local.dir"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.parent.name == "spark"
    assert list(folder.glob("blockmgr-*"))


def test_a_session_that_outlives_its_home_writes_elsewhere(tmp_path: Path) -> None:
    made = local_dir.make(tmp_path, outlives_home=True)
    assert tmp_path not in made.parents and not any(tmp_path.iterdir())
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
