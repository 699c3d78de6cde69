"""The tutorial in a real kernel: its outputs, its live table, and cells that are run again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.kernels import Kernel, kernel_of, needs_kernel
from tests.test_notebook import TUTORIAL

pytestmark = [
    pytest.mark.timeout(240),  # a kernel, and in it a JVM, on a machine that may be busy
    needs_kernel,
]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Stopped before the tutorial stops its app; the rest is run afterwards."""
    folder = tmp_path_factory.mktemp("notebook")
    with kernel_of(TUTORIAL.read_text("utf-8"), folder) as started:
        for cell in started.begun():
            started.execute(cell)
            if cell == "status":
                yield started
    assert not list(folder.glob("headrace-*/log.db"))  # the app's temporary home went with it


def test_the_tutorial_shows_what_it_says(kernel: Kernel) -> None:
    assert [row[2:4] for row in kernel.rows("log")][1:3] == [["bob", "/"], ["monitor", "/health"]]
    found = [["/", "2", "final"], ["/cart", "1", "final"], ["/", "1", "open"]]
    assert [row[2:] for row in kernel.rows("close")] == found
    assert kernel.text("straggler") == "- / 2 final 0\n+ / 3 final 1\n"
    assert [row[3:] for row in kernel.rows("ledger")] == [["3", "1", "0", "0"], ["1", "0", "0", "0"]]
    assert kernel.text("audit") == "True"
    assert [row[1:] for row in kernel.rows("query")] == [["/", "4"], ["/cart", "1"]]
    assert re.search(r"\|2026-01-01 09:00:00\|/ +\|3 +\|", kernel.text("spark"))
    (status,) = kernel.rows("status")
    assert (status[0], status[2], status[6]) == ("views_per_minute", "6", "0")


def test_a_live_table_follows_its_view(kernel: Kernel) -> None:
    """It is in the output of the cell that began it; the straggler came cells later."""
    corrected = [["/", "3", "final", "1"], ["/cart", "1", "final", "0"], ["/", "1", "open", "0"]]
    until = time.monotonic() + 60
    while [row[2:6] for row in kernel.rows("start")] != corrected:
        assert time.monotonic() < until, kernel.html("start")
        kernel.run("import time; time.sleep(0.1)")  # outputs are received while a cell is run
    assert ">live<" in kernel.html("start")


def test_a_cell_that_is_run_again_replaces_its_flow(kernel: Kernel) -> None:
    again = kernel.source("flow")
    assert kernel.run(f"{again}\nprint(len(app.flows), app.status()[0].state != 'stopped')") == "1 True\n"
    changed = again.replace("1 minute", "30 seconds")
    append = "done = clicks.append(click('cid', '/', '09:02:00'))"
    ask = "select views from views_per_minute order by window_start, page"
    query = f"print(app.query({ask!r}, wait_for=done.position, timeout='1 minute').to_pydict())"
    assert kernel.run("\n".join((changed, append, query))) == "{'views': [1, 2, 1, 1, 1]}\n"


def test_all_cells_run_again_leave_one_app(kernel: Kernel) -> None:
    """A new app of the same name has the flows; the session is the same one."""
    kernel.run("before = app.running.spark; old = app")
    kernel.run("\n".join(kernel.source(cell) for cell in ("log", "flow", "start")))
    done = kernel.run("print(app is old, app.running.spark is before, old.home.exists(), len(app.status()))")
    assert done == "False True False 1\n"
