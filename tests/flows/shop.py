"""The app that tests run in many ways: a topic with every kind of column, and a flow for each kind of window."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import headrace as hr
from tests.flows.oracle import Query, expected, records_of

SCHEMA = "word string, n int, x double, money decimal(12,2), at timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)

FOR_SPARK = frozenset({"large", "exact", "own", "first_row", "last_row", "if_large", "words_if_large"})
"""Aggregates that only Spark computes. Without them, and without a transform, a flow is folded where it is read."""
MERGED = frozenset(
    {"about", "p90", "top", "spread", "some", "own", "best", "worst", "spread_out", "variance", "median", "different"}
    | {"largest", "first_row", "last_row", "if_large", "words_if_large"}
)
"""Aggregates that no SQL merges, and such as are made of others: in one flow for Spark, and two for Arrow."""
QUERIES = {
    "tumbling_drop": Query(10, 10, 2, 0, ("word",), without=MERGED),
    "tumbling_correct": Query(10, 10, 0, 30, (), without=MERGED),
    "hopping_correct": Query(10, 4, 1, 15, ("word",)),
    "all_time": Query(
        None, None, 0, 0, ("word",), lambda record: record["n"] is None or record["n"] % 7 != 3, MERGED - {"some"}
    ),
    "arrow_drop": Query(10, 10, 2, 0, ("word",), without=FOR_SPARK | MERGED),
    "arrow_hopping": Query(10, 4, 1, 15, (), without=FOR_SPARK),
    "arrow_all_time": Query(None, None, 0, 0, ("word",), without=FOR_SPARK),
}
WINDOWS = {
    "day": Query(1, None, 2, 30, ("word",), kind="calendar", timezone="Europe/London"),
    "arrow_day": Query(1, None, 0, 0, ("word",), without=FOR_SPARK, kind="calendar", timezone="Europe/London"),
    "hopping_offset": Query(10, 4, 1, 15, ("word",), without=MERGED, offset=3),
    "arrow_offset": Query(10, 10, 0, 15, ("word",), without=FOR_SPARK, offset=7),
    "cumulative_correct": Query(20, 5, 1, 15, ("word",), without=MERGED, kind="cumulative"),
    "arrow_cumulative": Query(20, 4, 0, 15, ("word",), without=FOR_SPARK, kind="cumulative"),
    "session_correct": Query(3, None, 0, 40, ("word",), kind="session"),
    "arrow_session": Query(2, None, 0, 15, ("word",), without=FOR_SPARK, kind="session"),
    "sliding_correct": Query(5, None, 1, 20, ("word",), kind="sliding"),
    "arrow_sliding": Query(5, None, 0, 0, ("word",), without=FOR_SPARK, kind="sliding"),
}
"""The same for other windows."""
ALIKE = frozenset(
    {"large", "total", "money", "mean", "least", "first", "p90", "spread", "some", "best", "worst", "largest", "median"}
    | {"spread_out", "variance", "different", "last_row", "if_large", "words_if_large"}
)
"""Aggregates that a store merges as it merges another of these."""
FEW = {"hopping_few": Query(10, 4, 1, 15, ("word",), without=ALIKE)}
"""For programs that are begun again and again: planning takes its time for each aggregate."""
ALL = QUERIES | WINDOWS | FEW


def window_of(query: Query) -> Any:
    size = timedelta(seconds=query.size or 0)
    match query.kind:
        case "calendar":
            return hr.calendar("day", timezone=query.timezone)
        case "cumulative":
            return hr.cumulative(size, step=timedelta(seconds=query.every or 0))
        case "session":
            return hr.session(size)
        case "sliding":
            return hr.sliding(size)
    return hr.hopping(size, every=timedelta(seconds=query.every or 0), offset=timedelta(seconds=query.offset))


def app_of(home: Path | str, spark: Any, partitions: int = 2, names: Any = tuple(QUERIES), **settings: Any) -> hr.App:
    app = hr.App("tests", home=home, spark=spark, **settings)
    topic = app.topic("events", SCHEMA, event_time="at", partitions=partitions, durability="os")
    for name in names:
        query = ALL[name]
        stream = app.stream(topic)
        if name == "all_time":
            stream = stream.transform(lambda df: df.where("n is null or n % 7 <> 3"))
        late = hr.correct(within=timedelta(seconds=query.within)) if query.within else hr.drop()
        aggregates: dict[str, Any] = {
            "records": hr.count(),
            "large": hr.count(where="n > 50"),
            "total": hr.sum("n"),
            "money": hr.sum("money"),
            "exact": hr.sum("x", exact=True),
            "mean": hr.avg("n"),
            "least": hr.min("n"),
            "most": hr.max("word"),
            "first": hr.first("word"),
            "last": hr.last("word"),
            "words": hr.count_distinct("word"),
            "about": hr.approx_count_distinct("n"),
            "p90": hr.approx_quantile("x", 0.9),
            "top": hr.top_k("word", 2),
            "spread": hr.histogram("n", [10, 50]),
            "some": hr.collect("n", limit=3),
            "own": hr.Aggregate(
                partial="named_struct('n', count(n), 'sum', sum(n * n))",
                merge=lambda a, b: {"n": a["n"] + b["n"], "sum": (a["sum"] or 0) + (b["sum"] or 0)},
                finish=lambda kept: kept["sum"] / kept["n"] if kept["n"] else None,
            ),
            "best": hr.max_by("word", "n"),
            "worst": hr.min_by("word", "n"),
            "largest": hr.top_k("word", 2, by="n"),
            "spread_out": hr.stddev("n"),
            "variance": hr.variance("n"),
            "median": hr.percentile("n", 0.5),
            "different": hr.sum_distinct("n"),
            "first_row": hr.first("struct(*)"),
            "last_row": hr.last("struct(*)"),
            "if_large": hr.sum("n", where="n > 50"),
            "words_if_large": hr.count_distinct("word", where="n > 50"),
        }
        aggregates = {each: aggregates[each] for each in aggregates if each not in query.without}
        if query.size is None:
            grouped = stream.group_by(*query.groups)
        else:
            grace = timedelta(seconds=query.grace)
            grouped = stream.window(window_of(query), grace=grace, late=late, idle="1 day").group_by(*query.groups)
        grouped.agg(**aggregates).to_view(name)
    return app


def some_rows(rng: random.Random, count: int, now: float = 0.0) -> list[dict[str, Any]]:
    """Rows around a time that goes on, some of them early, late or very late, a few without time, word or number."""
    out = []
    for number in range(count):
        late = rng.choice([0, 0, 0, 0, 1, 3, 8, 20, 45, 100])
        at = START + timedelta(seconds=now + number * 0.7 - late + rng.random() * 2)
        row = {
            "word": rng.choice(["a", "b", "c", "ü", None]),
            "n": rng.choice([None, rng.randrange(100)]),
            "x": rng.choice([None, rng.uniform(-1e6, 1e6), 1e-9, 1e300, -1e300]),
            "money": rng.choice([None, Decimal(rng.randrange(-10_000, 10_000)) / 100]),
            "at": rng.choice([at] * 15 + [None]),
        }
        out.append(row)
    return out


def check(app: hr.App) -> None:
    """Every view is what its query says over the whole log, and every record is in the ledger."""
    records = records_of(app.log.topic("events"))
    for name in app.flows.keys() & ALL.keys():
        query = ALL[name]
        rows, ledger = expected(records, query)
        found = rows_of(app, name)
        assert found.keys() == rows.keys(), f"{name}: rows {sorted(map(str, found.keys() ^ rows.keys()))}"
        for key, row in rows.items():
            assert found[key] == row, f"{name} {key}"
        assert ledger_of(app, name) == ledger, name


def rows_of(app: hr.App, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return rows_in(app.views, name)


def rows_in(views: Any, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    key = ((ALL[name].told_by,) if ALL[name].size else ()) + ALL[name].groups
    out = {}
    for row in views.to_arrow(name).to_pylist():
        values = {column: row[column] for column in row if column not in (*key, "_status")}
        place = tuple(row[column] for column in key)
        assert place not in out, f"{name}: {place} twice"
        out[place] = values
    return out


def ledger_of(app: hr.App, name: str) -> dict[Any, list[int]]:
    return ledger_in(app.views, name)


def ledger_in(views: Any, name: str) -> dict[Any, list[int]]:
    return {
        row[ALL[name].told_by]: [row["on_time"], row["corrected"], row["dropped"], row["untimed"]]
        for row in views.ledger(name).to_pylist()
    }
