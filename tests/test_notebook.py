"""What notebooks show is data, never markup, and little of it. In a real kernel: tests/flows/test_tutorial.py."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.rendering import CELL_CHARACTERS_MAX, COLUMNS_MAX, html_table
from tests.kernels import Shown, kernel_of, needs_kernel
from tests.views.committing import VIEW, Committing

TUTORIAL = Path(__file__).parents[1] / "examples" / "tutorial.ipynb"
NASTY = "<img src=x onerror=alert(1)>\"'&</td><script>"


def test_data_is_never_markup() -> None:
    shown = Shown(html_table(NASTY, [NASTY, f"n\n{NASTY}"], [(NASTY, 1234567), (None, True)], NASTY))
    assert shown.tags == {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "br", "span"}
    assert shown.attributes == {"style"}
    assert shown.rows[0] == [NASTY, f"n{NASTY}"]
    assert shown.rows[1:] == [[NASTY, "1234567"], ["", f"True{NASTY}"]]  # the note follows the last cell


def test_a_table_is_bounded() -> None:
    shown = Shown(html_table("wide", [f"c{n}" for n in range(1000)], [["x" * 100_000] * 1000]))
    assert [len(row) for row in shown.rows] == [COLUMNS_MAX, COLUMNS_MAX]
    assert {len(text) for text in shown.rows[1]} == {CELL_CHARACTERS_MAX}


def test_a_topic_shows_its_columns_and_its_latest_records(tmp_path: Path) -> None:
    with hr.open_log(tmp_path) as log:
        clicks = log.create_topic(
            "clicks", "user string, n int, at timestamp", key="user", event_time="at", partitions=3
        )
        assert Shown(clicks._repr_html_()).rows == [
            ["_partition", "_offset", "userstring, key", "nint", "attimestamp, event time"]
        ]
        for number in range(50):
            clicks.append({"user": f"{NASTY}{number % 5}", "n": number, "at": f"2026-01-01T09:00:{number:02}Z"})
        shown = Shown(clicks._repr_html_())
        assert [row[3] for row in shown.rows[1:]] == [str(number) for number in range(30, 50)]
        assert shown.rows[-1][2:4] == [f"{NASTY}4", "49"] and shown.rows[-1][4].startswith("2026-01-01 09:00:49Z")
        assert "script" not in shown.tags and "50 records in 3 partitions" in clicks._repr_html_()
        log.delete_topic("clicks")
        assert "clicks" in clicks._repr_html_() and Shown(clicks._repr_html_()).rows == []


def test_an_app_and_a_view_that_were_not_run(tmp_path: Path) -> None:
    with hr.App("shop", home=tmp_path) as app:
        assert "no flows yet" in app._repr_html_()
        view = app.stream(app.topic("clicks", "page string")).group_by("page").agg(n=hr.count()).to_view("per_page")
        assert Shown(app._repr_html_()).rows[1] == ["topic clicks", "view per_page", "not run"]
        assert "was not run yet" in view._repr_html_()
        with pytest.raises(hr.InvalidArgument, match=r"is for notebooks.*headrace watch per_page"):
            view.live()
        with pytest.raises(hr.InvalidArgument, match="rows"):
            view.live(rows=0)


def test_the_tutorial_has_no_outputs() -> None:
    notebook = json.loads(TUTORIAL.read_text("utf-8"))
    for cell in notebook["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None, f"strip the output of {cell['id']}"
        assert cell["metadata"] == {}
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}


def test_importing_headrace_imports_no_ipython() -> None:
    program = "import sys, headrace.app, headrace.notebook; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


@needs_kernel
def test_a_live_table_follows_its_view_until_it_is_stopped(tmp_path: Path) -> None:
    """The commits are made here, in another process than the kernel's."""

    def shown(cell: str, clicks: list[str], note: str) -> None:
        until = time.monotonic() + 30
        while ([row[3] for row in kernel.rows(cell)], f">{note}<" in kernel.html(cell)) != (clicks, True):
            assert time.monotonic() < until, kernel.html(cell)
            kernel.run("import time; time.sleep(0.05)")  # outputs are received while a cell is run

    with Committing(tmp_path / "home") as flow, kernel_of(None, tmp_path) as kernel:
        flow.commit([(0, "/", 5), (1, "/", 6)])
        start = f"import headrace as hr\napp = hr.App('shop', home='home')\nview = app.view({VIEW!r})\n"
        kernel.run(f"{start}view.live(rows=2)", "first")
        shown("first", ["1", "1"], "live")
        flow.commit([(1, "/", 7), (2, "/", 5)])
        shown("first", ["2", "1"], "the last 2 rows · live")
        kernel.run("live = view.live()", "second")  # the newer one replaces the older
        shown("first", ["2", "1"], "the last 2 rows · stopped")
        interrupt = "import os, signal, threading\nthreading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        assert kernel.run(f"{interrupt}print(live.wait('1 minute'), live.running)") == "True False\n"
        shown("second", ["1", "2", "1"], "stopped")
        kernel.run("live = view.live()", "third")
        with Committing(tmp_path / "home", replace=True) as made_again:
            made_again.commit([(5, "/", 1), (5, "/", 2)])
            shown("third", ["2"], "live")
        assert kernel.run("app.close(); print(live.running)") == "False\n"
        shown("third", ["2"], "stopped")
