"""Every program in examples/ runs and prints what its first lines say; those on Spark share the session of the
tests."""

from __future__ import annotations

import ast
import importlib.util
import os
import runpy
import shutil
import textwrap
from pathlib import Path

import pytest

from headrace import app as apps

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTING = sorted(EXAMPLES.glob("*.py"))
SPARK = bool(os.environ.get("JAVA_HOME") or shutil.which("java")) and importlib.util.find_spec("pyspark") is not None


@pytest.mark.timeout(300)  # the first of them may have to start the session
@pytest.mark.parametrize("program", PRINTING, ids=lambda path: path.stem)
def test_it_prints_what_it_says(
    program: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = program.read_text("utf-8")
    if "hr.App(" in text and "or Spark." not in text:
        if not SPARK:
            pytest.skip("the example needs Spark: pyspark and Java")
        monkeypatch.setitem(apps.overrides, "spark", request.getfixturevalue("headrace_spark"))
    wanted = textwrap.dedent((ast.get_docstring(ast.parse(text), clean=False) or "").partition("Prints:\n")[2])
    assert wanted, f"{program.name} does not say what it prints"
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out.strip() == wanted.strip()
