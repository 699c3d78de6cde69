"""A sensor fell silent: a reading, and no other one of the sensor within five minutes. It is told with no event at all,
when time has passed, and taken back if the reading was only late.

Prints:
    roof is silent since 09:00
    a reading of the roof at 09:03 was only late
    nobody is silent"""

import headrace as hr


def reading(sensor: str, time: str) -> dict:
    return {"sensor": sensor, "at": f"2026-01-01T{time}Z"}


with hr.App("house", home=":temp:") as app:
    readings = app.topic("readings", "sensor string, at timestamp", key="sensor", event_time="at")
    fell_silent = hr.pattern("reading !another", within="5 minutes")
    silent = (
        app.stream(readings)
        .match(fell_silent, by="sensor", grace="10 seconds", late=hr.correct(within="1 hour"))
        .to_view("silent")
    )

    def told() -> None:
        rows = silent.to_arrow().to_pylist()
        for row in rows:
            print(f"{row['sensor']} is silent since {row['match_start']:%H:%M}")
        if not rows:
            print("nobody is silent")

    readings.append([reading("roof", "09:00:00"), reading("cellar", "09:01:00"), reading("cellar", "09:05:30")])
    app.drain()
    told()
    print("a reading of the roof at 09:03 was only late")
    readings.append(reading("roof", "09:03:00"))
    app.drain()
    told()
