"""Partial rows made by Arrow are those Spark makes: of every aggregate and type, with all the odd values."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.flows import ranges
from headrace.flows.compile import judged_schema
from headrace.flows.flow import Flow
from headrace.flows.judge import Judge
from headrace.flows.packing import from_lists
from headrace.flows.partials import partial_rows
from headrace.flows.query import FlowQuery

SEED = 20261116
SCHEMA = (
    "i8 tinyint, i32 int, i64 bigint, f32 float, f64 double, d decimal(12,3), s string, b boolean, bin binary, "
    "day date, t timestamp, at timestamp"
)
START = datetime(2026, 1, 1, tzinfo=UTC)
ODD: dict[str, list[Any]] = {
    "i8": [-128, 0, 127],
    "i32": [-(2**31), 0, 2**31 - 1],
    "i64": [-(2**50), 0, 2**50],
    "f32": [0.0, -0.0, 1.5, -math.inf, math.nan],
    "f64": [0.0, -0.0, 1e300, -1e300, math.inf, -math.inf, math.nan, 5e-324],
    "d": [Decimal("-999999999.999"), Decimal("0.000"), Decimal("0.001")],
    "s": ["", "a", "ü", "\U0001f600", "z"],
    "b": [True, False],
    "bin": [b"", b"\x00", b"\xff"],
    "day": [date(1969, 12, 31), date(2026, 2, 28)],
    "t": [datetime(1969, 12, 31, 23, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
}


def odd_rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    out = []
    for number in range(count):
        row: dict[str, Any] = {name: rng.choice([None, *values]) for name, values in ODD.items()}
        late = rng.choice([0, 0, 1, 7, 30, 90])
        at = START + timedelta(seconds=number / 3 - late, microseconds=number)
        row["at"] = rng.choice([None, datetime(1, 1, 1, tzinfo=UTC)] + [at] * 18)
        out.append(row)
    return out


def aggregates() -> dict[str, Any]:
    """Everything Arrow is trusted with."""
    out: dict[str, Any] = {"n": hr.count(), "yes": hr.count(where="b")}
    for column in ODD:
        out |= {f"min_{column}": hr.min(column), f"max_{column}": hr.max(column)}
        out |= {f"first_{column}": hr.first(column), f"last_{column}": hr.last(column)}
        if column not in ("f32", "f64"):
            out[f"distinct_{column}"] = hr.count_distinct(column)
        out[f"some_{column}"] = hr.collect(column, limit=2)
        if column not in ("f32", "f64"):
            out[f"top_{column}"] = hr.top_k(column, 2)
        if column not in ("f32", "f64", "d"):
            out[f"about_{column}"] = hr.approx_count_distinct(column)
    for column in ("i8", "i32", "i64", "f32", "f64"):
        out |= {f"half_{column}": hr.approx_quantile(column, 0.5), f"spread_{column}": hr.histogram(column, [-1, 0.5])}
    for column in ("i8", "i32", "i64", "d"):
        out |= {f"sum_{column}": hr.sum(column), f"avg_{column}": hr.avg(column)}
    return out


@pytest.mark.parametrize(
    ("window", "groups"),
    [
        (hr.tumbling("10 seconds"), ("s",)),
        (hr.hopping("10 seconds", every="4 seconds"), ("b", "day")),
        (hr.calendar("day", timezone="Asia/Kolkata"), ("s",)),
        (hr.session("5 seconds"), ("b",)),
        (hr.sliding("5 seconds"), ("b",)),
        (None, ("i32", "bin")),
        (None, ()),
    ],
    ids=["tumbling", "hopping", "calendar", "session", "sliding", "all time", "one row"],
)
def test_arrow_makes_the_rows_that_spark_makes(spark: Any, tmp_path: Path, window: Any, groups: Any) -> None:
    with hr.App("arrow", home=tmp_path, spark=spark) as app:
        topic = app.topic("odd", SCHEMA, event_time="at", partitions=2, durability="os")
        rng = random.Random(SEED)
        for _ in range(4):
            topic.append(odd_rows(rng, 100))
        stream = app.stream(topic)
        shaped: Any = stream.window(window, grace="1 second", late=hr.correct("20 seconds")) if window else stream
        shaped.group_by(*groups).agg(**aggregates()).to_view("v")
        query = app.running.query(app.flows["v"])
        flow = query.compiled.flow
        assert query.compiled.arrow is not None
        planned = ranges.plan([ranges.Behind(topic, {0: 0, 1: 0}, topic.offsets())], 10_000)
        columns = query.compiled.columns["odd"]
        judge = None if window is None else Judge.of_flow(flow, "at")
        judged = replace(
            ranges.whole(columns), judge=judge, schema=judged_schema(columns.schema) if judge else columns.schema
        )
        df = ranges.read(spark, judged, [planned["odd"]])
        by_spark = partial_rows(flow, df, F.col("at")).toArrow()
        for on_driver, one_task in ((10**9, 0), (0, 10**9), (0, 0)):  # on the driver, by one task, and by several
            query.driver_rows, query.one_task_rows = on_driver, one_task
            by_arrow = query.rows(planned)
            assert by_arrow.schema.names == by_spark.schema.names
            assert comparable(merged(by_arrow, flow)) == comparable(merged(from_lists(by_spark, aggregates()), flow))


def merged(partials: pa.Table, flow: Flow) -> list[dict[str, Any]]:
    """Workers read pieces, and each makes rows of its own: two of one key become one as a store would have it."""
    keys = [*flow.groups, *([] if flow.window is None else ["_pane", "_dropped", "_late"])]
    out: dict[Any, dict[str, Any]] = {}
    for row in partials.to_pylist():
        key = tuple(row[name] for name in keys)
        out[key] = (
            row
            if key not in out
            else {
                **{n: both(n, out[key][n], row[n], flow) for n in row if n not in keys},
                **dict(zip(keys, key, strict=True)),
            }
        )
    return list(out.values())


def both(name: str, a: Any, b: Any, flow: Flow) -> Any:
    if a is None or b is None:
        return b if a is None else a
    own = (flow.aggregates or {}).get(name.removesuffix("__state"))
    if own is not None and own.merge is not None:
        return own.merge(a, b)
    if name.startswith("top_"):
        times = Counter({each["value"]: each["count"] for each in a})
        times.update({each["value"]: each["count"] for each in b})
        return [{"value": value, "count": count} for value, count in times.items()]
    if isinstance(a, list):
        return list({*a, *b})
    if name.startswith(("min_", "first_", "_first")):
        return min(a, b, key=order)
    if name.startswith(("max_", "last_", "_last", "_updated_at")):
        return max(a, b, key=order)
    return a + b


def order(value: Any) -> Any:
    """NaN is the greatest."""
    if isinstance(value, dict):
        return value["at"], value["partition"], value["offset"]
    return (1, 0.0) if isinstance(value, float) and math.isnan(value) else (0, value)


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Sets in order, zeros alike, NaN equal to itself."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return sorted(map(repr, value))
        return value + 0.0 if isinstance(value, float) else value

    return sorted(repr({name: plain(value) for name, value in sorted(row.items())}) for row in rows)


def test_doubles_are_summed_and_averaged_alike(spark: Any, tmp_path: Path) -> None:
    """Up to rounding: the order of additions is nobody's promise."""
    with hr.App("arrow", home=tmp_path, spark=spark) as app:
        topic = app.topic("odd", SCHEMA, event_time="at", durability="os")
        rng = random.Random(SEED)
        topic.append([{**row, "f64": rng.uniform(-1e6, 1e6)} for row in odd_rows(rng, 300)])
        app.stream(topic).group_by("s").agg(total=hr.sum("f64"), mean=hr.avg("f64")).to_view("arrow")
        computed = app.stream(topic).transform(lambda df: df.where("f64 + 1 is not null"))
        computed.group_by("s").agg(total=hr.sum("f64"), mean=hr.avg("f64")).to_view("spark")
        assert [app.running.query(app.flows[name]).compiled.arrow is None for name in ("arrow", "spark")] == [
            False,
            True,
        ]
        app.drain()
        both = app.query("select a.total, b.total, a.mean, b.mean from arrow a join spark b on a.s is b.s")
        assert both.num_rows == 6
        for a, b, c, d in zip(*(column.to_pylist() for column in both.columns), strict=True):
            assert a == pytest.approx(b, rel=1e-9, abs=1e-3)
            assert c == pytest.approx(d, rel=1e-9, abs=1e-5)


def test_a_sum_that_does_not_fit_64_bits_is_no_wrong_number(spark: Any, tmp_path: Path) -> None:
    with hr.App("arrow", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "n bigint", durability="os")
        topic.append([{"n": 2**62}, {"n": 2**62}, {"n": -5}])
        app.stream(topic).agg(total=hr.sum("n")).to_view("v")
        query = app.running.query(app.flows["v"])
        assert query.compiled.arrow is not None
        assert query.rows({"t": [ranges.Range(0, 0, 2)]})["total"].to_pylist() == [2**63]
        fits = query.rows({"t": [ranges.Range(0, 1, 3)]})
        assert fits["total"].to_pylist() == [2**62 - 5]


@pytest.mark.parametrize(
    "aggregate",
    [hr.count(where="i32 > 3"), hr.sum("i32 + 1"), hr.max("i32 * 2"), hr.count_distinct("f64")],
    ids=str,
)
def test_what_only_spark_can_answer_is_asked_of_spark(spark: Any, tmp_path: Path, aggregate: Any) -> None:
    with hr.App("arrow", home=tmp_path, spark=spark) as app:
        topic = app.topic("odd", SCHEMA, event_time="at", durability="os")
        app.stream(topic).group_by("s").agg(n=aggregate).to_view("v")
        query: FlowQuery = app.running.query(app.flows["v"])
        assert query.compiled.arrow is None
