"""The test kit: what steps do, what they say when something is not as expected, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from decimal import Decimal
from typing import Any

import pytest

import headrace as hr
from headrace.testing import add, advance, expect, restart, run_steps

DAY = "2026-01-01T"


@pytest.fixture(scope="module")
def app(headrace_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hr.App]:
    """Clicks by minute, and those of the cart in a topic; those that come too late are in another."""
    with hr.App("shop", home=tmp_path_factory.mktemp("shop"), spark=headrace_spark) as app:
        clicks = app.topic("clicks", "page string, price decimal(9,2), at timestamp", event_time="at", partitions=2)
        window = app.stream(clicks).window(
            hr.tumbling("1 minute"), grace="10 seconds", late=hr.correct(within="1 minute", dropped_to="too_late")
        )
        window.group_by("page").agg(views=hr.count(), total=hr.sum("price")).to_view("views")
        app.stream(clicks).transform(lambda df: df.where("page = '/cart'")).to_topic("carts", durability="os")
        yield app


def click(at: str, page: str = "/", price: int | None = None) -> dict[str, Any]:
    return {"page": page, "price": price, "at": f"{DAY}{at}Z"}


def views(*rows: tuple[Any, ...], **more: Any) -> Any:
    wanted = [(f"{DAY}{start}Z", *rest) for start, *rest in rows]
    return expect("views", wanted, columns=("window_start", "page", "views", "_status", "_corrections"), **more)


def test_a_view_step_by_step(app: hr.App) -> None:
    run_steps(
        app,
        expect("views", []),
        add("clicks", click("09:00:05"), click("09:00:40"), partition=0),
        views(("09:00:00", "/", 2, "open", 0)),
        add("clicks", click("09:01:30"), partition=0),
        add("clicks", click("09:01:31", "/cart", 7), partition=1),  # both partitions are past 09:01:10
        views(("09:00:00", "/", 2, "final", 0), ("09:01:00", "/", 1, "open", 0), ("09:01:00", "/cart", 1, "open", 0)),
        add("clicks", click("09:00:59"), partition=0),  # 09:01:30 is past 09:01:10, not past 09:02:10: a correction
        restart(),
        views(
            ("09:00:00", "/", 3, "final", 1),
            ("09:01:00", "/", 1, "open", 0),
            ("09:01:00", "/cart", 1, "open", 0),
            ledger={"on_time": 4, "corrected": 1, "dropped": 0},
        ),
        expect("views", [("/", None), ("/", None), ("/cart", "7.00")], columns=["page", "total"]),
        expect("carts", [{"page": "/cart", "at": f"{DAY}09:01:31Z"}]),
        add("clicks", click("09:05:00"), partition=0),
        add("clicks", click("09:00:58"), partition=0),  # 09:05 is past 09:02:10
        expect("views", ledger={"dropped": 1}),
        expect("too_late", [{"page": "/", "at": f"{DAY}09:00:58Z", "window_start": f"{DAY}09:00:00Z"}]),
        lambda app: app.audit().ok or pytest.fail("the audit"),
    )


def test_the_clock_is_in_the_hand_of_the_test(app: hr.App) -> None:
    def arrived(app: hr.App) -> None:
        records = app.log.topic("clicks").records()
        assert [f"{record.arrived_at:%H:%M:%S}" for record in records] == [
            "09:00:40",
            "09:00:45",
            "09:00:45",
            "10:00:00",
        ]

    ahead = [click("11:00:01"), click("10:59:59")]  # more than an hour before its time, and less
    run_steps(
        app,
        add("clicks", click("09:00:40"), partition=0),
        advance("5 seconds"),
        add("clicks", [click("09:00:01"), click("09:00:02")], partition=0),  # they happened before: the clock stays
        add("clicks", ahead, at=f"{DAY}10:00:00Z"),
        arrived,
        expect("__dead_letters", [{"topic": "clicks", "reason": "max_ahead"}]),
    )


def test_what_is_not_as_expected_is_shown(app: hr.App) -> None:
    come = add("clicks", click("09:00:05"), click("09:00:06", "/cart"), click("09:00:07", "/pay"))
    with pytest.raises(AssertionError) as told:
        run_steps(
            app,
            come,
            expect("views", [{"page": "/", "views": 1}, {"page": "/", "views": 1}, {"page": "/pay", "views": 2}]),
        )
    assert str(told.value).splitlines() == [
        "step 2 of 2, expect('views', 3 rows): not as expected at 2026-01-01T09:00:07Z",
        "            page     views",
        "missing     '/'      1",
        "missing     '/pay'   2",
        "unexpected  '/cart'  1",
        "unexpected  '/pay'   1",
        "            '/'      1",
    ]
    with pytest.raises(AssertionError, match=r"(?s)the ledger is not .*expected  2\s.*found +3"):
        run_steps(app, come, expect("views", ledger={"on_time": 2}))
    with pytest.raises(hr.InvalidArgument, match=r"no column 'view'\. Did you mean 'views'"):
        run_steps(app, come, expect("views", [{"view": 1}]))
    with pytest.raises(AssertionError, match="step 1 of 1, look: looked"):

        def look(_: hr.App) -> None:
            raise AssertionError("looked")

        run_steps(app, look)


def test_an_error_says_in_which_step(app: hr.App) -> None:
    with pytest.raises(hr.RecordRejected) as told:
        run_steps(app, add("clicks", click("09:00:05")), add("clicks", {"paeg": "/"}))
    assert told.value.__notes__ == ["in step 2 of 2, add('clicks', 1 row)"]
    with pytest.raises(hr.InvalidArgument, match="does not go back"):
        run_steps(app, add("clicks", click("09:00:05")), add("clicks", click("09:00:05"), at=f"{DAY}09:00:00Z"))


def test_the_app_itself_is_not_touched(app: hr.App) -> None:
    run_steps(app, add("clicks", click("09:00:05")))
    assert [end.next for end in app.log.topic("clicks").offsets().values()] == [0, 0]
    assert not (app.home / "views.db").exists()


def test_numbers_that_are_nearly_right(app: hr.App) -> None:
    """Whatever has an `==` may be expected."""
    nearly = pytest.approx(Decimal("6.99"), abs=Decimal("0.02"))
    run_steps(app, add("clicks", click("09:00:05", "/", 7)), expect("views", [{"page": "/", "total": nearly}]))


def test_steps_are_values_that_refuse_nonsense() -> None:
    assert add("t", {"a": 1}, [{"a": 2}]) == add("t", [{"a": 1}, {"a": 2}])
    assert expect("v", iter([(1, 2)])).rows == ((1, 2),)
    with pytest.raises(FrozenInstanceError):
        advance("1 minute").by_us = 1  # type: ignore[misc]
    for nonsense in (
        lambda: add("t", "ab"),
        lambda: add("t", at="2026-01-01T09:00:00"),
        lambda: advance("0 seconds"),
        lambda: expect("v"),
        lambda: expect("v", [{"a": 1}, {"b": 1}]),
        lambda: expect("v", [(1,), (1, 2)]),
        lambda: expect("v", [(1,)], columns=("a", "b")),
        lambda: expect("v", ledger={"on_tme": 1}),
    ):
        with pytest.raises(hr.InvalidArgument):
            nonsense()
