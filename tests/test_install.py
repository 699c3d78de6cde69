"""Setting up: what it says while pip works, and what it leaves behind when it fails or is stopped."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PIP = """
import os, sys, time
print("Collecting pyspark==4.3.0")
print("  Downloading pyspark-4.3.0.tar.gz (455.9 MB)", flush=True)
if "wait" in sys.argv:
    print(os.getpid(), file=open(sys.argv[-1], "w"), flush=True)
    time.sleep(600)
print("ERROR: no matching distribution", flush=True)
sys.exit("fail" in sys.argv)
"""
RUN = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("install", sys.argv[1])
install = importlib.util.module_from_spec(spec)
spec.loader.exec_module(install)
install.ROOT = Path(sys.argv[2])
install.LOG = Path(sys.argv[2], "pip.log")
install.run(install.Progress(), install.Job("Spark", (sys.executable, "-c", *sys.argv[3:])))
print("installed")
"""


@pytest.fixture(scope="module")
def install() -> Any:
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("  Downloading pyspark-4.3.0.tar.gz (455.9 MB)\n", "fetching pyspark-4.3.0 (455.9 MB)"),
        ("  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)", "fetching numpy-2.4.6 (16.9 MB)"),
        ("  Using cached click-8.5.1-py3-none-any.whl (126 kB)", "click-8.5.1 is in pip's cache"),
        ("  Building wheel for pyspark (pyproject.toml): started", "building pyspark"),
        ("Installing collected packages: py4j, pyspark", "installing py4j, pyspark"),
        ("Installing collected packages: " + ", ".join(f"package{n}" for n in range(30)), "installing 30 packages"),
        ("     ━━━━━━━━━━ 455.9/455.9 MB 46.8 MB/s eta 0:00:00", None),
    ],
)
def test_what_pip_says_is_a_step(install: Any, line: str, step: str | None) -> None:
    assert install.step_of(line) == step


def test_extras_hold_others(install: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert install.requirements(project, []) == project["dependencies"]
    every = install.requirements(project, ["dev"])
    for extra in ("connect", "java", "notebook", "serve"):
        assert set(project["optional-dependencies"][extra]) <= set(every)
    assert not any(each.startswith("headrace") for each in every)


def running(folder: Path, *how: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(ROOT / "scripts" / "install.py"), str(folder), PIP, *how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_without_a_terminal_each_step_is_a_line_and_no_pip_is_left_behind(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with running(tmp_path, "wait", str(pid)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "headrace:   0 s  Spark: beginning"
        assert process.stdout.readline().endswith("s  Spark: fetching pyspark-4.3.0 (455.9 MB)\n")
        while not pid.exists() or not pid.read_text():
            assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 143
    assert "Downloading pyspark" in (tmp_path / "pip.log").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_what_fails_says_why(tmp_path: Path) -> None:
    with running(tmp_path, "fail") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "installed" not in out
    assert err == (
        "headrace: Spark: no matching distribution. Check the network and pip's settings, then run make again; the "
        "whole output is in pip.log.\n"
    )


@pytest.fixture
def here(install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """For what runs in this process."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "LOG", tmp_path / "pip.log")
    yield install
    signal.signal(signal.SIGTERM, handler)


def test_what_cannot_be_run_is_not_installed(here: Any) -> None:
    with pytest.raises(SystemExit, match=r"Spark: .*No such file or directory: '/nowhere'"):
        here.run(here.Progress(), here.Job("Spark", ("/nowhere",)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_on_a_full_disk_nothing_is_installed(here: Any) -> None:
    here.LOG.symlink_to("/dev/full")
    with pytest.raises(SystemExit, match=r"Spark: .*No space left on device"):
        here.run(here.Progress(), here.Job("Spark", (sys.executable, "-c", "print('x' * 100_000)")))


CALLED = """#!/bin/sh
echo "$*" >>calls
case "$*" in
*version_info*) echo 3.12 ;;
scripts/install.py* | "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""


@pytest.mark.parametrize(("extra", "made"), [("serve", False), ("dev", True)])
def test_the_archive_of_classes_is_not_made_for_the_demo(tmp_path: Path, extra: str, made: bool) -> None:
    """The first Spark that ends makes it, beside whatever comes next: the demo waits for nothing."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/install.py", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    for name in ("python", "scripts/browser", "scripts/mariadb"):
        (tmp_path / name).write_text(CALLED)
        (tmp_path / name).chmod(0o755)
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    environment = {**os.environ, "PYTHON": str(tmp_path / "python")}
    subprocess.run([tmp_path / "scripts" / "setup", extra], env=environment, check=True, capture_output=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "-m headrace.flows.spark.java" in calls
    assert ("-m headrace.demo.prepare" in calls) is made
