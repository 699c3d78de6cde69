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
from headrace.windows import Late

KEYS, HOUR_US = 10_000, 3_600_000_000
SCHEMA = "k bigint, kind string, v bigint, at timestamp"


def patterns(run: Run) -> Iterator[Row]:
    """An hour of events at random keys, three of ten of them a b: so one of five events ends a match."""
    count, keys = run.size(1_000_000, 5_000), run.size(KEYS, 50)
    rows = events(count, keys)
    rates, kept = zip(*(_matched(run, rows, hr.drop()) for _ in range(run.size(3, 1) + run.warm_ups)), strict=True)
    what = f"events through 'a+ b' within 10 minutes, {keys:,} keys, into a topic"
    beside = run.peer("Flink SQL", flink_peer.SETTINGS, lambda: _recognized(run, rows))
    rate = of_rates(rates[run.warm_ups :])
    yield Row("patterns", what, "events/s", rate, run.size(100_000, 0), peers=(beside,))
    yield _kept(max(kept), count, 10, "events kept at the end")
    few = rows.slice(0, count // 4)
    corrected = _matched(run, few, hr.correct(within="5 minutes"))[1]
    yield _kept(corrected, count, 15, "the same where corrections come for 5 minutes, after a quarter of an hour")


def _kept(kept: int, count: int, minutes: int, what: str) -> Row:
    bound = count * minutes // 60
    what = f"{what}; {bound:,} are of the last {minutes} minutes"
    return Row("patterns", what, "rows", Measured(kept, kept), bound, smaller_is_better=True)


def _matched(run: Run, rows: pa.Table, late: Late) -> tuple[float, int]:
    """Events a second, and how many are kept at the end."""
    with hr.App("bench", home=run.fresh("home"), spark="local[2]") as app:
        topic = app.topic("events", SCHEMA, key="k", event_time="at", durability="os")
        pattern = hr.pattern(
            "a+ b",
            define={"a": "kind = 'a'", "b": "kind = 'b'"},
            within="10 minutes",
            measures={"n": "count(*)", "total": "sum(v)"},
        )
        app.stream(topic).match(pattern, by="k", grace="0 seconds", late=late).to_topic("matches")
        topic.append(rows.slice(0, 1_000))
        app.drain()  # the session and its workers are there
        for at in range(1_000, rows.num_rows, 100_000):
            topic.append(rows.slice(at, 100_000))
        began = time.perf_counter()
        app.drain()
        took = time.perf_counter() - began
        kept = sum(each.rows for each in app.views.kept("matches") if each.side == "events")
        return (rows.num_rows - 1_000) / took, kept


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
