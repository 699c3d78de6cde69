"""Time, line by line: the flow's own time column, dropped records, frontier and idleness, what a topic of results
carries on, union, corrected clocks."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import add, advance, expect, restart, run_steps
from tests.flows.oracle import records_of

START = datetime(2026, 1, 1, 9, tzinfo=UTC)
SEED = 20261116


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def rows(app: hr.App, view: str) -> list[tuple[Any, ...]]:
    """(window start in seconds, group, count, status)."""
    found = app.view(view).to_arrow().to_pylist()
    return [((row["window_start"] - START).total_seconds(), row["who"], row["n"], row["_status"]) for row in found]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_time_column_of_the_transforms_has_its_own_progress(spark: Any, tmp_path: Path, partitions: int) -> None:
    """Progress is the largest of that column, capped at arrival, at lower offsets among the rows let through."""
    rng = random.Random(SEED)
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    with hr.App("own", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, ms bigint, skip boolean", partitions=partitions)
        (
            app.stream(topic)
            .transform(lambda df: df.where("not skip").selectExpr("*", "timestamp_millis(ms) as t"))
            .window(hr.tumbling("10 seconds"), time="t", grace="1 second", late=hr.correct(within="10 seconds"))
            .group_by("who")
            .agg(n=hr.count())
            .to_view("v")
        )
        for _ in range(5):
            topic.append(
                [
                    {
                        "who": rng.choice("ab"),
                        "ms": int(at(number - rng.choice([0, 0, 2, 12, 30])).timestamp() * 1000),
                        "skip": rng.random() < 0.2,
                    }
                    for number in range(0, 60, 2)
                ]
            )
            app.drain(batch_rows=rng.choice([5, 17, 1000]))
        largest: dict[int, datetime] = {}
        ledger = {"on_time": 0, "corrected": 0, "dropped": 0}
        for record in records_of(topic):
            if record["skip"]:
                continue
            time = datetime.fromtimestamp(record["ms"] / 1000, UTC)
            before = largest.get(record["_partition"])
            largest[record["_partition"]] = max(time, before or time)
            start = int((time - START).total_seconds() // 10) * 10
            if before is None or before < at(start + 11):
                ledger["on_time"] += 1
            elif before < at(start + 21):
                ledger["corrected"] += 1
            else:
                ledger["dropped"] += 1
                continue
            counts[start, record["who"]] += 1
        assert {(start, who): n for start, who, n, _ in rows(app, "v")} == dict(counts)
        found = app.view("v").ledger()
        assert {name: sum(found[name].to_pylist()) for name in ledger} == ledger


def test_dropped_records_go_to_a_topic(spark: Any, tmp_path: Path) -> None:
    with hr.App("drops", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at")
        late = hr.drop(dropped_to="too_late")
        window = app.stream(topic).window(hr.hopping("10 seconds", every="5 seconds"), late=late, idle="1 day")
        window.group_by("who").agg(n=hr.count()).to_view("v")
        # progress 12: 3 is in [-5, 5) and [0, 10), which have ended; 6 in [0, 10), which has, and in [5, 15)
        topic.append([{"who": "a", "at": at(12)}, {"who": "b", "at": at(3)}, {"who": "c", "at": at(6)}])
        app.drain(batch_rows=2)
        told = ("who", "window_start", "window_end", "windows_missed", "windows_counted")
        found = [*app.log.topic("too_late").records()]
        assert [tuple(record.value[name] for name in told) for record in found] == [
            ("b", at(-5), at(10), 2, 0),
            ("c", at(0), at(10), 1, 1),
        ]
        assert {record.progress for record in found} == {at(12)}
        assert [(start, who, n) for start, who, n, _ in rows(app, "v")] == [(5, "a", 1), (5, "c", 1), (10, "a", 1)]


def test_a_quiet_partition_holds_up_until_it_is_idle(spark: Any, tmp_path: Path) -> None:
    with hr.App("idle", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at", partitions=2)
        window = app.stream(topic).window(hr.tumbling("10 seconds"), idle="30 seconds")
        window.group_by("who").agg(n=hr.count()).to_view("v")

        def statuses(*rows: tuple[float, str, str]) -> Any:
            wanted = [{"window_start": at(start), "who": who, "_status": status} for start, who, status in rows]
            return expect("v", wanted)

        run_steps(
            app,
            add("t", {"who": "a", "at": at(1)}, partition=0),
            add("t", {"who": "b", "at": at(1)}, partition=1),
            add("t", {"who": "a", "at": at(25)}, partition=0),
            statuses((0, "a", "open"), (0, "b", "open"), (20, "a", "open")),  # partition 1 has come to 1 only
            advance("14 seconds"),  # 38 without a record: it counts as 1 + (38 - 30) = 9
            statuses((0, "a", "open"), (0, "b", "open"), (20, "a", "open")),
            advance("1 second"),  # 1 + (39 - 30) = 10: [0, 10) closes
            statuses((0, "a", "final"), (0, "b", "final"), (20, "a", "open")),
            restart(),
            advance("19 seconds"),  # 25 + (34 - 30) = 29, and 1 + (58 - 30) = 29
            statuses((0, "a", "final"), (0, "b", "final"), (20, "a", "open")),
            advance("1 second"),
            statuses((0, "a", "final"), (0, "b", "final"), (20, "a", "final")),
        )


def test_a_batch_that_takes_long_makes_nobody_idle(spark: Any, tmp_path: Path) -> None:
    now = [datetime.now(UTC).timestamp()]
    with hr.App("slow", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "at timestamp", event_time="at")
        app.stream(topic).window(hr.tumbling("10 seconds"), idle="30 seconds").agg(n=hr.count()).to_view("v")
        app.running._clock_us = lambda: int(now[0] * 1e6)
        (flow,) = app.running.flows
        loop = app.running.loop(flow)
        topic.append({"at": at(1)})
        batch = loop.prepare()
        now[0] += 60  # whatever came meanwhile, the batch does not know
        assert batch is not None
        loop.commit(batch)
        assert [row["_status"] for row in app.view("v").to_arrow().to_pylist()] == ["open"]


def test_results_as_a_topic_final_ones_once_then_corrections(spark: Any, tmp_path: Path) -> None:
    with hr.App("final", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at")
        (
            app.stream(topic)
            .window(hr.tumbling("10 seconds"), late=hr.correct(within="1 hour"), idle="1 day")
            .group_by("who")
            .agg(n=hr.count())
            .to_topic("results", emit="final")
        )

        def results() -> list[tuple[Any, ...]]:
            found = [record.value for record in app.log.topic("results").records()]
            return [(v["op"], (v["window_start"] - START).total_seconds(), v["who"], v["n"]) for v in found]

        topic.append([{"who": "a", "at": at(1)}, {"who": "b", "at": at(2)}, {"who": "a", "at": at(3)}])
        app.drain()
        assert results() == []
        topic.append({"who": "a", "at": at(12)})  # closes [0, 10)
        app.drain()
        assert results() == [("+", 0, "a", 2), ("+", 0, "b", 1)]
        topic.append(
            [{"who": "b", "at": at(5)}, {"who": "c", "at": at(6)}]
        )  # stragglers: one changes a row, one makes one
        app.drain()
        assert results()[2:] == [("-", 0, "b", 1), ("+", 0, "b", 2), ("+", 0, "c", 1)]
        app.drain(close=True)
        assert results()[5:] == [("+", 10, "a", 1)]
        app.drain(close=True)
        assert len(results()) == 6


@pytest.mark.parametrize("seed", range(4))
def test_a_hop_through_a_topic_changes_no_lateness(spark: Any, tmp_path: Path, seed: int) -> None:
    """What a flow writes carries its source's progress: its readers judge as if they read the source."""
    rng = random.Random(SEED + seed)
    with hr.App("hop", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at", partitions=2)
        hop = app.stream(topic).transform(lambda df: df.where("who <> 'x'")).to_topic("hop")
        for name, source in (("direct", topic), ("hopped", hop)):
            stream = app.stream(source).transform(lambda df: df.where("who <> 'x'"))
            window = stream.window(hr.tumbling("10 seconds"), late=hr.correct(within="15 seconds"), idle="1 day")
            window.group_by("who").agg(n=hr.count(), last=hr.max("at")).to_view(name)
        for _ in range(4):
            late = [0, 0, 3, 15, 40]
            topic.append([{"who": rng.choice("abx"), "at": at(n - rng.choice(late))} for n in range(0, 80, 3)])
            app.drain(batch_rows=rng.choice([4, 11, 500]))
        assert rows(app, "direct") == rows(app, "hopped")
        assert app.view("direct").ledger().to_pylist() == app.view("hopped").ledger().to_pylist()
        assert sum(app.view("direct").ledger()["dropped"].to_pylist()) > 0


def test_a_topic_that_a_flow_writes_moves_with_that_flow(spark: Any, tmp_path: Path) -> None:
    """Not by silence: the flow may be behind, or not run."""
    clock = [int(at(1).timestamp() * 1e6)]
    with hr.App("hop", home=tmp_path, spark=spark, clock_us=lambda: clock[0]) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at", partitions=2)
        hop = app.stream(topic).transform(lambda df: df.where("who <> 'x'")).to_topic("hop")
        app.stream(hop).window(hr.tumbling("10 seconds")).group_by("who").agg(n=hr.count()).to_view("v")
        topic.append({"who": "a", "at": at(1)}, partition=0)
        app.drain()
        clock[0] = int(at(40).timestamp() * 1e6)  # 1 + (39 - 30) = 10
        reader = app.running.loop(app.flows["v"])
        reader.drain()
        assert rows(app, "v") == [(0, "a", 1, "open")]
        app.drain()
        assert rows(app, "v") == [(0, "a", 1, "final")]
        topic.append([{"who": "b", "at": at(20)}, {"who": "x", "at": at(33)}], partition=0)
        app.drain()
        assert rows(app, "v") == [(0, "a", 1, "final"), (20, "b", 1, "final")]  # by what the flow has read
        assert app.audit().ok


def test_union_folds_both(spark: Any, tmp_path: Path) -> None:
    with hr.App("both", home=tmp_path, spark=spark) as app:
        left = app.topic("left", "who string, at timestamp", event_time="at")
        right = app.topic("right", "name string, at timestamp", event_time="at", partitions=2)
        renamed = app.stream(right).transform(lambda df: df.withColumnRenamed("name", "who"))
        both = app.stream(left).union(renamed).window(hr.tumbling("10 seconds"), idle="1 day")
        both.group_by("who").agg(n=hr.count()).to_view("v")
        left.append([{"who": "a", "at": at(1)}, {"who": "b", "at": at(15)}])
        app.drain()
        right.append([{"name": "a", "at": at(2)}] * 3)
        app.drain(batch_rows=2)
        assert rows(app, "v") == [(0, "a", 4, "final"), (10, "b", 1, "open")]  # `right` was empty: it held nobody up


def test_corrected_clocks(spark: Any) -> None:
    first = "2026-01-01T00:00:00Z"
    df = spark.createDataFrame(
        [
            (first, "2026-01-01T00:00:10Z", "2026-01-01T01:00:10Z"),  # an hour behind
            (first, "2026-01-01T00:00:10Z", "2026-01-01T00:00:11Z"),  # the way
            (first, None, "2026-01-01T00:00:11Z"),
            (None, "2026-01-01T00:00:10Z", "2026-01-01T01:00:10Z"),
        ],
        "occurred string, sent string, received string",
    ).selectExpr(*(f"cast({name} as timestamp) {name}" for name in ("occurred", "sent", "received")))
    three = ("occurred", "sent", "received")
    found = df.select(hr.corrected_time(*three).alias("t"), hr.clock_quality(*three).alias("q")).toArrow().to_pylist()
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    assert [(row["t"], row["q"]) for row in found] == [
        (midnight + timedelta(hours=1), "corrected"),
        (midnight, "kept"),
        (midnight, "unknown"),
        (None, "unknown"),
    ]


def test_results_can_be_transformed_on_their_way_out(spark: Any, tmp_path: Path) -> None:
    """Thresholds and ratios: the transform sees what changed, as '-' and '+'."""
    with hr.App("after", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, ms int, at timestamp", event_time="at")
        counted = app.stream(topic).window(hr.tumbling("10 seconds"), idle="1 day").group_by("who")
        busy = counted.agg(n=hr.count(), total=hr.sum("ms")).transform(
            lambda df: df.where("n > 1").selectExpr("*", "total / n as mean")
        )
        busy.to_topic("busy")
        topic.append([{"who": who, "ms": ms, "at": at(1)} for who, ms in (("a", 10), ("b", 5), ("a", 20))])
        app.drain()
        topic.append([{"who": "a", "ms": 60, "at": at(2)}])
        app.drain()
        found = [record.value for record in app.log.topic("busy").records()]
        assert [(row["op"], row["who"], row["n"], row["mean"]) for row in found] == [
            ("+", "a", 2, 15.0),
            ("-", "a", 2, 15.0),
            ("+", "a", 3, 30.0),
        ]


def test_what_makes_no_sense_is_refused_where_it_is_written(spark: Any, tmp_path: Path) -> None:
    with hr.App("refused", home=tmp_path, spark=spark) as app:
        stream = app.stream(app.topic("t", "who string, at timestamp", event_time="at"))
        with pytest.raises(hr.InvalidArgument, match="not one of PySpark's"):
            stream.agg(n="count")  # type: ignore[arg-type]
        with pytest.raises(hr.InvalidArgument, match="no result is ever final"):
            stream.group_by("who").agg(n=hr.count()).to_topic("out", emit="final")
        stream.group_by("who").agg(n=hr.count()).to_view("v")
        with pytest.raises(hr.DuplicateView):
            stream.agg(n=hr.count()).to_view("v")
        late = hr.drop(dropped_to="t")
        for goes_round in (
            lambda: stream.to_topic("t"),
            lambda: stream.dedup("who", within="1 hour").to_topic("t"),
            lambda: stream.window(hr.tumbling("1 hour"), late=late).agg(n=hr.count()).to_view("w"),
            lambda: app.stream(stream.to_topic("u")).to_topic("t"),
        ):
            with pytest.raises(hr.FlowCycle) as cycle:
                goes_round()
        assert [*app.flows] == ["v", "u"] and cycle.value.flows == ["t", "u"] and "t -> u -> t" in str(cycle.value)
        app.flows.clear()
        stream.group_by("whom").agg(n=hr.count()).to_view("v")
        with pytest.raises(hr.UnknownColumn, match="Did you mean 'who'"):
            app.running.check()
        app.flows.clear()
        stream.transform(lambda df: df.distinct()).group_by("who").agg(n=hr.count()).to_view("v")
        with pytest.raises(hr.TransformRefused, match="v"):
            app.running.check()


def test_what_is_behind_a_copy_is_final_no_earlier_than_what_was_copied(spark: Any, tmp_path: Path) -> None:
    """Records of the partition that is ahead say nothing of the other, in a copy or behind dedup."""
    with hr.App("shop", home=tmp_path, spark=spark) as app:
        events = app.topic("events", "id bigint, at timestamp", event_time="at", partitions=2, durability="os")
        stream, ten = app.stream(events), hr.tumbling("10 seconds")
        copies = {
            "direct": stream,
            "copied": app.stream(stream.to_topic("copy", durability="os")),
            "about": stream.dedup("id", within="1 hour", grace="1 day", approx=0.0001),
            "exact": stream.dedup("id", within="1 hour"),
        }
        for name, copy in copies.items():
            copy.window(ten).agg(n=hr.count()).to_view(name)
        totals = app.stream(stream.window(ten).agg(n=hr.count()).to_topic("results", durability="os"))
        totals.window(ten).agg(n=hr.sum("n")).to_view("totals")

        def add(partition: int, *seconds: int) -> None:
            rows = [{"id": second, "at": START + timedelta(seconds=second)} for second in seconds]
            events.append(rows, partition=partition)
            app.drain()

        def statuses() -> dict[str, tuple[str, ...]]:
            found = {name: app.view(name).to_arrow().to_pylist() for name in (*copies, "totals")}
            return {name: tuple(row["_status"] for row in rows) for name, rows in found.items()}

        add(1, 5)
        add(0, 100, 101, 102)
        add(1, 6)
        assert statuses() == dict.fromkeys((*copies, "totals"), ("open", "open"))
        assert app.audit().ok
        add(1, 110)
        assert statuses() == dict.fromkeys((*copies, "totals"), ("final", "open", "open"))
        assert app.audit().ok
