"""A windowed count and maximum by Pathway, in its own environment: bench.flow_peers starts it, once for each time, since
a process has one graph. It reads CSV files with its own reader, whole (`static`), and writes a CSV file."""

import json
import sys
import time

import pathway as pw


class Event(pw.Schema):
    user: str
    ms: int
    at: int


request = json.load(sys.stdin)
size, every = request["size_ms"], request["every_ms"]
kind = pw.temporal.tumbling(duration=size) if size == every else pw.temporal.sliding(hop=every, duration=size)
events = pw.io.csv.read(request["events"], schema=Event, mode="static")
windows = events.windowby(pw.this.at, window=kind, instance=pw.this.user).reduce(
    start=pw.this._pw_window_start,
    user=pw.this._pw_instance,
    n=pw.reducers.count(),
    m=pw.reducers.max(pw.this.ms),
)
if request["out"]:
    pw.io.csv.write(windows, request["out"])
else:
    pw.io.null.write(windows)
began = time.perf_counter()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print(json.dumps({"seconds": [time.perf_counter() - began]}))
