"""Windows on Spark: calendar, with an offset, cumulative, arrival time, session, sliding. Each view is its question
over the whole log as one batch, whatever the cuts; what a test says of single steps has the arithmetic beside it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import CRASH_POINTS, add, advance, assert_cut_invariant, crash_points, expect, run_steps
from headrace.windows import Sliding
from tests.flows.shop import app_of, check, some_rows
from tests.flows.ways import one_way_or_many

SEED = 20261116
START = datetime(2026, 1, 1, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


KINDS = {
    "calendar": ("day", "arrow_day"),
    "offset": ("hopping_offset", "arrow_offset"),
    "cumulative": ("cumulative_correct", "arrow_cumulative"),
    "session": ("session_correct", "arrow_session"),
    "sliding": ("sliding_correct", "arrow_sliding"),
}


@pytest.mark.parametrize("names", KINDS.values(), ids=KINDS)
def test_views_are_their_questions_over_the_whole_log(spark: Any, tmp_path: Path, names: tuple[str, ...]) -> None:
    rng = random.Random(SEED)
    with app_of(tmp_path, spark, 2, names) as app:
        arrow = {name: app.running.query(app.flows[name]).compiled.arrow is not None for name in names}
        assert arrow == {name: name.startswith("arrow") for name in names}
        topic = app.log.topic("events")
        for now in range(0, 45, 15):
            topic.append(some_rows(rng, 30, now))
            app.drain(batch_rows=rng.choice([20, 1000]))
            check(app)


def test_by_arrival_nothing_is_late_and_the_log_says_how_far_it_is(spark: Any, tmp_path: Path) -> None:
    """Also where a transform lets no record through, and however old the records' own times are."""
    with hr.App("arrived", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at", partitions=2)
        window = hr.tumbling("10 seconds")
        stream = app.stream(topic)
        stream.window(window, time="_arrived_at", idle="30 seconds").group_by("who").agg(n=hr.count()).to_view("plain")
        for name, wanted in ("some", "upper(who) = 'A'"), ("none", "false"):
            few = stream.transform(lambda df, wanted=wanted: df.where(wanted))
            few.window(window, time="_arrived_at", idle="30 seconds").group_by("who").agg(n=hr.count()).to_view(name)
        compiled = {name: app.running.query(flow).compiled for name, flow in app.flows.items()}
        assert [name for name, each in compiled.items() if each.arrow is not None] == ["plain"]

        def come(*rows: tuple[float, str, int, str]) -> Any:
            return expect("plain", rows=[(at(start), at(start + 10), who, n, status) for start, who, n, status in rows])

        short = ("window_start", "who", "n", "_status")
        run_steps(
            app,
            add("t", {"who": "a", "at": at(-500)}, {"who": "b", "at": at(-3600)}, partition=0, at=at(1)),
            add("t", {"who": "a", "at": None}, partition=1, at=at(2)),
            come((0, "a", 2, "open"), (0, "b", 1, "open")),
            add("t", {"who": "b", "at": at(3)}, partition=0, at=at(12)),  # partition 1 has come to 2
            come((0, "a", 2, "open"), (0, "b", 1, "open"), (10, "b", 1, "open")),
            add("t", {"who": "a", "at": at(-9)}, partition=1, at=at(13)),  # both are past 10
            come((0, "a", 2, "final"), (0, "b", 1, "final"), (10, "a", 1, "open"), (10, "b", 1, "open")),
            expect("some", [(at(0), "a", 2, "final"), (at(10), "a", 1, "open")], columns=short),
            expect("none", []),
            advance("36 seconds"),  # 49 - 30 = 19
            come((0, "a", 2, "final"), (0, "b", 1, "final"), (10, "a", 1, "open"), (10, "b", 1, "open")),
            advance("1 second"),  # 50 - 30 = 20: quiet for so long that nothing of then is to come
            come((0, "a", 2, "final"), (0, "b", 1, "final"), (10, "a", 1, "final"), (10, "b", 1, "final")),
            expect("plain", ledger={"on_time": 5, "corrected": 0, "dropped": 0, "untimed": 0}),
            lambda app: app.audit().ok or pytest.fail("audit"),
        )  # fmt: skip


@pytest.mark.timeout(600)
@one_way_or_many
def test_groups_without_a_window_go_when_no_record_has_come_for_so_long(spark: Any, tmp_path: Path, ways: int) -> None:
    """By arrival, whether Spark computes something or not, and however the log is cut."""
    with hr.App("going", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, n int, at timestamp", event_time="at", partitions=2)
        plain = app.stream(topic).group_by("who").agg(n=hr.count(), most=hr.max("n"), last=hr.last("n"))
        plain.to_view("plain", keep="10 seconds")
        computed = app.stream(topic).transform(lambda df: df.withColumn("twice", df.n * 2)).group_by("who")
        computed.agg(n=hr.count(), most=hr.max("twice / 2")).transform(lambda df: df.where("n > 0")).to_view(
            "computed", keep="10 seconds"
        )
        arrow = [name for name, flow in app.flows.items() if app.running.query(flow).compiled.arrow is not None]
        assert arrow == ["plain"]

        def come(second: float, who: str, n: int, partition: int = 0) -> Any:
            return add("t", {"who": who, "n": n, "at": at(-n)}, partition=partition, at=at(second))

        def there(*rows: tuple[str, int, int, int]) -> list[Any]:
            computed = [(who, n, float(most)) for who, n, most, _ in rows]
            short = ("who", "n", "most")
            return [expect("plain", list(rows), columns=(*short, "last")), expect("computed", computed, columns=short)]

        steps = [
            come(0, "a", 9), come(10, "a", 4),  # exactly so long after is one
            come(10, "b", 1, 1), *there(("a", 2, 9, 4), ("b", 1, 1, 1)),  # by arrival the last is 4, though 9 is later
            come(20, "b", 2), *there(("a", 2, 9, 4), ("b", 2, 2, 2)),
            come(20.5, "b", 3, 1), *there(("b", 3, 3, 3)),  # a has been silent for 10.5 seconds
            come(21, "a", 5), *there(("a", 1, 5, 5), ("b", 3, 3, 3)),
            come(40, "c", 7, 1), *there(("c", 1, 7, 7)),
            lambda app: app.audit().ok or pytest.fail("audit"),
        ]  # fmt: skip
        run_steps(app, *steps)
        rng = random.Random(SEED)
        seconds, more = 40.0, []
        for number in range(30):
            seconds += rng.choice([0, 1, 3, 9.5, 11])
            more.append(come(seconds, rng.choice("abc"), number, rng.randrange(2)))
        assert_cut_invariant(app, *more, cuts=ways, seed=SEED)


@pytest.mark.timeout(600)
def test_any_cuts_paths_and_crashes_give_the_same(spark: Any, tmp_path: Path) -> None:
    """Those that Spark computes; the others are cut at random without it."""
    rng = random.Random(SEED)
    with app_of(tmp_path, spark, 2, [name for names in KINDS.values() for name in names[:1]]) as app:
        rows = [add("events", some_rows(rng, 25, now)) for now in (0, 20)]
        assert_cut_invariant(app, *rows, cuts=1, seed=SEED, check=check)


@pytest.mark.timeout(600)
def test_struck_at_every_point_sessions_join_and_slides_fill_once(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with app_of(tmp_path, spark, 2, ("arrow_session", "arrow_sliding")) as app:
        rows = [add("events", some_rows(rng, 25, now)) for now in (0, 20)]
        points = [point for point in CRASH_POINTS if point.split(".")[0] in ("flow", "view")]
        assert crash_points(app, *rows, points=points) == points


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        (hr.session("2 seconds"), [("b", 1, 1)]),
        (hr.sliding("2 seconds"), [("b", -1, 1), ("c", 7.9, 9.9)]),
        (hr.calendar("day", timezone="UTC"), []),
    ],
    ids=str,
)
def test_dropped_records_go_to_a_topic_with_the_window_that_was_theirs(
    spark: Any, tmp_path: Path, window: Any, wanted: list[tuple[str, float, float]]
) -> None:
    with hr.App("drops", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, at timestamp", event_time="at")
        stream = app.stream(topic).window(window, late=hr.drop(dropped_to="too_late"), idle="1 day")
        stream.group_by("who").agg(n=hr.count()).to_view("v")
        # progress 10: 1 + 2 is not after it, 9.9 + 2 is; windows that end with 1 and with 9.9 were over
        topic.append([{"who": "a", "at": at(10)}, {"who": "b", "at": at(1)}, {"who": "c", "at": at(9.9)}])
        app.drain()
        found = [record.value for record in app.log.topic("too_late").records()]
        bounds = [[(row[name] - START).total_seconds() for name in ("window_start", "window_end")] for row in found]
        assert [(row["who"], *each) for row, each in zip(found, bounds, strict=True)] == wanted
        counted = None if isinstance(window, Sliding) else 0
        assert {(row["windows_missed"], row["windows_counted"]) for row in found} <= {(1, counted)}
        assert app.audit().ok
