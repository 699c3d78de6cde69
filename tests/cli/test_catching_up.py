"""How far a flow is that has much to read: the arithmetic of the line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.cli import catching_up
from headrace.cli.catching_up import Pace, Ticker
from headrace.flows.running import FlowStatus

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
