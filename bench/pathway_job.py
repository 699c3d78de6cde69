"""A windowed count and maximum by Pathway, in its own environment: bench.flow_peers starts it. It reads a CSV file with
its own reader, whole (`static`), and writes another one; there is nothing to warm up."""

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
    start_ms=pw.this._pw_window_start,
    user=pw.this._pw_instance,
    n=pw.reducers.count(),
    m=pw.reducers.max(pw.this.ms),
)
pw.io.csv.write(windows, request["out"])
began = time.perf_counter()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print(json.dumps({"seconds": [time.perf_counter() - began]}))
