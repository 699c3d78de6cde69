"""A pipeline and its tests: steps with the clock in the test's hand, any cut of the log, a strike at any point. Run by
pytest, and as a program.

Prints:
    sessions of steps, cuts and crashes: all as expected"""

import headrace as hr
from headrace.testing import add, advance, assert_cut_invariant, crash_points, expect, run_steps

app = hr.App("alarms", home=":temp:")
readings = app.topic("readings", "sensor string, celsius double, at timestamp", key="sensor", event_time="at")
(
    app.stream(readings)
    .window(hr.tumbling("1 minute"), grace="10 seconds", late=hr.correct(within="1 hour"))
    .group_by("sensor")
    .agg(hottest=hr.max("celsius"), readings=hr.count())
    .transform(lambda df: df.where("hottest > 80"))
    .to_view("too_hot")
)


def reading(at: str, celsius: float, sensor: str = "a") -> dict:
    return {"sensor": sensor, "celsius": celsius, "at": f"2026-01-01T{at}Z"}


def test_only_what_is_hot_is_in_the_view() -> None:
    run_steps(
        app,
        add("readings", reading("09:00:05", 20.0), reading("09:00:06", 85.0, "b")),
        expect("too_hot", [{"sensor": "b", "hottest": 85.0, "_status": "open"}]),
        advance("2 minutes"),  # 09:00:06 + (2 minutes - 30 s idle) ≥ 09:01:00 + 10 s grace
        expect("too_hot", [{"sensor": "b", "_status": "final"}]),
        add("readings", reading("09:00:30", 90.0)),  # a straggler takes a row over the threshold
        expect("too_hot", [("a", 90.0, 2), ("b", 85.0, 1)], columns=["sensor", "hottest", "readings"]),
    )


DAY = [reading(f"09:{n % 4:02}:{n:02}", 70.0 + n % 20, "ab"[n % 2]) for n in range(30)]


def test_however_the_log_is_cut() -> None:
    assert_cut_invariant(app, add("readings", DAY), cuts=2, seed=1)


def test_whenever_it_is_struck() -> None:
    assert crash_points(app, add("readings", DAY), points=["view.merged"]) == ["view.merged"]


if __name__ == "__main__":
    test_only_what_is_hot_is_in_the_view()
    test_however_the_log_is_cut()
    test_whenever_it_is_struck()
    app.close()
    print("sessions of steps, cuts and crashes: all as expected")
