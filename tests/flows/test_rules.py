"""Rules with Spark: limits on the results of windows, behind transforms, as they are changed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import headrace as hr

ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def reading(sensor: str, celsius: float, seconds: int) -> dict[str, Any]:
    return {"sensor": sensor, "celsius": celsius, "at": ZERO + timedelta(seconds=seconds)}


def told(view: hr.View) -> list[tuple[Any, ...]]:
    rows = sorted(view.to_arrow().to_pylist(), key=lambda row: (row["match_start"], row["rule"]))
    seconds = [(row["match_start"] - ZERO).seconds for row in rows]
    return [
        (row["rule"], row["version"], row["sensor"], at, json.loads(row["measures"]))
        for row, at in zip(rows, seconds, strict=True)
    ]


def test_limits_on_averages_are_changed_while_the_program_runs(headrace_spark: Any) -> None:
    """A result that a straggler corrects is judged again, by the rule that is there when the straggler arrives."""
    with hr.App("limits", home=":temp:", spark=headrace_spark) as app:
        readings = app.topic("readings", "sensor string, celsius double, at timestamp", event_time="at")
        averages = (
            app.stream(readings)
            .window(hr.tumbling("1 minute"), late=hr.correct(within="1 hour"))
            .group_by("sensor")
            .agg(celsius=hr.avg("celsius"))
            .to_view("averages")
        )
        rules = app.rules("limits", "celsius double")
        alarms = app.stream(averages).match(rules, by="sensor").to_view("alarms")
        rules.put("hot", "celsius > 30")
        rules.put("rising", hr.pattern("a b", define={"b": "celsius > prev(celsius) + 5"}, within="2 minutes"))
        readings.append([reading("roof", 28.0, 0), reading("roof", 36.0, 10), reading("cellar", 9.0, 20)])
        app.drain()
        assert told(alarms) == [("hot", "0:0", "roof", 60, {"celsius": 32.0})]
        rules.put("hot", "celsius > 40")
        readings.append(reading("roof", 45.0, 60))
        app.drain()
        assert told(alarms) == [
            ("hot", "0:0", "roof", 60, {"celsius": 32.0}),
            ("rising", "0:1", "roof", 60, {}),
            ("hot", "0:2", "roof", 120, {"celsius": 45.0}),
        ]
        readings.append(reading("roof", 11.0, 30))  # 25 on average now, of a minute that the new limit sees
        app.drain()
        assert told(alarms) == [("rising", "0:1", "roof", 60, {}), ("hot", "0:2", "roof", 120, {"celsius": 45.0})]
        assert app.audit().ok
