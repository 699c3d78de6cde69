"""The documentation is executed. Every ```python run block of a page, in order, in one namespace and a fresh directory,
in a process of its own; pages that only run apps share the Spark session of the tests, because starting one takes
seconds. Every ```console run session by a shell that is typed at, its output compared line by line (`…` stands for
anything). A ```python run NAME.py block is also the file of that name where the session is."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace import app as apps
from headrace.demo.process import QUICK_START
from headrace.flows.spark import class_archive, java
from headrace.testing.spark import SETTINGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, kind: str) -> list[str]:
    return [text for _, text in named_blocks(page, kind)]


def named_blocks(page: Path, kind: str) -> list[tuple[str, str]]:
    """Blocks with the name of the file that they are, if they have one."""
    pattern = re.compile(rf"^```{kind}(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return pattern.findall(page.read_text(encoding="utf-8"))


JAVA = java.home()
SPARK = bool(JAVA) and importlib.util.find_spec("pyspark") is not None


def having(kind: str) -> list[object]:
    found = {page: "\n".join(blocks(page, kind)) for page in PAGES}
    needs_spark = pytest.mark.skipif(not SPARK, reason="the page needs Spark: pyspark and Java")
    on_spark = {page for page, text in found.items() if re.search(r"pyspark|hr\.App\(|headrace (run|audit) ", text)}
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=needs_spark if page in on_spark else ())
        for page, text in found.items()
        if text
    ]


SHARED = (
    "aggregates calls capture chains dedup extending howto joins mysql postgres rebuild tables time tutorial windows"
)
SHARED += " erasure from-flink from-kafka-streams from-structured-streaming sinks"
SHARING = {ROOT / "docs" / f"{name}.md" for name in SHARED.split()}
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


def submitted() -> str:
    """For sessions that pages make of their own: what those of the tests have, so that they are quick."""
    options = {CHECKPOINTS: SETTINGS[CHECKPOINTS], "spark.ui.enabled": "false"}
    if "SharedArchiveFile" in (archive := class_archive.java_options()):
        options["spark.driver.extraJavaOptions"] = archive
    return " ".join([*(f"--conf '{name}={value}'" for name, value in options.items()), "pyspark-shell"])


@pytest.mark.timeout(300)  # a page on Spark starts a JVM, on a machine that may be busy
@pytest.mark.parametrize("page", having("python run"))
def test_python_of(page: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "\n".join(blocks(page, "python run"))
    if page in SHARING:
        monkeypatch.chdir(tmp_path)
        if page.stem == "postgres":  # skipped where there is none
            monkeypatch.setenv("HEADRACE_VIEWS", request.getfixturevalue("postgres").schema(tmp_path))
        if page.stem == "capture":
            monkeypatch.setenv("SHOP_DB", request.getfixturevalue("postgres").database("shop_of_docs"))
        if page.stem == "mysql":
            monkeypatch.setenv("SHOP_DB", request.getfixturevalue("mariadb").database("shop_of_docs"))
        monkeypatch.setitem(apps.overrides, "spark", request.getfixturevalue("headrace_spark"))
        exec(compile(program, str(page), "exec"), {"__name__": "__main__"})
        return
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_START, "PYSPARK_SUBMIT_ARGS": submitted()}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # a clone
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", having("console run"))
def test_sessions_of(page: Path, tmp_path: Path) -> None:
    for name, text in named_blocks(page, "python run"):
        if name:
            (tmp_path / name).write_text(text)
    commands: list[tuple[str, list[str]]] = []
    for line in "".join(blocks(page, "console run")).splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "110", "TERM": "dumb"}
    environment["JAVA_TOOL_OPTIONS"] = QUICK_START
    environment.pop("HEADRACE_HOME", None)
    with contextlib.closing(Shell(tmp_path, environment)) as shell:
        for command, wanted in commands:
            shell.run(command, wanted)
        shell.end()


LINE_SECONDS = 120


class Shell:
    """bash, typed at line by line: a command is given when all that the one before should print has come."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._shown: list[str] = []
        self._beside = False  # whether a job in the background prints too
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            if not re.match(r"bash: line \d+: +\d+ Killed", line):
                self._lines.put(line.rstrip())
        self._lines.put(None)

    def _next(self, wanted: str) -> str:
        try:
            line = self._lines.get(timeout=LINE_SECONDS)
        except queue.Empty:
            line = None
        told = "\n".join(self._shown)
        assert line is not None, f"the page says {wanted!r}, and nothing came after\n{told}"
        self._shown.append(line)
        return line

    def run(self, command: str, wanted: list[str]) -> None:
        assert self._bash.stdin is not None
        job = command.endswith("&")
        given = command if job else f"{{ {command} ; }} </dev/null"
        self._bash.stdin.write(f"echo {_quoted('$ ' + command)}\n{given}\n")
        self._bash.stdin.flush()
        assert self._next(f"$ {command}") == f"$ {command}", "\n".join(self._shown)
        self._beside |= job and ">" not in command
        left = list(wanted)
        for _ in wanted:
            line = self._next(left[0])
            while SLOW_START.fullmatch(line):  # said only where the machine is busy
                line = self._next(left[0])
            fitting = [each for each in (left if self._beside else left[:1]) if _fits(each, line)]
            assert fitting, f"{line!r} came, the page says {left[0]!r}\n" + "\n".join(self._shown)
            left.remove(fitting[0])

    def end(self) -> None:
        """Nothing may come that the page does not say."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        line = self._lines.get(timeout=LINE_SECONDS)
        assert line is None, f"{line!r} came, which the page does not say"

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()


SLOW_START = re.compile(r"Spark starts, and flows are checked: \d+ s")


def _fits(expected: str, line: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, expected.rstrip().split("…"))), line) is not None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
