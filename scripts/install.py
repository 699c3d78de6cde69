"""Makes .venv, if there is none, and installs headrace with the extras named, and what it depends on, into it:
`python3 scripts/install.py [serve] [dev] …`. Owns the order of the steps and the lines that say how far they are. Uses
Python's own library only, for nothing else is there yet. Interrupted, it leaves a .venv without the file `set-up`,
which scripts/setup writes last.

Spark comes as source (450 MB) that pip makes a wheel of; the other libraries are installed meanwhile. The wheel is not
compressed, and tests that libraries bring are not compiled: that halves the time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = str(VENV / "bin" / "python")
LOG, UNCOMPRESSED = VENV / "pip.log", VENV / "uncompressed.cfg"
PIP = (PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile")
PINS = ("--constraint", str(ROOT / "constraints.txt"))
LOOK_SECONDS, TOLD_SECONDS, TOLD_AGAIN_SECONDS = 0.5, 2.0, 10.0

STEPS = (
    (r"Downloading (\S+?)(?:-py\d\S*|-cp\d\S*|\.tar\.gz) (\(.*\))", r"fetching \1 \2"),
    (r"Using cached (\S+?)(?:-py\d\S*|-cp\d\S*|\.tar\.gz) .*", r"\1 is in pip's cache"),
    (r"Building wheel for (\S+) .*started", r"building \1"),
    (r"Installing collected packages: (.*)", r"installing \1"),
)
"""What pip says, and what that means."""


def step_of(line: str) -> str | None:
    """What pip does from this line of its output on; None if the line does not say."""
    for pattern, said in STEPS:
        if found := re.fullmatch(pattern, line.strip()):
            step = found.expand(said)
            return step if len(step) <= 60 else f"installing {step.count(',') + 1} packages"
    return None


class Job:
    """Commands that run one after the other, in a thread. `step`: what it does now, '' when it has ended."""

    def __init__(self, name: str, *commands: Sequence[str]) -> None:
        self.name, self.step, self.failed = name, "beginning", ""
        self._commands, self._process = commands, None
        self._stopped, self._done = False, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for command in self._commands:
                if not self._stopped and not self.failed:
                    self._follow(command)
        except OSError as error:  # it cannot be run, or not be written down: a full disk
            self.failed = str(error)
        finally:
            self.step = ""
            self._done.set()

    def _follow(self, command: Sequence[str]) -> None:
        if "compileall" in command:
            self.step = "compiling"
        reason = ""
        with LOG.open("a") as log:
            env = {**os.environ, "PYTHONUNBUFFERED": "1", "DIST_EXTRA_CONFIG": str(UNCOMPRESSED)}
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            with subprocess.Popen(command, text=True, errors="replace", env=env, **streams) as self._process:
                for line in self._process.stdout:
                    log.write(f"{self.name}: {line}")
                    self.step = step_of(line) or self.step
                    if line.strip().startswith("ERROR: "):
                        reason = line.strip().removeprefix("ERROR: ")
        if self._process.returncode and "compileall" not in command:  # what is not compiled only starts later
            self.failed = reason or "no reason given"

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so many seconds at most. A thread's own join takes it for ended when a signal
        interrupts it."""
        return self._done.wait(seconds)

    def end(self) -> None:
        self._stopped, ended = True, False
        while not ended:  # a process may just be starting
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
            ended = self._done.wait(LOOK_SECONDS)


class Progress:
    """What the jobs do: on a terminal in one line that is written again every second, else a line for each step that
    takes a while, and one now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._told, self._told_at = "", self._began - TOLD_SECONDS

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def show(self, jobs: Sequence[Job]) -> None:
        said = "; ".join(f"{job.name}: {job.step}" for job in jobs if job.step)
        since = time.monotonic() - self._told_at
        line = f"headrace: {self.seconds():3.0f} s  {said}"
        if self._live:
            print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif said and since >= (TOLD_SECONDS if said != self._told else TOLD_AGAIN_SECONDS):
            print(line, flush=True)
            self._told, self._told_at = said, time.monotonic()

    def clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", flush=True)


def run(progress: Progress, *jobs: Job) -> None:
    """Until all have ended; the first that fails, Ctrl-C or SIGTERM end the others."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while not any(job.failed for job in jobs):
            progress.show(jobs)
            ended = [job.wait(LOOK_SECONDS / len(jobs)) for job in jobs]
            if all(ended):
                break
    finally:
        for job in jobs:
            job.end()
        progress.clear()
    for job in jobs:
        if job.failed:
            sys.exit(
                f"headrace: {job.name}: {job.failed}. Check the network and pip's settings, then run make again; the "
                f"whole output is in {LOG.relative_to(ROOT)}."
            )


def compiled(*folders: Path, but: str = "tests?") -> tuple[str, ...]:
    """The command that compiles them: else every process compiles what it imports, where Python may not keep it."""
    return PYTHON, "-m", "compileall", "-q", "-x", rf"[\\/]({but})[\\/]", *map(str, folders)


def requirements(project: dict[str, Any], extras: Sequence[str]) -> list[str]:
    """All that is depended on, those of the extras and of the extras in them too."""
    wanted, more = list(project["dependencies"]), project["optional-dependencies"]
    for extra in extras:
        for each in more[extra]:
            inner = re.fullmatch(r"headrace\[(.*)\]", each)
            wanted += requirements({**project, "dependencies": []}, inner[1].split(",")) if inner else [each]
    return list(dict.fromkeys(wanted))


def install(extras: Sequence[str]) -> None:
    progress = Progress()
    if not Path(PYTHON).exists():
        VENV.mkdir()
        run(progress, Job("virtual environment", (sys.executable, "-m", "venv", str(VENV))))
    UNCOMPRESSED.write_text("[bdist_wheel]\ncompression=stored\n")
    (packages,) = VENV.glob("lib/python3*/site-packages")
    itself = ("--editable", f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT))
    if (packages / "pyspark").exists():
        run(progress, Job("headrace", (*PIP, *PINS, *itself), compiled(packages, ROOT / "src")))
    else:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        every = requirements(project, extras)
        spark = [each for each in every if each.startswith("pyspark")]
        others = [each for each in every if each not in spark]
        run(
            progress,
            Job("Spark", (*PIP, *PINS, *spark), (*PIP, "--no-deps", *itself)),
            Job("libraries", (*PIP, *PINS, *others), compiled(packages, ROOT / "src", but="tests?|pyspark")),
        )
        run(progress, Job("Spark", compiled(packages / "pyspark")))
    print(f"headrace: installed after {progress.seconds():.0f} s", flush=True)


if __name__ == "__main__":
    try:
        install(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
