"""All tests, in a third of the time they take one after the other. Those that judge how long something takes run first
and alone. Then four processes at a time: one with Kafka's tests, whose clients' threads end with it; the others take
the next module that none has taken (tests/taking.py), two of them what needs a Spark session first, and all go on with
the rest, so that they end together. They are more than processors, because much is waited for. Arguments go to pytest.
A module is shown when it is done, failures at the end.

Where the machine has room in memory, the tests keep their files there: a third of the time went into waiting for a
disk. What a disk may do to files is tested with one that misbehaves on purpose (tests/faults/disk.py). What runs first
and alone uses the real one, and so does a plain pytest.

Not a shell script: a shell's background jobs ignore Ctrl-C, and so would the processes that tests interrupt."""

from __future__ import annotations

import codecs
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.taking import TAKEN, together  # noqa: E402

ALONE = ["tests/faults/test_beside.py", "tests/faults/test_upkeep_beside.py"]
LONG = (
    *("tests/test_demo.py", "tests/test_bench.py", "tests/flows/test_chains.py", "tests/docs/test_pages.py"),
    *("tests/flows/test_commands.py", "tests/flows/test_cuts.py", "tests/kafka", "tests/flows/test_many"),
    *("tests/flows/test_cluster.py", "tests/flows/test_connect.py", "tests/flows/test_tutorial.py", "postgres"),
    *("tests/serve/test_page.py", "tests/faults/"),
)
"""What takes longest, by the beginning of its path, is begun first: who takes one last keeps the others waiting."""

MEMORY, ROOM = Path("/dev/shm"), 4 << 30
"""A folder in memory, and how many bytes of it must be free. The tests' files take less than one gigabyte."""
SILENT_SECONDS = 10
"""When nothing was shown for so long, what is running is."""
NOTHING_TO_RUN = 5
"""pytest's exit code, as where the arguments choose no test that a process has."""
DONE = re.compile(r"tests/\S+\.py [.sxXEF]+")


def orders() -> list[list[str]]:
    """For each process, what it takes as long as no other has."""
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")} - {*ALONE}
    modules = sorted(found, key=lambda path: (*(not together(path).startswith(each) for each in LONG), path))
    in_session = {
        together(path) for path in modules if re.search("spark: |headrace_spark", (ROOT / path).read_text("utf-8"))
    }
    kafka = [path for path in modules if path.startswith("tests/kafka/")]
    session = [path for path in modules if together(path) in in_session and path not in kafka]
    rest = [path for path in modules if path not in (*session, *kafka)]
    return [session + rest, session + rest, kafka, rest]


class Run(threading.Thread):
    """pytest, without a plugin that takes a second to load, and that no test needs as one. The line of a module that is
    done is shown; all else is kept."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__()
        command = [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-o", "console_output_style=classic"]
        self._pytest = subprocess.Popen([*command, *arguments, *sys.argv[1:]], cwd=ROOT, stdout=-1, stderr=-2)
        self.code, self.said, self.saying = 0, "", ""
        self.start()

    def run(self) -> None:
        assert self._pytest.stdout is not None
        for text in codecs.iterdecode(
            iter(functools.partial(os.read, self._pytest.stdout.fileno(), 1 << 16), b""), "utf-8"
        ):
            *lines, self.saying = (self.saying + text).split("\n")
            for line in lines:
                if DONE.fullmatch(line):
                    show(line)
                else:
                    self.said += f"{line}\n"
        self.code = self._pytest.wait()


def finished(*runs: Run) -> list[Run]:
    """Waits for all of them; what takes long is named meanwhile."""
    while running := [each for each in runs if each.is_alive()]:
        running[0].join(1)
        if time.monotonic() - shown > SILENT_SECONDS:
            now = ", ".join(each.saying.partition(" ")[0] or "starting" for each in running if each.is_alive())
            show(f"headrace: {time.monotonic() - BEGAN:.0f} s, running {now}")
    return list(runs)


shown = BEGAN = time.monotonic()


def show(line: str) -> None:
    global shown
    shown = time.monotonic()
    print(line, flush=True)


@contextmanager
def files_in_memory() -> Iterator[None]:
    """Temporary files of this process and of those it starts, if there is room. They go when the tests are done."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        yield
        return
    os.environ["TMPDIR"] = tempfile.tempdir = folder = tempfile.mkdtemp(prefix="hr-", dir=MEMORY)  # short: sockets
    Path(folder).chmod(0o711)  # some tests are another user
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # many processes import the same: it is compiled once
    show("headrace: what must not be disturbed")
    runs = finished(Run(ALONE))
    show("headrace: all others")
    with files_in_memory(), tempfile.TemporaryDirectory() as os.environ[TAKEN]:
        runs += finished(*map(Run, orders()))
    counts = Counter[str]()
    for run in runs:
        show(run.said)
        *_, last = [
            "",
            *re.findall(r"^=+ (.*) in [\d.]+s.*=+$", run.said, re.MULTILINE),
        ]  # a program may speak after it
        counts.update({what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", last)})
    show(f"headrace: all tests, {time.monotonic() - BEGAN:.0f} s")
    show(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")
    return max({run.code for run in runs} - {NOTHING_TO_RUN}, default=NOTHING_TO_RUN)


if __name__ == "__main__":
    raise SystemExit(main())
