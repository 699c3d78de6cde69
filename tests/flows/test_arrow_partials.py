"""Partial rows made by Arrow are those Spark makes: of every aggregate and type, with all the odd values."""

from __future__ import annotations

import inspect
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
from headrace.aggregates import ORDER, ORDER_BY, TABLE, Slot
from headrace.aggregates.kept import order as ordered
from headrace.flows.compiler.partials import partial_rows
from headrace.flows.compiler.reads import judged_schema
from headrace.flows.compiler.records import judge_of
from headrace.flows.flow import Flow
from headrace.flows.query import FlowQuery
from headrace.flows.reading import ranges
from headrace.kernels.fold import packed
from headrace.schema import parse_ddl, type_ddl
from headrace.views.values import arrow_type

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


EXAMPLES: dict[str, Any] = {"q": 0.5, "k": 2, "limit": 2, "bounds": [-1, 0.5], "by": "i32"}
"""What aggregates are given besides a column, by the names of their parameters."""
TYPES: dict[str, pa.DataType] = {field.name: field.type for field in parse_ddl(SCHEMA)}


def aggregates() -> dict[str, Any]:
    """Everything Arrow is trusted with: all aggregates there are, of all types, and of one with a condition."""
    out: dict[str, Any] = {}
    for name, (make, _) in TABLE.items():
        given = inspect.signature(make).parameters
        needed = [each for each, one in given.items() if one.default is one.empty and one.kind != one.VAR_POSITIONAL]
        more = {each: EXAMPLES[each] for each in needed if each != "column"}
        for column in ODD if "column" in given else ["all"]:
            columns = {"column": column} if "column" in given else {}
            made: Any = make(**columns, **more)
            algebra = made.algebra.settled({part: TYPES[of] for part, of in made.algebra.parts().items()})
            rounds = name in ("sum", "avg") and column in ("f32", "f64")  # the order of additions: see below
            if not rounds and not algebra.check() and algebra.possible():
                out[f"{name}_{column}"] = made
                if column in ("i32", "all"):
                    out[f"{name}_{column}_if"] = make(**columns, **more, where="b")
    return out


def test_every_aggregate_is_compared() -> None:
    """Or says that Arrow does not make it of any type."""
    compared = {each.kind for each in aggregates().values()}
    assert compared == TABLE.keys()
    assert {name: getattr(hr, name) for name in TABLE} == {name: make for name, (make, _) in TABLE.items()}


SOAK = pytest.mark.soak  # one judge serves both: of the windows only a session asks the makers of rows for more


@pytest.mark.parametrize(
    ("window", "groups"),
    [
        (hr.tumbling("10 seconds"), ("s",)),
        pytest.param(hr.hopping("10 seconds", every="4 seconds"), ("b", "day"), marks=SOAK),
        pytest.param(hr.calendar("day", timezone="Asia/Kolkata"), ("s",), marks=SOAK),
        (hr.session("5 seconds"), ("b", "day")),
        pytest.param(hr.sliding("5 seconds"), ("b", "day"), marks=SOAK),
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
        judge = None if window is None else judge_of(flow, "at")
        judged = replace(
            ranges.whole(columns), judge=judge, schema=judged_schema(columns.schema) if judge else columns.schema
        )
        df = ranges.read(spark, judged, [planned["odd"]])
        by_spark = packed(partial_rows(flow, df, F.col("at")).toArrow(), flow.aggregates or {})
        for on_driver, one_task in ((10**9, 0), (0, 10**9), (0, 0)):  # on the driver, by one task, and by several
            query.driver_rows, query.one_task_rows = on_driver, one_task
            by_arrow = packed(query.rows(planned), flow.aggregates or {})
            assert types_of(by_arrow) == types_of(by_spark)
            one, other = (comparable(merged(rows, flow), keys_of(flow)) for rows in (by_arrow, by_spark))
            assert one.keys() == other.keys()
            pairs = {(key, name): (one[key][name], other[key][name]) for key in one for name in one[key]}
            assert {place: pair for place, pair in pairs.items() if not same(*pair)} == {}
        slots = {slot.name: slot for name, each in (flow.aggregates or {}).items() for slot in each.slots(name)}
        assert {name: kind for name, kind in types_of(by_spark).items() if name in slots} == {
            name: type_in_rows(slot) for name, slot in slots.items() if slot.rule != "finished"
        }


def types_of(rows: pa.Table) -> dict[str, str]:
    """Whether a field may be null is nobody's concern, and sums of whole numbers are wide enough whichever way."""
    return {field.name: _called(as_nullable(field.type)) for field in rows.schema}


def type_in_rows(slot: Slot) -> str:
    """How a slot comes in partial rows."""
    arrow = arrow_type(slot.type)
    match slot.rule:
        case "distinct":
            arrow = pa.list_(arrow)
        case "kept":
            arrow = pa.list_(pa.struct([("value", arrow_type(slot.of)), ("count", pa.int64())]))
    return _called(arrow)


def _called(arrow: pa.DataType) -> str:
    whole = pa.types.is_integer(arrow) or (pa.types.is_decimal(arrow) and arrow.scale == 0)
    return "whole" if whole else type_ddl(arrow)


def as_nullable(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_list(arrow):
        return pa.list_(as_nullable(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, as_nullable(field.type)) for field in arrow])
    return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(arrow) and arrow.tz else arrow


def keys_of(flow: Flow) -> list[str]:
    return [*flow.groups, *([] if flow.window is None else ["_pane", "_dropped", "_late"])]


def merged(partials: pa.Table, flow: Flow) -> list[dict[str, Any]]:
    """Workers read pieces, and each makes rows of its own: two of one key become one by the rules of their slots, as a
    store would have it."""
    keys = keys_of(flow)
    rules = {slot.name: (slot, each) for name, each in (flow.aggregates or {}).items() for slot in each.slots(name)}
    out: dict[Any, dict[str, Any]] = {}
    for row in partials.to_pylist():
        key = tuple(row[name] for name in keys)
        out[key] = row if key not in out else {n: row[n] if n in keys else both(n, out[key], row, rules) for n in row}
    for row in out.values():
        for name, (slot, each) in rules.items():
            if slot.rule == "merged" and isinstance(row[name], dict):  # numbers, which are rounded in their order
                row[name] = each.finish(row[name])
            if slot.rule in ("counted", "kept"):
                row[name] = added(row[name])
    return list(out.values())


def both(name: str, one: dict[str, Any], other: dict[str, Any], rules: dict[str, tuple[Slot, Any]]) -> Any:
    a, b = one[name], other[name]
    if name not in rules:
        least, most = name == "_first", name in ("_last", "_updated_at")
        return a if a is None else min(a, b) if least else max(a, b) if most else a + b
    slot, aggregate = rules[name]
    if slot.rule in ("earliest", "latest", "least_by", "greatest_by"):
        order = ORDER if slot.rule in ("earliest", "latest") else ORDER_BY
        known = [row for row in (one, other) if row[slot.of] is not None]
        rows = sorted(known, key=lambda row: [ordered(row[f"{slot.of}__{part}"]) for part in order])
        return None if not rows else rows[0][name] if slot.rule in ("earliest", "least_by") else rows[-1][name]
    if a is None or b is None:
        return b if a is None else a
    match slot.rule:
        case "add" | "whole":
            return a + b
        case "least":
            return min(a, b, key=ordered)
        case "greatest":
            return max(a, b, key=ordered)
        case "distinct":
            return list({*a, *b})
        case "merged":
            return aggregate.merge(a, b)
        case "counted" | "kept":
            return [*a, *b]
    raise AssertionError(slot)


def added(counted: list[dict[str, Any]]) -> list[tuple[Any, int]]:
    """Each value once, with how often it came; both zeros are one."""
    times: Counter[Any] = Counter()
    for each in counted:
        value = each["value"]
        times[hashable(value + 0.0) if isinstance(value, float) else value] += each["count"]
    return list(times.items())


def hashable(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def comparable(rows: list[dict[str, Any]], keys: list[str]) -> dict[str, dict[str, Any]]:
    """By key. Sets in order, zeros alike, NaN equal to itself."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return sorted(repr(plain(each)) for each in value)
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return hashable(value + 0.0) if isinstance(value, float) else value

    return {repr([row[name] for name in keys]): {name: plain(row[name]) for name in row} for row in rows}


def same(one: Any, other: Any) -> bool:
    """Doubles that were added in another order differ in their last digits."""
    near = isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=1e-9)
    return bool(near or one == other)


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
