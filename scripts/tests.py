"""All tests, in a third of the time they take one after the other. Those that judge how long something takes run first
and alone. Then three processes at a time: one begins with half of the tests in a Spark session, and is shown as it
goes; the others take one part after the other, and whoever is done takes the next, so that all end together. Arguments
go to pytest.

Where the machine has room in memory, the tests keep their files there: a third of the time went into waiting for a
disk. What a disk may do to files is tested with one that misbehaves on purpose (tests/faults/disk.py). What runs first
and alone uses the real one, and so does a plain pytest.

Not a shell script: a shell's background jobs ignore Ctrl-C, and so would the processes that tests interrupt."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALONE = ["tests/faults/test_beside.py", "tests/faults/test_upkeep_beside.py"]
PROGRAMS = [
    *(f"tests/flows/test_{name}.py" for name in ("class_archive", "cluster", "commands", "connect", "java")),
    *(f"tests/flows/test_{name}.py" for name in ("kills", "starter", "tutorial")),
    "tests/docs",
    "tests/test_bench.py",
    "tests/test_demo.py",
]
FLOWS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "flows").glob("test_*.py"))
SESSION = [path for path in FLOWS if path < "tests/flows/test_p" and path not in PROGRAMS]
SESSION_TOO = [*(path for path in FLOWS if path not in (*SESSION, *PROGRAMS)), "tests/kafka", "tests/testing"]
FAULTS, LOG, VIEWS = ["tests/faults"], ["tests/log"], ["tests/serve", "tests/views"]

MEMORY, ROOM = Path("/dev/shm"), 4 << 30
"""A folder in memory, and how many bytes of it must be free. The tests' files take less than one gigabyte."""


def but(paths: list[str]) -> list[str]:
    return [f"--ignore={path}" for path in paths]


PARTS = {  # the longest first, and few: each imports everything anew
    "in a Spark session, the other half": SESSION_TOO,
    "programs that start a Spark of their own": PROGRAMS,
    "the rest": but([*PROGRAMS, "tests/flows", "tests/kafka", "tests/testing", *FAULTS, *LOG, *VIEWS]),
    "faults": [*FAULTS, *but(ALONE)],
    "views and their server": VIEWS,
    "the log": LOG,
}


def pytest(arguments: list[str]) -> list[str]:
    """Without a plugin that takes a second to load, and that no test needs as one."""
    return [sys.executable, "-m", "pytest", "-p", "no:schemathesis", *arguments, *sys.argv[1:]]


@contextmanager
def files_in_memory() -> Iterator[None]:
    """Temporary files of this process and of those it starts, if there is room. They go when the tests are done."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        yield
        return
    os.environ["TMPDIR"] = folder = tempfile.mkdtemp(prefix="hr-", dir=MEMORY)  # short, as paths of sockets must be
    Path(folder).chmod(0o711)  # some tests are another user
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # many processes import the same: it is compiled once
    print("headrace: what must not be disturbed", flush=True)
    alone = subprocess.run(pytest(ALONE), cwd=ROOT, check=False).returncode
    with files_in_memory():
        return max(alone, *side_by_side())


def side_by_side() -> list[int]:
    """The exit codes of all parts."""
    codes = []
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in PARTS:
        left.put(name)
    done: dict[str, tuple[int, str, float]] = {}

    def take_parts() -> None:
        while not left.empty():
            name, began = left.get(), time.monotonic()
            out = subprocess.run(pytest(PARTS[name]), cwd=ROOT, stdout=-1, stderr=-2, text=True, check=False)
            done[name] = out.returncode, out.stdout, time.monotonic() - began

    beside = [threading.Thread(target=take_parts) for _ in range(2)]
    for each in beside:
        each.start()
    print("headrace: in a Spark session; the other parts run beside it, and are shown afterwards", flush=True)
    codes.append(subprocess.run(pytest(SESSION), cwd=ROOT, check=False).returncode)
    take_parts()
    for each in beside:
        each.join()
    for name, (code, said, took) in done.items():
        print(f"headrace: {name}, {took:.0f} s\n{said}", flush=True)
        codes.append(code)
    return codes


if __name__ == "__main__":
    raise SystemExit(main())
