"""Flows over views: what a view takes back is taken back behind it, three levels deep, exactly once at each, however
the log is cut and wherever the program is struck. Results are compared with plain Python over the rows of the level
above, and, for what is merged, over the records themselves."""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.aggregates import over_changes
from headrace.errors import InvalidArgument, TopicReplaced
from headrace.flows.compiler.partials import aggregated
from headrace.testing import add, assert_cut_invariant, crash_points
from tests.flows.oracle import EPOCH, near_quantile, records_of
from tests.flows.shop import SCHEMA, START, some_rows
from tests.flows.ways import one_way_or_many

SEED = 20261116
TEN = timedelta(seconds=10)


def chained(home: Path | str, spark: Any, **settings: Any) -> hr.App:
    """Sessions of words; those by how many records they have, which changes as they grow and merge; and all of that."""
    app = hr.App("tests", home=home, spark=spark, **settings)
    events = app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os")
    (
        app.stream(events)
        .window(hr.session("3 seconds"), late=hr.correct(within="365 days"), idle="1 day")
        .group_by("word")
        .agg(
            records=hr.count(),
            total=hr.sum("n"),
            money=hr.sum("money"),
            x=hr.sum("x", exact=True),
            mean=hr.avg("n"),
            best=hr.max("n"),
            p90=hr.approx_quantile("n", 0.9),
            about=hr.approx_count_distinct("n"),
        )
        .to_view("sessions")
    )
    (
        app.stream("sessions")
        .transform(lambda df: df.where("best is null or best <> 13"))
        .window(hr.tumbling("10 seconds"))
        .group_by("records")
        .agg(
            sessions=hr.count(),
            odd=hr.count(where="total % 2 = 1"),
            total=hr.sum("total"),
            money=hr.sum("money"),
            x=hr.sum("x"),
            middle=hr.avg("best"),
            mean=hr.merge("mean"),
            least=hr.min("best"),
            most=hr.max("money"),
            first=hr.first("word"),
            last=hr.last("word"),
            words=hr.count_distinct("word"),
            top=hr.top_k("word", 2),
            p90=hr.merge("p90"),
            about=hr.merge("about"),
        )
        .to_view("sizes")
    )
    app.stream("sizes").agg(
        windows=hr.count(),
        sessions=hr.merge("sessions"),
        total=hr.merge("total"),
        mean=hr.merge("mean"),
        least=hr.merge("least"),
        most=hr.merge("most"),
        p90=hr.merge("p90"),
        about=hr.merge("about"),
    ).to_view("everything")
    return app


def rows(app: hr.App, view: str) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name != "_status"}
        for row in app.view(view).to_arrow().to_pylist()
    ]


def known(values: Any) -> list[Any]:
    return [value for value in values if value is not None]


def check(app: hr.App) -> None:
    sessions = [row for row in rows(app, "sessions") if row["best"] != 13]
    groups: dict[tuple[datetime, int], list[dict[str, Any]]] = defaultdict(list)
    for row in sessions:
        groups[EPOCH + (row["window_end"] - EPOCH) // TEN * TEN, row["records"]].append(row)
    found = {(row["window_start"], row["records"]): row for row in rows(app, "sizes")}
    assert found.keys() == groups.keys()
    for place, some in groups.items():
        assert found[place] == expected_size(*place, some), place
    (everything,) = rows(app, "everything") or [None]
    if found:
        assert everything == expected_total(list(found.values()), sessions, records_of(app.log.topic("events")))
    merged: Counter[datetime] = Counter()
    for (start, _), some in groups.items():
        merged[start] += len(some)
    ledger = {row["window_start"]: row["on_time"] for row in app.view("sizes").ledger().to_pylist() if row["on_time"]}
    assert ledger == dict(merged)


def expected_size(start: datetime, records: int, some: list[dict[str, Any]]) -> dict[str, Any]:
    by_time = sorted(some, key=lambda row: (row["window_end"], row["word"] or ""))
    words = known(row["word"] for row in by_time)
    bests, totals, moneys, xs = (known(row[name] for row in some) for name in ("best", "total", "money", "x"))
    return {
        "window_start": start,
        "window_end": start + TEN,
        "records": records,
        "sessions": len(some),
        "odd": sum(total % 2 == 1 for total in totals),
        "total": sum(totals) if totals else None,
        "money": sum(moneys, Decimal(0)) if moneys else None,
        "x": float(sum(map(Fraction, xs), Fraction(0))) if xs else None,
        "middle": sum(bests) / len(bests) if bests else None,
        "mean": found_mean(some),
        "least": min(bests, default=None),
        "most": max(moneys, default=None),
        "first": words[0] if words else None,
        "last": words[-1] if words else None,
        "words": len(set(words)),
        "top": [
            {"value": word, "count": count}
            for word, count in sorted(Counter(words).items(), key=lambda each: (-each[1], each[0]))[:2]
        ],
        "p90": pytest.approx(some[0]["p90"]) if len(some) == 1 else some_number(some, "p90"),
        "about": some[0]["about"] if len(some) == 1 else some_number(some, "about"),
        "_corrections": sum(row["_corrections"] for row in some),
        "_updated_at": some_time(),
    }


class _Any:
    """Equal to what the test has no independent answer for, if that is of the right kind."""

    def __init__(self, is_right: Any) -> None:
        self._is_right = is_right

    def __eq__(self, other: object) -> bool:
        return bool(self._is_right(other))

    __hash__ = None  # type: ignore[assignment]


def some_time() -> Any:
    return _Any(lambda value: isinstance(value, datetime))


def some_number(some: list[dict[str, Any]], name: str) -> Any:
    """Between the least and the greatest that were merged; of distinct values, no more than all of them."""
    values = known(row[name] for row in some)
    if not values:
        return _Any(lambda value: value in (None, 0))
    top = sum(values) if name == "about" else max(values)
    return _Any(lambda value: min(values) <= value <= top)


def found_mean(some: list[dict[str, Any]]) -> Any:
    """Sums and how many values they are of cannot be told apart from here: the total over the mean is how many."""
    parts = [(row["total"], row["mean"]) for row in some if row["mean"] is not None]
    if not parts:
        return None
    if any(mean == 0 for _, mean in parts):
        return _Any(lambda value: isinstance(value, float))
    count = sum(round(total / mean) for total, mean in parts)
    return pytest.approx(sum(total for total, _ in parts) / count)


def expected_total(
    sizes: list[dict[str, Any]], sessions: list[dict[str, Any]], records: list[dict[str, Any]]
) -> dict[str, Any]:
    spans = [(row["word"], row["window_start"], row["window_end"]) for row in sessions]
    inside = [
        record["n"]
        for record in records
        if record["at"] is not None
        and record["n"] is not None
        and any(record["word"] == word and start <= record["at"] <= end for word, start, end in spans)
    ]
    totals, leasts, mosts = (known(row[name] for row in sizes) for name in ("total", "least", "most"))
    return {
        "windows": len(sizes),
        "sessions": len(sessions),
        "total": sum(totals) if totals else None,
        "mean": pytest.approx(sum(inside) / len(inside)) if inside else None,
        "least": min(leasts, default=None),
        "most": max(mosts, default=None),
        "p90": near_quantile([float(n) for n in inside], Fraction(9, 10)),
        "about": len(set(inside)) if inside else _Any(lambda value: value in (None, 0)),
        "_corrections": sum(row["_corrections"] for row in sizes),
        "_updated_at": some_time(),
    }


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with chained(tmp_path, spark) as app:
        yield app


def steps(seed: int, count: int = 24) -> list[Any]:
    rng = random.Random(seed)
    return [add("events", some_rows(rng, count, now)) for now in range(0, 60, 20)]


@pytest.mark.timeout(600)
@one_way_or_many
def test_a_chain_of_three_is_the_same_however_it_is_cut(app: hr.App, ways: int) -> None:
    assert_cut_invariant(app, *steps(SEED, 14), cuts=ways, seed=SEED, check=check)


@pytest.mark.timeout(600)
def test_a_chain_of_three_is_the_same_wherever_it_is_struck(app: hr.App) -> None:
    """Before, in and behind the commit; at all points in `test_a_chain_of_three_killed_for_real`."""
    points = ["view.merged", "view.committed", "flow.computed"]
    assert crash_points(app, *steps(SEED + 1, 8), points=points) == points


# -- a chain that changes ------------------------------------------------------------------------------


def minutes(
    home: Path | str,
    spark: Any,
    *,
    chain: bool = True,
    only: str = "true",
    emit: Any = "updates",
    size: str = "10 seconds",
    keep: str | None = None,
    keep_words: str | None = None,
) -> hr.App:
    """Words by ten seconds, and, over that, how many there are of each; by the minute, if those are not kept for
    ever."""
    app = hr.App("tests", home=home, spark=spark)
    events = app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os")
    windowed = app.stream(events).transform(lambda df: df.where(only)).window(hr.tumbling(size), idle="1 day")
    windowed.group_by("word").agg(records=hr.count(), most=hr.max("n")).to_view("minutes", keep=keep)
    if chain:
        stream = app.stream("minutes", emit=emit)
        windows = stream.window(hr.tumbling("1 minute")) if keep_words else stream
        behind = windows.group_by("word")
        behind.agg(windows=hr.count(), records=hr.sum("records"), most=hr.max("most")).to_view("words", keep=keep_words)
    return app


def words_of(app: hr.App, final: bool = False) -> dict[Any, dict[str, Any]]:
    """What `words` should be, from the rows of `minutes`."""
    out: dict[Any, dict[str, Any]] = {}
    for row in app.view("minutes").to_arrow().to_pylist():
        if not final or row["_status"] == "final":
            to = out.setdefault(row["word"], {"windows": 0, "records": 0, "most": None})
            to["windows"] += 1
            to["records"] += row["records"]
            to["most"] = max(known([to["most"], row["most"]]), default=None)
    return out


def words(app: hr.App) -> dict[Any, dict[str, Any]]:
    names = ("windows", "records", "most")
    return {row["word"]: {name: row[name] for name in names} for row in app.view("words").to_arrow().to_pylist()}


def put(app: hr.App, seed: int) -> None:
    app.log.topic("events").append(some_rows(random.Random(seed), 40, seed % 7 * 20))


def test_a_flow_over_a_view_that_was_there_before_begins_with_its_rows(spark: Any, tmp_path: Path) -> None:
    with minutes(tmp_path, spark, chain=False) as app:
        put(app, 1)
        app.drain()
    with minutes(tmp_path, spark) as app:
        put(app, 2)
        app.drain()
        assert words(app) == words_of(app) != {}
        assert app.audit().ok


def test_a_view_that_is_made_anew_is_made_anew_behind_it_too(spark: Any, tmp_path: Path) -> None:
    with minutes(tmp_path, spark) as app:
        put(app, 1)
        app.drain()
        before = words(app)
    with minutes(tmp_path, spark, only="n is null or n < 50") as app:
        app.rebuild("minutes").switch()
        put(app, 2)
        app.drain()
        assert words(app) == words_of(app) != before
        assert max(known(row["most"] for row in words(app).values())) < 50
        app.rollback("minutes")
    with minutes(tmp_path, spark) as app:
        app.drain()
        assert words(app) == words_of(app)
        assert max(known(row["most"] for row in words(app).values())) >= 50


def test_final_results_come_once_and_then_corrections_only(spark: Any, tmp_path: Path) -> None:
    with minutes(tmp_path, spark, emit="final") as app:
        for seed in (1, 2, 3):
            put(app, seed)
            app.drain()
            assert words(app) == words_of(app, final=True)
        app.drain(close=True)
        assert words(app) == words_of(app) != {}
        changes = [record.value["change__op"] for record in app.log.topic("__finals.minutes").records()]
        assert changes.count("+") - changes.count("-") == len(app.view("minutes").to_arrow())


def test_changes_pass_through_to_a_topic(spark: Any, tmp_path: Path) -> None:
    with minutes(tmp_path, spark, chain=False) as app:
        out = app.stream("minutes").transform(lambda df: df.where("records > 1").drop("most")).to_topic("busy")
        put(app, 1)
        app.drain()
        net: Counter[Any] = Counter()
        for record in out.records():
            row = record.value
            net[row["window_start"], row["word"], row["records"]] += 1 if row["op"] == "+" else -1
        rows = app.view("minutes").to_arrow().to_pylist()
        assert +net == Counter((r["window_start"], r["word"], r["records"]) for r in rows if r["records"] > 1)


def test_a_view_that_is_dropped_is_another_one_afterwards(spark: Any, tmp_path: Path) -> None:
    with minutes(tmp_path, spark) as app:
        put(app, 1)
        app.drain()
        app.view("minutes").drop()
    with minutes(tmp_path, spark) as app:
        with pytest.raises(TopicReplaced):
            app.drain()
        app.view("words").drop()
    with minutes(tmp_path, spark) as app:
        app.drain()
        assert words(app) == words_of(app) != {}


def test_what_cannot_be_is_said(spark: Any, tmp_path: Path) -> None:
    with minutes(tmp_path, spark) as app:
        stream, events = app.stream("minutes"), app.stream(app.log.topic("events"))
        tumbling = hr.tumbling("1 minute")
        events.window(hr.calendar("month", timezone="UTC")).agg(n=hr.count()).to_view("months")
        events.to_topic("copied")
        with_map = events.transform(lambda df: df.selectExpr("*", "array(map(word, n)) as maps"))
        for refused, why in (
            (lambda: stream.window(tumbling, grace="1 second"), "never late"),
            (lambda: stream.window(tumbling, late=hr.correct(within="1 hour")), "never late"),
            (lambda: stream.window(tumbling, time="window_start"), "the time of its window"),
            (lambda: stream.window(hr.session("1 minute")), "use tumbling, hopping"),
            (lambda: app.stream("words").window(tumbling), "has no windows"),
            (lambda: app.stream("words", emit="final"), "ever final"),
            (lambda: app.stream("minutes", start="latest"), "read from the beginning"),
            (lambda: stream.agg(p=hr.approx_quantile("records", 0.5)), "hr.merge"),
            (lambda: stream.agg(p=hr.merge("recordz")), "records"),
            (lambda: events.agg(p=hr.merge("records")), r"app\.stream\(view\)"),
            (lambda: stream.union(events), r"can retract rows.*Call union\(\) before"),
            (lambda: stream.dedup("word", within="1 hour"), "needs plain records"),
            (lambda: events.dedup(within="1 hour"), "names of columns"),
            (lambda: events.dedup("n", within="1 hour").window(hr.session("1 minute")), "use tumbling, hopping"),
            (lambda: app.stream("minutes", emit="sometimes"), "'updates' or 'final'"),
            (lambda: events.dedup("n", within="1 hour").agg(p=hr.approx_quantile("x", 0.5)), "takes nothing back"),
            (lambda: app.stream("months").window(hr.tumbling("30 days")), "is shorter than the windows of"),
            (
                lambda: app.stream("months").window(hr.calendar("week", timezone="UTC")),
                "is shorter than the windows of",
            ),
            (lambda: app.stream(app.view("copied")), "into topic 'copied'"),
        ):
            with pytest.raises(InvalidArgument, match=why):
                refused()
        with_map.dedup("n", within="1 hour").agg(n=hr.count()).to_view("maps")
        with pytest.raises(InvalidArgument, match="has one in it"):
            app.running.check()
        del app.flows["maps"], app.flows["maps.dedup"]
        with pytest.raises(hr.TransformRefused, match=r"\*hr\.META, \*hr\.CHANGE"):
            stream.transform(lambda df: df.select("word", *hr.META)).group_by("word").agg(n=hr.count()).to_view("x")
            app.drain()


def at(*seconds_and_n: tuple[float, int]) -> list[dict[str, Any]]:
    return [{"word": "a", "n": n, "at": START + timedelta(seconds=seconds)} for seconds, n in seconds_and_n]


def test_changes_go_on_while_nobody_here_reads_them(spark: Any, tmp_path: Path) -> None:
    """A program without the flow over the view runs in between; and one whose view is dropped there."""
    with minutes(tmp_path, spark) as app:
        put(app, 1)
        app.drain()
    with minutes(tmp_path, spark, chain=False) as app:
        put(app, 2)
        app.drain()
    with minutes(tmp_path, spark) as app:
        put(app, 3)
        app.drain()
        assert words(app) == words_of(app) != {}
    with minutes(tmp_path, spark, chain=False) as app:
        app.view("minutes").drop()
    with minutes(tmp_path, spark) as app:
        app.view("words").drop()
        app.drain()
        assert words(app) == words_of(app) != {}


def test_a_view_that_is_replaced_takes_back_what_it_told(spark: Any, tmp_path: Path) -> None:
    """As when a cell of a notebook is run again, with another window."""
    with minutes(tmp_path, spark) as app:
        put(app, 1)
        app.drain()
    with minutes(tmp_path, spark, size="20 seconds") as app:
        app.running._throwaway = True
        app.drain()
        assert words(app) == words_of(app) != {}


@pytest.mark.parametrize(("keep", "keep_words"), [(None, None), (None, "1 minute"), ("1 minute", None)])
def test_what_is_made_anew_may_take_back_anything(
    spark: Any, tmp_path: Path, keep: str | None, keep_words: str | None
) -> None:
    """Long closed, forgotten or no more kept: what is behind the view adds up all the same."""
    settings = {"keep": keep, "keep_words": keep_words}
    with minutes(tmp_path, spark, **settings) as app:
        app.log.topic("events").append(at((1, 1), (11, 60), (21, 3), (500, 4)))
        app.drain()
        app.log.topic("events").append(at((900, 4)))
        app.drain()
    with minutes(tmp_path, spark, only="n < 50", keep="10 days", keep_words=keep_words) as app:
        app.rebuild("minutes").switch()
        app.drain()
        found = app.view("words").to_arrow().to_pylist()
        if keep_words:  # what is older is not there, and does not come back as a part of itself
            assert [row["records"] for row in found] == [1, 1]
        elif keep:  # what was not kept above stays as it was, behind it
            assert [(row["windows"], row["records"], row["most"]) for row in found] == [(5, 5, 60)]
        else:
            assert words(app) == words_of(app) == {"a": {"windows": 4, "records": 4, "most": 4}}


def test_windows_behind_a_view_close_on_a_quiet_stream(spark: Any, tmp_path: Path) -> None:
    clock = [START.timestamp() * 1e6]
    with hr.App("tests", home=tmp_path, spark=spark, clock_us=lambda: int(clock[0])) as app:
        events = app.topic("events", SCHEMA, event_time="at", durability="os")
        app.stream(events).window(hr.tumbling("1 second"), idle="1 second").agg(n=hr.count()).to_view("seconds")
        app.stream("seconds").window(hr.tumbling("1 minute")).agg(n=hr.sum("n")).to_view("minutes")
        app.stream("minutes").window(hr.tumbling("1 hour")).agg(n=hr.sum("n")).to_view("hours")
        events.append(at((0, 1)))
        app.drain()
        for seconds, final in (10, ["final", "open", "open"]), (100, ["final", "final", "open"]), (4000, ["final"] * 3):
            clock[0] = (START.timestamp() + seconds) * 1e6
            app.drain()
            found = [app.view(name).to_arrow()["_status"].to_pylist() for name in ("seconds", "minutes", "hours")]
            assert found == [[each] for each in final]
        late = app.stream("seconds").window(hr.tumbling("1 minute")).agg(n=hr.count())
        late.to_view("later")  # begins with how far the view is, too
        app.drain()
        assert app.view("later").to_arrow()["_status"].to_pylist() == ["final"]


@pytest.mark.parametrize("kind", ["sliding", "session"])
def test_a_window_over_rows_that_end_with_a_record_closes_with_the_last_of_them(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    """Rows of [0, 10) are final when one of 9.999999 is."""
    clock = [int(START.timestamp() * 1e6) + 9_999_999]
    window, after_us = (hr.sliding("2 seconds"), 1) if kind == "sliding" else (hr.session("2 seconds"), 2_000_001)
    with hr.App("tests", home=tmp_path, spark=spark, clock_us=lambda: clock[0]) as app:
        events = app.topic("events", SCHEMA, event_time="at", durability="os")
        app.stream(events).window(window, grace="1 second").agg(n=hr.count()).to_view("rows")
        app.stream("rows").window(hr.tumbling("10 seconds")).agg(n=hr.sum("n")).to_view("tens")
        events.append(at((9.999_999, 1)))
        clock[0] += 30_000_000 + 1_000_000 + after_us - 1  # idle, grace, and all but the last microsecond
        for expected in "open", "final":
            app.drain()
            found = [app.view(name).to_arrow()["_status"].to_pylist() for name in ("rows", "tens")]
            assert found == [[expected], [expected]]
            clock[0] += 1


def test_a_record_of_the_first_year_stops_no_chain(spark: Any, tmp_path: Path) -> None:
    """0001-01-01T00:00:00Z, which Go and .NET write for 'no time'; and corrections for longer than there are years."""
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        events = app.topic("events", SCHEMA, event_time="at", durability="os")
        late = hr.correct(within="1200000 days")
        stream = app.stream(events).window(hr.tumbling("1 day"), grace="1 hour", late=late)
        stream.agg(n=hr.count()).to_view("days", keep="1000000 days")
        app.stream("days").window(hr.tumbling("1 day")).agg(n=hr.sum("n")).to_view("again")
        app.stream(events).dedup("n", within="1 hour").window(hr.tumbling("1 day")).agg(n=hr.count()).to_view("once")
        events.append([{"word": "a", "n": 1, "at": datetime(1, 1, 1, tzinfo=UTC)}])
        app.drain()
        events.append(at((0, 2), (900_000, 3)))
        app.drain()
        for view in "days", "again", "once":
            found = app.view(view).to_arrow()
            assert found["n"].to_pylist() == [1, 1]
            assert found["_status"].to_pylist() == ["final", "open"]
        assert sum(app.view("days").ledger()["untimed"].to_pylist()) == 1  # its day may begin before the first year
        assert app.audit().ok


def test_odd_values_and_what_is_the_changes_own(spark: Any, tmp_path: Path) -> None:
    """The lowest number, NaN among equals in time, lists; and a transform that looks at where a change lies."""
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        events = app.topic("events", "k string, n bigint, x double, at timestamp", event_time="at", durability="os")
        windowed = app.stream(events).window(hr.tumbling("10 seconds"), idle="1 day").group_by("k")
        windowed.agg(
            n=hr.min("n"), x=hr.max("x"), spread=hr.histogram("x", [0.0]), some=hr.collect("n", limit=3)
        ).to_view("above")
        stream = app.stream("above")
        results = {"n": hr.sum("n"), "first": hr.first("x"), "last": hr.last("x"), "spread": hr.merge("spread")}
        stream.agg(**results, some=hr.merge("some")).to_view("below")
        placed = stream.transform(lambda df: df.selectExpr("_offset as o", "_partition as p", *hr.META, *hr.CHANGE))
        placed.group_by("o", "p").agg(rows=hr.count()).to_view("placed")
        for n, (key, x) in enumerate([("a", 1.0), ("b", float("nan")), ("c", -1.0), ("a", 2.0), ("c", -3.0)]):
            lowest = -(2**63) if n == 0 else n
            events.append([{"k": key, "n": lowest, "x": x, "at": START + timedelta(seconds=n)}])
            app.drain()
        (below,) = app.view("below").to_arrow().to_pylist()
        assert below["n"] == -(2**63) + 1 + 2 and below["spread"] == [2, 3] and below["some"] == [-(2**63), 1, 2]
        assert below["first"] == -1.0 and below["last"] != below["last"]  # NaN is the greatest
        assert app.running.query(app.flows["below"]).compiled.flow.aggregates["n"].partial.wide  # if it were Spark's
        assert [row["rows"] for row in app.view("placed").to_arrow().to_pylist()] == [3]
        with pytest.raises(InvalidArgument, match="add up"):
            app.rebuild("below", start="latest")


@pytest.mark.parametrize("name", ["größe", "a b", "true", "`"])
def test_spark_takes_back_any_number_of_any_name(spark: Any, name: str) -> None:
    column = name.replace("`", "``")
    df = spark.sql(
        f"select * from values ('+', 1L), ('+', {-(2**63)}L), ('-', {-(2**63)}L) as t(change__op, `{column}`)"
    )
    merged = over_changes("n", hr.merge(name), {name: hr.count()})
    merged = merged.with_algebra(merged.algebra.settled({"value": pa.int64()}))
    df, partial = aggregated({"n": merged}, df, None, changes=True)
    assert [tuple(row) for row in df.agg(*partial).collect()] == [(1, 1)]


@pytest.mark.parametrize("route", ["arrow", "spark"])
def test_aggregates_of_values_take_back_what_a_view_takes_back(spark: Any, tmp_path: Path, route: str) -> None:
    """A row of ten seconds is corrected many times, so most of what comes goes again."""
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        events = app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os")
        windowed = app.stream(events).window(hr.tumbling(TEN), late=hr.correct(within="365 days"), idle="1 day")
        kept = {
            "records": hr.count(),
            "most": hr.max("n"),
            "spread": hr.stddev("n"),
            "top": hr.top_k("word", 2, by="n"),
        }
        windowed.group_by("word").agg(**kept, busy=hr.max("n > 50")).to_view("tens")
        stream = app.stream("tens")
        if route == "spark":
            stream = stream.transform(lambda df: df.where("records * 2 > 0"))
        asked = {
            "best": hr.max_by("word", "most"),
            "worst": hr.min_by("most", "records"),
            "spread": hr.stddev("most"),
            "variance": hr.variance("records"),
            "median": hr.percentile("most", 0.5),
            "different": hr.sum_distinct("most"),
            "largest": hr.top_k("most", 3, by="records"),
            "busy": hr.sum("records", where="busy"),
            "all_spread": hr.merge("spread"),
            "all_top": hr.merge("top"),
            **({"row": hr.last("struct(*)")} if route == "spark" else {}),
        }
        if route == "spark":  # what a transform passes on has no state to merge
            asked = {name: each for name, each in asked.items() if not name.startswith("all_")}
        stream.agg(**asked).to_view("all")
        rng = random.Random(SEED)
        for now in range(0, 60, 20):
            events.append(some_rows(rng, 30, now))
            app.drain(batch_rows=17)
            tens = app.view("tens").to_arrow().to_pylist()
            (found,) = app.view("all").to_arrow().to_pylist()
            expected = of_tens(tens, records_of(events))
            assert {name: found[name] for name in asked} == {name: expected[name] for name in asked}
        assert (app.running.query(app.flows["all"]).compiled.arrow is None) == (route == "spark")
        assert app.audit().ok


def of_tens(tens: list[dict[str, Any]], records: list[dict[str, Any]]) -> dict[str, Any]:
    most = sorted(row["most"] for row in tens if row["most"] is not None)
    counts = [row["records"] for row in tens]
    by = [row for row in tens if row["most"] is not None]

    def order(measure: str, value: str) -> Any:
        return lambda row: (row[measure], row["window_end"], row[value])

    known = [row for row in by if row["word"] is not None]
    last = max(tens, key=lambda row: (row["window_end"], row["word"] is not None, row["word"] or ""))
    judged = [r for r in records if r["at"] is not None]
    numbers = [r["n"] for r in judged if r["n"] is not None]
    top = [r for r in judged if None not in (r["word"], r["n"])]
    top.sort(key=lambda r: (r["n"], r["at"], r["_partition"], r["_offset"]), reverse=True)
    return {
        "best": max(known, key=order("most", "word"))["word"],
        "worst": min(by, key=order("records", "most"))["most"],
        "spread": pytest.approx(statistics.stdev(most), rel=1e-12),
        "variance": pytest.approx(statistics.variance(counts), rel=1e-12),
        "median": statistics.median(most),
        "different": sum(set(most)),
        "largest": [
            {"value": row["most"], "by": row["records"]} for row in sorted(by, key=order("records", "most"))[:-4:-1]
        ],
        "busy": sum(row["records"] for row in tens if row["busy"]) or None,
        "all_spread": pytest.approx(statistics.stdev(numbers), rel=1e-9),
        "all_top": [{"value": r["word"], "by": r["n"]} for r in top[:2]],
        "row": {name: last[name] for name in ("window_start", "window_end", *OF_TENS)},
    }


OF_TENS = ("word", "records", "most", "spread", "top", "busy")


# -- duplicates ----------------------------------------------------------------------------------------

WITHIN, GRACE, CORRECTED = timedelta(seconds=5), timedelta(seconds=2), timedelta(seconds=30)


def deduped(home: Path | str, spark: Any) -> hr.App:
    app = hr.App("tests", home=home, spark=spark)
    events = app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os")
    windowed = (
        app.stream(events)
        .dedup("word", within=WITHIN)
        .window(hr.tumbling(TEN), grace=GRACE, late=hr.correct(within=CORRECTED, dropped_to="late"), idle="1 day")
    )
    windowed.group_by("word").agg(records=hr.count(), total=hr.sum("n"), last=hr.last("money")).to_view("once")
    return app


def check_deduped(app: hr.App) -> None:
    accepted = [r for r in records_of(app.log.topic("events")) if r["at"] is not None]
    reach = WITHIN + max(TEN + GRACE + CORRECTED - WITHIN, timedelta(0))
    accepted = [r for r in accepted if r["_progress"] is None or r["_progress"] < r["at"] + reach]
    winners = []
    for word in {r["word"] for r in accepted}:
        of_word = sorted(
            (r for r in accepted if r["word"] == word), key=lambda r: (r["at"], r["_partition"], r["_offset"])
        )
        winners += [r for i, r in enumerate(of_word) if i == 0 or r["at"] - of_word[i - 1]["at"] > WITHIN]
    expected: dict[tuple[datetime, Any], dict[str, Any]] = {}
    ledger: dict[datetime, list[int]] = defaultdict(lambda: [0, 0, 0])
    for record in sorted(winners, key=lambda r: (r["at"], r["money"] or 0)):
        start = EPOCH + (record["at"] - EPOCH) // TEN * TEN
        late = timedelta(-1) if record["_progress"] is None else record["_progress"] - start - TEN - GRACE
        kind = 0 if late < timedelta(0) else 1 if late < CORRECTED else 2
        ledger[start][kind] += 1
        if kind < 2:
            row = expected.setdefault(
                (start, record["word"]), {"records": 0, "total": None, "last": None, "_corrections": 0}
            )
            row["records"] += 1
            row["_corrections"] += kind
            if record["n"] is not None:
                row["total"] = (row["total"] or 0) + record["n"]
            if record["money"] is not None:
                row["last"] = record["money"]
    found = {
        (row["window_start"], row["word"]): {name: row[name] for name in ("records", "total", "last", "_corrections")}
        for row in rows(app, "once")
    }
    assert found == expected
    told = app.view("once").ledger().to_pylist()
    assert {row["window_start"]: [row["on_time"], row["corrected"], row["dropped"]] for row in told} == dict(ledger)
    (before,) = app.view("once.dedup").ledger().to_pylist()
    late = Counter(record.value["op"] for record in app.log.topic("late").records())
    assert late["+"] - late["-"] == sum(row["dropped"] for row in (before, *told))


@pytest.mark.timeout(600)
@one_way_or_many
def test_the_earliest_of_duplicates_however_the_log_is_cut(spark: Any, tmp_path: Path, ways: int) -> None:
    with deduped(tmp_path, spark) as app:
        assert_cut_invariant(app, *steps(SEED + 2), cuts=ways, seed=SEED, check=check_deduped)
        points = ["view.applied", "view.committed", "relay.appended"]
        assert crash_points(app, *steps(SEED + 3, 8), points=points) == points


def test_a_dedup_that_changes_is_dropped_with_its_view(spark: Any, tmp_path: Path) -> None:
    def program(within: str) -> hr.App:
        app = hr.App("tests", home=tmp_path, spark=spark)
        events = app.topic("events", "record string, op int, at timestamp", event_time="at", durability="os")
        windowed = app.stream(events).dedup("record", within=within).window(hr.tumbling("10 seconds"), idle="1 day")
        windowed.agg(n=hr.count()).to_view("once")
        return app

    with program("1 second") as app:
        rows = [{"record": "a", "op": 1, "at": START + timedelta(seconds=each)} for each in (0, 2, 4)]
        app.log.topic("events").append(rows)
        app.drain()
        assert app.view("once").to_arrow()["n"].to_pylist() == [3]
        with pytest.raises(InvalidArgument, match="came or went"):
            app.stream("events").dedup("op", within="1 second").to_topic("out").opened()
    with program("5 seconds") as app:
        with pytest.raises(hr.FlowChanged, match=r"app\.view\('once'\)\.drop\(\)"):
            app.drain()
        app.view("once").drop()
    with program("5 seconds") as app:
        app.drain()
        assert app.view("once").to_arrow()["n"].to_pylist() == [1]
        assert app.views.ledger("once.dedup")["on_time"].to_pylist() == [3]


def test_of_two_topics_records_of_one_time_and_place_the_same_goes_on(spark: Any, tmp_path: Path) -> None:
    """Spark compares records by their values, the store as texts: neither is asked."""
    found = []
    for size in (1, 10):
        with hr.App("tests", home=tmp_path / str(size), spark=spark) as app:
            one, two = (
                app.topic(name, "k string, n int, at timestamp", event_time="at", durability="os")
                for name in ("one", "two")
            )
            both = app.stream(one).union(app.stream(two)).dedup("k", within="5 seconds")
            both.agg(n=hr.sum("n"), records=hr.count()).to_view("once")
            for topic, n in ((one, 10), (two, 9)):
                topic.append([{"k": "a", "n": n, "at": START}])
            app.drain(batch_rows=size)
            found += [(row["n"], row["records"]) for row in rows(app, "once")]
    assert found == [(10, 1), (10, 1)]


@pytest.mark.soak
def test_a_chain_of_three_killed_for_real() -> None:
    assert len(crash_points(_program, *steps(SEED + 4, 10), kill=True)) >= 6


def _program() -> hr.App:
    return chained(":temp:", None)


def test_an_aggregate_that_is_added_above_is_there_below(spark: Any, tmp_path: Path) -> None:
    with minutes(tmp_path, spark) as app:
        put(app, 1)
        app.drain()
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        windowed = app.stream(app.log.topic("events")).window(hr.tumbling("10 seconds"), idle="1 day")
        results = windowed.group_by("word").agg(records=hr.count(), most=hr.max("n"), total=hr.sum("n"))
        behind = app.stream(results.to_view("minutes")).group_by("word")
        behind.agg(windows=hr.count(), records=hr.sum("records"), most=hr.max("most"), all=hr.sum("total")).to_view(
            "words"
        )
        app.rebuild("minutes").switch()
        app.running.loop(app.flows["minutes"]).drain()
        app.rebuild("words").switch()
        put(app, 2)
        app.drain()
        assert words(app) == words_of(app) != {}
        totals = known(record["n"] for record in records_of(app.log.topic("events")) if record["at"] is not None)
        dropped = sum(app.view("minutes").ledger()["dropped"].to_pylist())
        found = sum(known(app.view("words").to_arrow()["all"].to_pylist()))
        assert found == sum(known(app.view("minutes").to_arrow()["total"].to_pylist())) and (
            dropped or found == sum(totals)
        )
        assert app.audit().ok


def above(home: Path, spark: Any, **results: Any) -> hr.App:
    app = hr.App("tests", home=home, spark=spark)
    windowed = app.stream(app.log.topic("events")).window(hr.tumbling("10 seconds"), idle="1 day")
    windowed.group_by("word").agg(**results).to_view("minutes")
    return app


def test_a_view_that_becomes_another_is_told_to_those_who_read_it(spark: Any, tmp_path: Path) -> None:
    """By a program that knows of no flow over it, too; and what they could not read is refused before."""
    with minutes(tmp_path, spark) as app:
        put(app, 1)
        app.drain()
    with above(tmp_path, spark, records=hr.count(), most=hr.max("n"), total=hr.sum("n")) as app:
        app.rebuild("minutes").switch()
        put(app, 2)
        app.drain()
    refused = pytest.raises(hr.CannotRebuild, match=r"read by other flows.*'records' .* bigint cannot become double")
    with above(tmp_path, spark, records=hr.sum("x"), most=hr.max("n")) as app, refused:
        app.rebuild("minutes")
    with above(tmp_path, spark, records=hr.count(), most=hr.approx_quantile("n", 1)) as app:
        app.stream("minutes").group_by("word").agg(most=hr.merge("most")).to_view("most")
        app.rebuild("minutes").switch()
        app.drain()
        found = {row["word"]: row["most"] for row in rows(app, "most")}
        for row in rows(app, "minutes"):
            assert row["most"] is None or row["most"] <= found[row["word"]]
    with above(tmp_path, spark, records=hr.count(), most=hr.max("n")) as app:
        behind = app.stream("minutes").group_by("word")
        behind.agg(windows=hr.count(), records=hr.sum("records"), most=hr.max("most")).to_view("words")
        app.rebuild("minutes").switch()
        with pytest.raises(hr.FlowChanged, match="most"):  # it was of whole numbers
            app.drain()


def test_changes_in_a_topic_are_folded_as_those_of_the_view_are(spark: Any, tmp_path: Path) -> None:
    """By another app, too; and from a copy of the topic, or from one that was there before."""

    def rolled(stream: Any) -> Any:
        hours = stream.window(hr.tumbling("1 hour")).group_by("page")
        return hours.agg(minutes=hr.count(), views=hr.sum("views"), most=hr.max("views"))

    def rows(app: hr.App, view: str) -> list[tuple[Any, ...]]:
        names = ("window_start", "page", "minutes", "views", "most")
        return [tuple(row[name] for name in names) for row in app.view(view).to_arrow().to_pylist()]

    with hr.App("first", home=tmp_path, spark=spark) as first, hr.App("second", home=tmp_path, spark=spark) as second:
        clicks = first.topic("clicks", "page string, at timestamp", event_time="at", durability="os")
        before = first.topic(
            "before", "op string, page string, window_start timestamp, window_end timestamp, views bigint"
        )
        late = hr.correct(within="1 day")
        minutes = first.stream(clicks).window(hr.tumbling("1 minute"), late=late).group_by("page").agg(views=hr.count())
        rolled(first.stream(minutes.to_view("minutes"))).to_view("by_view")
        for written in minutes.to_topic("every"), minutes.to_topic("final", emit="final"), minutes.to_topic("before"):
            assert written.settings.changes
        changes = second.topic("every", create=False)
        assert changes.settings.changes and second.log.topic("before").settings.changes and not clicks.settings.changes
        rolled(second.stream(changes)).to_view("by_topic")
        rolled(second.stream("every").transform(lambda df: df.where("views + 0.5D > 0"))).to_view("by_spark")
        rolled(second.stream("final")).to_view("by_final")
        second.stream("before").group_by("page").agg(views=hr.sum("views")).to_view("by_page")
        copy = second.stream("every").to_topic("copy")
        assert copy.settings.changes
        rolled(second.stream(copy)).to_view("by_copy")
        for seconds in (0, 1, 61, 62), (3, 3600), (62, 0):
            clicks.append([{"page": "/", "at": START + timedelta(seconds=each)} for each in seconds])
            first.drain()
            second.drain(batch_rows=3)
        first.drain(close=True)
        second.drain(close=True)
        hour = timedelta(hours=1)
        wanted = [(START, "/", 2, 7, 4), (START + hour, "/", 1, 1, 1)]
        for app, view in (first, "by_view"), *((second, f"by_{name}") for name in ("topic", "spark", "final", "copy")):
            assert rows(app, view) == wanted, view
        assert second.view("by_page").to_arrow()["views"].to_pylist() == [8]
        assert first.audit().ok and second.audit().ok
        for refused in (
            lambda: second.stream("every", start="latest"),
            lambda: second.stream("every").union(second.stream("clicks")),
            lambda: second.stream("every").dedup("page", within="1 hour"),
            lambda: second.stream("every").window(hr.session("1 hour")),
            lambda: second.stream("every").window(hr.tumbling("1 hour"), grace="1 hour"),
            lambda: second.stream("every").agg(v=hr.merge("views")),
            lambda: second.stream("every").agg(v=hr.approx_quantile("views", 0.5)),
            lambda: second.topic("no_op", "v int", changes=True),
            lambda: clicks.alter(changes=True),
        ):
            with pytest.raises(hr.InvalidArgument):
                refused()
        assert before.settings.event_time is None


@pytest.mark.parametrize("ran", [True, False])
def test_a_topic_that_gets_changes_is_not_read_as_records_any_more(spark: Any, tmp_path: Path, ran: bool) -> None:
    """Its reader was described before its writer, and ran already or did not: '-' is no row to count."""
    with hr.App("tests", home=tmp_path, spark=spark) as app:
        clicks, out = app.topic("clicks", "page string"), app.topic("out", "op string, page string, n bigint")
        app.stream(out).group_by("page").agg(rows=hr.count()).to_view("rows")
        if ran:
            app.drain()
        app.stream(clicks).group_by("page").agg(n=hr.count()).to_topic("out")
        clicks.append([{"page": "/"}] * 2)
        with pytest.raises(hr.FlowChanged, match="records of topic 'out' became changes"):
            app.drain(batch_rows=1)
        assert app.view("rows").to_arrow().num_rows == 0
