"""The test kit finds what it is for: a result that depends on the cut, rows that a crash doubles or loses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.failpoints import reach
from headrace.flows.writing.relay import Relay
from headrace.testing import CRASH_POINTS, add, advance, assert_cut_invariant, crash_points, restart

ROWS = add("orders", [{"id": f"order-{n % 7}", "at": f"2026-01-01T09:00:{n:02}Z"} for n in range(20)])


@pytest.fixture
def app(headrace_spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with hr.App("shop", home=tmp_path, spark=headrace_spark) as app:
        app.topic("orders", "id string, at timestamp", event_time="at")
        yield app


def once(batches: Iterator[Any]) -> Iterator[Any]:
    """Each order once. In a batch: what was in the batch before, it does not know. The sample rows that a transform is
    tried on have no such ids."""
    import pyarrow as pa

    seen: set[str] = set()
    for batch in batches:
        ids = batch.column("id").to_pylist()
        new = [each is None or not each.startswith("order-") or each not in seen for each in ids]
        for at, each in enumerate(ids):
            if each in seen:
                new[at] = not (each or "").startswith("order-")
            seen.add(each)
        yield batch.filter(pa.array(new, pa.bool_()))


def test_a_result_that_depends_on_the_cut_is_found(app: hr.App) -> None:
    stream = app.stream("orders").transform(lambda df: df.mapInArrow(once, df.schema))
    stream.agg(n=hr.count()).to_view("orders_seen")
    with pytest.raises(AssertionError) as told:
        assert_cut_invariant(app, ROWS, cuts=5, seed=1)
    lines = str(told.value).splitlines()
    assert lines[:2] == ["the result depends on how the log is cut", "at once: orders_seen 20"]
    assert lines[2].startswith("cut 0 of seed 1: orders_seen ")
    assert lines[3].split() == ["row", "column", "cut", "at", "once"]
    assert lines[4].split()[:4] == ["orders_seen", "the", "row", "n"]
    assert lines[4].split()[-1] == "7"


def test_changes_in_a_topic_are_compared_by_what_they_come_to(app: hr.App) -> None:
    """How many there are on the way is a matter of the cut."""
    app.stream("orders").group_by("id").agg(n=hr.count()).to_topic("changes")
    assert_cut_invariant(app, ROWS, advance("1 minute"), ROWS, cuts=2, seed=1)


def test_crashes_are_survived_at_every_point(app: hr.App) -> None:
    app.stream("orders").group_by("id").agg(n=hr.count()).to_topic("changes")
    assert set(crash_points(app, ROWS)) == set(CRASH_POINTS)


def test_rows_that_a_crash_doubles_are_found(app: hr.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that does not number its rows appends them again."""

    def forgetful(self: Relay, waiting: Any) -> int:
        self._log.topic(waiting.target).append(waiting.rows.drop_columns(["_progress"]))
        reach("relay.appended")
        return int(waiting.rows.num_rows)

    app.stream("orders").to_topic("copies")
    monkeypatch.setattr(Relay, "_send", forgetful)
    with pytest.raises(AssertionError, match=r"(?s)struck at relay.appended, the result differs.*copies .* 2 +1"):
        crash_points(app, ROWS, points=["relay.appended"])


def test_without_steps_it_is_the_apps_own_log_and_points_that_are_not_on_the_way_are_not_told(app: hr.App) -> None:
    seen = app.stream("orders").agg(n=hr.count()).to_view("orders_seen")
    app.log.topic("orders").append(ROWS.rows)
    assert crash_points(app, points=["relay.appended", "view.merged"]) == ["view.merged"]
    counted = []
    assert_cut_invariant(app, cuts=0, check=lambda ran: counted.append(ran.view("orders_seen").get()))
    assert [row and row["n"] for row in counted] == [20]
    assert seen.to_arrow().num_rows == 0  # the app itself was not run


def test_what_makes_no_sense_is_refused(app: hr.App) -> None:
    with pytest.raises(hr.InvalidArgument, match="only add and advance"):
        assert_cut_invariant(app, ROWS, restart())  # type: ignore[arg-type]
    with pytest.raises(hr.InvalidArgument, match="add some"):
        crash_points(app)
    with pytest.raises(hr.InvalidArgument, match=r"flow\.planed"):
        crash_points(app, ROWS, points=["flow.planed"])
    with pytest.raises(hr.InvalidArgument, match="another process"):
        crash_points(app, ROWS, kill=True)


def test_the_kit_is_cheap_to_import() -> None:
    program = (
        "import sys, headrace.testing as t; from headrace.testing.steps import add;"
        "sys.exit([name for name in ('pytest', 'pyspark', 'py4j') if name in sys.modules] or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_plugin_starts_no_jvm_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["headrace.testing.pytest_plugin"]')
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_none(): assert not {'pyspark', 'py4j', 'pyarrow'} & sys.modules.keys()"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
