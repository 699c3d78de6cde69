"""The documentation is executed: every ```python run block of a page, in order, in one namespace and a fresh directory;
every ```console run session against a real shell, its output compared line by line (`…` stands for anything)."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


JAVA = os.environ.get("JAVA_HOME") or shutil.which("java")
SPARK = bool(JAVA) and importlib.util.find_spec("pyspark") is not None


def having(kind: str) -> list[object]:
    found = {page: "\n".join(blocks(page, kind)) for page in PAGES}
    needs_spark = pytest.mark.skipif(not SPARK, reason="the page needs Spark: pyspark and Java")
    on_spark = {page for page, text in found.items() if "pyspark" in text or "hr.App(" in text}
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=needs_spark if page in on_spark else ())
        for page, text in found.items()
        if text
    ]


@pytest.mark.timeout(300)  # a page on Spark starts a JVM, on a machine that may be busy
@pytest.mark.parametrize("page", having("python run"))
def test_python_of(page: Path, tmp_path: Path) -> None:
    program = "\n".join(blocks(page, "python run"))
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}  # a JVM that lives for seconds
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", having("console run"))
def test_sessions_of(page: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "110", "TERM": "dumb"}
    environment.pop("HEADRACE_HOME", None)
    script: list[str] = []
    wanted: list[str] = []
    for block in blocks(page, "console run"):
        for line in block.splitlines():
            wanted.append(line)
            if line.startswith("$ "):
                script += [f"echo {_quoted(line)}", f"{{ {line[2:]} ; }} 2>&1" if not line.endswith("&") else line[2:]]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    got = [line for line in done.stdout.splitlines() if not re.match(r"bash: line \d+: +\d+ Killed", line)]
    for number, (expected, line) in enumerate(zip(wanted, got, strict=False)):
        pattern = ".*".join(re.escape(part) for part in expected.rstrip().split("…"))
        told = f"line {number}: {line!r}, the page says {expected!r}"
        assert re.fullmatch(pattern, line.rstrip()), f"{told}\n{done.stdout}"
    assert len(got) == len(wanted), done.stdout + done.stderr


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
