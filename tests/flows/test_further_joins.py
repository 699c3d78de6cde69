"""Joining what a join gave: a topic of its rows, as records, because they are never taken back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.errors import InvalidArgument
from headrace.testing import add, assert_cut_invariant

ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return ZERO + timedelta(seconds=seconds)


def shop(spark: Any) -> tuple[hr.App, Any, hr.View]:
    """Orders join their payments, and those the parcels of the order."""
    app = hr.App("shop", home=":temp:", spark=spark)
    orders, payments, parcels = (
        app.stream(app.topic(name, f"id string, {name} int, at timestamp", key="id", event_time="at", partitions=2))
        for name in ("orders", "payments", "parcels")
    )
    times = {"before": "10 seconds", "after": "10 seconds", "grace": "100 seconds"}
    paid = orders.join(payments, on="id", **times).to_topic("paid", event_time="at", changes=False)
    both = app.stream(paid).transform(lambda df: df.drop("joined_at", "at_right"))
    return app, paid, both.join(parcels, on="id", **times).to_view("sent")


@pytest.fixture
def made(spark: Any) -> Iterator[tuple[hr.App, Any, hr.View]]:
    app, paid, sent = shop(spark)
    with app:
        yield app, paid, sent


def random_steps(seed: int) -> list[Any]:
    dice = random.Random(seed)
    return [
        add(name, {"id": dice.choice("abc"), name: number, "at": at(dice.randint(0, 60))})
        for number, name in enumerate(dice.choices(("orders", "payments", "parcels"), k=40))
    ]


def test_three_streams_meet(made: tuple[hr.App, Any, hr.View]) -> None:
    app, paid, sent = made
    rows: dict[str, list[dict[str, Any]]] = {"orders": [], "payments": [], "parcels": []}
    for step in random_steps(3):
        rows[step.topic] += step.rows
        app.log.topic(step.topic).append(step.rows)
        app.drain()
    close = timedelta(seconds=10)
    wanted = [
        (order["orders"], payment["payments"], parcel["parcels"])
        for order in rows["orders"]
        for payment in rows["payments"]
        for parcel in rows["parcels"]
        if order["id"] == payment["id"] == parcel["id"]
        and abs(order["at"] - payment["at"]) <= close >= abs(order["at"] - parcel["at"])
    ]
    found = [(row["orders"], row["payments"], row["parcels"]) for row in sent.to_arrow().to_pylist()]
    assert sorted(found) == sorted(wanted) and len(found) > 10
    assert "op" not in paid.schema.names and not paid.settings.changes


def test_any_cut_gives_the_same(made: tuple[hr.App, Any, hr.View]) -> None:
    assert_cut_invariant(made[0], *random_steps(5), cuts=2, seed=5)


def test_what_can_be_taken_back_is_no_record(spark: Any) -> None:
    with hr.App("shop", home=":temp:", spark=spark) as app:
        orders = app.stream(app.topic("orders", "id string, at timestamp", key="id", event_time="at"))
        for settings in {"how": "left"}, {"late": hr.correct(within="1 hour")}:
            joined = orders.join(orders, on="id", grace="0 seconds", **settings)
            with pytest.raises(InvalidArgument, match="taken back"):
                joined.to_topic("pairs", changes=False)


def test_an_audit_knows_rows_that_only_closing_published(spark: Any) -> None:
    with hr.App("shop", home=":temp:", spark=spark) as app:
        orders, payments = (
            app.topic(name, "id string, at timestamp", key="id", event_time="at") for name in ("orders", "payments")
        )
        joined = app.stream(orders).join(
            app.stream(payments), on="id", after="10 seconds", how="left", grace="0 seconds"
        )
        paid = joined.to_view("paid")
        orders.append([{"id": "a", "at": at(0)}, {"id": "b", "at": at(1)}])
        payments.append({"id": "a", "at": at(2)})
        app.drain(close=True)
        assert {row["id"]: row["at_right"] for row in paid.to_arrow().to_pylist()} == {"a": at(2), "b": None}
        assert app.audit().ok

        orders.append({"id": "c", "at": at(3)})  # without a match so far: no row is missing
        app.drain()
        assert paid.to_arrow().num_rows == 2
        assert app.audit().ok


def test_pairs_of_one_large_batch_are_not_late_for_the_next_join(spark: Any) -> None:
    with hr.App("shop", home=":temp:", spark=spark) as app:
        topics = [
            app.topic(name, f"id int, {name} int, at timestamp", key="id", event_time="at")
            for name in ("orders", "payments", "parcels")
        ]
        orders, payments, parcels = map(app.stream, topics)
        paid = orders.join(payments, on="id", grace="0 seconds").to_topic("paid", event_time="at", changes=False)
        both = app.stream(paid).transform(lambda df: df.drop("joined_at", "at_right"))
        sent = both.join(parcels, on="id", grace="0 seconds").to_view("sent")
        for topic in topics:
            topic.append([{"id": n, topic.name: n, "at": at(60 * n)} for n in range(50)])
        app.drain()
        assert sorted(row["id"] for row in sent.to_arrow().to_pylist()) == list(range(50))


@pytest.mark.parametrize("time", ["at", "at_right"])
def test_windows_behind_a_join_go_by_the_time_of_a_side(spark: Any, time: str) -> None:
    """A pair's window may end long before `joined_at`: it is open, and is kept, until no such pair can come."""
    dice = random.Random(7)
    with hr.App("shop", home=":temp:", spark=spark) as app:
        sides = [app.topic(name, f"id string, {name} int, at timestamp", event_time="at") for name in ("left", "right")]
        one, other = map(app.stream, sides)
        times = {"before": "8 seconds", "after": "15 seconds", "grace": "3 seconds"}
        joined = one.join(other, on="id", how="left", late=hr.correct(within="2 seconds"), **times)
        windows = joined.window(hr.tumbling("5 seconds"), time=time).group_by("id")
        view = windows.agg(n=hr.count(), paid=hr.sum("right")).to_view("by_side")
        rows: list[list[tuple[str, int, int]]] = [[], []]
        for number in range(60):
            side, row = dice.randrange(2), (dice.choice("ab"), number, number + dice.randint(-3, 0))
            rows[side].append(row)
            sides[side].append({"id": row[0], sides[side].name: row[1], "at": at(row[2])})
            if number % 7 == 0:
                app.drain()
                for each in view.to_arrow().to_pylist():  # final rows stay as they are: nothing here is idle
                    assert each["_status"] == "open" or each["window_end"] < at(number)
        app.drain(close=True)
        wanted: dict[tuple[Any, str], list[int]] = {}
        for id_, _, when in rows[0]:
            near = [row for row in rows[1] if row[0] == id_ and when - 8 <= row[2] <= when + 15]
            for row in near or [None]:
                by = when if time == "at" else None if row is None else row[2]
                if by is not None:
                    found = wanted.setdefault((at(by - by % 5), id_), [0, 0])
                    found[0], found[1] = found[0] + 1, found[1] + (0 if row is None else row[1])
        found_rows = {
            (row["window_start"], row["id"]): [row["n"], row["paid"] or 0] for row in view.to_arrow().to_pylist()
        }
        assert found_rows == wanted and len(wanted) > 10
        assert app.audit().ok


def test_a_window_behind_a_join_goes_by_no_other_time(spark: Any) -> None:
    with hr.App("shop", home=":temp:", spark=spark) as app:
        orders = app.stream(app.topic("orders", "id string, at timestamp, due timestamp", event_time="at"))
        joined = orders.join(orders, on="id", grace="0 seconds")
        joined.window(hr.tumbling("1 day"), time="due").group_by("id").agg(n=hr.count()).to_view("by_due")
        with pytest.raises(InvalidArgument, match="There are: at, at_right, joined_at"):
            app.drain()
        with pytest.raises(InvalidArgument, match="own event time"):
            joined.window(hr.tumbling("1 day"), time="_arrived_at")
