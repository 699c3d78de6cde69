"""Every program in examples/ runs and prints what its first lines say; those on Spark share the session of the tests.
The backup is taken beside a writer, and restored."""

from __future__ import annotations

import ast
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import headrace as hr
from headrace import app as apps

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTING = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "backup")
SPARK = bool(os.environ.get("JAVA_HOME") or shutil.which("java")) and importlib.util.find_spec("pyspark") is not None


@pytest.mark.timeout(300)  # the first of them may have to start the session
@pytest.mark.parametrize("program", PRINTING, ids=lambda path: path.stem)
def test_it_prints_what_it_says(
    program: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = program.read_text("utf-8")
    if "hr.App(" in text:
        if not SPARK:
            pytest.skip("the example needs Spark: pyspark and Java")
        monkeypatch.setitem(apps.overrides, "spark", request.getfixturevalue("headrace_spark"))
    wanted = textwrap.dedent((ast.get_docstring(ast.parse(text), clean=False) or "").partition("Prints:\n")[2])
    assert wanted, f"{program.name} does not say what it prints"
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out.strip() == wanted.strip()


WRITER = """
import sys, headrace as hr
with hr.open_log(sys.argv[1]) as log:
    numbers = log.create_topic("numbers", "n int", partitions=2)
    print("up", flush=True)
    for start in range(0, 1_000_000, 10):
        numbers.append([{"n": n} for n in range(start, start + 10)])
"""


def test_a_backup_beside_a_writer_is_restored(tmp_path: Path) -> None:
    backup = runpy.run_path(str(EXAMPLES / "backup.py"))["backup"]
    home, copy = tmp_path / "home", tmp_path / "copy"
    writing = subprocess.Popen([sys.executable, "-c", WRITER, str(home)], stdout=subprocess.PIPE, text=True)
    try:
        assert writing.stdout is not None and writing.stdout.readline() == "up\n"
        with hr.open_log(home) as log:
            for _ in zip(range(100), log.topic("numbers").records(follow=True, timeout="30 seconds"), strict=False):
                pass
            backup(home, copy)
            for _ in log.topic("numbers").records(start="latest", follow=True, timeout="30 seconds"):
                break  # the writer went on
    finally:
        writing.kill()
        writing.wait()
    with hr.open_log(home) as log, hr.open_log(copy, create=False) as restored:
        found = sorted(record.value["n"] for record in restored.topic("numbers").records())
        assert len(found) >= 100 and found == list(range(len(found)))  # whole appends, none missing
        assert len(found) < log.topic("numbers").describe().records
        assert restored.verify().ok
        restored.topic("numbers").append({"n": -1})
        assert restored.verify().ok


def test_a_backup_of_a_home_at_rest(tmp_path: Path) -> None:
    with hr.open_log(tmp_path / "home") as log:
        log.create_topic("numbers", "n int").append([{"n": 1}, {"n": 2}])
    runpy.run_path(str(EXAMPLES / "backup.py"))["backup"](tmp_path / "home", tmp_path / "copy")
    with hr.open_log(tmp_path / "copy", create=False) as restored:
        assert [record.value["n"] for record in restored.topic("numbers").records()] == [1, 2]
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "copy").rglob("*")} == {0}
