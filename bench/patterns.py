"""What patterns cost: "a+ b within 10 minutes" over events of 10,000 keys, from the log into a durable topic, and what
is kept meanwhile. Flink SQL's MATCH_RECOGNIZE beside, over the same events from CSV files into nowhere."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import headrace as hr
from bench import flink_peer
from bench.flow_joins import START_US, _flink, _timed
from bench.settings import Run
from bench.table import Measured, Row, of_rates

KEYS, HOUR_US = 10_000, 3_600_000_000
SCHEMA = "k bigint, kind string, v bigint, at timestamp"


def patterns(run: Run) -> Iterator[Row]:
    """An hour of events at random keys, three of ten of them a b: so one of five events ends a match."""
    count, keys = run.size(1_000_000, 5_000), run.size(KEYS, 50)
    rates, kept = [], 0
    for number in range(run.size(3, 1) + run.warm_ups):
        rows, bound = events(count, keys), 0
        with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
            topic = app.topic("events", SCHEMA, key="k", event_time="at", durability="os")
            pattern = hr.pattern(
                "a+ b",
                define={"a": "kind = 'a'", "b": "kind = 'b'"},
                within="10 minutes",
                measures={"n": "count(*)", "total": "sum(v)"},
            )
            app.stream(topic).match(pattern, by="k", grace="0 seconds").to_topic("matches")
            topic.append(rows.slice(0, 1_000))
            app.drain()  # the session and its workers are there
            for at in range(1_000, count, 100_000):
                topic.append(rows.slice(at, 100_000))
            began = time.perf_counter()
            app.drain()
            rates.append((count - 1_000) / (time.perf_counter() - began))
            kept = max(kept, sum(each.rows for each in app.views.kept("matches") if each.side == "events"))
            bound = count * 600_000_000 // HOUR_US
        if number < run.warm_ups:
            rates.clear()
    what = f"events through 'a+ b' within 10 minutes, {keys:,} keys, into a topic"
    beside = run.peer("Flink SQL", flink_peer.SETTINGS, lambda: _recognized(run, events(count, keys)))
    yield Row("patterns", what, "events/s", of_rates(rates), run.size(100_000, 0), peers=(beside,))
    what = f"events kept at the end; {bound:,} are of the last 10 minutes"
    yield Row("patterns", what, "rows", Measured(kept, kept), bound, smaller_is_better=True)


def events(count: int, keys: int) -> pa.Table:
    dice = np.random.default_rng(5)
    us = START_US + (np.arange(count) * (HOUR_US // 1_000) // count) * 1_000  # whole milliseconds, for Flink
    return pa.table(
        {
            "k": pa.array(dice.integers(0, keys, count)),
            "kind": pa.array(np.where(dice.random(count) < 0.3, "b", "a")),
            "v": pa.array(dice.integers(0, 1_000, count)),
            "at": pa.array(us).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def _recognized(run: Run, rows: pa.Table) -> Measured:
    ddl = _timed("events", "k BIGINT, kind STRING, v BIGINT", "at", rows, run)
    query = """SELECT * FROM events MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY `at`
        MEASURES COUNT(a.v) AS n, SUM(a.v) AS total, LAST(b.v) AS ending
        ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
        PATTERN (a+ b) WITHIN INTERVAL '10' MINUTE
        DEFINE a AS a.kind = 'a', b AS b.kind = 'b')"""
    return _flink(run, ddl, query, rows.num_rows)
