"""A windowed count and maximum by bytewax, in its own environment: bench.flow_peers starts it. Events are objects in
memory before the clock runs, its fastest source; results are kept in memory and written when it has stopped."""

import csv
import json
import sys
import time
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as windowing
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

BATCH = 50_000


class Events(FixedPartitionedSource):
    def __init__(self, batches):
        self.batches = batches

    def list_parts(self):
        return ["0"]

    def build_part(self, step_id, for_part, resume_state):  # noqa: ARG002
        return Batches(self.batches)


class Batches(StatefulSourcePartition):
    def __init__(self, batches):
        self.batches = iter(batches)

    def next_batch(self):
        return next(self.batches)  # StopIteration ends it

    def snapshot(self):
        return None


class Kept(DynamicSink, StatelessSinkPartition):
    def __init__(self):
        self.rows = []

    def build(self, step_id, worker_index, worker_count):  # noqa: ARG002
        return self

    def write_batch(self, items):
        self.rows.extend(items)


def fold(state, event):
    count, most = state
    return count + 1, event[1] if event[1] > most else most


def dataflow(batches, size, kept):
    flow = Dataflow("windows")
    events = op.input("events", flow, Events(batches))
    now = datetime.now(UTC)
    clock = windowing.EventClock(
        lambda event: event[0], timedelta(seconds=2), now_getter=lambda: now, to_system_utc=lambda _: None
    )  # the events alone move time: while it is slower than they were, its own clock would make them late
    windower = windowing.TumblingWindower(length=size, align_to=datetime(1970, 1, 1, tzinfo=UTC))
    folded = windowing.fold_window(
        "fold",
        events,
        clock,
        windower,
        lambda: (0, -1),
        fold,
        lambda a, b: (a[0] + b[0], max(a[1], b[1])),
        ordered=False,
    )
    op.output("kept", folded.down, kept)
    return flow


request = json.load(sys.stdin)
size = timedelta(milliseconds=request["size_ms"])
with open(request["events"], newline="") as file:
    events = [(user, (datetime.fromtimestamp(int(at_ms) / 1000, UTC), int(ms))) for user, ms, at_ms in csv.reader(file)]
batches = [events[begin : begin + BATCH] for begin in range(0, len(events), BATCH)]
seconds = []
for _ in range(request["times"]):
    kept = Kept()
    flow = dataflow(batches, size, kept)
    began = time.perf_counter()
    cluster_main(flow, [], 0, worker_count_per_proc=1)
    seconds.append(time.perf_counter() - began)
with open(request["out"], "w", newline="") as file:
    csv.writer(file).writerows(
        (window * request["size_ms"], user, count, most) for user, (window, (count, most)) in kept.rows
    )
print(json.dumps({"seconds": seconds}))
