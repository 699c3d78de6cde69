"""Patterns with Spark: conditions that only Spark computes, in the job that reads the events; records that are taken
back; and the closed subset of SQL against Spark's own answers."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cep.conditions import marks_of
from headrace.cep.definition import parts_of
from headrace.cep.evaluate import Compiler, type_of
from headrace.cep.expressions import as_sql, parse
from headrace.cep.rules import check_rule

ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return ZERO + timedelta(seconds=seconds)


def test_conditions_that_only_spark_computes(headrace_spark: Any) -> None:
    """Of one event any SQL; beside what looks at several events, with AND; and inside of first, last and aggregates."""
    pattern = hr.pattern(
        "login+ payment",
        define={
            "login": "upper(kind) LIKE 'LOG%' AND (prev(country) IS NULL OR country <> prev(country))",
            "payment": "CASE WHEN kind = 'pay' THEN amount * 2 > 10 ELSE false END AND amount > last(login.amount)",
        },
        within="1 minute",
        measures={"countries": "count(login.country)", "name": "last(upper(country))", "both": "sum(amount * 10)"},
    )
    with hr.App("spark_sql", home=":temp:", spark=headrace_spark) as app:
        topic = app.topic("events", "k string, kind string, country string, amount int, at timestamp", event_time="at")
        view = app.stream(topic).match(pattern, by="k", grace="0 seconds").to_view("logins")
        rows = [("login", "ch", 0), ("Logon", "fr", 1), ("pay", "fr", 5), ("pay", "fr", 6), ("log", "fr", 9)]
        rows += [("pay", "fr", 8), ("log", "ch", 2), ("log", "ch", 2), ("pay", "de", 9)]
        topic.append(
            [{"k": "x", "kind": a, "country": b, "amount": c, "at": at(n)} for n, (a, b, c) in enumerate(rows)]
        )
        app.drain()
        found = view.to_arrow().to_pylist()
        told = [(row["match_start"], row["countries"], row["name"], row["both"]) for row in found]
        assert told == [(at(7), 1, "DE", 110)]
        assert not [name for name in view.to_arrow().column_names if name.startswith("/")]
        topic.append({"k": "x", "kind": "log", "country": "us", "amount": 1, "at": at(20)})
        topic.append({"k": "x", "kind": "pay", "country": "us", "amount": 6, "at": at(21)})
        app.drain()
        assert view.to_arrow().num_rows == 2 and app.audit().ok


def test_what_dedup_takes_back_is_matched_anew(headrace_spark: Any) -> None:
    """Of the event 1, at 5 and at 1, the earlier one counts: then low comes before mid, and there is a match."""
    pattern = hr.pattern("low mid+", define={"low": "v = 1", "mid": "v = 2"}, within="9 seconds")
    with hr.App("repeats", home=":temp:", spark=headrace_spark) as app:
        topic = app.topic("events", "id int, k string, v int, at timestamp", event_time="at")
        once = app.stream(topic).dedup("id", within="1 hour", late=hr.correct(within="1 hour"))
        once.match(pattern, by="k", grace="0 seconds", late=hr.correct(within="1 hour")).to_view("runs")
        topic.append([{"id": 1, "k": "x", "v": 1, "at": at(5)}, {"id": 2, "k": "x", "v": 2, "at": at(2)}])
        app.drain(close=True)
        assert app.view("runs").to_arrow().num_rows == 0
        topic.append({"id": 1, "k": "x", "v": 1, "at": at(1)})
        app.drain(close=True)
        assert [row["match_start"] for row in app.view("runs").to_arrow().to_pylist()] == [at(1)]


# -- the closed subset -------------------------------------------------------------------------------------

COLUMNS = {"a": "bigint", "b": "bigint", "x": "double", "y": "double", "s": "string", "t": "string", "f": "boolean"}


def number(dice: random.Random, depth: int) -> str:
    if depth > 2 or dice.random() < 0.5:
        return dice.choice(["a", "b", "x", "y", "1", "2.5", "-3", "1e2", "0.5"])
    if dice.random() < 0.15:
        return f"-({number(dice, depth + 1)})"
    return f"({number(dice, depth + 1)} {dice.choice('+-*')} {number(dice, depth + 1)})"


def condition(dice: random.Random, depth: int = 0) -> str:
    roll = dice.random()
    if depth < 3 and roll < 0.3:
        return f"({condition(dice, depth + 1)} {dice.choice(['AND', 'or'])} {condition(dice, depth + 1)})"
    if depth < 3 and roll < 0.4:
        return f"NOT ({condition(dice, depth + 1)})"
    if roll < 0.5:
        return f"{dice.choice([*COLUMNS])} is {dice.choice(['', 'NOT '])}null"
    if roll < 0.6:
        return f"s {dice.choice(['', 'not '])}in ('u', t, 'it''s')"
    if roll < 0.7:
        return f"{number(dice, 1)} {dice.choice(['', 'NOT '])}BETWEEN {number(dice, 1)} AND {number(dice, 1)}"
    if roll < 0.75:
        return "f"
    pair = dice.choice([(number(dice, 0), number(dice, 0)), ("s", "t"), ("s", "'u'"), ("f", "true")])
    return f"{pair[0]} {dice.choice(['=', '<>', '<', '<=', '>', '>=', '!=', '=='])} {pair[1]}"


def some_rows(dice: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "a": dice.choice([None, -3, 0, 1, 2, 100]),
            "b": dice.choice([None, -1, 0, 2, 3]),
            "x": dice.choice([None, -3.0, 0.0, 2.5, math.nan, math.inf]),
            "y": dice.choice([None, 0.5, 2.5, -0.0, math.nan]),
            "s": dice.choice([None, "u", "v", "it's", ""]),
            "t": dice.choice([None, "u", "w"]),
            "f": dice.choice([None, True, False]),
        }
        for n in range(count)
    ]


def test_the_subset_says_what_spark_says(headrace_spark: Any, seed: int) -> None:
    """60 conditions and 30 numbers, over 60 rows, in one job: as Spark reads the text, as we write it for Spark, and
    the conditions as rules, too."""
    dice = random.Random(seed)
    rows = some_rows(dice, 60)
    texts = [condition(dice) for _ in range(60)] + [number(dice, 0) for _ in range(30)]
    trees = [parse(text, [], argument="x") for text in texts]
    asked = [f"{text} AS c{n}" for n, text in enumerate(texts)]
    asked += [f"{as_sql(tree)} AS d{n}" for n, tree in enumerate(trees)]
    ddl = "n int, " + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    answers = headrace_spark.createDataFrame(rows, ddl).selectExpr("n", *asked).orderBy("n").collect()
    kinds = {"bigint": pa.int64(), "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}
    schema = {name: kinds[kind] for name, kind in COLUMNS.items()}
    for number_, (text, tree) in enumerate(zip(texts, trees, strict=True)):
        compiler, cells = Compiler((), schema), {name: [row[name] for row in rows] for name in schema}
        value = compiler.value(tree, cells)
        assert type_of(tree, schema, "x", text) is not None
        for row, answer in enumerate(answers):
            mine = value(row, ())
            for theirs in (answer[f"c{number_}"], answer[f"d{number_}"]):
                assert same(mine, theirs), (text, rows[row], mine, theirs)
    columns = pa.schema([*schema.items()])
    events = pa.Table.from_pylist(rows, columns)
    for number_, text in enumerate(texts[:60]):  # as the condition of a rule
        rule = check_rule(text, columns, 0)
        marks = marks_of(parts_of(rule).row_conditions, rule.symbols, events)
        assert [mark == 1 for mark in marks.tolist()] == [answer[f"c{number_}"] is True for answer in answers], text


def same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str):
        return bool(one == other)
    a, b = float(one), float(other)
    return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-12)


@pytest.mark.parametrize("sum_of", ["v", "w"])
def test_aggregates_say_what_spark_says(headrace_spark: Any, sum_of: str) -> None:
    """Over the rows of one match, nulls and what is not a number included."""
    v, w = [3, None, 1, 7], [0.5, math.nan, None, -2.0]
    functions = ["count({0})", "sum({0})", "avg({0})", "min({0})", "max({0})"]
    measures = {f"m{n}": each.format(sum_of) for n, each in enumerate([*functions, "count(*)"])}
    with hr.App("aggregates", home=":temp:", spark=headrace_spark) as app:
        topic = app.topic("events", "k string, v int, w double, at timestamp", event_time="at")
        pattern = hr.pattern("e{4}", within="1 minute", measures=measures)
        view = app.stream(topic).match(pattern, by="k", grace="0 seconds").to_view("sums")
        topic.append([{"k": "x", "v": a, "w": b, "at": at(n)} for n, (a, b) in enumerate(zip(v, w, strict=True))])
        app.drain()
        (row,) = view.to_arrow().to_pylist()
        frame = headrace_spark.createDataFrame(list(zip(v, w, strict=True)), "v int, w double")
        (wanted,) = frame.selectExpr(*(f"{text} AS {name}" for name, text in measures.items())).collect()
        assert all(same(row[name], wanted[name]) for name in measures), (row, wanted)
