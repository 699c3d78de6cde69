"""All tests, in the time of half of them: those that judge how long something takes run first and alone; then those
that need Spark, and beside them, on the other core, those that do not. Arguments go to pytest.

Not a shell script: a shell's background jobs ignore Ctrl-C, and so would the processes that tests interrupt."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALONE = ["tests/faults/test_beside.py", "tests/faults/test_upkeep_beside.py"]
SPARK = ["tests/flows", "tests/testing", "tests/docs", "tests/test_demo.py", "tests/test_bench.py"]


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments, *sys.argv[1:]]


def main() -> int:
    print("headrace: what must not be disturbed", flush=True)
    codes = [subprocess.run(pytest(*ALONE), cwd=ROOT, check=False).returncode]
    print("headrace: on Spark; the rest runs beside it, and is shown afterwards", flush=True)
    rest = pytest(*(f"--ignore={path}" for path in (*ALONE, *SPARK)))
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(rest, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT) as beside,
    ):
        codes.append(subprocess.run(pytest(*SPARK), cwd=ROOT, check=False).returncode)
        print("headrace: the rest", flush=True)
        codes.append(beside.wait())
        said.seek(0)
        sys.stdout.write(said.read())
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
