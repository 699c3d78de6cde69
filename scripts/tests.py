"""All tests, in a third of the time they take one after the other: those that judge how long something takes run first
and alone; then, beside each other, those in a Spark session; those of programs that start a Spark of their own, which
are mostly waited for, with those of views and their server; and the rest. Arguments go to pytest.

Not a shell script: a shell's background jobs ignore Ctrl-C, and so would the processes that tests interrupt."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALONE = ["tests/faults/test_beside.py", "tests/faults/test_upkeep_beside.py"]
PROGRAMS = [
    *(f"tests/flows/test_{name}.py" for name in ("class_archive", "cluster", "commands", "connect", "java")),
    *(f"tests/flows/test_{name}.py" for name in ("kills", "starter", "tutorial")),
    "tests/docs",
    "tests/test_bench.py",
    "tests/test_demo.py",
    "tests/serve",  # no Spark in these two: so that no group is much longer than the others
    "tests/views",
]
SESSION = ["tests/flows", "tests/testing"]


def but(paths: list[str]) -> list[str]:
    return [f"--ignore={path}" for path in paths]


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments, *sys.argv[1:]]


def main() -> int:
    print("headrace: what must not be disturbed", flush=True)
    codes = [subprocess.run(pytest(*ALONE), cwd=ROOT, check=False).returncode]
    beside = {
        "programs that start a Spark of their own, views and their server": pytest(*PROGRAMS),
        "the rest": pytest(*but([*ALONE, *PROGRAMS, *SESSION])),
    }
    print("headrace: in a Spark session; the others run beside it, and are shown afterwards", flush=True)
    with ExitStack() as stack:
        started = []
        for name, command in beside.items():
            said = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
            started.append((name, stack.enter_context(process), said))
        codes.append(subprocess.run(pytest(*SESSION, *but(PROGRAMS)), cwd=ROOT, check=False).returncode)
        for name, process, said in started:
            print(f"headrace: {name}", flush=True)
            codes.append(process.wait())
            said.seek(0)
            sys.stdout.write(said.read())
            sys.stdout.flush()
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
