"""A windowed count and maximum by Quix Streams, in its own environment: bench.flow_peers starts it. Quix Streams reads
Kafka alone; so its dataframe, window and RocksDB state are given messages as its own loop gives them, without a broker:
decoded before the clock runs. Its state is flushed every five seconds, its default; offsets and changelogs go nowhere.
Two processes, as two members of a group: each has half of the users."""

import csv
import json
import multiprocessing
import sys
import tempfile
import time
from contextvars import copy_context

from quixstreams import Application
from quixstreams.context import set_message_context
from quixstreams.dataframe.windows.aggregations import Count, Max
from quixstreams.models import Topic, TopicConfig
from quixstreams.models.messagecontext import MessageContext

FLUSH_SECONDS = 5.0
NOWHERE = "127.0.0.1:9"
TOPIC, END = "events", "end"


def fold(events, size_ms):
    """Seconds, and rows."""
    with tempfile.TemporaryDirectory() as folder:
        app = Application(broker_address=NOWHERE, consumer_group="bench", state_dir=folder, use_changelog_topics=False)
        topic = Topic(TOPIC)
        topic.broker_config = TopicConfig(1, 1, {"retention.ms": "-1", "retention.bytes": "-1"})
        df = app.dataframe(topic)
        windows = df.tumbling_window(size_ms, grace_ms=2_000).agg(n=Count(), m=Max("ms"))
        rows = []
        process = windows.final(closing_strategy="partition").compose(
            sink=lambda value, key, _timestamp, _headers: rows.append((value["start"], key, value["n"], value["m"]))
        )[topic.name]
        processing = df.processing_context
        states = processing.state_manager
        states.init()
        states.on_partition_assign(df.stream_id, 0, {})
        processing.init_checkpoint()
        context = copy_context()
        began = flushed = time.perf_counter()
        for offset, (user, value, at_ms) in enumerate(events):
            context.run(set_message_context, MessageContext(TOPIC, 0, offset, 0))
            context.run(process, value, user, at_ms, None)
            if offset % 1_000 == 0 and time.perf_counter() - flushed > FLUSH_SECONDS:
                flush(processing, offset)
                flushed = time.perf_counter()
        flush(processing, offset)
        seconds = time.perf_counter() - began
        states.close()
    return seconds, [row for row in rows if row[1] != END]


def flush(processing, offset):
    for transaction in processing.checkpoint._store_transactions.values():
        transaction.prepare(processed_offsets={TOPIC: offset})
        transaction.flush()
    processing.init_checkpoint()


if __name__ == "__main__":
    request = json.load(sys.stdin)
    with open(request["events"], newline="") as file:
        events = [(user, {"ms": int(ms)}, int(at_ms)) for user, ms, at_ms in csv.reader(file)]
    parts = [[event for event in events if int(event[0].rpartition("-")[2]) % 2 == part] for part in (0, 1)]
    for part in parts:  # closes all windows
        part.append((END, {"ms": 0}, events[-1][2] + 3_600_000))
    seconds = []
    with multiprocessing.get_context("fork").Pool(2) as processes:
        for _ in range(request["times"]):
            done = processes.starmap(fold, [(part, request["size_ms"]) for part in parts], chunksize=1)
            seconds.append(max(each for each, _ in done))
    with open(request["out"], "w", newline="") as file:
        csv.writer(file).writerows(row for _, rows in done for row in rows)
    print(json.dumps({"seconds": seconds}))
