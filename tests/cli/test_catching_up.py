"""How far a flow is that has much to read: the arithmetic of the line."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.cli import catching_up
from headrace.cli.catching_up import Pace, Ticker
from headrace.cli.run import line, log_to_stderr
from headrace.flows.status import FlowStatus

MARCH = datetime(2019, 3, 4, 10, 0, 30, tzinfo=UTC)


def status(read: int, lag: int, frontier: datetime | None = MARCH) -> FlowStatus:
    return FlowStatus("views", "running", 0, 0, 0.0, 0.0, lag, frontier, 0, 0, "", read)


def test_records_rate_time_and_what_is_left() -> None:
    now = [100.0]
    pace = Pace(lambda: now[0])
    assert pace.line(status(5_000_000, 50_000_000, None)) == "views: 0 of 50,000,000 records (0 %)"
    now[0] += 10
    line = pace.line(status(15_000_000, 40_000_000))  # a million a second, and 40 to go
    assert line == (
        "views: 10,000,000 of 50,000,000 records (20 %), at 2019-03-04 10:00, 1,000,000/s, about 40 seconds left"
    )
    barred = Pace(lambda: now[0], bar=True)
    barred.line(status(0, 50_000_000))
    assert str(barred.line(status(19_000_000, 31_000_000))).startswith("views: [###.......] 19,000,000 of 50,000,000")
    now[0] += 10
    line = pace.line(status(25_000_000, 60_000_000))  # more came meanwhile
    assert line is not None and "20,000,000 of 80,000,000" in line and "about 1 minute left" in line
    busy = replace(status(25_000_000, 60_000_000), spark_jobs=1_200, spark_tasks=2_400, spark_seconds=61.25)
    assert str(pace.line(busy)).endswith(" left, 1,200 Spark jobs (2,400 tasks): 61.2 s")
    assert pace.line(status(85_000_000, 20)) is None  # it has caught up
    assert pace.line(status(85_000_000, 20_000)) == "views: 0 of 20,000 records (0 %), at 2019-03-04 10:00"


def test_without_a_terminal_a_line_now_and_then(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(["first", "", "third"])
    now = [0.0]
    monkeypatch.setattr(catching_up.time, "monotonic", lambda: now[0])
    ticker = Ticker(lambda: next(said))
    for seconds in (0, 9, 11, 15, 22, 33):
        now[0] = seconds
        ticker.tick()
    ticker.clear()
    assert capsys.readouterr().err == "first\nthird\n"


@pytest.mark.parametrize("how", ["text", "json"])
def test_a_warning_takes_the_place_of_the_line(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    logger = logging.getLogger("headrace")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    log_to_stderr(how)
    Ticker(lambda: "1 flow: 0/s, lag 0").tick()
    logger.warning("sink 'books': disk on fire")
    before, said = shown.getvalue().removesuffix("\n").rsplit("\r\x1b[K", 1)
    assert before.endswith("lag 0") and said.startswith("WARNING" if how == "text" else "{")


def test_all_flows_are_in_the_line_of_a_narrow_terminal() -> None:
    flows = [
        FlowStatus(f"views_by_{name}", "running", 9, 1, 100.0, 0.1, 10 * lag, MARCH, dead, 0, "")
        for lag, (name, dead) in enumerate(
            [("page", 0), ("user", 1), ("city", 0), ("shop", 2), ("hour", 0), ("day", 0)]
        )
    ]
    assert line(flows, Pace(), 79) == (
        "6 flows: 600/s, lag 150 (views_by_day 50), complete to 10:00:30, 3 dead letters"
    )
    assert line(flows, Pace(), 1_000).count("views_by_") == 6
    failed = FlowStatus("sales", "failed", 9, 1, 0.0, 0.1, 0, None, 0, 0, "the disk is full")
    assert line([*flows, failed], Pace(), 79).endswith(", sales failed: the disk is full")
    busy = [replace(each, spark_jobs=2, spark_seconds=0.5) for each in flows]  # as over Spark Connect
    assert line(busy, Pace(), 79).endswith(", 3 dead letters, 12 Spark jobs: 3.0 s")
    assert line(busy, Pace(), 1_000).count(", 2 Spark jobs: 0.5 s") == 6
