"""Flows run on a second log, whose offsets have holes: they know the contract and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.log.twin import TwinLog

TIMES = ["09:00:05", "09:00:40", "09:01:30", "09:00:59", "09:00:20", "09:05:00", "09:01:31", "09:06:00"]


def fill(clicks: Any, first: int, stop: int) -> None:
    for n in range(first, stop):
        rows = [{"user": f"u{i % 5}", "n": n * 10 + i, "at": f"2026-01-01T{TIMES[n]}Z"} for i in range(7)]
        clicks.append(rows)


def program(app: hr.App) -> Any:
    clicks = app.topic("clicks", "user string, n int, at timestamp", key="user", event_time="at", partitions=2)
    window = (
        app.stream(clicks)
        .transform(lambda df: df.where("n % 10 <> 3"))
        .window(hr.tumbling("1 minute"), grace="10 seconds", late=hr.correct(within="1 hour"), idle="1 day")
    )
    per_minute = window.group_by("user").agg(n=hr.count(), most=hr.max("n"), last=hr.last("n")).to_view("per_minute")
    app.stream(per_minute).group_by("user").agg(n=hr.sum("n")).to_view("per_user")
    app.stream(clicks).dedup("user", within="1 hour").to_topic("firsts")
    return clicks


def rows(app: hr.App, view: str) -> list[Any]:
    kept = [name for name in app.view(view).to_arrow().column_names if name != "_updated_at"]
    return sorted(map(str, app.view(view).to_arrow().select(kept).to_pylist()))


def outcome(app: hr.App) -> dict[str, Any]:
    firsts = sorted(record.value["n"] for record in app.log.topic("firsts").records())
    ledger = sorted(map(str, app.view("per_minute").ledger().to_pylist()))
    return {"ledger": ledger, "firsts": firsts, **{view: rows(app, view) for view in ("per_minute", "per_user")}}


@pytest.fixture(scope="module")
def expected(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with hr.App("real", home=tmp_path_factory.mktemp("real"), spark=spark) as app:
        fill(program(app), 0, len(TIMES))
        app.drain()
        return outcome(app)


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("stride", "driver_rows"),
    [(1, 0), (3, 10_000), pytest.param(1, 10_000, marks=SOAK), pytest.param(3, 0, marks=SOAK)],
)
def test_a_program_makes_the_same_of_any_log(
    spark: Any, tmp_path: Path, expected: dict[str, Any], stride: int, driver_rows: int
) -> None:
    log = TwinLog(stride=stride)
    for first, stop in (0, 3), (3, len(TIMES)):  # in two runs: the second goes on where the first was
        with hr.App("twin", home=tmp_path / "twin", log=log, spark=spark, driver_rows=driver_rows) as app:
            fill(program(app), first, stop)
            app.drain()
            found = outcome(app)
    assert found == expected
    assert expected["firsts"] and not log.closed
    assert not (tmp_path / "twin" / "log.db").exists(), "the log is in memory, and nowhere else"
    assert set(log.reported["per_minute"]) == {"clicks"}
