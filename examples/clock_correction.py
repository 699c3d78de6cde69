"""A device with a wrong clock tells when something happened and when it sent that, both by its own clock. What the
sending differs from our receiving is the error, and can be taken off.

Prints:
    by the devices' clocks    09:00: 1, 11:30: 1
    by ours                   09:00: 2
    one clock corrected, one kept"""

from pyspark.sql import functions as F

import headrace as hr

# The phone is right. The tablet is two and a half hours ahead: it "sent" in the afternoon what we got in the morning.
PHONE = ("2026-01-01T09:00:10Z", "2026-01-01T09:00:11Z", "2026-01-01T09:00:11Z")
TABLET = ("2026-01-01T11:30:20Z", "2026-01-01T11:30:21Z", "2026-01-01T09:00:22Z")


def on_our_clock(df):
    clocks = ("occurred", "sent", "received")
    return df.withColumn("at", hr.corrected_time(*clocks)).withColumn("clock", hr.clock_quality(*clocks))


with hr.App("clocks", home=":temp:") as app:
    taps = app.topic("taps", "occurred timestamp, sent timestamp, received timestamp", event_time="received")
    minute = hr.tumbling("1 minute")
    told = app.stream(taps).window(minute, time="occurred").agg(n=hr.count()).to_view("by_their_clocks")
    ours = app.stream(taps).transform(on_our_clock)
    right = ours.window(minute, time="at").agg(n=hr.count()).to_view("by_our_clock")
    quality = ours.transform(lambda df: df.where(F.col("clock").isNotNull())).group_by("clock").agg(n=hr.count())
    clocks = quality.to_view("clocks")

    taps.append([dict(zip(("occurred", "sent", "received"), tap, strict=True)) for tap in (PHONE, TABLET)])
    app.drain()

    def minutes(view) -> str:
        return ", ".join(f"{row['window_start']:%H:%M}: {row['n']}" for row in view.to_arrow().to_pylist())

    print(f"by the devices' clocks    {minutes(told)}")
    print(f"by ours                   {minutes(right)}")
    count = {row["clock"]: row["n"] for row in clocks.to_arrow().to_pylist()}
    print("one clock corrected, one kept" if count == {"corrected": 1, "kept": 1} else count)
